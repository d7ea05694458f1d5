"""Clocks that tests drive by hand."""


class FakeClock:
    """Moves only when told to. Integer seconds, so that sums are exact; it starts far from zero."""

    def __init__(self, now: int = 7_000) -> None:
        self.now = now
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.now

    def advance(self, seconds: int) -> None:
        self.now += seconds


class TickingClock(FakeClock):
    """Moves by one second at each reading."""

    def __call__(self) -> int:
        self.now += 1
        return super().__call__()
