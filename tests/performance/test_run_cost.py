"""The benchmark of what `mlvbench run` adds still runs; what it measures is not judged here."""

import subprocess
import sys
from pathlib import Path


def test_benchmark_of_run_prints_what_each_command_adds_beside_the_targets():
    program = Path(__file__).with_name("run_cost.py")
    command = [sys.executable, program, "--rounds", "1", "--turns", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "| `mlvbench run` | " in run.stdout
    assert "target: 30 µs a step, 0.5 s a command" in run.stdout
