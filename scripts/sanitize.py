"""Run tests against another build of the extensions: `python scripts/sanitize.py EXTENSION… PYTEST-ARGUMENTS…`.

The files are loaded in place of the installed ones before anything imports those. `./check --full` does this with
builds that have the address and the undefined-behaviour sanitizer in them.
"""

import importlib.machinery
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

FOLDERS = {"_native": "kvsweep.kernels", "_store": "kvsweep.ledger", "_sets": "kvsweep.ledger"}


def load(extension: Path) -> None:
    """Load the extension and put it where an import of its name finds it."""
    name = extension.name.partition(".")[0]
    if name not in FOLDERS:
        raise SystemExit(f"{extension}: expected one of {', '.join(FOLDERS)}")
    folder = importlib.import_module(FOLDERS[name])
    dotted = f"{FOLDERS[name]}.{name}"
    loader = importlib.machinery.ExtensionFileLoader(dotted, str(extension))
    spec = importlib.util.spec_from_file_location(dotted, extension, loader=loader)
    if spec is None:
        raise SystemExit(f"{extension} is no extension module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[dotted] = module
    vars(folder)[name] = module


def main() -> int:
    extensions = list(itertools.takewhile(lambda argument: argument.endswith(".so"), sys.argv[1:]))
    if not extensions:
        raise SystemExit(__doc__)
    for extension in extensions:
        load(Path(extension).resolve())
    # Capture by file descriptor would swallow the sanitizer's report. The package has imported anyio by now, whose
    # assertions pytest would rather have rewritten: a warning, which the settings make an error.
    late = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    return int(pytest.main(["--capture=sys", late, *sys.argv[1 + len(extensions) :]]))


if __name__ == "__main__":
    sys.exit(main())
