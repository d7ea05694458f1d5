"""The examples run as a user runs them, from a folder of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlvbench.records.run import read_run

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


# PyTorch before 2.7 leaves a temporary directory to the collector of garbage.
STRICT = [sys.executable, "-W", "error", "-W", "ignore:Implicitly cleaning up:ResourceWarning"]
TESTED_ELSEWHERE = {"log_to_mlflow.py", "log_to_tensorboard.py", "log_to_wandb.py"}  # in test_loggers.py


def test_every_example_is_tested():
    others = {"digits.py", "distributed.py", "phases_to_log.py", "plain_script.py", *TESTED_ELSEWHERE}
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PHASES, *others}


@pytest.mark.parametrize("name", PHASES)
def test_example_prints_a_sound_table_and_saves_its_phases(name, tmp_path):
    run = subprocess.run([*STRICT, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    records = json.loads((tmp_path / "throughput.json").read_text())
    assert {key[2:] for record in records for key in record if key.startswith("t_")} == PHASES[name]
    assert [record["step"] for record in records] == [50, 100, 150, 200, 250, 300, 312]
    assert sum(record["samples"] for record in records) == 13 * 1536
    assert_sound(run.stdout)


def assert_sound(output):
    """The table's shares sum to the whole, and the model learns."""
    shares = [float(share) for share in re.findall(r"^[ \w]+? +[\d.]+ +([\d.]+)%", output, re.MULTILINE)]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.05 * len(shares))
    right = [float(part.split("%")[0].split()[-1]) for part in output.partition("accuracy:")[2].split(",")[:2]]
    assert min(right) > 80


def test_script_that_knows_nothing_of_mlvbench_prints_the_same_profiled(tmp_path):
    program = EXAMPLES / "plain_script.py"
    assert "mlvbench" not in program.read_text().partition("def main")[2]
    command = [*STRICT, "-m", "mlvbench", "run", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    bare = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert run.stdout == bare.stdout
    [records] = read_run(next(tmp_path.glob("mlvbench-runs/plain_script-*"))).ranks[0]
    assert [record["step"] for record in records] == [50, 100, 150, 200, 250, 300, 312]
    assert sum(record["samples"] for record in records) == 13 * 1536
    assert_sound(run.stderr + run.stdout)


def test_example_of_many_ranks_prints_mean_and_slowest_rank(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "error::RuntimeWarning",
    }  # fmt: skip
    run = subprocess.run(
        [*command, EXAMPLES / "distributed.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *blocks, last = re.split(r"^(?=step|test)", run.stdout, flags=re.MULTILINE)[1:]
    assert [int(block.split()[1].rstrip(":")) for block in blocks] == [50, 100, 150, 200, 250, 300, 312]
    for block in blocks:
        lines = re.findall(r"^    (\w+) +([\d.]+) s, the longest +([\d.]+) s on rank ([01])$", block, re.MULTILINE)
        assert [name for name, *_ in lines] == ["data", "forward", "backward", "optimizer"]
        assert all(0 <= float(mean) <= float(longest) <= 2 * float(mean) + 0.002 for _, mean, longest, _ in lines)
    assert min(map(float, re.findall(r"([\d.]+)%", last))) > 80
