"""Snapshots as TensorBoard's scalars, each at its step.

Run it from the root of the repository, and look at it with `tensorboard --logdir tensorboard-runs`:

    python examples/log_to_tensorboard.py
"""

import torch
from digits import ViT, accuracy, make_loaders, probe_loss
from torch.utils.tensorboard import SummaryWriter

from mlvbench import ThroughputMonitor

EPOCHS = 13


def log(writer: SummaryWriter, snapshot: dict[str, float]) -> None:
    step = int(snapshot.pop("step"))
    for key, value in snapshot.items():
        # Rounded to 32 bits, seven digits. With `double_precision=True` the file has them all, and TensorBoard's
        # server, as it starts by default, shows nothing of it.
        writer.add_scalar(f"mlvbench/{key}", value, step)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, test_loader = make_loaders()
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(device, record_every_n_steps=50)
    monitor.instrument(model, {"features": "forward_features"})
    with SummaryWriter("tensorboard-runs") as writer:
        monitor.subscribe(lambda snapshot: log(writer, snapshot))
        step = 0
        for _ in range(EPOCHS):
            for batch in monitor.iterate(loader):
                with monitor.phase("forward"):
                    loss = probe_loss(model(batch["image"].to(device)), batch["label"].to(device))
                with monitor.phase("backward"):
                    loss.backward()
                with monitor.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
                monitor.record_samples(len(batch["label"]))
                monitor.step(step)
        if step % 50:
            monitor.snapshot(step)  # the steps since the last multiple of 50

    print(f"test accuracy: {accuracy(model, test_loader)}")
    monitor.save("throughput.json")


if __name__ == "__main__":
    main()
