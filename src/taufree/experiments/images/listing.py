"""Where the images are: in folders of classes, or in tar files of such folders, which stay packed."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taufree.util.files import check_folder

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
IMAGES_PER_HELD_OUT = 5
"""One image in so many is for validation, where a folder does not say which."""
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How files begin that gzip, bzip2, xz or zstd has made."""
_Place = tuple[Path, str, int, int]


@dataclass(frozen=True)
class ImageFile:
    """``size`` bytes from ``start`` on in the file ``path``: an image, which errors call ``name``."""

    path: Path
    name: str
    label: int
    start: int
    size: int

    def read(self) -> bytes:
        """The encoded image."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True)
class Listing:
    """The images to train and to validate with, in the order of their classes."""

    classes: tuple[str, ...]
    train: tuple[ImageFile, ...]
    val: tuple[ImageFile, ...]

    def fingerprint(self) -> str:
        """A text that changes with the images, their labels, the times of their files and their parts.

        Files are known by their names in the folder, so that a folder may be moved.
        """
        digest = hashlib.sha256()
        times = {path: path.stat().st_mtime_ns for path in {file.path for file in self.train + self.val}}
        for part in (self.train, self.val):
            for file in part:
                fields = (file.name, file.label, file.start, file.size, times[file.path])
                digest.update(repr(fields).encode())
            digest.update(b"next part")
        return digest.hexdigest()[:20]

    def thinned(self, count: int) -> Listing:
        """At most ``count`` images of either part, evenly from all classes; 0 is all."""
        if not count:
            return self
        train, val = (
            tuple(part[i] for i in np.linspace(0, len(part) - 1, min(count, len(part))).round().astype(int))
            for part in (self.train, self.val)
        )
        return Listing(self.classes, train, val)


def find_images(folder: Path) -> Listing:
    """The images of a folder: of its train and val (or test), or of its classes, a fifth of each held out.

    A class is a folder of images, at any depth. Which fifth depends on the names alone: those of a class are
    sorted, shuffled by NumPy's generator with seed 0, and the first fifth (rounded down, but one at
    least) is for validation. Raises ValueError with one sentence where there is nothing to learn from.
    """
    check_folder(folder, "images")
    held_out = next((name for name in ("val", "test") if (folder / name).is_dir()), "")
    if held_out and (folder / "train").is_dir():
        train, val = (_in_folder(folder / part) for part in ("train", held_out))
        return _listing(folder, train, val)
    _refuse_parts(folder)
    train, val = {}, {}
    for name, files in _in_folder(folder).items():
        if len(files) < 2:
            raise ValueError(
                f"{folder / name} has one image, but a class needs two, one of them for validation."
            )
        train[name], val[name] = _split(files)
    return _listing(folder, train, val)


def find_all(folder: Path) -> Listing:
    """All images of a folder, at any depth and of no class, in the part that is not trained with."""
    check_folder(folder, "images")
    places = _places(folder, folder)
    if not places:
        raise ValueError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return Listing(("",), (), _labelled(("",), {"": places}))


def find_cases(folder: Path, one: str, *, normal: bool) -> Listing:
    """Normal images of ``folder`` to train with, and normal and other images to test.

    With ``train`` and ``test`` (or ``val``) in the folder, what is normal in ``train`` is trained with, and
    all of the other part is tested; ``train`` needs no other classes. In a folder of classes a fifth of each
    normal one is held out, as in :func:`find_images`, and other classes are tested as a whole.

    Args:
        folder: what the classes, or the parts with their classes, are in.
        one: the class that is normal, if ``normal``, or else the only one that is not.
    """
    check_folder(folder, "images")
    held_out = next((name for name in ("test", "val") if (folder / name).is_dir()), "")
    parts = [folder / "train", folder / held_out] if held_out and (folder / "train").is_dir() else [folder]
    classes = tuple(sorted({path.name for part in parts for path in _class_folders(part)}))
    if one not in classes:
        raise ValueError(f"normal must be one of {', '.join(classes)}, the classes of {folder}, got {one!r}.")
    if len(parts) == 2:
        train, test = (_in_folder(part, folder) for part in parts)
    else:
        train, test = {}, {}
        for name, files in _in_folder(folder).items():
            train[name], test[name] = _split(files) if (name == one) == normal else ([], files)
    train = {name: files for name, files in train.items() if (name == one) == normal}
    if not any(train.values()):
        raise ValueError(f"{folder} holds no normal images to train with, beside those that are held out.")
    if len({name == one for name in test}) < 2:
        raise ValueError(f"{parts[-1]} must hold normal and other images, but holds {', '.join(test)} alone.")
    return Listing(classes, _labelled(classes, train), _labelled(classes, test))


def _split(files: list[_Place]) -> tuple[list[_Place], list[_Place]]:
    """What is left of a class, and the fifth that is held out."""
    held_out = max(1, len(files) // IMAGES_PER_HELD_OUT)
    shuffled = np.random.default_rng(0).permutation(len(files))
    kept, held = ([files[i] for i in sorted(part)] for part in (shuffled[held_out:], shuffled[:held_out]))
    return kept, held


def find_packed(folder: Path, tars: Sequence[Path]) -> Listing:
    """The images of tar files whose members are called .../train/CLASS/... and .../val/CLASS/... ."""
    parts: dict[str, dict[str, list[_Place]]] = {"train": {}, "val": {}}
    for path in sorted(tars):
        try:
            with tarfile.open(path, "r:") as tar:  # a compressed one has no places to read from
                members = [one for one in tar.getmembers() if one.isfile()]
        except (tarfile.TarError, EOFError) as error:
            with path.open("rb") as file:
                compressed = file.read(6).startswith(COMPRESSED)
            why = "is compressed: unpack it" if compressed else f"is damaged or no tar file ({error})"
            raise ValueError(f"{path} {why}.") from error
        for member in members:
            names = Path(member.name).parts
            if len(names) >= 3 and names[-3] in parts and Path(member.name).suffix.lower() in SUFFIXES:
                place = (path, member.name, member.offset_data, member.size)
                parts[names[-3]].setdefault(names[-2], []).append(place)
    for name, part in parts.items():
        if not part:
            raise ValueError(f"the tar files in {folder} hold no images of {name}/CLASS/.")
    train, val = (
        {name: sorted(part[name], key=lambda place: place[1]) for name in sorted(part)}
        for part in parts.values()
    )
    return _listing(folder, train, val)


def _in_folder(folder: Path, above: Path | None = None) -> dict[str, list[_Place]]:
    """The images of each class, sorted; they are called by their path from ``above`` or else ``folder``."""
    found = {}
    for one in _class_folders(folder):
        found[one.name] = _places(one, above or folder)
        if not found[one.name]:
            raise ValueError(f"the class folder {one} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def _places(folder: Path, above: Path) -> list[_Place]:
    """The images of a folder, at any depth, sorted, and called by their path from ``above``."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return [
        (path, str(path.relative_to(above)), 0, path.stat().st_size)
        for path in files
        # Folders such as .ipynb_checkpoints have copies of images.
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _class_folders(folder: Path) -> list[Path]:
    classes = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not classes:
        raise ValueError(
            f"{folder} must hold a folder of images for each class, or the folders train and val with such "
            "folders, but holds no folder."
        )
    return classes


def _refuse_parts(folder: Path) -> None:
    """Parts of another name, such as train and valid, would be taken for classes."""
    inner = {
        one.name: {path.name for path in one.iterdir() if path.is_dir()} for one in _class_folders(folder)
    }
    for part in inner.keys() & {"train", "Train", "training"}:
        for name in inner.keys() - {part}:
            if shared := inner[part] & inner[name]:
                raise ValueError(
                    f"{folder} holds {part} and {name} with the same folder {min(shared)}; the part to train "
                    "with must be called train, that to validate with val or test."
                )


def _listing(folder: Path, train: dict[str, list[_Place]], val: dict[str, list[_Place]]) -> Listing:
    classes = tuple(train)
    if len(classes) < 2:
        raise ValueError(f"{folder} must hold two classes at least, but holds {', '.join(classes)} alone.")
    if unknown := [name for name in val if name not in train]:
        raise ValueError(f"the class {unknown[0]} of val in {folder} is none of train's.")
    return Listing(classes, _labelled(classes, train), _labelled(classes, val))


def _labelled(classes: tuple[str, ...], part: dict[str, list[_Place]]) -> tuple[ImageFile, ...]:
    return tuple(
        ImageFile(path, name, classes.index(one), start, size)
        for one, places in part.items()
        for path, name, start, size in places
    )
