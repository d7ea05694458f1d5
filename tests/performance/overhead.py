"""What the profiler itself costs, beside the alternatives: `python tests/performance/overhead.py`.

Two tables and the targets, from one run. It prints and does not judge: a busy machine misses a target and
breaks nothing. Every cost is compared with the *floor*, the least that timing a block can cost: two readings
of the clock and an addition, written inline.
"""

from __future__ import annotations

import argparse
import gc
import platform
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import TYPE_CHECKING, Any

import torch
from arguments import positive
from torch import nn

from mlvbench.monitoring import ThroughputMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Many short turns: a drift of the machine's speed falls on every snippet of a round alike, and a program that
# takes the processor away spoils few of the turns, also of the dearest snippet.
CALLS_PER_TURN = 200
ITEMS_PER_PASS = 1000
DEFAULT_ROUNDS = 2000

PHASE_COUNTS = (1, 10, 100, 1000)
HISTORY_LENGTHS = (0, 1_000, 10_000, 100_000)
PHASES_PER_HISTORY = 10
SNAPSHOT_ROUNDS = 100
GROWTH_SNAPSHOTS = 1_000
GROWTH_PHASES = 100_000


# Table 1: the cost of a call -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snippet:
    """A statement to time, with what it is for.

    Attributes:
        label: The row's text.
        statement: What is run over and over. The names in it are locals, as they would be in a training loop.
        setup: What is run before every turn, untimed.
        less: The snippet whose cost in the same round is subtracted; a baseline has none and no row.
        units: How many phases, or items, one run of the statement has; the cost is per unit.
    """

    label: str
    statement: str
    setup: str = "pass"
    less: str = "empty"
    units: int = 1


BASELINES = {
    "empty": Snippet("an empty loop", "pass", less=""),
    "items": Snippet(
        "a loop over a range", "for _ in items: pass", f"items = range({ITEMS_PER_PASS})", "", ITEMS_PER_PASS
    ),
    "function": Snippet("a bare function", "f()", "f = bare_function", ""),
    "method": Snippet("a bare method", "model.features()", "model = bare_model", ""),
}

OURS = {
    "floor": Snippet(
        "the floor: `clock(); clock(); d[k] += ...`",
        "start = clock(); end = clock(); d[k] += end - start",
        "clock = perf_counter; d = {'x': 0.0}; k = 'x'",
    ),
    "phase": Snippet("`with monitor.phase('x')`", "with monitor.phase('x'): pass", "monitor = on"),
    "kept": Snippet("`with phase`, made once and kept", "with phase: pass", "phase = on.phase('x')"),
    "nested": Snippet(
        "two nested phases, each",
        "with monitor.phase('x'):\n    with monitor.phase('y'): pass",
        "monitor = on",
        units=2,
    ),
    "iterate": Snippet(
        "`monitor.iterate(range(...))`, an item",
        "for _ in monitor.iterate(items): pass",
        f"monitor = on; items = range({ITEMS_PER_PASS})",
        "items",
        ITEMS_PER_PASS,
    ),
    "timed": Snippet("a `timed` function", "f()", "f = timed_function", "function"),
    "on instance": Snippet(
        "a method instrumented on an instance", "model.features()", "model = instrumented_model", "method"
    ),
    "on class": Snippet(
        "a method instrumented on a class",
        "model.features()",
        "model = model_of_instrumented_class",
        "method",
    ),
    "off phase": Snippet(
        "disabled: `with monitor.phase('x')`",
        "with monitor.phase('x'): pass",
        "monitor = off",
    ),
    "off timed": Snippet("disabled: a `timed` function", "f()", "f = off_timed_function", "function"),
    "off instrumented": Snippet(
        "disabled: an instrumented method", "model.features()", "model = off_instrumented_model", "method"
    ),
}

# Lightning and codetiming keep every duration in a list. Each turn starts with an empty one, so that neither
# grows slower from round to round.
PEERS = {
    "codetiming": Snippet(
        "`codetiming.Timer`, one timer reused",
        "with timer: pass",
        "from codetiming import Timer; Timer.timers.clear(); timer = Timer('x', logger=None)",
    ),
    "lightning": Snippet(
        "Lightning's `SimpleProfiler.profile('x')`",
        "with profiler.profile('x'): pass",
        "try: from lightning.pytorch.profilers import SimpleProfiler\n"
        "except ImportError: from pytorch_lightning.profilers import SimpleProfiler\n"
        "profiler = SimpleProfiler()",
    ),
    "torch": Snippet(
        "`torch.profiler.record_function('x')`, no profiler on",
        "with record_function('x'): pass",
        "from torch.profiler import record_function",
    ),
}


def make_function() -> Callable[[], None]:
    """Returns a new function that does nothing: each wrapped one is an object of its own."""

    def function() -> None:
        pass

    return function


def make_model() -> nn.Module:
    """Returns a module of a new class, so that instrumenting one class leaves the others bare."""

    class Model(nn.Module):
        def features(self) -> None:
            pass

    return Model()


def build_subjects() -> dict[str, Any]:
    """Returns what the snippets of `BASELINES` and `OURS` refer to, by name."""
    on, off = ThroughputMonitor("cpu"), ThroughputMonitor("cpu", record_every_n_steps=None)
    subjects = {
        "perf_counter": time.perf_counter,
        "on": on,
        "off": off,
        "bare_function": make_function(),
        "timed_function": on.timed("x")(make_function()),
        "off_timed_function": off.timed("x")(make_function()),
        "bare_model": make_model(),
        "instrumented_model": make_model(),
        "model_of_instrumented_class": make_model(),
        "off_instrumented_model": make_model(),
    }
    on.instrument(subjects["instrumented_model"], {"x": "features"})
    on.instrument(type(subjects["model_of_instrumented_class"]), {"x": "features"})
    off.instrument(subjects["off_instrumented_model"], {"x": "features"})
    return subjects


def disabled_leaves_the_same_objects() -> bool:
    """Tells whether a disabled monitor's `timed` and `instrument` hand back, and leave, what was there."""
    off = ThroughputMonitor("cpu", record_every_n_steps=None)
    function, model = make_function(), make_model()
    instance_before, class_before = dict(vars(model)), dict(vars(type(model)))
    off.instrument(model, {"x": "features"})
    off.instrument(type(model), {"x": "features"})
    untouched = vars(model) == instance_before and dict(vars(type(model))) == class_before
    return untouched and off.timed("x")(function) is function


def installed(peer: Snippet) -> bool:
    """Tells whether what a peer's snippet imports is there."""
    try:
        exec(peer.setup, {})
    except ImportError:
        return False
    return True


def measure(snippets: dict[str, Snippet], subjects: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Measures every snippet once a round, in turn.

    Returns:
        For each snippet but the baselines, and each round, nanoseconds a unit less those of its baseline.
    """
    # timeit switches the garbage collector off. In training it is on, and a timer that makes garbage pays.
    timers = {
        key: Timer(snippet.statement, f"import gc; gc.enable()\n{snippet.setup}", globals=subjects)
        for key, snippet in snippets.items()
    }
    runs = {key: max(1, CALLS_PER_TURN // snippet.units) for key, snippet in snippets.items()}
    costs: dict[str, list[float]] = {key: [] for key, snippet in snippets.items() if snippet.less}
    for turn in range(rounds + 1):
        seconds = {key: timer.timeit(runs[key]) for key, timer in timers.items()}
        if turn == 0:
            continue  # the interpreter still specialises the bytecode, and the monitors meet their phases
        unit = {key: 1e9 * seconds[key] / (runs[key] * snippets[key].units) for key in snippets}
        for key in costs:
            costs[key].append(unit[key] - unit[snippets[key].less])
    return costs


def ratio(costs: dict[str, list[float]], key: str, to: str) -> float:
    """Returns the median over the rounds of one snippet's cost over another's in the same round."""
    return median(a / b for a, b in zip(costs[key], costs[to], strict=True))


def number(value: float, digits: int) -> str:
    """Returns a number as text, a difference that rounds to zero without its sign."""
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def call_rows(snippets: dict[str, Snippet], costs: dict[str, list[float]]) -> list[list[str]]:
    """Returns table 1, its header first."""
    rows = [["cost of a call", "ns", "x the floor"]]
    for key, values in costs.items():
        nanoseconds, times_floor = median(values), ratio(costs, key, "floor")
        rows.append([snippets[key].label, number(nanoseconds, 0), number(times_floor, 2)])
    return rows


# Table 2: the cost of a snapshot ---------------------------------------------------------------------------


class Run:
    """A monitor with some phases and some earlier records: a training run that has come this far."""

    def __init__(self, phases: int, records: int = 0) -> None:
        """Makes the monitor and takes the earlier records, each with every phase in it."""
        self.monitor = ThroughputMonitor("cpu")
        self.names = [f"phase{i}" for i in range(phases)]
        self.step = 0
        for _ in range(records):
            self.snapshot()

    def enter_phases(self) -> None:
        """Enters and leaves each phase once, so that all of them are in the next snapshot."""
        for name in self.names:
            with self.monitor.phase(name):
                pass

    def snapshot(self) -> float:
        """Enters the phases, takes a snapshot, and returns the seconds that the snapshot alone took."""
        self.enter_phases()
        self.step += 1
        start = time.perf_counter()
        self.monitor.snapshot(self.step)
        return time.perf_counter() - start


def snapshot_costs(runs: Sequence[Run]) -> list[float]:
    """Returns the median microseconds of a snapshot of each run, the runs taking turns.

    Measuring adds two records a round to each history.
    """
    rounds = []
    for _ in range(SNAPSHOT_ROUNDS):
        # The first snapshot of a turn finds the caches full of another run's data; the second one counts.
        rounds.append([[run.snapshot(), run.snapshot()][1] for run in runs])
    return [1e6 * median(column) for column in zip(*rounds, strict=True)]


def traced_bytes() -> int:
    """Returns the bytes that Python objects hold now, garbage apart; tracemalloc must be running."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def memory_growth() -> tuple[float, int]:
    """Returns the bytes that one snapshot adds, and those that many phases between two snapshots add."""
    run = Run(PHASES_PER_HISTORY, records=10)
    tracemalloc.start()
    try:
        before = traced_bytes()
        for _ in range(GROWTH_SNAPSHOTS):
            run.snapshot()
        after = traced_bytes()
        for _ in range(GROWTH_PHASES // PHASES_PER_HISTORY):
            run.enter_phases()
        return (after - before) / GROWTH_SNAPSHOTS, traced_bytes() - after
    finally:
        tracemalloc.stop()


def snapshot_rows() -> list[list[str]]:
    """Measures table 2 and returns it, its header first."""
    rows = [["cost of a snapshot", "", ""]]
    for count, cost in zip(PHASE_COUNTS, snapshot_costs([Run(n) for n in PHASE_COUNTS]), strict=True):
        rows.append([f"{count:,} phase{'s' * (count > 1)}", f"{cost:,.1f}", "us"])
    histories = [Run(PHASES_PER_HISTORY, records=n) for n in HISTORY_LENGTHS]
    for length, cost in zip(HISTORY_LENGTHS, snapshot_costs(histories), strict=True):
        rows.append([f"{PHASES_PER_HISTORY} phases, after {length:,} records", f"{cost:,.1f}", "us"])
    per_snapshot, per_phases = memory_growth()
    rows += [
        [f"memory that a snapshot of {PHASES_PER_HISTORY} phases adds", f"{per_snapshot:,.0f}", "bytes"],
        [f"memory that {GROWTH_PHASES:,} phases between two snapshots add", f"{per_phases:,}", "bytes"],
    ]
    return rows


# The targets -----------------------------------------------------------------------------------------------

# What, its snippet, the one it is compared with, and the most that it may cost as a multiple of that.
TARGETS = [
    ("phase, of the floor", "phase", "floor", 4.0),
    ("phase, of codetiming.Timer", "phase", "codetiming", 1.0),
    ("phase made once and kept, of codetiming.Timer", "kept", "codetiming", 1.0),
    ("phase, of Lightning's SimpleProfiler.profile", "phase", "lightning", 0.5),
    ("phase, of record_function", "phase", "torch", 0.2),
    ("timed function, of the floor", "timed", "floor", 6.0),
    ("method instrumented on an instance, of the floor", "on instance", "floor", 6.0),
    ("method instrumented on a class, of the floor", "on class", "floor", 6.0),
]


def target_rows(costs: dict[str, list[float]]) -> list[list[str]]:
    """Returns each target with the measured value and whether it is met, the header first."""
    rows = [["target", "at most", "measured", ""]]
    for label, key, to, limit in TARGETS:
        if to in costs:
            value = ratio(costs, key, to)
            rows.append([label, f"{limit:.2f}x", f"{value:.2f}x", "met" if value <= limit else "missed"])
        else:
            rows.append([label, f"{limit:.2f}x", "-", "not measured"])
    seen, verdict = ("same", "met") if disabled_leaves_the_same_objects() else ("another", "missed")
    rows.append(["disabled timed, instrument: the object", "same", seen, verdict])
    return rows


# Printing --------------------------------------------------------------------------------------------------


def processor_name() -> str:
    """Returns the processor's marketing name where the system tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or platform.machine()


def environment() -> str:
    """Returns what the numbers depend on, in a line."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, wrapt {version('wrapt')}"
    return f"{versions}, {processor_name()}"


def plain_table(rows: list[list[str]]) -> str:
    """Returns the rows in columns, the first to the left and the others to the right, without backquotes."""
    rows = [[cell.replace("`", "") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])] + [c.rjust(w) for c, w in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(rows: list[list[str]]) -> str:
    """Returns the rows as a table for the README, its header first."""
    header, *body = rows
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *body])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What the profiler itself costs, beside the alternatives.")
    parser.add_argument("--markdown", action="store_true", help="print only the first table, for the README")
    parser.add_argument("--rounds", type=positive, default=DEFAULT_ROUNDS, help="rounds of the first table")
    options = parser.parse_args()

    peers = {key: peer for key, peer in PEERS.items() if installed(peer)}
    missing = PEERS.keys() - peers.keys()
    snippets = BASELINES | OURS | peers
    print(f"{environment()}\n")
    costs = measure(snippets, build_subjects(), options.rounds)
    print((markdown_table if options.markdown else plain_table)(call_rows(snippets, costs)))
    if missing:
        print(f"\nleft out, not installed: {', '.join(sorted(missing))}")
    if not options.markdown:
        print(f"\n{plain_table(snapshot_rows())}\n\n{plain_table(target_rows(costs))}")


if __name__ == "__main__":
    main()
