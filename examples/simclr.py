"""SimCLR without a temperature: train on images without labels, then ask nearest neighbours.

    python examples/simclr.py                             # digits in random places, half a minute on a CPU
    python examples/simclr.py --data FOLDER --workers 8   # FOLDER/train/CLASS/*.jpg, FOLDER/val/CLASS/*.jpg
    python examples/simclr.py --tau 0.5                   # the loss it replaces, for comparison

Needs taufree, torchvision and scikit-learn: pip install ".[cli,images]" has them.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import v2

import taufree

MOVE = v2.RandomAffine(20, translate=(0.2, 0.2), scale=(0.8, 1.2))


def load(folder: Path | None, size: int) -> tuple[Dataset, Dataset]:
    """Images and labels to train on, and to test with."""
    if folder is None:
        images, labels = (torch.as_tensor(x) for x in load_digits(return_X_y=True))
        images = nn.functional.pad(images.reshape(-1, 1, 8, 8).float() / 16, (4, 4, 4, 4))
        images = torch.stack([MOVE(image) for image in images])
        return TensorDataset(images[:1297], labels[:1297]), TensorDataset(images[1297:], labels[1297:])
    tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    prepare = v2.Compose([v2.Resize(size), v2.CenterCrop(size), *tensor])
    return ImageFolder(folder / "train", prepare), ImageFolder(folder / "val", prepare)


def augmentation(channels: int, size: int) -> v2.Transform:
    """What two views of an image may differ in: SimCLR's for photographs, their place for digits."""
    if channels == 1:
        return MOVE
    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    crop = v2.RandomResizedCrop(size, scale=(0.2, 1.0), antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2)])


def two_views(batch: list[tuple[torch.Tensor, int]], augment: v2.Transform) -> list[torch.Tensor]:
    """Two views of each image of a batch; called by the loader, so that its workers make them."""
    return [torch.stack([augment(image) for image, _ in batch]) for _ in range(2)]


def network(channels: int) -> tuple[nn.Module, nn.Module]:
    """An encoder, whose features are kept, and a projector, which only the loss sees."""
    if channels == 1:
        encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        width = 256
    else:
        encoder = resnet18()
        width, encoder.fc = encoder.fc.in_features, nn.Identity()
    return encoder, nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64))


@torch.no_grad()
def embed(encoder: nn.Module, images: Dataset, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [(encoder.eval()(x.to(device)).cpu(), y) for x, y in DataLoader(images, 256)]
    encoder.train()
    features, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return nn.functional.normalize(features), labels


def accuracy(encoder: nn.Module, train: Dataset, test: Dataset, device: str) -> float:
    """% of the test images whose five nearest training images agree on the right label."""
    neighbours = KNeighborsClassifier(5).fit(*embed(encoder, train, device))
    return 100 * neighbours.score(*embed(encoder, test, device))


def main() -> None:
    parser = argparse.ArgumentParser(description="SimCLR without a temperature")
    parser.add_argument("--data", type=Path, help="a folder with train/ and val/; digits if it is left out")
    parser.add_argument("--size", type=int, default=96, help="pixels of an image's side")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare images")
    parser.add_argument("--tau", type=float, help="a temperature; none if it is left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train, test = load(args.data, args.size)
    channels = train[0][0].shape[0]
    collate = partial(two_views, augment=augmentation(channels, args.size))
    options = {"shuffle": True, "drop_last": True, "num_workers": args.workers}
    batches = DataLoader(train, args.batch_size, collate_fn=collate, **options)
    encoder, projector = (part.to(device) for part in network(channels))
    loss_of = taufree.NTXent(link=None if args.tau is None else taufree.Temperature(args.tau))
    optimizer = torch.optim.AdamW([*encoder.parameters(), *projector.parameters()], lr=1e-3)

    print(f"before: {accuracy(encoder, train, test, device):.1f} % by nearest neighbours")
    for epoch in range(args.epochs):
        total = 0.0
        for pair in batches:
            loss = loss_of(*(projector(encoder(view.to(device))) for view in pair))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.3f}")
    print(f"after: {accuracy(encoder, train, test, device):.1f} % by nearest neighbours")


if __name__ == "__main__":
    main()
