"""Figures for machines: everything in a report or a comparison as JSON, and its rows as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from typing import TYPE_CHECKING

from mlvbench.report.ranks import spreads, stopped_early, stragglers
from mlvbench.report.text import diagnosis_of, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlvbench.records.run import Run
    from mlvbench.report.compare import Comparison, Difference
    from mlvbench.report.ranks import Spread
    from mlvbench.report.summary import Summary

# What makes of a cell a formula in a spreadsheet. Tabs and line ends are escapes by then.
_FORMULA = ("=", "+", "-", "@")


def report_json(run: Run, summary: Summary) -> str:
    """Returns everything in the report as JSON, unrounded, in seconds, samples and units of 1e9 bytes.

    Keys, of which later versions may have more: `format`, 1. `path`, `command`, `device`, `timing`, `torn_lines`: of
    the run, null where not known. `ranks`, `steps` (summed over ranks), `snapshots`, `warm_up_snapshots`,
    `warm_up_included`. `wall_sec`, `accounted_sec`, `other_sec`, `overlap_sec`: sums over ranks, as is all that
    follows but for rates. `wall_sec_per_step`, `wall_sec_per_step_sd`. `samples`, `samples_per_wall_sec`,
    `samples_per_accounted_sec`, `memory_peak_gb`, `diagnosis` (null or a sentence). `phases`, each with `path` (an
    array of names), `self_sec`, `self_sec_per_step`, `self_share` (of the wall time, from 0 to 1), `sec` (inclusive),
    `sec_per_step` and its standard deviation over the snapshots, `sec_per_step_sd`, and of several ranks their least
    and most, `sec_per_step_min` and `sec_per_step_max`, and the `slowest_rank`; the same of `other` and the whole step
    with `other_` and `wall_` in front. `stragglers`, the slowest first, each with `rank`, `path` (empty for what no
    phase covers), `self_sec_per_step`, the median of the others, `others_self_sec_per_step`, and `p`.
    `stopped_early`, each with `rank` and its last `step`. What cannot be computed, or is not there, is null.
    """
    *between, between_other, between_wall = spreads(summary)
    return _json(
        {
            "format": 1,
            "path": os.fspath(run.path),
            "command": run.description.get("command"),
            "device": run.description.get("device"),
            "timing": run.description.get("timing"),
            "torn_lines": run.torn,
            "ranks": len(summary.steps),
            "steps": sum(summary.steps.values()),
            "snapshots": summary.snapshots,
            "warm_up_snapshots": summary.warm_up,
            "warm_up_included": summary.warm_up_counted,
            "wall_sec": summary.wall,
            "accounted_sec": summary.accounted,
            "other_sec": summary.other,
            "overlap_sec": summary.overlap,
            "wall_sec_per_step": summary.per_step(summary.wall),
            "wall_sec_per_step_sd": summary.wall_deviation,
            "samples": summary.samples,
            "samples_per_wall_sec": summary.samples_per_wall,
            "samples_per_accounted_sec": summary.samples_per_accounted,
            "memory_peak_gb": summary.memory_peak,
            "diagnosis": diagnosis_of(run, summary),
            **_spread(between_other, "other_"),
            **_spread(between_wall, "wall_"),
            "stragglers": [
                {
                    "rank": straggler.rank,
                    "path": list(straggler.path),
                    "self_sec_per_step": straggler.seconds,
                    "others_self_sec_per_step": straggler.others,
                    "p": straggler.p,
                }
                for straggler in stragglers(summary)
            ],
            "stopped_early": [{"rank": rank, "step": step} for rank, step in stopped_early(run, summary)[0].items()],
            "phases": [
                {
                    "path": list(phase.path),
                    "self_sec": phase.self_seconds,
                    "self_sec_per_step": summary.per_step(phase.self_seconds),
                    "self_share": summary.share(phase.self_seconds),
                    "sec": phase.seconds,
                    "sec_per_step": summary.per_step(phase.seconds),
                    "sec_per_step_sd": phase.deviation,
                    **_spread(ranks),
                }
                for phase, ranks in zip(summary.phases, between, strict=True)
            ],
        }
    )


def _spread(ranks: Spread | None, what: str = "") -> dict[str, float | None]:
    return {
        f"{what}sec_per_step_min": None if ranks is None else ranks.minimum,
        f"{what}sec_per_step_max": None if ranks is None else ranks.maximum,
        f"{what}slowest_rank": None if ranks is None else ranks.slowest,
    }


def report_csv(summary: Summary) -> str:
    """Returns a row for each phase, one for `other` and one for the wall time, told apart by `kind`; in seconds.

    The last three columns, of what differs between ranks, are empty where there is one.
    """
    phases = [("phase", "/".join(p.path), p.self_seconds, p.seconds, p.deviation) for p in summary.phases]
    rest = [
        ("other", "", summary.other, summary.other, None),
        ("wall", "", summary.wall, summary.wall, summary.wall_deviation),
    ]
    header = ["kind", "phase", "self_sec_per_step", "self_share", "sec_per_step", "sec_per_step_sd", "self_sec", "sec"]
    rows = [
        [kind, name, summary.per_step(own), summary.share(own), summary.per_step(seconds), deviation, own, seconds]
        for kind, name, own, seconds, deviation in [*phases, *rest]
    ]
    between = [_spread(ranks) for ranks in spreads(summary)]
    return _csv([*header, *between[0]], [[*row, *more.values()] for row, more in zip(rows, between, strict=True)])


def comparison_json(before: Run, after: Run, comparison: Comparison) -> str:
    """Returns everything in the comparison as JSON, unrounded, in seconds a step.

    Keys, of which later versions may have more: `format`, 1. `before` and `after`, each with `path`, `command`,
    `blocks` (of consecutive snapshots, as the test had them), `samples_per_wall_sec`, `samples_per_step`. `wall`,
    `other`, and in `phases` (with its `path`, an array of names) each phase: `before_sec_per_step`,
    `after_sec_per_step`, `ratio`, `p`, `verdict` ("slower", "faster", "within noise", "too few snapshots", "new",
    "gone"). What there is not is null.
    """
    sides = [
        {
            "path": os.fspath(run.path),
            "command": run.description.get("command"),
            "blocks": comparison.blocks[side],
            "samples_per_wall_sec": comparison.samples_per_wall[side],
            "samples_per_step": comparison.samples_per_step[side],
        }
        for side, run in enumerate((before, after))
    ]
    return _json(
        {
            "format": 1,
            "before": sides[0],
            "after": sides[1],
            "wall": _difference(comparison.wall),
            "other": _difference(comparison.other),
            "phases": [{"path": list(phase.path), **_difference(phase)} for phase in comparison.phases],
        }
    )


def comparison_csv(comparison: Comparison) -> str:
    """Returns a row for each phase, one for `other`, one for the wall time, told apart by `kind`; in seconds a step."""
    rows = [("phase", "/".join(phase.path), phase) for phase in comparison.phases]
    rows += [("other", "", comparison.other), ("wall", "", comparison.wall)]
    header = ["kind", "phase", "before_sec_per_step", "after_sec_per_step", "ratio", "p", "verdict"]
    return _csv(
        header, [[kind, name, row.before, row.after, row.ratio, row.p, row.verdict] for kind, name, row in rows]
    )


def _difference(row: Difference) -> dict[str, object]:
    return {
        "before_sec_per_step": row.before,
        "after_sec_per_step": row.after,
        "ratio": row.ratio,
        "p": row.p,
        "verdict": row.verdict,
    }


def _json(value: object) -> str:
    return json.dumps(_finite(value), indent=2) + "\n"


def _finite(value: object) -> object:
    """The value with null for what JSON has no word for: sums of huge numbers are infinite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A name that a spreadsheet would take for a formula gets a quote in front; JSON has the names as they are."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for kind, name, *numbers in rows:
        shown = printable(str(name))
        writer.writerow([kind, f"'{shown}" if shown.startswith(_FORMULA) else shown, *numbers])
    return file.getvalue()
