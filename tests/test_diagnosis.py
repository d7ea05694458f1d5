"""One sentence, where the figures carry it, and none where they do not."""

import pytest
from test_summary import ranks_of, record, run_of

from mlvbench.report.diagnosis import diagnose
from mlvbench.report.summary import summarize


def said(run, *, accelerator=False):
    return diagnose(summarize(run), accelerator=accelerator)


def steady(seconds, *, snapshots=4, wall=100.0, every=50):
    return run_of([record(every * i, seconds, wall=wall) for i in range(1, snapshots + 1)])


class TestData:
    def test_on_an_accelerator(self):
        assert said(steady({"data": 41, "forward": 59}), accelerator=True) == (
            "waiting for data takes 41% of the wall time: the accelerator starves; "
            "other num_workers or persistent_workers=True in the DataLoader, or cheaper transforms, may help"
        )

    def test_on_a_cpu_nothing_is_said_of_an_accelerator(self):
        assert said(steady({"data": 41, "forward": 59})).startswith(
            "waiting for data takes 41% of the wall time: training waits for its input; "
        )

    @pytest.mark.parametrize(("seconds", "speaks"), [(24.9, False), (25.0, True)])
    def test_from_a_quarter_of_the_time_on(self, seconds, speaks):
        assert (said(steady({"data": seconds, "forward": 100 - seconds})) is not None) == speaks

    def test_wherever_it_is_fetched(self):
        seconds = {"data": 15, "forward": 65, "validate": 20, "validate/data": 15}
        assert said(steady(seconds)).startswith("waiting for data takes 30%")


class TestOther:
    @pytest.mark.parametrize(("seconds", "speaks"), [(29.9, False), (30.0, True)])
    def test_from_three_tenths_of_the_time_on(self, seconds, speaks):
        assert (said(steady({"forward": 100 - seconds})) is not None) == speaks

    def test_it_names_the_option_that_shows_more(self):
        assert said(steady({"forward": 60})) == (
            "40% of the wall time is in code that no phase covers: "
            "--phase NAME=package.module:Class.method of `mlvbench run` shows a part of it"
        )


class TestOptimizer:
    @pytest.mark.parametrize(("seconds", "speaks"), [(29.9, False), (30.0, True)])
    def test_from_three_tenths_of_the_time_on(self, seconds, speaks):
        assert (said(steady({"optimizer": seconds, "forward": 100 - seconds})) is not None) == speaks

    def test_what_its_closure_does_is_not_its_work(self):
        assert said(steady({"optimizer": 98, "optimizer/backward": 70})) is None

    def test_it_names_what_helps(self):
        assert said(steady({"optimizer": 35, "forward": 65})) == (
            "the optimizer takes 35% of the wall time: "
            "PyTorch's fused implementation (fused=True), or larger batches, may help"
        )


class TestDrift:
    @staticmethod
    def drifting(pace):
        # The first snapshot is the warm-up.
        return run_of([record(50 * i, {"forward": wall}, wall=wall) for i, wall in enumerate([99, *pace], start=1)])

    @pytest.mark.parametrize(("factor", "speaks"), [(1.19, False), (1.21, True)])
    def test_from_a_fifth_on(self, factor, speaks):
        assert (said(self.drifting([10] * 8 + [10 * factor] * 4)) is not None) == speaks

    def test_it_says_what_to_look_for(self):
        assert said(self.drifting([10] * 8 + [15] * 4)) == (
            "steps became slower while it ran, by 50% from the first third to the last: "
            "look for what grows, a list, a graph that is kept, a log, or for a processor that gets hot"
        )

    def test_of_a_long_run_single_snapshots_do_not_matter(self):
        pace = [10] * 200 + [15] * 100
        pace[50], pace[250] = 16, 9
        assert said(self.drifting(pace)).startswith("steps became slower")

    def test_noise_is_no_drift(self):
        assert said(self.drifting([10, 20] * 6)) is None
        assert said(self.drifting([10, 10, 10, 16] + [10] * 4 + [15] * 4)) is None

    def test_too_few_snapshots_tell_nothing(self):
        assert said(self.drifting([10] * 7 + [15] * 4)) is None

    def test_faster_is_no_trouble(self):
        assert said(self.drifting([15] * 4 + [10] * 8)) is None


class TestWhich:
    def test_the_largest_lever(self):
        assert said(steady({"data": 30, "forward": 38})).startswith("32% of the wall time is in code")
        assert said(steady({"data": 35, "forward": 34})).startswith("waiting for data takes 35%")
        assert said(steady({"data": 30, "optimizer": 40, "forward": 30})).startswith("the optimizer takes 40%")

    def test_where_all_is_well_nothing_is_said(self):
        assert said(steady({"data": 5, "forward": 30, "backward": 55, "optimizer": 5})) is None

    @pytest.mark.parametrize(("steps", "speaks"), [(9, False), (10, True)])
    def test_a_few_steps_tell_nothing(self, steps, speaks):
        assert (said(run_of([record(steps, {"data": 5}, wall=10)])) is not None) == speaks

    def test_nor_do_a_few_on_one_of_the_ranks(self):
        run = ranks_of(r0=[record(100, {"data": 5}, wall=10)], r1=[record(9, {"data": 5}, wall=10)])
        assert said(run) is None

    def test_no_time_says_nothing(self):
        assert said(run_of([record(100, {"data": 0}, wall=0)])) is None
