"""SimCLR on any folder of images, ``FOLDER/train/CLASS`` and ``FOLDER/val/CLASS`` or ``FOLDER/CLASS``.

Labels are used to judge the features, not to train them.
"""

from __future__ import annotations

from pathlib import Path

from taufree.experiments.images.decoded import DecodedImages, load_images
from taufree.experiments.images.listing import Listing, find_images
from taufree.experiments.images.simclr import SimCLR


class FolderOfImages(SimCLR):
    name = "images"
    title = "SimCLR on a folder of images"
    data_source = "Your own: the folder --data holds train/CLASS and val/CLASS (or test/CLASS), or CLASS."
    example = "taufree run images --data FOLDER --links free,0.5 --set crop=96"

    def content(self, data: Path | None) -> str:
        return self._listing(data).fingerprint()

    def find(self, data: Path | None) -> DecodedImages:
        return load_images(self._listing(data), self.stored_side)

    def _listing(self, data: Path | None) -> Listing:
        if data is None:
            raise ValueError("the recipe images needs --data FOLDER, a folder with a folder for each class.")
        return find_images(data).thinned(self.settings.subset)
