"""What :meth:`taufree.Link.prepare` is given: the measurements of one process on its own contrast."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree.backends import cosines, fused, likelihood, moments
from taufree.backends.blockwise import one_tile
from taufree.backends.numerics import full_precision, no_autocast
from taufree.contrast import Contrast
from taufree.links import Cosines, Gain, Likelihood, Link


class ContrastMeasure:
    """See :class:`taufree.links.Measure`. Autocast rounds nothing here.

    ``no_grad`` is no decorator of these methods: torch.compile of PyTorch 2.11 cannot follow it.

    Args:
        kernels: whether GPU kernels may measure.
    """

    def __init__(self, contrast: Contrast, link: Link, *, kernels: bool = False) -> None:
        self.contrast, self.link, self.kernels = contrast, link, kernels

    def squared_cosine(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), no_autocast(self.contrast.anchors.device):
            # A single anchor has no spread, from which the error is.
            if self.contrast.n > 1 and (matrix := self._matrix()) is not None:
                return moments.of_matrix(self.contrast, matrix.cosines_of_negatives())
            return moments.measure(self.contrast)

    def cosines(self) -> Cosines:
        with torch.no_grad(), no_autocast(self.contrast.anchors.device):
            found = cosines.CosineSums(self.contrast)
            found.add_own()
            return cosines.summary(found.sums(), self.contrast.anchors.shape[1])

    def likelihood(self, link: Link) -> Likelihood:
        with torch.no_grad(), no_autocast(self.contrast.anchors.device):
            # Another formula than that of the link that measures needs another matrix.
            known = link.formula is not None and link.formula == self.link.formula
            if known and (matrix := self._matrix()) is not None:
                logits = matrix.measured_logits(self.contrast, link)
                return likelihood.of_matrix(self.contrast, link.formula_scale(), *logits)
            if likelihood.plain(self.contrast):
                return likelihood.of_rows(self.contrast, link)
            sample = likelihood.AnchorSample(self.contrast, link)
            sample.add_own()
            return likelihood.summary(sample.sums(self.contrast.n))

    def fit_gain(self, link: Link, gain: Gain) -> bool:
        if not self.kernels or not fused.can_fit(self.contrast, link, gain):
            return False
        from taufree.backends.fused import fit  # which needs Triton

        fit.step(self.contrast, link, gain)
        return True

    def _matrix(self) -> one_tile.Matrix | None:
        """All pairs of a small batch. The contrast keeps them for the loss."""
        contrast = self.contrast
        if contrast.matrix is None and one_tile.measurable(contrast):
            with full_precision(contrast.anchors.device):
                matrix = one_tile.matrix_of(contrast, self.link)
                self.contrast = contrast = contrast.but(matrix=False if matrix is None else matrix)
        return contrast.matrix or None


class MaskMeasure:
    """The same for pairs that are given by masks [N, M], with their 1 - c and 1 + c."""

    def __init__(
        self, gap: Tensor, rise: Tensor, negatives: Tensor, positives: Tensor, dimensions: int
    ) -> None:
        self.gap, self.rise, self.negatives, self.positives = (
            gap.detach(),
            rise.detach(),
            negatives,
            positives,
        )
        self.dimensions = dimensions

    @torch.no_grad()
    def squared_cosine(self) -> tuple[Tensor, Tensor]:
        squares = ((self.rise - self.gap) / 2).square().masked_fill(~self.negatives, 0)
        return moments.summary(moments.sums(squares.sum(1), self.negatives.sum(1)), self.dimensions)

    @torch.no_grad()
    def cosines(self) -> Cosines:
        values, masks = (self.rise - self.gap) / 2, (self.positives, self.positives | self.negatives)
        parts = [x for mask in masks for x in (values.masked_fill(~mask, 0).sum(1), mask.sum(1))]
        return cosines.summary(cosines.sums(*parts), self.dimensions)

    @torch.no_grad()
    def likelihood(self, link: Link) -> Likelihood:
        totals = likelihood.Totals(len(self.gap), self.gap.device)
        logits = link.logit((self.rise - self.gap) / 2, self.gap, self.rise)
        totals.add(logits, ~(self.negatives | self.positives), self.positives)
        return likelihood.summary(totals.sums(len(self.gap)))

    def fit_gain(self, link: Link, gain: Gain) -> bool:
        return False
