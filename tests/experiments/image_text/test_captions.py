"""Images with captions: every layout gives the same, and what is wrong with one is said in a sentence."""

import io
import os
import shutil
import sys
import tarfile

import pytest

from taufree.experiments.image_text.captions import PARTS, find_captions
from tests.support.paths import DATA, needs_data


def parts_of(found):
    """The names of each part's images, without folders."""
    files = found.listing.train + found.listing.val
    return {
        part: [os.path.basename(file.name) for file in files if file.label == label]
        for label, part in enumerate(PARTS)
    }


def pack(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def refused(folder):
    with pytest.raises(ValueError, match=r"^[^\n]*\.$") as caught:
        find_captions(folder)
    return str(caught.value)


def test_names_captions_and_parts_are_those_of_the_files(data):
    found = find_captions(data)
    assert {part: len(names) for part, names in parts_of(found).items()} == {"train": 24, "dev": 8, "test": 8}
    assert found.captions["images/001.jpg"] == (
        "A table with 0 0 1 people .",
        "A table with 0 0 1 dogs .",
    )
    assert found.notes == ()
    first = found.listing.train[0]
    assert first.read() == (data / "images" / "000.jpg").read_bytes()


def test_a_tar_of_images_and_a_table_with_commas_are_the_same(data):
    before, raw = find_captions(data), (data / "images" / "003.jpg").read_bytes()
    with tarfile.open(data / "images.tar", "w") as tar:
        for path in sorted((data / "images").iterdir()):
            tar.add(path, path.name)
    shutil.rmtree(data / "images")
    rows = [line.split("\t") for line in (data / "captions.tsv").read_text().splitlines()]
    (data / "captions.tsv").unlink()
    table = "\n".join(["image,caption", *(f'{name.partition("#")[0]},"{text}"' for name, text in rows)])
    (data / "captions.csv").write_text(table)
    (data / "dev.txt").rename(data / "val.txt")
    found = find_captions(data)
    assert parts_of(found) == parts_of(before)
    assert {f"images/{name}": text for name, text in found.captions.items()} == before.captions
    assert found.listing.train[3].read() == raw


def test_webdataset_has_captions_in_its_tars_whose_names_are_the_parts(data, tmp_path):
    before = find_captions(data)
    packed = tmp_path / "packed"
    packed.mkdir()
    for part, names in parts_of(before).items():
        members = {}
        for name in names:
            members[name] = (data / "images" / name).read_bytes()
            text = "\n".join(before.captions[f"images/{name}"])
            members[name.replace(".jpg", ".txt")] = text.encode()
        pack(packed / f"{part}-000.tar", members)
    found = find_captions(packed)
    assert parts_of(found) == parts_of(before)
    assert {f"images/{name}": text for name, text in found.captions.items()} == before.captions
    (packed / "dev-000.tar").unlink()
    assert refused(packed) == f"the part dev of {packed} must have images with captions, but has none."


def test_without_lists_a_hash_of_the_names_splits(data, tmp_path):
    for part in PARTS:
        (data / f"{part}.txt").unlink()
    found = find_captions(data)
    sizes = {part: len(names) for part, names in parts_of(found).items()}
    assert sum(sizes.values()) == 40
    assert sizes["train"] > 24
    moved = data.rename(tmp_path / "elsewhere")
    (moved / "images" / "000.jpg").unlink()
    now = parts_of(find_captions(moved))
    assert now == {
        part: [name for name in names if name != "000.jpg"] for part, names in parts_of(found).items()
    }


def test_a_subset_is_spread_over_each_part(data):
    assert parts_of(find_captions(data, 3)) == {
        "train": ["000.jpg", "012.jpg", "023.jpg"],
        "dev": ["024.jpg", "028.jpg", "031.jpg"],
        "test": ["032.jpg", "036.jpg", "039.jpg"],
    }


def test_the_fingerprint_changes_with_captions_images_and_parts(data):
    seen = [find_captions(data).fingerprint()]
    assert find_captions(data).fingerprint() == seen[0]
    text = (data / "captions.tsv").read_text()
    (data / "captions.tsv").write_text(text.replace("0 0 1 dogs", "0 0 1 cats"))
    seen.append(find_captions(data).fingerprint())
    shutil.copy(data / "images" / "002.jpg", data / "images" / "001.jpg")
    seen.append(find_captions(data).fingerprint())
    train, dev = (data / "train.txt").read_text(), (data / "dev.txt").read_text()
    (data / "train.txt").write_text(dev)
    (data / "dev.txt").write_text(train)
    seen.append(find_captions(data).fingerprint())
    assert len(set(seen)) == 4


def test_what_has_no_counterpart_is_left_out_and_named(data):
    with (data / "captions.tsv").open("a") as file:
        file.write("\nnowhere.jpg#0\tA dog .")
    shutil.copy(data / "images" / "000.jpg", data / "images" / "silent.jpg")
    found = find_captions(data)
    assert found.notes == (
        "1 captions have no image and are left out, that of nowhere.jpg the first.",
        "1 images have no caption and are left out, images/silent.jpg the first.",
    )
    assert len(found.captions) == 40


def test_folders_without_captions_or_parts_are_refused_in_a_sentence(data, tmp_path):
    assert refused(None).startswith("the recipe clip needs --data FOLDER")
    assert refused(tmp_path / "nothing").startswith("No such folder: ")
    (data / "test.txt").write_text("")
    assert refused(data) == f"the part test of {data} must have images with captions, but has none."
    (data / "captions.tsv").write_text("000.jpg#0\tA dog .\n001.jpg#0\n")
    assert refused(data).endswith("captions.tsv must have a name and a caption in each row, row 2 has not.")
    (data / "captions.tsv").write_text("image\tcaption\n")
    assert refused(data) == f"{data / 'captions.tsv'} must have captions of images in {data}, but has none."
    (data / "captions.tsv").write_bytes(b"\xff\xfe\x00")
    assert "captions.tsv must be a table of names and captions in UTF-8" in refused(data)
    (data / "captions.tsv").unlink()
    assert refused(data).startswith(
        f"{data} must hold captions.tsv, captions.csv or captions.txt, or tar files"
    )
    (data / "images.tar").write_bytes(b"no tar")
    assert "images.tar is damaged or no tar file" in refused(data)
    (data / "images.tar").unlink()
    (data / "images.tar").mkdir()
    assert refused(data) == f"{data / 'images.tar'} is damaged or no tar file (Is a directory)."
    assert refused(data / "test.txt").endswith("must be a folder that holds images and captions, got a file.")


def test_a_list_that_is_not_utf_8_is_named(data):
    (data / "train.txt").write_bytes(b"caf\xe9.jpg\n")
    assert refused(data).startswith(f"{data / 'train.txt'} must be a list of images in UTF-8 (")


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_in_a_tar_need_not_be_utf_8(data, tmp_path, kind):
    image, folder = (data / "images" / "000.jpg").read_bytes(), tmp_path / "shards"
    folder.mkdir()
    with tarfile.open(folder / "all.tar", "w", format=kind, encoding="latin-1") as tar:
        for number in range(40):
            for suffix, content in ((".jpg", image), (".txt", b"A dog .")):
                info = tarfile.TarInfo(f"caf\xe9{number}{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    found = find_captions(folder)
    assert len(found.captions) == 40
    assert found.fingerprint()
    assert found.listing.train[0].name.encode()


@pytest.mark.skipif(sys.platform != "linux", reason="the file system takes UTF-8 names alone")
def test_names_in_a_folder_need_not_be_utf_8(data):
    for part in PARTS:
        (data / f"{part}.txt").unlink()
    before = parts_of(find_captions(data))
    shutil.copy(data / "images" / "000.jpg", os.fsencode(data / "images") + b"/caf\xe9.jpg")
    assert parts_of(find_captions(data)) == before  # it has no caption


def test_two_images_of_one_name_are_refused(data):
    for name in ("a.tar", "b.tar"):
        pack(data / name, {"1.jpg": b"x"})
    assert refused(data) == f"{data / 'b.tar'} has 1.jpg, a name that {data} has twice."


@needs_data("flickr8k")
def test_flickr8k_is_6000_1000_1000_with_five_captions_each():
    found = find_captions(DATA)
    assert found.fingerprint() == find_captions(DATA / "flickr8k").fingerprint()
    assert [len(names) for names in parts_of(found).values()] == [6000, 1000, 1000]
    assert {len(own) for own in found.captions.values()} == {5}
