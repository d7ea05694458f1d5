"""`mlvbench run` with what starts training: Lightning's own launcher of ranks, `fabric run`, `accelerate launch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.field

BEGIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(80, 8), torch.randn(80, 1)), 2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

if __name__ == "__main__":
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", enable_checkpointing=False, logger=False
    )
    trainer.fit(Module(), loader)
"""
FABRIC = """
import lightning

fabric = lightning.Fabric()
model, optimizer = fabric.setup(model, optimizer)
for image, label in fabric.setup_dataloaders(loader):
    optimizer.zero_grad()
    fabric.backward(nn.functional.mse_loss(model(image), label))
    optimizer.step()
# Without this gloo aborts at the end now and then, bare too.
torch.distributed.destroy_process_group()
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for image, label in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.mse_loss(model(image), label))
    optimizer.step()
"""


def launched(script: str, folder: Path, *command: str) -> dict[str, list[dict[str, float]]]:
    """Runs a script through a command of this environment, and gives the records by file."""
    (folder / "train.py").write_text(BEGIN + script)
    tools = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join([str(tools), os.environ["PATH"]])}
    run = subprocess.run(
        [sys.executable, "-m", "mlvbench", "run", "--every", "10", "--output", "out", *command, "train.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("mlvbench report out") == 1
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("out/*.jsonl")
    }


def steps_and_samples(records: list[dict[str, float]]) -> tuple[float, float]:
    return records[-1]["step"], sum(record["samples"] for record in records)


def test_lightning_starts_its_own_ranks(tmp_path):
    pytest.importorskip("lightning")
    files = launched(LIGHTNING, tmp_path)
    assert {name: steps_and_samples(records) for name, records in files.items()} == {
        "0.jsonl": (20, 40),
        "1.jsonl": (20, 40),
    }


def test_fabric_run(tmp_path):
    pytest.importorskip("lightning")
    command = ["--", "fabric", "run", "--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"]
    files = launched(FABRIC, tmp_path, *command)
    assert {name: steps_and_samples(records) for name, records in files.items()} == {
        "0.jsonl": (20, 40),
        "1.jsonl": (20, 40),
    }


def test_accelerate_launch(tmp_path):
    pytest.importorskip("accelerate")
    one = ["--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    files = launched(ACCELERATE, tmp_path, "--", "accelerate", "launch", *one)
    assert {name: steps_and_samples(records) for name, records in files.items()} == {"0.jsonl": (40, 80)}
