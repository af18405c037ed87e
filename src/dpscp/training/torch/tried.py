"""What a dry run found out about a module, on synthetic records."""

import warnings
from dataclasses import dataclass

from dpscp.exceptions import HintWarning
from dpscp.training.torch.dry_run import SyntheticRecords
from dpscp.training.torch.layer_terms import GradientPlan


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
