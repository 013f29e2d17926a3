"""lightly's contrastive losses without a temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from taufree import distributed, info_nce, nt_xent
from taufree.checks import check_alike, check_flags
from taufree.dtypes import result_dtype
from taufree.functional import paired_logits
from taufree.integrations import Linked, as_twin, link_of, positive
from taufree.links import LinkLike
from taufree.util.optional import needs

with needs("taufree[lightly]", "lightly"):
    from lightly import loss as original
    from lightly.models.modules.memory_bank import MemoryBankModule


class NTXentLoss(Linked, original.NTXentLoss):
    """`lightly.loss.NTXentLoss` with ``temperature=None`` by default.

    The memory bank is lightly's: a checkpoint fits both. With ``gather_distributed`` the value is the
    mean over all ranks, where lightly's is that over the own rows; the gradients are the same.

    Args:
        temperature: None for the log-odds, else lightly's loss; a parameter is learned.
        memory_bank_size: 0 for SimCLR; (size, D) for MoCo, where the keys of past batches are the negatives;
            a size alone takes D from the first batch.
        gather_distributed: contrast with the batches of all ranks; with a bank, store them.
        link: instead of a temperature, any other link or its name.
        balanced, backend: see ``taufree.nt_xent``; attributes too.

    Shape:
        out0, out1: [N, D]; the result is a scalar.

    Examples:
        >>> loss = NTXentLoss(memory_bank_size=(16, 8))
        >>> loss(torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)).shape
        torch.Size([])
        >>> loss.memory_bank.bank_ptr.item()
        4
    """

    size_without_width = 0
    balanced = False

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        link: LinkLike = None,
        balanced: bool = False,
        backend: str = "auto",
    ) -> None:
        link_of(temperature, link=link)
        check_flags(balanced=balanced)
        if not isinstance(memory_bank_size, int | Sequence):
            got = type(memory_bank_size).__name__
            raise TypeError(f"memory_bank_size must be an integer or a pair (size, D), got {got}.")
        if isinstance(memory_bank_size, int) and memory_bank_size > 0:
            self.size_without_width, memory_bank_size = memory_bank_size, 0
        super().__init__(1.0 if temperature is None else temperature, memory_bank_size, gather_distributed)
        self._set_options(temperature, link, backend)
        self.balanced = balanced

    def extra_repr(self) -> str:
        return f"{'balanced=True, ' * self.balanced}{super().extra_repr()}"

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:
        check_alike(out0=out0, out1=out1)
        if self.size_without_width:
            size = (self.size_without_width, out1.shape[1])
            with torch.inference_mode(False):  # a trainer's first call may be an evaluation
                self.memory_bank = MemoryBankModule(size, self.gather_distributed).to(out1.device)
            self.size_without_width = 0
        size = self.memory_bank.size  # an integer in older versions
        if (size if isinstance(size, int) else size[0]) == 0:
            return nt_xent(
                out0,
                out1,
                link=self.link,
                balanced=self.balanced,
                gather_distributed=self.gather_distributed,
                backend=self.backend,
            )
        bank, width = self.memory_bank.bank, out1.shape[1]
        if bank.dim() == 2 and len(bank) and bank.shape[1] != width:
            raise ValueError(f"out1 must have the {bank.shape[1]} columns of memory_bank_size, got {width}.")
        unit = normalize(out1.detach().to(result_dtype(out1)), dim=1)
        negatives = self.memory_bank(unit, update=out0.requires_grad)[1].T.to(out0.device)
        return info_nce(out0, out1, negatives, link=self.link, balanced=self.balanced, backend=self.backend)


class DCLLoss(Linked, original.DCLLoss):
    r"""`lightly.loss.DCLLoss`, the decoupled loss, with ``temperature=None`` by default.

    The positive leaves the denominator, so an anchor's loss is the logarithm of S / p, with p the positive's
    weight and S the sum of the negatives'. A ``weight_fn`` w multiplies the positive's logit:
    -w log p + log S.

    A batch of one has no negatives and loss 0, where lightly's is -inf.

    Args:
        temperature: None for the log-odds, else lightly's loss; a parameter is learned.
        weight_fn: called with the normalised views, [N, D] each; returns the weights of the first view's
            positives, [N].
        gather_distributed: contrast with the batches of all ranks; the value is that of the own rows.
        link: instead of a temperature, any other link or its name.
        backend: see ``taufree.nt_xent``.

    Examples:
        >>> views = torch.eye(4, 8), torch.eye(4, 8) + 0.5 * torch.eye(4, 8).roll(1, 1)
        >>> round(DCLLoss()(*views).item(), 4)
        -0.7953
    """

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        weight_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        gather_distributed: bool = False,
        *,
        link: LinkLike = None,
        backend: str = "auto",
    ) -> None:
        link_of(temperature, link=link)
        super().__init__(temperature, weight_fn, gather_distributed)
        self._set_options(temperature, link, backend)

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:
        check_alike(out0=out0, out1=out1)
        losses = nt_xent(
            out0,
            out1,
            link=self.link,
            decoupled=True,
            reduction="none",
            gather_distributed=self.gather_distributed,
            backend=self.backend,
        )
        alone = len(out0) == 1 and not distributed.active(self.gather_distributed)
        if self.weight_fn is not None and not alone:
            unit = [normalize(x.to(result_dtype(out0, out1)), dim=1) for x in (out0, out1)]
            weights = torch.cat([self._weights(*unit), self._weights(*unit[::-1])])
            positive = paired_logits(out0, out1, self.link)  # which nt_xent has prepared
            losses = losses + (1 - weights) * positive.repeat(2).to(losses.dtype)
        return losses.mean()

    def _weights(self, out0: Tensor, out1: Tensor) -> Tensor:
        found = torch.as_tensor(self.weight_fn(out0, out1), device=out0.device)
        if found.shape not in ((), (len(out0),)):
            raise ValueError(f"weight_fn must return weights [{len(out0)}], got shape {list(found.shape)}.")
        return found.expand(len(out0))


class DCLWLoss(DCLLoss, original.DCLWLoss):
    """`lightly.loss.DCLWLoss`: ``DCLLoss`` with lightly's von Mises-Fisher weights."""

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        sigma: float = 0.5,
        gather_distributed: bool = False,
        *,
        link: LinkLike = None,
        backend: str = "auto",
    ) -> None:
        link_of(temperature, link=link)
        positive(sigma, "sigma")
        original.DCLWLoss.__init__(self, temperature, sigma, gather_distributed)
        self._set_options(temperature, link, backend)


def temperature_free(loss: Any, link: LinkLike = None) -> Any:
    """A copy of lightly's ``loss`` without its temperature, with what is in its memory bank; see
    ``taufree.temperature_free``."""
    twins = {
        original.NTXentLoss: NTXentLoss,
        original.DCLLoss: DCLLoss,
        original.DCLWLoss: DCLWLoss,
    }
    return as_twin(loss, twins, link)
