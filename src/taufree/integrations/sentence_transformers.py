"""sentence-transformers' ranking losses with a link, for its own trainer.

The vectors are compared with each other, and are good ones before: without a scale the link is
``taufree.FittedTemperature``. The usual settings are computed by the core, in linear memory; the rest on the
matrix of all pairs: with a scale by the library, else by ``_dense``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from taufree.convert import is_free
from taufree.dtypes import result_dtype, wide_dtype
from taufree.functional import info_nce, nt_xent
from taufree.integrations import Linked, free_options, link_of, positive, twin_of
from taufree.links import FittedTemperature, Link, LinkLike, Temperature
from taufree.links.temperature import Scaled
from taufree.masked import masked_logits, prepare, similarity
from taufree.util.optional import needs

with needs("taufree[sentence-transformers]", "sentence_transformers"):
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

CITATION = """
@misc{kim2025temperaturefree,
    title={Temperature-Free Loss Function for Contrastive Learning},
    author={Bum Jun Kim and Sang Woo Kim},
    year={2025},
    eprint={2501.17683},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""
_Init = TypeVar("_Init", bound=Callable[..., None])
BOTH_DIRECTIONS = {"query_to_doc", "doc_to_query"}
ALL_DIRECTIONS = {*BOTH_DIRECTIONS, "query_to_query", "doc_to_doc"}


class Scale(Scaled):
    """The library's scale as a link, where it is a tensor; a parameter is learned."""

    scale: Tensor

    def formula_scale(self) -> Tensor:
        return self.scale.reshape(()).to(wide_dtype(self.scale.device))


class _Free(Linked):
    """What both losses share: scale, link, citation and configuration."""

    temperature_name = "scale"
    default_link = FittedTemperature
    scale: float | Tensor | None
    directions: tuple[str, ...]
    hardness_mode: str | None
    hardness_strength: float

    def __init__(
        self,
        model: nn.Module,
        scale: float | Tensor | None = None,
        *args: Any,
        link: LinkLike = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        link_of(scale, "scale", link)
        super().__init__(model, 1.0, *args, **kwargs)  # type: ignore[call-arg]
        self._set_options(scale, link, backend)
        self._check_similarity()

    def _link_of(self, temperature: float | Tensor | None) -> Link:
        """The library's scale is the inverse of a temperature."""
        if temperature is None:
            return type(self).default_link()
        tau = positive(temperature, "scale").tau
        return Scale(tau) if isinstance(tau, Tensor) else Temperature(1 / tau)

    def _temperature_of(self, link: Link) -> float | Tensor | None:
        if type(link) is Temperature and not isinstance(link.tau, Tensor):
            return 1 / link.tau
        return link.scale if type(link) is Scale else None

    def _check_similarity(self) -> None:
        """Raises if the similarity is not the cosine and another setting needs it."""
        if self.by_cosine:
            return
        if self.scale is None:
            raise ValueError("similarity_fct must be cos_sim without a scale: a link takes a cosine.")
        self._check_dense("another similarity than cos_sim")

    @property
    def by_cosine(self) -> bool:
        return getattr(self, "similarity_fct", None) is util.cos_sim

    def _all_pairs(self, columns: int) -> bool:
        """Whether the settings need the matrix of all pairs, with so many columns of embeddings."""
        directions = set(self.directions)
        if self._harder(columns):  # for the core either all negatives are harder or none
            core = directions <= BOTH_DIRECTIONS and (columns == 2 or self.hardness_mode == "all_negatives")
            return not core
        return not (directions <= BOTH_DIRECTIONS or (directions == ALL_DIRECTIONS and columns == 2))

    def _harder(self, columns: int) -> bool:
        """Whether some negatives are made harder."""
        some = self.hardness_mode is not None and (columns > 2 or self.hardness_mode != "hard_negatives")
        return some and self.hardness_strength > 0

    def _left_to_the_library(self, columns: int) -> bool:
        """Whether the library computes the loss; it does so with a scale alone.

        A scale that is learned has a gradient of NaN there, from pairs that are left out after it.
        """
        self._check_similarity()
        if self.by_cosine and not self._all_pairs(columns):
            return False
        self._check_dense("these directions or hardness")
        return self.scale is not None and not (self.by_cosine and isinstance(self.scale, Tensor))

    @property
    def temperature(self) -> float | Tensor | None:
        return None if self.scale is None else 1 / self.scale

    @property
    def citation(self) -> str:
        theirs: str = super().citation  # type: ignore[misc]
        return theirs + CITATION if is_free(self.link) else theirs

    def get_config_dict(self) -> dict[str, Any]:
        return {**super().get_config_dict(), "link": repr(self.link)}  # type: ignore[misc]


def _shown_as(original: Any) -> Callable[[_Init], _Init]:
    """Gives an ``__init__`` the signature of the installed original, with scale=None, link and backend."""

    def decorate(init: _Init) -> _Init:
        theirs, ours = (inspect.signature(kind.__init__) for kind in (original, _Free))
        names = {**theirs.parameters, **{x: ours.parameters[x] for x in ("scale", "link", "backend")}}
        init.__signature__ = theirs.replace(parameters=list(names.values()))  # type: ignore[attr-defined]
        return init

    return decorate


class MultipleNegativesRankingLoss(_Free, losses.MultipleNegativesRankingLoss):
    """The library's loss with the same arguments, on the fitted log-odds of the cosines.

    Args:
        model: a SentenceTransformer.
        scale: None for a loss without temperature; a number is the library's loss, of temperature 1/scale,
            and a parameter is learned.
        args, kwargs: the library's further arguments: ``similarity_fct`` (cos_sim if there is no scale),
            ``gather_across_devices``, ``directions``, ``partition_mode``, ``hardness_mode`` and
            ``hardness_strength``. Hardness adds strength x cosine to a logit here too.
        link: instead of a scale, any other link, a temperature or a link's name.
        backend: see ``taufree.info_nce``; what is computed densely allows "auto" and "reference".

    With ``gather_across_devices`` the value is, for the usual settings, the mean over all ranks, where the
    library's is that over own rows; gradients after DDP's averaging are the same.
    """

    @_shown_as(losses.MultipleNegativesRankingLoss)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        if self._left_to_the_library(len(embeddings)):
            found: Tensor = super().compute_loss_from_embeddings(embeddings, labels)
            return found
        return _loss(self, embeddings)


class CachedMultipleNegativesRankingLoss(_Free, losses.CachedMultipleNegativesRankingLoss):
    """The library's loss for batches larger than the memory, on the fitted log-odds of the cosines.

    Args:
        model, scale, link, backend: as those of ``MultipleNegativesRankingLoss``.
        args, kwargs: the library's further arguments, ``mini_batch_size`` among them.
    """

    @_shown_as(losses.CachedMultipleNegativesRankingLoss)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def calculate_loss(self, reps: list[list[Tensor]], *args: Any, **kwargs: Any) -> Tensor:
        with_backward = kwargs.get("with_backward", False)
        if with_backward and any(parameter.requires_grad for parameter in self.link.parameters()):
            # The library later scales the cached gradients of the embeddings, but not those of a link.
            raise ValueError(
                "link must have nothing to learn in a cached loss, got "
                f"{type(self.link).__name__}: freeze it, or use MultipleNegativesRankingLoss."
            )
        if self._left_to_the_library(len(reps)):
            found: Tensor = super().calculate_loss(reps, *args, **kwargs)
            return found
        loss = _loss(self, [torch.cat(chunks) for chunks in reps])
        if not with_backward:
            return loss
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _store_temperature(self, value: float | Tensor | None) -> None:
        self.loss.__dict__["scale"] = value  # where the library's property looks for it


TWINS: dict[Any, Any] = {
    losses.MultipleNegativesRankingLoss: MultipleNegativesRankingLoss,
    losses.CachedMultipleNegativesRankingLoss: CachedMultipleNegativesRankingLoss,
}


def temperature_free(loss: Any, link: LinkLike = None) -> Any:
    """The twin of a ranking loss, which ``MatryoshkaLoss`` or ``AdaptiveLayerLoss`` may hold, with its model
    and its settings and without its scale; see ``taufree.temperature_free``."""
    if type(loss) is losses.MatryoshkaLoss:
        names = ("model", "matryoshka_dims", "matryoshka_weights", "n_dims_per_step")
        settings = {name: getattr(loss, name) for name in names}
        return losses.MatryoshkaLoss(loss=temperature_free(loss.loss, link), **settings)
    if isinstance(loss, losses.AdaptiveLayerLoss):  # or Matryoshka2dLoss
        found = copy.copy(loss)  # which has the same model
        found._modules = {**loss._modules, "loss": temperature_free(loss.loss, link)}
        return found
    twin_of(type(loss), TWINS)
    original = next(kind for kind in TWINS if isinstance(loss, kind))
    kept = inspect.signature(original).parameters.keys() - {"scale"}
    return TWINS[original](**{name: getattr(loss, name) for name in kept}, **free_options(loss, link))


def _loss(settings: Any, embeddings: list[Tensor]) -> Tensor:
    """The loss of queries, their documents, and any number of hard negatives for each, all [N, D].

    With Z_d the sum of the weights over direction d and w the positive's weight, a direction's loss is
    log(Z_d / w); one softmax over two directions is log((Z_1 + Z_2) / w), the logaddexp of their losses.
    """
    if len(embeddings) < 2:
        raise ValueError(
            f"embeddings must hold queries and documents at least, got {len(embeddings)} columns."
        )
    link: Link = settings.link
    query, doc, *hard = embeddings
    if settings._all_pairs(len(embeddings)):
        return _dense(settings, query, [doc, *hard], link)
    directions = set(settings.directions)
    options: dict[str, Any] = {
        "link": link,
        "gather_distributed": settings.gather_across_devices,
        "backend": settings.backend,
    }
    if directions == ALL_DIRECTIONS:
        forward, backward = nt_xent(query, doc, reduction="none", **options).chunk(2)
        return torch.logaddexp(forward, backward).mean()
    negatives, both = torch.cat(hard) if hard else None, directions == BOTH_DIRECTIONS
    harder, joint = settings._harder(len(embeddings)), settings.partition_mode == "joint"
    if not harder and not (both and joint):
        return info_nce(query, doc, negatives, in_batch=True, symmetric=both, **options)
    hardness = {"hardness": settings.hardness_strength, "scale_hardness": False} if harder else {}
    forward = info_nce(query, doc, negatives, in_batch=True, reduction="none", **hardness, **options)
    if not both:
        return forward.mean()
    options["link"] = _as_measured(link)
    backward = info_nce(doc, query, reduction="none", **options)
    return (torch.logaddexp(forward, backward) if joint else (forward + backward) / 2).mean()


def _as_measured(link: Link) -> Link:
    """The link as the last loss has left it, measuring no more: both sides of one softmax have one gain."""
    found = copy.copy(link)
    found.training = False
    return found


def _dense(settings: Any, query: Tensor, docs: list[Tensor], link: Link) -> Tensor:
    """The same for any directions and hardness: own queries against all ranks, [N, W N (1 + hard)]."""
    n, first, dtype = len(query), 0, result_dtype(query, *docs)
    own_query, own_doc = query, docs[0]
    if settings.gather_across_devices:
        query, docs = util.all_gather_with_grad(query), [util.all_gather_with_grad(doc) for doc in docs]
        first = n * torch.distributed.get_rank() if len(query) > n else 0
    hard = torch.cat(docs[1:]) if len(docs) > 1 else None
    # Measured on query-to-document, which every setting has.
    link = prepare(link, query, docs[0], hard)
    every_doc = torch.cat(docs)
    rows = torch.arange(n, device=query.device)
    own = (rows + first)[:, None] == torch.arange(len(query), device=query.device)
    own_docs = own.repeat(1, len(docs))

    gap, rise = similarity(own_query, every_doc)
    logits = masked_logits(link, gap, rise, None)
    positive = logits[rows, rows + first]
    if settings.hardness_mode is not None and settings.hardness_strength > 0:
        is_hard = torch.arange(len(every_doc), device=query.device) >= len(query)
        harder = {
            "in_batch_negatives": ~own_docs,
            "hard_negatives": own_docs & is_hard,
            "all_negatives": ~own_docs | is_hard,
        }[settings.hardness_mode]
        logits = logits + settings.hardness_strength * ((rise - gap) / 2).detach() * harder
    parts = [logits]
    if "query_to_query" in settings.directions:
        parts.append(masked_logits(link, *similarity(own_query, query), own))
    if "doc_to_query" in settings.directions:
        parts.append(masked_logits(link, *similarity(own_doc, query), None))
    if "doc_to_doc" in settings.directions:
        parts.append(masked_logits(link, *similarity(own_doc, every_doc), own_docs))
    if settings.partition_mode == "joint":
        parts = [torch.cat(parts, 1)]
    log_z = torch.stack([part.logsumexp(1) for part in parts]).mean(0)
    return (log_z - positive).mean().to(dtype)
