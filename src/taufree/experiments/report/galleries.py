"""The figures of a trained encoder: a map of its features, neighbours, the most and the least anomalous, and
what images and captions find of each other."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from textwrap import shorten, wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from PIL import Image
from sklearn.manifold import TSNE

from taufree.experiments.evaluation.report_arrays import THUMBNAIL_SIDE, Arrays

_GAP_PIXELS = 8
_CELL_PIXELS = THUMBNAIL_SIDE + _GAP_PIXELS
_ROWS_OF_EXTREMES = 2
_WRONG_COLOUR, _RIGHT_COLOUR = (209, 73, 91), (60, 169, 81)
_CAPTION_LETTERS, _LINE_LETTERS = 64, 28
"""Of a caption that is shown whole in one line, and of a line of one that is wrapped."""
_COLOURS = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e",
    "#5f6b76",
)  # fmt: skip


def map_figure(arrays: Arrays) -> go.Figure:
    """t-SNE of the features' directions, a colour for each class."""
    features = arrays["features"].astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    perplexity = min(30.0, (len(features) - 1) / 3)
    places = np.zeros((len(features), 2))
    if perplexity:  # a single image has no others to be near to
        places = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(features)
    fig = go.Figure()
    for number, name in enumerate(arrays["classes"]):
        mine = places[arrays["labels"] == number]
        fig.add_scatter(
            x=mine[:, 0].tolist(),
            y=mine[:, 1].tolist(),
            mode="markers",
            marker={"size": 5, "opacity": 0.8, "color": _COLOURS[number % len(_COLOURS)]},
            name=str(name),
            hoverinfo="name",
        )
    fig.update_xaxes(showticklabels=False, zeroline=False)
    fig.update_yaxes(showticklabels=False, zeroline=False)
    fig.update_layout(height=600)
    return fig


def neighbour_figure(arrays: Arrays) -> go.Figure:
    """A row for each query: its image, and its neighbours, those of another class in a red frame."""
    labels = arrays["thumbnail_labels"]
    count, across = labels.shape
    fig = _sheet(arrays["thumbnails"], labels != labels[:, :1], first_apart=True)
    names = [str(arrays["classes"][label]) for label in labels[:, 0]]
    fig.update_yaxes(tickvals=[_CELL_PIXELS * (i + 0.5) for i in range(count)], ticktext=names)
    fig.update_xaxes(
        tickvals=[_CELL_PIXELS / 2, _CELL_PIXELS * (across + 1) / 2],
        ticktext=["query", "nearest training images"],
        side="top",
    )
    fig.update_layout(height=_CELL_PIXELS * count + 90)
    return fig


def extreme_figure(arrays: Arrays) -> go.Figure:
    """The highest scores, then the lowest, those on the wrong side in a red frame."""
    images, anomalous = arrays["thumbnails"], arrays["anomalous"]
    across = -(-anomalous.shape[1] // _ROWS_OF_EXTREMES)
    short = across * _ROWS_OF_EXTREMES - anomalous.shape[1]
    wrong = np.stack([~anomalous[0], anomalous[1]])
    images = np.pad(images, ((0, 0), (0, short), (0, 0), (0, 0), (0, 0)), constant_values=255)
    wrong = np.pad(wrong, ((0, 0), (0, short)))
    fig = _sheet(images.reshape(-1, across, *images.shape[2:]), wrong.reshape(-1, across))
    height = _CELL_PIXELS * _ROWS_OF_EXTREMES
    fig.update_yaxes(
        tickvals=[height / 2, height * 3 / 2], ticktext=["highest<br>scores", "lowest<br>scores"]
    )
    fig.update_xaxes(showticklabels=False)
    fig.update_layout(height=2 * height + 60)
    return fig


def found_images_figure(arrays: Arrays) -> go.Figure:
    """A row for each caption: the images nearest to it, its own in a green frame."""
    fig = _sheet(arrays["found_images"], arrays["found_images_right"], _RIGHT_COLOUR)
    texts = [
        "<br>".join(
            map(escape, wrap(shorten(str(text), 4 * _LINE_LETTERS, placeholder="..."), _LINE_LETTERS))
        )
        for text in arrays["caption_queries"]
    ]
    _label_rows(fig, texts, side="left")
    return fig


def found_captions_figure(arrays: Arrays) -> go.Figure:
    """A row for each image: the captions nearest to it, its own ones bold."""
    shown = arrays["image_queries"]
    fig = _sheet(shown, np.zeros(shown.shape[:2], bool))
    texts = []
    for captions, right in zip(arrays["found_captions"], arrays["found_captions_right"], strict=True):
        lines = [escape(shorten(str(text), _CAPTION_LETTERS, placeholder="...")) for text in captions]
        texts.append(
            "<br>".join(f"<b>{line}</b>" if own else line for line, own in zip(lines, right, strict=True))
        )
    _label_rows(fig, texts, side="right")
    return fig


def _label_rows(fig: go.Figure, texts: list[str], side: str) -> None:
    """A text beside each row of a sheet."""
    middles = [_CELL_PIXELS * (i + 0.5) for i in range(len(texts))]
    fig.update_yaxes(tickvals=middles, ticktext=texts, tickfont={"size": 10}, side=side)
    fig.update_xaxes(showticklabels=False)
    fig.update_layout(height=_CELL_PIXELS * len(texts) + 60)


def _sheet(
    rows: NDArray[Any],
    framed: NDArray[Any],
    colour: tuple[int, int, int] = _WRONG_COLOUR,
    first_apart: bool = False,
) -> go.Figure:
    """Pictures [R, C, side, side, 3] in a grid, some framed; between them the page is seen, and more of it
    after the first column if that stands apart."""
    count, across = framed.shape
    shift = _GAP_PIXELS * (first_apart and across > 1)
    sheet = np.zeros((count * _CELL_PIXELS, across * _CELL_PIXELS + shift, 4), np.uint8)
    for i in range(count):
        for j in range(across):
            top, left = (_CELL_PIXELS * place + _GAP_PIXELS // 2 for place in (i, j))
            left += shift * (j > 0)
            bottom, right = top + THUMBNAIL_SIDE, left + THUMBNAIL_SIDE
            if framed[i, j]:
                sheet[top - 3 : bottom + 3, left - 3 : right + 3] = (*colour, 255)
            inside = sheet[top:bottom, left:right]
            inside[..., :3], inside[..., 3] = rows[i, j], 255
    packed = BytesIO()
    Image.fromarray(sheet).save(packed, "png")
    source = "data:image/png;base64," + base64.b64encode(packed.getvalue()).decode()
    fig = go.Figure(go.Image(source=source, hoverinfo="skip"))
    fig.update_xaxes(showgrid=False, zeroline=False)
    fig.update_yaxes(showgrid=False, zeroline=False)
    return fig
