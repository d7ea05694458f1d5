"""One snapshot from many ranks: what becomes of the numbers, and real process groups."""

import json
import math
import os
import warnings
from datetime import timedelta
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

from mlvbench import distributed
from mlvbench.distributed import merge, on_rank_0, reduce
from mlvbench.monitoring import ThroughputMonitor
from mlvbench.records import schema


def snapshot_of(step=50, *, samples=0, accounted=1, wall=0, memory=(0.0, 0.0), **seconds):
    """A snapshot; `__` in a phase's name is a `/`."""
    phases = {name.replace("__", "/"): value for name, value in seconds.items()}
    return schema.make_record(step, phases, samples=samples, accounted=accounted, wall=wall, memory=memory)


SECONDS = st.integers(0, 10**6) | st.floats(0, 1e9)
SNAPSHOTS = st.builds(
    schema.make_record,
    st.integers(0, 10**18),
    st.dictionaries(st.sampled_from(["a", "b", "c", "a/b", "b/a", "c/a/b"]), SECONDS),
    samples=st.integers(0, 2**70),
    accounted=st.floats(1e-9, 1e9),
    wall=SECONDS,
    memory=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)),
)
WORLDS = st.lists(SNAPSHOTS, min_size=1, max_size=9)
# Sums of these are exact, and so are their quarters.
EXACT = st.lists(
    st.builds(
        lambda seconds, samples: snapshot_of(1, samples=samples, wall=sum(seconds.values()), **seconds),
        st.dictionaries(st.sampled_from(["a", "b", "a__b"]), st.integers(0, 10**9)),
        st.integers(0, 10**9),
    ),
    min_size=4,
    max_size=4,
)


def naive_merge(snapshots):
    """What must come out, with a mean as a fraction, and without an order."""
    keys = {key for snapshot in snapshots for key in snapshot}
    merged = {}
    for key in keys:
        values = [Fraction(snapshot.get(key, 0)) for snapshot in snapshots]
        if key in ("step", "gpu_mem_gb", "gpu_mem_peak_gb"):
            merged[key] = sorted(values)[-1]
        elif key in ("samples", "samples_per_sec"):
            merged[key] = sum(values)
        else:
            merged[key] = sum(values) / len(values)
            merged[f"{key}_max"] = sorted(values)[-1]
            merged[f"{key}_max_rank"] = next(rank for rank, value in enumerate(values) if value == sorted(values)[-1])
    return merged


class TestMerge:
    def test_merge_takes_means_sums_and_maxima(self):
        first = snapshot_of(samples=100, accounted=2, wall=4, memory=(1.0, 2.5), train=3.0, train__forward=2.0)
        second = snapshot_of(samples=60, accounted=3, wall=5, memory=(1.5, 2.0), train=4.0, train__forward=1.0)
        merged = merge([first, second], [0, 1])
        assert list(merged.items()) == [
            ("step", 50),
            ("t_train", 3.5), ("t_train_max", 4.0), ("t_train_max_rank", 1),
            ("t_forward", 1.5), ("t_forward_max", 2.0), ("t_forward_max_rank", 0),
            ("t_train/forward", 1.5), ("t_train/forward_max", 2.0), ("t_train/forward_max_rank", 0),
            ("samples", 160),
            ("wall_sec", 4.5), ("wall_sec_max", 5), ("wall_sec_max_rank", 1),
            ("samples_per_sec", 70.0),
            ("gpu_mem_gb", 1.5),
            ("gpu_mem_peak_gb", 2.5),
        ]  # fmt: skip

    def test_a_rank_that_lacks_a_phase_spent_nothing_in_it(self):
        merged = merge([snapshot_of(a=1), snapshot_of(b=6), snapshot_of(a=2, save=9)], [0, 1, 2])
        assert [merged[f"t_{name}"] for name in ("a", "b", "save")] == [1, 2, 3]
        assert [merged[f"t_{name}_max_rank"] for name in ("a", "b", "save")] == [2, 1, 2]
        assert [key for key in merged if key.startswith("t_") and "max" not in key] == ["t_a", "t_b", "t_save"]

    def test_lowest_of_the_slowest_ranks_is_named_whatever_the_order(self):
        snapshots = [snapshot_of(a=2), snapshot_of(a=5), snapshot_of(a=5)]
        assert merge(snapshots, [3, 9, 6])["t_a_max_rank"] == 6
        assert merge([snapshot_of(), snapshot_of(a=0)], [0, 1])["t_a_max_rank"] == 0

    def test_step_of_ranks_at_different_steps_is_the_highest(self):
        assert merge([snapshot_of(7), snapshot_of(12), snapshot_of(3)], [0, 1, 2])["step"] == 12

    @given(WORLDS)
    def test_merge_agrees_with_a_naive_account(self, world):
        merged, naive = merge(world, range(len(world))), naive_merge(world)
        assert merged.keys() == naive.keys()
        for key, value in merged.items():
            if type(value) is int or key.endswith("_max") or key.startswith("gpu_"):
                assert value == naive[key], key
            else:
                # A sum is rounded once, and a quotient once more.
                assert abs(Fraction(value) - naive[key]) <= 2 * Fraction(math.ulp(value)), key
        assert type(merged["step"]) is type(merged["samples"]) is int

    @given(st.data(), WORLDS)
    def test_the_order_of_the_ranks_changes_no_number(self, data, world):
        order = data.draw(st.permutations(range(len(world))))
        assert merge([world[rank] for rank in order], order) == merge(world, range(len(world)))

    @given(EXACT, EXACT)
    def test_means_and_samples_add_up_over_intervals(self, first, second):
        pairs = zip(first, second, strict=True)
        both = [{key: one.get(key, 0) + two.get(key, 0) for key in {**one, **two}} for one, two in pairs]
        earlier, later, whole = (merge(world, range(4)) for world in (first, second, both))
        for key in ("samples", "wall_sec", *(key for key in schema.columns(both) if key.startswith("t_"))):
            assert whole[key] == earlier.get(key, 0) + later.get(key, 0), key

    @given(WORLDS)
    def test_keys_of_a_merge_have_the_order_of_a_snapshots(self, world):
        def is_own(key):
            return not key.endswith(("_max", "_max_rank"))

        assert list(filter(is_own, merge(world, range(len(world))))) == schema.columns(world)

    @given(SNAPSHOTS)
    def test_merge_of_one_rank_keeps_its_numbers(self, snapshot):
        merged = merge([snapshot], [0])
        assert {key: merged[key] for key in snapshot} == snapshot
        assert {merged[key] for key in merged if key.endswith("_max_rank")} == {0}

    @pytest.mark.parametrize("name", ["a_max", "a_max_rank"])
    def test_a_phase_named_like_another_ones_maximum_is_refused(self, name):
        message = f"a phase must not be named like another's maximum, got 'a' and '{name}': rename one"
        for world in ([snapshot_of(a=1, **{name: 2})], [snapshot_of(**{name: 2}), snapshot_of(a=1)]):
            with pytest.raises(ValueError, match=f"^{message}$"):
                merge(world, range(len(world)))

    def test_phase_named_like_a_maximum_that_is_not_there_is_like_any_other(self):
        merged = merge([snapshot_of(find_max=1), snapshot_of(find_max=3)], [0, 1])
        assert (merged["t_find_max"], merged["t_find_max_max"], merged["t_find_max_max_rank"]) == (2, 3, 1)


class TestWithoutAProcessGroup:
    def test_reduce_without_a_group_returns_a_copy(self):
        snapshot = snapshot_of(a=1)
        assert reduce(snapshot) == snapshot
        assert reduce(snapshot) is not snapshot

    def test_reduce_of_none_without_a_group_is_none(self, monitor):
        assert reduce(None) is None
        assert reduce(ThroughputMonitor("cpu", None).step(1)) is None
        assert reduce(monitor.step(1))["step"] == 1

    def test_reduce_works_in_a_pytorch_without_distributed(self, monkeypatch):
        monkeypatch.setattr(dist, "is_available", lambda: False)
        monkeypatch.delattr(dist, "is_initialized")
        assert reduce(snapshot_of(7))["step"] == 7

    def test_process_without_a_group_logs_every_snapshot(self, monitor):
        logged = []
        monitor.subscribe(on_rank_0(logged.append))
        snapshots = [monitor.step(1), monitor.step(2)]
        assert logged == snapshots

    def test_a_logger_that_fails_is_dropped_with_a_warning(self, monitor):
        logged = []

        def log(snapshot):
            logged.append(snapshot["step"])
            raise OSError("disk full")

        monitor.subscribe(on_rank_0(log))
        with pytest.warns(RuntimeWarning, match=r"log.* raised OSError\('disk full'\) and gets no more snapshots"):
            monitor.step(1)
        monitor.step(2)
        assert logged == [1]


class StandInGroup:
    """For a backend that this machine lacks."""

    def __init__(self, backends):
        self.backends = backends


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo,cuda:gloo", "cpu"),
        ("cuda:nccl", "cuda"),
        ("cuda:nccl,cpu:gloo", "cpu"),
        ("xpu:xccl", "xpu"),
        ("cpu:gloo", "cpu"),
    ],
)
def test_tensors_of_a_collective_are_on_a_device_that_the_backend_takes(backends, device, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: group.backends)
    assert distributed._device_of(StandInGroup(backends)) == device


# From here on: real ranks. Starting them takes seconds, so that all checks share one start.

WORLD = 3
LONG = "long " * 1000
ODD = '<b>\n"é,\N{SNOWMAN}\ud800'


def snapshot_of_rank(rank):
    phases = {"a": 1.5, f"only_{rank}": 0.1}
    return snapshot_of(50 + rank, samples=2**60 + rank, accounted=2, wall=rank, **phases)


def run_rank(rank, folder):
    """Writes what it has seen to a file of its own; the last rank dies before the end."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timedelta(minutes=1))
    group = dist.new_group([1, 2])
    dist.barrier()
    hasty = dist.new_group([0, 1], timeout=timedelta(seconds=3))  # which making it has to keep to as well
    seen = {}
    count = count_collectives()

    seen["merged"] = list(reduce(snapshot_of_rank(rank)).items())
    seen["collectives"] = count()
    assert reduce(None) is None
    assert count() == 0

    # The last has a snapshot that takes a second collective, to which the others have nothing to add.
    names = {0: "short", 1: ODD, 2: LONG}
    seen["long"] = list(reduce(snapshot_of(**{names[rank]: 3.0})).items())
    seen["collectives for long"] = count()
    room = distributed._ROOM - distributed._HEADER
    for length, collectives in ((0, 1), (room, 1), (room + 1, 2)):
        message = b"x" * length if rank == 2 else b""
        assert distributed._gather(message, None) == [b"", b"", b"x" * length]
        assert count() == collectives

    if rank == 0:
        seen["not a member"] = error_of(lambda: reduce(snapshot_of(), group))
        seen["not a group"] = error_of(lambda: reduce(snapshot_of(), "gloo"))
    else:
        seen["group"] = list(reduce(snapshot_of(wall=rank), group).items())

    logged = seen["logged"] = []

    def log(merged):
        logged.append([merged["step"], merged["samples"]])
        if merged["step"] == 2:
            raise OSError("disk full")

    count()
    monitor = ThroughputMonitor("cpu", 1, clock=lambda: 0)
    monitor.subscribe(on_rank_0(log))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2, 3, 4):
            monitor.record_samples(10**rank)
            monitor.step(step)
    seen["warned"] = [str(warning.message) for warning in caught]
    seen["collectives for the logger"] = count()

    if rank == 0:
        seen["late"] = error_of(lambda: reduce(snapshot_of(), hasty))
    dist.barrier()
    if rank < 2:
        seen["lost"] = error_of(lambda: reduce(snapshot_of()))
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # a process group that has lost a rank cannot be ended in order


def count_collectives():
    """Gives a function that tells how many there were since it was last asked."""
    real, calls = dist.all_gather, []

    def all_gather(*args, **kwargs):
        calls.append(None)
        return real(*args, **kwargs)

    def count():
        found = len(calls)
        calls.clear()
        return found

    dist.all_gather = all_gather
    return count


def error_of(function):
    """The names of the classes of the error that a function raises, and its message."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return [cls.__name__ for cls in caught.type.__mro__], str(caught.value)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    started = [mp.get_context("spawn").Process(target=run_rank, args=(rank, folder)) for rank in range(WORLD)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * WORLD
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


class TestRanks:
    def test_all_ranks_have_the_same_dict_after_one_collective(self, ranks):
        assert [seen["collectives"] for seen in ranks] == [1, 1, 1]
        assert ranks[0]["merged"] == ranks[1]["merged"] == ranks[2]["merged"]
        expected = merge([snapshot_of_rank(rank) for rank in range(WORLD)], range(WORLD))
        assert [tuple(item) for item in ranks[0]["merged"]] == list(expected.items())
        assert (expected["step"], expected["samples"], expected["t_only_2_max_rank"]) == (52, 3 * 2**60 + 3, 2)

    def test_a_long_snapshot_takes_one_more_and_names_are_data(self, ranks):
        assert [seen["collectives for long"] for seen in ranks] == [2, 2, 2]
        assert ranks[0]["long"] == ranks[1]["long"] == ranks[2]["long"]
        merged = dict(ranks[0]["long"])
        for rank, name in enumerate(["short", ODD, LONG]):
            assert (merged[f"t_{name}"], merged[f"t_{name}_max"], merged[f"t_{name}_max_rank"]) == (1.0, 3.0, rank)

    def test_a_group_names_the_ranks_of_the_world(self, ranks):
        assert ranks[1]["group"] == ranks[2]["group"]
        merged = dict(ranks[1]["group"])
        assert (merged["wall_sec"], merged["wall_sec_max"], merged["wall_sec_max_rank"]) == (1.5, 2, 2)

    def test_a_group_without_this_rank_is_refused(self, ranks):
        (kind, *_), message = ranks[0]["not a member"]
        assert (kind, message) == ("ValueError", "group must be one that this rank is in, got one without rank 0")
        (kind, *_), message = ranks[0]["not a group"]
        assert (kind, message) == ("TypeError", "group must be a process group or None, got 'gloo'")

    def test_rank_0_alone_logs_and_where_that_fails_the_others_do_not_wait(self, ranks):
        assert ranks[0]["logged"] == [[1, 111], [2, 111]]
        [warning] = ranks[0]["warned"]
        assert warning.endswith("raised OSError('disk full') and gets no more snapshots")
        assert [seen["collectives for the logger"] for seen in ranks] == [4, 4, 4]
        for seen in ranks[1:]:
            assert seen["logged"] == seen["warned"] == []

    def test_rank_that_does_not_come_is_a_timeout_of_the_group(self, ranks):
        kinds, message = ranks[0]["late"]
        assert "RuntimeError" in kinds
        assert "imed out" in message

    def test_rank_that_has_died_is_an_error_on_the_others(self, ranks):
        for seen in ranks[:2]:
            kinds, message = seen["lost"]
            assert "RuntimeError" in kinds
            assert "onnection" in message
