"""An error says what was wrong, what was given, and what would be right."""

import math
import re

import pytest
import torch
from torch import nn

from mlvbench.distributed import on_rank_0, reduce
from mlvbench.monitoring import ThroughputMonitor


class Net(nn.Module):
    constant = 3

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 1)

    def forward_head(self, x):
        return self.head(x)

    @property
    def loss(self):
        return lambda: None


def new(every=1):
    return ThroughputMonitor("cpu", every)


def reduced(**numbers):
    return reduce({**new().snapshot(1), **numbers})


INTERVAL = "record_every_n_steps must be a positive integer or None, got "
NAME = "a phase's name must be a string, got "
CONTENT = "a phase's name must be a non-empty string without '/', got "

CASES = [
    (lambda: new(0), ValueError, INTERVAL + "0"),
    (lambda: new(-5), ValueError, INTERVAL + "-5"),
    (lambda: new(True), TypeError, INTERVAL + "True"),
    (lambda: new(False), TypeError, INTERVAL + "False"),
    (lambda: new(50.0), TypeError, INTERVAL + "50.0"),
    (lambda: new("50"), TypeError, INTERVAL + "'50'"),
    (lambda: ThroughputMonitor("cpu", 1, 3.5), TypeError, "clock must be a function that gives seconds, got 3.5"),
    (lambda: new().phase(3), TypeError, NAME + "3"),
    (lambda: new().phase(None), TypeError, NAME + "None"),
    (lambda: new().phase(["a"]), TypeError, NAME + "['a']"),
    (lambda: new().phase(b"a"), TypeError, NAME + "b'a'"),
    (lambda: new().phase(""), ValueError, CONTENT + "''"),
    (lambda: new().phase("a/b"), ValueError, CONTENT + "'a/b'"),
    (lambda: new().timed(""), ValueError, CONTENT + "''"),
    (lambda: new().timed("a/b"), ValueError, CONTENT + "'a/b'"),
    (lambda: new().timed(3), TypeError, "timed decorates a function, got 3"),
    (lambda: new().timed("a")(3), TypeError, "timed decorates a function, got 3"),
    (lambda: new().timed("a")(property(len)), TypeError, "timed decorates a function, got <property object"),
    (lambda: new().timed("a")(Net), TypeError, "timed decorates a function, got <class"),
    (lambda: new().timed(Net()), TypeError, 'timed needs a phase\'s name, @monitor.timed("name"), for Net('),
    (lambda: new().iterate(5), TypeError, "iterate needs an iterable, got 5"),
    (lambda: new().iterate(len), TypeError, "iterate needs an iterable, got <built-in function len>"),
    (lambda: new().record_samples(-1), ValueError, "count must not be negative, got -1"),
    (lambda: new().record_samples(torch.tensor(-2)), ValueError, "count must not be negative, got -2"),
    (lambda: new().record_samples(1.0), TypeError, "count must be an integer, got 1.0"),
    (lambda: new().record_samples("8"), TypeError, "count must be an integer, got '8'"),
    (lambda: new().record_samples(torch.tensor(1.5)), TypeError, "count must be an integer, got tensor(1.5000)"),
    (lambda: new().record_samples(torch.tensor([1, 2])), TypeError, "count must be an integer, got tensor([1, 2])"),
    (lambda: new().step(None), TypeError, "step must be an integer, got None"),
    (lambda: new().step(1.5), TypeError, "step must be an integer, got 1.5"),
    (lambda: new().snapshot("last"), TypeError, "step must be an integer, got 'last'"),
    (lambda: new().subscribe("log"), TypeError, "callback must be a function of a snapshot, got 'log'"),
    (lambda: on_rank_0("log"), TypeError, "callback must be a function of a snapshot, got 'log'"),
    (lambda: reduce(50), TypeError, "snapshot must be a dict that a monitor gave, or None, got 50"),
    (lambda: reduce({"step": 1}), ValueError, "snapshot must have all of a monitor's keys, got one without 'samples'"),
    (lambda: reduced(loss=0.5), ValueError, "snapshot must have no other keys than a monitor's, got 'loss'"),
    (lambda: reduced(t_a=None), TypeError, "'t_a' of the snapshot must be a number, got None"),
    (lambda: reduced(samples=True), TypeError, "'samples' of the snapshot must be a number, got True"),
    (lambda: reduced(t_a=math.nan), ValueError, "'t_a' of the snapshot must be a finite number, got nan"),
    (lambda: reduced(t_a=-math.inf), ValueError, "'t_a' of the snapshot must be a finite number, got -inf"),
    (lambda: new().save("run.txt"), ValueError, "path must end in .json, .jsonl or .csv, got 'run.txt'"),
    (
        lambda: new().instrument(Net(), {"head": "forwrad_head"}),
        AttributeError,
        "Net has no attribute 'forwrad_head'; did you mean 'forward_head'",
    ),
    (
        lambda: new().instrument(Net(), {"head": "body.0.forward"}),
        AttributeError,
        "Net has no attribute 'body.0.forward': Net has no 'body'",
    ),
    (
        lambda: new().instrument(Net(), {"head": "head.wieght"}),
        AttributeError,
        "Net has no attribute 'head.wieght': Linear has no 'wieght'; did you mean 'weight'?",
    ),
    (lambda: new().instrument(Net, {"x": "constant"}), TypeError, "'constant' of Net must be callable, got 3"),
    (
        lambda: new().instrument(Net(), {"x": "head.weight"}),
        TypeError,
        "'head.weight' of Net must be callable, got a Parameter",
    ),
    (
        lambda: new().instrument(nn.ModuleDict({"blocks": nn.ModuleList()}), {"x": "blocks"}),
        TypeError,
        "'blocks' of ModuleDict must be a module that is called, got a ModuleList, which has no forward: name the",
    ),
    (
        lambda: new().instrument(Net(), {"x": "loss"}),
        TypeError,
        "'loss' of Net must be a method or function that can be replaced, got ",
    ),
    (lambda: new().instrument(Net(), "forward"), TypeError, "phases must be a dict of names and paths, got 'forward'"),
    (
        lambda: new().instrument(Net(), {"x": 3}),
        TypeError,
        "the path of phase 'x' must be a string or a list of strings",
    ),
    (lambda: new().instrument(Net(), {"x": [3]}), TypeError, "the path of phase 'x' must be a string, got 3"),
    (
        lambda: new().instrument(Net(), {"x": ""}),
        ValueError,
        "the path of phase 'x' must be names joined by dots, got ''",
    ),
    (
        lambda: new().instrument(Net(), {"x": "head..forward"}),
        ValueError,
        "the path of phase 'x' must be names joined by dots, got 'head..forward'",
    ),
    (lambda: new().instrument(Net(), {"a/b": "forward_head"}), ValueError, CONTENT + "'a/b'"),
    (lambda: new().instrument(Net(), {3: "forward_head"}), TypeError, NAME + "3"),
    (
        lambda: new().instrument(torch.nn, {"x": "Liner"}),
        AttributeError,
        "torch.nn has no attribute 'Liner'; did you mean 'Linear'",
    ),
]


@pytest.mark.parametrize(("mistake", "error", "message"), CASES)
def test_the_message(mistake, error, message):
    with pytest.raises(error, match="^" + re.escape(message)):
        mistake()


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this PyTorch has CUDA")
def test_a_cuda_device_without_cuda_is_said_at_the_first_phase():
    message = "the monitor's device is 'cuda:0', but this PyTorch was built without CUDA"
    with pytest.raises(RuntimeError, match=message), ThroughputMonitor("cuda:0").phase("forward"):
        pass


def test_an_object_that_can_hold_nothing():
    class Slotted:
        __slots__ = ("function",)

    target = Slotted()
    target.function = len
    with pytest.raises(TypeError, match="'function' of Slotted must be a method or function that can be replaced"):
        new().instrument(target, {"x": "function"})


def test_a_name_with_odd_characters_is_data(monitor, tmp_path):
    name = '<b>\n\x1b[31m"é,\N{SNOWMAN}\ud800'
    with monitor.phase(name):
        pass
    assert monitor.step(1)[f"t_{name}"] == 0
    for suffix in (".json", ".jsonl", ".csv"):
        monitor.save(tmp_path / f"run{suffix}")
