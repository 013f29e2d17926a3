"""SimCLR on Imagenette, the paper's image benchmark, by LightlySSL's recipe.

9,469 training and 3,925 validation images of ten classes of ImageNet, 160 pixels on their shorter side.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from taufree.experiments.images.decoded import Images, cache_folder, load_images
from taufree.experiments.images.listing import Listing, find_images, find_packed
from taufree.experiments.images.simclr import SimCLR

PLACE = "imagenette2-160"
SIDE = 160
NAMES = {
    "n01440764": "tench",
    "n02102040": "springer spaniel",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


class Imagenette(SimCLR):
    name = "imagenette"
    title = "SimCLR on Imagenette, ten classes of ImageNet"

    def find(self, data: Path | None) -> Images:
        listing = find_imagenette((_download() if data is None else data) / PLACE)
        if self.settings.subset:
            listing = listing.thinned(self.settings.subset)
        return load_images(listing, SIDE)


def find_imagenette(folder: Path) -> Listing:
    """The images of a folder with ``train`` and ``val``, or with tar files of them."""
    tars = sorted(folder.glob("*.tar"))
    if not tars and not ((folder / "train").is_dir() and (folder / "val").is_dir()):
        raise ValueError(
            f"{folder} must hold train and val with a folder for each class, or tar files of them."
        )
    listing = find_packed(folder, tars) if tars else find_images(folder)
    return replace(listing, classes=tuple(NAMES.get(name, name) for name in listing.classes))


def _download() -> Path:
    from torchvision import datasets

    folder = cache_folder() / "imagenette"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):  # several runs may start at once
            if not (folder / PLACE / "val").is_dir():
                datasets.Imagenette(folder, split="train", size="160px", download=True)
    except Exception as error:  # whatever the network, the file system or the archive has to say
        raise ValueError(
            f"Imagenette could not be downloaded to {folder} ({type(error).__name__}); unpack "
            f"imagenette2-160.tgz as FOLDER/{PLACE} and pass --data FOLDER."
        ) from error
    return folder


RECIPE = Imagenette
