"""The house rules: who imports whom, how long a module is, what is pure, what is named nowhere, what README says."""

import ast
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

import kvsweep

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "ledger", "transports", "runtime", "scenarios")
CORE = {"ledger", "ledger/store", "kernels", "transports", "runtime", "runtime/core"}
ROOMS = {
    "kernels": set(),
    "kernels/cuda": {"kernels"},
    "ledger": {"ledger/reducers"},
    "ledger/reducers": {"ledger"},
    "ledger/store": {"ledger"},
    "ledger/inspect": {"ledger", "ledger/store"},
    "transports": {"ledger", "kernels"},
    "transports/cuda": {"ledger", "kernels", "kernels/cuda", "transports"},
    "transports/vllm": {"ledger", "transports"},
    "runtime/core": {"ledger", "kernels"},
    "runtime": CORE - {"runtime"},
    "runtime/vllm": {*CORE, "transports/vllm"},
    "scenarios": {"kvsweep"},
    "scenarios/demo": {*CORE, "kernels/cuda", "transports/cuda", "scenarios"},
    "scenarios/verify": {*CORE, "ledger/inspect", "scenarios", "scenarios/demo"},
    "scenarios/measure": {*CORE, "kernels/cuda", "ledger/inspect", "transports/cuda", "transports/vllm", "scenarios",
                          "scenarios/demo"},
}  # fmt: skip
"""Room -> rooms that it may import from, beside itself. What stands in a folder below is of the nearest room above."""
SINGLE = {
    "runtime/core": {"runtime/settings", "ledger/store/hashing"},
}
"""Room or module -> single modules or rooms that it may import as well."""
DRAWING = {"rich", "typer"}
MAX_FILES = 30  # of Python, in one folder
MAX_LINES = 70  # of a function
PRODUCT = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TOP = sorted([*(ROOT / "src/kvsweep").glob("*.py"), *(ROOT / "src/kvsweep/cli").glob("*.py")])
STUBS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.pyi"))  # of what is compiled
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
NATIVE = sorted(
    path for folder in FOLDERS for kind in ("cpp", "hpp", "cu") for path in (ROOT / folder).rglob(f"*.{kind}")
)
IMPURE_MODULES = frozenset(
    "anyio asyncio concurrent datetime fcntl http io logging mmap multiprocessing os pathlib pickle queue random "
    "secrets select selectors shelve shutil signal socket sqlite3 ssl structlog subprocess sys tempfile threading time "
    "trio urllib uuid warnings".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})
IMPURE_NUMPY = frozenset({"random", "save", "savez", "load", "memmap", "fromfile", "tofile", "loadtxt", "savetxt"})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands.

    `from a import b` yields a.b, a relative import starts with a dot.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, "." * node.level + f"{node.module or ''}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in {
            "import_module",
            "__import__",
        }:
            yield from (
                (node.lineno, argument.value)
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def room_of(path: str) -> str:
    """The nearest room above a path such as ledger/store/log; the front for what is in none."""
    parts = path.split("/")
    rooms = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((room for room in rooms if room in ROOMS), "kvsweep")


def direction_faults(file: str, tree: ast.Module) -> list[str]:
    faults, module = [], file.removesuffix(".py")
    room = room_of(module)
    single = {one for place, modules in SINGLE.items() if within(module, place) for one in modules}
    for line, name in imported(tree):
        first, *rest = name.split(".")
        target = "/".join(rest)
        if not first or first in FOLDERS:
            faults.append(f"{line}: {name} is not an absolute kvsweep import")
        elif (
            first == "kvsweep"
            and room_of(target) not in {room, *ROOMS[room]}
            and not any(within(target, one) for one in single)
        ):
            faults.append(f"{line}: {room} may not import {name}")
    return faults


def within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


# ---- circles


def imports_when_loaded(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Modules of ours that are imported while this one is loaded: not in functions, not for type checkers alone."""
    found: set[str] = set()
    nodes: list[ast.stmt] = list(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            }
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            nodes += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            nodes += [*node.body, *node.orelse, *node.finalbody, *(part for one in node.handlers for part in one.body)]
    return found & set(modules)


def circle(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Modules that lead back to the first of them, each imported by the one before; empty where there is no circle."""
    done: set[str] = set()

    def search(way: list[str]) -> list[str]:
        for following in sorted(graph[way[-1]]):
            if following in way:
                return [*way[way.index(following) :], following]
            if following not in done and (found := search([*way, following])):
                return found
        done.add(way[-1])
        return []

    return next((found for module in sorted(graph) if module not in done and (found := search([module]))), [])


def dotted(path: Path) -> str:
    name = name_of(path).removeprefix("src/kvsweep/").removesuffix(path.suffix).removesuffix("__init__")
    return ".".join(["kvsweep", *filter(None, name.split("/"))])


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A circle loads or fails by which of its modules is asked for first."""
    modules = {dotted(path): parse(path) for path in [*PRODUCT, *TOP]}
    names = {*modules, *map(dotted, STUBS)}
    graph = {name: imports_when_loaded(tree, names) for name, tree in modules.items()}
    found = circle(graph | {dotted(path): set() for path in STUBS})
    assert not found, " -> ".join(found)


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"a": "import b", "b": "from c import x", "c": ""}, []),
        ({"a": "import b", "b": "from c import x", "c": "import a"}, ["a", "b", "c", "a"]),
        ({"a": "import b", "b": "try:\n    import c\nexcept ImportError:\n    pass", "c": "import b"}, ["b", "c", "b"]),
        ({"a": "from p import b", "p": "", "p.b": "import a"}, ["a", "p.b", "a"]),
        ({"a": "import b", "b": "def f():\n    import a"}, []),
        ({"a": "import b", "b": "if TYPE_CHECKING:\n    import a"}, []),
    ],
)
def test_the_circle_check_sees_every_import_that_is_carried_out(sources: dict[str, str], found: list[str]) -> None:
    graph = {name: imports_when_loaded(ast.parse(source), sources) for name, source in sources.items()}
    assert circle(graph) == found


def purity_faults(tree: ast.Module) -> list[str]:
    faults = [f"{line}: imports {name}" for line, name in imported(tree) if name.split(".")[0] in IMPURE_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            faults.append(f"{node.lineno}: async")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            faults.append(f"{node.lineno}: calls {node.func.id}")
        elif isinstance(node, ast.Attribute) and node.attr in IMPURE_NUMPY:
            faults.append(f"{node.lineno}: uses {ast.unparse(node)}")
    return faults


def sleep_faults(tree: ast.Module) -> list[str]:
    faults = [f"{line}: imports {name}" for line, name in imported(tree) if name.split(".")[-1] == "sleep"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            faults.append(f"{node.lineno}: {ast.unparse(node)}")
    return faults


def environment_faults(tree: ast.Module) -> list[str]:
    faults = [
        f"{line}: imports {name}"
        for line, name in imported(tree)
        if name in {"os.environ", "os.environb", "os.getenv", "os.getenvb"}
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb"}:
            faults.append(f"{node.lineno}: {ast.unparse(node)}")
    return faults


def report(faults: dict[str, list[str]]) -> str:
    return "\n".join(f"{path}:{fault}" for path, found in faults.items() for fault in found)


def test_folders_import_only_what_they_may() -> None:
    faults = {name_of(path): direction_faults(name_of(path), parse(path)) for path in PRODUCT}
    assert not report(faults), report(faults)


def drawing_faults(tree: ast.Module) -> list[str]:
    return [f"{line}: imports {name}" for line, name in imported(tree) if name.split(".")[0] in DRAWING]


def test_only_the_command_line_draws() -> None:
    """What runs and measures gives its answers as data; `src/kvsweep/cli` makes tables, bars and options of them."""
    faults = {name_of(path): drawing_faults(parse(path)) for path in PRODUCT}
    assert not report(faults), report(faults)


def test_every_folder_with_modules_is_a_package() -> None:
    """A folder without __init__.py still imports, and type checkers and module walks pass it by in silence."""
    folders = {path.parent for path in PRODUCT}
    missing = sorted(name_of(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert not missing, f"without __init__.py: {missing}"


def test_no_folder_is_a_heap() -> None:
    counts = Counter(path.parent for path in [*PRODUCT, *TOP, *TESTS])
    heaps = {name_of(folder): count for folder, count in counts.items() if count > MAX_FILES}
    assert not heaps, f"more than {MAX_FILES} Python files: {heaps}"


def long_functions(tree: ast.Module) -> list[str]:
    """Lines from the first statement on: a signature with a line an option is as long as its options.

    The functions of a class that is made inside a function are counted by themselves.
    """
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [part for part in node.body if not isinstance(part, ast.ClassDef)]
            length = sum((part.end_lineno or part.lineno) - part.lineno + 1 for part in body)
            if length >= MAX_LINES:
                faults.append(f"{node.lineno}: {node.name} has {length} lines")
    return faults


def test_functions_are_short() -> None:
    faults = {name_of(path): long_functions(parse(path)) for path in [*PRODUCT, *TOP, *TESTS, *SCRIPTS]}
    assert not report(faults), report(faults)


def is_pure(path: Path) -> bool:
    name = name_of(path)
    return name.startswith("runtime/core/") or (name.startswith("ledger/") and not name.startswith("ledger/store/"))


def test_ledger_and_core_have_no_clock_no_random_no_io() -> None:
    faults = {name_of(path): purity_faults(parse(path)) for path in PRODUCT if is_pure(path)}
    assert not report(faults), report(faults)


def test_no_environment_variable_is_read() -> None:
    """A1: no flag of the environment decides anything. Settings are one object, read from a file or from arguments."""
    faults = {name_of(path): environment_faults(parse(path)) for path in [*PRODUCT, *TOP]}
    assert not report(faults), report(faults)


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    faults = {name_of(path): sleep_faults(parse(path)) for path in TESTS}
    assert not report(faults), report(faults)


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        (
            "ledger/x.py",
            "def f():\n    from kvsweep.kernels import gather",
            "2: ledger may not import kvsweep.kernels.gather",
        ),
        (
            "ledger/x.py",
            "if TYPE_CHECKING:\n    import kvsweep.runtime.core.core",
            "2: ledger may not import kvsweep.runtime.core.core",
        ),
        ("ledger/x.py", "from kvsweep.ledger import store", "1: ledger may not import kvsweep.ledger.store"),
        (
            "ledger/reducers/x.py",
            "from kvsweep.ledger.store.log import Record",
            "1: ledger/reducers may not import kvsweep.ledger.store.log.Record",
        ),
        (
            "ledger/store/x.py",
            "from kvsweep.ledger.inspect import replay",
            "1: ledger/store may not import kvsweep.ledger.inspect.replay",
        ),
        (
            "runtime/core/x.py",
            "from kvsweep.runtime.driver import Driver",
            "1: runtime/core may not import kvsweep.runtime.driver.Driver",
        ),
        (
            "scenarios/demo/x.py",
            "import kvsweep.scenarios.verify.script.run",
            "1: scenarios/demo may not import kvsweep.scenarios.verify.script.run",
        ),
        ("runtime/x.py", "from kvsweep.cli import log", "1: runtime may not import kvsweep.cli.log"),
        ("kernels/x.py", "from kvsweep.ledger.ids import Rows", "1: kernels may not import kvsweep.ledger.ids.Rows"),
        ("kernels/x.py", "from kvsweep import ledger", "1: kernels may not import kvsweep.ledger"),
        ("runtime/x.py", "from kvsweep import Core", "1: runtime may not import kvsweep.Core"),
        (
            "runtime/x.py",
            "importlib.import_module('kvsweep.scenarios.demo.run')",
            "1: runtime may not import kvsweep.scenarios.demo.run",
        ),
        ("runtime/x.py", "from .core import Core", "1: .core.Core is not an absolute kvsweep import"),
        ("scenarios/x.py", "import ledger.ids", "1: ledger.ids is not an absolute kvsweep import"),
    ],
)
def test_the_direction_check_sees_every_form_of_import(file: str, source: str, fault: str) -> None:
    assert direction_faults(file, ast.parse(source)) == [fault]


def test_what_a_room_may_import_is_no_fault() -> None:
    source = "from kvsweep.ledger.ids import Rows\nfrom kvsweep.runtime import settings\nimport numpy"
    assert direction_faults("runtime/core/x.py", ast.parse(source)) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import time", "1: imports time"),
        ("def f():\n    from os import path", "2: imports os.path"),
        ("x = open('f')", "1: calls open"),
        ("x = np.random.default_rng(1)", "1: uses np.random"),
        ("async def f(): ...", "1: async"),
    ],
)
def test_the_purity_check_sees_clock_random_and_io(source: str, fault: str) -> None:
    assert purity_faults(ast.parse(source)) == [fault]


@pytest.mark.parametrize(
    "source", ["import rich", "def f():\n    from rich.table import Table", "import typer.testing"]
)
def test_the_drawing_check_sees_every_form_of_import(source: str) -> None:
    assert drawing_faults(ast.parse(source))


@pytest.mark.parametrize("source", ["time.sleep(1)", "await anyio.sleep(0)", "from time import sleep"])
def test_the_sleep_check_sees_sleeping(source: str) -> None:
    assert sleep_faults(ast.parse(source))


@pytest.mark.parametrize("source", ["os.environ['A']", "os.getenv('A')", "from os import environ as e"])
def test_the_environment_check_sees_reading(source: str) -> None:
    assert environment_faults(ast.parse(source))


# ---- in a fresh interpreter ------------------------------------------------------------------------------------------


def fresh(code: str, cwd: Path) -> list[str]:
    """Run `code` in a new interpreter that has no checkout on its path; its last line of output is a JSON list."""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def test_no_folder_is_imported_under_its_bare_name(tmp_path: Path) -> None:
    """Another project on the package index is called kernels, and a well-known library imports it."""
    code = (
        "import importlib, json, pkgutil, sys, kvsweep\n"
        "for module in pkgutil.walk_packages(kvsweep.__path__, 'kvsweep.'): importlib.import_module(module.name)\n"
        f"print(json.dumps(sorted({set(FOLDERS)!r} & set(sys.modules))))"
    )
    assert fresh(code, tmp_path) == []
    assert set(FOLDERS).isdisjoint(sys.modules)


def test_import_kvsweep_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"torch", "transformers", "tokenizers", "gguf", "typer", "rich", "sqlite3", "cupy", "trio"}
    code = f"import json, sys, kvsweep\nprint(json.dumps(sorted({heavy!r} & set(sys.modules))))"
    assert fresh(code, tmp_path) == []


def test_the_version_is_written_once() -> None:
    assert importlib.metadata.version("kvsweep") == kvsweep.__version__
    assert kvsweep.__version__ not in (ROOT / "pyproject.toml").read_text()


# ---- words that stand nowhere ----------------------------------------------------------------------------------------

GENERATED_OR_FOREIGN = {".git", ".venv", "build", "dist", "__pycache__", "LICENSE"}
NOWHERE = {
    "an absolute path of somebody's machine": r"(?<![\w.}>)])/(?:home|Users|root|work|workspace)/",
    "a private address": r"\b(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b",
    "a package index of one site": r"--(?:extra-)?index[-]url",
    "work that is left open": r"\b(?:T[O]DO|F[I]XME|X[X]X)\b",
}


def texts() -> Iterator[tuple[str, str]]:
    for directory, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in GENERATED_OR_FOREIGN and not name.endswith("_cache") and name != ".hypothesis"
        ]
        for file in sorted(set(files) - GENERATED_OR_FOREIGN):
            path = Path(directory, file)
            try:
                yield name_of(path), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


@pytest.mark.parametrize("what", NOWHERE)
def test_files_name_no_machine_and_leave_nothing_open(what: str) -> None:
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path, text in texts()
        for match in re.finditer(NOWHERE[what], text)
    ]
    assert not found, f"{what}: {found}"


# ---- README ----------------------------------------------------------------------------------------------------------


def readme_commands() -> list[str]:
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(\./|kvsweep\b|\.venv/bin/)", line)]


@pytest.mark.parametrize("command", readme_commands())
def test_readme_commands_exist(command: str) -> None:
    """Each script is there and executable; each kvsweep command answers --help and knows the options shown."""
    program, *words = shlex.split(command)
    if program.startswith("./"):
        assert os.access(ROOT / program, os.X_OK), f"{program} is not executable"
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if program == "./check":
        assert options <= {"--full", "--help"}
        return
    subcommands = {"./demo": ["demo"]}.get(program, [])
    if Path(program).name == "kvsweep":
        for word in words:
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            subcommands.append(word)
    elif program != "./demo":
        return
    done = subprocess.run(
        [sys.executable, "-c", "from kvsweep.cli.main import main; main()", *subcommands, "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    missing = sorted(option for option in options if not re.search(rf"(?<!\S){option}(?![\w-])", done.stdout))
    assert not missing, f"{command}: kvsweep {' '.join(subcommands)} --help does not know {missing}"
