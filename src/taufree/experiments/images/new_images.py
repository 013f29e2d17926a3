"""Images that a trained network has not seen: all of a folder, as their middles, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from taufree.experiments.images.augment import centre_view
from taufree.experiments.images.decoded import DecodedImages, load_images
from taufree.experiments.images.listing import find_all

IMAGES_PER_CHUNK = 128


class NewImages:
    """The images of a folder, at any depth; those that cannot be read are left out.

    Args:
        folder: where they are.
        side: pixels of the shorter side that they are shrunk to, as those of the training were.
    """

    def __init__(self, folder: Path, side: int) -> None:
        listing = find_all(folder)
        self._images: DecodedImages = load_images(listing, side)
        self.skipped = self._images.skipped
        left_out = set(self.skipped)
        self.names = [file.name for file in listing.val if file.name not in left_out]

    @torch.no_grad()
    def vectors(
        self,
        embed: Callable[[Tensor], Tensor],
        *,
        size: int,
        resize: int,
        device: torch.device,
        watch: Callable[[int, int], None],
    ) -> Tensor:
        """What ``embed`` makes of all middles [N, 3, size, size], on the CPU in float32.

        Args:
            watch: called with how many images are done, of how many.
        """
        found = []
        for rows in torch.split(torch.arange(len(self.names)), IMAGES_PER_CHUNK):
            lines, sizes = self._images.lines[rows].to(device), self._images.sizes[rows].to(device)
            found.append(embed(centre_view(lines, sizes, size=size, resize=resize)).float().cpu())
            watch(int(rows[-1]) + 1, len(self.names))
        return torch.cat(found)
