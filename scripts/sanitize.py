"""Run tests against another build of the native extension: `python scripts/sanitize.py EXTENSION PYTEST-ARGUMENTS…`.

The file is loaded in place of the installed one before anything imports it. `./check --full` does this with a build
that has the address and the undefined-behaviour sanitizer in it.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "kvsweep.kernels._native"


def load(extension: Path) -> None:
    """Load the extension and put it where `import kvsweep.kernels._native` finds it."""
    import kvsweep.kernels

    loader = importlib.machinery.ExtensionFileLoader(NAME, str(extension))
    spec = importlib.util.spec_from_file_location(NAME, extension, loader=loader)
    if spec is None:
        raise SystemExit(f"{extension} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    vars(kvsweep.kernels)["_native"] = module


def main() -> int:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    load(Path(sys.argv[1]).resolve())
    # Capture by file descriptor would swallow the sanitizer's report. The package has imported anyio by now, whose
    # assertions pytest would rather have rewritten: a warning, which the settings make an error.
    late = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    return int(pytest.main(["--capture=sys", late, *sys.argv[2:]]))


if __name__ == "__main__":
    sys.exit(main())
