"""Where people log: each example with the real package, read back as that package does; `tox -e loggers`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
BLOCK = 32768

# What the packages warn of in this process is between them and theirs.
pytestmark = [pytest.mark.loggers, pytest.mark.filterwarnings("ignore")]


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard-runs"))
    events.Reload()
    for key in events.Tags()["scalars"]:
        for event in events.Scalars(key):
            yield event.step, key, event.value


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    [run] = client.search_runs(["0"])
    for key in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, key):
            yield metric.step, key, metric.value


def read_wandb(folder):
    records = list(read_wandb_records(folder))
    [axis] = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    assert (axis.glob_name, axis.step_metric) == ("mlvbench/*", "mlvbench/step")
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = row.pop("mlvbench/step")
            yield from ((step, key, value) for key, value in row.items() if not key.startswith("_"))


def read_wandb_records(folder):
    """The messages of an offline run; wandb has their types for Python, and a reader of the file only in Go.

    The file is a log of LevelDB's format: seven bytes at the front, then blocks; in a block, parts of messages, each
    after its checksum (4 bytes), length (2) and kind (1: 1 is whole, 2 a first, 3 a middle, 4 a last part).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    content, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        start, kind = place + 7, content[place + 6]
        place = start + int.from_bytes(content[place + 4 : place + 6], "little")
        message += content[start:place]
        if kind in (1, 4):
            yield Record.FromString(message)
            message = b""


LOGGERS = {
    # TensorBoard keeps 32 bits of a number, and MLflow floats alone, which are the same numbers.
    "log_to_tensorboard.py": (read_tensorboard, lambda number: float(np.float32(number))),
    "log_to_mlflow.py": (read_mlflow, float),
    "log_to_wandb.py": (read_wandb, lambda number: number),
}


@pytest.mark.parametrize("name", LOGGERS)
def test_every_number_arrives(name, tmp_path):
    read, kept = LOGGERS[name]
    # A subscriber that fails is dropped with a RuntimeWarning, which is an error here.
    command = [sys.executable, "-W", "error::RuntimeWarning", EXAMPLES / name]
    environment = {**os.environ, "WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    expected = {
        (record["step"], f"mlvbench/{key}"): kept(value)
        for record in json.loads((tmp_path / "throughput.json").read_text())
        for key, value in record.items()
        if key != "step"
    }
    assert {step for step, _ in expected} == {50, 100, 150, 200, 250, 300, 312}
    assert (50, "mlvbench/t_forward/features") in expected
    found = list(read(tmp_path))
    assert len(found) == len(expected)
    assert {(step, key): value for step, key, value in found} == expected


def test_names_that_mlflow_takes(tmp_path):
    """What the README says of them."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run():
        mlflow.log_metric("mlvbench/t_Größe_2 b-c.d:e/f", 1)
        for name in ("a,b", "a(b)", "a+b", "a#b", "a\nb,"):
            with pytest.raises(mlflow.MlflowException, match="Invalid value"):
                mlflow.log_metric(f"mlvbench/t_{name}", 1)
