"""Define what the promises of a release assume, each with a code and a sentence.

Ledgers and certificates carry the values. Code compares values and never sentences. A file holds the code; the
sentence beside it is for people and is not read back. All sentences are in this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# The sentence of each code, whose gaps are for public numbers and names.
_SENTENCES: dict[str, str] = {}


@dataclass(frozen=True)
class Assumption:
    """One thing that a promise assumes and no code can prove.

    Parameters
    ----------
    code : str
        One of the codes of this module. ``Assumption.stated`` is for a sentence of the caller.
    values : tuple of str, int or float
        The public values that its sentence names.
    """

    code: str
    values: tuple[str | int | float, ...] = ()

    def __post_init__(self) -> None:
        sentence = _SENTENCES.get(self.code)
        if sentence is None:
            raise ValueError(f"the assumption {self.code!r} is unknown; update dpscp")
        plain = all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in self.values)
        if not plain or len(self.values) != sentence.count("{"):
            raise ValueError(f"the assumption {self.code!r} has other values than its sentence names")
        _ = self.sentence  # raises for a value of another type

    @staticmethod
    def stated(sentence: str) -> "Assumption":
        """Return an assumption in the caller's own words; no code reads them."""
        return _STATED(str(sentence))

    @property
    def sentence(self) -> str:
        """The assumption in words."""
        return _SENTENCES[self.code].format(*self.values)

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the sentence is for people."""
        values = {"values": list(self.values)} if self.values else {}
        return {"code": self.code, **values, "sentence": self.sentence}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Assumption":
        """Return the assumption of a code and values, or raise ``ValueError``."""
        values = data.get("values", [])
        if not isinstance(values, list):
            raise ValueError("the values of an assumption must be a list")
        return Assumption(data["code"], tuple(values))


def require_assumptions(values: Any) -> tuple[Assumption, ...]:
    """Return the values once each, code around the fit first.

    Raises ``TypeError`` for anything else.
    """
    found = (values,) if isinstance(values, str) else tuple(values)
    for value in found:
        if not isinstance(value, Assumption):
            raise TypeError(
                f"an assumption must be a dpscp.privacy.Assumption, got {type(value).__name__}; for your own words use "
                "Assumption.stated(sentence)"
            )
    return tuple(sorted(dict.fromkeys(found), key=lambda assumption: assumption != OUTER_STEPS))


def first_words(assumptions: tuple[Assumption, ...]) -> list[str]:
    """Return the first sentence about a release that trusts code around the fit.

    The fit cannot see this code itself.
    """
    return [f"Assumed and not checked: {OUTER_STEPS}."] if OUTER_STEPS in assumptions else []


def _kind(code: str, sentence: str) -> Callable[..., Assumption]:
    """Enter a code; return the function of public values that makes its assumption."""
    _SENTENCES[code] = sentence
    return lambda *values: Assumption(code, values)


def _fixed(code: str, sentence: str) -> Assumption:
    return _kind(code, sentence)()


_STATED = _kind("stated_by_caller", "{}")

# ---- code and records of the caller

ROW_FUNCTION = _kind(
    "row_function",
    "{} computes its values for a row from that row alone, up to rounding, and keeps nothing of it (privacy needs this "
    "too: otherwise one record would change the values of others)",
)
GROUP_FUNCTION, OWN_SCORE = ROW_FUNCTION("groups"), ROW_FUNCTION("conformity_score")
LIKELIHOOD_RATIO = ROW_FUNCTION("population")
PREFIT = _fixed(
    "prefit",
    "estimator was trained without these records (as dp.Prefit states), computes the outputs of each row from that row "
    "alone, up to rounding, and keeps nothing of it; the records that it was trained on are not protected by this "
    "release",
)
PRIVATE_MODEL = _fixed(
    "private_model",
    "the model was trained elsewhere at the cost that its ledger states and contains nothing else from the records; it "
    "computes the outputs of each row from that row alone, up to rounding, and keeps nothing of it",
)
TORCH_MODULE = _fixed(
    "torch_module",
    "PyTorch traces its own operations faithfully, and maps them over records by rules that keep records apart; the "
    "rounding of a record's gradient and outputs does not depend on its place in a block; the starting weights and the "
    "constants of the torch module and its loss do not come from the records",
)
OWN_MECHANISM = _fixed(
    "own_mechanism",
    "the caller's training mechanism releases what its event pays for, and nothing else from the records",
)
OWN_STEP = _fixed(
    "own_step",
    "each preprocessing step of the caller releases what its event pays for, and transforms each row by using only "
    "this release and that row",
)
OUTER_STEPS = _fixed(
    "outer_steps",
    "what the caller put around the estimator (functions, frozen steps, estimators that fit it) learned nothing from "
    "these records and computes each row and each target from that one alone",
)
OWN_DATASET = _fixed(
    "own_dataset",
    "each item of the caller's data set is one record and is computed from that record alone",
)
OWN_SOURCE = _fixed(
    "own_source",
    "the caller's source contains each record once, and all records of a person in one block (each reading checks that "
    "its blocks stay the same)",
)
DASK = _fixed(
    "dask",
    "the Dask collection contains each record once whenever it is computed (each reading checks that the rows and "
    "their order stay the same)",
)
PROCESSES = _fixed("processes", "each record is held by only one process of the group")
FIXED_NUMBER = _fixed(
    "fixed_number",
    "the engine that trained the model used the true number of its records (in its normalizer and sampling rate), so "
    "this number is public, and privacy is for replacing one record by another",
)
OWN_SCORES = _fixed(
    "own_scores",
    "each score depends on one record, the model and independent noise only, and training cost what was declared for "
    "it",
)
OWN_LOSSES = _fixed(
    "own_losses",
    "each loss comes from one record, the model, the threshold and independent noise; training cost what was declared "
    "for it; where no finite threshold is returned the caller acts so that the loss is 0",
)
OTHER_PERSONS = _fixed(
    "other_persons",
    "the recalibration used records of other persons than the fit and earlier recalibrations (the same records are "
    "recognized within one process, not in an edited copy or another process); somebody who is in several of them pays "
    "for each (a budget store adds this up)",
)

# ---- who is covered

EXCHANGEABLE = _fixed("exchangeable", "new records are exchangeable with the ones used")
EXCHANGEABLE_PERSONS = _fixed(
    "exchangeable_persons",
    "new persons are exchangeable with the ones used (records of one person may depend on each other in any way); the "
    "promise is for a random record of a new person",
)
CAP_WITHOUT_IDS = _kind(
    "cap_without_ids",
    "privacy is per person with at most {} records (not checked, because there are no ids); coverage is per record, "
    "not per person",
)
NOMINAL_RECORDS = _fixed("nominal_records", "n_records is the true number of records")
NOMINAL_PERSONS = _fixed("nominal_persons", "n_persons is the true number of persons")
ANOTHER_POPULATION = _fixed(
    "another_population",
    "records are independent, and new ones come from the declared population: its density relative to that of the "
    "calibration records is proportional to likelihood_ratio (if it is not, the promise moves by at most the total "
    "variation distance)",
)
NORMALIZED_RATIO = _fixed(
    "normalized_ratio", "the declared likelihood ratio has mean 1 over the population of these records"
)
PERSONS_OF_ANOTHER = _fixed(
    "persons_of_another_population",
    "persons are independent (records of one person may depend on each other in any way), and of each one random "
    f"record counts; of these, {ANOTHER_POPULATION.sentence}",
)
INDEPENDENT = _kind(
    "independent", "for what a single release covers: the held-out {}s are independent draws from one distribution"
)
COINS = _kind("coins", "each {} was held out by an independent coin; the promise is an average over these coins too")
FIXED_GROUPS = _fixed(
    "fixed_groups", "a record's group is a fixed function of the record; the promise holds within each group"
)
OVERLAPPING_GROUPS = _kind(
    "overlapping_groups",
    "a record's groups, {} at most, are fixed functions of the record; the promise holds within each group, because a "
    "row gets the largest threshold of its groups",
)

# ---- what a guarantee needs

INVARIANT = _fixed(
    "invariant", "training does not depend on the order of the records, and its event covers everything it uses of them"
)
HELD_OUT = _fixed("held_out", "the scored records were not used in training")
HARD_BOUNDS = _fixed(
    "hard_bounds", "every target lies within y_bounds: intervals are cut there, and a target outside is in none"
)
ALL_LABELS = _fixed("all_labels", "classes holds every label that can occur: a label that is not listed is in no set")
ALL_LABELS_IF_INFINITE = _fixed("all_labels_if_infinite", "where no finite threshold is found the set has all labels")
NO_LABEL_IF_INFINITE = _fixed("no_label_if_infinite", "where no finite threshold is found the set is empty")
NOT_CORRECTED = _fixed("not_corrected", "no self-influence form is known for this model: this is Result F alone")
CORRECTED = _fixed(
    "corrected",
    "the influence of a record on its own score is removed to first order, less the response of the other records, "
    "estimated on synthetic records (at half strength); the remaining error is of second order and not bounded",
)

# ---- stability of training (Result C)

MOST_OTHERS = _kind("most_others", "at most {} besides the new one")
CONVEX_AND_SMOOTH = _fixed("convex_and_smooth", "every clipped loss is convex and smooth")
SMOOTH = _fixed("smooth", "every clipped loss is smooth")
PLAIN_SGD = _fixed("plain_sgd", "plain SGD with a fixed public normalizer: no momentum, no adaptive step")
FIXED_PREPROCESSING = _fixed("fixed_preprocessing", "preprocessing does not depend on the data")
CONVEX_WITH_PENALTY = _fixed("convex_with_penalty", "convex losses with bounded gradients and a quadratic penalty")
PUBLIC_DIVISOR = _fixed("public_divisor", "losses divided by a public constant")
AVERAGED_LOSSES = _fixed("averaged_losses", "losses averaged over the actual records")
SUMMARIES_OVER_CONSTANT = _fixed("summaries_over_constant", "summaries of bounded norm, divided by a public constant")
AVERAGED_SUMMARIES = _fixed("averaged_summaries", "summaries of bounded norm, averaged over the records")
ENFORCED_NORM = _kind("enforced_norm", "rows have norm at most {:g} (enforced in training and prediction)")
SHARED_SAMPLING = _fixed("shared_sampling", "Poisson sampling with shared masks and noise")
LIPSCHITZ_GRADIENTS = _fixed("lipschitz_gradients", "loss gradients are Lipschitz on the parameter set")
BATCH_DIVISOR = _fixed(
    "batch_divisor", "the gradient is divided by the batch size and a step on an empty batch is skipped"
)
CONSTANT_RATE = _fixed("constant_rate", "constant learning rate, no momentum")
