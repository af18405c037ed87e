"""What a budget buys, before any record is touched: noise, inner levels, overshoot, and how many records are needed.

Everything here is a function of public numbers. Both stages are planned as Gaussian releases that spend their whole
share, so that a plan needs no accountant: the noise of a fit differs from its plan by less than 0.1 %, and by a little
more where training is sampled (more than 20,000 records).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpscp._base.checks import check_choice, check_count, check_positive, check_probability
from dpscp._base.format import asked, at_least, html_paragraph, html_table, observed, odds, text_table
from dpscp.data.populations import check_ratio_bound
from dpscp.guarantees import GUARANTEES, Guarantee, Stability, guarantee_of
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.guarantees.registry import AUTO
from dpscp.pipeline.plan import Request, chosen_guarantee, plan_fit
from dpscp.pipeline.search_plan import CalibrationRule, make_rule
from dpscp.pipeline.tasks import Classification, Regression, Task
from dpscp.privacy import Budget, Ledger, gaussian_event, gdp_epsilon, gdp_mu, secret_shares
from dpscp.training.mechanism import shift_bound
from dpscp.training.recipe import calibration_fraction as recipe_fraction
from dpscp.training.recipe import train_share as recipe_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Plan", "PlanRow", "plan"]

PLANNED = tuple(GUARANTEES)
# Searched for "what epsilon" and "what n": outside these a promise is either free or out of reach.
_EPSILONS = tuple(0.01 * 1.1**k for k in range(80))
_SIZES = tuple(round(20 * 1.25**k) for k in range(90))
# What a plan of full sets tries, to say what would help.
_TRIED_EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0)
_TRIED_ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
# The exact integer noise of a fit exceeds the Gaussian formula by less than this.
_MARGIN = 1.0005


@dataclass(frozen=True)
class PlanRow:
    """What one guarantee would do with the budget.

    ``overshoot`` is the coverage beyond the target that the sets are expected to have: the price of the promise (for
    ``stability`` with scores spread evenly over their range). ``smallest_n``: with fewer records the promise is kept
    only by full sets. ``release_level``: what a single release covers (19 of 20, or with the asked confidence), None
    where no bound is known. ``best_train_share`` is what ``train_share="auto"`` takes. With ``useful`` false, numbers
    of the search are missing or of no use.
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
class Plan:
    """A plan for every guarantee; ``str()`` is a table, ``figure()`` a picture, ``to_dict()`` plain JSON values.

    ``automatic`` is what ``guarantee="auto"`` takes. With ``goal`` (the wanted overshoot) the numbers are those at
    ``needed``, the smallest epsilon or n with which each guarantee reaches it (None: out of reach).
    """

    n: int | None
    epsilon: float | None
    delta: float
    alpha: float
    task: str
    n_features: int
    automatic: str | None
    rows: tuple[PlanRow, ...]
    goal: float | None = None
    solved_for: str | None = None
    needed: tuple[float | None, ...] = ()
    _public: "_Public | None" = field(default=None, repr=False, compare=False)

    def row(self, guarantee: str) -> PlanRow:
        """The row of one guarantee."""
        return self.rows[[r.guarantee for r in self.rows].index(check_choice("guarantee", guarantee, PLANNED))]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [asdict(row) for row in self.rows]
        if self.solved_for:
            rows = [{**row, f"needed_{self.solved_for}": value} for row, value in zip(rows, self.needed, strict=True)]
        shown = ("n", "epsilon", "delta", "alpha", "task", "n_features", "automatic", "goal", "solved_for")
        return {**{name: getattr(self, name) for name in shown}, "rows": rows}

    def figure(self) -> "Figure":
        """Overshoot of every guarantee against epsilon and against n; needs the extra ``dpscp[report]``."""
        from dpscp.report.figures import plan_figure

        return plan_figure(self)

    def curves(self, vary: str) -> dict[str, tuple[list[float], list[float]]]:
        """For each guarantee the values of ``vary`` ("epsilon" or "n") and the overshoot there, where it is useful."""
        check_choice("vary", vary, ("epsilon", "n"))
        assert self._public is not None
        grid: Sequence[float] = _EPSILONS[::3] if vary == "epsilon" else _SIZES[6:48:2]
        if getattr(self._public, "n" if vary == "epsilon" else "epsilon") is None:
            return {}
        found = {}
        for row in self.rows:
            points = [(x, _row(row.guarantee, self._public.with_(vary, x), bare=True)) for x in grid]
            kept = [(x, r.overshoot) for x, r in points if r.useful and r.overshoot is not None]
            found[row.guarantee] = ([x for x, _ in kept], [o for _, o in kept])
        return found

    def what_if(self, guarantee: str, epsilons: Sequence[float], levels: Sequence[float]) -> list[list[PlanRow]]:
        """One guarantee at other budgets (a row each) and other levels (a column each), all else as planned."""
        if self._public is None or self.n is None:
            raise ValueError("what_if needs a plan with n, as plan(n, epsilon) makes it")
        others = [[self._public.with_("epsilon", e).with_("alpha", round(1 - v, 12)) for v in levels] for e in epsilons]
        return [[_row(guarantee, public, bare=True) for public in line] for line in others]

    def _told(self) -> tuple[str, list[str], list[list[str]], list[str]]:
        """Headline, titles and cells of the table, and notes."""
        given = [f"{asked(1 - self.alpha)} coverage", f"delta {self.delta:g}"]
        persons = self._public is not None and self._public.rows_per_person is not None
        given += [f"n {self.n:,}" + (" persons" if persons else "")] if self.n is not None else []
        given += [f"epsilon {self.epsilon:g}"] if self.epsilon is not None else []
        if self.solved_for and self.goal is not None:
            head = f"Smallest {self.solved_for} for an overshoot of at most {asked(self.goal)}; " + ", ".join(given)
        else:
            head = "What the budget buys: " + ", ".join(given)
        lines: list[dict[str, str]] = []
        for index, row in enumerate(self.rows):
            star = " *" if row.guarantee == self.automatic else ""
            overshoot = None if row.overshoot is None or not row.useful else max(0.0, row.overshoot)
            lines.append(
                {
                    "guarantee": row.guarantee + star,
                    **({self.solved_for: _needed_text(self.needed[index])} if self.solved_for else {}),
                    "proven": "yes" if row.certified else "no",
                    "train eps": f"{row.train_epsilon:.3g}",
                    "best share": observed(row.best_train_share, 0) if row.best_train_share else "-",
                    "held out": observed(row.calibration_fraction, 0) if row.calibration_fraction else "-",
                    "inner level": at_least(row.inner_level, 2) if row.inner_level < 1 else "none",
                    "noise": f"{row.count_noise:.3g}" if row.count_noise is not None else "-",
                    "overshoot": "full sets" if overshoot is None else f"+{observed(overshoot, 2)}",
                    "one release": at_least(row.release_level) if row.release_level is not None and row.useful else "-",
                    "smallest n": f"{row.smallest_n:,}" if row.smallest_n is not None else "-",
                }
            )
        notes = []
        if self.automatic:
            notes.append(f"* what guarantee='auto' takes. {self._advice()}".rstrip())
        notes.append(
            "overshoot: expected coverage beyond the target; noise: of each count; smallest n: fewer give full sets; "
            f"one release: what {self._such} releases cover at least; "
            "best share: of epsilon, for training (train_share='auto')."
        )
        notes += self._persons_note()
        return head, list(lines[0]), [list(line.values()) for line in lines], notes

    def __str__(self) -> str:
        head, titles, lines, notes = self._told()
        return "\n".join([head, "", *text_table(titles, lines), "", *notes])

    def _repr_html_(self) -> str:
        head, titles, lines, notes = self._told()
        return html_paragraph(head) + html_table(titles, lines) + "".join(map(html_paragraph, notes))

    def _persons_note(self) -> list[str]:
        """What the cap on the rows of a person means; Result H."""
        k = None if self._public is None else self._public.rows_per_person
        if k is None:
            return []
        text = f"persons: at most {k} rows of each are used, by ids; privacy and coverage are per person."
        if self.epsilon is not None:
            one = gdp_epsilon(self.delta, gdp_mu(self.epsilon, self.delta) / k)
            text += f" Without ids {k} rows at once must be protected, and one row gets epsilon {one:.3g}."
        return [text]

    @property
    def _such(self) -> str:
        confidence = self._public.release_confidence if self._public is not None else None
        return odds(confidence if confidence is not None else RELEASE_CONFIDENCE)

    def _advice(self) -> str:
        row = self.row(self.automatic or PLANNED[0])
        if self.solved_for or row.useful:
            return ""
        return f"It is kept by full sets only; {_what_helps(row, self._public)}" if self._public else ""


@dataclass(frozen=True)
class _Public:
    """The public numbers of a plan; n or epsilon may be what is asked for."""

    n: int | None
    epsilon: float | None
    delta: float
    alpha: float
    task: Task
    n_features: int
    train_share: float | str
    calibration_fraction: float | str
    release_confidence: float | None = None
    rows_per_person: int | None = None
    counted: bool = False
    ratio_bound: float | None = None

    def with_(self, name: str, value: float) -> "_Public":
        changed: dict[str, Any] = {name: round(value) if name == "n" else float(value)}
        return replace(self, **changed)

    def request(self, guarantee: str) -> Request:
        assert self.n is not None
        assert self.epsilon is not None
        return Request(
            task=self.task,
            estimator=None,
            budget=Budget(self.epsilon, self.delta),
            alphas=(self.alpha,),
            guarantee=guarantee,
            n_records=self.n,
            n_features=self.n_features,
            train_share=self.train_share,
            calibration_fraction=self.calibration_fraction,
            # for the choice of 'auto'; other guarantees are shown for comparison, without it
            release_confidence=self.release_confidence if guarantee == AUTO else None,
            ratio_bound=self.ratio_bound if guarantee == AUTO else None,
        )


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
    ratio_bound: float | None = None,
) -> Plan:
    """What a privacy budget buys, for every guarantee, from public numbers only.

    Give ``n`` (the nominal number of records) and ``epsilon`` for a table of count noise, inner level, expected
    overshoot and the smallest n of a useful promise. Or leave one of the two out and give ``overshoot``: the smallest
    value of the missing one with which each guarantee stays within it. ``classes`` is the number or list of labels;
    None plans a regression with targets in ``y_bounds``. The other arguments are the estimators'.
    With ``rows_per_person`` (the cap k) n counts persons, whose rows are known by ids: everything is as for so many
    records; a note says what the budget is worth without ids, where k rows at once must be protected.
    ``counted`` plans for a number of records that is found and declared public, as the estimators do without
    ``n_records``: nothing is spent on it, and small held-out parts go by the law of their coins.
    With ``release_confidence`` the row of ``split`` aims at it; the others cannot promise it and are shown to compare.
    With ``ratio_bound`` (W) the row of ``split`` promises coverage for another population: of its held-out records
    about one in W finds the threshold.

    >>> p = plan(n=16_512, epsilon=1.0)
    >>> p.automatic, round(p.row("universal").inner_level, 3), p.row("split").overshoot < 0.02
    ('split', 0.923, True)
    >>> plan(epsilon=1.0, overshoot=0.01).needed[PLANNED.index("split")] < 10_000
    True

    Theory: Results B, C, E, F, G, H, I and K; section 6
    """
    delta, alpha = check_probability("delta", delta), check_probability("alpha", alpha)
    labels = _labels(classes)
    public = _Public(
        n=None if n is None else check_count("n", n),
        epsilon=None if epsilon is None else check_positive("epsilon", epsilon),
        delta=delta,
        alpha=alpha,
        task=Regression(y_bounds) if labels is None else Classification(labels),
        n_features=check_count("n_features", n_features),
        train_share=train_share,
        calibration_fraction=calibration_fraction,
        release_confidence=None
        if release_confidence is None
        else check_probability("release_confidence", release_confidence),
        rows_per_person=None if rows_per_person is None else check_count("rows_per_person", rows_per_person),
        counted=counted,
        ratio_bound=None if ratio_bound is None else check_ratio_bound(ratio_bound),
    )
    needed: tuple[float | None, ...] = ()
    solved_for = _missing(n, epsilon, solving=overshoot is not None)
    here = [public] * len(PLANNED)
    if solved_for is not None:
        goal = check_probability("overshoot", overshoot)
        needed = tuple(_needed(g, public, solved_for, goal) for g in PLANNED)
        grid: Sequence[float] = _SIZES if solved_for == "n" else _EPSILONS
        # what is out of reach is shown at the end of the searched range
        here = [public.with_(solved_for, grid[-1] if value is None else value) for value in needed]
    rows = tuple(_row(g, p) for g, p in zip(PLANNED, here, strict=True))
    return Plan(
        n=public.n,
        epsilon=public.epsilon,
        delta=delta,
        alpha=alpha,
        task=public.task.name,
        n_features=public.n_features,
        automatic=None if solved_for else chosen_guarantee(public.request(AUTO)).name,
        rows=rows,
        goal=overshoot,
        solved_for=solved_for,
        needed=needed,
        _public=public,
    )


def _missing(n: int | None, epsilon: float | None, *, solving: bool) -> str | None:
    """What a plan solves for: the one of n and epsilon that was left out; None where both are given."""
    if solving:
        if (n is None) == (epsilon is None):
            raise ValueError("with overshoot= give exactly one of n and epsilon: the other one is what is solved for")
        return "n" if n is None else "epsilon"
    if n is None or epsilon is None:
        raise ValueError("plan needs n and epsilon; or one of them and overshoot=, to solve for the other")
    return None


def _needed_text(value: float | None) -> str:
    if value is None:
        return "out of reach"
    return f"{value:,.4g}" if value < 100 else f"{value:,.0f}"


def _labels(classes: int | Sequence[Any] | None) -> tuple[Any, ...] | None:
    """The labels of a plan: as many as were asked for, or the caller's; None for regression."""
    if isinstance(classes, int):
        return tuple(range(check_count("classes", classes, minimum=2)))
    return None if classes is None else tuple(classes)


def _row(guarantee: str, public: _Public, *, bare: bool = False) -> PlanRow:
    """One guarantee at one n and epsilon. ``bare``: without the smallest n (for searches)."""
    n, epsilon, delta = public.n, public.epsilon, public.delta
    assert n is not None
    assert epsilon is not None
    chosen = guarantee_of(guarantee)
    mu, share, best, fraction = gdp_mu(epsilon, delta), None, None, None
    stability = None
    if chosen.held_out:
        given = public.calibration_fraction
        fraction = recipe_fraction(n, epsilon, delta) if given == "auto" else check_probability("fraction", given)
        shared, spent = secret_shares(epsilon, delta, fraction, n), Ledger()
        train_epsilon, mu_left = shared.train_epsilon, shared.held_out_mu
    else:
        best = gdp_epsilon(delta, math.sqrt(recipe_share(guarantee, epsilon, delta, n)) * mu) / epsilon
        share = best if public.train_share == "auto" else check_probability("train_share", public.train_share)
        train_epsilon = share * epsilon
        mu_train = gdp_mu(train_epsilon, delta)
        mu_left = math.sqrt(mu**2 - mu_train**2)
        spent = Ledger().add("training", gaussian_event(1 / mu_train))
        if chosen.needs_stability:
            stability = _stability(public, chosen)
    promised = public.release_confidence if chosen.held_out else None
    rule = make_rule(
        guarantee,
        (public.alpha,),
        spent,
        n,
        part=fraction or 1.0,
        stability=stability,
        counted=public.counted,
        release_confidence=promised,
    )
    rule = rule.for_population(public.ratio_bound if chosen.held_out else None).with_sharper_size(mu_left)
    smallest = None if bare else _smallest_useful(guarantee, public)
    return PlanRow(
        guarantee=guarantee,
        certified=chosen.certified,
        train_share=share,
        best_train_share=best,
        train_epsilon=train_epsilon,
        calibration_fraction=fraction,
        inner_level=1 - rule.inner[0] if rule.possible[0] else 1.0,
        value_buffer=rule.shift,
        smallest_n=smallest,
        **_search(rule, public, mu_left, bare=bare),
    )


def _search(rule: CalibrationRule, public: _Public, mu_left: float, *, bare: bool) -> dict[str, Any]:
    """The numbers of the threshold search: steps, noise, offset, overshoot, what a single release covers."""
    if not rule.possible[0]:
        return {"steps": None, "count_noise": None, "rank_offset": None, "overshoot": None, "useful": False}
    aim, covered = rule.planned_aim(0, mu_left / _MARGIN), None
    last = float(aim.whole_offset(rule.rank_buffer, None, rule.release_confidence, 1 - public.alpha))
    if rule.release_confidence is not None:
        covered = 1 - public.alpha
    elif rule.guarantee.held_out and not bare:
        covered = aim.level_of_one_release(RELEASE_CONFIDENCE, last)
    level, offset = float(aim.level), last + aim.mean_rise
    n_scores = rule.n_nominal
    low, high = public.task.y_bounds or (0.0, 1.0)
    reach = rule.shift / (high - low)
    return {
        "steps": aim.steps,
        "count_noise": aim.count_noise,
        "rank_offset": offset,
        "overshoot": min(1.0, 1 - level + offset / (n_scores + 1) + reach) - (1 - public.alpha),
        "useful": (1 - level) * (n_scores + 1) + offset <= n_scores and reach < 1,
        "release_level": covered,
    }


def _stability(public: _Public, guarantee: Guarantee) -> Stability | None:
    """The bound of the recipe's stable training; its mechanism is linear and full batch, so this is quick."""
    assert public.n is not None
    mechanism = plan_fit(public.request(guarantee.name)).mechanism
    assert mechanism is not None
    return shift_bound(mechanism, public.n_features, public.n, public.task.classes)


def _smallest_useful(guarantee: str, public: _Public) -> int | None:
    """The smallest n at this budget with a finite threshold expected; None if there is none."""
    found = _first(lambda n: _row(guarantee, public.with_("n", n), bare=True).useful, _SIZES[::3], whole=True)
    return None if found is None else int(found)


def _what_helps(row: PlanRow, public: _Public) -> str:
    """What would give this guarantee smaller sets. Each way that is named was tried: a larger budget may not help."""
    ways = [] if row.smallest_n is None else [f"{row.smallest_n:,} records"]
    for name, now, values in (("epsilon", public.epsilon, _TRIED_EPSILONS), ("alpha", public.alpha, _TRIED_ALPHAS)):
        larger = [public.with_(name, value) for value in values if value > (now or 0.0)]
        found = next((tried for tried in larger if _row(row.guarantee, tried, bare=True).useful), None)
        ways += [] if found is None else [f"{name} {getattr(found, name):g}"]
    return f"smaller ones would come with {', or with '.join(ways)}." if ways else "another guarantee is needed."


def _needed(guarantee: str, public: _Public, vary: str, goal: float) -> float | None:
    """The smallest value of ``vary`` with an overshoot of at most ``goal``; None if there is none in reach."""

    def reaches(value: float) -> bool:
        row = _row(guarantee, public.with_(vary, value), bare=True)
        return row.useful and row.overshoot is not None and row.overshoot <= goal

    return _first(reaches, _SIZES if vary == "n" else _EPSILONS, whole=vary == "n")


def _first(holds: Callable[[float], bool], grid: Sequence[float], *, whole: bool) -> float | None:
    """The smallest value between the first grid point where ``holds`` and the one before it; None if there is none."""
    place = next((k for k, x in enumerate(grid) if holds(x)), None)
    if place is None:
        return None
    high = grid[place]
    low = grid[place - 1] if place else (0 if whole else high)
    while high - low > (1 if whole else 1e-4 * high):
        middle = (low + high) // 2 if whole else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
