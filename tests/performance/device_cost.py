"""What the two timings cost on an accelerator: `python tests/performance/device_cost.py`.

A ViT-S in bfloat16 is trained on random images, eager and compiled, with no monitor, with `timing="events"` and with
`timing="synchronize"` in turn. Prints how much longer a step takes, beside the target. It prints and does not judge.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from arguments import positive
from torch import nn

from mlvbench.monitoring import ThroughputMonitor

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 0.003
"""The share of a step that `timing="events"` may cost."""

TIMINGS = ("events", "synchronize")
CLASSES = 1000


class Vit(nn.Module):
    """The vision transformer of 22 million parameters ("S/16"), or a smaller one.

    Args:
        size: Pixels of a side of an image; patches have 16.
        width: Numbers a token.
        depth: Blocks.
        heads: Heads of the attention.
    """

    def __init__(self, size: int = 224, width: int = 384, depth: int = 12, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.position = nn.Parameter(torch.zeros(1, (size // 16) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="where it trains")
    parser.add_argument("--rounds", type=positive, default=20, help="how often each way takes its turn")
    parser.add_argument("--steps", type=positive, default=50, help="steps in a turn")
    parser.add_argument("--batch", type=positive, default=64, help="images in a step")
    parser.add_argument("--eager", action="store_true", help="leave out the compiled model")
    parser.add_argument("--tiny", action="store_true", help="a model so small that a CPU trains it")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"{name}, torch {torch.__version__}, batch of {options.batch}, {options.rounds} rounds\n")
    print(f"{'model':10} {'timing':12} {'ms/step':>9} {'longer by':>10}")
    for is_compiled in (False,) if options.eager else (False, True):
        show("compiled" if is_compiled else "eager", measure(device, options, is_compiled))
    print(f"\ntarget: longer by {TARGET:.1%} at most with events")


def measure(device: torch.device, options: Any, is_compiled: bool) -> dict[str, list[float]]:
    """Seconds a step in each round, for each way."""
    torch.manual_seed(0)
    made = Vit(32, 16, 1, 2) if options.tiny else Vit()
    model = made.to(device)
    train = trainer_of(torch.compile(model) if is_compiled else model, device, options, 32 if options.tiny else 224)
    monitors = {
        "none": ThroughputMonitor(device, None),
        **{timing: ThroughputMonitor(device, options.steps, timing=timing) for timing in TIMINGS},
    }
    for monitor in monitors.values():
        train(monitor)
    seconds: dict[str, list[float]] = {name: [] for name in monitors}
    for _ in range(options.rounds):
        for name, monitor in monitors.items():
            seconds[name].append(train(monitor))
    return seconds


def trainer_of(
    model: Callable[[torch.Tensor], torch.Tensor], device: torch.device, options: Any, size: int
) -> Callable[[ThroughputMonitor], float]:
    """A function that trains for a turn, and returns the seconds that a step took."""
    images = torch.randn(options.batch, 3, size, size, device=device)
    labels = torch.randint(CLASSES, (options.batch,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)  # type: ignore[attr-defined]
    loss_fn = nn.CrossEntropyLoss()

    def train(monitor: ThroughputMonitor) -> float:
        wait_for(device)
        start = time.perf_counter()
        for step, (image, label) in enumerate(monitor.iterate([(images, labels)] * options.steps), start=1):
            with monitor.phase("forward"), torch.autocast(device.type, torch.bfloat16):
                loss = loss_fn(model(image), label)
            with monitor.phase("backward"):
                loss.backward()
            with monitor.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            monitor.record_samples(len(image))
            monitor.step(step)
        wait_for(device)
        return (time.perf_counter() - start) / options.steps

    return train


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def show(model: str, seconds: dict[str, list[float]]) -> None:
    """Prints a row a way: compared round by round, since a drift of the machine's speed falls on a round alike."""
    for name, each in seconds.items():
        ratio = median(mine / bare for mine, bare in zip(each, seconds["none"], strict=True)) - 1
        print(f"{model:10} {name:12} {median(each) * 1e3:9.3f} {ratio:10.2%}")


if __name__ == "__main__":
    main()
