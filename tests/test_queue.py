"""NegativeQueue: what it holds, and the losses of its keys. Over ranks: tests/test_process_groups.py."""

import copy
import io
import pickle

import pytest
import torch

from taufree import CalibratedLogOdds, FittedLogOdds, InfoNCE, NegativeQueue, Temperature, info_nce

D = 4
LINKS = {
    "free": lambda: None,
    "tau": lambda: Temperature(0.2),
    "calibrated": CalibratedLogOdds,
    "fitted": FittedLogOdds,
}


def rows(n, seed=0):
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed))


def filled(size, *batches, **options):
    """A queue with batches of so many keys, whose ids count from 0."""
    queue, total = NegativeQueue(size, D, **options), 0
    for n in batches:
        queue.enqueue(rows(n, total), torch.arange(total, total + n))
        total += n
    return queue


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], []),
        ([3], [0, 1, 2]),
        ([3, 2], [0, 1, 2, 3, 4]),
        ([3, 3], [5, 1, 2, 3, 4]),  # wraps around
        ([5, 4, 4], [10, 11, 12, 8, 9]),
        ([12], [10, 11, 7, 8, 9]),  # more than it holds
        ([2, 11, 1], [10, 11, 12, 13, 9]),
        ([0, 3, 0], [0, 1, 2]),
    ],
)
def test_the_newest_keys_replace_the_oldest(batches, expected):
    queue = filled(5, *batches)
    assert queue.ids.tolist() == expected
    assert queue.filled == len(expected)
    assert queue.keys.shape == (len(expected), D)
    every = torch.cat([torch.empty(0, D), *(rows(n, sum(batches[:i])) for i, n in enumerate(batches))])
    torch.testing.assert_close(queue.keys, torch.nn.functional.normalize(every[expected], dim=1))
    queue.reset()
    assert queue.keys.shape == (0, D)
    queue.enqueue(rows(2), torch.tensor([70, 71]))
    assert queue.ids.tolist() == [70, 71]


def test_keys_without_ids_are_nobodys():
    queue = filled(5, 2)
    queue.enqueue(rows(2))
    assert queue.ids.tolist() == [0, 1, -(2**63), -(2**63)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_keys_of_any_length_fit_any_dtype(dtype, scale):
    queue = NegativeQueue(6, D, dtype=dtype)
    queue.enqueue(rows(3) * scale)
    queue.enqueue(torch.zeros(1, D))
    assert queue.keys.dtype == dtype
    lengths = queue.keys.double().norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 1, 1, 0]).double(), rtol=1e-2, atol=0)
    assert info_nce(rows(2), rows(2, 1), queue.keys).isfinite()


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("link", LINKS)
def test_an_empty_queue_has_no_negatives(link, backend):
    queue, query = NegativeQueue(8, D), rows(3).requires_grad_()
    options = {"ids": torch.arange(3), "negative_ids": queue.ids, "backend": backend}
    for _ in range(2):  # a link that measures begins with it
        loss = info_nce(query, rows(3, 1), queue.keys, link=LINKS[link](), **options)
        assert loss == 0
        assert torch.autograd.grad(loss, query)[0].eq(0).all()
    with_batch = info_nce(query, rows(3, 1), queue.keys, in_batch=True, link=LINKS[link](), **options)
    torch.testing.assert_close(with_batch, info_nce(query, rows(3, 1), link=LINKS[link]()))


@pytest.mark.parametrize("backend", ["reference", "blockwise", "compiled"])
@pytest.mark.parametrize("link", LINKS)
def test_an_image_is_not_its_own_negative(link, backend):
    """With one id for all queries, leaving out its keys is the same as a queue without them."""
    queue, ids = filled(40, 40), torch.full((6,), 7)
    key_ids = torch.arange(40) % 10
    query, key = rows(6, 1).requires_grad_(), rows(6, 2)
    expected_link, found_link = LINKS[link](), LINKS[link]()
    call = InfoNCE(link=found_link, backend="auto" if backend == "compiled" else backend)
    call = torch.compile(call, backend="aot_eager") if backend == "compiled" else call
    for _ in range(2):
        found = call(query, key, queue.keys, ids=ids.to(torch.int32), negative_ids=key_ids.to(torch.uint8))
        expected = info_nce(query, key, queue.keys[key_ids != 7], link=expected_link, backend="reference")
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(loss, query)[0] for loss in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_a_second_derivative_leaves_the_same_keys_out():
    query, key, queue, ids = rows(3).requires_grad_(), rows(3, 1), rows(5, 2), torch.arange(3)
    found = []
    for backend in ("blockwise", "reference"):
        loss = info_nce(query, key, queue, ids=ids, negative_ids=torch.arange(5), backend=backend)
        (first,) = torch.autograd.grad(loss, query, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), query)[0])
    torch.testing.assert_close(*found)


def test_backward_comes_after_enqueue_and_keys_get_no_gradient():
    queue, query, key = filled(6, 6), rows(3).requires_grad_(), rows(3, 1).requires_grad_()
    for backend in ("reference", "blockwise"):
        before = info_nce(query, key, queue.keys, backend=backend)
        expected = torch.autograd.grad(before, query, retain_graph=True)[0]
        queue.enqueue(key)
        assert not queue.keys.requires_grad
        torch.testing.assert_close(torch.autograd.grad(before, query)[0], expected)


def test_it_is_in_the_state_dict_and_goes_on_from_there():
    queue = filled(5, 3, 3)
    file = io.BytesIO()
    torch.save(queue.state_dict(), file)
    file.seek(0)
    loaded = NegativeQueue(5, D)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for other in (loaded, copy.deepcopy(queue), pickle.loads(pickle.dumps(queue))):
        assert other.filled == 5
        assert torch.equal(other.keys, queue.keys)
        other.enqueue(rows(2), torch.tensor([90, 91]))
        assert other.ids.tolist() == [5, 90, 91, 3, 4]
    assert queue.ids.tolist() == [5, 1, 2, 3, 4]
    queue.load_state_dict(filled(5, 2).state_dict())  # of a fuller one
    assert queue.ids.tolist() == [0, 1]


@pytest.mark.parametrize("strict", [True, False])
def test_the_state_of_another_queue_is_refused_and_changes_nothing(strict):
    queue = filled(5, 3)
    model, parts = torch.nn.ModuleDict({"memory": queue}), filled(5, 5).state_dict()
    needs = r"memory\.keys of 5 x 4 need rows \[5, 4\], row_ids \[5\], enqueued \[\], got "
    for state, told in (
        (filled(6, 6).state_dict(), r"rows \[6, 4\], row_ids \[6\], enqueued \[\]\."),
        (NegativeQueue(5, 3).state_dict(), r"rows \[5, 3\], row_ids \[5\], enqueued \[\]\."),
        ({"enqueued": parts["enqueued"]}, r"enqueued \[\]\."),
    ):
        with pytest.raises(RuntimeError, match=needs + told):
            model.load_state_dict({f"memory.{name}": x for name, x in state.items()}, strict=strict)
        assert queue.ids.tolist() == [0, 1, 2]
        assert queue.keys.norm(dim=1).tolist() == pytest.approx([1] * 3)
    if not strict:
        model.load_state_dict({}, strict=False)
        assert queue.filled == 3


def test_a_queue_made_in_inference_mode_serves_in_training():
    with torch.inference_mode():
        queue = filled(5, 3)
    query = rows(2).requires_grad_()
    info_nce(query, rows(2, 1), queue.keys).backward()
    queue.enqueue(rows(2), torch.tensor([8, 9]))
    assert queue.ids.tolist() == [0, 1, 2, 8, 9]
    queue.load_state_dict(filled(5, 1).state_dict())
    assert queue.filled == 1
    queue.reset()


def test_it_follows_its_module_and_evaluation_changes_nothing():
    model = torch.nn.ModuleDict({"queue": filled(5, 3)}).half().eval()
    assert model["queue"].keys.dtype == torch.float16
    model["queue"].enqueue(rows(1).half())
    assert model["queue"].filled == 4
    with torch.inference_mode():
        model["queue"].enqueue(rows(1))
        made_there = model["queue"].keys
    query = rows(2).requires_grad_()
    info_nce(query, rows(2, 1), made_there).backward()
    assert query.grad.isfinite().all()
    assert torch.nn.Module.to(model, "meta")["queue"].keys.is_meta


def test_compiled_it_is_one_graph_once_full_and_few_before():
    def step(queue, query, key, ids):
        loss = info_nce(query, key, queue.keys, ids=ids, negative_ids=queue.ids, in_batch=True)
        queue.enqueue(key, ids)
        return loss

    queues = [NegativeQueue(60, D) for _ in range(2)]
    torch.compiler.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for i in range(24):
        if i < 21:
            compiled = torch.compile(step, backend="aot_eager")
        else:  # both are full
            compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        query, key = rows(3, 2 * i).requires_grad_(), rows(3, 2 * i + 1)
        found, expected = (
            call(queue, query, key, torch.arange(3) + i)
            for call, queue in zip((compiled, step), queues, strict=True)
        )
        torch.testing.assert_close(found, expected)
        found.backward()
        assert torch.equal(queues[0].keys, queues[1].keys)
        assert torch.equal(queues[0].ids, queues[1].ids)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before < 12


BAD = {
    "size must be an integer of at least 1, got 0": lambda q: NegativeQueue(0, D),
    "size must be an integer of at least 1, got float": lambda q: NegativeQueue(4.0, D),
    "size must be an integer of at least 1, got bool": lambda q: NegativeQueue(True, D),
    "dim must be an integer of at least 1, got -1": lambda q: NegativeQueue(4, -1),
    "size must be so small that size x dim is at most 2^59, got one of 1329 bits": lambda q: NegativeQueue(
        10**400, 3
    ),
    "size must be so small that size x dim is at most 2^59, got one of 59 bits": lambda q: NegativeQueue(
        2**58, 3
    ),
    "dim must be so small that size x dim is at most 2^59, got one of 16610 bits": lambda q: NegativeQueue(
        3, 10**5000
    ),
    "dtype must be float16, bfloat16, float32 or float64, got torch.float8_e5m2": lambda q: NegativeQueue(
        4, D, dtype=torch.float8_e5m2
    ),
    "dtype must be float16, bfloat16, float32 or float64, got half": lambda q: NegativeQueue(
        4, D, dtype="half"
    ),
    "keys must have shape [N, 4], got [2, 3]": lambda q: q.enqueue(torch.ones(2, 3)),
    "keys must have shape [N, 4], got [4]": lambda q: q.enqueue(torch.ones(4)),
    "keys must be a floating-point tensor, got list": lambda q: q.enqueue([[1.0] * D]),
    "keys must be a floating-point tensor, got dtype torch.int64": lambda q: q.enqueue(
        torch.ones(1, D).long()
    ),
    "keys must be on the device of the queue, cpu, got meta": lambda q: q.enqueue(
        torch.ones(1, D, device="meta")
    ),
    "ids must have shape [2], got [3]": lambda q: q.enqueue(rows(2), torch.arange(3)),
    "ids must be an integer tensor, got dtype torch.float32": lambda q: q.enqueue(rows(2), torch.ones(2)),
}


@pytest.mark.parametrize("told", BAD)
def test_bad_input_gets_one_sentence_and_changes_nothing(told):
    queue = filled(5, 3)
    with pytest.raises((TypeError, ValueError)) as problem:
        BAD[told](queue)
    assert str(problem.value) == f"{told}."
    assert queue.ids.tolist() == [0, 1, 2]


def test_it_shows_what_it_is():
    assert repr(filled(5, 3)) == "NegativeQueue(5, 4, filled=3)"
    queue = NegativeQueue(5, D, dtype=torch.bfloat16, gather_distributed=True)
    assert repr(queue) == "NegativeQueue(5, 4, dtype=torch.bfloat16, filled=0, gather_distributed=True)"
