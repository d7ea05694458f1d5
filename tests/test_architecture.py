"""What imports what, and what is where."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlvbench"

# Whatever else of the package a folder or a file at the top may import: arrows between them go one way.
ROOMS_MAY_IMPORT = {
    "__init__": {"monitoring"},
    "__main__": {"cli"},
    "autoprofile": {"counting", "dynamo", "monitoring", "records"},
    "cli": {"records", "report", "run"},
    "counting": {"records"},
    "distributed": {"records"},
    "dynamo": set(),
    "instrument": {"dynamo"},
    "monitoring": {"counting", "dynamo", "instrument", "records"},
    "records": set(),
    "report": {"records"},
    "run": {"autoprofile", "monitoring", "records", "report"},
}

# Whatever of third parties they may import.
THIRD_PARTIES = {
    "autoprofile": {"torch"},
    "counting": {"torch"},
    "distributed": {"torch"},
    "dynamo": {"torch"},
    "instrument": {"torch", "wrapt"},
    "monitoring": {"torch"},
    "records": {"msgspec"},
    "report": {"rich"},
    "run": {"sitecustomize", "wrapt"},
}


def files():
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def module_of(path):
    """What a file is called where it is imported."""
    return f"mlvbench.{dotted(path)}".removesuffix(".__init__")


MODULES = {module_of(path) for path in files()}


def imported(tree):
    """The modules that a program imports: of what is imported from a package of ours, each submodule for itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def imports_of(path):
    return set(imported(ast.parse(path.read_text())))


def room_of(module):
    """The first folder of a module of ours, or its file where it is in none."""
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("room", ROOMS_MAY_IMPORT)
def test_room_imports_nothing_but_what_the_tables_allow(room):
    found = {name for path in files() if room_of(module_of(path)) == room for name in imports_of(path)}
    ours = {name for name in found if name.partition(".")[0] == "mlvbench"}
    others = {name.partition(".")[0] for name in found - ours}
    assert {room_of(name) for name in ours} - {room} == ROOMS_MAY_IMPORT[room]
    assert others - sys.stdlib_module_names == THIRD_PARTIES.get(room, set())


def test_each_room_has_its_line_in_the_table():
    assert {room_of(module_of(path)) for path in files()} == ROOMS_MAY_IMPORT.keys()


def test_observer_of_the_seams_does_not_know_the_monitor():
    for path in (PACKAGE / "autoprofile").glob("*.py"):
        if path.stem != "__init__":
            assert "mlvbench.monitoring" not in imports_of(path), path


def test_no_two_rooms_import_each_other_directly_or_through_others():
    arrows = {}
    for path in files():
        room = room_of(module_of(path))
        found = {room_of(name) for name in imports_of(path) if name in MODULES}
        arrows.setdefault(room, set()).update(found - {room})
    TopologicalSorter(arrows).prepare()


@pytest.mark.parametrize(
    ("statement", "modules"),
    [
        ("from mlvbench.report import compare", {"mlvbench.report.compare"}),
        ("from mlvbench.report import compare, show", {"mlvbench.report.compare", "mlvbench.report"}),
        ("from mlvbench import report, ThroughputMonitor", {"mlvbench.report", "mlvbench"}),
        ("import mlvbench.records.run, json", {"mlvbench.records.run", "json"}),
        ("from torch.utils import data", {"torch.utils"}),
    ],
)
def test_submodule_that_is_imported_by_its_name_is_found(statement, modules):
    assert set(imported(ast.parse(statement))) == modules


def test_only_one_file_knows_a_backend():
    for path in PACKAGE.rglob("*.py"):
        if path.stem != "device":
            tree = ast.parse(path.read_text())
            names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"cuda", "xpu", "mps", "accelerator"}, path


def test_only_one_file_knows_dynamo():
    for path in PACKAGE.rglob("*.py"):
        if path.stem != "dynamo":
            tree = ast.parse(path.read_text())
            names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert not names & {"_dynamo", "compiler", "_dynamo_marked_constant"}, path
            assert not {"torch.compiler", "torch._dynamo"} & set(imports_of(path)), path


def loads_torch(statement):
    program = f"{statement}\nimport sys\nprint('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.strip() == "True"


def test_front_door_and_records_load_without_torch():
    assert not loads_torch("import mlvbench, mlvbench.records.run; dir(mlvbench)")
    assert loads_torch("import mlvbench; mlvbench.ThroughputMonitor"), "the check can fail"


def test_importing_the_monitor_does_not_import_dynamo():
    program = "import sys, torch; print('torch._dynamo' in sys.modules); import mlvbench.monitoring as _; "
    program += "print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_top_level_has_nothing_but_what_a_reader_expects():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in tracked.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= {
        "mlvbench", "tests", "examples", "pyproject.toml", "tox.ini", "README.md", "LICENSE", "CHANGELOG.md",
    }  # fmt: skip
