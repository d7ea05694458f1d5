"""A GAN as in PyTorch's tutorial: two networks, two optimizers, three backward passes an iteration.

By hand: `data`, `forward`, `inference`, `loss`, `backward`, `optimizer`, each around the call in the loop. A step is
one of the discriminator's optimizer, which is the first to step; the samples are the real images.
"""

import torch
from hand import HandTimes
from torch import nn
from torch.utils.data import DataLoader
from toy_data import Images

LATENT = 32

hand = HandTimes()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(LATENT, 64, 4, 1, 0, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(True),
            nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(True),
            nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(32, 64, 4, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(64, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images):
        return self.main(images).view(-1)


def score(discriminator, images, criterion, real):
    """The discriminator's loss for images that pass as real, or not."""
    with hand.time("forward"):
        logits = discriminator(images)
    with hand.time("loss"):
        return criterion(logits, torch.full_like(logits, float(real)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Images(2000), batch_size=128, shuffle=True)
    generator, discriminator = Generator(), Discriminator()
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    fixed_noise = torch.randn(64, LATENT, 1, 1)
    for epoch in range(5):
        for images, _ in hand.batches(loader):
            # The discriminator: real images, then generated ones.
            optimizer_d.zero_grad()
            loss_real = score(discriminator, images, criterion, real=True)
            with hand.time("backward"):
                loss_real.backward()
            with hand.time("forward"):
                fake = generator(torch.randn(len(images), LATENT, 1, 1))
            loss_fake = score(discriminator, fake.detach(), criterion, real=False)
            with hand.time("backward"):
                loss_fake.backward()
            with hand.time("optimizer"):
                optimizer_d.step()
            # The generator: images that the discriminator takes for real.
            optimizer_g.zero_grad()
            loss_g = score(discriminator, fake, criterion, real=True)
            with hand.time("backward"):
                loss_g.backward()
            with hand.time("optimizer"):
                optimizer_g.step()
            hand.samples += len(images)
            hand.steps += 1
        with torch.no_grad(), hand.time("inference"):
            preview = generator(fixed_noise)
        print(f"epoch {epoch}: D {(loss_real + loss_fake).item():.4f}, G {loss_g.item():.4f}, {preview.std():.3f}")
    hand.save((loss_real + loss_fake + loss_g).item(), nn.ModuleList([generator, discriminator]))


if __name__ == "__main__":
    main()
