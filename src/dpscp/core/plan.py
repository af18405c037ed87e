"""Plan a release: levels, ranks, noise and cost, from public numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from dp_accounting.dp_event import DpEvent

from dpscp.core.problem import Problem
from dpscp.exceptions import BudgetError
from dpscp.guarantees import Guarantee, GuaranteeRequest, Stability, guarantee_of
from dpscp.guarantees.certificate import check_release_confidence
from dpscp.privacy import Budget, LatticeNoise, Ledger, Relation, compose, gdp_epsilon, gdp_mu, sized_lattice_noise
from dpscp.privacy.accounting import as_accountant
from dpscp.privacy.noise_search import spare_mu
from dpscp.threshold.offsets import Aim, Rank, rank_sensitivity, search_level
from dpscp.threshold.search import SharedCounts, default_steps
from dpscp.threshold.sizes import CountedSize, KnownSize, NoisySize

# Levels are multiples of 1e-6; a released size may fail with a hundredth of that probability.
_SMALLEST_LEVEL = 2e-6
# Share of the squared calibration budget for a private number of scores.
SIZE_SHARE = 0.12


@dataclass(frozen=True)
class EvaluationPlan:
    """Plan of the evaluation part: its share of the records, and its noise.

    ``counts`` is how many sums one record may change. Both are known before any record is used.

    Theory: Private evaluation
    """

    fraction: float
    noise: LatticeNoise
    counts: int

    @property
    def event(self) -> DpEvent:
        """What the counts cost a record of this part."""
        return self.noise.event(self.counts)

    @property
    def note(self) -> str:
        """The line of the ledger."""
        return f"evaluation: {self.counts} noisy counts, noise {self.noise.count_noise:.4g}"


@dataclass(frozen=True, eq=False)
class Plan:
    """Hold the plan of a release: levels, ranks, sizes, noise and cost.

    ``outline`` decides everything except the noise; ``with_noise`` finds the noise.

    Attributes
    ----------
    problem : Problem
    guarantee : Guarantee
    spent : what was spent before the search.
    inner : the inner level of each requested level; 0 if only full sets keep the promise.
    shift : what the guarantee adds to the threshold.
    n_nominal : the planned number of scores of one search, those of the ``part`` or of one group's share of it.
    part : the share of the records that is searched.
    has_released_size : whether the true number of scores is private and a noisy one is released (Result G).
    counted_size : the law of the size, where coins drew the part from a table of public size. Without it and without a
        released size, the number is ``n_nominal``.
    secret_part : the share that secret coins drew, where the cost of the mixture is charged.
    evaluation : the part, drawn by the same coins, on which the release is evaluated; None without one.
    level_indices : the indices of the levels that are searched. A level that needs full sets is not searched.
    steps : the number of halvings.
    counts : the number of noisy counts that each searched level adds to those of earlier levels.
    noises : the noise on the counts of each searched level.
    size_noise : the noise on the number of scores, released once; None without it.
    total : the budget for all rows of a person without ids together, where the budget of the problem is for one row.

    Theory: Which one to use
    """

    problem: Problem
    guarantee: Guarantee
    spent: Ledger
    inner: tuple[float, ...]
    shift: float
    rank: Rank
    n_nominal: int
    part: float = 1.0
    has_released_size: bool = False
    counted_size: CountedSize | None = None
    secret_part: float | None = None
    evaluation: EvaluationPlan | None = None
    level_indices: tuple[int, ...] = ()
    steps: int = 0
    counts: tuple[int, ...] = ()
    noises: tuple[LatticeNoise, ...] = ()
    size_noise: LatticeNoise | None = None
    total: Budget | None = None

    @classmethod
    def outline(
        cls,
        problem: Problem,
        spent: Ledger,
        *,
        part: float = 1.0,
        stability: Stability | None = None,
        waits_for_stability: bool = False,
        mu: float | None = None,
        **own: Any,
    ) -> Self:
        """Decide everything except the noise, from public numbers only.

        Parameters
        ----------
        problem : Problem
            With a guarantee that is not "auto".
        spent : Ledger
            What was spent before the search.
        part : float
            The share of the records that was drawn for calibration, record by record; 1 for all of them.
        stability : Stability, optional
        waits_for_stability : bool
            Whether training will find ``stability``; see ``after``.
        mu : float, optional
            About the Gaussian-DP level of the searches, where coins drew the part. The law of the coins may then take
            the place of a released size.
        **own
            Further fields of the plan.

        Theory: Which one to use; Result K
        """
        chosen = guarantee_of(problem.guarantee)
        if problem.release_confidence is not None:
            check_release_confidence(problem.release_confidence, chosen)
        grouped, other = problem.n_groups is not None, problem.population
        # without a released size only the linear statistic is valid for groups of any size
        rank = Rank.LINEAR if grouped and not chosen.releases_size else chosen.rank
        has_released_size = chosen.releases_size and (grouped or part < 1 or not problem.n_found)
        if other is not None and not problem.is_weighted:
            # how many scores the coins keep depends on the records, so their number is released
            part, has_released_size = (part / other.bound, True)
        if other is not None and not (chosen.held_out or (problem.is_weighted and chosen.certified)):
            raise ValueError(
                f"population needs guarantee='split', got {chosen.name!r}: a promise for another population needs "
                "records that training did not see, or normalized=True without groups and guarantee='universal'"
            )
        nominal = part * problem.n_records * problem.groups_per_record / (problem.n_groups or 1)
        plan = cls(
            problem,
            chosen,
            spent,
            problem.alphas,
            0.0,
            rank,
            max(1, round(nominal)),
            part,
            has_released_size,
            **own,
        )
        if waits_for_stability:
            plan = replace(plan, level_indices=tuple(range(len(problem.alphas))))
        else:
            plan = plan._with_levels(spent, stability)
        return plan if mu is None else plan._with_sharper_size(mu)

    def _with_levels(self, spent: Ledger, stability: Stability | None) -> Self:
        """Return the plan with the inner levels for what was spent."""
        inputs = GuaranteeRequest(self.problem.searched_alphas, spent, stability)
        inner, shift = self.guarantee.inner_levels(inputs), self.guarantee.shift(inputs)
        searched = tuple(i for i, alpha in enumerate(inner) if alpha >= _SMALLEST_LEVEL)
        return replace(self, spent=spent, inner=inner, shift=shift, level_indices=searched)

    def after(self, spent: Ledger, stability: Stability | None = None) -> Self:
        """Return the plan once training has run; ``spent`` has its facts and assumptions.

        A shift bound is known after training; it moves levels and threshold, and costs nothing.
        """
        found = self._with_levels(spent, stability)
        return found if found.inner == self.inner else found.with_noise()

    @property
    def secret_shares(self) -> tuple[float, ...] | None:
        """Return the shares of the secretly drawn parts that training does not use."""
        if self.secret_part is None:
            return None
        return (self.secret_part,) if self.evaluation is None else (self.secret_part, self.evaluation.fraction)

    def default_steps(self, unit_noise: float) -> int:
        """Return the number of halvings of a search.

        ``unit_noise`` is the noise of a single count in each group of a record, with the whole budget.
        """
        n = max(1, round(self.n_nominal / self.problem.weight_bound))  # full sets cannot miss
        unit_noise /= math.sqrt(1 - SIZE_SHARE * self.has_released_size)
        return default_steps(n, unit_noise=unit_noise, graded=self.guarantee.correction.is_graded)

    def planned_aim(self, index: int, mu: float) -> Aim:
        """Return the rank target of one level's search.

        All searches that one record takes part in are mu-GDP together.

        The released size is assumed to be the planned one, and the noise to be normal.
        """
        level = search_level(self.inner[index], size_is_released=self.has_released_size)
        unit, levels = float(self.rank.sensitivity(level)) / mu, len(self.level_indices)
        copies = self.problem.groups_per_record
        steps = self.default_steps(unit * math.sqrt(copies * levels))
        noise = unit * math.sqrt(copies * sum(self._new_counts(steps)) / (1 - SIZE_SHARE * self.has_released_size))
        size: KnownSize | NoisySize | CountedSize = self.counted_size or KnownSize(self.n_nominal)
        if self.has_released_size:
            size = NoisySize(self.n_nominal, math.sqrt(copies / SIZE_SHARE) / mu)
        return Aim(level, self.rank, self.guarantee.correction, size, noise, steps)

    def _with_sharper_size(self, mu: float) -> Self:
        """Return the plan without a released size, if the split's law is sharper.

        Both are valid, and public numbers choose. The law of the split is sharper for small parts. Declared numbers,
        groups and the number of records that a likelihood ratio keeps have no such law.

        Theory: Sizes of small parts that were counted
        """
        problem = self.problem
        is_drawn = self.has_released_size and problem.n_found and self.part < 1
        is_thinned = problem.population is not None and not problem.is_weighted
        if not is_drawn or problem.n_groups is not None or is_thinned:
            return self
        counted = replace(self, has_released_size=False, counted_size=CountedSize(problem.n_records, self.part))

        released, known = (
            sum(plan.planned_aim(i, mu).typical_overshoot() for i in plan.level_indices) for plan in (self, counted)
        )
        return counted if known < released else self

    def with_noise(self) -> Self:
        """Return the plan with the noise that the budget leaves.

        Raises ``BudgetError`` if it leaves none.

        Levels share the budget, and so do the groups that one record may be in. Disjoint groups get all of it each.
        Held-out records are disjoint from those of ``spent``. So each part may spend the whole budget, and more if the
        split is secret.
        """
        problem, (epsilon, delta) = self.problem, (self.problem.budget.epsilon, self.problem.budget.delta)
        accountant, copies = as_accountant(problem.accountant), problem.groups_per_record
        if not self.level_indices:
            plan = replace(self, steps=0, counts=(), noises=(), size_noise=None)
            problem.budget.require(of_one_row(plan.ledger()), accountant)
            return plan
        sensitivities = [rank_sensitivity(self.rank, self.inner[i]) for i in self.level_indices]
        secret, beside = self.secret_part, None
        if secret is not None and self.evaluation is not None:
            beside = (self.evaluation.event, self.evaluation.fraction)
        one_row = of_one_row(self.spent)
        before = None if self.guarantee.held_out and secret is None else one_row

        # an approximation is enough, because this sets the number of halvings only
        trained = one_row.epsilon(delta, accountant) if before is not None else 0.0
        mu = spare_mu(epsilon, delta, trained, sum(self.secret_shares or ()))
        steps = self.default_steps(float(sensitivities[0]) * math.sqrt(copies * len(sensitivities)) / mu)
        if problem.task.most_steps is not None:
            steps = min(steps, problem.task.most_steps)
        counts = self._new_counts(steps)
        noises, size_noise = sized_lattice_noise(
            epsilon,
            delta,
            counts,
            sensitivities,
            before,
            accountant,
            SIZE_SHARE * self.has_released_size,
            secret,
            beside,
            problem.task.resolution,
            copies,
        )
        plan = replace(self, steps=steps, counts=counts, noises=noises, size_noise=size_noise)
        problem.budget.require(of_one_row(plan.ledger()), accountant)
        return plan

    def _new_counts(self, steps: int) -> tuple[int, ...]:
        """Return the number of noisy counts that each searched level adds."""
        levels = len(self.level_indices)
        if not self.rank.is_same_at_all_levels:
            return (steps,) * levels
        return tuple(SharedCounts.new_questions(j, steps) for j in range(levels))

    def ledger(self) -> Ledger:
        """Return what was spent before with these searches.

        Groups cost the same, and one record changes the counts of ``groups_per_record`` of them at most. So the ledger
        has that many: by adaptive composition the others, whose counts do not change, cost nothing.
        """
        problem, spent, notes = self.problem, self.spent, []
        unit, copies = problem.unit.counted, problem.groups_per_record
        events = [noise.event(copies * count) for noise, count in zip(self.noises, self.counts, strict=True)]
        if self.size_noise is not None:
            events[0] = compose(self.size_noise.event(copies), events[0])
        groups = f", {problem.n_groups} disjoint groups in parallel" if (problem.n_groups or 1) > 1 else ""
        if copies > 1:
            groups = f", {problem.n_groups} groups, each record in at most {copies} of them; these are charged"
        for place, (i, noise, count) in enumerate(zip(self.level_indices, self.noises, self.counts, strict=True)):
            size = ""
            if place == 0 and self.size_noise is not None:
                size = f"the number of scores once, noise {self.size_noise.count_noise:.4g}; "
            more = "more " if place and self.rank.is_same_at_all_levels else ""
            notes.append(
                f"{size}level {1 - problem.alphas[i]:g}: {count} {more}noisy counts, noise {noise.count_noise:.4g}, "
                f"rank statistic '{self.rank}'{groups}"
            )
        shares, measured = self.secret_shares, self.evaluation
        if self.guarantee.held_out and spent.entries and (notes or shares is not None):
            stages = {"training": spent.event, "calibration": compose(*events)}
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
                relation=spent.relation,
            )
        ledger = spent
        for event, note in zip(events, notes, strict=True):
            ledger = ledger.add("calibration", event, note, unit=unit)
        return ledger


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def of_one_row(spent: Ledger) -> Ledger:
    """Return the ledger of its events for one added or removed row.

    See ``plan_rows``.
    """
    entries = (replace(entry, relation=Relation.ADD_OR_REMOVE) for entry in spent.entries)
    return replace(spent, entries=tuple(entries))


def plan_rows(
    problem: Problem, planned: Callable[[Budget], AnyPlan], relation: Relation = Relation.ADD_OR_REMOVE
) -> AnyPlan:
    """Return a plan that protects all rows of a person without ids.

    It is the plan for one row with a smaller budget.

    If training protects against replacement, twice as many rows count: the old ones and the new ones.

    k rows of a mu-GDP release are k * mu. The extra cost of discrete noise and sampled steps is found by trials with
    ``planned``, which plans for the budget of one row.

    Theory: Result H
    """
    group, (epsilon, delta) = problem.unit.group, (problem.budget.epsilon, problem.budget.delta)
    chained = group * relation.steps
    if chained == 1:
        return planned(problem.budget)
    tried = gdp_epsilon(delta, gdp_mu(epsilon, delta) / chained)
    for _ in range(12):
        plan = planned(Budget(tried, delta))
        spent = plan.ledger().epsilon(delta, problem.accountant, rows=group)
        if spent <= epsilon:
            return replace(plan, total=problem.budget)
        tried *= 0.99 * epsilon / spent
    raise BudgetError(
        f"no noise scale protects {chained} rows together at epsilon = {epsilon:g} and delta = {delta:g}; increase "
        "epsilon or delta, or decrease rows_per_person"
    )


def plan_release(problem: Problem, spent: Ledger, stability: Stability | None = None) -> Plan:
    """Plan a release of existing scores or losses, within the budget."""

    def planned(budget: Budget) -> Plan:
        return Plan.outline(replace(problem, budget=budget), spent, stability=stability).with_noise()

    return plan_rows(problem, planned, spent.relation)
