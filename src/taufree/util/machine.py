"""Where a run happens: the devices and precisions there are, and what is recorded of machine and software.

Torch is imported where it is asked: the command line refuses names that do not exist before.
"""

from __future__ import annotations

import logging
import os
import platform
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from taufree.util.errors import BadInputError
from taufree.version import __version__

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true")
PACKAGES = (
    "torch", "torchvision", "triton", "lightning", "torch-geometric", "transformers", "numpy", "scikit-learn"
)  # fmt: skip
"""Those that a result of ``taufree run`` may depend on."""


def check_device(device: str, precision: str) -> None:
    """Raise a :class:`BadInputError` for names of devices and precisions that exist nowhere."""
    if device not in DEVICES:
        raise BadInputError(f"device must be one of {', '.join(DEVICES)}, got {device!r}.")
    if precision not in PRECISIONS:
        raise BadInputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")


def choose_device(device: str, precision: str) -> str:
    """The device to train on, "auto" resolved, or a :class:`BadInputError` where the two cannot be had here.

    >>> choose_device("cpu", "32-true")
    'cpu'
    """
    check_device(device, precision)
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name in there if there[name]) if device == "auto" else device
    if not there[chosen]:
        raise BadInputError(f"device {chosen} is not available to PyTorch on this machine, use --device cpu.")
    if chosen == "cpu" and precision == "16-mixed":
        raise BadInputError("precision 16-mixed needs a GPU, use bf16-mixed on the CPU.")
    return chosen


def compiles(device: torch.device) -> bool:
    """Whether ``torch.compile`` can make kernels for the device: its compiler is not there for every system,
    nor for GPUs of before 2017."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    import torch

    return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (7, 0)


def silence_lightning() -> None:
    """Leave out Lightning's messages that come with every run on a GPU and ask nothing of the user."""
    from lightning_utilities.core import rank_zero

    # The announcement of the precision, and advice on it. The logger's name is that of the package which was
    # imported last: lightning.fabric, lightning.pytorch or pytorch_lightning.
    rank_zero.log.setLevel(logging.WARNING)
    # In float16 the first steps are skipped until the loss's scale fits; the schedule goes on.
    warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before")


def usable_cores() -> int:
    """How many threads this process should use: OMP_NUM_THREADS if it is set, else the cores it may run on.

    On a cluster these are the cores of the job, not those of the machine.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """The versions that a result may depend on; what is not installed is not named."""
    found = {"python": platform.python_version(), "taufree": __version__}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def hardware(device: torch.device) -> dict[str, str | int]:
    """The machine, and what of it was used."""
    import torch

    found: dict[str, str | int] = {
        "device": device.type,
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor that names itself otherwise
        return platform.processor() or platform.machine()
