"""gather_distributed with a process group: real processes, gloo, on the CPU."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist

from taufree import InfoNCE, NegativeQueue, NTXent, SupCon, info_nce, nt_xent, sup_con
from tests.support.group_checks import GROUPS, everything
from tests.support.ranks import start


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return start(everything, [4], tmp_path_factory.mktemp("groups"))[4]


def test_equals_one_process_with_the_batches_of_the_group(found):
    for ranked in found:
        worst = {case: max(errors) for case, errors in ranked["errors"].items()}
        assert {case: error for case, error in worst.items() if not error < 1e-10} == {}


def test_ddp_averages_over_the_group_or_over_all_groups(found):
    for ranked in found:
        assert max(max(errors) for errors in ranked["training"].values()) < 2e-6  # of float32 encoders


def ids_of(ranks, step):
    return [100 * step + 10 * rank + i for rank in ranks for i in range(rank + 1)]


def test_queues_of_a_group_hold_its_keys_in_the_order_of_the_ranks(found):
    for rank, ranked in enumerate(found):
        members = GROUPS[rank % 2]
        ids, slopes, untouched = ranked["queues"]["group"]
        every = ids_of(members, 0) + ids_of(members, 1)
        size, kept = 8, {}
        for i, one in enumerate(every):
            kept[i % size] = one
        assert ids == [kept[i] for i in range(min(size, len(every)))]
        assert slopes == pytest.approx([one // 100 * 10 + one % 100 // 10 for one in ids])
        assert untouched == 0  # the queue that was copied


def test_a_queue_of_all_ranks_that_is_smaller_than_their_batches(found):
    last = ids_of(range(4), 1)  # ten, of which a queue of eight keeps the last
    for ranked in found:
        assert sorted(ranked["queues"]["world"][0]) == last[2:]
    assert len({str(ranked["queues"]["world"]) for ranked in found}) == 1


def test_a_queue_may_be_in_a_module_that_ddp_wraps(found):
    assert found[0]["queues"]["in DDP"][0] == 6
    assert len({str(ranked["queues"]["in DDP"]) for ranked in found}) == 1


def test_another_call_on_one_rank_names_the_ranks_of_the_world(found):
    for rank, ranked in enumerate(found):
        first, second = GROUPS[rank % 2]
        for message in (ranked["mismatch"], ranked["queue mismatch"]):
            assert f"rank {first} called" in message
            assert f"rank {second} called" in message
        assert "both views [N, 4]" in ranked["mismatch"]
        assert "NegativeQueue(4, 4).enqueue float32, no ids" in ranked["queue mismatch"]


def test_a_group_without_this_rank_is_refused(found):
    told = "gather_distributed must be a process group that this rank is a member of, got one of others."
    assert [ranked["outside"] for ranked in found[2:]] == [[told] * 3] * 2


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.new_group([0])
    dist.destroy_process_group()


def test_a_group_of_one_is_the_plain_loss(group):
    a, b = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0))
    for loss in (info_nce, nt_xent):
        assert torch.equal(loss(a, b, gather_distributed=group), loss(a, b))
    labels = torch.arange(7) // 2
    assert torch.equal(sup_con(a, labels, gather_distributed=group), sup_con(a, labels))
    compiled = torch.compile(NTXent(gather_distributed=group), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), nt_xent(a, b))


@pytest.mark.parametrize("make", [InfoNCE, NTXent, SupCon, lambda **x: NegativeQueue(4, 3, **x)])
def test_modules_with_a_group_are_shown_and_copied_and_say_why_they_are_not_pickled(group, make):
    module = make(gather_distributed=group)
    assert "gather_distributed=<process group of 1>" in repr(module)
    for copied in (copy.copy(module), copy.deepcopy(module), copy.deepcopy(torch.nn.ModuleList([module]))[0]):
        assert copied is not module
        assert copied.gather_distributed is group
    with pytest.raises(
        TypeError, match=r"^gather_distributed must be True or False in a module that is pick"
    ):
        pickle.dumps(module)
    module.gather_distributed = True
    assert pickle.loads(pickle.dumps(module)).gather_distributed is True
    assert "gather_distributed=True" in repr(module)


@pytest.mark.parametrize("wrong", [1, 0, None, "world", [0, 1]], ids=str)
def test_anything_else_is_refused(wrong):
    told = rf"^gather_distributed must be True, False or a .*ProcessGroup, got {type(wrong).__name__}\.$"
    x = torch.eye(3)
    for call in (
        lambda: info_nce(x, x, gather_distributed=wrong),
        lambda: nt_xent(x, x, gather_distributed=wrong),
        lambda: sup_con(x, torch.arange(3), gather_distributed=wrong),
        lambda: InfoNCE(gather_distributed=wrong),
        lambda: NegativeQueue(4, 3, gather_distributed=wrong),
    ):
        with pytest.raises(TypeError, match=told):
            call()
