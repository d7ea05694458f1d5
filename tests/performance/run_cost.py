"""What `mlvbench run` adds to a script: `python tests/performance/run_cost.py`.

A script that trains a tiny MLP, so small that a profiler has nothing to hide behind, runs bare and profiled in turn,
and under TraceML too where that is installed. Prints the microseconds a step and the seconds a command that each adds,
beside the targets. It prints and does not judge: a busy machine misses a target and breaks nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from arguments import positive

STEP_TARGET = 30e-6
"""Seconds that a step may take longer."""

COMMAND_TARGET = 0.5
"""Seconds that a command may take longer beyond its steps."""

STEPS_PER_TURN = 50
PROGRAM = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
turns, steps = map(int, sys.argv[1:])
# The batches are ready, so that fetching one costs little more than going through the loader.
loader = DataLoader([(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(steps)], batch_size=None)
times = []
for _ in range(turns):
    start = time.perf_counter()
    for image, label in loader:
        loss = loss_fn(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    times.append((time.perf_counter() - start) / steps)
print(sorted(times)[len(times) // 2])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=positive, default=7, help="how often each command runs")
    parser.add_argument("--turns", type=positive, default=60, help=f"turns of {STEPS_PER_TURN} steps in a run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tiny.py").write_text(PROGRAM)
        program = ["tiny.py", str(options.turns), str(STEPS_PER_TURN)]
        commands = {
            "bare": [sys.executable, *program],
            "mlvbench run": [sys.executable, "-m", "mlvbench", "run", *program],
            "mlvbench run --quiet": [sys.executable, "-m", "mlvbench", "run", "--quiet", *program],
        }
        if traceml := shutil.which("traceml", path=str(Path(sys.executable).parent)):
            commands["TraceML"] = [traceml, "run", "tiny.py", "--args", *program[1:]]
        figures = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                figures[name].append(measure(command, folder, options.turns * STEPS_PER_TURN))
    print_table(figures)


def measure(command: list[str], folder: str, steps: int) -> tuple[float, float]:
    """Runs a command, and gives the seconds of a step and those beside the steps."""
    start = time.perf_counter()
    # What is printed goes to a file, since a pipe's reader would take a processor of its own.
    with open(Path(folder) / "stderr", "w") as errors:
        run = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, check=True)
    wall = time.perf_counter() - start
    step = next(float(line) for line in run.stdout.splitlines() if line.replace(".", "", 1).replace("e-", "").isdigit())
    return step, wall - step * steps


def print_table(figures: dict[str, list[tuple[float, float]]]) -> None:
    """Prints what each adds, as the median of the differences to the bare run of the same round."""
    bare = figures.pop("bare")
    print(f"a bare step: {median(step for step, _ in bare) * 1e6:.1f} µs; beside the steps, a bare command: ", end="")
    print(f"{median(rest for _, rest in bare):.2f} s\n")
    print("| adds | µs a step | s a command |\n| --- | ---: | ---: |")
    for name, ours in figures.items():
        steps = median(ours[0] - bare[0] for ours, bare in zip(ours, bare, strict=True))
        rests = median(ours[1] - bare[1] for ours, bare in zip(ours, bare, strict=True))
        print(f"| `{name}` | {steps * 1e6:.1f} | {rests:.2f} |")
    print(f"\ntarget: {STEP_TARGET * 1e6:.0f} µs a step, {COMMAND_TARGET} s a command")


if __name__ == "__main__":
    main()
