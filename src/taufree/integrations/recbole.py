"""RecBole's contrastive recommenders without a temperature: a mixin for each way they compute InfoNCE.

``SGL``, ``NCL`` and ``FEARec`` are RecBole's with the mixin in front; a model of one's own takes the mixin
itself, ``class Mine(TemperatureFreeInfoNCE, MyModel)``. The ready classes have RecBole's names, for RecBole
finds a model's default settings and its trainer by the name of its class.

The configuration's ``temperature`` decides: absent or None is the free link, a number is that temperature,
and then the loss is RecBole's own; a link's name is that link. The models' own temperatures (``ssl_tau``,
``ssl_temp``, ``tau``) are not read.

The default is the paper's link and not the fitted one: the contrast is a term beside the loss that ranks, and
compares two views of a user, of an item or of a sequence, never a user with an item.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from taufree import Link, Temperature, info_nce, nt_xent
from taufree.integrations import Linked
from taufree.util.optional import needs

# The import of RecBole turns PyTorch's anomaly detection on, which slows every backward.
_detects_anomalies = torch.is_anomaly_enabled()
with needs("recbole", "recbole"):
    from recbole.model import general_recommender, sequential_recommender
torch.autograd.set_detect_anomaly(_detects_anomalies)


class _LinkedModel(Linked):
    """A RecBole model with a ``link``, by the configuration's ``temperature``, and a ``backend``.

    Both are attributes; a temperature of the model's own is another setting and changes neither.
    """

    temperature_name = None

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)  # type: ignore[call-arg]
        self.link = config["temperature"]


class TemperatureFreeSGL(_LinkedModel):
    """For models with SGL's ``calc_ssl_loss``: each user or item against all of the other view."""

    ssl_weight: float

    def calc_ssl_loss(
        self,
        user_list: Tensor,
        pos_item_list: Tensor,
        user_sub1: Tensor,
        user_sub2: Tensor,
        item_sub1: Tensor,
        item_sub2: Tensor,
    ) -> Tensor:
        options = self.link, self.backend
        users = contrast_with_all(user_sub1[user_list], user_sub2, user_list, *options)
        items = contrast_with_all(item_sub1[pos_item_list], item_sub2, pos_item_list, *options)
        return self.ssl_weight * (users + items)


class TemperatureFreeNCL(_LinkedModel):
    """For models with NCL's ``ssl_layer_loss`` (structural neighbours) and ``ProtoNCE_loss`` (clusters)."""

    n_users: int
    n_items: int
    ssl_reg: float
    alpha: float
    proto_reg: float
    user_centroids: Tensor
    item_centroids: Tensor
    user_2cluster: Tensor
    item_2cluster: Tensor

    def ssl_layer_loss(
        self, current_embedding: Tensor, previous_embedding: Tensor, user: Tensor, item: Tensor
    ) -> Tensor:
        options = self.link, self.backend
        sizes = [self.n_users, self.n_items]
        (users, items), (all_users, all_items) = (
            torch.split(rows, sizes) for rows in (current_embedding, previous_embedding)
        )
        of_users = contrast_with_all(users[user], all_users, user, *options)
        of_items = contrast_with_all(items[item], all_items, item, *options)
        return self.ssl_reg * (of_users + self.alpha * of_items)

    def ProtoNCE_loss(self, node_embedding: Tensor, user: Tensor, item: Tensor) -> Tensor:  # noqa: N802
        options = self.link, self.backend
        users, items = torch.split(node_embedding, [self.n_users, self.n_items])
        of_users = contrast_with_all(users[user], self.user_centroids, self.user_2cluster[user], *options)
        of_items = contrast_with_all(items[item], self.item_centroids, self.item_2cluster[item], *options)
        return self.proto_reg * (of_users + of_items)


class TemperatureFreeInfoNCE(_LinkedModel):
    """For models with FEARec's ``info_nce``, which CL4SRec and DuoRec for RecBole have as well."""

    def info_nce(
        self, z_i: Tensor, z_j: Tensor, temp: float | None, batch_size: int, sim: str = "cos"
    ) -> tuple[Tensor, Tensor]:
        """Logits [2N, 2] and labels [2N] whose cross-entropies are NT-Xent's losses.

        The caller takes the cross-entropy of them. With two logits 0 and log(S / p), the decoupled loss, and
        label 0 that is log(1 + S / p), so no row needs the logits of all its candidates. ``temp``, the
        model's own temperature, is not used. Another ``sim`` than the cosine has no log-odds: it needs a
        temperature in the configuration, and then RecBole computes it.
        """
        if sim != "cos":
            if type(self.link) is not Temperature:
                raise ValueError(f"sim must be 'cos' for a link of cosines, got {sim!r}: give a temperature.")
            self._check_dense(f"sim={sim!r}")
            found: tuple[Tensor, Tensor] = super().info_nce(  # type: ignore[misc]
                z_i, z_j, self.link.tau, batch_size, sim
            )
            return found
        losses = nt_xent(z_i, z_j, link=self.link, decoupled=True, reduction="none", backend=self.backend)
        if len(z_i) == 1:  # S is 0
            losses = losses - torch.inf
        logits = torch.stack([torch.zeros_like(losses), losses], dim=1)
        return logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device)


class SGL(TemperatureFreeSGL, general_recommender.SGL):
    """RecBole's SGL without a temperature."""


class NCL(TemperatureFreeNCL, general_recommender.NCL):
    """RecBole's NCL without a temperature."""


class FEARec(TemperatureFreeInfoNCE, sequential_recommender.FEARec):
    """RecBole's FEARec without a temperature."""


def contrast_with_all(
    query: Tensor, rows: Tensor, positive: Tensor, link: Link, backend: str = "auto"
) -> Tensor:
    """The sum over queries of -log softmax: row ``positive[i]`` is found by query i among all rows.

    As shared negatives, ``rows`` hold each positive: the loss is the decoupled one, log(Z/w).

    Shape:
        query: [N, D]; rows: [M, D]; positive: [N] integers below M.
    """
    return info_nce(query, rows[positive], rows, link=link, decoupled=True, reduction="sum", backend=backend)
