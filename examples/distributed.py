"""Many ranks: each has a monitor of its own, and rank 0 logs what they come to together.

On two processes of the CPU or, where there is CUDA, on two GPUs. Run it from the root of the repository:

    torchrun --nproc-per-node 2 examples/distributed.py
"""

import os

import torch
import torch.distributed as dist
from digits import ViT, accuracy, make_loaders, probe_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from mlvbench import ThroughputMonitor
from mlvbench.distributed import on_rank_0

EPOCHS = 13


def log(snapshot: dict[str, float]) -> None:
    """Prints the throughput of all ranks together, and for each phase the mean and the slowest rank."""
    print(f"step {snapshot['step']:3}: {snapshot['samples_per_sec']:,.0f} samples/s on all ranks")
    for key in ("t_data", "t_forward", "t_backward", "t_optimizer"):
        longest, rank = snapshot[f"{key}_max"], snapshot[f"{key}_max_rank"]
        print(f"    {key[2:]:10}{snapshot[key]:6.3f} s, the longest {longest:6.3f} s on rank {rank}")


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")  # gradients go by NCCL, and snapshots by gloo
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader, test_loader = make_loaders(batch_size=64 // dist.get_world_size())
    sampler = DistributedSampler(loader.dataset)
    loader = DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn)
    model = DistributedDataParallel(ViT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(device, record_every_n_steps=50)
    monitor.subscribe(on_rank_0(log))  # on every rank, for each sends its own snapshot

    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in monitor.iterate(loader):
            with monitor.phase("forward"):
                loss = probe_loss(model(batch["image"].to(device)), batch["label"].to(device))
            with monitor.phase("backward"):  # which waits for the other ranks' gradients
                optimizer.zero_grad()
                loss.backward()
            with monitor.phase("optimizer"):
                optimizer.step()
            step += 1
            monitor.record_samples(len(batch["label"]))
            monitor.step(step)
    if step % 50:
        monitor.snapshot(step)  # the steps since the last multiple of 50, on every rank

    if dist.get_rank() == 0:
        print(f"test accuracy: {accuracy(model.module, test_loader)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
