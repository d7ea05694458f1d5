"""A loop with Hugging Face Accelerate: everything prepared, gradients accumulated over four batches.

By hand: `data`, `forward`, `inference`, `loss`, `backward`, each around the call in the loop; `optimizer` in the `step`
of the optimizer given to Accelerate, since the prepared one does other things too. The prepared loader fetches a batch
ahead, so that its `next` waits for another batch than the one it gives.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from hand import HandTimes
from torch import nn
from torch.utils.data import DataLoader
from toy_data import Images

hand = HandTimes()


def main():
    torch.set_num_threads(1)
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 8),
    )
    optimizer = hand.optimizer(torch.optim.AdamW)(model.parameters(), lr=1e-3)
    train_loader = DataLoader(Images(2100), batch_size=32, shuffle=True)
    validation_loader = DataLoader(Images(200, seed=10_000), batch_size=32)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * len(train_loader))
    criterion = nn.CrossEntropyLoss()
    model, optimizer, train_loader, validation_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, validation_loader, scheduler
    )
    for epoch in range(4):
        model.train()
        for images, labels in hand.batches(train_loader):
            with accelerator.accumulate(model):
                with hand.time("forward"):
                    logits = model(images)
                with hand.time("loss"):
                    loss = criterion(logits, labels)
                with hand.time("backward"):
                    accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    hand.steps += 1
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            hand.samples += len(images)
        model.eval()
        correct = 0
        for images, labels in hand.batches(validation_loader):
            with torch.no_grad(), hand.time("inference"):
                logits = model(images)
            predictions, labels = accelerator.gather_for_metrics((logits.argmax(-1), labels))
            correct += (predictions == labels).sum().item()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, correct {correct}")
    hand.save(loss.item(), accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
