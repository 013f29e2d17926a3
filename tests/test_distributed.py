"""Losses over several ranks against one process on the whole batch: real processes, gloo, on the CPU.

One start of the processes does everything (tests/support); the tests read what it found.
"""

import itertools

import pytest
import torch
import torch.distributed as dist

from taufree import InfoNCE, LogOdds, distributed, info_nce, nt_xent, sup_con
from taufree.backends.fused import unsupported
from taufree.contrast import Contrast
from tests.support.rank_checks import everything, kernels
from tests.support.ranks import CALLS, WAYS, WORLDS, cases, start

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-10}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return start(everything, sorted(WORLDS, reverse=True), tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=WORLDS)
def world(request, worlds):
    return request.param, worlds[request.param]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", [*WAYS, "reference"])
def test_equals_one_process(world, call, way):
    size, found = world
    worst = {
        (rank, case): max(ranked[case])
        for rank, ranked in enumerate(found)
        for case in cases(size, call, way)
    }
    tolerance = TOLERANCE[WORLDS[size][2]] * (4 if "decoupled" in call else 1)  # whose logits cancel
    assert {case: error for case, error in worst.items() if not error < tolerance} == {}


def test_training_accumulates_without_unused_parameters(world):
    for ranked in world[1]:
        variants = [case for case in ranked if case.startswith("train")]
        assert len(variants) == (3 if world[0] == 2 else 2)  # as it is, checkpointed, compiled
        assert max(max(ranked[case]) for case in variants) < 2e-6  # of float32 encoders


@pytest.mark.skipif(torch.__version__ < "2.9", reason="its FSDP2 sums over gloo where it should average")
def test_training_under_fsdp(worlds):
    assert all(max(ranked["fsdp"]) < 2e-6 for ranked in worlds[2])


def test_the_reference_is_twice_differentiable(world):
    for errors, told in (ranked["second derivative"] for ranked in world[1]):
        assert max(errors) < 1e-10
        assert told == 'The blockwise backend has no second derivative; use backend="reference".'


def test_backward_twice_and_scaled_upstream(world):
    assert all(ranked["backward twice"] < 1e-6 for ranked in world[1])


def test_a_bias_is_learned_over_all_ranks(world):
    assert all(max(ranked["learned bias"]) < 1e-6 for ranked in world[1])


def expected(name, way, w, width):
    """The collectives of forward and backward with the bytes that a rank receives by each.

    As the docstring of taufree.backends.sharded.step says; 8 rows x 16 columns in float32 on each of w ranks,
    sums of ``width`` bytes.
    """
    measured = [["all_reduce", 24]] if name == "calibrated" else []
    tracked = name == "tracked"
    name = {"calibrated": "nt_xent", "tracked": "symmetric"}.get(name, name)
    n = 8 * w * (2 if name == "nt_xent" else 1)  # all ranks' rows
    gather, embeddings = "all_gather_into_tensor", n * 16 * 4
    rows, back = [[gather, embeddings]], [["reduce_scatter_tensor", embeddings]]
    again = []
    if way == "ring":
        rows = back = again = [["batch_isend_irecv", embeddings // w]] * (w - 1)
    if name == "sigmoid":  # all of it in the forward
        return [[gather, 32 * w], *rows, *back, ["all_reduce", 8]], []
    labels = [[gather, 8 * n]] if name == "sup_con" else []
    sums = [["all_to_all_single", width * n]] if name == "symmetric" else []
    numbers = {"one-way": 0, "sup_con": 4}.get(name, 2)  # of each anchor that all ranks must know
    normalisers = [[gather, numbers * width * n]] if numbers else []
    back = back if name in ("one-way", "symmetric") else []
    measured = [*measured, *again] if measured else []  # the ring goes round once more
    tracked = [*sums, ["all_reduce", 48]] if tracked else []
    forward = [[gather, 32 * w], *labels, *rows, *measured, *sums, *tracked, ["all_reduce", 8]]
    return forward, sorted([*again, *normalisers, *back])


NAMES = ("one-way", "symmetric", "nt_xent", "sup_con", "calibrated", "sigmoid", "tracked")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_collectives_and_bytes(world, name, way):
    for ranked in world[1]:
        forward, backward = ranked["collectives"][f"{name}, {way}"]
        assert (forward, sorted(backward)) == expected(name, way, world[0], 8)


def test_no_rank_holds_more_of_the_matrix_than_tiles(world):
    """32 rows x 2 columns on each rank; NT-Xent has 64. Its anchors against all would be 4096 W elements."""
    for ranked in world[1]:
        assert max(ranked["largest"].values()) <= 64 * world[0] * 16  # two numbers for each anchor, as bytes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("columns", ("query [N, 5] float32", "query [N, 6] float32")),
        ("dtype", ("query [N, 5] float32", "query [N, 5] float64")),
        ("reduction", ("'mean'", "'sum'")),
        ("link", ("tau=0.2", "tau=0.3")),
        (
            "mode",
            ("CalibratedLogOdds(resolution=0.0001) that measures", "CalibratedLogOdds(resolution=0.0001) (N"),
        ),
        ("ids", ("no ids", "with ids")),
        ("negative_keys", ("negative_keys [M, 5] float32",)),
        ("tracker", (", tracked",)),
        ("balanced", (", balanced",)),
    ],
)
def test_another_call_on_one_rank_raises_on_all(world, change, told):
    for ranked in world[1]:
        message = ranked[f"mismatch, {change}"]
        assert all(part in message for part in ("rank 0 called", "rank 1 called", "(N = 4)", *told))


def test_a_rank_that_left_is_named_by_what_it_owed(worlds):
    assert "gather_distributed waited for the batch sizes:" in worlds[2][0]["alone"]


def test_several_views_without_labels(world):
    assert max(ranked["several views"] for ranked in world[1]) < 1e-6


@pytest.mark.slow
@pytest.mark.skipif("Triton" in (unsupported(Contrast(torch.eye(2)), LogOdds()) or ""), reason="needs Triton")
def test_fused_kernels_equal_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for ranked in start(kernels, [2], tmp_path)[2]:
        worst = {case: max(errors) for case, errors in ranked["errors"].items()}
        assert len(worst) == 92
        tolerance = {case: 3e-2 if "bfloat16" in case else 2e-5 for case in worst}
        assert {case: error for case, error in worst.items() if not error < tolerance[case]} == {}
        for name, way in itertools.product(NAMES, WAYS):
            forward, backward = ranked["collectives"][f"{name}, {way}"]
            assert (forward, sorted(backward)) == expected(name, way, 2, 4)


@pytest.fixture(params=["no group", "one rank"])
def alone(request):
    if request.param == "one rank":
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    if request.param == "one rank":
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_alone_it_is_the_plain_loss():
    a, b = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0))
    assert not distributed.active()
    for loss in (info_nce, nt_xent):
        assert torch.equal(loss(a, b, gather_distributed=True), loss(a, b))
    labels = torch.arange(7) // 2
    assert torch.equal(sup_con(a, labels, gather_distributed=True), sup_con(a, labels))
    assert torch.equal(InfoNCE(gather_distributed=True)(a, b), InfoNCE()(a, b))
    assert "gather_distributed=True" in repr(InfoNCE(gather_distributed=True))


def test_a_single_number_of_a_column_can_be_sent():
    """A batch of one with a label from a table: a tensor of one number is contiguous with any stride."""
    label = torch.tensor([[5, 6], [7, 8]])[1:, 0]
    assert label.is_contiguous()
    assert distributed._bytes(label).tolist() == [7, 0, 0, 0, 0, 0, 0, 0]


def test_rows_are_gathered_up_to_a_size():
    class Ranks:
        rank, world = 0, 4

    rows = torch.empty(2**20, 512, dtype=torch.bfloat16, device="meta")
    assert isinstance(distributed.exchange(Ranks(), rows, [2**18] * 4), distributed.Gather)
    assert isinstance(distributed.exchange(Ranks(), rows, [2**19] * 4), distributed.Ring)
    assert isinstance(distributed.exchange(Ranks(), rows, [2**21, 0, 0, 0]), distributed.Gather)
