"""One rank of a DDP run: prints its losses, and what the monitor saw."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from vit import Vit, train

from mlvbench.monitoring import ThroughputMonitor


def run(rank, world, store, monitored, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(0)
    vit = Vit()
    monitor = ThroughputMonitor("cpu", 1 if monitored else None)
    with monitor.instrument(vit, {"features": "forward_features", "loss": "loss_fn"}):
        model = DistributedDataParallel(vit)
        model.loss_fn = vit.loss_fn
        losses = train(model, steps=10, seed=rank)
        snapshot = monitor.snapshot(10)
    results.put((rank, losses, sorted(snapshot) if snapshot else None))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(2, sys.argv[1], sys.argv[2] == "monitored", results), nprocs=2)
    print(json.dumps(sorted(results.get() for _ in range(2))))
