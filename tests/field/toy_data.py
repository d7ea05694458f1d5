"""Random data that is the same in every run, whoever reads it and in whatever order."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noise with a bright stripe at the place that the label names; reading one takes some work, as decoding does."""

    def __init__(self, count: int, size: int = 16, classes: int = 8, seed: int = 0) -> None:
        self.count = count
        self.size = size
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.seed + index)
        image = torch.rand(1, self.size, self.size, generator=generator)
        label = index % self.classes
        image[:, label] += 1
        return (image - image.mean()) / image.std(), label
