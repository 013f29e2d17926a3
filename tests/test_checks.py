"""Arguments that the losses and links cannot take: one sentence that names the argument."""

import math

import numpy as np
import pytest
import torch

import taufree
from taufree import LearnableTemperature, LogOdds, Temperature, info_nce, nt_xent, sigmoid_nce, sup_con

BAD = {
    "query must have shape": lambda x, i: info_nce(x[0], x),
    "query must be a floating-point tensor, got list": lambda x, i: info_nce([[1.0]], x),
    "query must be a floating-point tensor, got dtype torch.int64": lambda x, i: info_nce(x.long(), x),
    "query must be a floating-point tensor, got dtype torch.complex64": lambda x, i: info_nce(
        x.to(torch.cfloat), x
    ),
    "query must have shape [N, D] with N and D at least 1, got [0, 3]": lambda x, i: info_nce(x[:0], x[:0]),
    "view_a must have shape [N, D] with N and D at least 1, got [4, 0]": lambda x, i: nt_xent(
        x[:, :0], x[:, :0]
    ),
    "positive_key must have the shape of query, [4, 3], got [3, 3]": lambda x, i: info_nce(x, x[:3]),
    "positive_key must have the shape of query, [4, 3], got [4, 2]": lambda x, i: info_nce(x, x[:, :2]),
    "positive_key must be on the device of query, cpu, got meta": lambda x, i: info_nce(x, x.to("meta")),
    "view_b must have the shape of view_a, [4, 3], got [3, 3]": lambda x, i: nt_xent(x, x[:3]),
    "negative_keys must have shape [M, 3] or [4, M, 3], got [5, 2]": lambda x, i: info_nce(
        x, x, torch.ones(5, 2)
    ),
    "negative_keys must have shape [M, 3] or [4, M, 3], got [3, 5, 3]": lambda x, i: info_nce(
        x, x, torch.ones(3, 5, 3)
    ),
    "negative_keys must be a floating-point tensor": lambda x, i: info_nce(x, x, torch.ones(5, 3).long()),
    "ids must have shape [4], got [3]": lambda x, i: info_nce(x, x, ids=i[:3]),
    "ids must be an integer tensor, got dtype torch.float32": lambda x, i: nt_xent(x, x, ids=i.float()),
    "hardness must be a number from 0 to 50, got one that float64 cannot hold.": lambda x, i: info_nce(
        x, x, hardness=10**5000
    ),
    "ids must be a dense tensor, got layout torch.sparse_coo": lambda x, i: nt_xent(x, x, ids=i.to_sparse()),
    "ids must be an integer tensor, got list": lambda x, i: nt_xent(x, x, ids=[0, 1, 2, 3]),
    "ids distinguishes candidates and needs in_batch=True or negative_ids": lambda x, i: info_nce(
        x, x, x, ids=i
    ),
    "negative_ids needs ids": lambda x, i: info_nce(x, x, x, negative_ids=i),
    "negative_ids needs negative_keys [M, D]": lambda x, i: info_nce(x, x, ids=i, negative_ids=i),
    "negative_ids must have shape [5], got [4]": lambda x, i: info_nce(
        x, x, torch.ones(5, x.shape[1]), ids=i, negative_ids=i
    ),
    "negative_ids must be an integer tensor, got dtype torch.float32": lambda x, i: info_nce(
        x, x, x, ids=i, negative_ids=i.float()
    ),
    "embeddings must have shape [N, D] or [N, V, D], each at least 1, got [4, 0, 3]": lambda x, i: sup_con(
        x.new_ones(4, 0, 3), i
    ),
    "embeddings must have shape [N, D] or [N, V, D], each at least 1, got []": lambda x, i: sup_con(
        x.new_ones(()), i
    ),
    "labels must be given unless embeddings are [N, V, D], got None": lambda x, i: sup_con(x),
    "labels must be given with keys, got None": lambda x, i: sup_con(x[None], keys=x, key_labels=i),
    "key_labels must be given with keys, got None": lambda x, i: sup_con(x, i, x),
    "keys must be given with key_labels, got None": lambda x, i: sup_con(x, i, key_labels=i),
    "keys must have shape [M, 3], got [4, 2]": lambda x, i: sup_con(x, i, x[:, :2], i),
    "keys must have shape [N, D] with N and D at least 1, got [0, 3]": lambda x, i: sup_con(
        x, i, x[:0], i[:0]
    ),
    "key_labels must have shape [4], got [3]": lambda x, i: sup_con(x, i, x, i[:3]),
    "labels must have shape [4], got [4, 1]": lambda x, i: sup_con(x, i[:, None]),
    "labels must be an integer tensor, got dtype torch.bool": lambda x, i: sup_con(x, i > 0),
    "labels must be an integer tensor, got list": lambda x, i: sup_con(x, [0, 1, 2, 3]),
    "labels must be on the device of the embeddings, cpu, got meta": lambda x, i: sup_con(x, i.to("meta")),
    "hardness must be a number from 0 to 50, got -1": lambda x, i: nt_xent(x, x, hardness=-1),
    "hardness must be a number from 0 to 50, got nan": lambda x, i: taufree.SupCon(hardness=float("nan")),
    "hardness must be a number from 0 to 50, got Tensor": lambda x, i: info_nce(x, x, hardness=x),
    "weights must have shape [4], got [3]": lambda x, i: nt_xent(x, x, weights=x[:3, 0]),
    "weights must be a floating-point tensor, got dtype torch.int64": lambda x, i: sup_con(x, i, weights=i),
    "key must have the shape of query, [4, 3], got [3, 3]": lambda x, i: sigmoid_nce(x, x[:3]),
    "ids must have shape [4], got [2]": lambda x, i: sigmoid_nce(x, x, ids=i[:2]),
    "bias must be a finite number, got nan": lambda x, i: sigmoid_nce(x, x, bias=math.nan),
    "bias must be a finite number, got str": lambda x, i: sigmoid_nce(x, x, bias="learnable"),
    "bias must be a number, or a floating-point tensor of one, got a tensor of shape [4, 3]": (
        lambda x, i: sigmoid_nce(x, x, bias=x)
    ),
    "bias must be a number, a tensor of one, None or \"learnable\", got 'learned'": (
        lambda x, i: taufree.SigmoidNCE(bias="learned")
    ),
    "tau must be a positive number, got a tensor of -0.5": lambda x, i: nt_xent(
        x, x, link=torch.tensor(-0.5)
    ),
    "gain must be a positive number, got one that float64 cannot hold.": lambda x, i: LogOdds(10**400),
    "reduction must be one of ('mean', 'sum', 'none'), got 'average'": lambda x, i: nt_xent(
        x, x, reduction="average"
    ),
    "reduction must be one of ('mean', 'sum', 'none'), got ndarray": lambda x, i: nt_xent(
        x, x, reduction=np.ones(2)
    ),
    "backend must be one of ('auto', 'reference', 'blockwise', 'triton'), got Tensor": (
        lambda x, i: taufree.NTXent(backend=x)
    ),
    "query must have 16 bits or more a number, got dtype torch.float8_e5m2": lambda x, i: info_nce(
        x.to(torch.float8_e5m2), x
    ),
    "backend must be one of": lambda x, i: nt_xent(x, x, backend="cuda"),
    "link must be a taufree.Link such as LogOdds() or Temperature(0.5), a temperature or a name, got bool": (
        lambda x, i: nt_xent(x, x, link=True)
    ),
    "link must be one of the names 'free', 'fitted', 'fitted-temperature', 'calibrated', 'learnable', a "
    "temperature or a Link, got 'fast'": lambda x, i: taufree.NTXent(link="fast"),
    "link must be a Link that you keep from loss to loss, such as FittedLogOdds(), or the loss a module; "
    "got the name 'fitted'": lambda x, i: nt_xent(x, x, link="fitted"),
    "tau must be a positive number, or a floating-point tensor of one or of one for each anchor, got a "
    "tensor of shape [2, 1]": lambda x, i: nt_xent(x, x, link=torch.ones(2, 1)),
    "link must have one scale or 8, one for each anchor, got 3": (
        lambda x, i: nt_xent(x, x, link=torch.ones(3))
    ),
    "got the class LogOdds": lambda x, i: nt_xent(x, x, link=LogOdds),
    "query must be a dense tensor, got layout torch.sparse_coo": lambda x, i: info_nce(x.to_sparse(), x),
    "query must be a dense tensor, got a nested one": lambda x, i: info_nce(
        torch.nested.nested_tensor([x]), x
    ),
    "symmetric must be True or False, got str": lambda x, i: info_nce(x, x, symmetric="no"),
    "symmetric must be True or False, got int": lambda x, i: taufree.InfoNCE(symmetric=1),
    "in_batch must be True, False or None, got str": lambda x, i: info_nce(x, x, in_batch="False"),
    "in_batch must be True, False or None, got torch.Tensor": lambda x, i: taufree.InfoNCE(in_batch=x),
    "decoupled must be True or False, got str": lambda x, i: nt_xent(x, x, decoupled="False"),
    "decoupled must be True or False, got NoneType": lambda x, i: info_nce(x, x, decoupled=None),
    "decoupled must be True or False, got list": lambda x, i: taufree.SupCon(decoupled=[]),
    "balanced must be True or False, got int": lambda x, i: info_nce(x, x, balanced=1),
    "balanced must be False with decoupled=True, got True": lambda x, i: taufree.NTXent(
        decoupled=True, balanced=True
    ),
    "scale_hardness must be True or False, got str": lambda x, i: sup_con(x, i, scale_hardness="no"),
    "scale_hardness must be True or False, got float": lambda x, i: taufree.NTXent(scale_hardness=1.0),
    "track must be True or False, got str": lambda x, i: taufree.NTXent(track="no"),
    "symmetric must be True or False, got numpy.bool": lambda x, i: info_nce(x, x, symmetric=np.bool_(True)),
    "symmetric=True needs in_batch=True": lambda x, i: info_nce(x, x, x, symmetric=True),
    "in_batch=False needs negative_keys": lambda x, i: info_nce(x, x, in_batch=False),
    "tau must be a positive number, got 0": lambda x, i: Temperature(0),
    "tau must be a positive number, got -1": lambda x, i: Temperature(-1),
    "tau must be a positive number, got nan": lambda x, i: Temperature(math.nan),
    "tau must be a positive number, got str": lambda x, i: Temperature("0.1"),
    "resolution must be a number of at least 0, got -1e-06": lambda x, i: LogOdds(resolution=-1e-6),
    "gain must be a positive number, got 0": lambda x, i: LogOdds(gain=0),
    "init must be a positive number, got 0": lambda x, i: LearnableTemperature(init=0),
    "max_scale must be a number of at least 1/init = 14.2857, got 2": lambda x, i: LearnableTemperature(
        0.07, 2
    ),
    "backend must be one of ": lambda x, i: taufree.NTXent(backend="fast"),
    'backend="triton" cannot compute this loss: ': lambda x, i: nt_xent(x, x, backend="triton"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("message", BAD)
def test_bad_input_gets_one_sentence(message):
    with pytest.raises((ValueError, TypeError)) as caught:
        BAD[message](torch.ones(4, 3), torch.arange(4))
    said = str(caught.value)
    assert message.strip() in said
    assert said.endswith(".")
    assert "\n" not in said
