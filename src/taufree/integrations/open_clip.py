"""open_clip's ``ClipLoss`` and ``SigLipLoss`` with a link: give them to the training loop in place of the
originals."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from taufree import distributed
from taufree.checks import check_alike
from taufree.functional import info_nce, sigmoid_nce
from taufree.integrations import Linked, free_options, twin_of
from taufree.links import FittedLogOdds, LinkLike
from taufree.util.optional import needs

with needs("taufree[open-clip]", "open_clip"):
    import open_clip

TAKEN = inspect.signature(open_clip.ClipLoss).parameters.keys()  # what the installed version takes
OriginalSigLip: Any = getattr(open_clip.loss, "SigLipLoss", nn.Module)  # older versions have none


class _Scaled(Linked):
    """What both losses share: the link in place of the scale that the model learns, or that scale."""

    temperature_name = None
    default_link = FittedLogOdds
    use_logit_scale = False
    world_size: int

    def __setattr__(self, name: str, value: Any) -> None:
        """With the scale that the model learns there is no link: it is None then."""
        if name == "link" and self.use_logit_scale:
            if value is not None:
                got = type(value).__name__
                raise ValueError(f"link must be None with use_logit_scale=True, open_clip's loss, got {got}.")
            nn.Module.__setattr__(self, "link", None)  # type: ignore[arg-type]
            return
        super().__setattr__(name, value)
        if name == "use_logit_scale" and (value or getattr(self, "link", None) is None):
            self.link = None  # type: ignore[assignment]

    def extra_repr(self) -> str:
        return f"use_logit_scale={self.use_logit_scale}, {super().extra_repr()}"

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float | None = None,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        if self.use_logit_scale:
            self._check_dense("use_logit_scale=True")
            if logit_scale is None:
                raise ValueError("logit_scale must be given with use_logit_scale=True, got None.")
            original: Any = super()
            known = "logit_bias" in inspect.signature(original.forward).parameters  # not of older versions
            bias = {"logit_bias": logit_bias} if known or logit_bias is not None else {}
            found: Tensor | dict[str, Tensor] = original.forward(
                image_features, text_features, logit_scale, **bias, output_dict=output_dict
            )
            return found
        check_alike(image_features=image_features, text_features=text_features)
        several = self.world_size > 1
        if several and not distributed.active():
            raise ValueError(
                f"world_size={self.world_size} needs torch.distributed.init_process_group() on all ranks."
            )
        loss = self._compare(
            image_features, text_features, link=self.link, gather_distributed=several, backend=self.backend
        )
        for unused in (logit_scale, logit_bias):
            loss = _attach(loss, unused)
        return {"contrastive_loss": loss} if output_dict else loss

    def _compare(self, image: Tensor, text: Tensor, **options: Any) -> Tensor:
        raise NotImplementedError


class ClipLoss(_Scaled, open_clip.ClipLoss):
    """CLIP's loss, the mean of image-to-text and text-to-image, on the fitted log-odds of the cosines.

    The vectors themselves are compared, so the link is ``taufree.FittedLogOdds``, whose gain takes the place
    of the learned scale.

    The arguments are open_clip's, and three more. Over several ranks the gradient is always that of one
    process on the whole batch, for any ``local_loss`` and ``gather_with_grad``, and no rank holds the matrix
    of all pairs.

    Args:
        local_loss, gather_with_grad, cache_labels, rank: accepted; they only matter with the learned scale.
        world_size: more than 1 contrasts with the batches of all ranks.
        use_horovod: possible only with the learned scale, and with a version of open_clip that has it.
        use_logit_scale: True is open_clip's own loss, with the scale that the model learns, to compare with.
        link: any other link, a temperature or a link's name; None with the learned scale.
        backend: see ``taufree.info_nce``; the learned scale allows "auto" and "reference".
        kwargs: whatever else the installed version takes.

    Shape:
        image_features, text_features: [N, D]. The loss is a scalar; with ``output_dict`` it is under the key
        "contrastive_loss". ``logit_scale`` and ``logit_bias`` change nothing and get a gradient of zero.

    Examples:
        >>> loss = ClipLoss()
        >>> output = {"image_features": torch.eye(4), "text_features": torch.eye(4)}
        >>> value = loss(**output, logit_scale=torch.tensor(14.3), output_dict=True)["contrastive_loss"]
        >>> value.item() < 1e-3
        True
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        use_logit_scale: bool = False,
        *,
        link: LinkLike = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        if "use_horovod" in TAKEN:
            kwargs["use_horovod"] = use_horovod
        elif use_horovod:
            raise ValueError(
                "use_horovod must be False, as the installed open_clip has no Horovod, got True."
            )
        super().__init__(
            local_loss=local_loss,
            gather_with_grad=gather_with_grad,
            cache_labels=cache_labels,
            rank=rank,
            world_size=world_size,
            **kwargs,
        )
        self.use_logit_scale = use_logit_scale
        self._set_options(None, link, backend)
        if use_horovod and world_size > 1 and not use_logit_scale:
            raise ValueError(
                "use_horovod must be False, since the batches are gathered by torch.distributed."
            )

    def _compare(self, image: Tensor, text: Tensor, **options: Any) -> Tensor:
        return info_nce(image, text, symmetric=True, **options)


class SigLipLoss(_Scaled, OriginalSigLip):
    """SigLIP's loss, every image and text a question of its own, on the fitted log-odds of the cosines.

    The bias is the prior log-odds of a pair, so that neither it nor a scale has to be learned; see
    ``taufree.sigmoid_nce``. The arguments are open_clip's, and three more. Over several ranks the gradient is
    that of one process on the whole batch, as open_clip's is.

    Args:
        cache_labels, rank, dist_impl: accepted; they only matter with the learned scale.
        world_size: more than 1 compares with the texts of all ranks.
        use_logit_scale: True is open_clip's own loss, with the scale and the bias that the model learns.
        link, backend: see ``ClipLoss``.

    Shape:
        As in ``ClipLoss``.

    Examples:
        >>> loss = SigLipLoss(link="free")
        >>> loss(torch.eye(4), torch.eye(4), torch.tensor(10.0), torch.tensor(-10.0)).item() < 1.0
        True
    """

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        use_logit_scale: bool = False,
        *,
        link: LinkLike = None,
        backend: str = "auto",
    ) -> None:
        if OriginalSigLip is nn.Module:
            raise ValueError("SigLipLoss needs open_clip_torch 2.23 or newer.")
        given = {"cache_labels": cache_labels, "rank": rank, "world_size": world_size, "dist_impl": dist_impl}
        taken = inspect.signature(OriginalSigLip).parameters
        super().__init__(**{name: value for name, value in given.items() if name in taken})
        self.use_logit_scale = use_logit_scale
        self._set_options(None, link, backend)

    def _compare(self, image: Tensor, text: Tensor, **options: Any) -> Tensor:
        return sigmoid_nce(image, text, **options)


def temperature_free(loss: nn.Module, link: LinkLike = None) -> ClipLoss | SigLipLoss:
    """The twin of an open_clip ``ClipLoss`` or ``SigLipLoss``, with its settings and without its temperature;
    see ``taufree.temperature_free``."""
    twin = twin_of(type(loss), {open_clip.ClipLoss: ClipLoss, OriginalSigLip: SigLipLoss})
    original = OriginalSigLip if issubclass(twin, SigLipLoss) else open_clip.ClipLoss
    settings = {name: getattr(loss, name) for name in inspect.signature(original).parameters}
    made: ClipLoss | SigLipLoss = twin(**settings, **free_options(loss, link))
    return made


def _attach(loss: Tensor, unused: Tensor | float | None) -> Tensor:
    """The loss, with a gradient of zero for ``unused``.

    DistributedDataParallel waits for a gradient of every parameter. Adding ``0 * unused`` would turn an
    infinite scale into NaN; torch.fill does not read it.
    """
    if not isinstance(unused, Tensor) or not unused.requires_grad:
        return loss
    return loss + torch.fill(unused.sum() if unused.dim() else unused, 0).to(loss)
