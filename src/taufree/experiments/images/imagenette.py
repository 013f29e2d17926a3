"""SimCLR on Imagenette, the paper's image benchmark, by LightlySSL's recipe.

9,469 training and 3,925 validation images of ten classes of ImageNet, 160 pixels on their shorter side.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taufree.experiments.images.decoded import DecodedImages, load_images
from taufree.experiments.images.listing import Listing, find_images, find_packed
from taufree.experiments.images.simclr import SimCLR
from taufree.util.cache import cache_folder, download
from taufree.util.files import refuse_file

PLACE = "imagenette2-160"
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
    data_source = (
        f"{PLACE} in the folder --data, with train/CLASS and val/CLASS, or tar files of them; downloaded if "
        "no folder is given."
    )
    example = "taufree run imagenette --links free,calibrated,0.1,0.5 --epochs 100 --set knn_every=5"

    def check(self, data: Path | None) -> None:
        if data is not None:
            _check_folder(_place(data))

    def find(self, data: Path | None) -> DecodedImages:
        listing = _download() if data is None else find_imagenette(_place(data))
        return load_images(listing.thinned(self.settings.subset), self.stored_side)


def _place(data: Path) -> Path:
    refuse_file(data, f"{PLACE} with train and val, or tar files of them")
    return data / PLACE


def find_imagenette(folder: Path) -> Listing:
    """The images of a folder with ``train`` and ``val``, or with tar files of them."""
    tars = _check_folder(folder)
    listing = find_packed(folder, tars) if tars else find_images(folder)
    return replace(listing, classes=tuple(NAMES.get(name, name) for name in listing.classes))


def _check_folder(folder: Path) -> list[Path]:
    """The tar files of the folder, none if it has ``train`` and ``val``; ValueError if it has neither."""
    if not folder.is_dir():
        raise ValueError(
            f"No such folder: {folder}, which must hold train and val, or tar files of them; "
            "without --data they are downloaded."
        )
    tars = sorted(folder.glob("*.tar"))
    if not tars and not ((folder / "train").is_dir() and (folder / "val").is_dir()):
        packed = [path.name for path in sorted(folder.iterdir()) if path.suffix in (".tgz", ".gz")]
        hint = f"; {packed[0]} is compressed: unpack it" if packed else ""
        raise ValueError(
            f"{folder} must hold train and val with a folder for each class, or tar files of them{hint}."
        )
    return tars


def _download() -> Listing:
    from torchvision import datasets

    def make(draft: Path) -> None:
        draft.mkdir()
        datasets.Imagenette(draft, split="train", size="160px", download=True)

    return download(
        cache_folder() / "imagenette",
        make,
        lambda folder: find_imagenette(folder / PLACE),
        title="Imagenette",
        advice=f"unpack imagenette2-160.tgz as FOLDER/{PLACE} and pass --data FOLDER",
    )
