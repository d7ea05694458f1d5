"""One plain sentence on what to change, with its evidence, where the figures carry one. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlvbench.report.summary import Summary

# Fewer steps are over before caches, clocks and workers have settled.
MIN_STEPS = 10
# A loader that keeps up costs a few percent: moving a batch between processes. A quarter of the time is worth an hour.
DATA = 0.25
# Zeroing gradients, metrics and the loop itself are often a tenth; from here on the table misses the main thing.
OTHER = 0.30
# An optimizer reads and writes each parameter a few times, where forward and backward use it for every sample.
OPTIMIZER = 0.30
# Clocks of warm processors fall by about a tenth.
DRIFT = 0.20
# The last third of the snapshots, in this many parts, against the first: that each part of one is slower than each of
# the other happens by chance once in 70 times.
PARTS = 4


def diagnose(summary: Summary, *, accelerator: bool) -> str | None:
    """Names the largest of the levers that the figures show, if any.

    Args:
        summary: The run.
        accelerator: Whether it trained on something else than the CPU.

    Returns:
        A sentence without a full stop, or None where there is nothing to say, or too little was measured to say it.
    """
    if min(summary.steps.values()) < MIN_STEPS:
        return None
    found = [
        _data(summary, accelerator=accelerator),
        _other(summary),
        _optimizer(summary),
        _drift(summary),
    ]
    share, sentence = max(found, key=lambda lever: lever[0])
    return sentence if share > 0 else None


def _data(summary: Summary, *, accelerator: bool) -> tuple[float, str]:
    share = _share_of(summary, "data")
    starves = "the accelerator starves" if accelerator else "training waits for its input"
    return _lever(
        share,
        DATA,
        f"waiting for data takes {share:.0%} of the wall time: {starves}; "
        "other num_workers or persistent_workers=True in the DataLoader, or cheaper transforms, may help",
    )


def _other(summary: Summary) -> tuple[float, str]:
    share = summary.share(summary.other)
    return _lever(
        share,
        OTHER,
        f"{share:.0%} of the wall time is in code that no phase covers: "
        "--phase NAME=package.module:Class.method of `mlvbench run` shows a part of it",
    )


def _optimizer(summary: Summary) -> tuple[float, str]:
    share = _share_of(summary, "optimizer")
    return _lever(
        share,
        OPTIMIZER,
        f"the optimizer takes {share:.0%} of the wall time: "
        "PyTorch's fused implementation (fused=True), or larger batches, may help",
    )


def _drift(summary: Summary) -> tuple[float, str]:
    pace = _pace(summary.timeline.wall, summary.timeline.steps)
    first, last = pace[:PARTS], pace[-PARTS:]
    if len(pace) < 3 * PARTS or min(last) <= max(first):
        return 0.0, ""
    before, after = sum(first) / PARTS, sum(last) / PARTS
    if before <= 0 or after / before <= 1 + DRIFT:
        return 0.0, ""
    sentence = (
        f"steps became slower while it ran, by {after / before - 1:.0%} from the first third to the last: "
        "look for what grows, a list, a graph that is kept, a log, or for a processor that gets hot"
    )
    return 1 - before / after, sentence


def _pace(wall: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Seconds a step in each of three times `PARTS` parts of the run, or in fewer where it has fewer snapshots."""
    parts = min(3 * PARTS, len(steps))
    edges = [len(steps) * part // parts for part in range(parts + 1)] if parts else [0]
    return [sum(wall[start:end]) / sum(steps[start:end]) for start, end in pairwise(edges) if sum(steps[start:end]) > 0]


def _share_of(summary: Summary, name: str) -> float:
    """The share of the wall time that a phase itself takes wherever it is: an optimizer's closure is not its work."""
    return summary.share(sum(phase.self_seconds for phase in summary.phases if phase.path[-1] == name))


def _lever(share: float, threshold: float, sentence: str) -> tuple[float, str]:
    return (share, sentence) if share >= threshold else (0.0, "")
