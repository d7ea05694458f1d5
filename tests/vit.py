"""A small ViT-like model, for tests of what instrumenting does to a real one."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Vit(nn.Module):
    def __init__(self, width=8, depth=2, classes=3):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)
        self.loss_fn = nn.CrossEntropyLoss()

    def forward_features(self, image, scale: float = 1.0):
        tokens = self.patch(image).flatten(2).transpose(1, 2)
        return self.blocks(tokens).mean(1) * scale

    def forward(self, image):
        return self.head(self.forward_features(image))


def batch(count=4, classes=3):
    return torch.randn(count, 1, 4, 4), torch.randint(classes, (count,))


def train(model, steps=50, seed=0):
    """Losses of a run, from a fixed seed."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        image, label = batch()
        loss = model.loss_fn(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
