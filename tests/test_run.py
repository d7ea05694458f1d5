"""`mlvbench run`, from outside: the script does what it does bare, and its records and the report are there."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from mlvbench.records.run import read_run
from mlvbench.records.schema import make_record
from mlvbench.run.process import _line

# The optimizer adds its parameters itself: where torch does, it imports all of Dynamo, which takes as long as torch.
TRAIN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

class Net(nn.Sequential):
    def encode(self, x):
        return super().forward(x)
    def forward(self, x):
        return self.encode(x)

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    def add_param_group(self, group):
        self.param_groups.append(group)
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.1 * parameter.grad

def train(steps, workers=0, optimizer=Plain):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(60, 8), torch.randint(3, (60,)))
    loader = DataLoader(data, 16, shuffle=True, num_workers=workers)
    model = Net(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = optimizer(model.parameters())
    done = 0
    while done < steps:
        for image, label in loader:
            loss = nn.functional.cross_entropy(model(image), label)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
    return loss.item().hex()
"""


@pytest.fixture(autouse=True, scope="module")
def no_run_around():
    """What these tests start is no part of a run that the tests are part of."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MLVBENCH_") or name in ("RANK", "LOCAL_RANK")]:
            patch.delenv(name)
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a script that trains."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN + "if __name__ == '__main__':\n    print(train(*map(int, sys.argv[1:])))\n")
    return tmp_path


class Trained(NamedTuple):
    """A run that several tests read: `mlvbench run --every 10 train.py 25` in `folder`, and the same bare."""

    folder: Path
    bare: subprocess.CompletedProcess
    profiled: subprocess.CompletedProcess


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAIN + "print(train(int(sys.argv[1]), optimizer=torch.optim.Adam))\n")
    run = profiled("--every", "10", "train.py", "25", cwd=folder)
    return Trained(folder, bare("train.py", "25", cwd=folder), run)


def bare(*command, **options):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, **options)


def profiled(*command, **options):
    return bare("-m", "mlvbench", "run", *command, **options)


def starts(*command, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "mlvbench", "run", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **options,
    )  # fmt: skip


def theirs(run):
    """What a run left, but for our lines."""
    lines = run.stderr.splitlines(keepends=True)
    ours = ("mlvbench: ", "mlvbench report ")
    return run.returncode, run.stdout, "".join(line for line in lines if not line.startswith(ours))


def the_run(folder):
    [run] = (path for path in Path(folder, "mlvbench-runs").iterdir() if path.is_dir())
    return run


def wait_for(condition, process, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The script does not notice

SEES = """
import atexit, json, os, sys
import __main__
atexit.register(print, "at exit")
sys.stdout.write(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path, "cwd": os.getcwd(),
    "package": __package__, "spec": getattr(__spec__, "name", None), "main": sorted(vars(__main__)),
    "flags": str(sys.flags), "warnings": sys.warnoptions, "input": input(), "executable": sys.executable,
}) + "\\n")
"""


@pytest.mark.parametrize(
    "command",
    [
        ["sees.py", "--every", "3", "--quiet", "-m", "--", "a b"],
        ["./package/sees.py"],
        ["-m", "package.sees", "--output", "x"],
        ["package"],
    ],
)
def test_script_sees_what_it_sees_bare(folder, command):
    for place in ("sees.py", "package/sees.py", "package/__main__.py"):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_text(SEES)
    without = bare("-W", "once", *command, input="typed\n")
    with_us = bare("-W", "once", "-m", "mlvbench", "run", *command, input="typed\n")
    assert without.returncode == 0
    assert theirs(with_us) == theirs(without)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a text')",
        "import os; os._exit(4)",
        "def f():\n    raise ValueError('theirs')\nf()",
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nfinally:\n    print('finally')",
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('caught')",
        "import signal; signal.raise_signal(signal.SIGTERM)",
        "syntax error",
    ],
)
def test_script_ends_as_it_ends_bare(folder, program):
    Path("ends.py").write_text(program)
    assert theirs(profiled("ends.py")) == theirs(bare("ends.py"))


def test_processes_pickles_and_the_debugger_work_as_they_do_bare(folder):
    Path("more.py").write_text("""
import multiprocessing, pickle, sys
class Thing: pass
def work(number): return number + 1
if __name__ == "__main__":
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, pickle.dumps(Thing()))
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(work, [1]))
    breakpoint()
""")
    typed = "p Thing.__module__\nwhere\nc\n"
    without, with_us = bare("more.py", input=typed), profiled("more.py", input=typed)
    assert "__main__" in without.stdout
    assert theirs(with_us) == theirs(without)
    debugger = ["-m", "pdb", "more.py"]
    assert theirs(profiled(*debugger, input="n\nq\n")) == theirs(bare(*debugger, input="n\nq\n"))


@pytest.mark.parametrize("hidden", ["SEEN = True", "raise ValueError('theirs')", "import nothing_here"])
def test_sitecustomize_that_ours_hides_runs_too(folder, hidden):
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(hidden)
    Path("train.py").write_text("import sys; print(getattr(sys.modules.get('sitecustomize'), 'SEEN', None))")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    without, with_us = bare("train.py", env=environment), profiled("train.py", env=environment)
    assert theirs(with_us)[:2] == theirs(without)[:2]
    assert ("theirs" in with_us.stderr) == ("theirs" in without.stderr)


def test_module_of_the_script_named_like_a_standard_one_is_the_scripts(folder):
    Path("queue.py").write_text("print('mine')")
    Path("own.py").write_text("import queue")
    assert theirs(profiled("own.py"))[0] == theirs(bare("own.py"))[0]


# Records and report


class TestARun:
    def test_script_prints_bit_for_bit_what_it_prints_bare(self, trained):
        assert (trained.profiled.returncode, trained.profiled.stdout) == (0, trained.bare.stdout)

    def test_its_directory_has_the_records_and_what_was_run_and_is_not_for_git(self, trained):
        directory = the_run(trained.folder)
        assert {path.name for path in directory.iterdir()} == {"0.jsonl", "run.json"}
        assert (directory.parent / ".gitignore").read_text() == "*\n"
        description = json.loads((directory / "run.json").read_text())
        assert (description["command"], description["record_every_n_steps"]) == (["train.py", "25"], 10)

    def test_records_are_of_every_tenth_step_and_of_the_rest(self, trained):
        [records] = read_run(the_run(trained.folder)).ranks[0]
        assert [record["step"] for record in records] == [10, 20, 28]
        assert sum(record["samples"] for record in records) == 7 * 60
        assert {"t_data", "t_forward", "t_backward", "t_optimizer"} <= records[0].keys()

    def test_a_line_is_printed_for_each_record(self, trained):
        lines = trained.profiled.stderr.splitlines()
        assert re.fullmatch(r"mlvbench: step 10  [\d,]+ samples/s  \w+ \d+%  \w+ \d+%", lines[0])
        assert [line.split()[2] for line in lines[:3]] == ["10", "20", "28"]

    def test_last_line_prints_the_report_again(self, trained):
        printed = trained.profiled.stderr
        last = printed.splitlines()[-1]
        assert last == f"mlvbench report {the_run(trained.folder).relative_to(trained.folder)}"
        again = bare("-m", *last.split(), cwd=trained.folder)
        assert again.returncode == 0
        assert "optimizer" in again.stdout
        assert again.stdout.strip() in printed


def test_line_has_the_two_phases_of_largest_self_time_and_the_memory():
    seconds = {"data": 1, "optimizer": 6, "optimizer/forward": 4, "loss": 0.5}
    record = make_record(1500, seconds, samples=16000, accounted=8, wall=10.0, memory=(1.0, 2.25))
    assert _line(record) == "step 1,500  1,600 samples/s  optimizer/forward 40%  optimizer 20%  2.2 GB"


def test_quiet_run_prints_its_last_line_alone_and_writes_where_output_says(folder):
    run = profiled("--quiet", "--output", "a b", "train.py", "5", "2")
    assert run.stderr == "mlvbench report 'a b'\n"
    assert {path.name for path in Path("a b").iterdir()} == {"0.jsonl", "run.json"}, "data workers leave nothing"
    assert not Path("mlvbench-runs").exists()
    assert profiled("--output", "a b", "train.py", "5").returncode == 2, "nothing is mixed into it"


def test_data_workers_that_call_modules_do_not_count_as_trainings(folder):
    Path("transforms.py").write_text(
        TRAIN
        + """
class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = nn.Linear(8, 8)
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        return self.transform(torch.ones(8)).detach(), 0

def main():
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for image, label in DataLoader(Images(), 100, num_workers=2):
        nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
if __name__ == "__main__":
    main()
"""
    )
    run = profiled("--every", "4", "transforms.py")
    assert [path.name for path in the_run(folder).glob("*.jsonl")] == ["0.jsonl"]
    assert [line.split()[2] for line in run.stderr.splitlines() if " step " in line] == ["4", "8", "12"]
    [records] = read_run(the_run(folder)).ranks[0]
    assert sum(record["samples"] for record in records) == 1200


def test_nothing_of_ours_goes_where_a_script_has_redirected_stderr(folder):
    Path("redirects.py").write_text(
        TRAIN
        + """
import contextlib, io, subprocess
with contextlib.redirect_stderr(io.StringIO()) as caught:
    train(4)
print(repr(caught.getvalue()))
child = [sys.executable, "-c", "import torch; torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()"]
print(subprocess.run(child, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout)
class Tee:
    def write(self, text):
        sys.__stderr__.write(text)
    def flush(self):
        pass
sys.stderr = Tee()
"""
    )
    run = profiled("--every", "4", "redirects.py")
    assert run.stdout == "''\nb''\n"
    assert " step 4 " in run.stderr
    assert run.stderr.splitlines()[-1].startswith("mlvbench report ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-"])
def test_script_trains_with_a_standard_stream_closed(folder, closed):
    command = f"{sys.executable} -m mlvbench run --quiet train.py 4 {closed}"
    assert subprocess.run(command, shell=True, capture_output=True).returncode == 0
    assert len(read_run(the_run(folder)).ranks[0][0]) == 1


def test_command_gets_the_default_signal_of_a_broken_pipe(folder):
    Path("signals.sh").write_text("yes | head -1")
    assert profiled("--quiet", "--", "sh", "signals.sh").stderr == ""


def test_module_of_the_script_named_like_one_that_we_use_is_not_run_by_us(folder):
    for name in ("rich", "msgspec", "tqdm"):
        Path(f"{name}.py").write_text("print('mine')")
    run = profiled("train.py", "4")
    assert run.stdout == bare("train.py", "4").stdout
    assert run.stderr.splitlines()[-1].startswith("mlvbench report ")


def test_run_inside_a_run_has_a_directory_of_its_own(folder):
    Path("outer.py").write_text(
        TRAIN
        + """
import subprocess
train(4)
subprocess.run([sys.executable, "-m", "mlvbench", "run", "train.py", "4"], check=True)
"""
    )
    run = profiled("outer.py")
    assert run.returncode == 0, run.stderr
    names = sorted(path.name.partition("-")[0] for path in Path("mlvbench-runs").glob("*-*"))
    assert names == ["outer", "train"]


def test_last_line_has_the_absolute_path_where_the_script_has_changed_its_directory(folder):
    Path("elsewhere.py").write_text(TRAIN + "import os\ntrain(3)\nos.mkdir('sub')\nos.chdir('sub')\n")
    run = profiled("elsewhere.py")
    assert run.stderr.splitlines()[-1] == f"mlvbench report {the_run(folder)}"


LAYERS = """
def helper():
    return 1

class Layer:
    def call(self):
        return helper()
"""


def test_phase_options_are_timed_and_those_never_entered_are_told(folder):
    Path("layers.py").write_text(LAYERS)
    Path("mine.py").write_text(
        "from layers import Layer\nimport layers\n" + TRAIN + "train(3)\nLayer().call()\nlayers.helper()\n"
    )
    options = [
        "inner=layers:Layer.call", "helper=layers:helper", "encode=mine:Net.encode", "linear=torch.nn:Linear.forward",
        "never=layers:Layer.__init_subclass__", "typo=layers:Layer.cal", "unused=wave:Wave_read.close",
    ]  # fmt: skip
    run = profiled("--every", "1", *(f"--phase={option}" for option in options), "mine.py")
    assert run.returncode == 0
    [records] = read_run(the_run(folder)).ranks[0]
    keys = {key for record in records for key in record}
    assert {"t_inner", "t_inner/helper", "t_helper", "t_forward/encode", "t_forward/encode/linear"} <= keys
    said = [line for line in run.stderr.splitlines() if "typo" in line or "unused" in line or "never" in line]
    assert said[0].startswith("mlvbench: --phase typo=layers:Layer.cal: ")
    assert "did you mean 'call'?" in said[0]
    assert len(said) == 3
    assert said[1].startswith("mlvbench: --phase never=layers:Layer.__init_subclass__: never entered: no call of ")
    assert said[2] == "mlvbench: --phase unused=wave:Wave_read.close: never entered: wave was never imported"


def test_phase_options_of_a_module_that_imports_torch_are_timed(folder):
    Path("layers.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def encode(self, x):\n        return self(x)\n"
        "def helper(x):\n    return x\n"
    )
    Path("mine.py").write_text(
        "from layers import Net, helper\nimport torch\nnet = Net(2, 2)\n"
        "for _ in range(2):\n    net.encode(helper(torch.ones(1, 2))).sum().backward()\n"
    )
    profiled("--phase=encode=layers:Net.encode", "--phase=helper=layers:helper", "mine.py")
    [[record]] = read_run(the_run(folder)).ranks[0]
    assert {"t_encode", "t_encode/forward"} <= record.keys()


def test_phase_name_with_an_escape_prints_harmlessly(folder):
    name = "\x1b[31mred\nline"
    phases = [f"--phase={name}=train:Net.encode", f"--phase={name}2=train:Net.nothing"]
    run = profiled("--every", "4", *phases, "train.py", "8")
    assert "\x1b" not in run.stderr
    assert r"\x1b[31mred\nline" in run.stderr
    assert [line.split()[2] for line in run.stderr.splitlines() if " step " in line] == ["4", "8"]


def test_command_longer_than_an_environment_variable_runs(folder):
    Path("long.py").write_text("import sys; print(len(sys.argv))")
    assert profiled("long.py", *["12345678"] * 30000).stdout == "30001\n"


def test_directory_that_was_there_stays_without_records_and_a_new_one_goes(folder):
    Path("mine").mkdir()
    Path("idle.py").write_text("")
    assert "nothing was recorded" in profiled("--output", "mine", "idle.py").stderr
    assert Path("mine").is_dir()
    profiled("--output", "ours", "idle.py")
    assert not Path("ours").exists()


def test_script_may_clear_its_environment(folder):
    Path("clears.py").write_text("import os\nos.environ.clear()\n")
    assert "Traceback" not in profiled("clears.py").stderr


def test_script_that_never_trains_leaves_no_run_and_is_told_why(folder):
    Path("idle.py").write_text("print('done')")
    run = profiled("idle.py")
    assert run.stdout == "done\n"
    assert "nothing was recorded: this process did not import torch" in run.stderr
    Path("raises.py").write_text("import torch\n1 / 0\n")
    assert profiled("raises.py").stderr.endswith(
        "ZeroDivisionError: division by zero\nmlvbench: nothing was recorded\n"
    )
    assert [path.name for path in Path("mlvbench-runs").iterdir()] == [".gitignore"]
    Path("infers.py").write_text("import torch\nwith torch.no_grad():\n    torch.nn.Linear(1, 1)(torch.ones(1, 1))\n")
    run = profiled("infers.py")
    assert "no training was seen: data, forward, loss, backward and optimizer were never reached" in run.stderr
    assert "inference" in run.stderr


def test_error_of_the_script_prints_as_it_does_bare_and_earlier_steps_are_recorded(folder):
    Path("fails.py").write_text(
        TRAIN
        + """
train(4)
class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("theirs")
nn.Sequential(Fails())(torch.ones(1))
"""
    )
    with_us, without = profiled("--quiet", "fails.py"), bare("fails.py")
    if sys.version_info >= (3, 11):
        assert theirs(with_us) == theirs(without)
    assert with_us.returncode == 1
    assert read_run(the_run(folder)).ranks[0][0][-1]["step"] == 4


def records_in(folder):
    return sum(path.read_bytes().count(b"\n") for path in Path(folder).glob("mlvbench-runs/*/*.jsonl"))


def test_control_c_ends_the_script_as_it_does_bare_and_the_report_is_named(folder):
    Path("long.py").write_text(TRAIN + "try:\n    train(10**9)\nfinally:\n    print('finally')\n")
    process = starts("--every", "10", "long.py")
    wait_for(lambda: records_in(folder) >= 2, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGINT, "finally\n")
    assert err.count("KeyboardInterrupt") == 1
    assert err.splitlines()[-1] == f"mlvbench report {the_run(folder).relative_to(folder)}"


def test_run_that_is_killed_leaves_whole_records_of_every_step(folder):
    Path("long.py").write_text(TRAIN + "train(10**9)\n")
    process = starts("--every", "1", "long.py")
    wait_for(lambda: records_in(folder) >= 20, process)
    process.kill()
    process.communicate()
    [records] = read_run(the_run(folder)).ranks[0]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))


def test_full_disk_does_not_stop_the_training(folder):
    Path("full.py").write_text(
        TRAIN
        + """
import os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
print(train(40))
"""
    )
    run = profiled("--every", "1", "full.py")
    assert run.stdout == bare("train.py", "40").stdout
    assert run.stderr.count("no more records are written") == 1
    [records] = read_run(the_run(folder)).ranks[0]
    assert 1 < len(records) < 40


def test_line_does_not_break_a_progress_bar(folder):
    Path("bars.py").write_text(
        TRAIN
        + """
from tqdm import tqdm
for _ in tqdm(range(3), file=sys.stderr, mininterval=0):
    train(4)
"""
    )
    run = profiled("--every", "4", "bars.py")
    lines = re.split(r"[\r\n]", run.stderr)
    assert [line.split()[2] for line in lines if line.startswith("mlvbench: step")] == ["4", "8", "12"]


@pytest.mark.parametrize(
    "job",
    [{"TORCHELASTIC_RUN_ID": "a/7"}, {"SLURM_JOB_ID": "a", "SLURM_STEP_ID": "7", "SLURM_NTASKS": "2"}],
)
def test_ranks_of_a_job_share_a_directory(folder, monkeypatch, job):
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        Path("idle.py").write_text("import os; open(os.environ['MLVBENCH_RUN_DIR'] + f'/{os.environ[\"RANK\"]}', 'x')")
        profiled("idle.py")
    assert the_run(folder).name in ("idle-a-7", "idle-a.7")
    assert sorted(path.name for path in the_run(folder).iterdir()) == ["0", "1"]


def test_two_runs_at_once_have_a_directory_each(folder):
    both = [starts("--every", "5", "train.py", "10") for _ in range(2)]
    for process in both:
        process.communicate(timeout=100)
    runs = [path for path in Path("mlvbench-runs").iterdir() if path.is_dir()]
    assert [len(read_run(run).ranks[0][0]) for run in runs] == [3, 3]


# Other processes


def test_ranks_of_torchrun_have_a_file_each_and_one_of_them_prints(folder):
    Path("ddp.py").write_text(
        TRAIN
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
print(dist.get_rank(), train(8))
dist.destroy_process_group()
"""
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = profiled("--every", "4", "--", *launcher, "ddp.py")
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in the_run(folder).iterdir()) == ["0.jsonl", "1.jsonl", "run.json"]
    assert [len(files) for files in read_run(the_run(folder)).ranks.values()] == [1, 1]
    assert run.stderr.count("mlvbench: step 4 ") == run.stderr.count(" samples/s on rank 0 ") - 1 == 1, (
        "one rank prints"
    )
    assert run.stderr.count("mlvbench report ") == 1


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_that_train_have_a_file_each(folder, method):
    Path("children.py").write_text(
        TRAIN
        + f"""
import multiprocessing
import torch.distributed as dist
def child(rank):
    dist.init_process_group("gloo", init_method="file://{folder}/store", rank=rank, world_size=2)
    train(6)
    dist.destroy_process_group()
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    children = [context.Process(target=child, args=(rank,)) for rank in range(2)]
    [process.start() for process in children]
    [process.join() for process in children]
"""
    )
    run = profiled("--every", "5", "children.py")
    ranks = read_run(the_run(folder)).ranks
    assert {rank: [record["step"] for record in files[0]] for rank, files in ranks.items()} == {0: [5, 8], 1: [5, 8]}
    assert run.stderr.count("mlvbench report ") == 1


def test_python_processes_of_a_shell_script_have_a_file_each(folder):
    Path("run.sh").write_text(f"{sys.executable} train.py 5 && {sys.executable} train.py 5\n")
    run = profiled("--every", "4", "--", "sh", "run.sh")
    assert run.returncode == 0
    assert {path.name for path in the_run(folder).glob("*.jsonl")} == {"0.jsonl", "0.2.jsonl"}
    assert run.stderr.splitlines()[-1].startswith("mlvbench report ")


# Wrong commands


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["trian.py"], "no script 'trian.py'; did you mean 'train.py'?"),
        (["sh", "run.sh"], "no script 'sh' in this folder; for the command of that name: mlvbench run -- sh …"),
        (["sub"], "'sub' is a folder without a __main__.py, and not a script"),
        (["-m", "no_such_package.main"], "no module named 'no_such_package.main'"),
        (["--", "no-such-command"], "no command 'no-such-command' on the PATH"),
        (["--", "python3", "-I", "train.py"], "python -I cannot be profiled: it ignores PYTHONPATH"),
        (["--", "python3", "-W", "error", "-sE", "train.py"], "python -sE cannot be profiled"),
        (["--phase", "x", "train.py"], "--phase must be NAME=package.module:Class.method, got 'x'"),
        (["--phase", "a/b=c:d", "train.py"], "--phase must be NAME=package.module:Class.method, got 'a/b=c:d'"),
        (["--phase", "x=no_such.module:f", "train.py"], "no module named 'no_such' where the script would find it"),
        (["--output", "train.py", "train.py"], "the records need a directory, and 'train.py' is a file"),
        (["--output", "", "train.py"], "--output must be the name of a directory, got ''"),
        ([""], "the name of the script is empty"),
        (["x" * 300], ": File name too long"),
        (["--output", "train.py/x", "train.py"], "cannot make the run's directory"),
        (["--every", "0", "train.py"], "--every must be a positive integer, got '0'"),
        ([], "no script given"),
        (["tr\x1b[31m\nain.py"], r"no script 'tr\x1b[31m\nain.py'"),
    ],
)
def test_wrong_command_is_one_clear_line_and_changes_nothing(folder, command, message):
    Path("sub").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    run = profiled(*command)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("mlvbench run: ")
    assert message in run.stderr
    assert run.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_python_of_another_environment_runs_and_is_said_to_be_unprofiled(folder):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "other"], check=True)
    Path("hello.py").write_text("print('hello')")
    run = profiled("--", "other/bin/python", "hello.py")
    assert run.stdout == "hello\n"
    assert "mlvbench: not profiled: it runs in" in run.stderr
    assert "mlvbench: not profiled: it runs in" in profiled("--", "sh", "-c", "other/bin/python hello.py").stderr
