"""Two-pass training: a large contrastive batch for an encoder that only ever sees a small chunk of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel


def chunked_backward(
    loss: Callable[..., Tensor],
    *calls: tuple[Callable[[Any], Tensor], Any],
    chunk_size: int,
    scaler: GradScaler | None = None,
) -> Tensor:
    """``loss(encoder(a), encoder(b)).backward()`` with the activations of one chunk in memory.

    By the chain rule the gradient of the parameters is a sum over chunks k of rows,

        dL/dparameters = sum_k dL/dz_k dz_k/dparameters,

    so the first pass computes all embeddings z without a graph, the loss gives dL/dz (and the gradients of
    its own parameters, a link's), and the second pass encodes each chunk again and sends its rows of dL/dz
    back. The price is one more forward.

    Gradients add to ``.grad`` and equal those of one graph over all chunks: the second pass sees the random
    numbers (CPU and CUDA) and the buffers that the first one saw. Afterwards generators and buffers are as
    if each chunk had been encoded once, in the order given, and the loss computed once. What a layer
    computes over the rows of its input, such as BatchNorm's statistics, is computed over a chunk.

    Args:
        loss: maps one [N, D] tensor for each of ``calls``, in their order, to a scalar.
        calls: pairs (encoder, inputs), each for a call ``encoder(inputs)``. The encoder is a module or a
            module's method and gives [N, D]; the inputs are a tensor of N rows or a tuple, list or mapping
            of such. The encoder gets the same with fewer rows, mappings as a dict, and all that is not a
            tensor as it is.
        chunk_size: the most rows that an encoder sees at once. Chunks differ by one row at most, so that
            no small rest is left for BatchNorm to normalise over.
        scaler: scales the loss before its backward, as ``scaler.scale(loss).backward()`` does.

    Returns:
        The loss, without graph and unscaled.

    An encoder in DistributedDataParallel exchanges its gradients once, in the backward of its last chunk. One
    that has nothing to train is run once only. Autocast around the call holds for both passes.

    Examples:
        >>> from taufree import nt_xent
        >>> encoder = nn.Linear(8, 4)
        >>> a, b = torch.randn(100, 8), torch.randn(100, 8)
        >>> value = chunked_backward(nt_xent, (encoder, a), (encoder, b), chunk_size=32)
        >>> torch.allclose(value, nt_xent(encoder(a), encoder(b)))
        True
    """
    if not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size must be an integer of at least 1, got {chunk_size!r}.")
    if not callable(loss):
        raise TypeError(f"loss must be a function or a module, got {type(loss).__name__}.")
    if not calls:
        raise ValueError("calls must hold at least one pair (encoder, inputs), got none.")
    chunked = [_Call(f"calls[{i}]", call, chunk_size) for i, call in enumerate(calls)]
    modules = list(dict.fromkeys(part for call in chunked for part in call.module.modules()))
    generators = list(dict.fromkeys(generator for call in chunked for generator in call.generators))

    rewind = _snapshot(modules, [])
    embeddings = [call.embed() for call in chunked]
    value = loss(*embeddings)
    if not isinstance(value, Tensor):
        raise TypeError(f"loss must give a scalar tensor, got {type(value).__name__}.")
    if value.dim():
        raise ValueError(f"loss must give a scalar, got shape {list(value.shape)}.")
    if not value.requires_grad:
        raise ValueError("calls must hold an encoder with something to train, got none.")
    (value if scaler is None else scaler.scale(value)).backward()  # type: ignore[no-untyped-call]

    trained = [(call, z.grad) for call, z in zip(chunked, embeddings, strict=True) if z.grad is not None]
    # Autocast keeps the weights that it cast; in older PyTorch those cast without a graph give no gradient.
    torch.clear_autocast_cache()
    restore = _snapshot(modules, generators)
    try:
        rewind()
        for i, (call, gradient) in enumerate(trained):
            call.backward(gradient, used_later={ddp for later, _ in trained[i + 1 :] for ddp in later.ddp})
    finally:
        restore()
    return value.detach()


class _Call:
    """``encoder(inputs)``, chunk by chunk: ``embed`` is the first pass, ``backward`` the second."""

    def __init__(self, name: str, call: tuple[Callable[[Any], Tensor], Any], chunk_size: int) -> None:
        if not isinstance(call, tuple) or len(call) != 2:
            raise TypeError(f"{name} must be a pair (encoder, inputs), got {type(call).__name__}.")
        self.name = name
        self.encoder, self.inputs = call
        # A function would hide the buffers to rewind and the DDP whose exchange has to wait.
        module = getattr(self.encoder, "__self__", self.encoder)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"{name} must have a torch.nn.Module or a module's method as encoder, "
                f"got {type(self.encoder).__name__}."
            )
        self.module = module
        self.ddp = [part for part in module.modules() if isinstance(part, DistributedDataParallel)]
        if any(ddp.static_graph for ddp in self.ddp):
            raise ValueError(
                f"{name} must have a DDP without static_graph, which exchanges in every backward."
            )
        tensors: list[Tensor] = []
        _map(tensors.append, self.inputs)
        lengths = sorted({len(x) if x.dim() else 0 for x in tensors})
        if len(lengths) != 1 or lengths[0] < 1:
            raise ValueError(
                f"{name} must have inputs with tensors of one length, at least 1, got lengths {lengths}."
            )
        if any(x.grad_fn is not None for x in tensors):
            raise ValueError(
                f"{name} must have inputs without a graph, which only one chunk could go back through, "
                "got a computed tensor that requires a gradient: compute it in the encoder, or detach it."
            )
        n = -(-lengths[0] // chunk_size)
        self.rows = [slice(*edges) for edges in pairwise(lengths[0] * k // n for k in range(n + 1))]
        devices = {torch.device("cpu"), *(x.device for x in [*tensors, *module.parameters()])}
        self.generators = [_generator(name, device) for device in devices]
        self.rewinds: list[Callable[[], None]] = []

    def embed(self) -> Tensor:
        """All embeddings as a leaf, which requires a gradient exactly if the encoder's output does."""
        chunks = []
        trains = False
        for k, rows in enumerate(self.rows):
            self.rewinds.append(_snapshot([], self.generators))
            # Only a run with a graph, dropped at once, shows whether there is anything to train.
            with torch.set_grad_enabled(k == 0), _no_sync(self.ddp):
                z = self._encode(rows)
            trains = trains or z.requires_grad
            chunks.append(z.detach())
            del z
        return torch.cat(chunks).requires_grad_(trains)

    def backward(self, gradient: Tensor, used_later: set[DistributedDataParallel]) -> None:
        """Adds the parameters' gradients, given the embeddings'; a DDP exchanges them in its last chunk."""
        for rows, rewind in zip(self.rows, self.rewinds, strict=True):
            last = rows is self.rows[-1]
            with _no_sync([ddp for ddp in self.ddp if not last or ddp in used_later]):
                rewind()
                torch.autograd.backward(self._encode(rows), gradient[rows])

    def _encode(self, rows: slice) -> Tensor:
        # A copy: an encoder that works in place on its inputs would find them changed in the second pass.
        z = self.encoder(_map(lambda x: x[rows].clone(), self.inputs))
        if not isinstance(z, Tensor):
            raise TypeError(f"{self.name} must have an encoder that gives a tensor, got {type(z).__name__}.")
        n = rows.stop - rows.start
        if z.dim() != 2 or len(z) != n:
            raise ValueError(
                f"{self.name} must have an encoder that gives [{n}, D] for {n} rows, got {list(z.shape)}."
            )
        return z


def _map(function: Callable[[Tensor], Any], inputs: Any) -> Any:
    """The same structure with ``function`` of its tensors."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: _map(function, part) for key, part in inputs.items()}
    if isinstance(inputs, tuple | list):
        parts = [_map(function, part) for part in inputs]
        if hasattr(inputs, "_make"):  # a namedtuple
            return inputs._make(parts)
        return parts if isinstance(inputs, list) else tuple(parts)
    return inputs


def _no_sync(modules: list[DistributedDataParallel]) -> ExitStack:
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.no_sync())
        return stack.pop_all()


def _generator(name: str, device: torch.device) -> Generator:
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    raise ValueError(f"{name} must be on CPU or CUDA, whose random numbers can be replayed, got {device}.")


def _snapshot(modules: list[nn.Module], generators: list[Generator]) -> Callable[[], None]:
    """A function that brings the modules' own buffers, replaced ones too, and generators back to now."""
    buffers = [
        (part._buffers, name, buffer, None if buffer is None else buffer.clone())
        for part in modules
        for name, buffer in part._buffers.items()
    ]
    states = [generator.get_state() for generator in generators]

    def restore() -> None:
        with torch.no_grad():
            for own, name, buffer, value in buffers:
                own[name] = buffer if buffer is None or value is None else buffer.copy_(value)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    return restore
