import copy
import pickle

import pytest
import torch

from taufree import (
    InfoNCE,
    LearnableTemperature,
    NTXent,
    SigmoidNCE,
    SupCon,
    Temperature,
    info_nce,
    nt_xent,
    sigmoid_nce,
    sup_con,
)

A = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
B = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([0, 0, 1, 2, 3, 4])


def test_modules_are_their_functions():
    link = Temperature(0.2)
    options = {"link": link, "reduction": "sum", "backend": "blockwise"}
    module = InfoNCE(symmetric=True, in_batch=True, **options)
    expected = info_nce(A, B, B[:2], symmetric=True, in_batch=True, ids=IDS, **options)
    torch.testing.assert_close(module(A, B, B[:2], ids=IDS), expected)
    torch.testing.assert_close(NTXent(**options)(A, B, ids=IDS), nt_xent(A, B, ids=IDS, **options))
    torch.testing.assert_close(SupCon(**options)(A, IDS), sup_con(A, IDS, **options))
    torch.testing.assert_close(NTXent()(A, B), nt_xent(A, B))
    expected = sigmoid_nce(A, B, ids=IDS, bias=-2.0, **options)
    torch.testing.assert_close(SigmoidNCE(bias=-2.0, **options)(A, B, ids=IDS), expected)


def test_a_learned_bias_begins_at_the_prior_or_where_it_is_put():
    loss = SigmoidNCE(bias="learnable")
    torch.testing.assert_close(loss(A, B), sigmoid_nce(A, B))
    torch.testing.assert_close(loss(A[:3], B[:3]), sigmoid_nce(A[:3], B[:3]))
    given = SigmoidNCE(bias=torch.nn.Parameter(torch.tensor(-10.0)), link="learnable")
    for one, names in ((loss, {"bias_above_prior"}), (given, {"bias", "link.log_scale"})):
        one(A, B).backward()
        assert {name for name, p in one.named_parameters() if p.grad.item() != 0} == names
        assert set(one.state_dict()) == names
    assert "bias=-10.0" in repr(given)
    assert "bias='learnable'" in repr(copy.deepcopy(loss))


@pytest.mark.parametrize(
    "loss", [InfoNCE(symmetric=True), NTXent(link=LearnableTemperature()), SupCon(), SigmoidNCE()]
)
def test_copies_and_state(loss):
    second = IDS if isinstance(loss, SupCon) else B
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(other(A, second), loss(A, second))
        other.load_state_dict(loss.state_dict())
        assert repr(other) == repr(loss)
    learned = {"link.log_scale"} if isinstance(loss.link, LearnableTemperature) else set()
    assert set(loss.state_dict()) == learned


def test_the_representation_names_what_was_chosen():
    shown = repr(InfoNCE(symmetric=True, reduction="sum", link=Temperature(0.5)))
    for part in (
        "symmetric=True",
        "in_batch=None",
        "reduction='sum'",
        "backend='auto'",
        "Temperature(tau=0.5)",
    ):
        assert part in shown
    assert "reduction='mean'" in repr(NTXent())


@pytest.mark.parametrize("name", ["temperature", "tau"])
def test_a_temperature_is_said_to_be_a_link(name):
    calls = [InfoNCE, NTXent, SupCon, SigmoidNCE]
    calls += [
        lambda **x: info_nce(A, B, **x),
        lambda **x: nt_xent(A, B, **x),
        lambda **x: sup_con(A, IDS, **x),
        lambda **x: sigmoid_nce(A, B, **x),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=rf"^{name} must be given as the link: link=0\.5, got {name}\.$"):
            call(**{name: 0.5})
        with pytest.raises(TypeError, match="unexpected keyword argument 'temperatur'"):
            call(temperatur=0.5)
    assert NTXent(link=0.5)(A, B) == nt_xent(A, B, link=0.5)
