"""The games: the search alone, training alone, the whole pipeline; torch modules have a file of their own.

The code under test is the product's own, with whatever bug it has: white-box games hand it an observer, which hears
the noisy counts and noisy gradients while it runs.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import guarantee_of
from dpscp.pipeline.plan import Request
from dpscp.pipeline.release import Observer, Release, release
from dpscp.pipeline.tasks import Classification
from dpscp.privacy import Budget
from dpscp.privacy.events import DiscreteGaussianDpEvent, dpsgd_event, possible_histories
from dpscp.quantile import PrivateQuantile, ReleasedSize, private_quantile, rank_sensitivity
from dpscp.quantile.counts import as_counter
from dpscp.quantile.observer import SearchObserver, SearchView
from dpscp.training import DPSGD, Trained
from dpscp.training.engine.loop import StepObserver, StepView
from dpscp.training.mechanism import paid_event

Array = NDArray[np.float64]
KNOWLEDGE = ("white-box", "black-box")
UNITS = ("release", "run")


class Game(Protocol):
    """A mechanism, two neighbouring data sets, and an attacker."""

    @property
    def name(self) -> str:
        """What is attacked."""

    @property
    def knowledge(self) -> str:
        """Either "white-box" or "black-box"."""

    @property
    def claim(self) -> DpEvent:
        """What one game is claimed to cost."""

    def play(self, with_record: bool, runs: int) -> Array:
        """At least ``runs`` independent games on the data set with or without the record: the attacker's statistics."""


def _check_view(knowledge: str, unit: str) -> None:
    check_choice("knowledge", knowledge, KNOWLEDGE)
    check_choice("unit", unit, UNITS)
    if unit == "release" and knowledge == "black-box":
        raise ValueError("unit='release' is a white-box game: a black-box attacker sees whole runs only")


@dataclass(frozen=True)
class SearchGame:
    """The private threshold on its own; the record's score is the end of the range, so that no count holds it.

    ``unit="release"``: each noisy count is a game (many games a search, the sharpest test of noise and sensitivity);
    ``"run"``: the whole search is one (sees what goes wrong between counts). The white-box attacker computes the exact
    log-likelihood ratio of the noisy counts, from both data sets' exact counts as the real code has them.
    """

    knowledge: str = "white-box"
    unit: str = "release"
    n: int = 60
    alpha: float = 0.1
    steps: int = 0
    count_noise: float = 0.0
    rank: str = "centred"
    correction: str = "none"
    score: float = 1.0
    random_state: int | None = None

    def __post_init__(self) -> None:
        _check_view(self.knowledge, self.unit)
        # many counts in one search cost hardly more than few; the noise makes each game 1-GDP in the continuous limit
        steps = self.steps or (600 if self.unit == "release" else 8)
        object.__setattr__(self, "steps", check_count("steps", steps))
        games = 1 if self.unit == "release" else steps
        reach = float(rank_sensitivity(self.rank, self.alpha))
        object.__setattr__(self, "count_noise", self.count_noise or reach * math.sqrt(games))

    @property
    def name(self) -> str:
        return f"search ({'one count' if self.unit == 'release' else f'{self.steps} counts'}, rank {self.rank!r})"

    @property
    def claim(self) -> DpEvent:
        """One count, or all of them."""
        event = self._search(self._scores(False)).event
        return next(iter(possible_histories(event)[0])) if self.unit == "release" else event

    def play(self, with_record: bool, runs: int) -> Array:
        if self.knowledge == "black-box":
            thresholds = [self._search(self._scores(with_record)).threshold for _ in range(runs)]
            return np.array(thresholds)
        ratio = _SearchRatio(self._reference(False), self._reference(True), self._sigma(), self._exact_count)
        played: list[Array] = []
        while sum(map(len, played)) < runs if self.unit == "release" else len(played) < runs:
            self._search(self._scores(with_record), lambda view: played.append(ratio(view)))
        return np.concatenate(played) if self.unit == "release" else np.array([p.sum() for p in played])

    def _scores(self, with_record: bool) -> Array:
        scores = np.linspace(0.005, 0.995, self.n)
        return np.append(scores, self.score) if with_record else scores

    def _search(self, scores: Array, observer: SearchObserver | None = None) -> PrivateQuantile:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            return private_quantile(
                scores,
                alpha=self.alpha,
                score_range=(0.0, 1.0),
                count_noise=self.count_noise,
                steps=self.steps,
                correction=self.correction,
                rank=self.rank,
                n_records=self.n,
                random_state=self.random_state,
                observer=observer,
            )

    def _reference(self, with_record: bool) -> SearchView:
        seen: list[SearchView] = []
        self._search(self._scores(with_record), seen.append)
        return seen[0]

    def _sigma(self) -> float:
        event = next(iter(possible_histories(self._search(self._scores(False)).event)[0]))
        assert isinstance(event, DiscreteGaussianDpEvent)
        return float(event.sigma)

    def _exact_count(self, with_record: bool, bracket: tuple[float, float]) -> int:
        return int(as_counter(self._scores(with_record), (0.0, 1.0), 1).count(*bracket, 1))


class _SearchRatio:
    """log P(noisy counts | with) - log P(noisy counts | without), count by count."""

    def __init__(
        self,
        without: SearchView,
        with_record: SearchView,
        sigma: float,
        exact_count: Callable[[bool, tuple[float, float]], int],
    ) -> None:
        self._references = without, with_record
        self._sigma = sigma
        self._count = lru_cache(maxsize=None)(exact_count)

    def __call__(self, view: SearchView) -> Array:
        told = _told_by_constants(view, *self._references)
        if told:
            return np.full(max(1, len(view.counts)), told)
        exact = [
            np.array([r.scale * self._count(bool(world), c.bracket) - r.base - r.bar for c in view.counts], dtype=float)
            for world, r in enumerate(self._references)
        ]
        margins = _margins(view)
        ratio: Array = ((margins - exact[0]) ** 2 - (margins - exact[1]) ** 2) / (2 * self._sigma**2)
        return ratio


def _margins(view: SearchView) -> Array:
    """What decided each question of a search."""
    return np.array([c.margin for c in view.counts], dtype=float)


def _told_by_constants(view: SearchView, without: SearchView, with_record: SearchView) -> float:
    """A constant that differs between neighbours tells them apart for certain; the true size enters ``base`` only."""
    seen, one, other = ((v.score_range, v.scale, len(v.counts)) for v in (view, without, with_record))
    if one == other:
        return 0.0
    return math.inf if seen == other else -math.inf if seen == one else 0.0


@dataclass(frozen=True)
class TrainingGame:
    """DP-SGD on its own: ``n`` records that add nothing to any gradient, and one whose clipped gradient is as long as
    it can be: the neighbours that the accounting has in mind.

    With ``sampling_rate < 1`` the white-box attacker sees the noisy sums and not the batches, and computes the exact
    ratio of the Gaussian mixture. ``unit`` as in ``SearchGame``, a release being one step. The mechanism's
    ``noise_multiplier`` is part of the claim.
    """

    mechanism: DPSGD = field(default_factory=lambda: audited_mechanism(1.0, 400))
    knowledge: str = "white-box"
    unit: str = "release"
    n: int = 15
    random_state: int | None = None

    def __post_init__(self) -> None:
        _check_view(self.knowledge, self.unit)
        if self.mechanism.fit_intercept or self.mechanism.task != "classification":
            raise ValueError("mechanism must be a classifier with fit_intercept=False: rows of zeros then add nothing")

    @property
    def name(self) -> str:
        m = self.mechanism
        length = "one step" if self.unit == "release" else f"{m.steps} steps"
        return f"training ({length}, noise {m.noise_multiplier:g}, sampling rate {m.sampling_rate:g})"

    @property
    def claim(self) -> DpEvent:
        """One step, or all of them."""
        if self.unit == "run":
            return paid_event(self.mechanism)
        return dpsgd_event(self.mechanism.noise_multiplier or 0.0, self.mechanism.sampling_rate, 1)

    def records(self, with_record: bool) -> tuple[Array, NDArray[np.int64]]:
        """The rows and labels of one world."""
        rows = np.zeros((self.n + 1, 2))
        rows[-1] = 100.0
        labels = np.zeros(self.n + 1, dtype=np.int64)
        return (rows, labels) if with_record else (rows[:-1], labels[:-1])

    def owners(self, with_record: bool) -> Persons | None:  # noqa: ARG002 (games about persons need it)
        """Whose rows these are; None: each row is its own person."""
        return None

    def play(self, with_record: bool, runs: int) -> Array:
        if self.knowledge == "black-box":
            return np.array([self._train(with_record).model.arrays()["parameters"] for _ in range(runs)])
        ratio = TrainingRatio(self.mechanism, *self.records(True), self.n, self.owners(True))
        ratio.learn_constants(self._steps)
        played: list[float] = []
        ends: list[int] = [0]
        while len(played) < runs if self.unit == "release" else len(ends) <= runs:
            self._train(with_record, lambda view: played.append(ratio(view)))
            ends.append(len(played))
        steps = np.array(played)
        return steps if self.unit == "release" else np.add.reduceat(steps, ends[:-1])

    def _steps(self, with_record: bool) -> list[StepView]:
        seen: list[StepView] = []
        self._train(with_record, seen.append)
        return seen

    def _train(self, with_record: bool, observer: StepObserver | None = None) -> Trained:
        X, y = self.records(with_record)
        return self.mechanism.train(
            X, y, random_state=self.random_state, n_records=self.n, persons=self.owners(with_record), observer=observer
        )


def audited_mechanism(noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> DPSGD:
    """A linear head without intercept: rows of zeros add nothing, and every gradient of a long row is clipped."""
    return DPSGD(
        classes=(0, 1),
        steps=steps,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        learning_rate=1e-3,
        fit_intercept=False,
        dtype="float64",
    )


class TrainingRatio:
    """log P(noisy sum | with) - log P(noisy sum | without) of one step, where only the last person adds to the sum."""

    def __init__(
        self, mechanism: DPSGD, X: Array, y: NDArray[Any], n_records: int, owners: Persons | None = None
    ) -> None:
        setup = mechanism.prepare(X, y, n_records=n_records, persons=owners)
        self._shadow = setup.descent(setup.records)
        self._last = np.array([setup.records.owners.count - 1])
        self._rate = mechanism.sampling_rate
        self._noise = (mechanism.noise_multiplier or 0.0) * mechanism.clip_norm
        self._constants: tuple[tuple[Any, ...], ...] = ((), ())

    def learn_constants(self, steps_of: Callable[[bool], list[StepView]]) -> None:
        """Run each world once and keep the constants of every step."""
        learned = []
        for world in (False, True):
            seen = steps_of(world)
            learned.append((len(seen), *dict.fromkeys(view.constants for view in seen)))
        self._constants = (learned[0], learned[1])

    def __call__(self, view: StepView) -> float:
        """The ratio of this step."""
        without, with_record = self._constants
        if without != with_record:
            known = [view.constants in world for world in (without, with_record)]
            return math.inf if known == [False, True] else -math.inf if known == [True, False] else 0.0
        # the real clipping code says what the record would add at these parameters
        self._shadow.go_to(view.parameters)
        own = self._shadow.clipped_sum(self._last).astype(np.float64)
        gauss = float(own @ view.noisy_sum - own @ own / 2) / self._noise**2
        if self._rate == 1:
            return gauss
        return float(np.logaddexp(math.log1p(-self._rate), math.log(self._rate) + gauss))


@dataclass(frozen=True)
class PipelineGame:
    """The ``release`` behind every estimator, from rows to threshold, on the neighbours of ``TrainingGame``.

    White-box: all noisy gradients and all noisy counts, exact log-likelihood ratio of both together. Black-box: the
    released parameters and the threshold.
    """

    knowledge: str = "white-box"
    guarantee: str = "universal"
    epsilon: float = 2.3
    delta: float = 1e-2
    noise_multiplier: float = 3.0
    steps: int = 4
    n: int = 15
    random_state: int | None = None

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, KNOWLEDGE)
        if self.knowledge == "white-box" and guarantee_of(self.guarantee).held_out:
            raise ValueError(
                f"the white-box pipeline game is for guarantees that use all records twice, not {self.guarantee!r}"
            )

    @property
    def name(self) -> str:
        return f"pipeline (guarantee {self.guarantee!r})"

    @property
    def claim(self) -> DpEvent:
        """The ledger of a release."""
        return self._release(False).ledger.event

    def play(self, with_record: bool, runs: int) -> Array:
        if self.knowledge == "black-box":
            return np.array([self._seen_from_outside(self._release(with_record)) for _ in range(runs)])
        rows, labels = self._records.records(True)
        training = TrainingRatio(self._mechanism(), rows, labels, self.n)
        training.learn_constants(lambda world: self._heard(world)[1])
        references = [self._heard(world)[2][0] for world in (False, True)]
        return np.array([self._ratio(with_record, training, references) for _ in range(runs)])

    @staticmethod
    def _seen_from_outside(released: Release) -> Array:
        return np.append(released.model.arrays()["parameters"], np.minimum(released.thresholds[0], 1.0))

    def _ratio(self, with_record: bool, training: "TrainingRatio", references: Sequence[SearchView]) -> float:
        """log P(everything heard | with) - log P(everything heard | without), of one release."""
        released, steps, searches = self._heard(with_record)
        rows, labels = self._records.records(True)
        own = 1 - float(released.model.predict_proba(rows[-1:])[0, labels[-1]])
        sizes = [view.bought_size for view in searches if view.bought_size is not None]
        total = sum(training(view) for view in steps) + sum(_size_ratio(size, self.n) for size in sizes)
        for view in searches:
            total += _search_ratio(view, references, own, with_record, self._sigma(released), bool(sizes))
        return total

    def _heard(self, with_record: bool) -> tuple[Release, list[StepView], list[SearchView]]:
        """One release and all that its observer heard."""
        heard: list[StepView | SearchView] = []
        released = self._release(with_record, heard.append)
        steps = [view for view in heard if isinstance(view, StepView)]
        return released, steps, [view for view in heard if isinstance(view, SearchView)]

    @property
    def _records(self) -> TrainingGame:
        return TrainingGame(n=self.n)

    def _mechanism(self) -> DPSGD:
        return audited_mechanism(self.noise_multiplier, self.steps)

    def _release(self, with_record: bool, observer: Observer | None = None) -> Release:
        X, y = self._records.records(with_record)
        request = Request(
            task=Classification((0, 1)),
            estimator=self._mechanism(),
            budget=Budget(self.epsilon, self.delta),
            alphas=(0.1,),
            guarantee=self.guarantee,
            n_records=self.n,
            n_features=X.shape[1],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            return release(request, ArraySource(X, y), random_state=self.random_state, observer=observer)

    @staticmethod
    def _sigma(released: Release) -> float:
        history = possible_histories(released.ledger.event)[0]
        # the counts of the search are many, the release of the size is one
        counts = {e: k for e, k in history.items() if isinstance(e, DiscreteGaussianDpEvent)}
        return float(max(counts, key=lambda e: counts[e]).sigma)


def _size_ratio(size: ReleasedSize, n: int) -> float:
    """The ratio of a noisy number of scores that is n without the record and n + 1 with it."""
    gap = float(size.value) - n
    return float((gap**2 - (gap - 1) ** 2) / (2 * size.size_noise**2))


def _search_ratio(
    view: SearchView, references: Sequence[SearchView], own: float, with_record: bool, sigma: float, sized: bool
) -> float:
    """The ratio of one search whose scores are those of the released model; ``own`` is the record's score."""
    told = _told_by_constants(view, *references)
    if told:
        return told
    added = np.array([own <= view.halving.middle(*c.bracket) for c in view.counts], dtype=float)
    counts, margins = np.array([c.exact for c in view.counts], dtype=float), _margins(view)
    exact = []
    for world, reference in enumerate(references):
        there = counts + (world - int(with_record)) * added
        # a bar that follows from a released size, which the attacker has seen, is the same in both worlds
        bar = view.bar if sized else reference.bar
        exact.append(reference.scale * there - reference.base - bar)
    return float((((margins - exact[0]) ** 2 - (margins - exact[1]) ** 2) / (2 * sigma**2)).sum())
