"""The drop-ins for pytorch-metric-learning, beside the real ones and with the rest of the library."""

import pytest
import pytorch_metric_learning
import torch
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers

from taufree import nt_xent, sup_con, temperature_free
from taufree.integrations.pytorch_metric_learning import NTXentLoss, SupConLoss
from tests.support.comparison import agree, rows
from tests.support.largest import Largest

Z, REF = rows(24, 6), rows(30, 6, seed=1)
LABELS = torch.randint(0, 6, (24,), generator=torch.Generator().manual_seed(2))
LABELS[0] = 99  # an anchor without a positive
REF_LABELS = torch.randint(0, 6, (30,), generator=torch.Generator().manual_seed(3))
PAIRS = torch.arange(12).repeat(2)
BOTH = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(NTXentLoss, losses.NTXentLoss), (SupConLoss, losses.SupConLoss)],
    ids=["ntxent", "supcon"],
)


@BOTH
@pytest.mark.parametrize("labels", [LABELS, PAIRS, torch.arange(24) // 12, LABELS.float()])
def test_all_pairs(ours, theirs, labels):
    agree(ours(0.1)(Z, labels), theirs(0.1)(Z, labels), Z)


@BOTH
def test_a_reference_set(ours, theirs):
    agree(ours(0.1)(Z, LABELS, None, REF, REF_LABELS), theirs(0.1)(Z, LABELS, None, REF, REF_LABELS), Z, REF)
    itself = {"ref_emb": Z, "ref_labels": LABELS.flip(0)}
    agree(ours(0.1)(Z, LABELS, **itself), theirs(0.1)(Z, LABELS, **itself), Z)


@BOTH
@pytest.mark.parametrize(
    "miner", [miners.MultiSimilarityMiner(0.2), miners.BatchHardMiner(), miners.TripletMarginMiner()]
)
def test_miners(ours, theirs, miner):
    found = miner(Z, LABELS)
    assert len(found[0]) > 1
    agree(ours(0.1)(Z, LABELS, found), theirs(0.1)(Z, LABELS, found), Z)
    agree(ours(0.1)(Z, indices_tuple=found), theirs(0.1)(Z, indices_tuple=found), Z)  # no labels at all
    found = miner(Z, LABELS, REF, REF_LABELS)
    agree(
        ours(0.1)(Z, LABELS, found, REF, REF_LABELS), theirs(0.1)(Z, LABELS, found, REF, REF_LABELS), Z, REF
    )


REDUCERS = [
    reducers.MeanReducer(),
    reducers.ThresholdReducer(low=1.0),
    reducers.ClassWeightedReducer(torch.linspace(0.5, 2.0, 12)),
]


@pytest.mark.parametrize("labels", [LABELS % 6, PAIRS])
@pytest.mark.parametrize(
    ("ours", "theirs", "reducer"),
    [
        *((SupConLoss, losses.SupConLoss, reducer) for reducer in REDUCERS),
        *((NTXentLoss, losses.NTXentLoss, reducer) for reducer in REDUCERS),
        (NTXentLoss, losses.NTXentLoss, reducers.PerAnchorReducer()),  # of pairs only
    ],
)
def test_reducers_and_regularizers(ours, theirs, labels, reducer):
    options = {"reducer": reducer}
    agree(ours(0.1, **options)(Z, labels), theirs(0.1, **options)(Z, labels), Z)
    options["embedding_regularizer"] = regularizers.LpRegularizer()
    options["reducer"] = reducers.MultipleReducers(
        {"loss": reducer, "embedding_reg_loss": reducers.MeanReducer()}
    )
    agree(ours(0.1, **options)(Z, labels), theirs(0.1, **options)(Z, labels), Z)


@BOTH
def test_cross_batch_memory(ours, theirs):
    kinds = [losses.CrossBatchMemory(kind(0.1), 6, memory_size=40) for kind in (ours, theirs)]
    for step in range(3):  # the third batch starts over in the memory
        z = rows(16, 6, seed=step)
        labels = torch.randint(0, 5, (16,), generator=torch.Generator().manual_seed(step))
        agree(*(kind(z, labels) for kind in kinds), z)


@BOTH
@pytest.mark.parametrize("labels", [LABELS, PAIRS, PAIRS.flip(0).roll(3)])
def test_single_losses_come_in_the_librarys_order(ours, theirs, labels):
    found, expected = (
        loss(0.1, reducer=reducers.DoNothingReducer())(Z, labels)["loss"] for loss in (ours, theirs)
    )
    torch.testing.assert_close(found["losses"].squeeze(), expected["losses"].squeeze(), rtol=1e-4, atol=1e-5)
    for one, other in zip(found["indices"], expected["indices"], strict=True):
        assert torch.equal(one, other)


@BOTH
def test_self_supervised(ours, theirs):
    a, b = rows(9, 6), rows(9, 6, seed=1)
    for options in ({}, {"symmetric": False}):
        wrapped = [losses.SelfSupervisedLoss(kind(0.1), **options) for kind in (ours, theirs)]
        agree(*(kind(a, b) for kind in wrapped), a, b)


@BOTH
def test_nothing_to_contrast_is_zero(ours, theirs):
    one = torch.tensor([0])
    for call in (
        lambda loss: loss(Z, torch.zeros(24)),  # no negatives
        lambda loss: loss(Z, torch.arange(24)),  # no positives
        lambda loss: loss(
            Z, indices_tuple=(one, one + 1, one, one + 2)
        ),  # one pair of each: the library's rule
        lambda loss: loss(Z[:1], one),
        lambda loss: loss(Z[:0], one[:0]),
    ):
        found, expected = call(ours()), call(theirs())
        assert found == expected == 0
        assert (torch.autograd.grad(found, Z)[0] == 0).all()


def test_without_a_temperature_they_are_free():
    torch.testing.assert_close(SupConLoss()(Z, LABELS), sup_con(Z, LABELS))
    torch.testing.assert_close(NTXentLoss()(Z, PAIRS), nt_xent(Z[:12], Z[12:]))


@pytest.mark.parametrize("loss", [NTXentLoss(), SupConLoss()], ids=["ntxent", "supcon"])
def test_the_ways_of_the_free_loss_agree(loss):
    """All pairs, by the core where it has them, and the same pairs as a miner would list them."""
    same = PAIRS[:, None] == PAIRS
    listed = (*torch.where(same & ~torch.eye(24, dtype=torch.bool)), *torch.where(~same))
    agree(loss(Z, PAIRS), loss(Z, PAIRS, listed), Z)


def test_free_nt_xent_of_pairs_is_its_formula():
    z = torch.nn.functional.normalize(Z.detach().double(), dim=1)
    weight = (1 + z @ z.T + 1e-4) / (1 - z @ z.T + 1e-4)
    labels, expected = LABELS.tolist(), []
    for a in range(24):
        negatives = sum(weight[a, n] for n in range(24) if labels[n] != labels[a])
        expected += [
            torch.log1p(negatives / weight[a, p]) for p in range(24) if p != a and labels[p] == labels[a]
        ]
    torch.testing.assert_close(NTXentLoss()(Z.double(), LABELS), torch.stack(expected).mean())


@pytest.mark.parametrize("loss", [NTXentLoss(), SupConLoss()], ids=["ntxent", "supcon"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_duplicates_and_zeros_are_finite(loss, dtype):
    z = torch.cat([Z[:4], Z[:4], -Z[:4], torch.zeros(2, 6)]).to(dtype).detach().requires_grad_()
    labels = torch.arange(14) % 5
    for value in (loss(z, labels), loss(z, labels, ref_emb=z.detach().clone(), ref_labels=labels)):
        assert torch.isfinite(value)
        assert torch.isfinite(torch.autograd.grad(value, z)[0]).all()


def test_memory():
    n = 256
    z, pairs = rows(n, 8), torch.arange(n // 2).repeat(2)
    some = miners.BatchHardMiner()(z, pairs)
    for loss in (NTXentLoss(), SupConLoss()):
        with Largest() as most:
            loss(z, pairs, some).backward()
        assert most.numel == n * n
    with Largest() as most:
        losses.NTXentLoss()(z, pairs)
    assert most.numel > n**3 / 2  # the original, so that the assertions above mean something
    n = 2048
    z, pairs = rows(n, 8), torch.arange(n // 2).repeat(2)
    for loss in (NTXentLoss(), SupConLoss()):
        loss(z, pairs)  # whatever is made once and for all
        with Largest() as most:
            loss(z, pairs).backward()
            loss(z, pairs, ref_emb=rows(n + 5, 8), ref_labels=torch.arange(n + 5) // 3).backward()
            loss(z, torch.arange(n) // 4).backward()
        assert most.numel <= 2**20  # a strip of tiles, where all pairs are 2**22


class Squared(distances.CosineSimilarity):
    def compute_mat(self, query_emb, ref_emb):
        return super().compute_mat(query_emb, ref_emb) ** 2


OTHERS = {
    "LpDistance": distances.LpDistance(),
    "SNRDistance": distances.SNRDistance(),
    "Squared": Squared(),
    "DotProductSimilarity(normalize_embeddings=False, power=1, p=2)": distances.DotProductSimilarity(
        normalize_embeddings=False
    ),
    "CosineSimilarity(normalize_embeddings=True, power=2, p=2)": distances.CosineSimilarity(power=2),
    "CosineSimilarity(normalize_embeddings=True, power=1, p=1)": distances.CosineSimilarity(p=1),
}


@BOTH
@pytest.mark.parametrize("name", OTHERS)
def test_another_distance_is_the_librarys_with_a_temperature_and_refused_without(ours, theirs, name):
    options, labels = {"distance": OTHERS[name]}, LABELS % 6
    agree(ours(0.5, **options)(Z, labels), theirs(0.5, **options)(Z, labels), Z)
    told = f"distance must be CosineSimilarity() with power=1 and p=2 unless .* got {name}."
    for make in (
        lambda: ours(**options),
        lambda: ours(link="learnable", **options),
        lambda: temperature_free(theirs(0.5, **options)),
    ):
        with pytest.raises(ValueError, match=told.replace("(", r"\(").replace(")", r"\)")):
            make()
    later = ours(0.5, **options)
    later.temperature = None
    with pytest.raises(ValueError, match=r"^distance must be"):
        later(Z, labels)
    with pytest.raises(ValueError, match=r'^backend must be "auto" or "reference" with another distance'):
        ours(0.5, backend="blockwise", **options)


@BOTH
def test_normalised_dot_products_are_cosines(ours, theirs):
    options = {"distance": distances.DotProductSimilarity(normalize_embeddings=True)}
    agree(ours(0.1, **options)(Z, PAIRS), theirs(0.1, **options)(Z, PAIRS), Z)
    agree(ours(**options)(Z, PAIRS), ours()(Z, PAIRS), Z)
    assert temperature_free(theirs(0.1, **options))(Z, PAIRS) == ours()(Z, PAIRS)


@BOTH
def test_a_loss_of_ones_own_is_computed_or_refused(ours, theirs):
    class Doubled(ours):
        def _compute_loss(self, *args):
            found = super()._compute_loss(*args)
            found["loss"]["losses"] = 2 * found["loss"]["losses"]
            return found

    agree(Doubled(0.1)(Z, LABELS), 2 * theirs(0.1)(Z, LABELS), Z)
    with pytest.raises(ValueError, match=r"^temperature must be given with a _compute_loss .* Doubled"):
        Doubled()


@BOTH
def test_the_losses_that_count_are_the_originals(ours, theirs):
    """A reducer that leaves out losses of 0, to which float32 rounds those of easy anchors."""
    easy = [[1, 0, 0], [1, 0, 0], [-1, 0.2, 0], [-1, 0.2, 0], [-1, -0.2, 0.3], [-1, -0.2, -0.3]]
    z, labels = torch.tensor(easy).requires_grad_(), torch.arange(6) // 2
    twice = torch.cat([z, z[:1]]), torch.cat([labels, labels[:1]])  # a label of three
    reference = z.detach().clone()
    listed = tuple(torch.tensor(x) for x in ([0, 1, 2, 4], [1, 0, 3, 5], [0, 1, 2, 4], [2, 3, 4, 2]))
    others = {"reducer": reducers.AvgNonZeroReducer()}
    for rows_and_more in (
        (z, labels),
        (z, labels, None, reference, labels.clone()),
        (z, labels, listed),
        twice,
    ):
        agree(ours(0.1, **others)(*rows_and_more), theirs(0.1, **others)(*rows_and_more), z)
    # A loss of 1e-7, which counts: the highest cosine is that with the positive, not that with itself.
    a, keys = torch.eye(2).requires_grad_(), torch.tensor([[0.7, 0.7141], [-0.9118, 0.4107]])
    pairs = torch.arange(2), torch.arange(2), torch.arange(2), torch.arange(2).flip(0)
    for indices in (None, pairs):
        among = (a, labels[::2][:2], indices, keys, torch.arange(2))
        found, expected = ours(0.1, **others)(*among), theirs(0.1, **others)(*among)
        agree(found, expected, a)
    counted = theirs(0.1, reducer=reducers.DoNothingReducer())(z, labels)["loss"]["losses"] > 0
    assert 0 < counted.sum() < 6
    mean = {"reducer": reducers.MeanReducer()}
    agree(ours(0.1, **mean)(z, labels), theirs(0.1, **mean)(z, labels), z)
    free = ours(reducer=reducers.DoNothingReducer())(z, labels)["loss"]["losses"]
    assert (free > 0).all()  # nothing is rounded without a temperature


def test_bad_temperatures():
    for kind in (NTXentLoss, SupConLoss):
        with pytest.raises(ValueError, match="must be a positive number, got -1"):
            kind(-1)


@BOTH
def test_wrong_rows_are_named_as_the_library_names_them(ours, theirs):
    with pytest.raises(TypeError, match=r"^embeddings must be a floating-point tensor, got list\.$"):
        ours()(Z.tolist(), LABELS)
    with pytest.raises(TypeError, match=r"^labels must be a tensor, got list\.$"):
        ours()(Z, LABELS.tolist())
    with pytest.raises(ValueError, match=r"^embeddings must have shape \[N, D\], got \[24, 6, 1\]\.$"):
        ours()(Z[:, :, None], PAIRS)
    with pytest.raises(ValueError, match=r"^ref_emb must have the 6 columns of embeddings, got 5\.$"):
        ours()(Z, LABELS, ref_emb=REF[:, :5], ref_labels=REF_LABELS)


def test_a_pair_is_positive_or_negative():
    """They are both if a miner's pairs of the batch go to a memory, where other rows have their indices."""
    both = tuple(torch.tensor(x) for x in ([0, 1], [2, 3], [0, 1], [4, 3]))
    version = pytorch_metric_learning.__version__.split(".")
    if (int(version[0]), int(version[1])) >= (2, 9):  # before, it does not look
        with pytest.raises(AssertionError):
            losses.SupConLoss()(Z, indices_tuple=both)
    with pytest.raises(
        ValueError, match=r"^indices_tuple must not name a pair as a positive and as a negative"
    ):
        SupConLoss()(Z, indices_tuple=both)


@BOTH
def test_the_distance_collects_its_statistics(ours, theirs):
    found = []
    for kind in (ours, theirs):
        loss = kind(0.1, distance=distances.CosineSimilarity(collect_stats=True))
        loss(3 * Z, LABELS, ref_emb=REF, ref_labels=REF_LABELS)
        found.append([getattr(loss.distance, name) for name in loss.distance._record_these_stats])
    assert found[0] == pytest.approx(found[1])
    assert len(found[0]) == 4
