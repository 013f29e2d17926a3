"""RecBole's models with a link, against RecBole's own losses and in RecBole's own training."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import taufree
from taufree import LogOdds

# RecBole 1.2 spells some types as NumPy did before 2.0.
for name, kind in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
    if not hasattr(np, name):
        setattr(np, name, kind)

recbole = pytest.importorskip("recbole", reason="RecBole is not installed, see docs/integrations/recbole.md")
from taufree.integrations.recbole import NCL, SGL, FEARec, contrast_with_all  # noqa: E402, I001  first, see there
from recbole.config import Config  # noqa: E402
from recbole.data import create_dataset, data_preparation  # noqa: E402
from recbole.model import general_recommender, sequential_recommender  # noqa: E402
from recbole.utils import get_trainer, init_seed  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {
    "use_gpu": False,
    "show_progress": False,
    "state": "ERROR",
    "train_batch_size": 2048,
    "embedding_size": 16,
    "n_layers": 1,
    "val_interval": {"user_id": [str(user) for user in range(1, 100)]},
}
# FEARec prepares each of its rows in Python, so there are few.
SEQUENTIAL = {
    "val_interval": {"user_id": [str(user) for user in (1, 2, 3)]},
    "contrast": "un",
    "sim": "cos",
    "tau": 0.3,
    "n_layers": 2,
    "hidden_size": 16,
    "inner_size": 16,
    "MAX_ITEM_LIST_LENGTH": 5,
    "train_batch_size": 64,
    "train_neg_sample_args": None,
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # RecBole writes its logs where it runs,
    monkeypatch.setattr(sys, "argv", ["test"])  # and takes the options of any command for its own


def test_importing_it_does_not_slow_pytorch_down():
    assert not torch.is_anomaly_enabled()


def prepared(model, **settings):
    config = Config(model=model, dataset="ml-100k", config_dict={**SMALL, **settings})
    init_seed(0, reproducibility=True)
    return config, *data_preparation(config, create_dataset(config))


def losses_of(model, **settings):
    """The mean loss of each of two epochs, and the figures on the test items."""
    config, train, _, test = prepared(model, epochs=2, **settings)
    built = model(config, train.dataset)
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, built)
    trainer.fit(train, None, saved=False, verbose=False)
    found = trainer.evaluate(test, load_best_model=False)
    return list(trainer.train_loss_dict.values()), found, built


@pytest.mark.parametrize("tau", [0.5, None])
def test_sgl_trains_on_ml_100k_and_a_number_is_recboles_own_loss(tau):
    losses, found, model = losses_of(SGL, temperature=tau)
    assert losses[1] < losses[0]
    assert 0 < found["recall@10"] < 1
    if tau is None:
        assert isinstance(model.link, LogOdds)
    else:
        theirs, *_ = losses_of(general_recommender.SGL, ssl_tau=tau)
        assert losses == pytest.approx(theirs, rel=1e-4)


def test_sgl_without_a_temperature_in_the_configuration_is_free():
    config, train, *_ = prepared(SGL)
    assert config["ssl_tau"] == 0.5  # RecBole's default, which is not read
    assert isinstance(SGL(config, train.dataset).link, LogOdds)
    config["temperature"] = "fitted"
    assert isinstance(SGL(config, train.dataset).link, taufree.FittedLogOdds)


@pytest.mark.parametrize("tau", [0.3, None])
def test_fearec_trains_and_a_number_is_recboles_own_loss(tau):
    losses, *_ = losses_of(FEARec, temperature=tau, **SEQUENTIAL)
    assert losses[1] < losses[0]
    if tau is not None:
        theirs, *_ = losses_of(sequential_recommender.FEARec, **SEQUENTIAL)
        assert losses == pytest.approx(theirs, rel=1e-4)


def test_fearecs_two_logits_have_the_gradient_of_nt_xent():
    torch.manual_seed(0)
    a, b = torch.randn(2, 12, 5, requires_grad=True)
    b = b.detach()
    model = FEARec.__new__(FEARec)
    nn.Module.__init__(model)
    model.link = LogOdds()
    found = cross_entropy(*model.info_nce(a, b, temp=None, batch_size=12))
    expected = taufree.nt_xent(a, b)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(loss, a, retain_graph=True)[0] for loss in (found, expected)]
    assert torch.allclose(*gradients, atol=1e-7)
    alone = cross_entropy(*model.info_nce(a[:1], b[:1], temp=None, batch_size=1))
    assert torch.autograd.grad(alone, a)[0].abs().sum() == 0
    with pytest.raises(ValueError, match=r"^sim must be 'cos' for a link of cosines, got 'dot': give a"):
        model.info_nce(a, b, temp=1.0, batch_size=12, sim="dot")
    model.link, model.batch_size, model.mask_default = 0.3, 0, None
    found = model.info_nce(a, b, temp=None, batch_size=12, sim="dot")
    theirs = sequential_recommender.FEARec.info_nce(model, a, b, temp=0.3, batch_size=12, sim="dot")
    assert all(map(torch.equal, found, theirs))


def bare(kind, link):
    """An NCL of 6 users, 5 items and 3 clusters; its constructor needs versions of SciPy of before 1.13."""
    torch.manual_seed(0)
    model = kind.__new__(kind)
    nn.Module.__init__(model)
    model.n_users, model.n_items, model.link = 6, 5, link
    model.ssl_reg, model.alpha, model.proto_reg, model.ssl_temp = 0.5, 1.5, 0.25, 0.2
    centroids = nn.functional.normalize(torch.randn(2, 3, 4), dim=-1)
    model.user_centroids, model.item_centroids = centroids
    model.user_2cluster, model.item_2cluster = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 1, 0, 0, 1])
    return model


def test_ncl_with_a_number_is_recboles_own_loss_and_without_it_is_free():
    ours, theirs = (bare(kind, taufree.Temperature(0.2)) for kind in (NCL, general_recommender.NCL))
    current, previous = torch.randn(2, 11, 4)
    batch = torch.tensor([0, 3, 3, 5]), torch.tensor([4, 0, 1, 1])  # the same user and item twice
    for found, expected in (
        (ours.ssl_layer_loss(current, previous, *batch), theirs.ssl_layer_loss(current, previous, *batch)),
        (ours.ProtoNCE_loss(current, *batch), theirs.ProtoNCE_loss(current, *batch)),
    ):
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    free = bare(NCL, LogOdds()).ssl_layer_loss(current, previous, *batch)
    assert free.item() != pytest.approx(theirs.ssl_layer_loss(current, previous, *batch).item(), rel=1e-2)


def test_link_and_backend_are_attributes():
    model = bare(NCL, taufree.LearnableTemperature())
    batch = torch.tensor([0, 3, 3, 5]), torch.tensor([4, 0, 1, 1])
    assert set(model.state_dict()) == {"link.log_scale"}
    assert "(link): LearnableTemperature(" in repr(model)
    assert "backend='auto'" in repr(model)
    model.link = None
    assert isinstance(model.link, LogOdds)
    model.backend = "triton"  # which needs a GPU, so the error shows that it was asked for
    for call in (
        lambda: model.ssl_layer_loss(*torch.randn(2, 11, 4), *batch),
        lambda: model.ProtoNCE_loss(torch.randn(11, 4), *batch),
    ):
        with pytest.raises(ValueError, match=r'^backend="triton" cannot compute'):
            call()
    with pytest.raises(TypeError, match=r"^link must be a taufree\.Link .* got list"):
        model.link = [0.5]
    model.temperature = 0.5  # a model's own, of another term
    assert isinstance(model.link, LogOdds)
    model.link = 0.5
    assert model.link.tau == 0.5
    model.link = "fitted"
    assert isinstance(model.link, taufree.FittedLogOdds)


def test_all_rows_are_candidates_once():
    torch.manual_seed(0)
    query, rows = torch.randn(4, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    rows[2] = query[1]  # an exact match
    positive = torch.tensor([1, 2, 2, 6])
    cosine = nn.functional.normalize(query, dim=1) @ nn.functional.normalize(rows, dim=1).T
    expected = cross_entropy(LogOdds()(cosine.clamp(max=1)), positive, reduction="sum")
    assert contrast_with_all(query, rows, positive, LogOdds()).item() == pytest.approx(
        expected.item(), rel=1e-6
    )


def test_without_recbole_it_says_what_to_install():
    code = "import sys; sys.modules['recbole'] = None; import taufree.integrations.recbole"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(taufree.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    sentence = found.stderr.splitlines()[-1]
    assert sentence.endswith("MissingPackageError: this part of taufree needs recbole: pip install recbole")
