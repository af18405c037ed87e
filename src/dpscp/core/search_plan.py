"""Plan a calibration from public numbers: the rule, the searches and their cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dp_accounting.dp_event import DpEvent

from dpscp._base.checks import check_probability
from dpscp.core.evaluation import EvaluationPlan
from dpscp.exceptions import BudgetError
from dpscp.guarantees import Guarantee, GuaranteeRequest, Stability, guarantee_of
from dpscp.guarantees.certificate import check_release_confidence
from dpscp.privacy import (
    RECORDS,
    Budget,
    LatticeNoise,
    Ledger,
    Unit,
    compose,
    gdp_epsilon,
    gdp_mu,
    sized_lattice_noise,
)
from dpscp.privacy.accounting import Accountant, release_accountant
from dpscp.privacy.split_budget import spare_mu
from dpscp.threshold.offsets import Aim, Rank, rank_sensitivity, search_level
from dpscp.threshold.search import SharedCounts, default_steps
from dpscp.threshold.single_release import CountedSize, KnownSize, NoisySize

# Levels are multiples of 1e-6, and a released size is charged a hundredth of the smallest of them.
_SMALLEST_LEVEL = 2e-6
# Share of the squared calibration budget for a private number of scores.
SIZE_SHARE = 0.12


@dataclass(frozen=True)
class CalibrationRule:
    """State how a guarantee calibrates, in public numbers.

    Attributes
    ----------
    alphas, inner : the target miscoverage of each level, and the inner level that the search uses for it.
    n_records : the number of units in the whole table.
    n_nominal : the planned number of scores of one search, those of the ``part`` or of one group's share of it.
    has_released_size : whether the true number of scores is private and a noisy one is released (Result G).
    counted_size : the law of the size, where coins drew the part from a table of public size. Without it and without a
        released size, the number is ``n_nominal``.
    part : the share of the records that is searched.
    secret_part : the same share, where secret coins drew it and the cost of the mixture is charged.
    evaluation : the part, drawn by the same coins, on which the release is evaluated; None without one.
    shift, rank_buffer, failure_probability : what the guarantee adds to the threshold or to the rank.
    n_groups : the number of groups with thresholds of their own; None without groups.
    groups_per_record : how many groups one record may be in; 1 for disjoint groups.
    unit : what is counted, records or persons.
    counted : whether ``n_records`` was counted in the table and is public.
    resolution : counts are multiples of one over it (Result J).
    ratio_bound : the bound of the likelihood ratio by which coins keep scores for another population (Result K).
    """

    guarantee: Guarantee
    alphas: tuple[float, ...]
    inner: tuple[float, ...]
    rank: Rank
    n_records: int
    n_nominal: int
    has_released_size: bool = False
    counted_size: CountedSize | None = None
    part: float = 1.0
    secret_part: float | None = None
    shift: float = 0.0
    rank_buffer: float = 0.0
    failure_probability: float | None = None
    n_groups: int | None = None
    release_confidence: float | None = None
    unit: Unit = RECORDS
    counted: bool = False
    evaluation: EvaluationPlan | None = None
    resolution: int = 1
    ratio_bound: float | None = None
    groups_per_record: int = 1

    @property
    def secret_shares(self) -> tuple[float, ...] | None:
        """Return the shares of the parts that training does not use, where secret coins drew them."""
        if self.secret_part is None:
            return None
        return (self.secret_part,) if self.evaluation is None else (self.secret_part, self.evaluation.fraction)

    @property
    def has_groups(self) -> bool:
        """Whether there is a threshold for each of several groups."""
        return self.n_groups is not None

    @property
    def possible(self) -> tuple[bool, ...]:
        """Which targets have an inner level; the others need full sets."""
        return tuple(a >= _SMALLEST_LEVEL for a in self.inner)

    @property
    def shares_counts(self) -> bool:
        """Whether all levels use the same noisy counts."""
        return self.rank.is_same_at_all_levels

    @property
    def size_share(self) -> float:
        """The share of the squared calibration budget for the number of scores."""
        return SIZE_SHARE if self.has_released_size else 0.0

    def steps(self, unit_noise: float) -> int:
        """Return the number of halvings of a search.

        ``unit_noise`` is the noise of a single count in each group of a record, with the whole budget.
        """
        graded = self.guarantee.correction.is_graded
        return default_steps(self.n_nominal, unit_noise=unit_noise / math.sqrt(1 - self.size_share), graded=graded)

    def planned_aim(self, index: int, mu: float) -> Aim:
        """Return the aim of one level's search when all searches that one record takes part in are mu-GDP.

        The released size is assumed to be the planned one, and the noise to be normal.
        """
        level = search_level(self.inner[index], size_is_released=self.has_released_size)
        unit, levels = float(self.rank.sensitivity(level)) / mu, sum(self.possible)
        copies = self.groups_per_record
        steps = self.steps(unit * math.sqrt(copies * levels))
        noise = unit * math.sqrt(copies * sum(_new_counts(self, levels, steps)) / (1 - self.size_share))
        size: KnownSize | NoisySize | CountedSize = self.counted_size or KnownSize(self.n_nominal)
        if self.has_released_size:
            size = NoisySize(self.n_nominal, math.sqrt(copies / self.size_share) / mu)
        return Aim(level, self.rank, self.guarantee.correction, size, noise, steps)

    def for_overlap(self, groups_per_record: int) -> "CalibrationRule":
        """Return the rule for groups of which one record may be in so many; the size of a group is a plan only."""
        nominal = max(1, round(self.part * self.n_records * groups_per_record / (self.n_groups or 1)))
        return replace(self, n_nominal=nominal, groups_per_record=groups_per_record)

    def for_population(self, ratio_bound: float | None) -> "CalibrationRule":
        """Return the rule for another population; of its scores about one in ``ratio_bound`` is kept, by secret coins.

        How many are kept depends on the records, so their number is released and never taken from the law of coins.

        Theory: Result K
        """
        if ratio_bound is None:
            return self
        if not self.guarantee.held_out:
            raise ValueError(
                f"likelihood_ratio needs guarantee='split', got {self.guarantee.name!r}: a promise for another "
                "population needs records that training did not see"
            )
        part = self.part / ratio_bound
        sized = replace(self, part=part, has_released_size=True, ratio_bound=ratio_bound)
        return sized.for_overlap(self.groups_per_record)

    def with_sharper_size(self, mu: float) -> "CalibrationRule":
        """Return the rule without a released size, if the coins' law is sharper.

        Both are valid, and public numbers choose; ``mu`` is about the Gaussian-DP level of the searches. The law of the
        coins is sharper in small parts. Declared numbers and groups have no such law.

        Theory: section 14
        """
        is_drawn = self.has_released_size and self.counted and self.part < 1
        if not is_drawn or self.has_groups or self.ratio_bound is not None:
            return self
        counted = replace(self, has_released_size=False, counted_size=CountedSize(self.n_records, self.part))

        def overshoot(rule: CalibrationRule) -> float:
            places = [i for i, possible in enumerate(rule.possible) if possible]
            return sum(rule.planned_aim(i, mu).typical_overshoot() for i in places)

        return counted if overshoot(counted) < overshoot(self) else self


def make_rule(
    guarantee: str | Guarantee,
    alphas: Sequence[float],
    spent: Ledger,
    n_records: int,
    *,
    part: float = 1.0,
    stability: Stability | None = None,
    score_lipschitz: float | None = None,
    n_groups: int | None = None,
    counted: bool = False,
    release_confidence: float | None = None,
) -> CalibrationRule:
    """Make the rule of a guarantee, from public numbers only.

    Parameters
    ----------
    guarantee : str or Guarantee
    alphas : sequence of float
        The target miscoverage of each level.
    spent : Ledger
        What training spent.
    n_records : int
        The number of units in the table.
    part : float
        The share of the records that was drawn for calibration, record by record; 1 for all of them.
    stability : Stability, optional
    score_lipschitz : float, optional
    n_groups : int, optional
        The number of groups with thresholds of their own; disjoint, see ``CalibrationRule.for_overlap``.
    counted : bool
        Whether ``n_records`` is the true number, declared public. Otherwise it is a plan, and the true number is
        private.
    release_confidence : float, optional

    Theory: section 6
    """
    chosen = guarantee_of(guarantee)
    if release_confidence is not None:
        check_release_confidence(release_confidence, chosen)
    inputs = GuaranteeRequest(tuple(check_probability("alpha", a) for a in alphas), spent, stability, score_lipschitz)
    has_groups = n_groups is not None
    return CalibrationRule(
        guarantee=chosen,
        alphas=inputs.alphas,
        inner=chosen.inner_levels(inputs),
        # without a released size only the linear statistic is valid for groups of any size
        rank=Rank.LINEAR if has_groups and not chosen.releases_size else chosen.rank,
        n_records=n_records,
        part=part,
        n_nominal=max(1, round(part * n_records / (n_groups or 1))),
        has_released_size=chosen.releases_size and (has_groups or part < 1 or not counted),
        shift=chosen.shift(inputs),
        rank_buffer=chosen.rank_buffer,
        n_groups=n_groups,
        release_confidence=release_confidence,
        counted=counted,
    )


def row_budget(budget: Budget, group: int, planned: Callable[[Budget], Ledger], accountant: str | Accountant) -> Budget:
    """Return the budget for one row with which ``group`` rows stay within ``budget``.

    k rows of a mu-GDP release are k * mu. The extra cost of discrete noise and sampled steps is found by trials on the
    ledger that is ``planned`` from public numbers.

    Theory: Result H
    """
    if group == 1:
        return budget
    epsilon, delta = gdp_epsilon(budget.delta, gdp_mu(budget.epsilon, budget.delta) / group), budget.delta
    for _ in range(12):
        tried = Budget(epsilon, delta)
        spent = planned(tried).epsilon(delta, accountant, rows=group)
        if spent <= budget.epsilon:
            return tried
        epsilon *= 0.99 * budget.epsilon / spent
    raise BudgetError(
        f"no noise protects {group} rows together at epsilon = {budget.epsilon:g} and delta = {delta:g}; increase "
        "epsilon or delta, or decrease rows_per_person"
    )


@dataclass(frozen=True)
class SearchPlan:
    """Hold the searches of a calibration and their cost, from public numbers.

    Attributes
    ----------
    rule : CalibrationRule
    level_indices : tuple of int
        The indices of the levels that are searched. A level that needs full sets is not searched.
    steps : int
        The number of halvings.
    noises : tuple of LatticeNoise
        The noise on the counts of each searched level.
    size_noise : LatticeNoise or None
        The noise on the number of scores, released once.
    """

    rule: CalibrationRule
    level_indices: tuple[int, ...]
    steps: int
    noises: tuple[LatticeNoise, ...]
    size_noise: LatticeNoise | None

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of noisy counts that each level's search adds to earlier ones."""
        return _new_counts(self.rule, len(self.level_indices), self.steps)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """The cost of each level's searches in the groups of one record; the first releases the sizes too."""
        copies = self.rule.groups_per_record
        events = [noise.event(copies * count) for noise, count in zip(self.noises, self.counts, strict=True)]
        if self.size_noise is not None:
            events[0] = compose(self.size_noise.event(copies), events[0])
        return tuple(events)

    def ledger(self, spent: Ledger) -> Ledger:
        """Return ``spent`` with these searches.

        Groups cost the same, and one record changes the counts of ``groups_per_record`` of them at most. So the ledger
        has that many: by adaptive composition the others, whose counts do not change, cost nothing.
        """
        rule, unit, notes = self.rule, self.rule.unit.counted, []
        groups = f", {rule.n_groups} disjoint groups in parallel" if (rule.n_groups or 1) > 1 else ""
        if rule.groups_per_record > 1:
            groups = (
                f", {rule.n_groups} groups, each record in at most {rule.groups_per_record} of them; these are charged"
            )
        for place, (i, noise, count) in enumerate(zip(self.level_indices, self.noises, self.counts, strict=True)):
            size = ""
            if place == 0 and self.size_noise is not None:
                size = f"the number of scores once, noise {self.size_noise.count_noise:.4g}; "
            more = "more " if place and rule.shares_counts else ""
            notes.append(
                f"{size}level {1 - rule.alphas[i]:g}: {count} {more}noisy counts, noise {noise.count_noise:.4g}, "
                f"rank statistic '{rule.rank}'{groups}"
            )
        shares, measured = rule.secret_shares, rule.evaluation
        if rule.guarantee.held_out and spent.entries and (notes or shares is not None):
            stages = {"training": spent.event, "calibration": compose(*self.events)}
            other = ""
            if measured is not None:
                stages, notes = stages | {"evaluation": measured.event}, [*notes, measured.note]
                other = f"to evaluation with probability {measured.fraction:.3g}, "
            how = (
                f"disjoint records, the {'more' if measured is None else 'most'} expensive part counts"
                if shares is None
                else f"each record is secretly assigned to calibration with probability {shares[0]:.3g}, {other}else "
                "to training; the cost accounts for that"
            )
            return replace(spent, entries=()).add_disjoint(
                stages,
                "; ".join([how, *notes]),
                secret_part=shares,
                components={"training": spent.component_names},
                unit=spent.unit.join(unit),
            )
        ledger = spent
        for event, note in zip(self.events, notes, strict=True):
            ledger = ledger.add("calibration", event, note, unit=unit)
        return ledger


def plan_search(
    rule: CalibrationRule,
    *,
    spent: Ledger,
    budget: Budget,
    steps: int | None = None,
    accountant: str | Accountant = "pld",
) -> SearchPlan:
    """Plan the searches of a rule with the noise that the budget leaves.

    Levels share the budget, and so do the groups that one record may be in. Disjoint groups get all of it each.
    Held-out records are not those of ``spent``: each part may spend the whole budget, and more where the split is
    secret.
    """
    accountant = release_accountant(accountant)
    level_indices = tuple(i for i, possible in enumerate(rule.possible) if possible)
    if not level_indices:
        searches = SearchPlan(rule, (), 0, (), None)
        budget.require(searches.ledger(spent), accountant)
        return searches
    sensitivities = [rank_sensitivity(rule.rank, rule.inner[i]) for i in level_indices]
    secret, beside = rule.secret_part, None
    if secret is not None and rule.evaluation is not None:
        beside = (rule.evaluation.event, rule.evaluation.fraction)
    before = None if rule.guarantee.held_out and secret is None else spent

    def noise(counts: int | tuple[int, ...], size_share: float) -> tuple[tuple[LatticeNoise, ...], LatticeNoise | None]:
        return sized_lattice_noise(
            budget.epsilon,
            budget.delta,
            counts,
            sensitivities,
            before,
            accountant,
            size_share,
            secret,
            beside,
            rule.resolution,
            rule.groups_per_record,
        )

    if steps is None and secret is not None:
        # this only sets the number of halvings, so an approximation is enough
        held_out = sum(rule.secret_shares or ())
        mu = spare_mu(budget.epsilon, budget.delta, held_out, spent.epsilon(budget.delta, accountant))
        steps = rule.steps(float(sensitivities[0]) * math.sqrt(rule.groups_per_record * len(level_indices)) / mu)
    elif steps is None:
        steps = rule.steps(noise(1, 0.0)[0][0].count_noise)
    counts = _new_counts(rule, len(level_indices), steps)
    noises, size_noise = noise(counts, rule.size_share)
    searches = SearchPlan(rule, level_indices, steps, noises, size_noise)
    budget.require(searches.ledger(spent), accountant)
    return searches


def _new_counts(rule: CalibrationRule, levels: int, steps: int) -> tuple[int, ...]:
    """Return the number of noisy counts that each level adds."""
    return tuple(SharedCounts.new_questions(j, steps) if rule.shares_counts else steps for j in range(levels))
