"""What a calibration asks of the scores, from public numbers: the rule of a guarantee, the searches, their cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dp_accounting.dp_event import DpEvent

from dpscp._base.checks import check_probability
from dpscp.exceptions import BudgetError
from dpscp.guarantees import Asked, Guarantee, Stability, guarantee_of
from dpscp.guarantees.certificate import check_release_confidence
from dpscp.pipeline.evaluation import EvaluationPlan
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
from dpscp.quantile.offsets import Aim, Rank, rank_sensitivity, search_level
from dpscp.quantile.search import AskedCounts, default_steps
from dpscp.quantile.single_release import CountedSize, KnownSize, NoisySize

# Levels are multiples of 1e-6, and a released size is charged a hundredth of the smallest of them.
_SMALLEST_LEVEL = 2e-6
# Part of the squared budget of a calibration that releases the number of scores, where it is private.
SIZE_SHARE = 0.12


@dataclass(frozen=True)
class CalibrationRule:
    """How a guarantee calibrates, in public numbers: an inner level for each target, and what surrounds the search.

    ``n_records`` counts the whole table, ``n_nominal`` is the planned number of scores of one search: of the ``part``
    that is searched, or of a group's share of it. ``sized``: their true number is private, and a noisy one is released
    (Result G). ``counted_size``: coins drew them from a table whose number is public, and the law of the coins is used.
    With neither it is ``n_nominal``. ``counted``: ``n_records`` was found in the table and is public. ``secret_part``:
    the part, where secret coins drew it, training saw the rest and the mixture of the two is what counts.
    ``evaluation``: another part, drawn by the same coins, on which the release is measured.
    ``unit``: what is counted, records or persons.
    """

    guarantee: Guarantee
    alphas: tuple[float, ...]
    inner: tuple[float, ...]
    rank: Rank
    n_records: int
    n_nominal: int
    sized: bool = False
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

    @property
    def secret_shares(self) -> tuple[float, ...] | None:
        """The shares of the parts that training does not see, where secret coins drew them."""
        if self.secret_part is None:
            return None
        return (self.secret_part,) if self.evaluation is None else (self.secret_part, self.evaluation.fraction)

    @property
    def grouped(self) -> bool:
        """Whether there is a threshold for each of several groups."""
        return self.n_groups is not None

    @property
    def possible(self) -> tuple[bool, ...]:
        """Which targets have an inner level; for the others only full sets can keep the promise."""
        return tuple(a >= _SMALLEST_LEVEL for a in self.inner)

    @property
    def shares_counts(self) -> bool:
        """Whether a noisy count answers all levels: the statistics of other ranks differ from level to level."""
        return self.rank.is_same_at_all_levels

    @property
    def size_share(self) -> float:
        """Part of the squared calibration budget that releases the number of scores."""
        return SIZE_SHARE if self.sized else 0.0

    def steps(self, unit_noise: float) -> int:
        """How many halvings a search takes when a single count with the whole budget would have ``unit_noise``."""
        graded = self.guarantee.correction.is_graded
        return default_steps(self.n_nominal, unit_noise=unit_noise / math.sqrt(1 - self.size_share), graded=graded)

    def planned_aim(self, index: int, mu: float) -> Aim:
        """Where the search of one level aims when all searches of a group together are mu-GDP.

        A released size is taken to come out as planned, and noise to be normal.
        """
        level = search_level(self.inner[index], size_is_released=self.sized)
        unit, levels = float(self.rank.sensitivity(level)) / mu, sum(self.possible)
        steps = self.steps(unit * math.sqrt(levels))
        noise = unit * math.sqrt(sum(_new_counts(self, levels, steps)) / (1 - self.size_share))
        size: KnownSize | NoisySize | CountedSize = self.counted_size or KnownSize(self.n_nominal)
        if self.sized:
            size = NoisySize(self.n_nominal, 1 / (mu * math.sqrt(self.size_share)))
        return Aim(level, self.rank, self.guarantee.correction, size, noise, steps)

    def with_sharper_size(self, mu: float) -> "CalibrationRule":
        """Return the rule without a released size, where coins drew the part and their law gives a sharper aim.

        Both are valid; ``mu``, about the Gaussian-DP level of the searches, and the other public numbers choose. The
        law of the coins is sharper in small parts. Numbers that were declared, and groups, have no such law.

        Theory: section 14
        """
        if not (self.sized and self.counted and self.part < 1) or self.grouped:
            return self
        counted = replace(self, sized=False, counted_size=CountedSize(self.n_records, self.part))

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
    """The rule of a guarantee, from public numbers only.

    ``part`` is the share of the ``n_records`` that was drawn, record by record, for calibration (1: all of them);
    ``n_groups`` the number of disjoint groups with thresholds of their own (None: no groups). ``counted``: n_records
    is the number that was found and is declared public; otherwise it is a plan, and the true number stays private.

    Theory: section 6
    """
    chosen = guarantee_of(guarantee)
    if release_confidence is not None:
        check_release_confidence(release_confidence, chosen)
    asked = Asked(tuple(check_probability("alpha", a) for a in alphas), spent, stability, score_lipschitz)
    grouped = n_groups is not None
    return CalibrationRule(
        guarantee=chosen,
        alphas=asked.alphas,
        inner=chosen.inner_levels(asked),
        # without a released size only the linear statistic follows a group's
        rank=Rank.LINEAR if grouped and not chosen.releases_size else chosen.rank,
        n_records=n_records,
        part=part,
        n_nominal=max(1, round(part * n_records / (n_groups or 1))),
        sized=chosen.releases_size and (grouped or part < 1 or not counted),
        shift=chosen.shift(asked),
        rank_buffer=chosen.rank_buffer,
        n_groups=n_groups,
        release_confidence=release_confidence,
        counted=counted,
    )


def row_budget(budget: Budget, group: int, planned: Callable[[Budget], Ledger], accountant: str | Accountant) -> Budget:
    """The budget for one row with which ``group`` of them at once stay within ``budget``; the same for one.

    k rows of a mu-GDP release are k * mu. What discrete noise and sampled steps cost beyond that is tried out on the
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
        f"no noise found that protects {group} rows at epsilon = {budget.epsilon:g} and delta = {delta:g}; raise "
        "epsilon or delta, or lower rows_per_person"
    )


@dataclass(frozen=True)
class SearchPlan:
    """What a calibration asks of the scores and what it costs, from public numbers: known before there is a score.

    ``asked`` are the places of the levels that are searched (of a level that only full sets can keep nothing is asked);
    ``noises`` the noise on the counts of each, ``size_noise`` that of the number of scores, released once.
    """

    rule: CalibrationRule
    asked: tuple[int, ...]
    steps: int
    noises: tuple[LatticeNoise, ...]
    size_noise: LatticeNoise | None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many noisy counts each level's search adds to those before it."""
        return _new_counts(self.rule, len(self.asked), self.steps)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What each level's search of one group costs; the first one releases the size as well."""
        events = [noise.event(count) for noise, count in zip(self.noises, self.counts, strict=True)]
        if self.size_noise is not None:
            events[0] = compose(self.size_noise.event(1), events[0])
        return tuple(events)

    def ledger(self, spent: Ledger) -> Ledger:
        """``spent`` with these searches; groups are disjoint and cost the same, so one of them stands for all."""
        rule, unit, notes = self.rule, self.rule.unit.counted, []
        groups = f", {rule.n_groups} disjoint groups in parallel" if (rule.n_groups or 1) > 1 else ""
        for place, (i, noise, count) in enumerate(zip(self.asked, self.noises, self.counts, strict=True)):
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
            number, last = "two", "; "
            if measured is not None:
                stages, number = stages | {"evaluation": measured.event}, "three"
                notes, last = [*notes, measured.note], f" and {measured.fraction:.3g} for evaluation; "
            how = (
                f"disjoint records, the worse of the {number} counts"
                if shares is None
                else f"each in one of the {number} by a secret coin, {shares[0]:.3g} for calibration{last}the mixture "
                "counts"
            )
            return Ledger((), spent.public_facts, spent.seeded).add_disjoint(
                stages,
                "; ".join([how, *notes]),
                secret_part=shares,
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
    """The searches of a rule with the noise that the budget leaves: levels share it, each group gets all of it.

    Held-out records are not those of ``spent``: each part may spend the whole budget, and more where nobody learns
    which part a record fell in.
    """
    accountant = release_accountant(accountant)
    asked = tuple(i for i, possible in enumerate(rule.possible) if possible)
    if not asked:
        searches = SearchPlan(rule, (), 0, (), None)
        budget.require(searches.ledger(spent), accountant)
        return searches
    sensitivities = [rank_sensitivity(rule.rank, rule.inner[i]) for i in asked]
    secret, beside = rule.secret_part, None
    if secret is not None and rule.evaluation is not None:
        beside = (rule.evaluation.event, rule.evaluation.fraction)
    before = None if rule.guarantee.held_out and secret is None else spent

    def noise(counts: int | tuple[int, ...], size_share: float) -> tuple[tuple[LatticeNoise, ...], LatticeNoise | None]:
        return sized_lattice_noise(
            budget.epsilon, budget.delta, counts, sensitivities, before, accountant, size_share, secret, beside
        )

    if steps is None and secret is not None:
        # only the number of halvings follows from it: no need to solve for what is spent in full
        mu = spare_mu(
            budget.epsilon, budget.delta, sum(rule.secret_shares or ()), spent.epsilon(budget.delta, accountant)
        )
        steps = rule.steps(float(sensitivities[0]) * math.sqrt(len(asked)) / mu)
    elif steps is None:
        steps = rule.steps(noise(1, 0.0)[0][0].count_noise)
    counts = _new_counts(rule, len(asked), steps)
    noises, size_noise = noise(counts, rule.size_share)
    searches = SearchPlan(rule, asked, steps, noises, size_noise)
    budget.require(searches.ledger(spent), accountant)
    return searches


def _new_counts(rule: CalibrationRule, levels: int, steps: int) -> tuple[int, ...]:
    """The noisy counts that each level adds."""
    return tuple(AskedCounts.new_questions(j, steps) if rule.shares_counts else steps for j in range(levels))
