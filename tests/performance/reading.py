"""How long `mlvbench report` takes to start, and to read a long run: `python tests/performance/reading.py`.

It prints both beside their targets, and how time and memory grow with the ranks and their snapshots. It does not judge:
a busy machine misses a target and breaks nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from arguments import positive

from mlvbench.records.run import describe_run
from mlvbench.records.schema import make_record

PHASES = ("data", "forward", "forward/blocks", "forward/head", "loss", "backward", "optimizer")
STARTS = 7


def write_run(directory: Path, files: int, records: int) -> int:
    """Writes a run as so many ranks would, and returns its bytes."""
    describe_run(directory, {"command": ["train.py"], "record_every_n_steps": 50, "device": "cuda:0"})
    lines = [json.dumps(record(50 * number)) for number in range(1, records + 1)]
    content = "".join(f"{line}\n" for line in lines)
    for rank in range(files):
        (directory / f"{rank}.jsonl").write_text(content)
    return files * len(content)


def record(step: int) -> dict[str, float]:
    """Returns a record of 7 places of phases, in as many digits as real ones have."""
    seconds = {name: (index + 1) / 7 + step / 1e7 for index, name in enumerate(PHASES)}
    accounted = sum(seconds[name] for name in PHASES if "/" not in name)
    return make_record(step, seconds, samples=3200, accounted=accounted, wall=accounted * 1.1, memory=(1.25, 2.5))


def timed(*arguments: str | Path) -> tuple[float, float]:
    """Runs Python in a new process and returns its seconds, and the bytes of memory that it had at most."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    # Kilobytes, or bytes on a Mac.
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def starting(directory: Path) -> tuple[float, float]:
    """Returns the median seconds of a report on a short run, and of an interpreter that does nothing."""
    write_run(directory, files=1, records=10)
    turns = [(timed("-m", "mlvbench", "report", directory)[0], timed("-c", "")[0]) for _ in range(STARTS)]
    report, bare = zip(*turns, strict=True)
    return median(report), median(bare)


def reading(folder: Path, files: int, records: int) -> tuple[float, float, float]:
    """Returns the seconds of a report on a run of so many ranks, its memory, and what the files have, in bytes."""
    directory = folder / f"{files}-{records}"
    size = write_run(directory, files, records)
    seconds, memory = timed("-m", "mlvbench", "report", directory)
    shutil.rmtree(directory)
    return seconds, memory, size


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="How long `mlvbench report` takes.")
    parser.add_argument("--files", type=positive, default=1000, help="files of the long run, one a rank")
    parser.add_argument("--records", type=positive, default=1000, help="records of each")
    options = parser.parse_args()

    tenths = [max(options.files // 10, 1), max(options.records // 10, 1)]
    sizes = [(1, options.records), (tenths[0], tenths[1]), (tenths[0], options.records), (options.files, tenths[1])]
    with tempfile.TemporaryDirectory() as folder:
        report, bare = starting(Path(folder, "short"))
        found = {size: reading(Path(folder), *size) for size in [*sizes, (options.files, options.records)]}
    seconds, memory, size = found[options.files, options.records]
    parts = [name for name in ("rich", "msgspec") if find_spec(name)]
    print(f"{'mlvbench report':<44}{'target':>9}{'measured':>10}")
    print(f"{'starts, on a run of 10 records':<44}{'0.30 s':>9}{report:>8.2f} s")
    print(f"{'of which the bare interpreter':<44}{'':>9}{bare:>8.2f} s")
    print(f"{f'{options.files:,} files of {options.records:,} records':<44}{'10.00 s':>9}{seconds:>8.2f} s")
    print(f"{'memory that it takes for them':<44}{'2,000 MB':>9}{memory / 1e6:>7,.0f} MB")
    print(f"\nThey have {size / 1e6:,.0f} MB. With {' and '.join(parts) or 'neither extra'}.")
    print("\n| ranks | snapshots of each | s | MB of memory |\n| ---: | ---: | ---: | ---: |")
    for (files, records), (seconds, memory, _) in found.items():
        print(f"| {files:,} | {records:,} | {seconds:.2f} | {memory / 1e6:,.0f} |")


if __name__ == "__main__":
    main()
