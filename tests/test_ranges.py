"""Phases in the traces of profilers: each once an entry, nested as it was, and none where no profiler is running."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import types

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mlvbench.autoprofile import autoprofile
from mlvbench.counting import counters, tracks
from mlvbench.monitoring import ThroughputMonitor, recorder_of


@pytest.fixture
def monitor():
    return ThroughputMonitor("cpu", 1)


@pytest.fixture
def trace(tmp_path):
    """Ends a profile, and gives its ranges as (name, start, end) in the order of their starts."""

    def read(ended):
        path = tmp_path / "trace.json"
        ended.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        found = [
            (event["name"], event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("cat") == "user_annotation"
        ]
        return sorted(found, key=lambda event: event[1])

    return read


def tree(found):
    """Each range with the path of those around it."""
    paths = []
    for name, start, end in found:
        around = [outer for outer, since, until in found if since < start and end < until]
        paths.append("/".join([*around, name]))
    return paths


class TestTorchsProfiler:
    def test_shows_each_phase_once_an_entry_and_nested_as_it_was(self, monitor, trace):
        model = torch.nn.Linear(3, 3)
        monitor.instrument(model, {"layer": "forward"})

        @monitor.timed("head")
        def head(x):
            return x.sum()

        with profile(activities=[ProfilerActivity.CPU]) as taken:
            for batch in monitor.iterate([torch.ones(2, 3)] * 2):
                with monitor.phase("train"):
                    with monitor.phase("forward"):
                        loss = head(model(batch))
                    with monitor.phase("backward"):
                        loss.backward()
            monitor.snapshot(1)
        step = ["data", "train", "train/forward", "train/forward/layer", "train/forward/head", "train/backward"]
        # The last "data" is the call that found nothing.
        assert tree(trace(taken)) == [*step, *step, "data"]

    def test_shows_a_recursion_entry_by_entry(self, monitor, trace):
        @monitor.timed("recursion")
        def recurse(depth):
            return depth and recurse(depth - 1)

        with profile(activities=[ProfilerActivity.CPU]) as taken:
            recurse(2)
        assert tree(trace(taken)) == ["recursion", "recursion/recursion", "recursion/recursion/recursion"]

    def test_shows_what_raises(self, monitor, trace):
        with profile(activities=[ProfilerActivity.CPU]) as taken:
            with pytest.raises(KeyError), monitor.phase("fails"):
                raise KeyError
            with monitor.phase("after"):
                pass
        assert tree(trace(taken)) == ["fails", "after"]

    def test_shows_the_phases_of_overlapping_tasks(self, monitor, trace):
        async def work(number):
            with monitor.phase(f"task {number}"):
                await asyncio.sleep(0)
                with monitor.phase("inner"):
                    await asyncio.sleep(0)

        async def both():
            await asyncio.gather(work(1), work(2))

        with profile(activities=[ProfilerActivity.CPU]) as taken:
            asyncio.run(both())
        assert sorted(name for name, _, _ in trace(taken)) == ["inner", "inner", "task 1", "task 2"]
        assert set(monitor.snapshot(1)) >= {"t_task 1", "t_task 2", "t_task 1/inner", "t_task 2/inner"}

    def test_closes_the_range_of_the_task_that_leaves(self, monitor, trace):
        """The first of two tasks to enter is the first to leave, so that their ranges overlap and do not nest."""

        async def work(turns):
            with monitor.phase("work"):
                for _ in range(turns):
                    await asyncio.sleep(0)

        async def both():
            await asyncio.gather(work(2), work(4))

        with profile(activities=[ProfilerActivity.CPU]) as taken:
            asyncio.run(both())
        [first, second] = trace(taken)
        assert first[2] < second[2]

    def test_keeps_no_task_alive(self, monitor):
        ended = []

        async def work():
            try:
                with monitor.phase("work"):
                    await asyncio.get_running_loop().create_future()
            finally:
                ended.append(True)

        async def begin():
            task = asyncio.ensure_future(work())
            task.get_loop().set_exception_handler(lambda loop, context: None)
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        with profile(activities=[ProfilerActivity.CPU]):
            loop.run_until_complete(begin())
            gc.collect()
            assert ended
        loop.close()

    def test_shows_nothing_open_where_a_phase_cannot_begin(self, monitor, monkeypatch):
        with profile(activities=[ProfilerActivity.CPU]):
            with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
                patch.setattr(type(monitor.phase("x")), "_clock", property(lambda self: lambda: 1 / 0))
                with monitor.phase("x"):
                    pass
            [_, thread] = recorder_of(monitor).counters.threads[0]
            assert thread.ranges == []

    def test_that_begins_or_ends_inside_a_phase_breaks_nothing(self, monitor, trace):
        with monitor.phase("outer"):
            with profile(activities=[ProfilerActivity.CPU]) as taken, monitor.phase("whole"):
                pass
            with profile(activities=[ProfilerActivity.CPU]) as second:
                phase = monitor.phase("begun")
                phase.__enter__()
            phase.__exit__(None, None, None)
        assert tree(trace(taken)) == ["whole"]
        assert len(trace(second)) <= 1
        assert set(monitor.snapshot(1)) >= {"t_outer", "t_outer/whole", "t_outer/begun"}
        [_, thread] = recorder_of(monitor).counters.threads[0]
        assert thread.ranges == []
        assert not thread.track.irregular

    def test_shows_a_script_that_nobody_edits(self, trace):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.ones(4, 2), 2)
        with autoprofile(), profile(activities=[ProfilerActivity.CPU]) as taken:
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
        # torch shows its own loaders and optimizers too, as "Optimizer.step#SGD.step".
        ours = [event for event in trace(taken) if "#" not in event[0]]
        step = ["data", "forward", "backward", "optimizer"]
        assert tree(ours) == [*step, *step, "data"]

    def test_opens_nothing_where_none_is_running(self, monitor, monkeypatch):
        monkeypatch.setattr(tracks, "open_range", None)
        with monitor.phase("forward"), pytest.raises(KeyError), monitor.phase("inner"):
            raise KeyError
        assert "t_forward" in monitor.snapshot(1)


class TestNsight:
    @pytest.fixture
    def markers(self, monkeypatch):
        """NVTX, written down, in a process that Nsight Systems has started."""
        said = []
        monkeypatch.setattr(counters, "profiler_flag", types.SimpleNamespace(_is_profiler_enabled=True))
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("pop"))
        return said

    def test_shows_each_phase_once_an_entry_and_nested_as_it_was(self, monitor, markers):
        with monitor.phase("outer"):
            for _ in range(2):
                with monitor.phase("inner"):
                    pass
        assert markers == ["outer", "inner", "pop", "inner", "pop", "pop"]

    def test_shows_nothing_twice_where_torchs_profiler_shows_it(self, monitor, markers, trace):
        with profile(activities=[ProfilerActivity.CPU]) as taken, monitor.phase("forward"):
            pass
        assert markers == []
        assert tree(trace(taken)) == ["forward"]

    def test_harms_nothing_in_a_pytorch_without_cuda(self, monitor, monkeypatch):
        monkeypatch.setattr(counters, "profiler_flag", types.SimpleNamespace(_is_profiler_enabled=True))
        with monitor.phase("forward"):
            pass
        assert "t_forward" in monitor.snapshot(1)

    @pytest.mark.parametrize(("session", "is_asked"), [(None, False), ("42", True)])
    def test_is_told_by_the_environment_that_it_is_running(self, session, is_asked):
        environment = {key: value for key, value in os.environ.items() if key != "NSYS_PROFILING_SESSION_ID"}
        if session is not None:
            environment["NSYS_PROFILING_SESSION_ID"] = session
        program = "from mlvbench.counting import ranges; print(ranges.profiler_flag._is_profiler_enabled)"
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == str(is_asked)
