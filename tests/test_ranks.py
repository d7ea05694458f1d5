"""Ranks side by side: how far apart they are, who is slower than the others and who waits, who stopped early."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_records import lists_of_records
from test_report import NAMES, Stream, drawn, markdown
from test_summary import record, run_of, runs

from mlvbench.records.run import Run
from mlvbench.report import export
from mlvbench.report.ranks import LEVEL, Spread, can_tell, exceptional, shares, spreads, stopped_early, stragglers
from mlvbench.report.summary import summarize

OWN = {"data": 2.0, "forward": 20.0, "optimizer": 3.0}


def training(ranks=8, snapshots=20, *, extra=None, noise=0.02, seed=0, waits="backward", own=OWN):
    """Ranks that wait for each other in the phase `waits`, if any; `own` and `extra` are milliseconds a step."""
    generator = random.Random(seed)
    found = {rank: [] for rank in range(ranks)}
    for number in range(1, snapshots + 2):
        work = {}
        for rank in found:
            more = (extra or {}).get(rank, {})
            work[rank] = {
                name: max(own.get(name, 0) + more.get(name, 0), 0) * generator.gauss(1, noise)
                for name in {**own, **more}
            }
        slowest = max(sum(seconds.values()) for seconds in work.values())
        for rank, seconds in work.items():
            waiting = {waits: 30.0 + slowest - sum(seconds.values())} if waits else {}
            phases = {name: second * 0.05 for name, second in {**seconds, **waiting}.items() if name != "other"}
            wall = sum({**seconds, **waiting}.values()) * 0.05 + 0.1
            found[rank].append(record(50 * number, phases, wall=wall, samples=3200))
    return run_of_ranks(found)


ALONE = run_of([record(10, {"a": 1}, wall=2)])


def run_of_ranks(ranks, **description):
    return Run(Path("run"), {rank: [records] for rank, records in ranks.items()}, description, 0)


def named(run):
    return [(straggler.rank, "/".join(straggler.path)) for straggler in stragglers(summarize(run))]


class TestSpread:
    RUN = run_of_ranks(
        {
            0: [record(10, {"a": 10, "a/b": 4}, wall=20)],
            1: [record(10, {"a": 30, "a/b": 4}, wall=40)],
            2: [record(20, {"a": 40}, wall=60)],
        }
    )

    def test_seconds_a_step_of_the_fastest_and_of_the_slowest(self):
        phase, nested, other, wall = spreads(summarize(self.RUN))
        assert phase == Spread(1, 3, 1)
        assert nested == Spread(0, 0.4, 0)
        assert (other, wall) == (Spread(1, 1, None), Spread(2, 4, 1))

    def test_of_a_single_rank_there_is_none(self):
        assert set(spreads(summarize(ALONE))) == {None}

    def test_a_rank_without_steps_has_no_seconds_a_step(self):
        run = run_of_ranks({**{r: files[0] for r, files in self.RUN.ranks.items()}, 3: [record(0, {"a": 9}, wall=9)]})
        assert sorted(shares(summarize(run))) == [0, 1, 2]

    @given(ranks=runs, include=st.booleans())
    def test_the_mean_is_between_the_least_and_the_most(self, ranks, include):
        found = summarize(Run(Path("run"), ranks, {}, 0), include_warmup=include)
        if any(steps == 0 for steps in found.steps.values()) or len(ranks) < 2:
            return
        rows = [phase.seconds for phase in found.phases] + [found.other, found.wall]
        for seconds, spread in zip(rows, spreads(found), strict=True):
            assert spread.minimum - 1e-9 <= found.per_step(seconds) <= spread.maximum + 1e-9

    @given(ranks=runs)
    def test_what_each_rank_spends_adds_up_to_its_step(self, ranks):
        for share in shares(summarize(Run(Path("run"), ranks, {}, 0))).values():
            assert sum(share.own.values()) + share.other == pytest.approx(share.wall)


class TestTheTest:
    def test_against_the_definition(self):
        # Of four ranks one is the slowest by chance in a quarter of the blocks: here, in two of three.
        values = {rank: [float(rank)] * 8 for rank in range(4)}
        values[0][:2] = [9.0, 9.0]
        p = exceptional(values, tests=3)
        assert p[3] == pytest.approx(4 * 3 * (28 * (1 / 4) ** 6 * (3 / 4) ** 2 + 8 * (1 / 4) ** 7 * (3 / 4) + 1 / 4**8))
        assert p[0] == 1

    def test_of_eight_ranks_two_may_be_exceptions(self):
        values = {rank: [float(rank)] * 9 for rank in range(8)}
        p = exceptional(values, tests=1)
        assert p[6] == p[7] == 8 / 4**9
        assert p[5] == 1

    def test_ranks_that_are_equal_are_no_exceptions(self):
        assert set(exceptional(dict.fromkeys(range(4), [1.0] * 20), tests=1).values()) == {1.0}

    @given(st.integers(2, 9), st.integers(1, 30), st.integers(1, 9))
    def test_p_is_a_probability(self, ranks, blocks, tests):
        generator = random.Random(ranks * blocks)
        values = {rank: [generator.random() for _ in range(blocks)] for rank in range(ranks)}
        assert all(0 < p <= 1 for p in exceptional(values, tests).values())

    @pytest.mark.parametrize("ranks", [2, 3, 5, 16])
    def test_of_ranks_that_are_alike_any_is_called_slow_as_rarely_as_promised(self, ranks):
        generator = random.Random(ranks)
        called = 0
        for _ in range(200):
            columns = [[[generator.expovariate(1) for _ in range(12)] for _ in range(ranks)] for _ in range(5)]
            called += min(p for one in columns for p in exceptional(dict(enumerate(one)), tests=5).values()) < LEVEL
        # Were it 5 %, more than 20 of 200 would come once in two thousand times.
        assert called <= 20


class TestStragglers:
    @pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
    @pytest.mark.parametrize("phase", ["data", "forward", "optimizer", "augment", "other"])
    def test_one_is_found_where_it_does_not_wait(self, ranks, phase):
        run = training(ranks, extra={1: {phase: 8}})
        assert named(run) == [(1, "" if phase == "other" else phase)]

    def test_its_figures(self):
        [straggler] = stragglers(summarize(training(extra={5: {"forward": 8}}, noise=0)))
        assert (straggler.seconds, straggler.others) == (pytest.approx(0.028), pytest.approx(0.020))
        assert straggler.excess == pytest.approx(0.008)
        # In the slowest quarter in each of 20 blocks, of 8 ranks and 5 places.
        assert straggler.p == pytest.approx(8 * 5 / 4**20, abs=0)

    def test_the_wall_time_does_not_tell(self):
        spread = spreads(summarize(training(extra={5: {"forward": 8}})))[-1]
        assert spread.maximum == pytest.approx(spread.minimum)

    @pytest.mark.parametrize("ranks", [2, 3, 8])
    def test_the_faster_one_waits_and_is_not_named(self, ranks):
        # With two ranks the one is as much slower as the other is faster.
        found = named(training(ranks, extra={1: {"forward": -8}}))
        assert found == ([(0, "forward")] if ranks == 2 else [])

    @pytest.mark.parametrize("ranks", [2, 3, 8])
    @pytest.mark.parametrize("waits", ["forward", "train_step"])
    def test_nor_where_it_waits_in_another_phase(self, ranks, waits):
        own = {name: seconds for name, seconds in OWN.items() if name != waits}
        assert named(training(ranks, extra={1: {"optimizer": -2.9, "data": -1.9}}, waits=waits, own=own)) in (
            [],
            [(0, "data")] if ranks == 2 else [],
        )
        assert named(training(ranks, extra={1: {"data": 8}}, waits=waits, own=own)) == [(1, "data")]

    def test_in_backward_only_where_it_makes_the_step_longer(self):
        own = {**OWN, "backward": 30.0}
        assert named(training(extra={2: {"backward": 10}}, waits=None, own=own)) == [(2, "backward")]
        assert named(training(extra={2: {"backward": 10, "optimizer": -3, "forward": -7}}, waits=None, own=own)) == []

    def test_the_phase_in_which_it_is_slower_by_most_names_it(self):
        assert named(training(extra={3: {"data": 6, "forward": 9}})) == [(3, "forward")]

    def test_the_innermost_phase_names_it(self):
        found = {}
        for rank in range(4):
            slow = 8 if rank == 3 else 0
            seconds = {"forward": 20 + slow, "forward/blocks": 15 + slow, "backward": 38 - slow}
            found[rank] = [record(50 * number, seconds, wall=60) for number in range(1, 12)]
        assert named(run_of_ranks(found)) == [(3, "forward/blocks")]

    def test_several_are_found_the_slowest_first(self):
        run = training(16, extra={3: {"data": 6}, 7: {"forward": 9}, 9: {"forward": 8}})
        assert named(run) == [(7, "forward"), (9, "forward"), (3, "data")]

    def test_most_are_no_exception(self):
        assert named(training(8, extra={rank: {"forward": 8} for rank in range(5)})) == []

    def test_a_single_snapshot_is_not_steady(self):
        run = training(noise=0)
        run.ranks[3][0][10]["t_forward"] += 50
        run.ranks[3][0][10]["wall_sec"] += 50
        assert named(run) == []

    def test_nor_are_many_that_are_fewer_than_half(self):
        # Noise would not give a rank 19 of 40, but in most of them it is like the others.
        run = training(4, 40, noise=0)
        for snapshot in run.ranks[3][0][1:20]:
            snapshot["t_data"] += 5
            snapshot["wall_sec"] += 5
        assert named(run) == []

    def test_of_a_long_run_a_spell_counts_by_its_length_and_not_by_its_snapshots(self):
        [straggler] = stragglers(summarize(training(4, 200, extra={3: {"forward": 8}}, noise=0)))
        assert straggler.p == pytest.approx(4 * 5 / 4**40, abs=0)

    @pytest.mark.parametrize(("more", "slower"), [(2.6, False), (3.6, True)])
    def test_a_few_percent_of_the_step_are_none(self, more, slower):
        assert (named(training(extra={3: {"forward": more}}, noise=0)) != []) == slower

    @pytest.mark.parametrize(("ranks", "least"), [(2, 8), (4, 5), (8, 5), (1000, 9)])
    def test_few_snapshots_do_not_tell(self, ranks, least):
        for snapshots in (1, least - 1, least):
            run = training(ranks, snapshots, extra={1: {"forward": 20}}, noise=0)
            assert (named(run) != []) == (snapshots == least)
            assert can_tell(summarize(run)) == (snapshots == least)
            words = "too few snapshots to tell whether a rank is slower than the others: run with a smaller --every"
            assert (words in drawn(run)) == (snapshots != least)

    @pytest.mark.parametrize("ranks", [2, 4, 16])
    def test_ranks_that_are_alike_are_named_as_rarely_as_promised(self, ranks):
        called = sum(named(training(ranks, noise=0.3, seed=seed)) != [] for seed in range(60))
        # Were it 5 %, more than 9 of 60 would come once in a thousand times.
        assert called <= 9

    def test_a_rank_that_has_few_snapshots_does_not_hide_another(self):
        run = training(extra={3: {"forward": 8}})
        del run.ranks[5][0][2:]
        assert named(run) == [(3, "forward")]

    def test_one_that_stopped_later_limits_what_is_compared(self):
        run = training(extra={3: {"forward": 8}})
        del run.ranks[5][0][15:]
        assert named(run) == [(3, "forward")]

    def test_ranks_may_have_phases_of_their_own(self):
        run = training(extra={0: {"log": 9}})
        assert named(run) == [(0, "log")]

    @given(ranks=runs, include=st.booleans())
    def test_whatever_the_records_say(self, ranks, include):
        run = Run(Path("run"), ranks, {}, 0)
        found = summarize(run, include_warmup=include)
        for straggler in stragglers(found):
            assert 0 < straggler.p < LEVEL
        early, _ = stopped_early(run, found)
        assert set(early) < set(ranks) or not early

    @given(processes=st.lists(lists_of_records().filter(bool), min_size=2, max_size=4), data=st.data())
    def test_whatever_the_numbers_are(self, processes, data):
        repeated = [records * data.draw(st.integers(1, 9)) for records in processes]
        run = run_of_ranks(dict(enumerate(repeated)))
        assert "wall time" in drawn(run)
        json.loads(export.report_json(run, summarize(run)), parse_constant=pytest.fail)


class TestStoppedEarly:
    @staticmethod
    def stopped(*last, every=50, **description):
        ranks = {
            rank: [record(step, {"a": 1}, wall=2) for step in range(every, end + 1, every)]
            for rank, end in enumerate(last)
        }
        run = run_of_ranks(ranks, **description)
        return stopped_early(run, summarize(run))

    def test_with_their_last_step(self):
        assert self.stopped(500, 300, 500, 100) == ({1: 300, 3: 100}, 500)

    def test_those_that_are_behind_by_no_more_than_an_interval_did_not(self):
        assert self.stopped(500, 450, 500) == ({}, 500)
        assert self.stopped(500, 400, 500) == ({1: 400}, 500)
        assert self.stopped(500, 400, record_every_n_steps=100) == ({}, 500)

    def test_most_of_them(self):
        assert self.stopped(300, 500, 300, 300)[0] == {0: 300, 2: 300, 3: 300}

    def test_a_single_rank_did_not(self):
        assert self.stopped(500) == ({}, 500)

    def test_one_that_was_not_started_again(self):
        first = [record(step, {"a": 1}, wall=2) for step in range(50, 501, 50)]
        again = first[:3]
        run = Run(Path("run"), {0: [first, again], 1: [first, again], 2: [first]}, {}, 0)
        assert stopped_early(run, summarize(run)) == ({2: 500}, 150)

    def test_a_process_that_a_rank_alone_has_is_no_measure(self):
        first = [record(step, {"a": 1}, wall=2) for step in range(50, 501, 50)]
        run = Run(Path("run"), {0: [first, first * 2], 1: [first], 2: [first]}, {}, 0)
        assert stopped_early(run, summarize(run)) == ({}, 500)


class TestReport:
    RUN = training(4, extra={2: {"forward": 8}}, noise=0)

    def test_the_table_has_the_least_the_most_and_the_slowest(self):
        assert drawn(self.RUN).startswith(
            "run\n"
            "\n"
            "phase      self ms/step   share                            mean ms/step    sd    min    max  slowest\n"
            "data               2.00    3.1%  █▍                                2.00  0.00   2.00   2.00\n"
            "forward           22.00   33.8%  ██████████████▋                  22.00  3.49  20.00  28.00   rank 2\n"
            "optimizer          3.00    4.6%  ██                                3.00  0.00   3.00   3.00\n"
            "backward          36.00   55.4%  ████████████████████████         36.00  3.49  30.00  38.00   rank 0\n"
            "other              2.00    3.1%  █▍                                2.00         2.00   2.00\n"
            "wall time         65.00  100.0%                                   65.00  0.00  65.00  65.00\n"
            "\n"
            "rank 2 is slower than the others: "
        )
        assert drawn(self.RUN).endswith(
            "\nmin, max: the least and the most of the ranks' means; slowest: the rank that has the most\n"
        )

    def test_a_single_rank_has_no_such_columns(self):
        assert "slowest" not in drawn(ALONE)

    def test_nor_have_ranks_without_steps(self):
        assert "slowest" not in drawn(run_of_ranks({0: [record(0, {}, wall=1)], 1: [record(0, {}, wall=1)]}))

    @pytest.mark.parametrize(
        ("columns", "last"), [("120", "slowest"), ("70", "slowest"), ("54", "max"), ("46", "step")]
    )
    def test_where_there_is_no_room_the_figures_of_the_ranks_go_first(self, monkeypatch, columns, last):
        monkeypatch.setenv("COLUMNS", columns)
        assert drawn(self.RUN).splitlines()[2].split()[-1].endswith(last)

    def test_a_straggler_is_named_with_its_evidence(self):
        assert (
            "\n\nrank 2 is slower than the others: 28.00 ms a step in forward, where the median of the others is 20.00 "
            "(p < 0.001)\n\n"
        ) in drawn(self.RUN)

    def test_in_what_no_phase_covers(self):
        run = training(4, extra={2: {"other": 8}}, noise=0)
        words = "10.00 ms a step in code that no phase covers, where the median of the others is 2.00 (p < 0.001)"
        assert f"rank 2 is slower than the others: {words}\n" in drawn(run)

    def test_of_many_a_few_are_named(self):
        run = training(64, extra={rank: {"forward": 8 + rank / 10} for rank in range(10)}, noise=0)
        assert (
            "\n10 ranks are slower than the others: rank 9: 28.90 ms a step in forward, where the median of the others "
            "is 20.00 (p < 0.001); rank 8: 28.80 ms"
        ) in drawn(run)
        assert re.search(r"; rank 7: [^;]*; and 7 more$", drawn(run), re.MULTILINE)

    def test_who_stopped_early_is_named(self):
        run = training(4, noise=0)
        del run.ranks[1][0][5:]
        assert "\nrank 1 stopped early, at step 250, and the last at step 1,050\n" in drawn(run)
        for rank in (1, 2):
            del run.ranks[rank][0][4:]
        assert "\n2 ranks stopped early: rank 1 at step 200, rank 2 at step 200; the last at step 1,050\n" in drawn(run)

    def test_of_many_that_did_a_few_are_named(self):
        run = training(64, noise=0)
        for rank in range(1, 9):
            del run.ranks[rank][0][rank:]
        assert (
            "\n8 ranks stopped early: rank 1 at step 50, rank 2 at step 100, rank 3 at step 150, and 5 more; "
            "the last at step 1,050\n"
        ) in drawn(run)

    def test_each_sentence_is_a_paragraph_of_markdown(self):
        run = training(4, extra={2: {"forward": 8}}, noise=0)
        del run.ranks[1][0][15:]
        assert re.search(r"\n\nrank 2 is slower [^\n]*\n\nrank 1 stopped early[^\n]*\n\n- ", markdown(run))

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_a_phase_in_a_sentence_is_no_markup(self, name):
        run = training(4, extra={2: {name: 8}}, noise=0)
        [sentence] = [line for line in markdown(run).splitlines() if line.startswith("rank 2 is slower")]
        assert "<" not in re.sub(r"(`+).*\1", "", sentence.replace("p < 0.001", ""))
        assert sentence in drawn(run, Stream())

    def test_json(self):
        found = json.loads(export.report_json(self.RUN, summarize(self.RUN)))
        [forward] = [phase for phase in found["phases"] if phase["path"] == ["forward"]]
        assert (forward["sec_per_step_min"], forward["sec_per_step_max"]) == (pytest.approx(0.02), pytest.approx(0.028))
        assert (forward["slowest_rank"], found["wall_slowest_rank"], found["other_slowest_rank"]) == (2, None, None)
        assert found["wall_sec_per_step_max"] == pytest.approx(0.065)
        assert found["other_sec_per_step_min"] == pytest.approx(0.002)
        assert found["stragglers"] == [
            {
                "rank": 2,
                "path": ["forward"],
                "self_sec_per_step": pytest.approx(0.028),
                "others_self_sec_per_step": pytest.approx(0.020),
                "p": pytest.approx(4 * 5 / 4**20, abs=0),
            }
        ]

    def test_json_of_who_stopped_early(self):
        run = training(4, noise=0)
        del run.ranks[1][0][5:]
        found = json.loads(export.report_json(run, summarize(run)))
        assert found["stopped_early"] == [{"rank": 1, "step": 250}]

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(export.report_csv(summarize(self.RUN)))))
        found = {row["phase"] or row["kind"]: row for row in rows}
        assert found["forward"]["slowest_rank"] == "2"
        assert float(found["forward"]["sec_per_step_max"]) == pytest.approx(0.028)
        assert float(found["backward"]["sec_per_step_min"]) == pytest.approx(0.030)
        assert float(found["wall"]["sec_per_step_min"]) == pytest.approx(0.065)
        assert found["wall"]["slowest_rank"] == ""
        [row] = [row for row in csv.DictReader(io.StringIO(export.report_csv(summarize(ALONE)))) if row["phase"]]
        assert (row["sec_per_step_min"], row["sec_per_step_max"], row["slowest_rank"]) == ("", "", "")
