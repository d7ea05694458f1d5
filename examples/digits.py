"""What the examples share: the data set and a small vision transformer.

Nothing here knows of a monitor. Not an example itself: run `python examples/explicit_phases.py`,
`decorated_functions.py`, `instrumented_model.py` or `mixed.py`, or `mlvbench run examples/plain_script.py`, or
`torchrun --nproc-per-node 2 examples/distributed.py`. They need scikit-learn for the data, and rich for the table:
`python -m pip install '.[examples]'`; `log_to_tensorboard.py`, `log_to_wandb.py` and `log_to_mlflow.py` need what they
log to as well: `'.[examples,loggers]'`.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

Batch = dict[str, Tensor]

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
