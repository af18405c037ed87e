"""What a dry run found out about a module, on synthetic records."""

import warnings
from dataclasses import dataclass
from typing import Any, Self

from dpscp.exceptions import HintWarning
from dpscp.training.torch.dry_run import Tried
from dpscp.training.torch.layer_terms import GradientPlan
from dpscp.training.torch.synthetic_rows import SyntheticRecords, outputs_are_probabilities
from dpscp.training.torch.token_ids import looks_up_rows


@dataclass(frozen=True)
class TriedModule:
    """Outputs of a record, how to compute gradients, and synthetic records that fit.

    ``has_probabilities``: outputs are positive and add up to one. ``looks_up_rows``: numbers of a row are indices.
    """

    n_outputs: int
    plan: GradientPlan
    synthetic: SyntheticRecords
    has_probabilities: bool
    looks_up_rows: bool

    @classmethod
    def of(cls, module: Any, input_shape: tuple[int, ...], found: Tried) -> Self:
        """Return what a dry run found, and what else synthetic rows show."""
        probabilities = outputs_are_probabilities(module, found.synthetic)
        return cls(found.n_outputs, found.plan, found.synthetic, probabilities, looks_up_rows(module, input_shape))

    def hint_at_softmax(self, loss: object) -> None:
        """Hint at a last layer that the loss and the prediction sets apply again; in every fit."""
        if loss == "cross_entropy" and self.has_probabilities:
            warnings.warn(
                "the module's outputs look like probabilities, so its last layer may be a softmax. "
                "loss='cross_entropy' and the prediction sets apply a softmax themselves, and a second one flattens "
                "the probabilities: remove the last layer, so that the module returns logits",
                HintWarning,
                stacklevel=3,
            )
