"""Attack private training of torch modules."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice
from dpscp.torch.library import torch
from dpscp.torch.trainer import TorchDPSGD
from dpscp.training.base import paid_event

_TOKENS = 16
_OTHERS = 3
_SHIFTED = 300


@dataclass(frozen=True)
class ModuleGame:
    """Attack one step of ``TorchDPSGD``; the attacker sees all numbers of the released module.

    If the module is refused, nothing is released, and no attack succeeds. The attacker sees a refusal during training.

    Parameters
    ----------
    module : "tokens": the 16 tokens of a record are moved into the batch dimension, so that clipping would bound tokens
        and a record could move the sum by 16 clip norms. "buffers": batch normalization without parameters, whose
        running statistics would be released without noise. "separate": a valid module with a separate dimension for
        tokens. "dropout": a valid module whose attacker sets the seed of torch; with masks from that seed, the record
        would shift the masks of 300 other records.
    noise_multiplier : noise of training.
    knowledge : "black-box"
    """

    module: str = "tokens"
    noise_multiplier: float = 4.0
    knowledge: str = "black-box"

    def __post_init__(self) -> None:
        check_choice("module", self.module, ("tokens", "buffers", "separate", "dropout"))
        check_choice("knowledge", self.knowledge, ("black-box",))

    @property
    def name(self) -> str:
        refused = " refused, nothing released" if self.refusal else " one step"
        return f"torch module ({self.module}):{refused}"

    @property
    def refusal(self) -> str | None:
        """Reason why the module is refused before any record is used; None if it is accepted."""
        try:
            self._mechanism().check((_TOKENS,))
        except ValueError as error:
            return str(error)
        return None

    @property
    def claim(self) -> DpEvent:
        """Cost of a run of the mechanism, the same for every module."""
        honest = ModuleGame("separate", self.noise_multiplier)._mechanism()
        return paid_event(honest)

    def play(self, with_record: bool, runs: int) -> FloatArray:
        if self.refusal:
            return np.zeros((runs, 1))
        mechanism, size = self._mechanism(), sum(v.numel() for v in self._build_module().state_dict().values())
        rows, targets = self._records(with_record)
        return np.array([self._train(mechanism, rows, targets, size) for _ in range(runs)])

    def _records(self, with_record: bool) -> tuple[FloatArray, FloatArray]:
        """Return rows and targets; the first one is the record."""
        if self.module == "dropout":
            rows = np.where(np.cos(np.arange((_SHIFTED + 1) * _TOKENS) ** 2) > 0, 1.0, -1.0).reshape(-1, _TOKENS)
            targets = np.ones(len(rows))
        else:
            rows = np.zeros((_OTHERS + 1, _TOKENS))
            rows[0] = 100.0  # zero rows with zero targets add nothing to any gradient
            targets = rows[:, 0]
        first = 0 if with_record else 1
        return rows[first:], targets[first:]

    def _train(self, mechanism: TorchDPSGD, rows: FloatArray, targets: FloatArray, size: int) -> FloatArray:
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # known to the attacker
                model = mechanism.train(rows, targets, n_records=_OTHERS).model
        except ValueError:
            return np.append(np.zeros(size), 1.0)
        return np.append(np.concatenate([np.ravel(v) for v in model.arrays().values()]), 0.0)

    def _mechanism(self) -> TorchDPSGD:
        noise = self.noise_multiplier
        return TorchDPSGD(self._build_module(), "squared", 1.0, 1, learning_rate=1.0, noise_multiplier=noise)

    def _build_module(self) -> Any:
        nn = torch.nn
        if self.module == "dropout":
            layers = [nn.Dropout(0.5), nn.Linear(_TOKENS, 1, bias=False)]
        elif self.module == "buffers":
            layers = [nn.BatchNorm1d(_TOKENS, affine=False), nn.Linear(_TOKENS, 1, bias=False)]
        else:
            token = nn.Linear(1, 1, bias=False)
            # outputs (records, tokens), each compared with the record's target
            layers = [nn.Unflatten(1, (_TOKENS, 1)), token, nn.Flatten()]
            if self.module == "tokens":
                layers[1:2] = [nn.Flatten(0, 1), token, nn.Unflatten(0, (-1, _TOKENS))]
        for layer in layers:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        return nn.Sequential(*layers)
