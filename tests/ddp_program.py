"""A DDP run of two ranks: each trains bare and monitored, and prints the losses of both and what the monitor saw."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from vit import Vit, train

from mlvbench.monitoring import ThroughputMonitor


def run(rank, world, store, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    bare, _ = losses_and_snapshot(rank, ThroughputMonitor("cpu", None))
    monitored, snapshot = losses_and_snapshot(rank, ThroughputMonitor("cpu", 1))
    results.put((rank, bare, monitored, sorted(snapshot)))
    dist.barrier()
    dist.destroy_process_group()


def losses_and_snapshot(rank, monitor):
    torch.manual_seed(0)
    vit = Vit()
    with monitor.instrument(vit, {"features": "forward_features", "loss": "loss_fn"}):
        model = DistributedDataParallel(vit)
        model.loss_fn = vit.loss_fn
        return train(model, steps=10, seed=rank), monitor.snapshot(10)


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(2, sys.argv[1], results), nprocs=2)
    print(json.dumps(sorted(results.get() for _ in range(2))))
