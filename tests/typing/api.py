"""The public API as a typed program uses it; mypy checks that each type is what it should be."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import Literal

import torch
import torch.distributed as dist
from typing_extensions import assert_type

from mlvbench import ThroughputMonitor
from mlvbench.autoprofile import autoprofile
from mlvbench.distributed import on_rank_0, reduce

monitor = ThroughputMonitor("cuda", record_every_n_steps=50)
ThroughputMonitor(torch.device("cpu"), None, lambda: 1)
ThroughputMonitor("cpu", 1, clock=lambda: 1.0)
ThroughputMonitor("cuda", timing="events")
ThroughputMonitor("cuda", timing="event")  # type: ignore[arg-type]

assert_type(monitor.device, torch.device)
assert_type(monitor.record_every_n_steps, int | None)
assert_type(monitor.enabled, bool)
assert_type(monitor.timing, Literal["synchronize", "events"])
assert_type(monitor.records, list[dict[str, float]])
assert_type(monitor.phase("x"), AbstractContextManager[None])
assert_type(monitor.iterate([1, 2]), list[int])
assert_type(monitor.step(1), dict[str, float] | None)
assert_type(monitor.snapshot(torch.tensor(1)), dict[str, float] | None)
assert_type(monitor.record_samples(3), None)


@monitor.timed("plain")
def plain(x: int, *, scale: float = 1.0) -> float:
    return x * scale


@monitor.timed
def bare(x: int) -> int:
    return x


@monitor.timed("fetch")
async def fetch(x: int) -> str:
    return str(x)


@monitor.timed("produce")
def produce() -> Iterator[int]:
    yield 1


@monitor.timed("stream")
async def stream() -> AsyncIterator[int]:
    yield 1


class Model:
    @monitor.timed("method")
    def method(self, x: int) -> int:
        return x

    @classmethod
    @monitor.timed("class")
    def class_method(cls) -> int:
        return 1

    @monitor.timed("static")
    @staticmethod
    def static_method(x: int) -> int:
        return x


assert_type(plain(1, scale=2.0), float)
assert_type(bare(1), int)
assert_type(produce(), Iterator[int])
assert_type(stream(), AsyncIterator[int])
assert_type(Model().method(1), int)
assert_type(Model.class_method(), int)
assert_type(Model.static_method(1), int)

with monitor.instrument(Model(), {"a": "method", "b": ["class_method", "static_method"]}) as handle:
    handle.remove()


def log(snapshot: dict[str, float]) -> int:
    return len(snapshot)


monitor.subscribe(log).remove()
monitor.save("records.json")

assert_type(reduce({"step": 1}), dict[str, float])
assert_type(reduce(None), None)
assert_type(reduce(monitor.step(1), group=dist.group.WORLD), dict[str, float] | None)
monitor.subscribe(on_rank_0(log, group=dist.group.WORLD)).remove()

with autoprofile(record_every_n_steps=10) as automatic:
    assert_type(automatic, ThroughputMonitor)

# What must be refused.
monitor.phase(3)  # type: ignore[arg-type]
monitor.record_samples(1.5)  # type: ignore[arg-type]
monitor.subscribe(lambda: None)  # type: ignore[arg-type, misc]
plain("x")  # type: ignore[arg-type]
reduce(3)  # type: ignore[call-overload]
on_rank_0(3)  # type: ignore[arg-type]
