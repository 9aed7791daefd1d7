#!/usr/bin/env bash
# The tests of compiled code under ASan and UBSan, on every instruction set of this processor. Part of ./check --full.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
bin=$root/.venv/bin
build=$root/build/sanitized
PATH=$bin:$PATH cmake -G Ninja -S "$root" -B "$build" -DPython_EXECUTABLE="$bin/python" -DCMAKE_BUILD_TYPE=Release \
  -DKVSWEEP_SANITIZE=address,undefined >/dev/null
PATH=$bin:$PATH ninja -C "$build" >/dev/null
# Leaks are not looked for: the interpreter keeps what it allocates at start.
LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  "$bin/python" -P "$root/scripts/sanitize.py" "$build"/_native*.so "$build"/_store*.so "$build"/_sets*.so \
  -q -m "" "$@" \
  "$root/tests/kernels/native" "$root/tests/ledger/native"
