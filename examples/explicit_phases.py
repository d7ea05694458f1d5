"""Phases as blocks: the loop says where each phase begins and ends.

The plainest way, for a training loop that is yours to edit. Run it from the root of the repository:

    python examples/explicit_phases.py
"""

import sys

import torch
from digits import ViT, accuracy, make_loaders, probe_loss

from mlvbench import ThroughputMonitor, report

EPOCHS = 13


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, test_loader = make_loaders()
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(device, record_every_n_steps=50)

    step = 0
    for _ in range(EPOCHS):
        for batch in monitor.iterate(loader):
            with monitor.phase("transfer"):
                image, label = batch["image"].to(device), batch["label"].to(device)
            with monitor.phase("features"):
                features = model.forward_features(image)
            with monitor.phase("probes"):
                loss = probe_loss(model.probes(features), label)
            with monitor.phase("backward"):
                optimizer.zero_grad()
                loss.backward()
            with monitor.phase("optimizer"):
                optimizer.step()
            step += 1
            monitor.record_samples(len(image))
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
