"""Private calibration: from scores to thresholds, with the ledger and a certificate for each level.

``find_thresholds`` is the general form (several levels, disjoint groups); ``calibrate`` is the one-threshold form for
people with their own scores. Both see scores, a ledger of what was spent before, and public numbers.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._checks import check_choice, check_count, check_nonnegative, check_probability, check_range
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import (
    CERTIFIED,
    RELEASE_CONFIDENCE,
    Certificate,
    Stability,
    check_release_confidence,
    minimax_miss_bound,
    release_level,
    release_offset,
    smallest_where,
    universal_alpha,
    universal_floor,
    value_buffer,
)
from dpscp.privacy import Budget, LatticeNoise, Ledger, as_event, compose, parallel, sized_lattice_noise
from dpscp.privacy.accounting import Accountant, release_accountant
from dpscp.privacy.seeds import child_seeds, seed_of
from dpscp.quantile import (
    KnownSize,
    NoisySize,
    PrivateQuantile,
    default_steps,
    private_quantile,
    rank_sensitivity,
    sized_offset,
)

__all__ = ["Calibration", "Rule", "Thresholds", "calibrate", "calibration_rule", "find_thresholds"]

GUARANTEES = ("universal", "stability", "split", "corrected", "finite", "asymptotic")
# The paper's rank buffer m_n in all its experiments.
_PAPER_RANK_BUFFER = 10
# Levels are multiples of 1e-6, and a released size is charged a hundredth of the smallest of them.
_SMALLEST_LEVEL = 2e-6
# Part of the squared budget of a calibration that releases the number of scores, where it is private.
SIZE_SHARE = 0.12

EXCHANGEABLE = "new records are exchangeable with the ones used"
NOMINAL_N = "n_records is the true number of records"
INVARIANT = "training does not depend on the order of the records, and everything it learned from them is in its event"
HELD_OUT = "the scored records were not used in training"
INDEPENDENT = "for what a single release covers: the held-out records are independent draws of one law"
FIXED_GROUPS = "a record's group is a fixed function of the record; the promise holds within each group"

# What gives the search room, beside more records. A larger budget is named only where it cannot cost room: under
# 'universal' training takes its share of it, and every bit of that raises the inner level.
_REUSE = "a larger alpha or a larger budget"
_MORE_ROOM = dict.fromkeys(("stability", "corrected", "finite", "asymptotic"), _REUSE) | {
    "universal": "a larger alpha, or less of the budget for training (a smaller train_share)",
    "split": "a larger alpha, a larger budget or a larger held-out part",
}
# What helps where no number of records does.
_NO_LEVEL = dict.fromkeys(GUARANTEES, "A larger alpha would help.") | {
    "universal": "Training spends too much for this guarantee, however many records there are: give it less of the "
    "budget (more noise, a smaller train_share), raise alpha, or use guarantee='split', which does not pay for reuse.",
    "stability": "The stability bound of training leaves no level at this alpha: use guarantee='universal' or "
    "'split', which need no such bound.",
}
_TOO_WIDE = (
    "The buffer for the shift that one record can cause is wider than the range of the scores: more records make it "
    "smaller; guarantee='universal' and 'split' need none."
)
_LITTLE_PROVEN = "Less of the budget for training would prove more; guarantee='split' proves the target itself."


@dataclass(frozen=True)
class Rule:
    """How a guarantee calibrates, in public numbers: an inner level for each target, and what surrounds the search.

    ``n_records`` counts the whole table, ``n_nominal`` is the planned number of scores of one search: of the ``part``
    that is searched, or of a group's share of it. ``sized``: their true number is private, and a noisy one is released
    (Result G); otherwise it is ``n_nominal``.
    """

    guarantee: str
    alphas: tuple[float, ...]
    inner: tuple[float, ...]
    rank: str
    correction: str
    n_records: int
    n_nominal: int
    sized: bool = False
    part: float = 1.0
    shift: float = 0.0
    rank_buffer: float = 0.0
    failure_probability: float | None = None
    grouped: bool = False
    release_confidence: float | None = None

    @property
    def possible(self) -> tuple[bool, ...]:
        """Which targets have an inner level; for the others only full sets can keep the promise."""
        return tuple(a >= _SMALLEST_LEVEL for a in self.inner)

    @property
    def size_share(self) -> float:
        """Part of the squared calibration budget that releases the number of scores."""
        return SIZE_SHARE if self.sized else 0.0

    def steps(self, unit_noise: float) -> int:
        """How many halvings a search takes when a single count with the whole budget would have ``unit_noise``."""
        return default_steps(self.n_nominal, unit_noise=unit_noise / math.sqrt(1 - self.size_share))


def calibration_rule(
    guarantee: str,
    alphas: Sequence[float],
    spent: Ledger,
    n_records: int,
    *,
    part: float = 1.0,
    stability: Stability | None = None,
    score_lipschitz: float | None = None,
    rank_buffer: float | None = None,
    failure_probability: float | None = None,
    n_groups: int | None = None,
    counted: bool = False,
    release_confidence: float | None = None,
) -> Rule:
    """The rule of a guarantee, from public numbers only.

    ``part`` is the share of the ``n_records`` that was drawn, record by record, for calibration (1: all of them);
    ``n_groups`` the number of disjoint groups with thresholds of their own (None: no groups). ``counted``: n_records
    is the number that was found and is declared public; otherwise it is a plan, and the true number stays private.

    Theory: section 6
    """
    check_choice("guarantee", guarantee, GUARANTEES)
    if release_confidence is not None:
        check_release_confidence(release_confidence, guarantee)
    alphas = tuple(check_probability("alpha", a) for a in alphas)
    inner, shift = alphas, 0.0
    if guarantee == "universal":
        tradeoff = spent.tradeoff_function("add")
        inner = tuple(universal_alpha(a, tradeoff) for a in alphas)
    elif guarantee == "stability":
        lipschitz = score_lipschitz
        if stability is not None and lipschitz is None:
            lipschitz = stability.score_lipschitz
        if stability is None or lipschitz is None:
            raise ValueError(
                "guarantee='stability' needs a training mechanism with a stability bound and a score with a Lipschitz "
                "constant; without them use 'universal' or 'split'"
            )
        inner = tuple(a - stability.delta_n for a in alphas)
        if stability.is_vacuous:  # no finite buffer: as when delta_n uses up alpha, no inner level
            inner = (0.0,) * len(alphas)
        else:
            shift = value_buffer(lipschitz, stability.shift_bound)
    paper = guarantee in ("finite", "asymptotic")
    grouped = n_groups is not None
    buffer = _PAPER_RANK_BUFFER if rank_buffer is None else check_nonnegative("rank_buffer", rank_buffer)
    return Rule(
        guarantee=guarantee,
        alphas=alphas,
        inner=inner,
        # the paper's variants release no size: with groups only the linear statistic follows it by itself
        rank="centred" if not paper else "linear" if grouped else "ceil",
        correction={"finite": "union", "asymptotic": "none"}.get(guarantee, "minimax"),
        n_records=n_records,
        part=part,
        n_nominal=max(1, round(part * n_records / (n_groups or 1))),
        sized=not paper and (grouped or part < 1 or not counted),
        shift=shift,
        rank_buffer=buffer if guarantee == "finite" else 0.0,
        failure_probability=failure_probability,
        grouped=grouped,
        release_confidence=release_confidence,
    )


@dataclass(frozen=True)
class Thresholds:
    """Released thresholds, (n_groups, n_levels), infinite where none was found, with ledger and certificates."""

    values: NDArray[np.float64]
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    quantiles: tuple[PrivateQuantile, ...]


def find_thresholds(
    scores_by_group: Sequence[Any],
    rule: Rule,
    *,
    spent: Ledger,
    budget: Budget,
    score_range: tuple[float, float],
    held_out: bool = False,
    steps: int | None = None,
    accountant: str | Accountant = "pld",
    random_state: int | None = None,
    extra_assumptions: tuple[str, ...] = (),
) -> Thresholds:
    """One threshold for each group and level, within the budget.

    Groups are disjoint, so each search of a group gets the whole calibration budget; levels share it. ``held_out``: the
    scored records are not those of ``spent``, and each part may spend the whole budget.
    """
    check_range("score_range", score_range)
    accountant = release_accountant(accountant)
    budget.require(spent, accountant)
    n_groups, n_levels = len(scores_by_group), len(rule.alphas)
    values = np.full((n_groups, n_levels), np.inf)
    # of a level that only full sets can keep nothing is asked, and nothing is spent on it
    asked = [i for i in range(n_levels) if rule.possible[i]]
    found: list[list[PrivateQuantile]] = []
    ledger = spent
    if asked:
        sensitivities = [rank_sensitivity(rule.rank, rule.inner[i]) for i in asked]
        before = None if held_out else spent
        if steps is None:
            units, _ = sized_lattice_noise(budget.epsilon, budget.delta, 1, sensitivities, before, accountant)
            steps = rule.steps(units[0].count_noise)
        noises, size_noise = sized_lattice_noise(
            budget.epsilon, budget.delta, steps, sensitivities, before, accountant, rule.size_share
        )
        n_searches, seed = n_groups * len(asked), seed_of(random_state)
        seeds = iter((seed,) if n_searches == 1 else child_seeds(seed, n_searches))

        def search(scores: Any, level: float, noise: LatticeNoise, first: PrivateQuantile | None) -> PrivateQuantile:
            return private_quantile(
                scores,
                alpha=level,
                score_range=score_range,
                count_noise=noise,
                steps=steps,
                correction=rule.correction,
                rank=rule.rank,
                rank_buffer=rule.rank_buffer,
                failure_probability=rule.failure_probability,
                n_records=rule.n_nominal,
                # the paper's variants promise nothing for groups, and an empty one is searched like any other
                n_min=0.0 if rule.grouped and not rule.sized else None,
                size_noise=size_noise if first is None else None,
                released_size=None if first is None else first.released_size,
                release_confidence=rule.release_confidence,
                random_state=next(seeds),
            )

        with warnings.catch_warnings():
            # the caller tells what the certificate and the released thresholds say, once
            warnings.simplefilter("ignore", GuaranteeWarning)
            for scores in scores_by_group:
                row: list[PrivateQuantile] = []
                for i, noise in zip(asked, noises, strict=True):
                    # all levels of a group share the one size that its first search released
                    row.append(search(scores, rule.inner[i], noise, row[0] if row else None))
                found.append(row)
        values[:, asked] = [[q.threshold + rule.shift if q.is_finite else np.inf for q in row] for row in found]
        # each level has noise of its own: a threshold is raised to those of lower levels, so that sets are nested
        rising = np.argsort([-a for a in rule.alphas], kind="stable")
        values[:, rising] = np.maximum.accumulate(values[:, rising], axis=1)
        ledger = _ledger(rule, spent, asked, found, held_out=held_out, seeded=random_state is not None)
        budget.require(ledger, accountant)
    searches: list[list[PrivateQuantile]] = [[] for _ in range(n_levels)]
    for place, i in enumerate(asked):
        searches[i] = [row[place] for row in found]
    certificates = tuple(_certificate(rule, i, spent, searches[i], extra_assumptions) for i in range(n_levels))
    return Thresholds(values, ledger, certificates, tuple(q for row in found for q in row))


def _ledger(
    rule: Rule,
    spent: Ledger,
    asked: Sequence[int],
    found: Sequence[Sequence[PrivateQuantile]],
    *,
    held_out: bool,
    seeded: bool,
) -> Ledger:
    """The entries of one group's searches: groups are disjoint and cost the same, so one of them stands for all."""
    searches = found[0]
    groups = f", {len(found)} disjoint groups in parallel" if len(found) > 1 else ""
    notes = []
    for i, q in zip(asked, searches, strict=True):
        size = ""
        if q is searches[0] and q.released_size is not None:
            size = f"the number of scores once, noise {q.released_size.size_noise:.4g}; "
        notes.append(
            f"{size}level {1 - rule.alphas[i]:g}: {q.steps} noisy counts, noise {q.count_noise:.4g}, "
            f"rank statistic {q.rank!r}{groups}"
        )
    if held_out and spent.entries:
        both = parallel(spent.event, compose(*(q.event for q in searches)))
        ledger = Ledger((), spent.public_facts, spent.seeded).add(
            "training | calibration", both, "disjoint records, the worse of the two counts; " + "; ".join(notes)
        )
    else:
        ledger = spent
        for q, note in zip(searches, notes, strict=True):
            ledger = ledger.add("calibration", q.event, note)
    facts: dict[str, Any] = {
        "n_records": ledger.public_facts.get("n_records", rule.n_records),
        "score_range": list(searches[0].score_range),
        "search_steps": searches[0].steps,
        "inner_levels": [1 - q.alpha for q in searches],
    }
    if rule.sized:
        facts["released_sizes"] = [_released(row[0]) for row in found]
    ledger = ledger.declare(**facts)
    return ledger.mark_seeded() if seeded else ledger


def _released(q: PrivateQuantile) -> float:
    """The noisy number of scores, rounded for reading."""
    return math.nan if q.released_size is None else round(float(q.released_size.value), 2)


def _certificate(
    rule: Rule, index: int, spent: Ledger, searches: Sequence[PrivateQuantile], extra_assumptions: tuple[str, ...]
) -> Certificate:
    """The certificate of one level; ``searches`` has one search for each group, none for an impossible level."""
    alpha = rule.alphas[index]
    q = searches[0] if searches else None
    terms: dict[str, Any] = {"n_records": rule.n_records}
    if rule.part < 1:
        terms["calibration_records"] = rule.n_nominal
    terms["inner_level"] = 1 - (q.alpha if q else 0.0)
    assumptions = [EXCHANGEABLE, HELD_OUT if rule.guarantee == "split" else INVARIANT]
    if rule.grouped:
        assumptions.append(FIXED_GROUPS)
    elif not rule.sized:
        assumptions.insert(1, NOMINAL_N)
    coverage, advice = 1 - alpha, _NO_LEVEL[rule.guarantee]
    if q is not None:
        sizes = _smallest_sizes(rule, index, q)
        too_wide = rule.shift >= q.score_range[1] - q.score_range[0]  # every score lies within the buffer alone
        room = q.rank_target <= rule.n_nominal
        if q.released_size is not None:
            room = q.released_size.value >= _smallest_size(rule, index, q)
        expected = (rule.grouped or room) and not too_wide
        terms |= {"count_noise": q.count_noise, "steps": q.steps}
        # the groups have offsets and targets of their own
        terms |= {} if rule.grouped else {"noise_offset": q.offset, "rank_target": q.rank_target}
        if q.released_size is not None:
            terms["size_noise"] = q.released_size.size_noise
            # those of groups are among the ledger's public facts
            terms |= {} if rule.grouped else {"released_size": _released(q)}
        terms |= {**sizes, "finite_threshold_expected": expected}
        if rule.shift:
            terms["value_buffer"] = rule.shift
        if rule.guarantee not in CERTIFIED:
            miss = 1.0  # without a correction nothing holds for groups of unknown size
            if rule.correction == "minimax":
                miss = rule.inner[index]
            elif not rule.grouped:
                miss = minimax_miss_bound(rule.n_nominal, q.rank_target, q.count_noise, q.steps)
            terms["ideal_miss_bound"] = miss
            coverage = universal_floor(miss, spent.tradeoff_function("add"))
        if rule.guarantee == "split":
            terms |= _one_release(rule, index, searches)
            assumptions.append(INDEPENDENT)
        advice = ""
        if too_wide:
            advice = _TOO_WIDE
        elif rule.grouped:
            advice = f"A group of fewer than {sizes['smallest_group']} records is expected to get full sets."
        elif not expected:
            # with more records the search may take more steps: the number is where smaller sets begin at the earliest
            more = f"More records (at least {sizes['smallest_n']} at this noise)"
            advice = f"{more}, {_MORE_ROOM[rule.guarantee]} would give smaller sets."
    else:
        terms["finite_threshold_expected"] = False
    found = Certificate(rule.guarantee, 1 - alpha, coverage, (*assumptions, *extra_assumptions), terms, advice)
    return replace(found, advice=_LITTLE_PROVEN) if found.is_vacuous and not advice else found


def _one_release(rule: Rule, index: int, searches: Sequence[PrivateQuantile]) -> dict[str, float]:
    """What a single release covers (each group's, where there are groups), and with what confidence.

    Theory: Result I
    """
    if rule.release_confidence is not None:  # the searches aimed at it
        return {"release_confidence": rule.release_confidence, "release_level": 1 - rule.alphas[index]}
    covered = []
    for q in searches:
        search: dict[str, Any] = {"alpha": q.alpha, "count_noise": q.count_noise, "steps": q.steps}
        size: KnownSize | NoisySize
        if q.released_size is None:
            # less a thousandth of the noise, which is more than one unit of its lattice
            size, offset = KnownSize(rule.n_nominal), q.offset - 1e-3 * q.count_noise
        else:
            size = noisy = q.released_size.known()
            # what the largest number that could have been released would have got: offsets fall with it
            largest = noisy.released + 2 * noisy.reach(RELEASE_CONFIDENCE)
            offset = sized_offset(q.alpha, largest, noisy.size_noise, q.count_noise, q.steps)
        covered.append(release_level(RELEASE_CONFIDENCE, size, offset=offset, **search))
    return {"release_confidence": RELEASE_CONFIDENCE, "release_level": min(covered)}


def _smallest_sizes(rule: Rule, index: int, q: PrivateQuantile) -> dict[str, int]:
    """The fewest records with a rank target among them, at this noise: of the table (or a group), and of the part."""
    smallest = _smallest_size(rule, index, q)
    name = "smallest_group" if rule.grouped else "smallest_n"
    if rule.part == 1:
        return {name: smallest}
    whole = math.ceil((smallest - 0.5) / rule.part)
    while round(rule.part * whole) < smallest:
        whole += 1
    return {name: whole, f"{name}_calibration": smallest}


def _smallest_size(rule: Rule, index: int, q: PrivateQuantile) -> int:
    """The smallest number of scores whose rank target lies below it: with fewer, full sets are expected."""
    if q.released_size is None:
        return math.ceil((1 - q.alpha + q.offset) / q.alpha)
    size_noise = q.released_size.size_noise
    search: dict[str, Any] = {"count_noise": q.count_noise, "steps": q.steps}

    def useful(n: int) -> bool:
        offset = sized_offset(q.alpha, n, size_noise, **search)
        if rule.release_confidence is not None:
            size, level = NoisySize(n, size_noise), 1 - rule.alphas[index]
            alone = release_offset(rule.release_confidence, size, level=level, alpha=q.alpha, **search)
            offset = max(offset, alone)
        return (1 - q.alpha) * (n + 1) + offset <= n

    return smallest_where(useful)


@dataclass(frozen=True)
class Calibration:
    """A released threshold with its two promises."""

    threshold: float
    ledger: Ledger
    certificate: Certificate
    quantile: PrivateQuantile | None


def calibrate(
    scores: Any,
    *,
    training: DpEvent | Ledger | None = None,
    epsilon: float,
    delta: float,
    alpha: float = 0.1,
    score_range: tuple[float, float],
    guarantee: str = "universal",
    held_out: bool = False,
    stability: Stability | None = None,
    score_lipschitz: float | None = None,
    rank_buffer: float | None = None,
    failure_probability: float | None = None,
    steps: int | None = None,
    n_records: int | None = None,
    release_confidence: float | None = None,
    accountant: str | Accountant = "pld",
    random_state: int | None = None,
) -> Calibration:
    """Find a private threshold for your own scores, so that the whole release is (epsilon, delta)-DP.

    ``scores`` are s(x_i, y_i; theta) of the records, by a model whose training spent ``training`` (an event or a
    ledger). With guarantee ``"universal"``, ``"stability"``, ``"finite"`` or ``"asymptotic"`` the scored records are
    the training records; calibration gets what training left of the budget. With ``held_out=True`` (guarantee
    ``"split"``) they are others, and each part may spend the whole budget. ``n_records`` None declares the number of
    scores public; a given one is a plan only: the true number stays private and a noisy one is released. A score may
    depend on its record, the model and independent noise only.

    ``release_confidence`` (for held-out scores): aim so high that with this probability the threshold itself covers the
    level, beside the average; scores must be independent draws.

    Returns a ``Calibration``: threshold (infinite where no finite one exists), ledger, certificate.

    >>> import numpy as np
    >>> from dpscp.privacy import dpsgd_event
    >>> scores = np.random.default_rng(0).uniform(size=20_000)
    >>> spent = dpsgd_event(40.0, 1.0, 50)
    >>> c = calibrate(scores, training=spent, epsilon=1, delta=1e-6, score_range=(0, 1), random_state=0)
    >>> c.ledger.epsilon(1e-6) <= 1, c.certificate.coverage
    (True, 0.9)

    Theory: Results B, C, E, F, G and I
    """
    budget = Budget(epsilon, delta)
    alpha = check_probability("alpha", alpha)
    guarantee = "split" if held_out and guarantee == "universal" else guarantee
    check_choice("guarantee", guarantee, [g for g in GUARANTEES if g != "corrected"])
    if held_out != (guarantee == "split"):
        raise ValueError("guarantee='split' is for scores of records that training did not see: set held_out=True too")
    if not held_out and training is None:
        raise ValueError(
            f"guarantee={guarantee!r} needs training=, the event or ledger of all the model learned from: the scored "
            "records are its training records; for a model that never saw them set held_out=True"
        )
    spent = training if isinstance(training, Ledger) else Ledger()
    if training is not None and not isinstance(training, Ledger):
        spent = spent.add("training", as_event(training))
    nominal = check_count("n_records", n_records if n_records is not None else _length(scores))
    rule = calibration_rule(
        guarantee,
        (alpha,),
        spent,
        nominal,
        stability=stability,
        score_lipschitz=score_lipschitz,
        rank_buffer=rank_buffer,
        failure_probability=failure_probability,
        counted=n_records is None,
        release_confidence=release_confidence,
    )
    found = find_thresholds(
        [scores],
        rule,
        spent=spent,
        budget=budget,
        score_range=score_range,
        held_out=held_out,
        steps=steps,
        accountant=accountant,
        random_state=random_state,
        extra_assumptions=stability.assumptions if guarantee == "stability" and stability is not None else (),
    )
    threshold, certificate = float(found.values[0, 0]), found.certificates[0]
    if certificate.is_vacuous or math.isinf(threshold):
        warnings.warn(str(certificate), GuaranteeWarning, stacklevel=2)
    return Calibration(threshold, found.ledger, certificate, found.quantiles[0] if found.quantiles else None)


def _length(scores: Any) -> int:
    """The number of scores, for callers who declare it public by leaving n_records out."""
    size = getattr(scores, "size", None)
    if size is None or callable(size):
        size = len(scores) if hasattr(scores, "__len__") else math.nan
    if math.isnan(size):  # as a Dask array of unknown chunks says
        raise ValueError("n_records is needed for scores whose number is not known before they are read")
    if size == 0:
        raise ValueError("scores are empty: at least one is needed")
    return int(size)
