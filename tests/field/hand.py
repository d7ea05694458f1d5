"""Times taken by hand, by a script that knows nothing of a profiler: its own view of the calls that it makes."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer


class HandTimes:
    """A stopwatch for each phase.

    Attributes:
        seconds: Seconds for each phase, inclusive of what is nested in it; for a phase inside others also under its
            path (`optimizer/forward`).
        samples: The samples trained on, counted by the script.
        steps: The steps of the optimizer, of the first one where there are several.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.samples = 0
        self.steps = 0
        self._open: list[str] = []
        self._start = perf_counter()

    def add(self, phase: str, seconds: float) -> None:
        """Adds to a phase, and to its path inside those that are open."""
        for key in {phase, "/".join([*self._open, phase])}:
            self.seconds[key] = self.seconds.get(key, 0) + seconds

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Times a block that is not left by an exception."""
        self._open.append(phase)
        start = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - start
            self._open.pop()
        self.add(phase, seconds)

    def optimizer(self, kind: type[Optimizer]) -> Any:
        """A kind of optimizer that times its own `step`, for where a trainer stands between the script and it."""
        hand = self

        class Timed(kind):  # type: ignore[valid-type, misc]
            def step(self, closure: Any = None) -> Any:
                with hand.time("optimizer"):
                    return super().step(closure)

        return Timed

    def batches(self, loader: Any) -> TimedLoader:
        """The loader, timed as `data`."""
        return TimedLoader(self, loader)

    def save(self, loss: float, model: nn.Module, rank: int = 0) -> None:
        """Writes all as `<rank>.json` into the folder `$FIELD_TIMES`, if it is set."""
        wall = perf_counter() - self._start
        if "FIELD_TIMES" not in os.environ:
            return
        checksum = hashlib.sha256()
        for value in model.state_dict().values():
            checksum.update(value.detach().contiguous().numpy().tobytes())
        folder = Path(os.environ["FIELD_TIMES"])
        folder.mkdir(parents=True, exist_ok=True)
        times = {
            "wall": wall,
            "seconds": self.seconds,
            "samples": self.samples,
            "steps": self.steps,
            "loss": float(loss).hex(),
            "parameters": checksum.hexdigest(),
        }
        (folder / f"{rank}.json").write_text(json.dumps(times, indent=2))


class TimedLoader:
    """A loader that is timed while it makes its iterator and while it gives a batch.

    The last `next`, which finds nothing, is left out.
    """

    def __init__(self, hand: HandTimes, loader: Any) -> None:
        self._hand = hand
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        start = perf_counter()
        iterator = iter(self._loader)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._hand.add("data", perf_counter() - start)
            yield batch
            start = perf_counter()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
