"""Predict coverage and noise for a budget, before any record is used.

Everything is a function of public numbers. A plan assumes that both stages are Gaussian releases that spend their whole
share, so it needs no accountant. The noise of a fit differs from its plan by less than 0.1 %, and slightly more where
training is sampled (more than 20,000 records).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any

from dpscp._base.checks import check_choice, check_count, check_positive, check_probability
from dpscp._base.format import at_least, format_level, format_odds, format_rate, html_paragraph, html_table, text_table
from dpscp.core.fit_plan import Parts, best_train_share, choose_guarantee, divide, plan_training
from dpscp.core.plan import Plan
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Classification, Prediction, Regression
from dpscp.data.groups import Groups, read_groups
from dpscp.data.populations import Population, read_population
from dpscp.guarantees import GUARANTEES, Guarantee, guarantee_of
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.guarantees.registry import SPLIT
from dpscp.privacy import RECORDS, Budget, Ledger, gaussian_event, gdp_epsilon, gdp_mu
from dpscp.privacy.units import Unit

__all__ = ["BudgetPlan", "PlanRow", "plan"]

PLANNED = tuple(GUARANTEES)
# The searched range of epsilon. Outside it a promise costs nothing or is impossible.
_EPSILONS = tuple(0.01 * 1.1**k for k in range(80))
# Values that a plan tries as remedies for full sets.
_TRIED_EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0)
_TRIED_ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
# The searched range of n. Outside it a promise costs nothing or is impossible.
SIZES = tuple(round(20 * 1.25**k) for k in range(90))
# The exact integer noise of a fit exceeds the Gaussian formula by less than this.
SEARCH_MARGIN = 1.0005


@dataclass(frozen=True)
class PlanRow:
    """Hold the plan of one guarantee.

    Attributes
    ----------
    guarantee : str
    certified : bool
        Whether the coverage is proven for finite samples.
    train_share : float or None
        The share of epsilon that training gets; None for a split.
    best_train_share : float or None
        The share of ``train_share="auto"``.
    train_epsilon : float
    calibration_fraction : float or None
        The held-out share of the records.
    inner_level : float
    steps : int or None
    count_noise : float or None
    rank_offset : float or None
    value_buffer : float
    overshoot : float or None
        The expected coverage above the target (for ``stability``, with scores spread evenly over their range).
    useful : bool
        Whether a finite threshold is expected. If not, the numbers of the search are missing or not useful.
    smallest_n : int or None
        With fewer records only full sets keep the promise.
    release_level : float or None
        The coverage that a single release reaches in 19 of 20 cases, or with the requested confidence; None if no bound
        is known.
    """

    guarantee: str
    certified: bool
    train_share: float | None
    best_train_share: float | None
    train_epsilon: float
    calibration_fraction: float | None
    inner_level: float
    steps: int | None
    count_noise: float | None
    rank_offset: float | None
    value_buffer: float
    overshoot: float | None
    useful: bool
    smallest_n: int | None
    release_level: float | None = None


@dataclass(frozen=True)
class BudgetPlan:
    """Hold the plans of all guarantees.

    ``str()`` is a table, ``to_html(path)`` a page with sliders, and ``to_dict()`` plain JSON values.

    Attributes
    ----------
    n, epsilon : number or None
        None for the number that the plan solves for.
    delta, alpha, task, n_features : the public numbers of the plan
    automatic : str or None
        The guarantee of ``guarantee="auto"``.
    rows : tuple of PlanRow
    goal : float or None
        The wanted overshoot; the rows then use the numbers in ``needed``.
    solved_for : "n", "epsilon" or None
    needed : tuple of float or None
        The smallest n or epsilon with which each guarantee reaches the goal; None if it cannot.
    """

    n: int | None
    epsilon: float | None
    delta: float
    alpha: float
    task: str
    n_features: int
    automatic: str | None
    rows: tuple[PlanRow, ...]
    problem: FitProblem = field(repr=False, compare=False)
    goal: float | None = None
    solved_for: str | None = None
    needed: tuple[float | None, ...] = ()

    def row(self, guarantee: str) -> PlanRow:
        """Return the row of one guarantee."""
        return self.rows[[r.guarantee for r in self.rows].index(check_choice("guarantee", guarantee, PLANNED))]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        rows = [asdict(row) for row in self.rows]
        if self.solved_for:
            rows = [{**row, f"needed_{self.solved_for}": value} for row, value in zip(rows, self.needed, strict=True)]
        shown = ("n", "epsilon", "delta", "alpha", "task", "n_features", "automatic", "goal", "solved_for")
        return {**{name: getattr(self, name) for name in shown}, "rows": rows}

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write a page whose sliders begin at this plan; one file that needs no server.

        The page plans the guarantee ``split``.

        Parameters
        ----------
        path : str or path
        """
        from dpscp.report.page import write_atomically
        from dpscp.report.planner import planner_page

        write_atomically(path, planner_page(self).encode())

    def _describe_table(self) -> tuple[str, list[str], list[list[str]], list[str]]:
        """Return headline, titles, cells and notes of the table."""
        conditions = [f"{format_level(1 - self.alpha)} coverage", f"delta {self.delta:g}"]
        persons = self.problem.unit.by_person
        conditions += [f"n {self.n:,}" + (" persons" if persons else "")] if self.n is not None else []
        conditions += [f"epsilon {self.epsilon:g}"] if self.epsilon is not None else []
        if self.solved_for and self.goal is not None:
            head = f"Smallest {self.solved_for} for an overshoot of at most {format_level(self.goal)}; " + ", ".join(
                conditions
            )
        else:
            head = "Plan of the budget: " + ", ".join(conditions)
        lines: list[dict[str, str]] = []
        size = self._measured_size()
        for index, row in enumerate(self.rows):
            star = " *" if row.guarantee == self.automatic else ""
            overshoot = None if row.overshoot is None or not row.useful else max(0.0, row.overshoot)
            lines.append(
                {
                    "guarantee": row.guarantee + star,
                    **({self.solved_for: _format_needed(self.needed[index])} if self.solved_for else {}),
                    "proven": "yes" if row.certified else "no",
                    "train eps": f"{row.train_epsilon:.3g}",
                    "best share": format_rate(row.best_train_share, 0) if row.best_train_share else "-",
                    "held out": format_rate(row.calibration_fraction, 0) if row.calibration_fraction else "-",
                    "inner level": at_least(row.inner_level, 2) if row.inner_level < 1 else "none",
                    "noise": f"{row.count_noise:.3g}" if row.count_noise is not None else "-",
                    "overshoot": "full sets" if overshoot is None else f"+{format_rate(overshoot, 2)}",
                    **({} if size is None else {"set size": size[0] if row.guarantee == SPLIT.name else "-"}),
                    "one release": at_least(row.release_level) if row.release_level is not None and row.useful else "-",
                    "smallest n": f"{row.smallest_n:,}" if row.smallest_n is not None else "-",
                }
            )
        notes = []
        if self.automatic:
            notes.append(f"* chosen by guarantee='auto'. {self._advice()}".rstrip())
        notes.append(
            "overshoot: expected coverage above the target; noise: of each count; smallest n: fewer "
            f"{self.problem.unit.protected}s give full sets; one release: what {self._describe_confidence} releases "
            "cover at least; best share: the share of epsilon for training that train_share='auto' chooses."
        )
        notes += [] if size is None else [size[1]]
        notes += [*self._training_note(), *self._persons_note(), *self._groups_note()]
        return head, list(lines[0]), [list(line.values()) for line in lines], notes

    def __str__(self) -> str:
        head, titles, lines, notes = self._describe_table()
        return "\n".join([head, "", *text_table(titles, lines), "", *notes])

    def _repr_html_(self) -> str:
        head, titles, lines, notes = self._describe_table()
        return html_paragraph(head) + html_table(titles, lines) + "".join(map(html_paragraph, notes))

    def _measured_size(self) -> tuple[str, str] | None:
        """Return the mean set size of the nearest measured fit, and a note.

        None if there is no such fit.
        """
        labels, row = self.problem.task.classes, self.row(SPLIT.name)
        if labels is None or not row.useful or self.n is None or self.epsilon is None or self.problem.n_groups:
            return None
        from dpscp.report.planner import nearest_set_size

        size, classes, name = nearest_set_size(len(labels), self.n, self.epsilon, 1 - self.alpha)
        return (
            f"{size:.2f}",
            f"set size: mean of {classes} labels in the nearest measurement ({name}); yours will differ.",
        )

    def _training_note(self) -> list[str]:
        """Explain why training may have more than the whole epsilon."""
        total = self.problem.budget.epsilon
        if self.solved_for or self.row(SPLIT.name).train_epsilon <= total:
            return []
        unit = self.problem.unit.protected
        return [
            f"train eps above {total:g}: in a split a {unit} is in one part only, and nobody learns in which. So each "
            f"part may cost more, and the whole release costs epsilon {total:g}."
        ]

    def _persons_note(self) -> list[str]:
        """Describe the cap on the rows of a person; Result H."""
        k = self.problem.unit.rows_per_person
        if k is None:
            return []
        text = f"persons: at most {k} rows of each person are used, with ids; privacy and coverage are per person."
        if self.epsilon is not None:
            one = gdp_epsilon(self.delta, gdp_mu(self.epsilon, self.delta) / k)
            text += f" Without ids, {k} rows must be protected together, and one row gets epsilon {one:.3g}."
        return [text]

    def _groups_note(self) -> list[str]:
        """Describe the cost of groups."""
        groups, k = self.problem.n_groups, self.problem.groups_per_record
        if groups is None:
            return []
        size = f"groups: {groups} groups of equal size, each with its own threshold and noise; "
        if k == 1:
            return [size + "each record is in one of them, so groups cost no privacy."]
        return [size + f"each record is in {k} of them, which are charged together: about sqrt({k}) times the noise."]

    @property
    def _describe_confidence(self) -> str:
        confidence = self.problem.release_confidence
        return format_odds(confidence if confidence is not None else RELEASE_CONFIDENCE)

    def _advice(self) -> str:
        row = self.row(self.automatic or PLANNED[0])
        if self.solved_for or row.useful:
            return ""
        return f"It gives full sets only; {_describe_remedies(row, self.problem)}"


def plan(  # noqa: PLR0913 (public: one argument a choice)
    n: int | None = None,
    epsilon: float | None = None,
    *,
    overshoot: float | None = None,
    delta: float = 1e-5,
    alpha: float = 0.1,
    classes: int | Sequence[Any] | None = 2,
    n_features: int = 20,
    y_bounds: tuple[float, float] = (0.0, 1.0),
    train_share: float | str = 0.5,
    calibration_fraction: float | str = "auto",
    release_confidence: float | None = None,
    rows_per_person: int | None = None,
    counted: bool = False,
    population: Population | None = None,
    groups: Groups | int | None = None,
) -> BudgetPlan:
    """Predict what a privacy budget gives, for every guarantee.

    Pass ``n`` and ``epsilon`` for count noise, inner level, expected overshoot and the smallest useful n of each
    guarantee. Or pass one of the two and ``overshoot``: the plan then has the smallest value of the other with which
    each guarantee stays within it. No record is used.

    Parameters
    ----------
    n : int, optional
        The nominal number of records, or of persons with ``rows_per_person``.
    epsilon : float, optional
    overshoot : float, optional
        The largest coverage above the target; solves for the missing one of ``n`` and ``epsilon``.
    delta : float, default 1e-5
    alpha : float, default 0.1
        The wanted miscoverage.
    classes : int, list or None, default 2
        The number or list of labels; None plans a regression.
    n_features : int, default 20
    y_bounds : (low, high), default (0, 1)
        The range of a regression target.
    train_share, calibration_fraction : float or "auto"
        As in the estimators.
    release_confidence : float, optional
        The probability for a single release. The row of ``split`` uses it; other guarantees cannot promise it and are
        shown for comparison.
    rows_per_person : int, optional
        The cap k on the rows of a person with ids; the plan is the same as for n records. A note states the budget of
        one row without ids, when k rows must be protected together.
    counted : bool, default False
        Whether the number of records is the true one, declared public, as in the estimators without ``n_records``.
        No budget is then spent on it, and small held-out parts use the known distribution of the secret split.
    population : Population, optional
        The row of ``split`` then promises coverage for another population; about one in ``bound`` of its held-out
        records is used. No function is called.
    groups : int or Groups, optional
        The number of groups with their own thresholds, or the ``Groups`` that the fit will declare. They are planned
        with equal sizes; the rows are for one group.

    Returns
    -------
    BudgetPlan

    Examples
    --------
    >>> p = plan(n=16_512, epsilon=1.0)
    >>> p.automatic, round(p.row("universal").inner_level, 3), p.row("split").overshoot < 0.02
    ('split', 0.923, True)
    >>> plan(epsilon=1.0, overshoot=0.01).needed[PLANNED.index("split")] < 10_000
    True

    Theory: Results B, C, E, F, G, H, I and K; Which one to use
    """
    solved_for = _find_missing_number(n, epsilon, solving=overshoot is not None)
    labels = range(check_count("classes", classes, minimum=2)) if isinstance(classes, int) else classes
    task: Prediction = Regression(y_bounds) if labels is None else Classification(tuple(labels))
    declared = None if isinstance(groups, int) else read_groups(groups)
    n_groups = groups if declared is None else declared.count
    delta, alpha = check_probability("delta", delta), check_probability("alpha", alpha)
    problem = FitProblem(
        task=task,
        # the missing number gets its values below
        budget=Budget(_EPSILONS[-1] if epsilon is None else check_positive("epsilon", epsilon), delta),
        alphas=(alpha,),
        n_records=SIZES[-1] if n is None else check_count("n", n),
        n_found=counted,
        unit=RECORDS if rows_per_person is None else Unit(rows_per_person, by_person=True),
        release_confidence=release_confidence,
        group_values=None if n_groups is None else tuple(range(check_count("groups", n_groups))),
        groups_per_record=1 if declared is None else declared.most_per_record,
        population=read_population(population),
        n_features=check_count("n_features", n_features),
        train_share=train_share,
        calibration_fraction=calibration_fraction,
    )
    needed, here = _solve(problem, solved_for, overshoot)
    return BudgetPlan(
        n=None if n is None else problem.n_records,
        epsilon=None if epsilon is None else problem.budget.epsilon,
        delta=delta,
        alpha=alpha,
        task=task.name,
        n_features=problem.n_features,
        automatic=None if solved_for else choose_guarantee(problem).name,
        rows=tuple(plan_row(g, p) for g, p in zip(PLANNED, here, strict=True)),
        problem=problem,
        goal=overshoot,
        solved_for=solved_for,
        needed=needed,
    )


def _solve(
    problem: FitProblem, solved_for: str | None, overshoot: float | None
) -> tuple[tuple[float | None, ...], list[FitProblem]]:
    """Return the needed value of each guarantee, and the numbers of its row."""
    if solved_for is None:
        return (), [problem] * len(PLANNED)
    goal = check_probability("overshoot", overshoot)
    needed = tuple(_find_needed(g, problem, solved_for, goal) for g in PLANNED)
    grid: Sequence[float] = SIZES if solved_for == "n" else _EPSILONS
    # an impossible goal is shown at the end of the searched range
    return needed, [with_value(problem, solved_for, grid[-1] if value is None else value) for value in needed]


def _find_missing_number(n: int | None, epsilon: float | None, *, solving: bool) -> str | None:
    """Return the name of the missing number, "n" or "epsilon", or None."""
    if solving:
        if (n is None) == (epsilon is None):
            raise ValueError("with overshoot, pass exactly one of n and epsilon; the plan solves for the other")
        return "n" if n is None else "epsilon"
    if n is None or epsilon is None:
        raise ValueError("plan needs n and epsilon; pass both, or one of them and overshoot to solve for the other")
    return None


def _format_needed(value: float | None) -> str:
    if value is None:
        return "impossible"
    return f"{value:,.4g}" if value < 100 else f"{value:,.0f}"


def _describe_remedies(row: PlanRow, problem: FitProblem) -> str:
    """Describe remedies that give this guarantee smaller sets; each was tried."""
    ways = [] if row.smallest_n is None else [f"{row.smallest_n:,} {problem.unit.protected}s"]
    tried = (("epsilon", problem.budget.epsilon, _TRIED_EPSILONS), ("alpha", problem.alphas[0], _TRIED_ALPHAS))
    for name, now, values in tried:
        larger = (value for value in values if value > now)
        useful = (v for v in larger if plan_row(row.guarantee, with_value(problem, name, v), bare=True).useful)
        found = next(useful, None)
        ways += [] if found is None else [f"{name} {found:g}"]
    return f"smaller sets need {', or '.join(ways)}." if ways else "use another guarantee."


def _find_needed(guarantee: str, problem: FitProblem, vary: str, goal: float) -> float | None:
    """Find the smallest value of ``vary`` with an overshoot of at most ``goal``."""

    def reaches(value: float) -> bool:
        row = plan_row(guarantee, with_value(problem, vary, value), bare=True)
        return row.useful and row.overshoot is not None and row.overshoot <= goal

    return find_first(reaches, SIZES if vary == "n" else _EPSILONS, whole=vary == "n")


# ---- one guarantee at one n and epsilon


def plan_row(guarantee: str, problem: FitProblem, *, bare: bool = False) -> PlanRow:
    """Plan one guarantee at one n and epsilon.

    ``bare`` leaves out the smallest n, for searches.
    """
    plan, parts = _outline(problem, guarantee)
    chosen = plan.guarantee
    return PlanRow(
        guarantee=guarantee,
        certified=chosen.certified,
        train_share=parts.share,
        best_train_share=None if chosen.held_out else best_train_share(problem, chosen),
        train_epsilon=parts.train_epsilon,
        calibration_fraction=parts.fraction,
        inner_level=1 - plan.inner[0] if 0 in plan.level_indices else 1.0,
        value_buffer=plan.shift,
        smallest_n=None if bare else _find_smallest_n(guarantee, problem),
        **_plan_search_numbers(plan, parts.search_mu, bare=bare),
    )


def _outline(problem: FitProblem, guarantee: str) -> tuple[Plan, Parts]:
    """Return a guarantee's plan without noise, and its shares of records and budget."""
    chosen = guarantee_of(guarantee)
    problem = replace(problem, guarantee=chosen) if chosen.held_out else without_held_out(problem, chosen)
    parts, stability, spent = divide(problem, chosen), None, Ledger()
    if parts.fraction is None:
        spent = spent.add("training", gaussian_event(1 / gdp_mu(parts.train_epsilon, problem.budget.delta)))
    if chosen.needs_stability:
        mechanism = plan_training(replace(problem, unit=RECORDS)).mechanism
        assert mechanism is not None
        stability = mechanism.stability(problem.n_features, problem.n_records, problem.task.classes)
    return Plan.outline(problem, spent, part=parts.fraction or 1.0, stability=stability, mu=parts.search_mu), parts


def without_held_out(problem: FitProblem, guarantee: Guarantee) -> FitProblem:
    """Return the problem without options that need held-out records.

    It shows another guarantee for comparison.
    """
    return replace(problem, guarantee=guarantee, release_confidence=None, population=None)


def with_value(problem: FitProblem, name: str, value: float) -> FitProblem:
    """Return the problem with another ``"n"``, ``"epsilon"`` or ``"alpha"``."""
    if name == "n":
        return replace(problem, n_records=round(value))
    if name == "alpha":
        return replace(problem, alphas=(float(value),))
    return replace(problem, budget=Budget(float(value), problem.budget.delta))


def _plan_search_numbers(plan: Plan, mu: float, *, bare: bool) -> dict[str, Any]:
    """Plan the threshold search: steps, noise, offset, overshoot, single release."""
    if 0 not in plan.level_indices:
        return {"steps": None, "count_noise": None, "rank_offset": None, "overshoot": None, "useful": False}
    aim, covered, target = plan.planned_aim(0, mu / SEARCH_MARGIN), None, 1 - plan.problem.alphas[0]
    confidence, searched = plan.problem.release_confidence, 1 - plan.problem.searched_alphas[0]
    last = float(aim.whole_offset(plan.guarantee.rank_buffer, None, confidence, searched))
    if confidence is not None:
        covered = target
    elif plan.guarantee.held_out and not bare:
        covered = plan.problem.covered_level(aim.level_of_one_release(RELEASE_CONFIDENCE, last))
    level, offset, n_scores = float(aim.level), last + aim.mean_rise, plan.n_nominal
    task = plan.problem.task
    reach = plan.shift / (1.0 if task.y_bounds is None else task.size_limit)
    expected = plan.problem.covered_level(min(1.0, 1 - level + offset / (n_scores + 1) + reach))
    return {
        "steps": aim.steps,
        "count_noise": aim.count_noise,
        "rank_offset": offset,
        "overshoot": expected - target,
        "useful": (1 - level) * (n_scores + 1) + offset <= n_scores and reach < 1,
        "release_level": covered,
    }


def _find_smallest_n(guarantee: str, problem: FitProblem) -> int | None:
    """Find the smallest n with a finite threshold at this budget; None if none."""
    found = find_first(
        lambda n: plan_row(guarantee, with_value(problem, "n", n), bare=True).useful, SIZES[::3], whole=True
    )
    return None if found is None else int(found)


def find_first(holds: Callable[[float], bool], grid: Sequence[float], *, whole: bool) -> float | None:
    """Find the smallest value for which ``holds``, between two grid points."""
    place = next((k for k, x in enumerate(grid) if holds(x)), None)
    if place is None:
        return None
    high = grid[place]
    low = grid[place - 1] if place else (0 if whole else high)
    while high - low > (1 if whole else 1e-4 * high):
        middle = (low + high) // 2 if whole else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
