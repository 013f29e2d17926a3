"""The fused kernels compile for real GPUs, which needs none: Triton brings its compiler and ptxas along.

Every launch of a step is compiled instead of run, from the arguments it would have had.
"""

from dataclasses import replace

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs Triton, which PyTorch brings along on Linux")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)

from benchmarks.support import hopper  # noqa: E402
from taufree import LearnableTemperature, LogOdds, Temperature  # noqa: E402
from taufree.backends import fused as backend  # noqa: E402
from taufree.backends.fused import fit  # noqa: E402
from taufree.backends.fused import row_passes as rows  # noqa: E402
from taufree.backends.fused import sigmoid as questions  # noqa: E402
from taufree.backends.fused import tile_passes as launch  # noqa: E402
from taufree.backends.fused.arguments import EXP, ODDS, POWER, SCALE, KernelLink  # noqa: E402
from taufree.backends.sharded import fused as shards  # noqa: E402
from taufree.contrast import Bias, Contrast, Shard  # noqa: E402
from taufree.links import Gain  # noqa: E402
from taufree.stats import Tracker  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def compiled(monkeypatch):
    """Names of the kernels that a step launches; each is compiled for an H100."""
    done = {}

    def compile_only(kernel, programs, *arguments, **options):
        key = (kernel.__name__, *map(hopper.kind, arguments), *options.values())
        if key not in done:
            done[key] = hopper.compiled(kernel, *arguments, **options)

    for module in (launch, rows, questions, fit):
        monkeypatch.setattr(module, "start", compile_only)
    monkeypatch.setattr(launch, "_add_product", lambda *_: None)
    return done


CASES = {
    "symmetric": lambda a, b: Contrast(a, b, symmetric=True),
    "queue and ids": lambda a, b: Contrast(a, b, queue=b, ids=torch.arange(len(a))),
    "ids of the queue": lambda a, b: Contrast(
        a, b, queue=b[:30], ids=torch.arange(len(a)), queue_ids=torch.arange(30)
    ),
    "views": lambda a, b: Contrast(torch.cat([a, b]), shift=len(a)),
    "labels": lambda a, b: Contrast(a, labels=torch.arange(len(a)) // 2),
    "keys": lambda a, b: Contrast(
        a, b[:24], labels=torch.arange(len(a)) // 2, key_labels=torch.arange(24) // 2
    ),
    "hard": lambda a, b: Contrast(a, b, symmetric=True, hardness=2.0, offsets=torch.zeros(2, len(a))),
    "hard labels": lambda a, b: Contrast(a, labels=torch.arange(len(a)) // 2, hardness=2.0),
    "decoupled": lambda a, b: Contrast(a, b, symmetric=True, decoupled=True),
}
LINKS = {
    "odds": LogOdds(), "gain": LogOdds(gain=2.0), "tau": Temperature(0.1), "learned": LearnableTemperature(),
    "each": Temperature(torch.full((80,), 0.1).requires_grad_()),  # of the anchors of 40 pairs of views
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "link", "dtype"),
    [
        ("symmetric", "odds", torch.bfloat16),
        ("symmetric", "odds", torch.float32),
        ("symmetric", "tau", torch.bfloat16),
        ("symmetric", "gain", torch.float16),
        ("queue and ids", "learned", torch.bfloat16),
        ("ids of the queue", "odds", torch.bfloat16),
        ("views", "odds", torch.bfloat16),
        ("labels", "odds", torch.bfloat16),
        ("decoupled", "odds", torch.bfloat16),
        ("decoupled", "tau", torch.bfloat16),
        ("decoupled", "learned", torch.float32),
        ("labels", "learned", torch.float32),
        ("keys", "odds", torch.bfloat16),
        ("hard", "odds", torch.bfloat16),
        ("hard labels", "learned", torch.float32),
        ("keys", "learned", torch.float32),
        ("views", "each", torch.bfloat16),
        ("views", "each", torch.float32),
    ],
    ids=str,
)
def test_every_launch_of_a_step_compiles(case, link, dtype, compiled):
    a, b = (torch.randn(40, 72).to(dtype).requires_grad_() for _ in range(2))
    backend.loss(CASES[case](a, b), LINKS[link], 0.5).backward()
    launched = {key[0] for key in compiled}
    assert {"tile_sums", "tile_coefficients"} <= launched
    assert any(name.startswith("finish") for name in launched)
    assert all(b".text." in kernel.asm["cubin"] for kernel in compiled.values())


@pytest.mark.parametrize(
    ("link", "dtype"),
    [
        ("odds", torch.bfloat16),
        ("odds", torch.float32),
        ("gain", torch.float16),
        ("tau", torch.bfloat16),
        ("learned", torch.bfloat16),
        ("learned", torch.float32),
    ],
    ids=str,
)
def test_the_sigmoid_loss_compiles(link, dtype, compiled):
    """With a shard of another rank, and without a gradient too."""
    a, b = (torch.randn(40, 72).to(dtype).requires_grad_() for _ in range(2))
    bias, ids = Bias(0.0, torch.tensor(-2.0) if link == "learned" else None, True), torch.arange(40)
    for contrast, weights in ((Contrast(a, b, bias=bias), 0.5), (Contrast(a, b, ids=ids, bias=bias), None)):
        backend.loss(contrast, LINKS[link], weights)
    make, connected = questions.engine_of(contrast, LINKS[link], 0.0)
    inputs = [a, b, bias.learned, *connected]
    engine = make(inputs, ids, [True] * len(inputs), torch.ones(40))
    engine.add_own()
    assert engine.add(Shard(b.detach()[:24], ids[:24], False), True).shape == (24, 72)
    engine.finish()
    assert {"tile_questions", "close_questions", "finish"} <= {key[0] for key in compiled}
    assert all(b".text." in kernel.asm["cubin"] for kernel in compiled.values())


@pytest.mark.parametrize("case", ["symmetric", "views", "ids"])
@pytest.mark.parametrize("link", [LogOdds(gain=2.0), Temperature(0.1)], ids=["log-odds", "linear"])
def test_the_step_of_a_fitted_gain_compiles(case, link, compiled):
    a, b = torch.randn(40, 72), torch.randn(40, 72).bfloat16()
    contrast = Contrast(a, b, ids=torch.arange(40)) if case == "ids" else CASES[case](a, b.float())
    fit.step(contrast, link, Gain(*torch.zeros(3), 1.0))
    assert {key[0] for key in compiled} == {"sample_logits", "newton"}
    assert all(b".text." in kernel.asm["cubin"] for kernel in compiled.values())


@pytest.mark.parametrize(
    ("case", "link", "dtype"),
    [
        ("symmetric", "odds", torch.bfloat16),
        ("queue and ids", "tau", torch.float32),
        ("views", "gain", torch.float16),
        ("labels", "odds", torch.float32),
        ("labels", "learned", torch.bfloat16),
        ("keys", "tau", torch.bfloat16),
    ],
    ids=str,
)
def test_sums_with_statistics_compile(case, link, dtype, compiled):
    a, b = (torch.randn(40, 72).to(dtype) for _ in range(2))
    backend.loss(replace(CASES[case](a, b), tracker=Tracker()), LINKS[link], 0.5)
    tracked = [kernel for key, kernel in compiled.items() if key[0] == "tile_sums"]
    assert all("atom" in kernel.asm["ptx"] or "red." in kernel.asm["ptx"] for kernel in tracked)
    assert all(b".text." in kernel.asm["cubin"] for kernel in tracked)
    assert tracked


@pytest.mark.parametrize(
    ("case", "link"), [("symmetric", "odds"), ("symmetric", "learned"), ("views", "odds"), ("labels", "odds")]
)
def test_every_launch_over_ranks_compiles(case, link, compiled):
    """A shard of another rank, with ids or labels of its own."""
    a, b = (torch.randn(40, 72).bfloat16().requires_grad_() for _ in range(2))
    contrast = CASES[case](a, b)
    groups = None if contrast.labels is None else torch.arange(24)
    shard = Shard(torch.randn(24, 72).bfloat16(), groups, are_anchors=True)
    make, inputs = shards.engine_of(contrast, LINKS[link])
    engine = make([None if x is None else x.detach() for x in inputs], [True, True, False, False, True])
    engine.add_own()
    own = set(compiled)
    engine.add(shard)
    engine.losses()
    known = engine.begin_gradient(torch.ones(contrast.n))
    engine.add_own_gradients()
    engine.add_gradients(shard, known[:24], wanted=contrast.keys is not None)
    assert {"tile_sums", "tile_coefficients"} <= {key[0] for key in set(compiled) - own}
    assert all(b".text." in kernel.asm["cubin"] for kernel in compiled.values())


@pytest.mark.parametrize("case", ["symmetric", "views", "labels"])
def test_sums_kept_apart_stay_within_their_room(case, monkeypatch):
    """They are kept tile by tile, along rows and along columns; neither may grow with the square of N."""
    kept = []

    def note(kernel, programs, *arguments, **options):
        if kernel.__name__ == "tile_sums":
            kept.extend(x.nbytes for x in arguments[7:9])

    for module in (launch, rows):
        monkeypatch.setattr(module, "start", note)
    monkeypatch.setattr(launch, "PARTIAL_SUM_BYTES", 3 * 8 * 4096)  # one column of tiles
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    a, b = torch.ones(2, 2048 if case == "views" else 4096, 8).bfloat16()
    backend.loss(CASES[case](a, b), LINKS["gain"], 0.5)
    assert len(kept) >= 2 * 4096 // (128 * 3)
    assert max(kept) <= launch.PARTIAL_SUM_BYTES


@pytest.mark.parametrize("what", ["pairs", "labels", "questions"])
@pytest.mark.parametrize("kind", [ODDS, POWER, SCALE, EXP])
@pytest.mark.parametrize(("generation", "room"), [((9, 0), 227), ((10, 0), 227), ((12, 0), 99)], ids=str)
def test_tiles_fit_the_memory_of_a_multiprocessor(generation, room, kind, what, monkeypatch):
    """In KiB: rows and columns, each a pair of float16, in every stage that is on its way."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: generation)
    config = launch.tile_config(KernelLink(kind, torch.ones(1), 1e-4), what, rows.Mode.of(torch.ones(1)))
    waiting = config.stages if generation < (12, 0) else config.stages - 1
    assert waiting * (config.bm + config.bn) * config.bk * 2 * 2 / 1024 <= room - 2


def test_on_amd_auto_does_not_choose_them(monkeypatch):
    """They have inline instructions of NVIDIA's; PyTorch calls such a device cuda, of a high capability."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 4))
    assert "AMD" in backend.machine("cuda", 0)


def test_a_rank_without_shared_negatives_keeps_the_digits_of_the_others():
    """float32 rows of another rank would be rounded to the bfloat16 of all that this one has."""
    a = torch.randn(4, 8).bfloat16()
    make, inputs = shards.engine_of(Contrast(a, a, in_batch=False, queue=torch.empty(0, 8)), LogOdds())
    engine = make(inputs, [False] * 5)
    assert engine.mode.split
    assert engine.queue is None
