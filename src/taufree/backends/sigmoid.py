"""The sigmoid loss of backends whose gradient is written by hand, in one visit of the pairs.

Each pair is a question of its own: no pair's gradient needs the sum over the others, and it is computed with
the pair's loss. A scalar loss does both in its forward; only "none", whose upstream gradient is not known
then, visits the pairs once more in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from taufree.backends import reference
from taufree.backends.autograd import ByReference, FirstDerivativeOnly, no_second_derivative, transforms_named
from taufree.contrast import Bias, Contrast, Shard
from taufree.dtypes import result_dtype, wide_dtype
from taufree.links import Formula, Link, LogOdds, from_formula

Gradients: TypeAlias = list[Tensor | None]

MAX_PLAIN_BIAS = 20.0  # up to which exp(bias) times a weight of the log-odds, squared, is in float32's range


class SigmoidEngine(Protocol):
    """One visit of the pairs. ``weights`` [n] ask for the gradient of sum(weights * losses).

    The inputs, of which some are ``wanted`` to get a gradient, are anchors, keys, the learned part of the
    bias, and ``params``, what the link learns.
    """

    dtype: torch.dtype  # of the result, and of gradients sent to the rank of their rows

    def add_own(self) -> None:
        """All pairs of this process."""

    def add(self, shard: Shard, wanted: bool) -> Tensor | None:
        """The pairs of all anchors with keys of another rank; the gradient of these if ``wanted``."""

    def finish(self, of_keys: Tensor | None = None) -> tuple[Tensor, Gradients]:
        """The losses [n] and the inputs' gradients, with what other ranks found for own keys."""


class Make(Protocol):
    """What makes an engine: a backend's class with its link, its params and the bias's number."""

    def __call__(
        self, inputs: Sequence[Tensor | None], ids: Tensor | None, wanted: Sequence[bool],
        weights: Tensor | None,
    ) -> SigmoidEngine: ...  # fmt: skip


class Visit:
    """How a loss visits all pairs: here those of one process. ``second`` is the loss as a function of its
    inputs and ids, for second derivatives, and how many of the inputs are its arguments; or None."""

    factor = 1  # by which a scalar loss's gradient is multiplied

    def __init__(
        self, backend: str, make: Make, second: tuple[Callable[..., Tensor], int] | None = None
    ) -> None:
        self.backend, self.make, self.second = backend, make, second

    def __call__(
        self, inputs: Sequence[Tensor | None], ids: Tensor | None, wanted: Sequence[bool],
        weights: Tensor | None,
    ) -> tuple[Tensor, Gradients]:  # fmt: skip
        """The losses [n], and the inputs' gradients of sum(weights * losses) unless ``weights`` is None."""
        engine = self.make(inputs, ids, wanted, weights)
        engine.add_own()
        return engine.finish()

    def total(self, losses: Tensor, weights: Tensor) -> Tensor:
        return (losses * weights).sum()


def loss(
    visit: Visit, contrast: Contrast, connected: Sequence[Tensor], weights: Tensor | float | None
) -> Tensor:
    """The weighted sum of the anchors' losses, or each anchor's loss when ``weights`` is None.

    ``connected`` are the tensors of torch's graph that get the gradients of what the link learns.
    """
    assert contrast.bias is not None
    bias = contrast.bias.learned
    # Of the bias a copy: the parameter may be changed in place before the backward, which needs no value.
    inputs = (contrast.anchors, contrast.keys, None if bias is None else bias.clone(), *connected)
    if not torch.is_grad_enabled():  # or the forward would compute a gradient that nobody asks for
        inputs = tuple(None if x is None else x.detach() for x in inputs)
    with transforms_named(visit.backend):
        result: Tensor = _Sigmoid.apply(visit, contrast.ids, as_tensor(weights, contrast), *inputs)
        return result


def as_tensor(weights: Tensor | float | None, contrast: Contrast) -> Tensor | None:
    """Weights of all anchors, [n]."""
    if weights is None or isinstance(weights, Tensor):
        return weights
    device = contrast.anchors.device  # weights are a number, or under torch.export a symbolic one
    return torch.ones(contrast.n, dtype=wide_dtype(device), device=device) * weights


class _Sigmoid(torch.autograd.Function):
    """Inputs from the fourth on: anchors, keys, the learned part of the bias, what the link learns."""

    @staticmethod
    def forward(
        ctx: Any, visit: Visit, ids: Tensor | None, weights: Tensor | None, *inputs: Tensor | None
    ) -> Tensor:
        ctx.visit, ctx.wanted = visit, ctx.needs_input_grad[3:]
        each = weights * visit.factor if weights is not None and any(ctx.wanted) else None
        losses, gradients = visit(inputs, ids, ctx.wanted, each)
        ctx.scalar = weights is not None
        # A link's parameters are not saved: the next loss may bring them back into range in place.
        ctx.params = inputs[3:]
        ctx.save_for_backward(ids, weights, *inputs[:3], *gradients)
        found = losses if weights is None else visit.total(losses, weights)
        return found.to(result_dtype(*inputs[:2]))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        ids, weights, *saved = ctx.saved_tensors
        inputs, gradients = (*saved[:3], *ctx.params), saved[3:]
        with torch.no_grad():  # with create_graph=True the upstream gradient may have a graph of its own
            if ctx.scalar:  # bias and link may be on another device
                gradients = [None if g is None else g * upstream.to(g.device) for g in gradients]
            else:
                _, gradients = ctx.visit(inputs, ids, ctx.wanted, upstream)
            cast = [
                None if g is None or not wanted else g.to(x.device, x.dtype)
                for g, x, wanted in zip(gradients, inputs, ctx.wanted, strict=True)
            ]
        if torch.is_grad_enabled():  # create_graph=True
            if ctx.visit.second is not None:
                of, views = ctx.visit.second

                def again(*inputs: Tensor | None) -> Tensor:
                    found: Tensor = of(ids, weights, *inputs)
                    return found

                cast = ByReference.apply(again, upstream, len(inputs), views, *inputs, *cast)
            else:
                cast = [
                    None if g is None else FirstDerivativeOnly.apply(ctx.visit.backend, g, upstream, *inputs)
                    for g in cast
                ]
        return (None, None, None, *cast)


def by_reference(link: Link, params: Sequence[Tensor], number: float) -> tuple[Callable[..., Tensor], int]:
    """See :class:`Visit`. With a formula the link's scale is an argument, else the link has parameters."""

    def of(ids: Tensor | None, weights: Tensor | None, *inputs: Tensor | None) -> Tensor:
        anchors, keys, bias, *scale = inputs
        assert anchors is not None
        contrast = Contrast(anchors, keys, ids=ids, bias=Bias(number, bias, False))
        of_inputs = link
        if params and link.formula is not None and scale[0] is not None:
            of_inputs = from_formula(link.formula, scale[0])  # the copy of the scale is of no graph
        return reference.loss(contrast, of_inputs, weights)

    return of, 3 + (len(params) if link.formula is not None else 0)


# The same as an operator of torch, for compiled and exported code, in which a link has a formula. Without
# weights it gives each loss, and its backward calls it again with the upstream gradient as weights.

ENGINES: dict[str, Callable[..., SigmoidEngine]] = {}  # by backend: link, params, number, then as Make
AT_GAIN_1 = "log-odds at gain 1"  # a kind of its own, since a tensor's value is not known to be 1
_TENSORS = 6


def compiled_loss(backend: str, contrast: Contrast, link: Link, weights: Tensor | float | None) -> Tensor:
    """As :func:`loss`; ``link`` has a formula."""
    formula, scale, bias, device = link.formula, link.formula_scale(), contrast.bias, contrast.anchors.device
    assert formula is not None
    assert bias is not None
    kind: str = formula.kind
    if not isinstance(scale, Tensor):
        if kind == "log-odds" and scale == 1:
            kind = AT_GAIN_1
        scale = torch.full((), scale, dtype=wide_dtype(device), device=device)
    inputs = (contrast.anchors, contrast.keys, bias.learned, scale)
    wanted = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in inputs]
    found = sigmoid(
        *inputs, contrast.ids, as_tensor(weights, contrast), wanted, backend, kind, formula.resolution,
        bias.number, bias.prior,
    )  # fmt: skip
    result: Tensor = found[0]
    return result


def _visit(*arguments: Any) -> tuple[Tensor, ...]:
    """The loss, then the inputs' gradients, empty where not wanted or without weights."""
    *inputs, scale, ids, weights, wanted, backend, kind, resolution, number, prior = arguments
    link: Link = LogOdds(resolution=resolution)
    params = []
    if kind != AT_GAIN_1:
        link, params = from_formula(Formula(kind, resolution), scale.detach().clone()), [scale]
    number = Bias(number, None, prior).among(len(inputs[0])).number
    engine = ENGINES[backend](link, params, number, (*inputs, *params), ids, wanted, weights)
    engine.add_own()
    losses, gradients = engine.finish()
    found = losses if weights is None else (losses * weights).sum()
    gradients += [None] * (4 - len(gradients))
    return found.to(result_dtype(*inputs[:2])), *(
        found.new_empty(0) if g is None or not want else g.contiguous()
        for g, want in zip(gradients, wanted, strict=True)
    )


def _fake_visit(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, weights, wanted = arguments[:4], arguments[5], arguments[6]
    dtype = result_dtype(*inputs[:2])
    wide = wide_dtype(inputs[0].device)
    dtypes = (dtype, dtype, wide, wide)
    losses = inputs[0].new_empty(inputs[0].shape[0] if weights is None else (), dtype=dtype)
    return losses, *(
        inputs[0].new_empty(x.shape if want and weights is not None and x is not None else 0, dtype=one)
        for x, want, one in zip(inputs, wanted, dtypes, strict=True)
    )


sigmoid = torch.library.custom_op(
    "taufree::sigmoid",
    _visit,
    mutates_args=(),
    schema="(Tensor anchors, Tensor keys, Tensor? bias, Tensor scale, Tensor? ids, Tensor? weights, "
    "bool[] wanted, str backend, str kind, float resolution, float number, bool prior) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
sigmoid.register_fake(_fake_visit)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output[1:])
    ctx.wanted, *ctx.options = inputs[_TENSORS:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, upstream: Tensor | None, *more: Tensor | None) -> tuple[Any, ...]:
    if any(x is not None for x in more):
        raise no_second_derivative(ctx.options[0])
    inputs, weights, found = ctx.saved_tensors[:4], ctx.saved_tensors[5], ctx.saved_tensors[_TENSORS:]
    gradients: list[Any] = [None] * 4
    if upstream is not None:
        if weights is None:
            weights, upstream = upstream, None
            found = sigmoid(*ctx.saved_tensors[:5], weights, ctx.wanted, *ctx.options)[1:]
        gradients = [
            (g if upstream is None else g * upstream).to(x.dtype) if want else None
            for g, x, want in zip(found, inputs, ctx.wanted, strict=True)
        ]
    return (*gradients, *([None] * (_TENSORS - 4 + 1 + len(ctx.options))))


sigmoid.register_autograd(_differentiate, setup_context=_setup)
