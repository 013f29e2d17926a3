"""Finding images: folders, tar files, the split, and what is refused."""

import shutil
import tarfile

import pytest

from taufree.experiments.images.listing import find_cases, find_images, find_packed
from tests.support.photographs import write_folder


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 6), ("val", 3)):
        write_folder(tmp_path / "pictures" / part, count)
    return tmp_path / "pictures"


def names(files):
    return [file.name for file in files]


def test_train_and_val_are_taken_as_they_are(folder):
    found = find_images(folder)
    assert found.classes == ("flower", "temple")
    assert names(found.val) == [f"flower/00{i}.jpg" for i in (1, 3, 5)] + [
        f"temple/00{i}.jpg" for i in (0, 2, 4)
    ]
    assert [file.label for file in found.train] == [0] * 6 + [1] * 6
    assert found.val[0].read() == (folder / "val" / "flower" / "001.jpg").read_bytes()


def test_held_out_images_may_be_called_test(folder):
    expected = find_images(folder)
    (folder / "val").rename(folder / "test")  # train and test are no classes
    found = find_images(folder)
    assert (found.classes, names(found.train), names(found.val)) == (
        expected.classes,
        names(expected.train),
        names(expected.val),
    )


@pytest.mark.parametrize(
    ("train", "val"), [("train", "valid"), ("Train", "Test"), ("training", "validation")]
)
def test_parts_of_another_name_are_not_taken_for_classes(folder, train, val):
    (folder / "val").rename(folder / val)
    (folder / "train").rename(folder / train)
    with pytest.raises(
        ValueError, match=f"holds {train} and {val} with the same folder flower; .* val or test"
    ):
        find_images(folder)


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path, 12)
    (tmp_path / "temple").rename(tmp_path / "train")
    assert find_images(tmp_path).classes == ("flower", "train")


def test_classes_alone_are_split_by_their_names(tmp_path):
    write_folder(tmp_path, 12)
    found = find_images(tmp_path)
    assert [len(part) for part in (found.train, found.val)] == [20, 4]
    assert [file.label for file in found.val] == [0, 0, 1, 1]
    assert not set(names(found.train)) & set(names(found.val))
    (tmp_path / "temple" / "000.jpg").write_bytes((tmp_path / "temple" / "002.jpg").read_bytes())
    assert names(find_images(tmp_path).val) == names(found.val)


def test_hidden_copies_are_no_images(folder):
    expected = find_images(folder)
    image = folder / "val" / "flower" / "001.jpg"
    for hidden in (".ipynb_checkpoints/001-checkpoint.jpg", "._001.jpg"):
        copy = folder / "train" / "flower" / hidden
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(image.read_bytes())
    assert find_images(folder) == expected


def test_tar_files_hold_the_same_as_their_folder(folder, tmp_path):
    tars = []
    for part, of_class in (("train", "flower"), ("train", "temple"), ("val", "")):
        tars.append(tmp_path / f"{part}{of_class}.tar")
        with tarfile.open(tars[-1], "w") as tar:
            tar.add(folder / part / of_class, f"imagenette2-160/{part}/{of_class}".rstrip("/"))
    packed, unpacked = find_packed(tmp_path, tars), find_images(folder)
    assert packed.classes == unpacked.classes
    for mine, theirs in ((packed.train, unpacked.train), (packed.val, unpacked.val)):
        assert [file.label for file in mine] == [file.label for file in theirs]
        assert [file.read() for file in mine] == [file.read() for file in theirs]


def test_the_fingerprint_tells_changes(folder):
    first = find_images(folder).fingerprint()
    assert find_images(folder).fingerprint() == first
    assert find_images(folder).thinned(4).fingerprint() != first
    image = folder / "train" / "flower" / "001.jpg"
    image.write_bytes(image.read_bytes() + b"\0")
    second = find_images(folder).fingerprint()
    assert second != first
    image.rename(folder / "train" / "temple" / "001.jpg")
    assert find_images(folder).fingerprint() not in (first, second)


def test_thinning_takes_from_all_classes(folder):
    found = find_images(folder).thinned(4)
    assert [file.label for file in found.train] == [0, 0, 1, 1]
    assert [len(part) for part in (found.train, found.val)] == [4, 4]
    assert find_images(folder).thinned(100) == find_images(folder)


def test_what_cannot_be_learned_from_is_one_sentence(folder, tmp_path):
    with pytest.raises(ValueError, match=r"^No such folder: \S+absent, which must hold images\.$"):
        find_images(tmp_path / "absent")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "a.jpg").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"bare must hold a folder of images for each class.* holds no folder"
    ):
        find_images(tmp_path / "bare")
    (folder / "train" / "empty").mkdir()
    with pytest.raises(ValueError, match=r"the class folder .*train/empty holds no images \(.bmp, "):
        find_images(folder)
    (folder / "train" / "empty").rmdir()
    shutil.move(folder / "train" / "temple", tmp_path / "temple")
    with pytest.raises(ValueError, match=r"two classes at least, but holds flower alone"):
        find_images(folder)
    shutil.copytree(folder / "train" / "flower", folder / "train" / "bloom")
    with pytest.raises(ValueError, match=r"the class temple of val in .* is none of train's"):
        find_images(folder)


def test_a_class_of_one_image_cannot_be_split(tmp_path):
    write_folder(tmp_path, 1)
    with pytest.raises(ValueError, match=r"flower has one image, but a class needs two"):
        find_images(tmp_path)


def test_a_damaged_tar_file_is_named(tmp_path):
    broken = tmp_path / "train-0.tar"
    broken.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ValueError, match=r"train-0\.tar is damaged or no tar file"):
        find_packed(tmp_path, [broken])
    with tarfile.open(broken, "w:gz") as tar:  # whose parts cannot be read by their places
        tar.add(__file__, "imagenette2-160/train/n01440764/a.jpg")
    with pytest.raises(ValueError, match=r"train-0\.tar is compressed: unpack it\.$"):
        find_packed(tmp_path, [broken])
    with tarfile.open(broken, "w") as tar:
        tar.add(__file__, "imagenette2-160/train/n01440764/a.txt")
    with pytest.raises(ValueError, match=r"hold no images of train/CLASS/"):
        find_packed(tmp_path, [broken])


def test_normal_images_are_trained_with_and_all_others_tested(folder):
    shutil.rmtree(folder / "train" / "flower")
    found = find_cases(folder, "temple", normal=True)
    assert found.classes == ("flower", "temple")
    assert names(found.train) == [f"train/temple/{2 * i:03d}.jpg" for i in range(6)]
    assert [file.label for file in found.train] == [1] * 6
    assert [name[:10] for name in names(found.val)] == ["val/flower"] * 3 + ["val/temple"] * 3
    assert names(find_cases(folder, "flower", normal=False).train) == names(found.train)
    (folder / "val").rename(folder / "test")
    assert names(find_cases(folder, "temple", normal=True).val)[0] == "test/flower/001.jpg"


def test_a_fifth_of_a_normal_class_is_held_out_and_others_are_tested_as_a_whole(tmp_path):
    write_folder(tmp_path, 12)
    usual, found = find_images(tmp_path), find_cases(tmp_path, "flower", normal=True)
    assert names(found.train) == [name for name in names(usual.train) if name.startswith("flower")]
    held_out = [name for name in names(usual.val) if name.startswith("flower")]
    assert names(found.val) == [*held_out, *(f"temple/{2 * i:03d}.jpg" for i in range(12))]


def test_no_normal_images_no_others_and_no_such_class_are_one_sentence(folder):
    with pytest.raises(ValueError, match=r"normal must be one of flower, temple, .*, got 'cat'\."):
        find_cases(folder, "cat", normal=True)
    shutil.rmtree(folder / "train" / "temple")
    with pytest.raises(ValueError, match=r"holds no normal images to train with"):
        find_cases(folder, "temple", normal=True)
    shutil.rmtree(folder / "val" / "temple")
    with pytest.raises(ValueError, match=r"val must hold normal and other images, but holds flower alone\."):
        find_cases(folder, "flower", normal=True)
    for path in (folder / "train" / "flower").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"the class folder .*train/flower holds no images"):
        find_cases(folder, "flower", normal=True)
