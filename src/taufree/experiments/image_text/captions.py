"""Where images and their captions are: a file of captions beside images, or tar files that have both.

A folder has a captions file (``captions.tsv``, ``.csv`` or ``.txt``) whose rows begin with the name of an
image and end with a caption, and images in folders or in tar files; or tar files as webdataset makes them,
with the members ``KEY.jpg`` and ``KEY.txt``, a caption a line. Images are not unpacked.
"""

from __future__ import annotations

import csv
import hashlib
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path, PurePosixPath

import numpy as np

from taufree.experiments.images.listing import SUFFIXES, ImageFile, Listing
from taufree.util.files import check_folder

PARTS = ("train", "dev", "test")
CAPTION_FILES = ("captions.tsv", "captions.csv", "captions.txt")
_PART_NAMES = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}
_PART = re.compile(rf"({'|'.join(_PART_NAMES)})(?![a-z])")
_NUMBER = re.compile(r"#\d+$")


@dataclass(frozen=True)
class CaptionedImages:
    """Images, whose label is the number of their part, with their captions by name.

    Attributes:
        listing: ``train`` has the first part, ``val`` the other two.
        captions: those of each image, one at least.
        notes: a sentence for each kind of thing that was left out.
    """

    listing: Listing
    captions: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """A text that changes with the images, their captions and their parts."""
        digest = hashlib.sha256(self.listing.fingerprint().encode())
        for file in self.listing.train + self.listing.val:
            digest.update(repr(self.captions[file.name]).encode())
        return digest.hexdigest()[:20]


def check_captions(folder: Path | None) -> Path:
    """The folder, or ``flickr8k`` in it; a ValueError with one sentence if there are no captions."""
    if folder is None:
        raise ValueError("the recipe clip needs --data FOLDER, a folder of images with their captions.")
    check_folder(folder, "images and captions")
    if (folder / "flickr8k").is_dir():
        folder = folder / "flickr8k"
    if not any((folder / name).is_file() for name in CAPTION_FILES) and not any(folder.rglob("*.tar")):
        raise ValueError(
            f"{folder} must hold {', '.join(CAPTION_FILES[:-1])} or {CAPTION_FILES[-1]}, or tar files of "
            "KEY.jpg and KEY.txt, but holds neither."
        )
    return folder


def find_captions(folder: Path | None, subset: int = 0) -> CaptionedImages:
    """The images and captions of a folder.

    The parts are what ``train.txt``, ``dev.txt`` (or ``val.txt``) and ``test.txt`` list; without these lists,
    what the names of the tar files or folders begin with; without such names, a tenth each of the images for
    ``dev`` and ``test``, chosen by a hash of their names.

    Args:
        subset: so many images of each part at most, evenly spread; 0 is all.

    Raises ValueError with one sentence where there is nothing to train, to choose or to test with.
    """
    folder = check_captions(folder)
    images, texts = _find_files(folder)
    names = _Names(images)
    captions, notes = _paired(folder, images, texts, names)
    files = []
    for label, (part, listed) in enumerate(_split(folder, images, names).items()):
        chosen = [name for name in listed if name in captions]
        if not chosen:
            raise ValueError(f"the part {part} of {folder} must have images with captions, but has none.")
        if subset:
            spread = np.linspace(0, len(chosen) - 1, min(subset, len(chosen))).round().astype(int)
            chosen = [chosen[i] for i in spread]
        files.append(tuple(replace(images[name], label=label) for name in chosen))
    listing = Listing(PARTS, files[0], files[1] + files[2])
    return CaptionedImages(listing, {name: tuple(own) for name, own in captions.items()}, tuple(notes))


def _paired(
    folder: Path, images: Mapping[str, ImageFile], texts: Mapping[str, ImageFile], names: _Names
) -> tuple[dict[str, list[str]], list[str]]:
    """The captions of each image that has any, and a sentence for what was left out."""
    file = next((folder / name for name in CAPTION_FILES if (folder / name).is_file()), None)
    rows = [(key, line) for key, text in texts.items() for line in _lines(text)]
    captions: dict[str, list[str]] = {}
    lost = []
    for key, caption in _read_rows(file) if file else rows:
        if (name := names.find(key)) is None:
            lost.append(key)
        else:
            captions.setdefault(name, []).append(caption)
    if not captions:
        raise ValueError(f"{file or folder} must have captions of images in {folder}, but has none.")
    notes = []
    if lost:
        notes.append(f"{len(lost)} captions have no image and are left out, that of {lost[0]} the first.")
    if bare := [name for name in images if name not in captions]:
        notes.append(f"{len(bare)} images have no caption and are left out, {bare[0]} the first.")
    return captions, notes


class _Names:
    """Finds an image by its name in the folder or in a tar file, or by the end of it if no other has that."""

    def __init__(self, images: Iterable[str]) -> None:
        self._ends: dict[str, str | None] = {}
        for name in images:
            path = PurePosixPath(name)
            for end in (path.name, path.name.partition(".")[0]):  # the latter is webdataset's key
                self._ends[end] = None if end in self._ends else name
        self._ends.update({name: name for name in images})

    def find(self, name: str) -> str | None:
        return self._ends.get(name) or self._ends.get(PurePosixPath(name).name)


def _find_files(folder: Path) -> tuple[dict[str, ImageFile], dict[str, ImageFile]]:
    """The images of a folder and of its tar files by name, and the texts in the tar files by key."""
    images: dict[str, ImageFile] = {}
    texts: dict[str, ImageFile] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts):  # such as .ipynb_checkpoints, with copies
            continue
        suffix = path.suffix.lower()
        if suffix in SUFFIXES and path.is_file():
            name = inside.as_posix()
            images[name] = ImageFile(path, name, 0, 0, path.stat().st_size)
        elif suffix == ".tar":
            for member in _members(path):
                kind = PurePosixPath(member.name).suffix.lower()
                at = ImageFile(path, member.name, 0, member.offset_data, member.size)
                if kind in SUFFIXES:
                    if member.name in images:
                        raise ValueError(f"{path} has {member.name}, a name that {folder} has twice.")
                    images[member.name] = at
                elif kind == ".txt":
                    texts[PurePosixPath(member.name).name.partition(".")[0]] = at
    return images, texts


def _members(path: Path) -> list[tarfile.TarInfo]:
    try:
        # Not a compressed one, whose members have no places in it. Names that are not UTF-8 must become
        # texts that are: they are hashed and written.
        with tarfile.open(path, "r:", errors="backslashreplace") as tar:
            return [one for one in tar.getmembers() if one.isfile()]
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{path} is damaged or no tar file ({reason}).") from error


def _lines(text: ImageFile) -> list[str]:
    whole = text.read().decode("utf-8", errors="replace")
    return [line.strip() for line in whole.splitlines() if line.strip()]


def _read_rows(path: Path) -> list[tuple[str, str]]:
    """Names and captions of a table with tabs or commas; ``name#3`` is the third caption of the image."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if "\t" in text.partition("\n")[0]:
            table = list(csv.reader(StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))
        else:
            table = list(csv.reader(StringIO(text, newline="")))
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a table of names and captions in UTF-8 ({error}).") from error
    rows = []
    for number, cells in enumerate(table, start=1):
        name = _NUMBER.sub("", cells[0].strip()) if cells else ""
        caption = cells[-1].strip() if len(cells) > 1 else ""
        if not name or (number == 1 and PurePosixPath(name).suffix.lower() not in SUFFIXES):
            continue  # an empty line, or a head
        if not caption:
            raise ValueError(f"{path} must have a name and a caption in each row, row {number} has not.")
        rows.append((name, caption))
    return rows


def _split(folder: Path, images: Mapping[str, ImageFile], names: _Names) -> dict[str, list[str]]:
    """The names of the images of each part."""
    lists = {part: _list_of(folder, part) for part in PARTS}
    if any(lists.values()):
        return {
            part: [name for one in _listed(path) if (name := names.find(one))] if path else []
            for part, path in lists.items()
        }
    tops = {name: at.path.relative_to(folder).parts[0] for name, at in images.items()}
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    named = any(_PART.match(top.lower()) for top in set(tops.values()))
    for name, top in tops.items():
        if named:
            if found := _PART.match(top.lower()):
                parts[_PART_NAMES[found.group(1)]].append(name)
        else:
            own = PurePosixPath(name).name.encode(errors="surrogateescape")
            tenth = int(hashlib.sha256(own).hexdigest(), 16) % 10
            parts[{0: "test", 1: "dev"}.get(tenth, "train")].append(name)
    return parts


def _list_of(folder: Path, part: str) -> Path | None:
    """The file that lists the images of a part, if there is one."""
    found = [folder / f"{name}.txt" for name, of in _PART_NAMES.items() if of == part]
    return next((path for path in found if path.is_file()), None)


def _listed(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeError as error:
        raise ValueError(f"{path} must be a list of images in UTF-8 ({error}).") from error
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
