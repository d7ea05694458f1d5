"""What the four examples share: the data set, a small vision transformer and the table of phases.

Nothing here knows of a monitor; `print_table` reads nothing but the snapshots. Not an example itself: run
`python examples/explicit_phases.py`, `decorated_functions.py`, `instrumented_model.py` or `mixed.py`.
They need scikit-learn for the data: `pip install mlvbench[examples]`.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

Batch = dict[str, Tensor]
Tree = dict[tuple[str, ...], float]

# Tensors this small gain little from more threads, and where other programs keep the cores busy, threads that
# wait for each other make a step ten times as slow.
torch.set_num_threads(1)


def collate(items: list[tuple[Tensor, Tensor]]) -> Batch:
    """Stacks (image, label) pairs into one batch."""
    images, labels = zip(*items, strict=True)
    return {"image": torch.stack(images), "label": torch.stack(labels)}


def make_loaders(batch_size: int = 64) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """Returns loaders of 1536 training and 261 test images of 8x8 pixels, with values from 0 to 1."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    data = TensorDataset(images, torch.tensor(labels, dtype=torch.long))
    train, test = random_split(data, [1536, 261])
    return (
        DataLoader(train, batch_size, shuffle=True, collate_fn=collate),
        DataLoader(test, batch_size, collate_fn=collate),
    )


class Probes(nn.Module):
    """Linear heads on the same features: which digit it is, and whether it is odd or even."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.digit = nn.Linear(width, 10)
        self.parity = nn.Linear(width, 2)

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {"digit": self.digit(features), "parity": self.parity(features)}


class ViT(nn.Module):
    """A vision transformer on 16 patches of 2x2 pixels, with linear probes on its features."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.positions = nn.Parameter(0.5 * torch.randn(16, width))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, batch_first=True, norm_first=True)
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.probes = Probes(width)

    def forward_features(self, image: Tensor) -> Tensor:
        """Returns one vector an image, of shape (batch, width)."""
        tokens = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        return self.norm(self.blocks(tokens)).mean(dim=1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return self.probes(self.forward_features(image))


def make_targets(label: Tensor) -> dict[str, Tensor]:
    """Returns what each probe should say."""
    return {"digit": label, "parity": label % 2}


def probe_loss(logits: dict[str, Tensor], label: Tensor) -> Tensor:
    """Returns the sum of the cross-entropies of the probes."""
    targets = make_targets(label)
    return torch.stack([functional.cross_entropy(logits[name], targets[name]) for name in targets]).sum()


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Batch]) -> str:
    """Returns the share of the loader's images that each probe gets right, as text."""
    device = next(model.parameters()).device
    right = {"digit": 0, "parity": 0}
    total = 0
    model.eval()
    for batch in loader:
        logits = model(batch["image"].to(device))
        for name, target in make_targets(batch["label"].to(device)).items():
            right[name] += int((logits[name].argmax(dim=1) == target).sum())
        total += len(batch["label"])
    model.train()
    return ", ".join(f"{name} {count / total:.1%}" for name, count in right.items())


def add_up(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums the additive fields of the snapshots: all but the step, the rate and the memory."""
    totals: dict[str, float] = {"samples": 0, "wall_sec": 0}
    for record in records:
        for key, value in record.items():
            if key in ("samples", "wall_sec") or key.startswith("t_"):
                totals[key] = totals.get(key, 0) + value
    return totals


def phase_tree(totals: Mapping[str, float]) -> Tree:
    """Returns seconds by path, where a path of length one is the phase outside of any other phase.

    `t_features` has all the seconds of "features", and `t_train/features` those of them inside "train": what
    was spent outside of every phase is the difference.
    """
    paths = {tuple(key[2:].split("/")): seconds for key, seconds in totals.items() if key.startswith("t_")}
    tree = dict(paths)
    for path, seconds in paths.items():
        if len(path) > 1:
            tree[path[-1:]] -= seconds
    # What never ran at the top is left with nothing but a rounding error.
    return {path: seconds for path, seconds in tree.items() if len(path) > 1 or seconds > 1e-9}


def walk(tree: Tree, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Yields the phases inside `outer`, each followed by those inside it: indented name and seconds."""
    for path, seconds in tree.items():
        if path[:-1] == outer:
            yield "  " * len(outer) + path[-1], seconds
            yield from walk(tree, path)


def print_table(records: Sequence[Mapping[str, float]]) -> None:
    """Prints where the time of a whole run went, from its snapshots.

    The rows that are not indented, "other" among them, add up to the wall time; an indented row is part of
    the one that it is beneath. "other" is the wall time that no phase covers.
    """
    totals = add_up(records)
    tree = phase_tree(totals)
    steps, wall = int(records[-1]["step"]), totals["wall_sec"]
    accounted = sum(seconds for path, seconds in tree.items() if len(path) == 1)

    print(f"\n{'phase':<20}{'seconds':>9}{'ms/step':>10}{'share':>9}")
    for name, seconds in [*walk(tree), ("other", wall - accounted), ("wall time", wall)]:
        print(f"{name:<20}{seconds:>9.3f}{1000 * seconds / steps:>10.3f}{seconds / wall:>9.1%}")
    print(f"\n{totals['samples'] / accounted:,.0f} samples/s over the accounted time (what the phases cover)")
    print(f"{totals['samples'] / wall:,.0f} samples/s over the wall time")
    print(f"{steps} steps")
