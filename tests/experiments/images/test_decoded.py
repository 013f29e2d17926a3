"""Decoding once: sizes, colours, the cache, damaged files, too little disk."""

import shutil
from collections import namedtuple
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from taufree.experiments.images import decoded as module
from taufree.experiments.images.decoded import ahead, decode, fits, from_arrays, load_images
from taufree.experiments.images.listing import find_images
from taufree.util.cache import cache_folder
from tests.support.photographs import patches, write_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return write_folder(tmp_path / "pictures")


def encoded(image, kind="png", **options):
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_images_are_what_pillow_reads(folder):
    listing = find_images(folder)
    found = load_images(listing, 160)
    assert found.lines.shape == (24, 48, 3, 56)
    assert (found.training, found.skipped, found.classes) == (20, (), ("flower", "temple"))
    for number, file in enumerate((*listing.train, *listing.val)):
        with Image.open(file.path) as image:
            pixels = np.array(image)
        assert np.array_equal(found.lines[number].permute(0, 2, 1).numpy(), pixels)
        assert found.labels[number] == file.label
    assert found.sizes.tolist() == [[48, 56]] * 24
    assert found.bytes == 24 * 48 * 3 * 56


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_a_photograph_stands_as_viewers_show_it(folder, kind):
    shutil.rmtree(folder / "flower")
    (folder / "flower").mkdir()
    image = patches([(30, 40)])[0]
    expected = {}
    for tag in range(1, 9):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = tag
        path = folder / "flower" / f"{tag}.{kind}"
        image.save(path, exif=exif)
        with Image.open(path) as opened:
            expected[f"flower/{path.name}"] = np.array(ImageOps.exif_transpose(opened).convert("RGB"))
    listing = find_images(folder)
    found = load_images(listing, 160)
    for number, file in enumerate((*listing.train, *listing.val)):
        if file.name in expected:
            height, width = found.sizes[number].tolist()
            pixels = found.lines[number, :height, :, :width].permute(0, 2, 1).numpy()
            assert np.array_equal(pixels, expected.pop(file.name))
    assert expected == {}
    assert found.skipped == ()


def test_a_palette_with_transparency_has_its_colours_and_no_warning(recwarn):
    image = patches([(30, 40)])[0].quantize()
    image.info["transparency"] = bytes(range(256))
    pixels = decode(encoded(image), 160)
    assert np.array_equal(pixels.transpose(0, 2, 1), np.array(image.convert("RGBA"))[..., :3])
    assert not recwarn.list


def test_damaged_tags_make_no_image_unreadable():
    image = patches([(30, 40)])[0]
    raw = encoded(image, "jpeg", exif=b"Exif\0\0no tags at all")
    assert decode(raw, 160).shape == (30, 3, 40)


def test_the_next_run_decodes_nothing_and_a_changed_image_is_decoded_again(folder, monkeypatch):
    first = load_images(find_images(folder), 160)
    decoded = []
    monkeypatch.setattr(module, "decode", lambda raw, side: decoded.append(1) or decode(raw, side))
    again = load_images(find_images(folder), 160)
    assert decoded == []
    assert torch.equal(first.lines, again.lines)
    path = folder / "flower" / "001.jpg"
    patches([(30, 40)])[0].save(path)
    changed = load_images(find_images(folder), 160)
    assert len(decoded) == 24
    assert changed.sizes.unique(dim=0).tolist() == [[30, 40], [48, 56]]
    assert len(list((cache_folder() / "images").glob(".*.draft"))) == 0


def test_a_broken_off_decoding_is_begun_again(folder, monkeypatch):
    def stop(raw, side):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "decode", stop)
    with pytest.raises(KeyboardInterrupt):
        load_images(find_images(folder), 160)
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(folder.parent / "home"))
    assert load_images(find_images(folder), 160).lines.float().std() > 10


@pytest.mark.parametrize("name", ["lines.npy", "about.json"])
def test_a_damaged_cache_is_made_again(folder, name):
    first = load_images(find_images(folder), 160).lines.clone()
    (path,) = (cache_folder() / "images").glob(f"*/{name}")
    for damaged in (path.read_bytes()[:-100], b""):
        path.write_bytes(damaged)
        assert torch.equal(load_images(find_images(folder), 160).lines, first)
    path.unlink()
    assert torch.equal(load_images(find_images(folder), 160).lines, first)


def test_damaged_images_are_named_and_left_out(folder):
    listing = find_images(folder)
    whole = load_images(listing, 160)
    val = listing.val[1].path
    (folder / "flower" / "000.png").write_bytes(b"no picture at all")
    val.write_bytes(val.read_bytes()[:300])
    again = find_images(folder)
    found = load_images(again, 160)
    assert found.skipped == ("flower/000.png", listing.val[1].name)
    assert (len(found.labels), found.training) == (23, 20)
    kept = [file.name for file in (*again.train, *again.val) if file.name not in found.skipped]
    old = [file.name for file in (*listing.train, *listing.val)]
    for number, name in enumerate(kept):
        assert torch.equal(found.lines[number], whole.lines[old.index(name)]), name


def test_nothing_but_damaged_images_is_one_sentence(folder):
    for path in folder.rglob("*.jpg"):
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"none of 24 images can be read, flower/001\.jpg being the first\."):
        load_images(find_images(folder), 160)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P", "1"])
def test_every_mode_becomes_three_channels(mode):
    (image,) = patches([(40, 30)])
    other = image.quantize() if mode == "P" else image.convert(mode)
    raw = encoded(other, "jpeg" if mode in ("L", "CMYK") else "png")
    lines = decode(raw, 160)
    assert lines.shape == (40, 3, 30)
    if mode in ("L", "1"):
        assert np.array_equal(lines[:, 0], lines[:, 2])
    else:
        assert np.abs(lines.transpose(0, 2, 1).astype(float) - np.asarray(image)).mean() < 12


@pytest.mark.parametrize("kind", ["png", "tiff", "ppm"])
def test_16_bits_keep_their_greys(kind):
    greys = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    ppm = b"P5 16 16 65535\n" + greys.astype(">u2").tobytes()  # older Pillows read it and do not write it
    lines = decode(ppm if kind == "ppm" else encoded(Image.fromarray(greys), kind), 160)
    assert np.array_equal(lines, np.repeat(greys[:, None] // 257, 3, axis=1))


def test_floating_point_is_left_out_and_named(folder):
    Image.fromarray(np.random.default_rng(0).random((40, 40), np.float32)).save(folder / "flower" / "map.tif")
    assert load_images(find_images(folder), 160).skipped == ("flower/map.tif",)


def test_large_images_are_shrunk_and_very_long_ones_cut():
    (image,) = patches([(200, 300)])
    lines = decode(encoded(image), 100)
    assert lines.shape == (100, 3, 150)
    smaller = np.asarray(image.resize((150, 100), Image.Resampling.BILINEAR))
    assert np.array_equal(lines.transpose(0, 2, 1), smaller)
    (image,) = patches([(50, 300)])
    assert np.array_equal(decode(encoded(image), 100).transpose(0, 2, 1), np.asarray(image)[:, 100:200])


def test_too_little_disk_is_said_before_anything_is_written(folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1000))
    with pytest.raises(ValueError, match=r"the decoded images need 0\.0 GB in .*, where 0\.0 GB are left\."):
        load_images(find_images(folder), 160)
    assert not list((cache_folder() / "images").glob("*/lines.npy"))


def test_arrays_in_memory():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    found = from_arrays(pixels[:3], np.array([[0], [1], [0]]), pixels[3:], np.array([1, 0]), ("a", "b"))
    assert found.lines.shape == (5, 4, 3, 6)
    assert np.array_equal(found.lines.permute(0, 1, 3, 2).numpy(), pixels)
    assert found.labels.tolist() == [0, 1, 0, 1, 0]
    assert found.sizes.tolist() == [[4, 6]] * 5


def test_images_stay_on_a_device_that_has_twice_the_room(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    cuda = torch.device("cuda")
    assert fits(500, cuda)
    assert not fits(501, cuda)
    assert fits(10**15, torch.device("cpu"))


def test_items_are_made_ahead_in_order_and_errors_come_through():
    begun = []
    items = ahead(lambda x: begun.append(x) or x, range(20), count=3)
    assert next(items) == 0
    assert len(begun) <= 5
    assert list(items) == list(range(1, 20))
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda x: 1 / x, [1, 0]))
