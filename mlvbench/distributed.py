"""One snapshot from many ranks."""

from __future__ import annotations

import json
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist

from mlvbench.records import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlvbench.records.schema import Record

__all__ = ["on_rank_0", "reduce"]

_ROOM = 2048
"""Bytes that each rank sends at once: the snapshot of some 40 phases. What is longer takes a second collective."""
_HEADER = 8
"""Bytes at the front, of what is sent, that say how long it is."""

_FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "step": max,
    "samples": sum,
    "samples_per_sec": math.fsum,
    "gpu_mem_gb": max,
    "gpu_mem_peak_gb": max,
}
"""What becomes of a key's values, one a rank; those of all other keys are seconds, with a mean and a maximum."""


@overload
def reduce(snapshot: Record, group: dist.ProcessGroup | None = None) -> Record: ...
@overload
def reduce(snapshot: None, group: dist.ProcessGroup | None = None) -> None: ...
def reduce(snapshot: Record | None, group: dist.ProcessGroup | None = None) -> Record | None:
    """Makes one snapshot of all ranks', on each of them; every rank of the group calls it for the same steps.

    It is a collective: `all_gather` of 2 KiB a rank, and of the rest where a rank's snapshot is longer. It travels as
    the group's other tensors do. NCCL's go through the current CUDA device, for which each rank must have called
    `torch.cuda.set_device`, and wait for the work in flight there; a group that has gloo for the CPU, such as
    `init_process_group("cpu:gloo,cuda:nccl")` or `new_group(backend="gloo")` makes, leaves the GPU alone. What it
    takes is in the `wall_sec` of the interval that has begun, and in no phase unless it is called in one.

    Where a rank does not call it, the others get torch.distributed's own error, when the group's timeout is over or
    the connection is lost.

    Args:
        snapshot: What the rank's monitor gave: a snapshot, which must have no other keys, or `None`. Since no
            snapshot is due on any rank then, `None` comes back at once and nothing is sent: the monitors of all ranks
            must be enabled, with the same `record_every_n_steps`.
        group: The ranks that take part; `None` for all.

    Returns:
        A dict with a snapshot's keys, in its order, and the same on every rank: `step`, the highest; for `wall_sec`
        and each `t_<name>` and `t_<outer>/<inner>` the mean over all ranks, followed by `<key>_max`, the longest, and
        `<key>_max_rank`, the rank in the world that it is from, the lowest of several; `samples` and
        `samples_per_sec`, the sums; `gpu_mem_gb` and `gpu_mem_peak_gb`, the maxima. A rank that lacks a phase has
        spent 0 seconds in it, so that means add up as a snapshot's seconds do. Without a process group, a copy of the
        snapshot. `None` for `None`.

    Raises:
        TypeError: For something else than a snapshot, or a group that is none.
        ValueError: For a dict that lacks a snapshot's keys, has others or a number that is not finite; for a group
            that this rank is not in; and, on every rank alike, for two phases of which one is named like the other's
            maximum (`a` and `a_max`).
    """
    if snapshot is None:
        return None
    _check_snapshot(snapshot)
    if not _has_ranks():
        return dict(snapshot)
    ranks = _ranks_of(group)
    return merge([json.loads(text) for text in _gather(json.dumps(snapshot).encode(), group)], ranks)


def on_rank_0(callback: Callable[[Record], object], group: dist.ProcessGroup | None = None) -> Callable[[Record], None]:
    """Makes a subscriber that reduces each snapshot, and calls a function with the result on one rank alone.

    Every rank subscribes: `monitor.subscribe(on_rank_0(log))`. A callback that raises an `Exception` is dropped with
    a warning, as the monitor drops its subscribers; but this one goes on reducing, for the other ranks are waiting.

    Args:
        callback: Gets what `reduce` gives, on the first rank of the group; without a process group, the snapshot.
        group: As for `reduce`.

    Raises:
        TypeError: For something that cannot be called.
    """
    if not callable(callback):
        raise TypeError(f"callback must be a function of a snapshot, got {callback!r}")
    dropped = False

    def subscriber(snapshot: Record) -> None:
        nonlocal dropped
        merged = reduce(snapshot, group)
        if dropped or (_has_ranks() and dist.get_rank(group) != 0):
            return
        try:
            callback(merged)
        except Exception as error:
            dropped = True
            warnings.warn(f"{callback!r} raised {error!r} and gets no more snapshots", RuntimeWarning, stacklevel=2)

    return subscriber


def merge(snapshots: Sequence[Record], ranks: Sequence[int]) -> Record:
    """Makes one snapshot of several, as `reduce` does.

    Args:
        snapshots: One for each rank.
        ranks: Their ranks, for `<key>_max_rank`.
    """
    keys = schema.columns(snapshots)
    _check_names(keys)
    merged: Record = {}
    for key in keys:
        values = [snapshot.get(key, 0.0) for snapshot in snapshots]
        if key in _FIGURES:
            merged[key] = _FIGURES[key](values)
            continue
        longest = max(values)
        merged[key] = math.fsum(values) / len(values)
        merged[f"{key}_max"] = longest
        merged[f"{key}_max_rank"] = min(rank for rank, value in zip(ranks, values, strict=True) if value == longest)
    return merged


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def _ranks_of(group: Any) -> list[int]:
    """The ranks in the world of a group's members, in the group's order."""
    if group is None:
        return list(range(dist.get_world_size()))
    if isinstance(group, dist.ProcessGroup):
        return dist.get_process_group_ranks(group)
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"group must be one that this rank is in, got one without rank {dist.get_rank()}")
    raise TypeError(f"group must be a process group or None, got {group!r}")


def _gather(message: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Every rank's message, in the group's order.

    `all_gather_object` would do, but it needs NumPy, which torch does not install, and always two collectives: the
    lengths first, to know how much to send. Here each rank sends as much as most snapshots need, with the length in
    front; from these every rank knows whether, and how much, all have to send once more.
    """
    message = len(message).to_bytes(_HEADER, "big") + message
    parts = _all_gather(message[:_ROOM], _ROOM, group)
    ends = [_HEADER + int.from_bytes(part[:_HEADER], "big") for part in parts]
    rest = max(ends) - _ROOM
    if rest > 0:
        parts = [first + last for first, last in zip(parts, _all_gather(message[_ROOM:], rest, group), strict=True)]
    return [part[_HEADER:end] for part, end in zip(parts, ends, strict=True)]


def _all_gather(data: bytes, size: int, group: dist.ProcessGroup | None) -> list[bytes]:
    """Every rank's bytes, filled up to a size."""
    device = _device_of(group)
    mine = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8).to(device)
    gathered = torch.empty((dist.get_world_size(group), size), dtype=torch.uint8, device=device)
    dist.all_gather(list(gathered.unbind()), mine, group=group)
    received = bytearray(gathered.numel())
    torch.frombuffer(received, dtype=torch.uint8).copy_(gathered.flatten())
    return [bytes(received[start : start + size]) for start in range(0, len(received), size)]


def _device_of(group: dist.ProcessGroup | None) -> str:
    """The device whose tensors the group takes: the CPU where it can be, for that is where they come from."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return "cpu" if "cpu" in kinds else kinds[0]


def _check_snapshot(snapshot: Any) -> None:
    if not isinstance(snapshot, dict):
        raise TypeError(f"snapshot must be a dict that a monitor gave, or None, got {snapshot!r}")
    fixed = (*schema.LEADING, *schema.TRAILING)
    for key in fixed:
        if key not in snapshot:
            raise ValueError(f"snapshot must have all of a monitor's keys, got one without {key!r}")
    for key, value in snapshot.items():
        if key not in fixed and not (isinstance(key, str) and key.startswith("t_")):
            raise ValueError(f"snapshot must have no other keys than a monitor's, got {key!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{key!r} of the snapshot must be a number, got {value!r}")
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise ValueError(f"{key!r} of the snapshot must be a finite number, got {value!r}")


def _check_names(keys: Sequence[str]) -> None:
    """Refuses what would be told apart only by guessing: whose `t_a_max` is it?"""
    taken = set(keys)
    for key in keys:
        for suffix in ("_max", "_max_rank"):
            if key + suffix in taken:
                name = key[2:]
                raise ValueError(
                    f"a phase must not be named like another's maximum, got {name!r} and {name + suffix!r}: rename one"
                )
