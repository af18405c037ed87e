"""Games against the threshold search, against training, and against the whole pipeline, for ``dpscp.audit``.

The games run the code of the library itself. White-box games pass it an observer that receives noisy counts and noisy
gradients.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_count
from dpscp.core.fit import Fit, Observer, release
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Classification
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import guarantee_of
from dpscp.privacy import Budget
from dpscp.privacy.events import DiscreteGaussianDpEvent, dpsgd_event, possible_histories
from dpscp.threshold import NoisySize, PrivateQuantile, private_quantile, rank_sensitivity
from dpscp.threshold.counts import as_counter
from dpscp.threshold.search import SearchObserver, SearchView
from dpscp.training import DPSGD, Trained
from dpscp.training.base import paid_event
from dpscp.training.engine.loop import Descent, StepObserver, StepView

UNITS = ("release", "run")


@dataclass(frozen=True)
class SearchAttack(ABC):
    """The settings and the parts of attacks on the private threshold search."""

    knowledge: ClassVar = "white-box"
    unit: str = "release"
    n: int = 60
    alpha: float = 0.1
    steps: int = 0
    count_noise: float = 0.0
    rank: str = "centered"
    correction: str = "none"
    score: float = 1.0
    random_state: int | None = None

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        # many counts in one search are cheap; the default noise makes each run 1-GDP in the continuous limit
        steps = self.steps or (600 if self.unit == "release" else 8)
        object.__setattr__(self, "steps", check_count("steps", steps))
        games = 1 if self.unit == "release" else steps
        reach = float(rank_sensitivity(self.rank, self.alpha))
        object.__setattr__(self, "count_noise", self.count_noise or reach * math.sqrt(games))

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the game in a report."""

    @abstractmethod
    def play(self, with_record: bool, runs: int) -> FloatArray:
        """Return what the attacker computes from each run."""

    @property
    def claim(self) -> DpEvent:
        """Cost of one count, or of all counts."""
        event = self._search(self._scores(False)).event
        return next(iter(possible_histories(event)[0])) if self.unit == "release" else event

    @property
    def _search_name(self) -> str:
        return f"search ({'one count' if self.unit == 'release' else f'{self.steps} counts'}, rank {self.rank!r})"

    def _scores(self, with_record: bool) -> FloatArray:
        scores = np.linspace(0.005, 0.995, self.n)
        return np.append(scores, self.score) if with_record else scores

    def _search(self, scores: FloatArray, observer: SearchObserver | None = None) -> PrivateQuantile:
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


@dataclass(frozen=True)
class SearchGame(SearchAttack):
    """Attack the private threshold search.

    The score of the record is the end of the range, so that no count includes it. The white-box attacker computes the
    exact log-likelihood ratio of the noisy counts.

    Parameters
    ----------
    unit : "release": each noisy count is a run, which tests noise and sensitivity most sharply; "run": the whole search
        is a run, which also finds errors between counts.
    n : number of other records.
    alpha, steps, count_noise, rank, correction : arguments of ``private_quantile``; 0 steps or noise: a default.
    score : score of the record.
    random_state : seed; None for system entropy.
    """

    @property
    def name(self) -> str:
        return self._search_name

    def play(self, with_record: bool, runs: int) -> FloatArray:
        ratio = _SearchRatio(self._reference(False), self._reference(True), self._sigma(), self._exact_count)
        played: list[FloatArray] = []
        while sum(map(len, played)) < runs if self.unit == "release" else len(played) < runs:
            self._search(self._scores(with_record), lambda view: played.append(ratio(view)))
        return np.concatenate(played) if self.unit == "release" else np.array([p.sum() for p in played])


class _SearchRatio:
    """Compute log P(noisy count | with) - log P(noisy count | without) for each count."""

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

    def __call__(self, view: SearchView) -> FloatArray:
        certain = _ratio_of_constants(view, *self._references)
        if certain:
            return np.full(max(1, len(view.counts)), certain)
        exact = [
            np.array([r.scale * self._count(bool(world), c.bracket) - r.base - r.bar for c in view.counts], dtype=float)
            for world, r in enumerate(self._references)
        ]
        margins = _margins(view)
        ratio: FloatArray = ((margins - exact[0]) ** 2 - (margins - exact[1]) ** 2) / (2 * self._sigma**2)
        return ratio


def _margins(view: SearchView) -> FloatArray:
    """Return the noisy margin that decided each step of a search."""
    return np.array([c.margin for c in view.counts], dtype=float)


def _ratio_of_constants(view: SearchView, without: SearchView, with_record: SearchView) -> float:
    """Return an infinite ratio if public constants differ between the neighbors, 0 if not.

    The true size may enter ``base`` only.
    """
    seen, one, other = ((v.score_range, v.scale, len(v.counts)) for v in (view, without, with_record))
    if one == other:
        return 0.0
    return math.inf if seen == other else -math.inf if seen == one else 0.0


@dataclass(frozen=True)
class TrainingAttack(ABC):
    """The settings and the course of attacks on DP-SGD."""

    mechanism: DPSGD = field(default_factory=lambda: audited_mechanism(1.0, 400))
    knowledge: ClassVar = "white-box"
    unit: str = "release"
    n: int = 15
    random_state: int | None = None

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, UNITS)
        if self.mechanism.fit_intercept or self.mechanism.task != "classification":
            raise ValueError(
                "mechanism must be a classifier with fit_intercept=False, so that rows of zeros add nothing"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the game in a report."""

    @abstractmethod
    def records(self, with_record: bool) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return the rows and labels, with or without the record."""

    @abstractmethod
    def owners(self, with_record: bool) -> Persons | None:
        """Return the owners of the rows; None: each row has its own owner."""

    @property
    def _training_name(self) -> str:
        m = self.mechanism
        length = "one step" if self.unit == "release" else f"{m.steps} steps"
        return f"training ({length}, noise {m.noise_multiplier:g}, sampling rate {m.sampling_rate:g})"

    @property
    def claim(self) -> DpEvent:
        """Cost of one step, or of all steps."""
        if self.unit == "run":
            return paid_event(self.mechanism)
        return dpsgd_event(self.mechanism.noise_multiplier or 0.0, self.mechanism.sampling_rate, 1)

    def play(self, with_record: bool, runs: int) -> FloatArray:
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


@dataclass(frozen=True)
class TrainingGame(TrainingAttack):
    """Attack DP-SGD with the worst-case neighbors of the accounting.

    ``n`` records add nothing to any gradient. The clipped gradient of the additional record has the largest norm. With
    ``sampling_rate < 1`` the white-box attacker sees noisy sums but not batches, and computes the exact ratio of the
    Gaussian mixture.

    Parameters
    ----------
    mechanism : DPSGD; its ``noise_multiplier`` is part of the claim.
    unit : "release": each step is a run; "run": the whole training is a run.
    n : number of other records.
    random_state : seed; None for system entropy.
    """

    @property
    def name(self) -> str:
        return self._training_name

    def records(self, with_record: bool) -> tuple[FloatArray, NDArray[np.int64]]:
        rows = np.zeros((self.n + 1, 2))
        rows[-1] = 100.0
        labels = np.zeros(self.n + 1, dtype=np.int64)
        return (rows, labels) if with_record else (rows[:-1], labels[:-1])

    def owners(self, with_record: bool) -> None:  # noqa: ARG002
        return None


def audited_mechanism(noise_multiplier: float, steps: int, sampling_rate: float = 1.0) -> DPSGD:
    """Create a linear model without intercept, to which rows of zeros add nothing."""
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
    """Compute the log-likelihood ratio of one step, if only the last person adds to the sum."""

    def __init__(
        self, mechanism: DPSGD, X: FloatArray, y: NDArray[Any], n_records: int, owners: Persons | None = None
    ) -> None:
        setup = mechanism.prepare(X, y, n_records=n_records, persons=owners)
        self._shadow = Descent(setup)
        self._last = np.array([setup.places.count - 1])
        self._rate = mechanism.sampling_rate
        self._noise = (mechanism.noise_multiplier or 0.0) * mechanism.clip_norm
        self._constants: tuple[tuple[Any, ...], ...] = ((), ())

    def learn_constants(self, steps_of: Callable[[bool], list[StepView]]) -> None:
        """Run once with and once without the record, and keep the constants of every step."""
        learned = []
        for world in (False, True):
            seen = steps_of(world)
            learned.append((len(seen), *dict.fromkeys(view.constants for view in seen)))
        self._constants = (learned[0], learned[1])

    def __call__(self, view: StepView) -> float:
        """Return the ratio of this step."""
        without, with_record = self._constants
        if without != with_record:
            known = [view.constants in world for world in (without, with_record)]
            return math.inf if known == [False, True] else -math.inf if known == [True, False] else 0.0
        # the clipping code of the library computes what the record would add
        self._shadow.gradient.parameters[:] = view.parameters
        own = self._shadow.clipped_sum(self._last).astype(np.float64)
        gauss = float(own @ view.noisy_sum - own @ own / 2) / self._noise**2
        if self._rate == 1:
            return gauss
        return float(np.logaddexp(math.log1p(-self._rate), math.log(self._rate) + gauss))


@dataclass(frozen=True)
class PipelineAttack(ABC):
    """The settings and the parts of attacks on ``release``."""

    knowledge: ClassVar = "white-box"
    guarantee: str = "universal"
    epsilon: float = 2.3
    delta: float = 1e-2
    noise_multiplier: float = 3.0
    steps: int = 4
    n: int = 15
    random_state: int | None = None

    @property
    @abstractmethod
    def _records(self) -> TrainingGame:
        """Return the game whose neighboring records are used."""

    @abstractmethod
    def play(self, with_record: bool, runs: int) -> FloatArray:
        """Return what the attacker computes from each run."""

    @property
    def name(self) -> str:
        return f"pipeline (guarantee {self.guarantee!r})"

    @property
    def claim(self) -> DpEvent:
        """Cost in the ledger of a release."""
        return self._release(False).ledger.event

    def _observe_release(self, with_record: bool) -> tuple[Fit, list[StepView], list[SearchView]]:
        """Make a release, and return it with all observed steps and searches."""
        views: list[StepView | SearchView] = []
        released = self._release(with_record, views.append)
        steps = [view for view in views if isinstance(view, StepView)]
        return released, steps, [view for view in views if isinstance(view, SearchView)]

    def _mechanism(self) -> DPSGD:
        return audited_mechanism(self.noise_multiplier, self.steps)

    def _release(self, with_record: bool, observer: Observer | None = None) -> Fit:
        X, y = self._records.records(with_record)
        problem = FitProblem(
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
            return release(problem, ArraySource(X, y), random_state=self.random_state, observer=observer)


@dataclass(frozen=True)
class PipelineGame(PipelineAttack):
    """Attack ``release``, the whole pipeline of every estimator, on the neighbors of ``TrainingGame``.

    The attacker computes the exact log-likelihood ratio of all noisy gradients and counts.

    Parameters
    ----------
    guarantee, epsilon, delta : as for the estimators.
    noise_multiplier, steps : constants of training.
    n : number of other records.
    random_state : seed; None for system entropy.
    """

    def __post_init__(self) -> None:
        if guarantee_of(self.guarantee).held_out:
            raise ValueError(f"the game needs a guarantee without held-out part, got {self.guarantee!r}; use SplitGame")

    def play(self, with_record: bool, runs: int) -> FloatArray:
        rows, labels = self._records.records(True)
        training = TrainingRatio(self._mechanism(), rows, labels, self.n)
        training.learn_constants(lambda world: self._observe_release(world)[1])
        references = [self._observe_release(world)[2][0] for world in (False, True)]
        return np.array([self._ratio(with_record, training, references) for _ in range(runs)])

    def _ratio(self, with_record: bool, training: "TrainingRatio", references: Sequence[SearchView]) -> float:
        """Compute the log-likelihood ratio of everything observed in one release."""
        released, steps, searches = self._observe_release(with_record)
        rows, labels = self._records.records(True)
        own = 1 - float(released.model.predict_proba(rows[-1:])[0, labels[-1]])
        sizes = [view.new_size for view in searches if view.new_size is not None]
        total = sum(training(view) for view in steps) + sum(_size_ratio(size, self.n) for size in sizes)
        sigma = count_noise_scale(released.ledger.event)
        for view in searches:
            total += _search_ratio(view, references, own, with_record, sigma, bool(sizes))
        return total

    @property
    def _records(self) -> TrainingGame:
        return TrainingGame(n=self.n)


def count_noise_scale(event: DpEvent) -> float:
    """Return the noise scale of the counts of a search: there are many, and the size is released once."""
    counts = {e: k for e, k in possible_histories(event)[0].items() if isinstance(e, DiscreteGaussianDpEvent)}
    return float(max(counts, key=lambda e: counts[e]).sigma)


def _size_ratio(size: NoisySize, n: int) -> float:
    """Compute the ratio of a noisy size that is n without the record and n + 1 with it."""
    gap = float(size.released) - n
    return float((gap**2 - (gap - 1) ** 2) / (2 * size.size_noise**2))


def _search_ratio(
    view: SearchView, references: Sequence[SearchView], own: float, with_record: bool, sigma: float, sized: bool
) -> float:
    """Compute the ratio of one search over scores of the released model; ``own`` is the record's score."""
    certain = _ratio_of_constants(view, *references)
    if certain:
        return certain
    added = np.array([own <= view.halving.middle(*c.bracket) for c in view.counts], dtype=float)
    counts, margins = np.array([c.exact for c in view.counts], dtype=float), _margins(view)
    exact = []
    for world, reference in enumerate(references):
        there = counts + (world - int(with_record)) * added
        # a bar that is computed from the released size is the same with and without the record
        bar = view.bar if sized else reference.bar
        exact.append(reference.scale * there - reference.base - bar)
    return float((((margins - exact[0]) ** 2 - (margins - exact[1]) ** 2) / (2 * sigma**2)).sum())


def make_game(name: str) -> Any:
    """Return the search, training or sampled training with the settings of the quick audit, or the pipeline."""
    if name == "search":
        return SearchGame()
    if name == "pipeline":
        return PipelineGame()
    return TrainingGame(audited_mechanism(*((1.0, 400, 1.0) if name == "training" else (0.7, 400, 0.5))))
