"""A Lightning Trainer with automatic optimization: the whole training step runs as a closure inside `Optimizer.step`.

By hand: `data` around the loaders given to the Trainer; `forward`, `inference` and `loss` around the calls in
`training_step` and `validation_step`; `backward` in the module's override of it; `optimizer` in the `step` of
the optimizer that `configure_optimizers` gives, so that it holds `forward`, `loss` and `backward`.
"""

import lightning
import torch
from hand import HandTimes
from torch import nn
from torch.utils.data import DataLoader
from toy_data import Images

hand = HandTimes()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 64, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 8),
        )
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images):
        return self.model(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        with hand.time("forward"):
            logits = self(images)
        with hand.time("loss"):
            loss = self.criterion(logits, labels)
        self.log("loss", loss)
        hand.samples += len(images)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        with hand.time("inference"):
            logits = self(images)
        with hand.time("loss"):
            loss = self.criterion(logits, labels)
        self.log("validation_loss", loss, prog_bar=True)

    def backward(self, loss, *args, **kwargs):
        with hand.time("backward"):
            super().backward(loss, *args, **kwargs)

    def configure_optimizers(self):
        optimizer = hand.optimizer(torch.optim.Adam)(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)]


def main():
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=6, logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    train_loader = DataLoader(Images(1500), batch_size=32, shuffle=True)
    validation_loader = DataLoader(Images(300, seed=10_000), batch_size=64)
    trainer.fit(model, hand.batches(train_loader), hand.batches(validation_loader))
    hand.steps = trainer.global_step
    hand.save(trainer.callback_metrics["loss"].item(), model)


if __name__ == "__main__":
    main()
