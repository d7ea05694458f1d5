"""The monitor's own methods: steps, snapshots, samples, records, subscribers; and a disabled monitor."""

import copy
import enum
import inspect
import json
import pickle
import warnings

import numpy as np
import pytest
import torch
from fake_clock import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from strategies import NaiveSteps, step_numbers

import mlvbench
from mlvbench.monitoring import ThroughputMonitor


def due(every, numbers):
    monitor = ThroughputMonitor("cpu", every, FakeClock())
    return [number for number in numbers if monitor.step(number) is not None]


class TestSteps:
    def test_a_snapshot_is_due_every_n_steps(self):
        assert due(50, range(1, 151)) == [50, 100, 150]

    def test_a_run_that_resumes_takes_the_first_at_the_next_multiple(self):
        assert due(50, range(1001, 1101)) == [1050, 1100]

    def test_a_counter_that_jumps_over_a_multiple_loses_no_interval(self):
        assert due(50, [48, 53, 60, 100]) == [53, 100]
        assert due(50, [49, 212, 213, 250]) == [212, 250]

    def test_a_counter_in_strides_has_a_snapshot_wherever_it_passes_a_multiple(self):
        assert due(4, range(3, 25, 3)) == [6, 9, 12, 18, 21, 24]
        assert due(50, range(1, 160, 2)) == [51, 101, 151]

    def test_the_same_step_again_is_not_due_again(self):
        assert due(2, [1, 2, 2, 2, 3, 4]) == [2, 4]

    def test_a_counter_that_starts_again_goes_on(self):
        assert due(3, [1, 2, 3, 1, 2, 3]) == [3, 3]

    @given(st.integers(1, 30), st.lists(step_numbers, max_size=20))
    def test_a_snapshot_is_due_where_a_multiple_lies_since_the_last_call(self, every, numbers):
        naive = NaiveSteps(every)
        assert due(every, numbers) == [number for number in numbers if naive.is_due(number)]

    def test_the_same_step_again_reports_nothing_twice(self, clock):
        monitor = ThroughputMonitor("cpu", 2, clock)
        snapshots = []
        for step in (1, 2, 2, 2, 3, 4):
            with monitor.phase("forward"):
                clock.advance(1)
            monitor.record_samples(8)
            snapshots.append(monitor.step(step))
        taken = [snapshot for snapshot in snapshots if snapshot]
        assert sum(snapshot["t_forward"] for snapshot in taken) == 6
        assert sum(snapshot["samples"] for snapshot in taken) == 48
        assert {snapshot["samples_per_sec"] for snapshot in taken} == {8.0}


class TestSnapshots:
    def test_keys_and_their_order(self, monitor, clock):
        monitor.snapshot(0)
        for _ in monitor.iterate([1]):
            with monitor.phase("train"), monitor.phase("forward"):
                clock.advance(2)
        monitor.record_samples(3)
        clock.advance(1)
        snapshot = monitor.snapshot(np.int64(7))
        assert list(snapshot.items()) == [
            ("step", 7),
            ("t_data", 0),
            ("t_train", 2),
            ("t_forward", 2),
            ("t_train/forward", 2),
            ("samples", 3),
            ("wall_sec", 3),
            ("samples_per_sec", 1.5),
            ("gpu_mem_gb", 0.0),
            ("gpu_mem_peak_gb", 0.0),
        ]
        assert type(snapshot["step"]) is int

    def test_phases_keep_the_order_in_which_they_were_first_entered(self, monitor):
        late = monitor.phase("named first")
        for name in ("b", "a"):
            with monitor.phase(name):
                pass
        with late:
            pass
        monitor.snapshot(1)
        for name in ("named first", "a", "b", "c"):
            with monitor.phase(name):
                pass
        assert [key for key in monitor.snapshot(2) if key.startswith("t_")] == ["t_b", "t_a", "t_named first", "t_c"]

    def test_the_rate_is_total_over_total(self, clock):
        monitor = ThroughputMonitor("cpu", 2, clock)
        for step, seconds in enumerate((100, 1), start=1):
            with monitor.phase("train"):
                clock.advance(seconds)
            monitor.record_samples(100)
            snapshot = monitor.step(step)
        assert snapshot["samples_per_sec"] == 200 / 101

    def test_micro_batches_add_up(self, monitor, clock):
        for _ in range(4):
            with monitor.phase("forward"):
                clock.advance(2)
            monitor.record_samples(8)
        snapshot = monitor.step(1)
        assert (snapshot["samples"], snapshot["samples_per_sec"]) == (32, 4.0)

    def test_no_time_gives_no_infinite_rate(self, monitor):
        with monitor.phase("forward"):
            pass
        monitor.record_samples(32)
        for snapshot in (monitor.step(1), monitor.step(2)):
            assert snapshot["samples_per_sec"] == 0.0
            json.dumps(snapshot, allow_nan=False)

    def test_a_clock_that_goes_back_breaks_nothing(self, monitor, clock):
        with monitor.phase("forward"):
            clock.advance(-5)
        monitor.record_samples(1)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_forward"], snapshot["samples_per_sec"]) == (-5, 0.0)

    def test_over_a_thousand_intervals_the_times_are_the_clocks_own(self, monitor, clock):
        for step in range(1, 1001):
            with monitor.phase("train"):
                clock.advance(step % 7)
            monitor.step(step)
        assert sum(record["t_train"] for record in monitor.records) == clock.now - 7_000

    def test_a_phase_belongs_whole_to_the_interval_in_which_it_ends(self, monitor, clock):
        with monitor.phase("train"):
            clock.advance(3)
            first = monitor.snapshot(1)
            clock.advance(4)
        monitor.record_samples(14)
        second = monitor.snapshot(2)
        assert "t_train" not in first
        assert (second["t_train"], second["wall_sec"], second["samples_per_sec"]) == (7, 4, 2.0)

    def test_reset_leaves_nothing_of_the_warm_up(self, clock):
        monitor = ThroughputMonitor("cpu", 10, clock)
        for step in range(1, 4):
            with monitor.phase("compile"):
                clock.advance(60)
            monitor.record_samples(1)
            assert monitor.step(step) is None
        monitor.reset()
        for step in range(4, 11):
            with monitor.phase("forward"):
                clock.advance(1)
            monitor.record_samples(2)
            snapshot = monitor.step(step)
        assert snapshot["samples_per_sec"] == 2.0
        assert snapshot["wall_sec"] == 7
        assert "t_compile" not in snapshot

    def test_an_idle_hour_before_a_reset_is_in_no_interval(self, monitor, clock):
        monitor.step(1)
        clock.advance(3600)
        monitor.reset()
        clock.advance(2)
        assert monitor.step(2)["wall_sec"] == 2

    def test_a_name_from_a_string_enumeration_is_its_value(self, monitor):
        class Name(str, enum.Enum):
            FORWARD = "forward"

        with monitor.phase(Name.FORWARD), monitor.phase("forward"):
            pass
        assert list(monitor.snapshot(1))[1] == "t_forward"


class TestSamples:
    @pytest.mark.parametrize(
        "count", [3, np.int32(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
    )
    def test_integers_of_every_kind(self, monitor, count):
        monitor.record_samples(count)
        snapshot = monitor.step(count)
        assert (snapshot["samples"], snapshot["step"]) == (3, 3)
        assert {type(snapshot["samples"]), type(snapshot["step"])} == {int}

    def test_uneven_batches_are_counted_and_not_multiplied(self, monitor):
        for count in (8, 8, 3):
            monitor.record_samples(count)
        assert monitor.step(1)["samples"] == 19


class TestRecords:
    def test_changing_what_is_given_changes_nothing_inside(self, monitor):
        monitor.subscribe(lambda snapshot: snapshot.clear())
        other = []
        monitor.subscribe(other.append)
        first = monitor.step(1)
        first["step"] = 99
        records = monitor.records
        records[0]["step"] = 98
        records.append({})
        assert [record["step"] for record in monitor.records] == [1]
        assert other[0]["step"] == 1

    def test_a_monitor_pickles_with_its_settings_and_records_and_counts_anew(self, clock):
        monitor = ThroughputMonitor("cpu", 5, clock)
        monitor.subscribe(lambda snapshot: None)
        with monitor.phase("forward"):
            clock.advance(2)
        monitor.record_samples(3)
        monitor.snapshot(1)
        with monitor.phase("forward"):
            clock.advance(2)
        for clone in (pickle.loads(pickle.dumps(monitor)), copy.deepcopy(monitor), copy.copy(monitor)):
            assert clone.records == monitor.records
            assert (clone.device, clone.record_every_n_steps) == (monitor.device, 5)
            with clone.phase("forward"):
                clone.clock.advance(1)
            assert clone.snapshot(2)["t_forward"] == 1
        assert monitor.snapshot(2)["t_forward"] == 2

    def test_phases_and_disabled_monitors_pickle_too(self, monitor):
        assert pickle.loads(pickle.dumps(monitor.phase("forward"))).name == "forward"
        assert not pickle.loads(pickle.dumps(ThroughputMonitor("cpu", None))).enabled


class TestSubscribers:
    def test_each_snapshot_is_given_until_the_handle_is_removed(self, monitor):
        seen, also = [], []
        handle = monitor.subscribe(lambda snapshot: seen.append(snapshot["step"]))
        with monitor.subscribe(lambda snapshot: also.append(snapshot["step"])):
            monitor.step(1)
        monitor.snapshot(2)
        handle.remove()
        handle.remove()
        monitor.step(3)
        assert (seen, also) == ([1, 2], [1])

    def test_one_that_raises_is_warned_about_once_and_dropped(self, monitor):
        def broken(snapshot):
            raise ConnectionError("no network")

        seen = []
        monitor.subscribe(broken)
        monitor.subscribe(seen.append)
        with pytest.warns(RuntimeWarning, match=r"broken.*ConnectionError\('no network'\)") as caught:
            assert monitor.step(1)["step"] == 1
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            monitor.step(2)
        assert [snapshot["step"] for snapshot in seen] == [1, 2]

    def test_all_others_are_told_before_the_warning(self, monitor):
        seen = []
        monitor.subscribe(lambda snapshot: 1 / 0)
        monitor.subscribe(seen.append)
        with warnings.catch_warnings(), pytest.raises(RuntimeWarning):
            warnings.simplefilter("error")
            monitor.step(1)
        assert len(seen) == len(monitor.records) == 1

    def test_one_that_stops_the_program_stops_it(self, monitor):
        def interrupted(snapshot):
            raise KeyboardInterrupt

        with monitor.subscribe(interrupted), pytest.raises(KeyboardInterrupt):
            monitor.step(1)
        assert [record["step"] for record in monitor.records] == [1]

    def test_one_may_use_the_monitor_and_end_itself(self, monitor):
        seen = []

        def once(snapshot):
            seen.append(len(monitor.records))
            handle.remove()

        handle = monitor.subscribe(once)
        monitor.step(1)
        monitor.step(2)
        assert seen == [1]

    def test_the_same_function_twice_is_two_subscriptions(self, monitor):
        seen = []
        log = seen.append
        first = monitor.subscribe(log)
        monitor.subscribe(log)
        first.remove()
        monitor.step(1)
        assert len(seen) == 1


class TestDisabled:
    @pytest.fixture
    def monitor(self):
        def clock():
            raise AssertionError("the clock was read")

        return ThroughputMonitor("cuda", None, clock)

    def test_every_method_is_a_no_op(self, monitor, tmp_path):
        assert not monitor.enabled
        assert monitor.phase("a") is monitor.phase("b") is monitor.phase("a")
        with monitor.phase("a"), monitor.phase("a"), monitor.phase(""), monitor.phase([]):
            monitor.record_samples(-1)
        assert monitor.step("x") is None
        assert monitor.snapshot("x") is None
        monitor.reset()
        assert monitor.records == []
        with monitor.subscribe(print):
            monitor.save(tmp_path / "records.txt")
        assert list(tmp_path.iterdir()) == []

    def test_what_would_be_wrapped_is_the_very_same_object(self, monitor):
        def function():
            """Is left alone."""

        loader, method = [1], staticmethod(function)
        assert monitor.iterate(loader) is loader
        assert monitor.timed(function) is function
        assert monitor.timed("x")(function) is function
        assert monitor.timed("x")(method) is method

    def test_nothing_is_patched(self, monitor):
        target = torch.nn.Linear(1, 1)
        before, before_class = dict(vars(target)), dict(vars(torch.nn.Linear))
        with monitor.instrument(target, {"x": "forward", "y": "nowhere"}):
            assert vars(target) == before
            assert dict(vars(torch.nn.Linear)) == before_class


class TestFrontDoor:
    def test_the_public_names_are_a_list(self):
        assert mlvbench.__all__ == ["ThroughputMonitor"]
        assert mlvbench.ThroughputMonitor is ThroughputMonitor
        assert mlvbench.monitoring.__all__ == ["ThroughputMonitor"]
        with pytest.raises(AttributeError, match="has no attribute 'Monitor'"):
            mlvbench.Monitor  # noqa: B018
        assert "ThroughputMonitor" in dir(mlvbench)

    def test_the_monitor_has_the_members_of_its_contract_and_no_others(self):
        public = {name for name in vars(ThroughputMonitor) if not name.startswith("_")}
        assert public == {
            "device", "record_every_n_steps", "clock", "timing", "enabled", "records", "iterate", "phase", "timed",
            "instrument", "record_samples", "step", "snapshot", "reset", "subscribe", "save",
        }  # fmt: skip
        assert list(inspect.signature(ThroughputMonitor).parameters) == [
            "device", "record_every_n_steps", "clock", "timing",
        ]  # fmt: skip

    @pytest.mark.parametrize("name", ["device", "record_every_n_steps", "clock", "timing", "enabled", "records"])
    def test_settings_are_read_only(self, monitor, name):
        with pytest.raises(AttributeError):
            setattr(monitor, name, 1)

    def test_it_shows_what_it_is(self, monitor):
        assert repr(monitor) == "ThroughputMonitor(device='cpu', record_every_n_steps=1, records=0)"
