"""The benchmark of the two timings still runs; what it measures is not judged here."""

import sys

import device_cost


def test_benchmark_of_timings_prints_each_way_beside_the_target(monkeypatch, capsys):
    sizes = ["--rounds", "1", "--steps", "2", "--batch", "2"]
    monkeypatch.setattr(sys, "argv", ["device_cost.py", "--device", "cpu", "--tiny", "--eager", *sizes])
    device_cost.main()
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line.split()[:2] for line in printed.out.splitlines() if line.startswith("eager")] == [
        ["eager", "none"], ["eager", "events"], ["eager", "synchronize"],
    ]  # fmt: skip
    assert "target: longer by 0.3% at most with events" in printed.out
