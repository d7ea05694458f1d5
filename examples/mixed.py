"""All the ways at once, and nested: a phase knows in which other phase it ran.

The block "train" is around the forward and the backward pass, and the instrumented `forward_features` runs
inside it and inside "validate". So a snapshot has `t_features`, all of its time, and `t_train/features` and
`t_validate/features`, its parts. No second counts twice. Run it from the root of the repository:

    python examples/mixed.py
"""

import sys

import torch
from digits import ViT, accuracy, make_loaders, probe_loss

from mlvbench import ThroughputMonitor, report

EPOCHS = 13
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

monitor = ThroughputMonitor(DEVICE, record_every_n_steps=50)


@monitor.timed("optimizer")
def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    loader, test_loader = make_loaders()
    model = ViT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor.reset()  # the monitor is older than the model: what came before the loop is not part of it

    step = 0
    with monitor.instrument(model, {"features": "forward_features", "probes": "probes"}):
        for _ in range(EPOCHS):
            for batch in monitor.iterate(loader):
                with monitor.phase("train"):
                    image, label = batch["image"].to(DEVICE), batch["label"].to(DEVICE)
                    loss = probe_loss(model(image), label)
                    with monitor.phase("backward"):
                        loss.backward()
                update(optimizer)
                step += 1
                monitor.record_samples(len(image))
                stats = monitor.step(step)
                if stats is not None:
                    print(f"step {step:3}: loss {loss.item():.3f}, {stats['samples_per_sec']:,.0f} samples/s")
            with monitor.phase("validate"):
                score = accuracy(model, test_loader)
        if step % 50:
            monitor.snapshot(step)  # the steps since the last multiple of 50

    print(f"test accuracy: {score}")
    monitor.save("throughput.json")
    report.show("throughput.json", sys.stdout)  # what `mlvbench report throughput.json` prints


if __name__ == "__main__":
    main()
