"""Phases as functions: each call of a decorated function or method is timed.

For code that has a function for each part of a step already. Run it from the root of the repository:

    python examples/decorated_functions.py
"""

import sys

import torch
from digits import Batch, ViT, accuracy, make_loaders, probe_loss
from torch import Tensor

from mlvbench import ThroughputMonitor, report

EPOCHS = 13
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

monitor = ThroughputMonitor(DEVICE, record_every_n_steps=50)


@monitor.timed("transfer")
def transfer(batch: Batch) -> Batch:
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


@monitor.timed("forward")
def compute_loss(model: ViT, batch: Batch) -> Tensor:
    return probe_loss(model(batch["image"]), batch["label"])


@monitor.timed("backward")
def compute_gradients(loss: Tensor) -> None:
    loss.backward()


class Updater:
    """Applies the gradients under a learning rate that falls from step to step."""

    def __init__(self, model: ViT) -> None:
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.995)

    @monitor.timed("update")
    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()


def main() -> None:
    torch.manual_seed(0)
    loader, test_loader = make_loaders()
    model = ViT().to(DEVICE)
    updater = Updater(model)
    monitor.reset()  # the monitor is older than the model: what came before the loop is not part of it

    step = 0
    for _ in range(EPOCHS):
        for batch in monitor.iterate(loader):
            loss = compute_loss(model, transfer(batch))
            compute_gradients(loss)
            updater.update()
            step += 1
            monitor.record_samples(len(batch["label"]))
            stats = monitor.step(step)
            if stats is not None:
                print(f"step {step:3}: loss {loss.item():.3f}, {stats['samples_per_sec']:,.0f} samples/s")
    if step % 50:
        monitor.snapshot(step)  # the steps since the last multiple of 50

    print(f"test accuracy: {accuracy(model, test_loader)}")
    monitor.save("throughput.json")
    report.show("throughput.json", sys.stdout)  # what `mlvbench report throughput.json` prints


if __name__ == "__main__":
    main()
