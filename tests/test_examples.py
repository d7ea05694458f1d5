"""The examples run as a user runs them, from a folder of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PHASES = {
    "explicit_phases.py": {"data", "transfer", "features", "probes", "backward", "optimizer"},
    "decorated_functions.py": {"data", "transfer", "forward", "backward", "update"},
    "instrumented_model.py": {"data", "features", "blocks", "probes", "backward", "optimizer", "features/blocks"},
    "mixed.py": {
        "data", "train", "features", "probes", "backward", "optimizer", "validate",
        "train/features", "train/probes", "train/backward", "validate/features", "validate/probes",
    },
}  # fmt: skip


def test_each_example_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PHASES, "digits.py"}


@pytest.mark.parametrize("name", PHASES)
def test_an_example(name, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    records = json.loads((tmp_path / "throughput.json").read_text())
    assert {key[2:] for record in records for key in record if key.startswith("t_")} == PHASES[name]
    assert [record["step"] for record in records] == [50, 100, 150, 200, 250, 300, 312]
    assert sum(record["samples"] for record in records) == 13 * 1536
    table = run.stdout.partition("\nphase ")[2].splitlines()[1:]
    rows = [line.rsplit(maxsplit=3) for line in table[: table.index("")]]
    top = [float(share.rstrip("%")) for name, _, _, share in rows if not name.startswith(" ")]
    *shares, wall = top
    assert wall == 100.0
    assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))
    lost = [float(part.split("%")[0].split()[-1]) for part in run.stdout.partition("accuracy:")[2].split(",")]
    assert min(lost) > 80, "the model learns"
