"""The README is true: its programs run, its commands exist, and what it shows is what is printed."""

import gc
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import torch
from vit import Vit

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


class Model(Vit):
    def forward(self, image, label):
        return self.loss_fn(super().forward(image), label)


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


def test_the_commands_are_those_of_tox():
    config = ConfigParser()
    config.read(ROOT / "tox.ini")
    assert [block.strip() for block in blocks("sh")] == [
        "python -m pip install tox && tox -e demo",
        "python -m pip install tox && tox",
    ]
    assert config["tox"]["env_list"] == "tests, lint, types"
    for environment in re.findall(r"tox -e (\w+)", README):
        assert f"testenv:{environment}" in config
    assert config["testenv:demo"]["commands"] == "python -W error examples/explicit_phases.py"


def test_what_the_demo_prints_is_shown(tmp_path):
    def shape(text):
        return re.sub(r" +", " ", re.sub(r"[\d.,]+", "0", text))

    program = ROOT / "examples" / "explicit_phases.py"
    run = subprocess.run(
        [sys.executable, "-W", "error", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    [shown] = blocks("text")
    assert shape(shown) in shape(run.stdout)


@pytest.mark.parametrize("path", re.findall(r"`((?:\w+/)*\w+\.(?:py|ini|md))`", README))
def test_the_files_exist(path):
    if path in ("throughput.json", "train.py"):
        return
    assert any((ROOT / folder / path).exists() for folder in ("", "mlvbench", "examples"))
