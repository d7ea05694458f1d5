"""Snapshots as Weights & Biases' history, with `mlvbench/step` as the axis.

Run it from the root of the repository; offline it needs no account, and `wandb sync` uploads the run later:

    WANDB_MODE=offline python examples/log_to_wandb.py
"""

import torch
import wandb
from digits import ViT, accuracy, make_loaders, probe_loss

from mlvbench import ThroughputMonitor

EPOCHS = 13


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, test_loader = make_loaders()
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(device, record_every_n_steps=50)
    monitor.instrument(model, {"features": "forward_features"})
    with wandb.init(project="digits") as run:
        # W&B counts steps of its own, one a call of `log`, and takes nothing for an earlier one. So the training's step
        # is a metric like any other, and the axis of the rest.
        run.define_metric("mlvbench/*", step_metric="mlvbench/step")
        monitor.subscribe(lambda snapshot: run.log({f"mlvbench/{key}": value for key, value in snapshot.items()}))
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
