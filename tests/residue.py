"""What a test leaves as it found it: torch's seams are as they were, and no process that it started goes on."""

import contextlib
import ctypes
import multiprocessing
import operator
import os
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import torch
import torch.optim.optimizer as hooks

from mlvbench.autoprofile.seams import SEAMS

CLASSES = (torch.nn.Module, torch.nn.Linear, torch.nn.CrossEntropyLoss, torch.optim.SGD, torch.optim.Optimizer)
PR_SET_CHILD_SUBREAPER = 36


def seams():
    """What is in the places of torch's that are ever replaced."""
    places = [(seam.owner, seam.attribute) for seam in SEAMS]
    places += [(cls, name) for cls in CLASSES for name in ("forward", "__call__", "step")]
    return [
        *(vars(owner).get(name) for owner, name in places),
        *hooks._global_optimizer_pre_hooks.values(),
        *hooks._global_optimizer_post_hooks.values(),
    ]


def are_the_same(some, others):
    """Whether two lists have the very same objects: a wrapper of wrapt's is equal to what it wraps."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def adopt_orphans():
    """Makes this process the parent of each process that it started indirectly and whose own parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes():
    """The processes that this one has started, and those that they have started; only Linux tells them."""
    found, waiting = set(), [os.getpid()]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # its thread has ended
                below = [int(number) for number in children.read_text().split()]
                found.update(below)
                waiting += below
    return found


def end_processes(before):
    """Ends all that was started since `processes` gave `before`, but for what Python itself ends with this process."""
    helpers = {resource_tracker._resource_tracker._pid, forkserver._forkserver._forkserver_pid}
    daemons = {child.pid for child in multiprocessing.active_children() if child.daemon}
    while left := processes() - before - helpers - daemons:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in left:
            with contextlib.suppress(ChildProcessError):  # not ours until its parent has ended
                os.waitpid(process, 0)


def open_phases(monitor):
    """The path of the phases that are open in this thread: a further one is nested in them."""
    with monitor.phase("residue"):
        pass
    longest = max((key for key in monitor.snapshot(0) if key.endswith("residue")), key=len)
    return longest.removeprefix("t_").removesuffix("residue")
