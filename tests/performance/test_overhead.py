"""The benchmark still runs and measures all that it names; what it measures is not judged here."""

import subprocess
import sys
from pathlib import Path


def test_the_benchmark_prints_its_tables():
    program = Path(__file__).with_name("overhead.py")
    run = subprocess.run([sys.executable, program, "--rounds", "3"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    for heading in ("cost of a call", "cost of a snapshot", "target"):
        assert f"\n{heading}" in run.stdout
