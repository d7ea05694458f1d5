"""`mlvbench run` on what people really run: scripts in the style of each trainer, which know nothing of the profiler.

Each script runs twice, bare and profiled, and takes times by hand both times (`hand.py`). The profiled run must compute
the same bits, and what it records must agree with the times taken by hand in that same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from reading import inclusive, outermost, read_records, total

if TYPE_CHECKING:
    from reading import Record

pytestmark = pytest.mark.field

FOLDER = Path(__file__).parent
EVERY = 20
TOLERANCE = 0.02
"""How far a phase may be from the time taken by hand, as a part of the wall time."""


@dataclass(frozen=True)
class Script:
    """A script of this folder.

    Attributes:
        name: Its file, without the suffix.
        library: What it needs beside torch.
        ranks: How many processes train; more than one are started by torchrun.
    """

    name: str
    library: str = "torch"
    ranks: int = 1

    def command(self) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        return [*(launcher if self.ranks > 1 else []), str(FOLDER / f"{self.name}.py")]


SCRIPTS = [
    Script("plain_loop"),
    Script("hugging_face_trainer", library="transformers"),
    Script("accelerate_loop", library="accelerate"),
    Script("lightning_trainer", library="lightning"),
    Script("ignite_trainer", library="ignite"),
    Script("gan"),
    Script("lbfgs"),
    Script("reinforce"),
    Script("ddp", ranks=2),
]


class Rank(NamedTuple):
    """One process of the profiled run: what the script noted bare and profiled, and what the profiler recorded."""

    bare: dict
    hand: dict
    records: list[Record]


class Runs(NamedTuple):
    ranks: list[Rank]
    files: list[str]


def run(command: list[str], folder: Path) -> float:
    """Runs a command with the hand times in `folder`, and gives the seconds that it took."""
    folder.mkdir()
    environment = {**os.environ, "FIELD_TIMES": str(folder / "times"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return time.perf_counter() - start


def read_times(folder: Path, rank: int) -> dict:
    return json.loads((folder / "times" / f"{rank}.json").read_text())


@pytest.fixture(scope="module", params=SCRIPTS, ids=lambda script: script.name)
def runs(request, tmp_path_factory) -> Runs:
    script: Script = request.param
    pytest.importorskip(script.library)
    if script.ranks > 1 and not pytest.importorskip("torch.distributed").is_available():
        pytest.skip("this torch has no torch.distributed")
    folder = tmp_path_factory.mktemp(script.name)
    bare, profiled, output = folder / "bare", folder / "profiled", folder / "output"
    command = script.command()
    run([sys.executable, *command] if script.ranks == 1 else command, bare)
    options = ["--output", str(output), "--every", str(EVERY), "--quiet"]
    run([sys.executable, "-m", "mlvbench", "run", *options, *(["--"] if script.ranks > 1 else []), *command], profiled)
    ranks = [
        Rank(read_times(bare, rank), read_times(profiled, rank), read_records(output / f"{rank}.jsonl"))
        for rank in range(script.ranks)
    ]
    return Runs(ranks, sorted(path.name for path in output.glob("*.jsonl")))


def test_every_rank_has_one_file(runs):
    assert runs.files == [f"{rank}.jsonl" for rank in range(len(runs.ranks))]


def test_it_trains_to_the_same_bits(runs):
    for rank in runs.ranks:
        for key in ("loss", "parameters", "samples", "steps"):
            assert rank.hand[key] == rank.bare[key], key


def test_the_phases_are_those_that_the_script_has(runs):
    for rank in runs.ranks:
        assert set(inclusive(total(rank.records))) == set(rank.hand["seconds"])


def test_each_phase_took_as_long_as_by_hand(runs):
    for rank in runs.ranks:
        sums = total(rank.records)
        seconds = inclusive(sums)
        wall = sums["wall_sec"]
        errors = {phase: (seconds.get(phase, 0) - by_hand) / wall for phase, by_hand in rank.hand["seconds"].items()}
        assert {phase: error for phase, error in errors.items() if abs(error) > TOLERANCE} == {}


def test_phases_and_the_rest_sum_to_the_wall_time(runs):
    for rank in runs.ranks:
        sums = total(rank.records)
        covered = sum(outermost(sums).values())
        assert min(outermost(sums).values()) > -1e-9
        assert 0 < covered <= sums["wall_sec"] <= rank.hand["wall"]


def test_the_rate_is_over_the_outermost_phases(runs):
    for rank in runs.ranks:
        for record in rank.records:
            covered = sum(outermost(record).values())
            assert record["samples_per_sec"] * covered == pytest.approx(record["samples"], rel=1e-6)


def test_samples_are_those_trained_on(runs):
    for rank in runs.ranks:
        assert total(rank.records)["samples"] == rank.hand["samples"]


def test_steps_are_those_of_the_optimizer(runs):
    for rank in runs.ranks:
        steps = [record["step"] for record in rank.records]
        assert steps == sorted(steps)
        assert steps[-1] == rank.hand["steps"]
        assert set(range(EVERY, rank.hand["steps"] + 1, EVERY)) <= set(steps)
