"""A script that knows nothing of mlvbench.

Run it from the root of the repository, alone or profiled:

    python examples/plain_script.py
    mlvbench run examples/plain_script.py
"""

import torch
from digits import ViT, accuracy, make_loaders, probe_loss

EPOCHS = 13


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, test_loader = make_loaders()
    model = ViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for batch in loader:
            loss = probe_loss(model(batch["image"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"test accuracy: {accuracy(model, test_loader)}")


if __name__ == "__main__":
    main()
