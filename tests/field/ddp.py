"""DistributedDataParallel on gloo, to be started by torchrun: a sampler that splits the data, a worker for each rank.

By hand, on every rank: `data`, `forward`, `inference`, `loss`, `backward`, `optimizer`, each around the call in the
loop; waiting for the other rank is a part of them.
"""

import torch
import torch.distributed as dist
from hand import HandTimes
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy_data import Images

hand = HandTimes()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 8),
    )
    model = DistributedDataParallel(network)
    dataset = Images(2200)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=1, persistent_workers=True)
    held_out = torch.stack([image for image, _ in Images(64, seed=10_000)])
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in hand.batches(loader):
            with hand.time("forward"):
                logits = model(images)
            with hand.time("loss"):
                loss = criterion(logits, labels)
            optimizer.zero_grad()
            with hand.time("backward"):
                loss.backward()
            with hand.time("optimizer"):
                optimizer.step()
            hand.samples += len(images)
            hand.steps += 1
        model.eval()
        with torch.no_grad(), hand.time("inference"):
            predictions = model(held_out).argmax(1)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, {len(predictions.unique())} classes predicted")
    hand.save(loss.item(), network, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
