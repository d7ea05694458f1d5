"""Programs to be profiled, and a naive account of what each must give."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "data")


@dataclass
class NaiveAccount:
    """Keeps books on one thread the slow way: a list of what is open, and dicts of what ended in this interval."""

    now: int
    open: list[tuple[str, int]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    accounted: int = 0
    began: int = 0

    def __post_init__(self) -> None:
        self.began = self.now

    def enter(self, name: str) -> None:
        self.open.append((name, self.now))

    def leave(self, *, completed: bool) -> None:
        name, start = self.open.pop()
        around = [outer for outer, _ in self.open]
        if not completed or name in around:
            return
        path = "/".join([*dict.fromkeys(around), name])
        for key in {name, path}:
            self.ended[key] = self.ended.get(key, 0) + self.now - start
        if not around:
            self.accounted += self.now - start

    def close_interval(self) -> dict[str, float]:
        """What a snapshot must say, and the start of the next interval."""
        timings = {f"t_{key}": seconds for key, seconds in self.ended.items()}
        rate = self.samples / self.accounted if self.accounted else 0.0
        rest = {"samples": self.samples, "wall_sec": self.now - self.began, "samples_per_sec": rate}
        self.ended, self.samples, self.accounted, self.began = {}, 0, 0, self.now
        return {**timings, **rest, "gpu_mem_gb": 0.0, "gpu_mem_peak_gb": 0.0}


@dataclass
class NaiveSteps:
    """Says when a snapshot is due, by looking for a multiple among the steps since the last call."""

    every: int
    last: int | None = None

    def is_due(self, step: int) -> bool:
        first = step if self.last is None else self.last + 1
        self.last = step
        return any(number % self.every == 0 for number in range(first, min(first + self.every, step + 1)))


seconds = st.integers(0, 9)
names = st.sampled_from(NAMES)
step_numbers = st.one_of(st.integers(-5, 60), st.integers(-(10**12), 10**12))
sample_counts = st.integers(0, 10**6)


@st.composite
def programs(draw: st.DrawFn, depth: int = 3) -> list[tuple]:
    """A list of statements: work, samples, items, snapshots, and blocks in each of the ways in."""
    simple = st.one_of(
        st.tuples(st.just("work"), seconds),
        st.tuples(st.just("samples"), sample_counts),
        st.tuples(st.just("items"), st.lists(seconds, max_size=3)),
        st.tuples(st.just("snapshot")),
    )
    if depth == 0:
        return draw(st.lists(simple, max_size=3))
    block = st.tuples(
        st.sampled_from(["phase", "timed", "method", "generator"]), names, st.booleans(), programs(depth - 1)
    )
    return draw(st.lists(st.one_of(simple, block), max_size=5))
