"""L-BFGS on the full batch: no DataLoader, and a closure that the optimizer calls as often as it likes.

By hand: `optimizer` around `step`; `forward`, `loss` and `backward` in the closure, and so inside `optimizer`;
`inference` around the final prediction. There is no `data`. The samples are the batch once a step.
"""

import torch
from hand import HandTimes
from torch import nn

hand = HandTimes()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(3000, 16)
    targets = torch.sin(inputs @ torch.randn(16, 4)) + 0.1 * torch.randn(3000, 4)
    model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4))
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=8, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        with hand.time("forward"):
            outputs = model(inputs)
        with hand.time("loss"):
            loss = criterion(outputs, targets)
        with hand.time("backward"):
            loss.backward()
        return loss

    for step in range(30):
        with hand.time("optimizer"):
            loss = optimizer.step(closure)
        hand.samples += len(inputs)
        hand.steps += 1
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    with torch.no_grad(), hand.time("inference"):
        outputs = model(inputs)
    print(f"final error {(outputs - targets).abs().mean().item():.6f}")
    hand.save(loss.item(), model)


if __name__ == "__main__":
    main()
