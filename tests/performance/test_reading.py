"""The benchmark of reading still runs; what it measures is not judged here."""

import subprocess
import sys
from pathlib import Path


def test_benchmark_of_reading_prints_what_it_measured_beside_the_targets():
    program = Path(__file__).with_name("reading.py")
    command = [sys.executable, program, "--files", "3", "--records", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "0.30 s" in run.stdout
    assert "3 files of 4 records" in run.stdout
    assert "2,000 MB" in run.stdout
    assert "\n| 1 | 4 | " in run.stdout
    assert "\n| 3 | 4 | " in run.stdout
