"""The figures carry the closed forms' values and are written whole, or not at all."""

import io

import matplotlib
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.legend import Legend
from matplotlib.text import Text

from taufree import LogOdds, Temperature
from taufree.diagnostics.theory import closed_forms as theory
from taufree.diagnostics.theory import figures
from taufree.diagnostics.theory.figures import FIGURES, draw_figures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_figures(tmp_path_factory.mktemp("drawn") / "new" / "figures")


def curves(axes):
    return {line.get_label(): line.get_data() for line in axes.lines}


def test_every_figure_is_there_as_png_and_pdf(drawn):
    assert [path.name for path in drawn] == [name + end for name in FIGURES for end in (".png", ".pdf")]
    assert len(FIGURES) == 8
    folder = drawn[0].parent
    assert sorted(folder.iterdir()) == sorted(drawn)  # and nothing half-written beside them
    for path in drawn:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
            assert path.read_bytes().rstrip().endswith(b"%%EOF")
        else:
            pixels = matplotlib.image.imread(path)
            assert min(pixels.shape[:2]) > 500
            assert pixels[..., :3].std() > 0.05


def test_files_are_small_enough_for_a_page(drawn):
    assert all(path.stat().st_size < 150_000 for path in drawn)


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_leaves_the_figure(name):
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(figures.STYLE)
        figure = FIGURES[name]()
        figure.savefig(io.BytesIO())  # lays it out
        # Ticks beyond an axis' limits exist as text too, but are not drawn.
        texts = [text for axes in figure.axes for text in (*axes.findobj(Legend), *axes.texts)]
        texts += [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
        texts += [figure.axes[0]._left_title, *figure.texts]
        boxes = [text.get_window_extent() for text in texts if not isinstance(text, Text) or text.get_text()]
        assert len(boxes) >= 4
        for box in boxes:
            assert (box.min >= 0).all()
            assert (box.max <= figure.bbox.size).all()


def test_the_first_figure_has_the_links_and_their_gradient_scales():
    logits, scales = (curves(axes) for axes in FIGURES["0-links"]().axes)
    for tau in (0.1, 0.5, 1.0):
        c, y = logits[f"c/τ, τ = {tau:g}"]
        np.testing.assert_allclose(y, Temperature(tau)(torch.tensor(c)).numpy())
        c, y = scales[f"τ = {tau:g}"]
        np.testing.assert_array_equal(y, theory.temperature_scale(c, tau))
    c, y = logits["log((1+c)/(1-c))"]
    np.testing.assert_allclose(y, LogOdds(resolution=0)(torch.tensor(c)).numpy(), rtol=1e-9, atol=1e-12)
    c, y = scales["no temperature"]
    np.testing.assert_array_equal(y, theory.free_scale(c))


def test_lines_carry_the_closed_forms():
    (axes,) = FIGURES["1-scale-by-cosine"]().axes
    assert list(curves(axes)) == ["τ = 0.1", "τ = 0.25", "τ = 0.5", "τ = 1"]
    for tau in (0.1, 0.25, 0.5, 1.0):
        c, y = curves(axes)[f"τ = {tau:g}"]
        np.testing.assert_array_equal(y, theory.temperature_scale(c, tau))
        assert (c[0], c[-1]) == (0, 1)

    (axes,) = FIGURES["2-scale-by-temperature"]().axes
    for cosine in (0.25, 0.5, 0.75, 1.0):
        tau, y = curves(axes)[f"C = {cosine:g}"]
        np.testing.assert_array_equal(y, theory.temperature_scale(cosine, tau))

    (axes,) = FIGURES["4-learnable-scale"]().axes
    c, y = curves(axes)["t = 1.39  (τ = 0.25)"]
    np.testing.assert_array_equal(y, theory.learnable_scale(c, np.log(4)))
    assert all(y[0] == 0 for _, y in curves(axes).values())

    for n in (2, 4, 8, 16):
        (axes,) = FIGURES["3-scale-by-candidates"]().axes
        c, y = curves(axes)[f"N = {n}"]
        np.testing.assert_array_equal(y, theory.temperature_scale(c, 0.25, n))
        (axes,) = FIGURES["5-free-scale"]().axes
        c, y = curves(axes)[f"N = {n}"]
        np.testing.assert_array_equal(y, theory.free_scale(c, n))


def test_overview_sets_the_two_schemes_side_by_side():
    tau_loss, free_loss, tau_scale, free_scale = (curves(axes) for axes in FIGURES["6-overview"]().axes)
    for tau in (0.1, 0.25, 0.5, 1.0):
        c, y = tau_loss[f"τ = {tau:g}"]
        np.testing.assert_array_equal(y, theory.temperature_loss(c, tau))
        c, y = tau_scale[f"τ = {tau:g}"]
        np.testing.assert_array_equal(y, theory.temperature_scale(c, tau))
    for n in (2, 4, 8, 16):
        c, y = free_loss[f"N = {n}"]
        np.testing.assert_array_equal(y, theory.free_loss(c, n))
        c, y = free_scale[f"N = {n}"]
        np.testing.assert_array_equal(y, theory.free_scale(c, n))


def test_published_temperatures_lie_on_the_curve():
    (axes,) = FIGURES["7-temperature-by-dimension"]().axes
    nu, tau = curves(axes)["as steep as the log-odds in nu dimensions"]
    np.testing.assert_array_equal(tau, theory.dimension_temperature(nu))
    dots = [tuple(point) for dot in axes.collections for point in dot.get_offsets()]
    assert [y for _, y in dots] == [0.5, 0.3, 0.25, 0.2, 0.1, 0.07, 0.05]
    for x, y in dots:
        assert theory.dimension_temperature(x) == pytest.approx(y, rel=1e-12)


@pytest.mark.parametrize("name", ["1-scale-by-cosine", "3-scale-by-candidates"])
def test_dots_lie_where_the_scale_vanishes(name):
    (axes,) = FIGURES[name]().axes
    dots = sorted(tuple(point) for dot in axes.collections for point in dot.get_offsets())
    settings = [(0.1, 2), (0.25, 2)] if name.startswith("1") else [(0.25, n) for n in (2, 4, 8, 16)]
    assert [x for x, _ in dots] == [theory.vanishing_interval(*setting)[0] for setting in settings]
    for (x, y), (tau, n) in zip(dots, settings, strict=True):
        assert y == theory.temperature_scale(x, tau, n)


def test_settings_and_pyplot_of_the_caller_neither_matter_nor_change(drawn, tmp_path):
    with matplotlib.rc_context({"axes.facecolor": "black", "lines.linewidth": 9}):
        settings, open_figures = dict(matplotlib.rcParams), plt.get_fignums()
        again = draw_figures(tmp_path)
        assert dict(matplotlib.rcParams) == settings
        assert plt.get_fignums() == open_figures
    for first, second in zip(drawn, again, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_failure_leaves_no_file_behind(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("no ink")

    monkeypatch.setitem(FIGURES, "5-free-scale", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        draw_figures(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "figures").write_text("mine")
    with pytest.raises(
        ValueError, match=r"^out must be a folder, but .*figures.* is a file or lies below one\.$"
    ):
        draw_figures(tmp_path / "figures" / below)
    assert (tmp_path / "figures").read_text() == "mine"
