"""The benchmark still runs and measures all that it names; what it measures is not judged here."""

import sys

import overhead


def test_benchmark_of_overhead_prints_its_tables(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--rounds", "3"])
    for size, few in (("SNAPSHOT_ROUNDS", 2), ("GROWTH_SNAPSHOTS", 20), ("GROWTH_PHASES", 200)):
        monkeypatch.setattr(overhead, size, few)
    monkeypatch.setattr(overhead, "HISTORY_LENGTHS", (0, 10))
    overhead.main()
    printed = capsys.readouterr()
    assert printed.err == ""
    for heading in ("cost of a call", "cost of a snapshot", "target"):
        assert f"\n{heading}" in printed.out
