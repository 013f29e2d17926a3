"""The losses as functions: check the arguments, describe the contrast, dispatch, reduce."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from taufree import distributed
from taufree.backends import IMPLEMENTATIONS, choose
from taufree.backends.autograd import NotTransformableError
from taufree.backends.measure import ContrastMeasure
from taufree.backends.numerics import chords, no_autocast, normalize
from taufree.backends.sharded import step as sharded
from taufree.checks import (
    check_alike,
    check_anchor_scale,
    check_bias,
    check_denominator,
    check_flags,
    check_float,
    check_hardness,
    check_integers,
    check_options,
    check_weights,
    without_temperature,
)
from taufree.contrast import Contrast, balance, count_negatives
from taufree.distributed import GatherLike
from taufree.links import Link, LinkLike, Temperature
from taufree.reduction import anchor_weights
from taufree.stats import Tracker


@without_temperature
def info_nce(
    query: Tensor,
    positive_key: Tensor,
    negative_keys: Tensor | None = None,
    *,
    symmetric: bool = False,
    in_batch: bool | None = None,
    ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    link: LinkLike = None,
    decoupled: bool = False,
    balanced: bool = False,
    hardness: float = 0,
    scale_hardness: bool = True,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: GatherLike = False,
    backend: str = "auto",
    _tracker: Tracker | None = None,
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
        ids: integers, [N]; an in-batch key with the query's id that is not its positive is left out.
        negative_ids: integers, [M], of shared ``negative_keys``; those with the query's id are left out.
            Needs ``ids``. ``taufree.NegativeQueue`` has both.
        link: how a cosine becomes a logit. None or "free" is ``taufree.LogOdds``, without temperature; a
            number is that temperature. The modules take the names "fitted", "fitted-temperature",
            "calibrated" and "learnable" too.
        decoupled: whether the positive is left out of the denominator (DCL): L_i = log(sum_j exp(l(c_ij))) -
            l(c_ii). A query without negatives has loss 0 then.
        balanced: whether the negatives are in the denominator by the mean of their weights, not by the sum:
            L_i = log(1 + mean_j exp(l(c_ij)) / exp(l(c_ii))), whatever their number.
        hardness: beta of hard-negative weighting (Robinson et al.), 0 to 50: the weight exp(l(c)) of a
            negative is multiplied by exp(beta c), scaled so that a query's factors have the mean 1. They get
            no gradient. The scaling costs one more pass over the pairs; a measured link measures without it.
        scale_hardness: False leaves the factors exp(beta c) as they are, as sentence-transformers does.
        weights: [N], what each query's loss is multiplied by (of a pair, both directions); "mean" is the
            weighted mean. They get no gradient.
        reduction: "mean", "sum" or "none" (one value per query; if symmetric the mean of the pair's
            two directions).
        gather_distributed: contrast with the batches of all ranks of the default process group, or of the
            group that is given, as one process would with their concatenation: the loss is that of the group
            (own rows for "none"), and so is every parameter's gradient after the averaging of DDP over the
            same group; shared ``negative_keys`` are those of all ranks together. True without a process
            group is the plain loss.
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
    check_flags(symmetric=symmetric, scale_hardness=scale_hardness)
    check_denominator(decoupled, balanced)
    check_flags(or_none=True, in_batch=in_batch)
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
    if ids is not None and not in_batch and negative_ids is None:
        raise ValueError("ids distinguishes candidates and needs in_batch=True or negative_ids.")
    if ids is not None:
        check_integers("ids", ids, query)
    if negative_ids is not None:
        if ids is None:
            raise ValueError("negative_ids needs ids, those of the queries to compare with.")
        if queue is None:
            raise ValueError("negative_ids needs negative_keys [M, D], which all queries share.")
        check_integers("negative_ids", negative_ids, queue)
        ids, negative_ids = ids.long(), negative_ids.long()  # unsigned ones cannot be compared with others
    contrast = Contrast(
        query,
        positive_key,
        in_batch=in_batch,
        symmetric=symmetric,
        queue=queue,
        own_negatives=own_negatives,
        ids=ids,
        decoupled=decoupled,
        balanced=balanced,
        queue_ids=negative_ids,
        hardness=check_hardness(hardness),
        tracker=_tracker,
    )
    check_weights(weights, query)
    return _loss(contrast, link, weights, reduction, gather_distributed, backend, scale_hardness)


@without_temperature
def nt_xent(
    view_a: Tensor,
    view_b: Tensor,
    *,
    ids: Tensor | None = None,
    link: LinkLike = None,
    decoupled: bool = False,
    balanced: bool = False,
    hardness: float = 0,
    scale_hardness: bool = True,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: GatherLike = False,
    backend: str = "auto",
    _tracker: Tracker | None = None,
) -> Tensor:
    """NT-Xent, SimCLR's loss: 2N anchors, each with its other view among 2N-1 candidates.

        L_i = -log( exp(l(c_ip)) / sum_{k != i} exp(l(c_ik)) ),  p the other view of i

    Args:
        view_a, view_b: two views of the same N samples, [N, D].
        ids: integers, [N]; a candidate of the same id that is not the positive is left out.
        weights: [N], one for both views of a sample.
        link, decoupled, balanced, hardness, scale_hardness, reduction, gather_distributed, backend: see
            ``info_nce``; "none" gives [2N], view_a's anchors first.

    Examples:
        >>> a, b = torch.eye(4)[:2], torch.eye(4)[:2] + 0.5
        >>> round(nt_xent(a, b).item(), 4)
        0.2911
    """
    check_alike(view_a=view_a, view_b=view_b)
    check_flags(scale_hardness=scale_hardness)
    check_denominator(decoupled, balanced)
    if ids is not None:
        check_integers("ids", ids, view_a)
    check_weights(weights, view_a)
    with no_autocast(view_a.device):  # whose cat refuses all half dtypes but its own
        views = torch.cat([view_a, view_b])
        weights = None if weights is None else torch.cat([weights, weights])
    contrast = Contrast(
        views,
        shift=view_a.shape[0],
        ids=None if ids is None else torch.cat([ids, ids]),
        decoupled=decoupled,
        balanced=balanced,
        hardness=check_hardness(hardness),
        tracker=_tracker,
    )
    return _loss(contrast, link, weights, reduction, gather_distributed, backend, scale_hardness)


@without_temperature
def sup_con(
    embeddings: Tensor,
    labels: Tensor | None = None,
    keys: Tensor | None = None,
    key_labels: Tensor | None = None,
    *,
    link: LinkLike = None,
    decoupled: bool = False,
    balanced: bool = False,
    hardness: float = 0,
    scale_hardness: bool = True,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: GatherLike = False,
    backend: str = "auto",
    _tracker: Tracker | None = None,
) -> Tensor:
    """Supervised contrastive loss: every other row with the anchor's label is a positive.

        L_i = mean over the positives p of i of  -log( exp(l(c_ip)) / sum_{k != i} exp(l(c_ik)) )

    (Khosla's L_out.) An anchor without a positive has loss 0 and is left out of the mean; if no
    anchor has one, the loss is 0.

    With ``keys`` the anchors are compared with these alone, and every key with the anchor's label is a
    positive: images with several captions each, a batch with the rows of a memory.

    Args:
        embeddings: [N, D], or [N, V, D] for V views of each sample.
        labels: integers, [N]. For several views None is a label of its own for each sample, so that its other
            views are the positives of a view: SimCLR with more than two crops.
        keys: [M, D]; None compares the embeddings with each other.
        key_labels: integers, [M], the keys' labels.
        weights: [N], see ``info_nce``; of a sample, for all its views.
        reduction: "none" gives [N], or [N, V] for several views.
        link, decoupled, balanced, hardness, scale_hardness, gather_distributed, backend: see ``info_nce``.
            Without labels the samples of other ranks have labels of their own too.

    Examples:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]])
        >>> round(sup_con(z, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.0302
        >>> images = torch.tensor([[1.0, 0.1], [0.1, 1.0]])  # and z are two captions of each
        >>> round(sup_con(images, torch.tensor([0, 1]), z, torch.tensor([0, 0, 1, 1])).item(), 4)
        0.6971
    """
    check_float("embeddings", embeddings)
    check_flags(scale_hardness=scale_hardness)
    check_denominator(decoupled, balanced)
    views = embeddings.shape[1] if embeddings.dim() == 3 else None
    if embeddings.dim() not in (2, 3) or 0 in embeddings.shape:
        got = list(embeddings.shape)
        raise ValueError(f"embeddings must have shape [N, D] or [N, V, D], each at least 1, got {got}.")
    if labels is None:
        if views is None or keys is not None:
            needed = "with keys" if keys is not None else "unless embeddings are [N, V, D]"
            raise ValueError(f"labels must be given {needed}, got None.")
        labels = _own_labels(embeddings, gather_distributed)
    check_integers("labels", labels, embeddings)
    check_weights(weights, embeddings)
    if (keys is None) != (key_labels is None):
        given, missing = ("keys", "key_labels") if key_labels is None else ("key_labels", "keys")
        raise ValueError(f"{missing} must be given with {given}, got None.")
    if keys is not None and key_labels is not None:
        check_alike(keys=keys)
        check_float("keys", keys, like=("embeddings", embeddings))
        if keys.shape[1] != embeddings.shape[-1]:
            raise ValueError(f"keys must have shape [M, {embeddings.shape[-1]}], got {list(keys.shape)}.")
        check_integers("key_labels", key_labels, keys)
        labels, key_labels = labels.long(), key_labels.long()
    if views is not None:
        embeddings, labels = embeddings.flatten(0, 1), labels.repeat_interleave(views)
        weights = None if weights is None else weights.repeat_interleave(views)
    contrast = Contrast(
        embeddings,
        keys,
        labels=labels,
        key_labels=key_labels,
        decoupled=decoupled,
        balanced=balanced,
        hardness=check_hardness(hardness),
        tracker=_tracker,
    )
    found = _loss(contrast, link, weights, reduction, gather_distributed, backend, scale_hardness)
    return found if views is None or reduction != "none" else found.reshape(-1, views)


def _own_labels(embeddings: Tensor, gather: GatherLike) -> Tensor:
    """A label for each sample that no sample of another rank has."""
    labels = torch.arange(embeddings.shape[0], device=embeddings.device)
    return distributed.numbered(labels, gather) if distributed.active(gather) else labels


def paired_logits(a: Tensor, b: Tensor, link: Link) -> Tensor:
    """The logits [N] of row i of a with row i of b, exact; a link that measures stays as it is."""
    return link.logit(*chords(*normalize(a), *normalize(b)))


@without_temperature
def sigmoid_nce(
    query: Tensor,
    key: Tensor,
    *,
    ids: Tensor | None = None,
    link: LinkLike = None,
    bias: float | Tensor | None = None,
    weights: Tensor | None = None,
    reduction: str = "mean",
    gather_distributed: GatherLike = False,
    backend: str = "auto",
) -> Tensor:
    """The sigmoid loss, SigLIP's: for every query and key, whether they belong together, yes or no.

        L_i = log(1 + exp(-z_ii)) + sum_{j != i} log(1 + exp(z_ij)),  z_ij = l(c_ij) + b

    with c the cosines, l the link and b the bias. There is no normaliser: one visit of the pairs gives loss
    and gradient, three quarters of the work of ``info_nce``, and ranks exchange embeddings alone.

    Args:
        query, key: [N, D]; row i of one belongs to row i of the other. Rows are normalised inside.
        ids: integers, [N]; a key with the query's id that is not its own is left out.
        link: how a cosine becomes a logit, see ``info_nce``. The gain of ``FittedLogOdds`` is the one that is
            best for this loss.
        bias: b. None is the prior log-odds of a pair, -log(N - 1), with N the keys of all ranks, those left
            out too; 0 for a single key. A number is that bias. A tensor of one number gets its gradient if it
            requires one. SigLIP learns it, from -10, with a learned temperature from 0.1.
        weights: [N], what each query's loss is multiplied by; "mean" is the weighted mean.
        reduction, gather_distributed, backend: see ``info_nce``. "mean" is over the queries, as in SigLIP.

    Examples:
        >>> query, key = torch.eye(3)[:2], torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        >>> round(sigmoid_nce(query, key).item(), 4)
        1.4654
        >>> round(sigmoid_nce(query, key, link=0.1, bias=-10.0).item(), 4)
        3.0071
    """
    check_alike(query=query, key=key)
    if ids is not None:
        check_integers("ids", ids, query)
    check_weights(weights, query)
    contrast = Contrast(query, key, ids=ids, bias=check_bias(bias))
    return _loss(contrast, link, weights, reduction, gather_distributed, backend)


def _loss(
    contrast: Contrast,
    link: LinkLike,
    given: Tensor | None,
    reduction: str,
    gather_distributed: GatherLike,
    backend: str,
    scale_hardness: bool = True,
) -> Tensor:
    """``given`` are the user's weights [N] of the anchors."""
    link = check_options(link, reduction, backend, kept=False)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        contrast = contrast.out_of_inference()
        given = given.clone() if given is not None and given.is_inference() else given
    distributed.check_gather(gather_distributed)
    check_anchor_scale(link, contrast)
    if contrast.hardness and scale_hardness:
        with torch.no_grad():
            contrast = replace(contrast, offsets=_mean_factors(contrast, gather_distributed, backend))
    if distributed.active(gather_distributed):
        found = sharded.loss(contrast, link, given, reduction, gather_distributed, backend)
    else:
        if backend == "triton" and link.formula is not None:
            choose(backend, contrast, link)  # which may refuse, before the link measures anything
        queue = contrast.queue
        queued = 0 if queue is None else queue.shape[0]
        contrast = balance(contrast, contrast.m, contrast.key_groups, queued, contrast.queue_ids)
        kernels = backend == "triton" or (backend == "auto" and contrast.anchors.is_cuda)
        measure = ContrastMeasure(contrast, link, kernels=kernels)
        link, contrast = link.prepare(measure), measure.contrast
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


def _mean_factors(contrast: Contrast, gather: GatherLike, backend: str) -> Tensor:
    """[1, N], or [2, N] for both directions: the logarithm of the mean of exp(hardness c) over the negatives.

    The logarithm of the sum is the decoupled loss of temperature 1 / hardness, plus the positive's logit.
    """
    link, anchors = Temperature(1 / contrast.hardness), contrast.anchors.detach()
    plain = replace(contrast, hardness=0.0, decoupled=True, balanced=False, tracker=None)
    if contrast.labels is not None:  # each anchor its own positive, and those of its label left out by id
        plain = Contrast(anchors, anchors, ids=contrast.labels, decoupled=True)
        if contrast.keys is not None:
            plain = replace(plain, in_batch=False, queue=contrast.keys, queue_ids=contrast.key_labels)
    found = []
    for one in plain.directions():
        loss = _loss(one, link, None, "none", gather, backend)
        with no_autocast(anchors.device):  # whose roll refuses all half dtypes but its own
            key = one.anchors.roll(-one.shift, 0) if one.keys is None else one.keys
            positive = paired_logits(one.anchors, key, link)
        count = _negative_count(one, gather).to(positive.dtype)
        found.append((loss + positive - count.clamp(min=1).log()).where(count > 0, 0))
    return torch.stack(found).detach()


def _negative_count(contrast: Contrast, gather: GatherLike) -> Tensor:
    """[N]: how many negatives each anchor of a contrast without labels has, of all ranks."""

    def everywhere(rows: int, ids: Tensor | None) -> tuple[int, Tensor | None]:
        if not distributed.active(gather):
            return rows, ids
        blank = torch.zeros(rows, dtype=torch.long, device=contrast.anchors.device)
        every = distributed.all_rows(blank if ids is None else ids.long(), gather)
        return every.shape[0], None if ids is None else every

    in_batch = everywhere(contrast.n, contrast.ids) if contrast.in_batch else (0, None)
    queue = contrast.queue
    queued = (0, None) if queue is None else everywhere(queue.shape[0], contrast.queue_ids)
    return count_negatives(contrast, *in_batch, *queued)
