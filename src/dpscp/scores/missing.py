"""What stands for the caller's own score of a loaded fit."""

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from dpscp._base.assumptions import OWN_SCORE, Assumption


@dataclass(frozen=True)
class MissingScore:
    """Stands for the caller's own score of a loaded fit, which files do not hold; every use of it is refused.

    Attributes
    ----------
    outputs : int
        The number of model outputs that the score needs; 1 for labels.
    """

    outputs: int = 1

    natural: ClassVar[bool] = False
    assumptions: ClassVar[tuple[Assumption, ...]] = (OWN_SCORE,)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("conformity_score must be the score that was used in the fit; set it after loading")

    range = of_labels = of_records = of_targets = interval = check_on_synthetic_rows = _refuse
