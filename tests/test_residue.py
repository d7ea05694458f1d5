"""What looks for residue after each test finds it."""

import os
import subprocess
import sys

import pytest
import residue
import torch
import wrapt
from torch.optim.optimizer import register_optimizer_step_pre_hook


@pytest.mark.parametrize("owner", [torch.nn.Module, torch.nn.Linear])
def test_wrapper_that_is_equal_to_what_it_wraps_is_residue(owner, monkeypatch):
    before = residue.seams()
    wrapper = wrapt.FunctionWrapper(owner.forward, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    assert wrapper == owner.forward
    monkeypatch.setattr(owner, "forward", wrapper)
    assert not residue.are_the_same(residue.seams(), before)


def test_hook_of_all_optimizers_is_residue():
    before = residue.seams()
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    assert not residue.are_the_same(residue.seams(), before)
    handle.remove()
    assert residue.are_the_same(residue.seams(), before)


def test_phase_that_is_open_is_residue(monitor):
    assert residue.open_phases(monitor) == ""
    with monitor.phase("outer"), monitor.phase("inner"):
        assert residue.open_phases(monitor) == "outer/inner/"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which processes a process has started")
@pytest.mark.parametrize("command", ["sleep 100", "sleep 100 & wait", "sleep 100 &", "setsid sleep 100 & sleep 100"])
def test_processes_that_a_test_has_started_are_ended_with_those_that_they_have_started(command):
    before = residue.processes()
    started = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    assert residue.processes() > before
    residue.end_processes(before)
    assert started.stdout.read() == b"", "all that had the pipe are gone"
    assert residue.processes() <= before
    started.communicate()
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)
