"""The README is true: its programs run, its commands exist, and what it shows is what is printed."""

import gc
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import torch
from vit import Vit

from mlvbench.records.run import read_run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


class Model(Vit):
    def forward(self, image, label):
        return self.loss_fn(super().forward(image), label)


class Trainer:
    def __init__(self, model):
        self.model = model

    def train(self):
        self.model(torch.randn(4, 1, 4, 4), torch.randint(3, (4,))).backward()


def test_every_block_is_of_a_kind_that_is_tested():
    assert len(re.findall(r"^```", README, re.MULTILINE)) == 2 * sum(
        len(blocks(kind)) for kind in ("sh", "text", "python")
    )


def test_the_programs_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = Model()
    logged = []
    names = {
        "device": "cpu",
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [(torch.randn(4, 1, 4, 4), torch.randint(3, (4,))) for _ in range(120)],
        "image": torch.randn(4, 1, 4, 4),
        "label": torch.randint(3, (4,)),
        "torch": torch,
        "trainer": Trainer(model),
        "log": lambda snapshot, step: logged.append(step),
    }
    for program in blocks("python"):
        exec(compile(program, "README.md", "exec"), names)
    shown = re.search(r"^\{'step': 1, .*\}$", capsys.readouterr().out, re.MULTILINE).group()
    for key in re.findall(r"# (\{.*\})", README)[0].split('"')[1::2]:
        assert f"'{key}':" in shown
    timed = {key for record in names["monitor"].records for key in record}
    assert {"t_data", "t_forward", "t_backward", "t_optimizer", "t_forward/features"} <= timed
    assert [record["step"] for record in names["monitor"].records] == [50, 100, 120, 120]
    assert sum(names["outermost"].values()) == pytest.approx(names["total"]["wall_sec"])
    assert names["outermost"]["no phase"] > 0
    assert (tmp_path / "throughput.json").stat().st_size > 0
    names["monitor"].step(150)
    assert logged == [150]
    names.clear()
    del model
    gc.collect()  # the other instrumented objects are gone, and their classes restored


def commands():
    return [line for block in blocks("sh") for line in block.splitlines()]


def test_the_commands_are_those_of_tox():
    config = ConfigParser()
    config.read(ROOT / "tox.ini")
    assert [command for command in commands() if "tox" in command] == [
        "python -m pip install tox && tox -e demo",
        "python -m pip install tox && tox",
    ]
    assert config["tox"]["env_list"] == "tests, lint, types"
    for environment in re.findall(r"tox -e (\w+)", README):
        assert f"testenv:{environment}" in config
    assert config["testenv:demo"]["commands"] == "mlvbench run examples/plain_script.py"
    assert "`mlvbench run examples/plain_script.py`" in README


TRAIN = """
import sys, torch
import transforms

def make_mask(x):
    return transforms.Mix().apply(x)

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for image in torch.utils.data.DataLoader(torch.ones(300, 2), 1):
    model(make_mask(image)).sum().backward()
    optimizer.step()
"""


def test_the_commands_run(tmp_path, monkeypatch):
    """Each `mlvbench` command as it stands, one after the other, in a folder that has what they name."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text(TRAIN)
    (tmp_path / "transforms.py").write_text("class Mix:\n    def apply(self, x):\n        return x\n")
    ours = [command for command in commands() if command.startswith("mlvbench")]
    assert {command.split()[1] for command in ours} == {"run", "report", "compare"}
    for command in sorted(ours, key=lambda command: "compare" in command):
        if "compare" in command:
            first, *_, last = sorted(path for path in tmp_path.glob("mlvbench-runs/*-*"))
            first.rename(first.with_name("before"))
            last.rename(last.with_name("after"))
        run = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0 or "slower a step" in run.stderr, (command, run.stderr)
    keys = {key for record in read_run(tmp_path / "runs" / "a").ranks[0][0] for key in record}
    assert {"t_augment", "t_mask/augment"} <= keys


def test_what_the_demo_prints_is_shown(tmp_path):
    def shape(text):
        return re.sub(r" +", " ", re.sub(r"[█▏▎▍▌▋▊▉]+", "", re.sub(r"[\d.,]+", "0", text)))

    program = ROOT / "examples" / "plain_script.py"
    command = [sys.executable, "-W", "error", "-m", "mlvbench", "run", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = blocks("text")[0]
    assert shape(shown) in shape(run.stderr)


@pytest.mark.parametrize("path", re.findall(r"`((?:\w+/)*\w+\.(?:py|ini|md))`", README))
def test_the_files_exist(path):
    if path == "train.py":
        return
    assert any(
        (folder / path).exists()
        for folder in (ROOT, ROOT / "examples", *(ROOT / "mlvbench").rglob("*/"), ROOT / "mlvbench")
    )
