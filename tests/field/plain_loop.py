"""A plain training loop: a small CNN, two data workers, a validation after every epoch.

By hand: `data`, `forward`, `inference`, `loss`, `backward`, `optimizer`, each around the call in the loop.
"""

import torch
from hand import HandTimes
from torch import nn
from torch.utils.data import DataLoader
from toy_data import Images

hand = HandTimes()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, images):
        return self.head(self.features(images))


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    for images, labels in hand.batches(loader):
        optimizer.zero_grad()
        with hand.time("forward"):
            logits = model(images)
        with hand.time("loss"):
            loss = criterion(logits, labels)
        with hand.time("backward"):
            loss.backward()
        with hand.time("optimizer"):
            optimizer.step()
        hand.samples += len(images)
        hand.steps += 1
    return loss.item()


@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    loss, correct = 0.0, 0
    for images, labels in hand.batches(loader):
        with hand.time("inference"):
            logits = model(images)
        with hand.time("loss"):
            loss += criterion(logits, labels).item() * len(images)
        correct += (logits.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train_loader = DataLoader(Images(3000), batch_size=128, shuffle=True, num_workers=2)
    validation_loader = DataLoader(Images(500, seed=10_000), batch_size=128, num_workers=2)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(5):
        loss = train_one_epoch(model, train_loader, criterion, optimizer)
        validation_loss, accuracy = validate(model, validation_loader, criterion)
        print(f"epoch {epoch}: loss {loss:.4f}, validation loss {validation_loss:.4f}, accuracy {accuracy:.1%}")
    hand.save(loss, model)


if __name__ == "__main__":
    main()
