"""What the examples that log share: a training with phases. Not an example itself."""

import torch
from digits import ViT, accuracy, make_loaders, probe_loss

from mlvbench import ThroughputMonitor

EPOCHS = 13
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(monitor: ThroughputMonitor) -> None:
    """Trains a vision transformer; whoever subscribes to the monitor gets a snapshot now and then."""
    torch.manual_seed(0)
    loader, test_loader = make_loaders()
    model = ViT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor.instrument(model, {"features": "forward_features"})
    step = 0
    for _ in range(EPOCHS):
        for batch in monitor.iterate(loader):
            with monitor.phase("forward"):
                loss = probe_loss(model(batch["image"].to(DEVICE)), batch["label"].to(DEVICE))
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
