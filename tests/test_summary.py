"""From records to figures: sums, the tree, what no phase covers, rates, several processes and ranks."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlvbench.records.run import Run
from mlvbench.records.schema import make_record
from mlvbench.report.intervals import steps_of
from mlvbench.report.summary import summarize


def record(step, seconds, *, wall, samples=0, accounted=None, peak=0.0):
    """A snapshot; `accounted` is what the outermost phases cover where it is not given."""
    covered = sum(second for path, second in seconds.items() if "/" not in path)
    return make_record(
        step,
        seconds,
        samples=samples,
        accounted=covered if accounted is None else accounted,
        wall=wall,
        memory=(peak / 2, peak),
    )


def run_of(*processes, rank=0, **description):
    return Run(Path("run"), {rank: list(processes)}, description, 0)


def ranks_of(**ranks):
    return Run(Path("run"), {int(rank[1:]): [records] for rank, records in ranks.items()}, {}, 0)


def figures(found):
    """Inclusive and self seconds by path."""
    return {"/".join(phase.path): (phase.seconds, phase.self_seconds) for phase in found.phases}


class TestTree:
    def test_phases_side_by_side(self):
        found = summarize(run_of([record(10, {"data": 1, "forward": 2}, wall=4)]))
        assert figures(found) == {"data": (1, 1), "forward": (2, 2)}
        assert (found.other, found.wall, found.overlap) == (1, 4, 0)
        assert found.share(found.other) == 0.25
        assert found.per_step(found.wall) == 0.4

    def test_self_time_is_what_nested_phases_leave(self):
        found = summarize(run_of([record(1, {"a": 10, "a/b": 6, "a/b/c": 1, "a/d": 1}, wall=10)]))
        assert figures(found) == {"a": (10, 3), "a/b": (6, 5), "a/b/c": (1, 1), "a/d": (1, 1)}
        assert found.other == 0

    def test_a_phase_that_is_nested_and_is_not(self):
        found = summarize(run_of([record(1, {"data": 2, "validate": 5, "validate/data": 3}, wall=7)]))
        assert figures(found) == {"data": (2, 2), "validate": (5, 2), "validate/data": (3, 3)}

    def test_a_phase_at_the_top_that_is_only_rounding_is_not_there(self):
        found = summarize(
            run_of([record(1, {"a": 1.0, "a/b": 0.1, "a/c/b": 0.2, "a/d/b": 0.3, "a/c": 0.2, "a/d": 0.3}, wall=1)])
        )
        assert [path for path in figures(found) if "/" not in path] == ["a"]
        assert figures(found)["a/c"] == (0.2, 0)

    def test_phases_come_in_the_order_first_seen_each_with_what_is_inside(self):
        first = record(1, {"b": 2, "b/x": 1}, wall=2)
        second = record(2, {"a": 1, "b": 2, "b/w": 1, "b/x": 1, "b/x/y": 1}, wall=3)
        found = summarize(run_of([first, second]), include_warmup=True)
        assert list(figures(found)) == ["b", "b/x", "b/x/y", "b/w", "a"]

    def test_a_phase_that_never_ended_has_at_least_what_is_inside_it(self):
        # Killed in "epoch", within which "forward" ended: neither is in what is accounted.
        found = summarize(run_of([{"step": 1, "t_forward": 3, "t_epoch/forward": 3, "samples": 0, "wall_sec": 4}]))
        assert figures(found) == {"epoch": (3, 0), "epoch/forward": (3, 3)}
        assert (found.other, found.overlap) == (1, 0)

    def test_no_phases_at_all(self):
        found = summarize(run_of([record(5, {}, wall=2)]))
        assert (figures(found), found.other, found.share(found.other)) == ({}, 2, 1.0)

    def test_no_time_at_all(self):
        found = summarize(run_of([record(5, {"a": 0}, wall=0)]))
        assert found.share(0.0) == 0.0


class TestOverlap:
    def test_phases_of_other_threads_leave_other_as_it_is(self):
        found = summarize(run_of([record(1, {"loop": 6, "writer": 8}, wall=10, samples=12, accounted=6)]))
        assert (found.other, found.overlap) == (pytest.approx(4), pytest.approx(8))

    def test_where_no_rate_tells_only_what_exceeds_the_wall_time_is_known(self):
        found = summarize(run_of([record(1, {"loop": 6, "writer": 8}, wall=10)]))
        assert (found.other, found.overlap, found.accounted) == (0, 4, 14)

    def test_samples_without_a_rate_are_samples_without_accounted_time(self):
        found = summarize(run_of([record(1, {"writer": 8}, wall=10, samples=12, accounted=0)]))
        assert (found.accounted, found.other, found.overlap) == (0, 10, 8)

    def test_rounding_is_no_overlap(self):
        found = summarize(run_of([record(1, {"a": 0.1, "b": 0.2}, wall=0.3, samples=7)]))
        assert found.overlap == 0.0
        assert found.other == pytest.approx(0, abs=1e-12)


class TestSteps:
    @pytest.mark.parametrize(
        ("numbers", "every", "steps"),
        [
            ([50], None, [50]),
            ([50, 100, 150], None, [50, 50, 50]),
            ([50, 100, 150, 173], None, [50, 50, 50, 23]),
            ([10_050, 10_100, 10_150], None, [50, 50, 50]),
            ([10_050, 10_053], 50, [50, 3]),
            ([50, 53], 50, [50, 3]),
            ([7], 50, [7]),
            ([50, 100, 50, 100], None, [50, 50, 50, 50]),
            ([50, 100, 20, 70], None, [50, 50, 20, 50]),
            ([50, 50], None, [50, 0]),
            ([0], None, [0]),
            ([-50, 0, 50], None, [0, 50, 50]),
            ([0, 50], None, [0, 50]),
        ],
    )
    def test_steps_of_each_interval(self, numbers, every, steps):
        assert steps_of(numbers, every) == steps

    def test_an_interval_without_steps_counts_with_the_one_before(self):
        run = [record(step, {"a": step}, wall=10 * step) for step in (1, 2, 3, 3)]
        found = summarize(run_of(run))
        assert (found.snapshots, found.per_step(found.wall), figures(found)["a"][0]) == (2, 40, 8)
        assert found.timeline.wall == [20, 60]

    def test_at_the_start_it_counts_with_the_one_after(self):
        run = [record(step, {"a": 1}, wall=2) for step in (0, 0, 1, 2)]
        found = summarize(run_of(run))
        assert (found.warm_up, found.timeline.wall) == (1, [2])
        assert summarize(run_of(run), include_warmup=True).timeline.wall == [6, 2]

    def test_a_run_without_any_step(self):
        found = summarize(run_of([record(0, {"a": 1}, wall=2), record(0, {"a": 1}, wall=2)]))
        assert (found.per_step(found.wall), found.wall, found.share(2), found.wall_deviation) == (None, 4, 0.5, None)


class TestWarmUp:
    RUN = [record(10, {"a": 9, "compile": 5}, wall=20), record(20, {"a": 1}, wall=2), record(30, {"a": 1}, wall=2)]

    def test_the_first_snapshot_is_left_out_with_the_phases_of_its_own(self):
        found = summarize(run_of(self.RUN))
        assert (found.snapshots, found.warm_up, found.warm_up_counted) == (2, 1, False)
        assert figures(found) == {"a": (2, 2)}
        assert found.steps == {0: 20}

    def test_unless_it_is_asked_for(self):
        found = summarize(run_of(self.RUN), include_warmup=True)
        assert (found.snapshots, found.warm_up, found.warm_up_counted, found.wall) == (3, 1, True, 24)

    def test_unless_it_is_the_only_one(self):
        found = summarize(run_of(self.RUN[:1]))
        assert (found.snapshots, found.warm_up, found.wall) == (1, 0, 20)

    def test_each_process_has_one(self):
        found = summarize(run_of(self.RUN, self.RUN, self.RUN[:1]))
        assert (found.snapshots, found.warm_up, found.wall) == (5, 2, 28)

    def test_a_phase_that_took_no_time_is_a_phase(self):
        found = summarize(run_of([record(step, {"a": 0}, wall=1) for step in (1, 2)]))
        assert figures(found) == {"a": (0, 0)}


class TestSpread:
    def test_of_snapshots_of_one_length_it_is_the_standard_deviation(self):
        run = [record(10 * i, {"a": second}, wall=second) for i, second in enumerate([99, 10, 20, 30], start=1)]
        [phase] = summarize(run_of(run)).phases
        assert phase.deviation == pytest.approx(1.0)

    def test_a_snapshot_in_which_the_phase_did_not_end_counts_as_zero(self):
        run = [record(10, {"a": 20}, wall=20), record(20, {}, wall=20)]
        [phase] = summarize(run_of(run), include_warmup=True).phases
        assert phase.deviation == pytest.approx(2**0.5)

    def test_a_short_snapshot_weighs_less(self):
        run = [record(90, {"a": 90}, wall=90), record(100, {"a": 20}, wall=20)]
        found = summarize(run_of(run, record_every_n_steps=90), include_warmup=True)
        # The mean is 1.1; 90 steps are 0.1 below, 10 are 0.9 above it.
        assert found.wall_deviation == pytest.approx(((0.9 * 0.01 + 0.1 * 0.81) * 2) ** 0.5)

    def test_of_one_snapshot_there_is_none(self):
        assert summarize(run_of([record(1, {"a": 1}, wall=1)])).phases[0].deviation is None

    def test_of_equal_ones_it_is_zero(self):
        found = summarize(run_of([record(step, {"a": 0.1}, wall=0.1) for step in (1, 2, 3)]))
        assert found.wall_deviation == pytest.approx(0, abs=1e-15)


class TestRanks:
    def test_seconds_a_step_are_means_and_rates_are_sums(self):
        found = summarize(
            ranks_of(
                r0=[record(10, {"a": 10}, wall=20, samples=40)],
                r1=[record(10, {"a": 30}, wall=40, samples=40)],
            )
        )
        assert found.per_step(found.wall) == 3
        assert found.per_step(found.phases[0].seconds) == 2
        assert found.samples_per_wall == 40 / 20 + 40 / 40
        assert found.samples_per_accounted == 40 / 10 + 40 / 30
        assert found.steps == {0: 10, 1: 10}

    def test_each_snapshot_of_each_rank_is_in_the_spread(self):
        found = summarize(ranks_of(r0=[record(1, {}, wall=1)], r1=[record(1, {}, wall=3)]))
        assert found.wall_deviation == pytest.approx(2**0.5)

    def test_the_timeline_joins_what_was_measured_at_the_same_time(self):
        long = [record(step, {"a": 2}, wall=4) for step in (1, 2, 3)]
        short = [record(step, {"b": 6}, wall=8) for step in (1, 2)]
        found = summarize(ranks_of(r0=long, r1=short), include_warmup=True).timeline
        assert (found.steps, found.wall) == ([1, 1, 0.5], [6, 6, 2])
        assert found.seconds == {("a",): [1, 1, 1], ("b",): [3, 3, 0]}

    def test_memory_is_the_highest_peak(self):
        ranks = ranks_of(r0=[record(1, {}, wall=1, peak=2.0)], r1=[record(1, {}, wall=1, peak=6.0)])
        assert summarize(ranks).memory_peak == 6.0

    def test_the_peak_of_the_warm_up_counts_since_it_had_to_fit(self):
        run = [record(step, {}, wall=1, peak=6.0 / step) for step in (1, 2)]
        assert summarize(run_of(run)).memory_peak == 6.0


PATHS = st.sampled_from(["a", "b", "a/b", "a/c", "a/b/c", "c", "b/a"])


@st.composite
def processes(draw):
    """Records as a monitor makes them: an outer phase has at least what is inside it."""
    records, step = [], 0
    for _ in range(draw(st.integers(1, 5))):
        step += draw(st.integers(0, 3))
        own = draw(st.dictionaries(PATHS, st.integers(0, 1000).map(lambda n: n / 8), max_size=5))
        places = dict.fromkeys(
            "/".join(parts[:length])
            for parts in (path.split("/") for path in own)
            for length in range(1, len(parts) + 1)
        )
        seconds = {p: sum(s for q, s in own.items() if f"{q}/".startswith(f"{p}/")) for p in places}
        covered = sum(second for path, second in seconds.items() if "/" not in path)
        wall = covered + draw(st.integers(0, 100)) / 8
        records.append(record(step, seconds, wall=wall, samples=draw(st.integers(0, 9))))
    return records


runs = st.dictionaries(st.integers(0, 9), st.lists(processes(), min_size=1, max_size=2), min_size=1, max_size=3)


class TestForAllRuns:
    @given(ranks=runs, include=st.booleans())
    def test_self_times_and_other_add_up_to_the_wall_time(self, ranks, include):
        found = summarize(Run(Path("run"), ranks, {}, 0), include_warmup=include)
        total = sum(phase.self_seconds for phase in found.phases) + found.other
        assert total == pytest.approx(found.wall + found.overlap)
        assert found.overlap == 0
        assert found.other == pytest.approx(found.wall - found.accounted)

    @given(ranks=runs)
    def test_with_the_warm_up_no_second_and_no_sample_is_lost(self, ranks):
        found = summarize(Run(Path("run"), ranks, {}, 0), include_warmup=True)
        every = [record for files in ranks.values() for records in files for record in records]
        assert found.wall == pytest.approx(sum(record["wall_sec"] for record in every))
        assert found.samples == sum(record["samples"] for record in every)
        for name in ("a", "b", "c"):
            seconds = sum(phase.seconds for phase in found.phases if phase.path[-1] == name)
            assert seconds == pytest.approx(sum(record.get(f"t_{name}", 0) for record in every))

    @given(ranks=runs, include=st.booleans(), data=st.data())
    def test_the_order_of_the_ranks_says_nothing(self, ranks, include, data):
        other = dict(data.draw(st.permutations(list(ranks.items()))))
        one, two = (summarize(Run(Path("run"), r, {}, 0), include_warmup=include) for r in (ranks, other))
        assert {path: pytest.approx(pair) for path, pair in figures(one).items()} == figures(two)
        assert one.wall == pytest.approx(two.wall)
        assert one.samples_per_wall == pytest.approx(two.samples_per_wall)
        assert one.timeline.wall == pytest.approx(two.timeline.wall)

    @given(ranks=runs)
    def test_the_timeline_is_the_mean_of_the_ranks(self, ranks):
        found = summarize(Run(Path("run"), ranks, {}, 0))
        assert sum(found.timeline.wall) * len(ranks) == pytest.approx(found.wall)
        assert sum(found.timeline.steps) * len(ranks) == pytest.approx(sum(found.steps.values()))
        assert sum(found.timeline.samples) * len(ranks) == pytest.approx(found.samples)
