"""What is kept for the report, and the figures drawn from it."""

import base64
from io import BytesIO

import numpy as np
from PIL import Image

from taufree.experiments.evaluation.report_arrays import THUMBNAIL_SIDE, load_arrays, save_arrays
from taufree.experiments.report.galleries import extreme_figure, map_figure, neighbour_figure


def arrays(count=30):
    draw = np.random.default_rng(0)
    labels, signs = np.arange(count) % 2, np.tile([1, -1], 4)
    return {
        "features": np.where(labels[:, None], signs, 1) + 0.1 * draw.normal(size=(count, 8)),
        "labels": labels,
        "classes": np.array(["cat", "dog"]),
        "thumbnails": np.full((2, 3, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3), 120, np.uint8),
        "thumbnail_labels": np.array([[0, 0, 0], [1, 0, 1]]),
    }


def test_arrays_are_written_whole_and_read_back(tmp_path):
    path = tmp_path / "embeddings" / "a.npz"
    save_arrays(path, arrays())
    found = load_arrays(path)
    assert all(np.array_equal(found[name], value) for name, value in arrays().items())
    assert [entry.name for entry in path.parent.iterdir()] == ["a.npz"]
    assert load_arrays(tmp_path / "absent.npz") is None
    whole = path.read_bytes()
    for damaged in (b"damaged", b"", whole[:-100], whole[:200] + b"0000" + whole[204:]):
        path.write_bytes(damaged)
        assert load_arrays(path) is None


def test_the_map_has_every_image_in_its_class_and_keeps_classes_apart():
    fig = map_figure(arrays())
    assert [trace.name for trace in fig.data] == ["cat", "dog"]
    cats, dogs = (np.stack([trace.x, trace.y], axis=1) for trace in fig.data)
    assert len(cats) == len(dogs) == 15
    gap = np.linalg.norm(cats.mean(0) - dogs.mean(0))
    assert gap > 2 * max(part.std(0).max() for part in (cats, dogs))


def test_a_single_image_is_a_map_too():
    fig = map_figure(arrays(1))
    assert [len(trace.x) for trace in fig.data] == [1, 0]


def test_neighbours_of_another_class_are_framed():
    fig = neighbour_figure(arrays())
    sheet = np.asarray(Image.open(BytesIO(base64.b64decode(fig.data[0].source.split(",")[1]))).convert("RGB"))
    red = (sheet == (209, 73, 91)).all(-1)
    cell = THUMBNAIL_SIDE + 8
    assert red[:cell].sum() == 0
    assert red[cell:].sum() == (THUMBNAIL_SIDE + 6) ** 2 - THUMBNAIL_SIDE**2
    # The only wrong one is the first neighbour of the second query.
    assert red[cell:, cell : 2 * cell + 8].sum() == red.sum()
    assert list(fig.layout.yaxis.ticktext) == ["cat", "dog"]


def test_extremes_on_the_wrong_side_are_framed():
    pictures = np.full((2, 3, THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3), 120, np.uint8)
    anomalous = np.array([[True, True, False], [False, False, True]])
    fig = extreme_figure({"thumbnails": pictures, "anomalous": anomalous})
    sheet = np.asarray(Image.open(BytesIO(base64.b64decode(fig.data[0].source.split(",")[1]))).convert("RGB"))
    cell = THUMBNAIL_SIDE + 8
    # Three pictures take two lines of two: the third one stands below the first.
    cells = sheet[: 4 * cell, : 2 * cell].reshape(4, cell, 2, cell, 3)
    red = (cells == (209, 73, 91)).all(-1).any((1, 3))
    assert red.tolist() == [[False, False], [True, False], [False, False], [True, False]]
    grey = (cells == 120).all(-1).any((1, 3))
    assert grey.tolist() == [[True, True], [True, False], [True, True], [True, False]]
