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

FOLDERS = {"_native": "kvsweep.kernels", **dict.fromkeys(("_store", "_sets"), "kvsweep.ledger")}


def load(extension: Path) -> str:
    """Load the extension and put it where an import of its name finds it. Returns that name, with dots."""
    name = extension.name.partition(".")[0]
    if name not in FOLDERS:
        raise SystemExit(f"{extension}: expected one of {', '.join(FOLDERS)}")
    dotted = f"{FOLDERS[name]}.{name}"
    loader = importlib.machinery.ExtensionFileLoader(dotted, str(extension))
    spec = importlib.util.spec_from_file_location(dotted, extension, loader=loader)
    if spec is None:
        raise SystemExit(f"{extension} is no extension module")
    sys.modules[dotted] = module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return dotted


def main() -> int:
    extensions = list(itertools.takewhile(lambda argument: argument.endswith(".so"), sys.argv[1:]))
    if not extensions:
        raise SystemExit(__doc__)
    # All of them, before a folder is imported and with it what it finds there.
    for dotted in [load(Path(extension).resolve()) for extension in extensions]:
        folder, _, name = dotted.rpartition(".")
        vars(importlib.import_module(folder))[name] = sys.modules[dotted]
    # Capture by file descriptor would swallow the sanitizer's report. The package has imported anyio by now, whose
    # assertions pytest would rather have rewritten: a warning, which the settings make an error.
    late = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    return int(pytest.main(["--capture=sys", late, *sys.argv[1 + len(extensions) :]]))


if __name__ == "__main__":
    sys.exit(main())
