"""Functions timed at module level, for processes that import them by name."""

from mlvbench.monitoring import ThroughputMonitor

monitor = ThroughputMonitor("cpu", 1)


@monitor.timed("double")
def double(value):
    return 2 * value


@monitor.timed("produce")
def produce(count):
    yield from range(count)


@monitor.timed("fetch")
async def fetch(value):
    return value
