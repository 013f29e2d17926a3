"""With a temperature, the losses are those of the libraries people use, to 1e-6."""

import info_nce as info_nce_pytorch
import lightly.loss
import open_clip
import pytest
import pytorch_metric_learning.losses
import torch

from taufree import LearnableTemperature, SigmoidNCE, Temperature, info_nce, nt_xent, sup_con
from tests.support.comparison import agree, rows

BACKENDS = pytest.mark.parametrize("backend", ["reference", "blockwise"])


@BACKENDS
@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_nt_xent_is_lightlys(tau, backend):
    a, b = rows(33, 16), rows(33, 16, seed=1)
    theirs = lightly.loss.NTXentLoss(temperature=tau)(a, b)
    agree(nt_xent(a, b, link=Temperature(tau), backend=backend), theirs, a, b)


@BACKENDS
@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_info_nce_is_info_nce_pytorchs(tau, backend):
    a, b, shared, own = rows(33, 16), rows(33, 16, seed=1), rows(40, 16, seed=2), rows(33, 5, 16, seed=3)
    link = Temperature(tau)
    agree(info_nce(a, b, link=link, backend=backend), info_nce_pytorch.InfoNCE(tau)(a, b), a, b)
    theirs = info_nce_pytorch.InfoNCE(tau, negative_mode="unpaired")(a, b, shared)
    agree(info_nce(a, b, shared, link=link, backend=backend), theirs, a, b, shared)
    theirs = info_nce_pytorch.InfoNCE(tau, negative_mode="paired")(a, b, own)
    agree(info_nce(a, b, own, link=link, backend=backend), theirs, a, b, own)


@BACKENDS
def test_symmetric_info_nce_is_open_clips(backend):
    image, text = rows(33, 16), rows(33, 16, seed=1)
    unit = torch.nn.functional.normalize
    theirs = open_clip.ClipLoss()(unit(image, dim=1), unit(text, dim=1), torch.tensor(1 / 0.07))
    agree(info_nce(image, text, symmetric=True, link=Temperature(0.07), backend=backend), theirs, image, text)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_sigmoid_loss_is_open_clips(backend, dtype):
    """With a learned scale and bias, begun as SigLIP's are; also where every gradient is compared."""
    image, text = (rows(33, 16, seed=seed).detach().to(dtype).requires_grad_() for seed in range(2))
    bias = torch.nn.Parameter(torch.tensor(-10.0, dtype=dtype))
    loss = SigmoidNCE(link=LearnableTemperature(0.1).to(dtype), bias=bias, backend=backend)
    unit = torch.nn.functional.normalize
    theirs = open_clip.loss.SigLipLoss()(
        unit(image, dim=1), unit(text, dim=1), loss.link.log_scale.exp(), loss.bias
    )
    agree(loss(image, text), theirs, image, text, loss.link.log_scale, loss.bias)


@BACKENDS
def test_sup_con_is_pytorch_metric_learnings(backend):
    z, labels = rows(33, 16), torch.randint(0, 9, (33,), generator=torch.Generator().manual_seed(4))
    labels[0] = 99  # an anchor without a positive
    theirs = pytorch_metric_learning.losses.SupConLoss(temperature=0.1)(z, labels)
    agree(sup_con(z, labels, link=Temperature(0.1), backend=backend), theirs, z)
