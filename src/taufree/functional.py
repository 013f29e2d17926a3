"""The losses as functions: check the arguments, describe the contrast, dispatch, reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from taufree import distributed
from taufree.backends import IMPLEMENTATIONS, choose
from taufree.backends.autograd import NotTransformableError
from taufree.backends.measure import ContrastMeasure
from taufree.backends.numerics import no_autocast
from taufree.backends.sharded import step as sharded
from taufree.checks import (
    check_alike,
    check_anchor_scale,
    check_float,
    check_integers,
    check_options,
    check_weights,
    without_temperature,
)
from taufree.contrast import Contrast
from taufree.links import LinkLike
from taufree.reduction import anchor_weights


@without_temperature
def info_nce(
    query: Tensor,
    positive_key: Tensor,
    negative_keys: Tensor | None = None,
    *,
    symmetric: bool = False,
    in_batch: bool | None = None,
    ids: Tensor | None = None,
    link: LinkLike = None,
    decoupled: bool = False,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: bool = False,
    backend: str = "auto",
) -> Tensor:
    """InfoNCE: each query must find its key among the candidates.

        L_i = -log( exp(l(c_ii)) / (exp(l(c_ii)) + sum_j exp(l(c_ij))) )

    with c the cosines, l the link, and j over the negatives.

    Args:
        query: the anchors. Rows are normalised inside.
        positive_key: row i is the positive of query i.
        negative_keys: further negatives, [M, D] shared by all queries or [N, M, D] per query.
        symmetric: the mean of query-to-key and key-to-query. Needs ``in_batch``; ``negative_keys``
            join the query-to-key direction only.
        in_batch: whether the other rows of ``positive_key`` are negatives too. None: exactly when
            no ``negative_keys`` are given.
        ids: integers, [N]; a key with the query's id that is not its positive is left out.
        link: how a cosine becomes a logit. None or "free" is ``taufree.LogOdds``, without temperature; a
            number is that temperature. The modules take the names "fitted", "calibrated" and "learnable" too.
        decoupled: whether the positive is left out of the denominator (DCL): L_i = log(sum_j exp(l(c_ij))) -
            l(c_ii). A query without negatives has loss 0 then.
        weights: [N], what each query's loss is multiplied by (of a pair, both directions); "mean" is the
            weighted mean. They get no gradient.
        reduction: "mean", "sum" or "none" (one value per query; if symmetric the mean of the pair's
            two directions).
        gather_distributed: contrast with the batches of all ranks of the default process group, as one
            process would with their concatenation: the loss is the global one (own rows for "none"), and
            so is every parameter's gradient after DDP's averaging; shared ``negative_keys`` are
            those of all ranks together. Without a process group it is the plain loss.
        backend: "auto", "reference" (dense), "blockwise" (linear memory, any device) or "triton" (fused GPU
            kernels). For transforms of torch.func "auto" takes the reference, which alone has them; second
            derivatives of blockwise are computed by it too, at its memory, and "triton" has none.

    Shape:
        query and positive_key [N, D]; the result is a scalar, or [N] for "none". It is float64 if
        an input is, else float32; floating dtypes may be mixed, each gradient has its input's.

    Examples:
        >>> query, key = torch.eye(3)[:2], torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        >>> round(info_nce(query, key).item(), 4)
        0.4258
        >>> queue = torch.tensor([[0.0, 0.0, 1.0]])
        >>> [round(x, 4) for x in info_nce(query, key, queue, reduction="none").tolist()]
        [0.1584, 0.1584]
    """
    check_alike(query=query, positive_key=positive_key)
    queue = own_negatives = None
    if negative_keys is not None:
        check_float("negative_keys", negative_keys, like=("query", query))
        n, d = query.shape
        if negative_keys.dim() == 2 and negative_keys.shape[1] == d:
            queue = negative_keys
        elif negative_keys.dim() == 3 and negative_keys.shape[::2] == (n, d):
            own_negatives = negative_keys
        else:
            raise ValueError(
                f"negative_keys must have shape [M, {d}] or [{n}, M, {d}], got {list(negative_keys.shape)}."
            )
    if in_batch is None:
        in_batch = negative_keys is None
    if not in_batch and negative_keys is None:
        raise ValueError("in_batch=False needs negative_keys, or there is nothing to contrast with.")
    if symmetric and not in_batch:
        raise ValueError("symmetric=True needs in_batch=True, since only in-batch pairs have two directions.")
    if ids is not None and not in_batch:
        raise ValueError("ids distinguishes in-batch keys and needs in_batch=True.")
    if ids is not None:
        check_integers("ids", ids, query)
    contrast = Contrast(
        query,
        positive_key,
        in_batch=in_batch,
        symmetric=symmetric,
        queue=queue,
        own_negatives=own_negatives,
        ids=ids,
        decoupled=decoupled,
    )
    check_weights(weights, query)
    return _loss(contrast, link, weights, reduction, gather_distributed, backend)


@without_temperature
def nt_xent(
    view_a: Tensor,
    view_b: Tensor,
    *,
    ids: Tensor | None = None,
    link: LinkLike = None,
    decoupled: bool = False,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: bool = False,
    backend: str = "auto",
) -> Tensor:
    """NT-Xent, SimCLR's loss: 2N anchors, each with its other view among 2N-1 candidates.

        L_i = -log( exp(l(c_ip)) / sum_{k != i} exp(l(c_ik)) ),  p the other view of i

    Args:
        view_a, view_b: two views of the same N samples, [N, D].
        ids: integers, [N]; a candidate of the same id that is not the positive is left out.
        weights: [N], one for both views of a sample.
        link, decoupled, reduction, gather_distributed, backend: see ``info_nce``; "none" gives [2N], view_a's
            anchors first.

    Examples:
        >>> a, b = torch.eye(4)[:2], torch.eye(4)[:2] + 0.5
        >>> round(nt_xent(a, b).item(), 4)
        0.2911
    """
    check_alike(view_a=view_a, view_b=view_b)
    if ids is not None:
        check_integers("ids", ids, view_a)
    with no_autocast(view_a.device):  # whose cat refuses all half dtypes but its own
        views = torch.cat([view_a, view_b])
    contrast = Contrast(
        views,
        shift=view_a.shape[0],
        ids=None if ids is None else torch.cat([ids, ids]),
        decoupled=decoupled,
    )
    check_weights(weights, view_a)
    weights = None if weights is None else torch.cat([weights, weights])
    return _loss(contrast, link, weights, reduction, gather_distributed, backend)


@without_temperature
def sup_con(
    embeddings: Tensor,
    labels: Tensor,
    *,
    link: LinkLike = None,
    decoupled: bool = False,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Supervised contrastive loss: every other row with the anchor's label is a positive.

        L_i = mean over the positives p of i of  -log( exp(l(c_ip)) / sum_{k != i} exp(l(c_ik)) )

    (Khosla's L_out.) An anchor without a positive has loss 0 and is left out of the mean; if no
    anchor has one, the loss is 0.

    Args:
        embeddings: [N, D]; for V views of a sample, [B, V, D], give ``embeddings.flatten(0, 1)`` and
            ``labels.repeat_interleave(V)``.
        labels: integers, [N].
        link, decoupled, weights, reduction, gather_distributed, backend: see ``info_nce``.

    Examples:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]])
        >>> round(sup_con(z, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.0302
    """
    check_float("embeddings", embeddings)
    if embeddings.dim() == 3:  # as Khosla's own code has them
        raise ValueError(
            f"embeddings must have shape [N, D], got {list(embeddings.shape)}: if these are several views of "
            f"a sample, give embeddings.flatten(0, 1) and labels.repeat_interleave({embeddings.shape[1]})."
        )
    check_alike(embeddings=embeddings)
    check_integers("labels", labels, embeddings)
    check_weights(weights, embeddings)
    contrast = Contrast(embeddings, labels=labels, decoupled=decoupled)
    return _loss(contrast, link, weights, reduction, gather_distributed, backend)


def _loss(
    contrast: Contrast,
    link: LinkLike,
    given: Tensor | None,
    reduction: str,
    gather_distributed: bool,
    backend: str,
) -> Tensor:
    """``given`` are the user's weights [N] of the anchors."""
    link = check_options(link, reduction, backend, kept=False)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        contrast = contrast.out_of_inference()
    check_anchor_scale(link, contrast)
    if gather_distributed and distributed.active():
        found = sharded.loss(contrast, link, given, reduction, backend)
    else:
        link = link.prepare(ContrastMeasure(contrast))
        labelled = contrast.labels is not None and reduction != "none"
        positives = contrast.positive_count() if labelled else None
        weights = anchor_weights(reduction, contrast.n, positives, given)
        try:
            found = IMPLEMENTATIONS[choose(backend, contrast, link)](contrast, link, weights)
        except NotTransformableError:  # by torch.func, or in forward mode; the reference is
            if backend != "auto":
                raise
            found = IMPLEMENTATIONS["reference"](contrast, link, weights)
    return found * given.detach().to(found) if reduction == "none" and given is not None else found
