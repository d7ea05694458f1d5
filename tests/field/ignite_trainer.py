"""Ignite's supervised trainer and evaluator, as its factory functions make them.

By hand: `data` around the loaders given to `run`; `forward` and `inference` inside the model's own `forward`; `loss` in
the function given as loss; `optimizer` in an optimizer's own `step`; `backward` from the end of the loss to the step.
"""

from time import perf_counter

import torch
from hand import HandTimes
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader
from toy_data import Images

hand = HandTimes()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 256), nn.ReLU()
        )
        self.head = nn.Linear(256, 8)

    def forward(self, images):
        with hand.time("forward" if torch.is_grad_enabled() else "inference"):
            return self.head(self.layers(images))


class Criterion:
    """A loss function that notes when it returned: what comes next is the backward pass."""

    def __init__(self):
        self.cross_entropy = nn.CrossEntropyLoss()
        self.returned = 0.0

    def __call__(self, logits, labels):
        with hand.time("loss"):
            loss = self.cross_entropy(logits, labels)
        self.returned = perf_counter()
        return loss


class TimedAdam(torch.optim.Adam):
    def __init__(self, parameters, criterion, **kwargs):
        super().__init__(parameters, **kwargs)
        self.criterion = criterion

    def step(self, closure=None):
        hand.add("backward", perf_counter() - self.criterion.returned)
        with hand.time("optimizer"):
            return super().step(closure)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    criterion = Criterion()
    optimizer = TimedAdam(model.parameters(), criterion, lr=1e-3)
    train_loader = hand.batches(DataLoader(Images(1500), batch_size=64, shuffle=True))
    validation_loader = hand.batches(DataLoader(Images(300, seed=10_000), batch_size=64))
    trainer = create_supervised_trainer(model, optimizer, criterion, device="cpu")
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(criterion)}, device="cpu")

    @trainer.on(Events.GET_BATCH_COMPLETED)
    def count(engine):
        hand.samples += len(engine.state.batch[0])

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(validation_loader)
        metrics = evaluator.state.metrics
        print(f"epoch {engine.state.epoch}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.1%}")

    state = trainer.run(train_loader, max_epochs=6)
    hand.steps = state.iteration
    hand.save(state.output, model)


if __name__ == "__main__":
    main()
