"""Attack a whole fit of a torch module: search the released estimator for the record."""

import pickle
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice
from dpscp._base.object_state import has_array, reachable
from dpscp.estimators import PrivateConformalClassifier
from dpscp.torch.library import torch
from dpscp.torch.trainer import TorchDPSGD

_WIDTH = 6
_RECORD = 1234.5678
_CLOSE = 1e-6


def find_traces(released: Any, numbers: ArrayLike) -> tuple[str, ...]:
    """Find where a released object contains any of these numbers.

    The search covers every reachable attribute, item, closure, array and tensor, the pickle of the object, and the file
    that its ``save`` writes, as float32 and as float64.

    Parameters
    ----------
    released : any object, for example a fitted estimator.
    numbers : array of numbers that occur nowhere else, for example the features of an unusual record.

    Returns
    -------
    tuple of paths

    >>> find_traces({"model": np.zeros(3), "seen": [1.0, 1234.5678]}, [1234.5678])
    ("['seen'][1]", 'pickle')
    """
    targets = np.unique(np.asarray(numbers, dtype=np.float64))
    paths = [path.lstrip(".") for path, value in reachable(released) if _contains(value, targets)]
    return (*paths, *(name for name, content in _serialize(released) if _has_bytes(content, targets)))


def _contains(value: Any, targets: FloatArray) -> bool:
    if has_array(value):
        held = np.asarray(value if isinstance(value, np.ndarray) else value.detach().cpu().double().numpy())
        if held.dtype.kind not in "fiu":
            return False
        numbers = held.astype(np.float64).ravel()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        numbers = np.array([float(value)])
    else:
        return False
    return any(bool((np.abs(numbers - number) <= _CLOSE * abs(number)).any()) for number in targets)


def _serialize(released: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the object as bytes: its pickle, and the file that it saves."""
    try:
        yield "pickle", pickle.dumps(released)
    except Exception:  # not every object can be pickled
        yield "pickle", b""
    if hasattr(released, "save"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "released")
            released.save(path)
            yield "file", path.read_bytes()


def _has_bytes(content: bytes, numbers: Iterable[float]) -> bool:
    kinds = ("<f4", "<f8", ">f8")  # a pickle stores a single number in big-endian order
    return any(np.asarray(number, dtype=kind).tobytes() in content for number in numbers for kind in kinds)


@dataclass(frozen=True)
class ReleasedModuleGame:
    """Attack fits of a torch module; the attacker sees the released estimator and traces of the record.

    Parameters
    ----------
    module : "memory": stores the rows that it scores, if they differ from synthetic rows. "words": changes its
        embedding table in the forward pass (``max_norm``) and is refused, so that nothing is released. "separate": a
        valid module.
    noise_multiplier : noise of training.
    n : number of other records.
    knowledge : "black-box"
    """

    module: str = "memory"
    noise_multiplier: float = 30.0
    n: int = 30
    knowledge: str = "black-box"

    def __post_init__(self) -> None:
        check_choice("module", self.module, ("memory", "words", "separate"))
        check_choice("knowledge", self.knowledge, ("black-box",))

    @property
    def name(self) -> str:
        return f"whole fit of a torch module ({self.module})"

    @property
    def claim(self) -> DpEvent:
        """Cost of a fit, the same for every module."""
        honest = ReleasedModuleGame("separate", self.noise_multiplier, self.n).fitted(False)
        assert honest is not None
        return honest.ledger_.event

    def play(self, with_record: bool, runs: int) -> FloatArray:
        numbers = [self._collect_release(self.fitted(with_record)) for _ in range(runs)]
        width = max(map(len, numbers))  # a refused fit has no numbers
        return np.array([np.append(row, np.zeros(width - len(row))) for row in numbers])

    def fitted(self, with_record: bool) -> PrivateConformalClassifier | None:
        """Fit with or without the record; return None if the module is refused."""
        X, y = self.records(with_record)
        try:
            mechanism = TorchDPSGD(
                self._module, "cross_entropy", 1.0, 1, learning_rate=0.1, noise_multiplier=self.noise_multiplier
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few records give full sets
                return PrivateConformalClassifier(
                    mechanism, epsilon=0.5, delta=1e-2, classes=[0, 1], n_records=self.n, accountant="rdp"
                ).fit(X, y)
        except ValueError:
            return None

    def records(self, with_record: bool) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return rows and labels; the last one is the record."""
        rows = np.cos(np.arange((self.n + 1) * _WIDTH, dtype=np.float64)).reshape(-1, _WIDTH)
        rows[-1] = _RECORD
        end = self.n + 1 if with_record else self.n
        return rows[:end], np.arange(end) % 2

    @staticmethod
    def _collect_release(released: PrivateConformalClassifier | None) -> FloatArray:
        if released is None:
            return np.zeros(1)
        numbers = [np.ravel(value).astype(np.float64) for value in released.model_.arrays().values()]
        thresholds = np.minimum(np.ravel(released.threshold_), 1.0)
        return np.concatenate([[len(find_traces(released, [_RECORD]))], thresholds, *numbers])

    @cached_property
    def _module(self) -> Any:
        """Module of the caller, the same for all fits, which do not change it."""
        if self.module == "words":
            return torch.nn.Sequential(torch.nn.Embedding(10, 2, max_norm=1.0), torch.nn.Flatten())
        module = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(_WIDTH, 2))
        torch.nn.init.zeros_(module[1].weight)
        torch.nn.init.zeros_(module[1].bias)
        if self.module == "memory":
            module[0].register_forward_hook(_store_rows)
        return module


def _store_rows(layer: Any, inputs: Any, outputs: Any) -> None:  # noqa: ARG001 (the signature of a hook)
    """Store rows that differ from synthetic ones, while they are scored."""
    rows = inputs[0].detach()
    if not layer.training and bool(((rows - _RECORD).abs() < 0.01).any()):
        layer.kept = rows.clone()
