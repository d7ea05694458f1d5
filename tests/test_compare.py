"""Two runs side by side: which differences are more than noise."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_summary import ranks_of, record, run_of

from mlvbench.report.compare import BLOCKS, LEVEL, compare, in_blocks, permutation_test
from mlvbench.report.intervals import Intervals
from mlvbench.report.summary import summarize


def pace(*seconds, every=10, phase="forward", samples=0):
    """A run, warm-up first, that takes so many seconds a snapshot, all of them in one phase."""
    walls = [seconds[0], *seconds]
    return run_of(
        [record(every * i, {phase: wall}, wall=wall, samples=samples) for i, wall in enumerate(walls, start=1)]
    )


def compared(before, after):
    return compare(summarize(before), summarize(after))


class TestPermutationTest:
    def test_all_splits_are_tried_where_they_are_few(self):
        # Of the 70 ways to take 4 of 8, the one seen and its mirror image are the most extreme.
        assert permutation_test([[1, 2, 3, 4, 11, 12, 13, 14]], [1] * 8, 4) == [2 / 70]
        assert permutation_test([[1, 2, 3, 11, 12, 13, 14, 15]], [1] * 8, 3) == [1 / 56]

    def test_against_the_definition(self):
        values, first = [3, 1, 4, 1, 5, 9, 2, 6, 5], 4

        def difference(split):
            others = [values[i] for i in range(9) if i not in split]
            return abs(sum(values[i] for i in split) / 4 - sum(others) / 5)

        splits = list(combinations(range(9), first))
        expected = sum(difference(split) >= difference(range(first)) - 1e-9 for split in splits) / len(splits)
        assert permutation_test([values], [1] * 9, first) == [expected]

    @pytest.mark.parametrize(("first", "second"), [(0, 5), (5, 0), (1, 1), (3, 3), (2, 4), (1, 19)])
    def test_where_no_split_could_be_rare_enough_it_does_not_tell(self, first, second):
        values = [1.0] * first + [9.0] * second
        assert permutation_test([values, values], [1] * (first + second), first) == [None, None]

    @pytest.mark.parametrize(("first", "second"), [(4, 4), (3, 4), (2, 6), (1, 20)])
    def test_otherwise_it_does(self, first, second):
        [p] = permutation_test([[1.0] * first + [9.0] * second], [1] * (first + second), first)
        assert p < LEVEL

    def test_many_splits_are_drawn_always_alike_and_never_give_zero(self):
        values = [[1.0 + i % 3 for i in range(30)] + [9.0] * 30]
        one, two = (permutation_test(values, [1] * 60, 30) for _ in range(2))
        assert one == two == [1 / 5000]

    def test_equal_times_are_no_difference(self):
        assert permutation_test([[0.1] * 10], [1] * 10, 5) == [1.0]

    def test_longer_observations_weigh_more(self):
        # One step a snapshot, and 10 in 1 s: the mean is per step, not per snapshot.
        assert permutation_test([[10, 1, 10, 1, 10, 1, 10, 1]], [10, 1, 10, 1, 10, 1, 10, 1], 4) == [1.0]

    def test_the_more_phases_are_looked_at_the_larger_is_p(self):
        generator = random.Random(1)
        noise = [[generator.random() for _ in range(12)] for _ in range(8)]
        alone = [permutation_test([column], [1] * 12, 6)[0] for column in noise]
        together = permutation_test(noise, [1] * 12, 6)
        assert all(p >= q for p, q in zip(together, alone, strict=True))
        assert min(together) > min(alone)

    def test_a_difference_that_stands_out_keeps_its_p_whatever_else_is_looked_at(self):
        generator = random.Random(1)
        noise = [[generator.random() for _ in range(8)] for _ in range(8)]
        assert permutation_test([[1, 2, 3, 4, 51, 52, 53, 54], *noise], [1] * 8, 4)[0] == 2 / 70

    columns = st.lists(st.lists(st.integers(0, 50), min_size=8, max_size=8), min_size=1, max_size=3)
    lengths = st.lists(st.integers(1, 5), min_size=8, max_size=8)

    @given(columns=columns, steps=lengths, first=st.integers(1, 7))
    def test_which_of_the_runs_is_called_first_says_nothing(self, columns, steps, first):
        swapped = [column[first:] + column[:first] for column in columns]
        one = permutation_test(columns, steps, first)
        two = permutation_test(swapped, steps[first:] + steps[:first], 8 - first)
        assert one == two

    @given(columns=columns, steps=lengths, data=st.data())
    def test_nor_does_the_order_within_a_run(self, columns, steps, data):
        order = [*data.draw(st.permutations(range(4))), *data.draw(st.permutations(range(4, 8)))]
        shuffled = [[column[i] for i in order] for column in columns]
        assert permutation_test(columns, steps, 4) == permutation_test(shuffled, [steps[i] for i in order], 4)

    @given(columns=columns, steps=lengths, scale=st.sampled_from([0.25, 8]))
    def test_nor_does_the_unit(self, columns, steps, scale):
        scaled = [[value * scale for value in column] for column in columns]
        assert permutation_test(columns, steps, 4) == permutation_test(scaled, steps, 4)

    @given(columns=columns, steps=lengths, first=st.integers(1, 7))
    def test_p_is_a_probability_that_the_splits_can_give(self, columns, steps, first):
        for p in permutation_test(columns, steps, first):
            assert p is None or 0 < p <= 1

    def test_equal_runs_are_called_different_as_rarely_as_promised(self):
        generator = random.Random(0)
        called = 0
        for _ in range(200):
            columns = [[generator.gauss(10, 1) for _ in range(10)] for _ in range(4)]
            called += min(permutation_test(columns, [1] * 10, 5)) < LEVEL
        # Were it 5 %, more than 20 of 200 would come once in two thousand times.
        assert called <= 20


class TestBlocks:
    @staticmethod
    def intervals(*steps):
        return Intervals(list(steps), list(steps), list(steps), list(steps), {("a",): list(steps)}, list(steps))

    @pytest.mark.parametrize(
        ("steps", "size", "blocks"),
        [
            ([50, 50, 50], 50, [50, 50, 50]),
            ([50, 50, 50, 10], 50, [50, 50, 60]),
            ([50, 50, 50, 30], 50, [50, 50, 50, 30]),
            ([10] * 10, 50, [50, 50]),
            ([10] * 12, 50, [50, 70]),
            ([10], 50, [10]),
            ([0, 10, 10], 10, [10, 10]),
        ],
    )
    def test_consecutive_snapshots_are_joined(self, steps, size, blocks):
        found = in_blocks(self.intervals(*steps), size)
        assert found.steps == found.wall == found.seconds["a",] == blocks

    @given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 100))
    def test_nothing_is_lost(self, steps, size):
        assert sum(in_blocks(self.intervals(*steps), size).wall) == sum(steps)

    def test_short_snapshots_are_joined_to_blocks_as_long_as_the_others_snapshots(self):
        assert compared(pace(*[1] * 50, every=10), pace(*[5] * 10, every=50)).blocks == (10, 10)

    def test_many_snapshots_are_joined(self):
        assert compared(pace(*[1] * 400), pace(*[1] * 300)).blocks == (50, BLOCKS - 2)


class TestCompare:
    def test_slower(self):
        found = compared(pace(10, 11, 12, 10, 11), pace(20, 21, 22, 20, 21))
        assert (found.wall.before, found.wall.after) == (1.08, 2.08)
        assert found.wall.ratio == pytest.approx(2.08 / 1.08)
        assert found.slowdown == pytest.approx(100 * (2.08 / 1.08 - 1))
        assert [found.wall.verdict, found.phases[0].verdict, found.other.verdict] == [
            "slower",
            "slower",
            "within noise",
        ]

    def test_faster(self):
        found = compared(pace(20, 21, 22, 20, 21), pace(10, 11, 12, 10, 11))
        assert found.wall.verdict == "faster"
        assert not found.is_slower(0)

    def test_within_noise(self):
        found = compared(pace(10, 20, 10, 20, 10), pace(20, 10, 20, 10, 20))
        assert found.wall.verdict == "within noise"

    def test_too_few(self):
        found = compared(pace(10, 11, 12), pace(20, 21, 22))
        assert [found.wall.verdict, found.phases[0].verdict, found.wall.p] == ["too few snapshots"] * 2 + [None]
        assert not found.is_slower(0)

    def test_a_run_is_no_different_from_itself(self):
        run = pace(10, 11, 12, 10, 11)
        found = compared(run, run)
        assert {row.verdict for row in [found.wall, found.other, *found.phases]} == {"within noise"}
        assert (found.wall.ratio, found.wall.p) == (1.0, 1.0)

    def test_phases_of_one_run_only(self):
        before, after = pace(*[10] * 5, phase="old"), pace(*[10] * 5, phase="new")
        found = {row.path: row for row in compared(before, after).phases}
        assert (found["old",].verdict, found["old",].before, found["old",].after) == ("gone", 1, None)
        assert (found["new",].verdict, found["new",].before, found["new",].after) == ("new", None, 1)
        assert found["new",].ratio is None

    def test_the_rows_are_those_of_the_second_run_and_what_is_gone_at_its_place(self):
        before = run_of([record(10, {"a": 3, "a/x": 1, "a/y": 1, "b": 1}, wall=5)])
        after = run_of([record(10, {"b": 1, "a": 3, "a/y": 1, "a/z": 1}, wall=5)])
        paths = ["/".join(row.path) for row in compared(before, after).phases]
        assert paths == ["b", "a", "a/y", "a/z", "a/x"]

    def test_times_are_inclusive(self):
        run = run_of([record(10, {"a": 30, "a/b": 10}, wall=50)])
        found = {row.path: row.before for row in compared(run, run).phases}
        assert found == {("a",): 3, ("a", "b"): 1}

    def test_a_phase_that_takes_no_time_before_has_no_ratio(self):
        before, after = pace(*[0] * 5), pace(*[1] * 5)
        assert (compared(before, after).wall.ratio, compared(before, after).slowdown) == (None, 0.0)

    @pytest.mark.parametrize(("percent", "slower"), [(0, True), (9.9, True), (10.1, False)])
    def test_slower_by_more_than_so_many_percent(self, percent, slower):
        found = compared(pace(*[10.0] * 5), pace(*[11.0] * 5))
        assert found.is_slower(percent) == slower

    def test_ranks_of_one_time_are_one_observation(self):
        def ranks(*walls):
            records = [record(10 * i, {}, wall=wall) for i, wall in enumerate([1, *walls], start=1)]
            return ranks_of(**{f"r{rank}": records for rank in range(8)})

        found = compared(ranks(10, 11), ranks(20, 21))
        assert (found.blocks, found.wall.verdict) == ((2, 2), "too few snapshots")
        assert compared(ranks(10), pace(20)).blocks == (1, 1)

    def test_rates(self):
        found = compared(pace(10, 10, samples=80), pace(20, 20, samples=320))
        assert found.samples_per_wall == (8, 16)
        assert found.samples_per_step == (8, 32)
