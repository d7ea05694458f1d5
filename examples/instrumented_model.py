"""Phases from outside: neither the model nor the training function knows that it is being timed.

For code that is not yours to edit. Run it from the root of the repository:

    python examples/instrumented_model.py
"""

import sys
from collections.abc import Callable, Iterable

import torch
from digits import Batch, ViT, accuracy, make_loaders, probe_loss

from mlvbench import ThroughputMonitor, report

EPOCHS = 13


def train(
    model: ViT,
    loader: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    on_step: Callable[[int, int], object],
) -> int:
    """Trains the model, as a function in someone else's library would.

    Args:
        model: The model to train, where it is.
        loader: The batches; every epoch goes through it once.
        optimizer: The optimizer of the model's parameters.
        on_step: Called after each step with its number, from 1, and its number of samples.

    Returns:
        The number of steps.
    """
    device = next(model.parameters()).device
    step = 0
    for _ in range(EPOCHS):
        for batch in loader:
            loss = probe_loss(model(batch["image"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            on_step(step, len(batch["label"]))
    return step


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, test_loader = make_loaders()
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = ThroughputMonitor(device, record_every_n_steps=50)

    def on_step(step: int, samples: int) -> None:
        monitor.record_samples(samples)
        stats = monitor.step(step)
        if stats is not None:
            print(f"step {step:3}: {stats['samples_per_sec']:,.0f} samples/s")

    # Dotted paths lead to methods or to modules, and a list of them shares a phase. Tensor.backward calls
    # torch.autograd.backward, so that a Python module can be instrumented like any other object.
    phases = {
        "features": "forward_features",
        "blocks": [f"blocks.{index}" for index in range(len(model.blocks))],
        "probes": "probes",
    }
    with (
        monitor.instrument(model, phases),
        monitor.instrument(optimizer, {"optimizer": "step"}),
        monitor.instrument(torch.autograd, {"backward": "backward"}),
    ):
        steps = train(model, monitor.iterate(loader), optimizer, on_step)
    if steps % 50:
        monitor.snapshot(steps)  # the steps since the last multiple of 50

    # The model is the plain one again, so that this pass is not timed.
    print(f"test accuracy: {accuracy(model, test_loader)}")
    monitor.save("throughput.json")
    report.show("throughput.json", sys.stdout)  # what `mlvbench report throughput.json` prints


if __name__ == "__main__":
    main()
