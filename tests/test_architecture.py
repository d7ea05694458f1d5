"""What imports what, and what is where."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlvbench"

# Whatever of the package and of third parties a file may import.
MAY_IMPORT = {
    "__init__": {"mlvbench.monitoring"},
    "dynamo": {"torch"},
    "counting.__init__": set(),
    "counting.device": {"torch"},
    "counting.timeline": set(),
    "counting.ranges": {"torch", "mlvbench.counting.device"},
    "counting.tracks": {"mlvbench.counting.counters", "mlvbench.counting.ranges", "mlvbench.counting.timeline"},
    "counting.counters": {"mlvbench.counting.ranges", "mlvbench.counting.timeline", "mlvbench.counting.tracks"},
    "counting.recorder": {
        "torch", "mlvbench.counting.counters", "mlvbench.counting.device", "mlvbench.counting.timeline",
        "mlvbench.records",
    },
    "records": {"msgspec"},
    "instrument.__init__": set(),
    "instrument.callables": {"wrapt", "torch", "mlvbench.dynamo"},
    "instrument.iterables": {"wrapt", "torch", "mlvbench.dynamo", "mlvbench.instrument.callables"},
    "instrument.patching": {"torch", "mlvbench.instrument.callables"},
    "monitoring": {
        "torch", "mlvbench.counting.counters", "mlvbench.counting.device", "mlvbench.counting.recorder",
        "mlvbench.counting.timeline", "mlvbench.dynamo", "mlvbench.instrument", "mlvbench.instrument.callables",
        "mlvbench.instrument.iterables", "mlvbench.instrument.patching", "mlvbench.records",
    },
    "distributed": {"torch", "mlvbench.records"},
    "runs": {"mlvbench.records"},
    "progress": {"torch"},
    "profiling": {
        "torch", "mlvbench.counting.counters", "mlvbench.counting.device", "mlvbench.counting.recorder",
        "mlvbench.progress",
    },
    "autoprofile": {
        "torch", "mlvbench.counting.timeline", "mlvbench.dynamo", "mlvbench.monitoring", "mlvbench.profiling",
    },
    "running": {
        "wrapt", "mlvbench.autoprofile", "mlvbench.monitoring", "mlvbench.profiling", "mlvbench.records",
        "mlvbench.report", "mlvbench.report.intervals", "mlvbench.report.text", "mlvbench.runs",
        "mlvbench.counting.timeline",
    },
    "launch": {"mlvbench.running", "mlvbench.runs", "mlvbench.counting.timeline"},
    "bootstrap.sitecustomize": {"sitecustomize", "mlvbench.running"},
    "report.__init__": {"mlvbench.runs", "mlvbench.report.summary", "mlvbench.report.table", "mlvbench.report.text"},
    "report.intervals": {"mlvbench.records"},
    "report.summary": {"mlvbench.records", "mlvbench.report.intervals", "mlvbench.runs"},
    "report.compare": {"mlvbench.report.intervals", "mlvbench.report.summary"},
    "report.diagnosis": {"mlvbench.report.summary"},
    "report.ranks": {"mlvbench.report.intervals", "mlvbench.report.summary", "mlvbench.runs"},
    "report.text": {
        "mlvbench.report.compare", "mlvbench.report.diagnosis", "mlvbench.report.intervals", "mlvbench.report.ranks",
        "mlvbench.report.summary", "mlvbench.runs",
    },
    "report.export": {
        "mlvbench.report.compare", "mlvbench.report.ranks", "mlvbench.report.summary", "mlvbench.report.text",
        "mlvbench.runs",
    },
    "report.table": {"rich", "mlvbench.report.text"},
    "report.page": {
        "mlvbench.report.compare", "mlvbench.report.intervals", "mlvbench.report.ranks", "mlvbench.report.summary",
        "mlvbench.report.text", "mlvbench.runs",
    },
    "cli": {
        "mlvbench.launch", "mlvbench.records", "mlvbench.report", "mlvbench.report.summary", "mlvbench.report.text",
        "mlvbench.report.compare", "mlvbench.report.export", "mlvbench.report.page", "mlvbench.runs",
        "mlvbench.counting.timeline",
    },
    "__main__": {"mlvbench.cli"},
}  # fmt: skip


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "mlvbench":
                yield from (f"mlvbench.{alias.name}" for alias in node.names)
            else:
                yield node.module


def dotted(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=dotted)
def test_imports_run_one_way(path):
    found = set()
    for name in imports_of(path):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names:
            found.add(name if first == "mlvbench" else first)
    assert found <= MAY_IMPORT[dotted(path)]


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


def test_the_front_door_and_the_records_load_without_torch():
    assert not loads_torch("import mlvbench, mlvbench.records; dir(mlvbench)")
    assert loads_torch("import mlvbench; mlvbench.ThroughputMonitor"), "the check can fail"


def test_importing_the_monitor_imports_no_dynamo():
    program = "import sys, torch; print('torch._dynamo' in sys.modules); import mlvbench.monitoring as _; "
    program += "print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_the_top_level_has_what_a_reader_expects_and_nothing_else():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in tracked.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= {
        "mlvbench", "tests", "examples", "pyproject.toml", "tox.ini", "README.md", "LICENSE", "CHANGELOG.md",
    }  # fmt: skip
