"""The games: the search alone, training alone, the whole pipeline; torch modules have a file of their own."""

import math
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._checks import check_choice, check_count
from dpscp.audit.bounds import DELTAS, Audit, audited_epsilons
from dpscp.audit.modules import ModuleGame
from dpscp.audit.watching import SearchView, StepView, replaced, watched_search, watched_size, watched_steps
from dpscp.conformal import PrivateConformalClassifier
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import guarantee_of
from dpscp.privacy import calibrate as _calibrate
from dpscp.privacy import epsilon_of
from dpscp.privacy import ledger as _ledger
from dpscp.privacy.events import DiscreteGaussianDpEvent, dpsgd_event, possible_histories
from dpscp.quantile import ReleasedSize, private_quantile, search
from dpscp.training import DPSGD

__all__ = ["GAMES", "Game", "PipelineGame", "SearchGame", "TrainingGame", "audit"]

Array = NDArray[np.float64]
KNOWLEDGE = ("white-box", "black-box")
UNITS = ("release", "run")
GAMES = ("search", "training", "sampled training", "pipeline", "torch tokens", "torch buffers")


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
        check_choice("knowledge", self.knowledge, KNOWLEDGE)
        check_choice("unit", self.unit, UNITS)
        if self.unit == "release" and self.knowledge == "black-box":
            raise ValueError("unit='release' is a white-box game: a black-box attacker sees whole runs only")
        # many counts in one search cost hardly more than few; the noise makes each game 1-GDP in the continuous limit
        steps = self.steps or (600 if self.unit == "release" else 8)
        object.__setattr__(self, "steps", check_count("steps", steps))
        games = 1 if self.unit == "release" else steps
        reach = float(search.rank_sensitivity(self.rank, self.alpha))
        object.__setattr__(self, "count_noise", self.count_noise or reach * math.sqrt(games))

    @property
    def name(self) -> str:
        """What is attacked."""
        return f"search ({'one count' if self.unit == 'release' else f'{self.steps} counts'}, rank {self.rank!r})"

    @property
    def claim(self) -> DpEvent:
        """One count, or all of them."""
        event = self._search(self._scores(False)).event
        return next(iter(possible_histories(event)[0])) if self.unit == "release" else event

    def play(self, with_record: bool, runs: int) -> Array:
        """The statistic of each game."""
        if self.knowledge == "black-box":
            thresholds = [self._search(self._scores(with_record)).threshold for _ in range(runs)]
            return np.array(thresholds)
        ratio = _SearchRatio(self._reference(False), self._reference(True), self._sigma(), self._exact_count)
        played: list[Array] = []
        with watched_search(lambda view: played.append(ratio(view))):
            while sum(map(len, played)) < runs if self.unit == "release" else len(played) < runs:
                self._search(self._scores(with_record))
        return np.concatenate(played) if self.unit == "release" else np.array([p.sum() for p in played])

    def _scores(self, with_record: bool) -> Array:
        scores = np.linspace(0.005, 0.995, self.n)
        return np.append(scores, self.score) if with_record else scores

    def _search(self, scores: Array) -> Any:
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
            )

    def _reference(self, with_record: bool) -> SearchView:
        seen: list[SearchView] = []
        with watched_search(seen.append):
            self._search(self._scores(with_record))
        return seen[0]

    def _sigma(self) -> float:
        event = next(iter(possible_histories(self._search(self._scores(False)).event)[0]))
        assert isinstance(event, DiscreteGaussianDpEvent)
        return float(event.sigma)

    def _exact_count(self, with_record: bool, bracket: tuple[float, float]) -> int:
        counter = search.as_counter(self._scores(with_record), (0.0, 1.0), 1)  # type: ignore[attr-defined]  # not exported there
        return int(counter.count(*bracket, 1))


class _SearchRatio:
    """log P(noisy counts | with) - log P(noisy counts | without), count by count."""

    def __init__(self, without: SearchView, with_record: SearchView, sigma: float, exact_count: Any) -> None:
        self._references = without, with_record
        self._sigma = sigma
        self._count = lru_cache(maxsize=None)(exact_count)

    def __call__(self, view: SearchView) -> Array:
        told = _told_by_constants(view.constants, *(r.constants for r in self._references))
        if told:
            return np.full(max(1, len(view.margins)), told)
        exact = [
            np.array([r.scale * self._count(bool(world), b) - r.base - r.bar for b in view.brackets], dtype=float)
            for world, r in enumerate(self._references)
        ]
        ratio: Array = ((view.margins - exact[0]) ** 2 - (view.margins - exact[1]) ** 2) / (2 * self._sigma**2)
        return ratio


def _told_by_constants(seen: Any, without: Any, with_record: Any) -> float:
    """A constant that differs between neighbours tells them apart for certain."""
    if without == with_record:
        return 0.0
    return math.inf if seen == with_record else -math.inf if seen == without else 0.0


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
        check_choice("knowledge", self.knowledge, KNOWLEDGE)
        check_choice("unit", self.unit, UNITS)
        if self.unit == "release" and self.knowledge == "black-box":
            raise ValueError("unit='release' is a white-box game: a black-box attacker sees whole runs only")
        if self.mechanism.fit_intercept or self.mechanism.task != "classification":
            raise ValueError("mechanism must be a classifier with fit_intercept=False: rows of zeros then add nothing")

    @property
    def name(self) -> str:
        """What is attacked."""
        m = self.mechanism
        length = "one step" if self.unit == "release" else f"{m.steps} steps"
        return f"training ({length}, noise {m.noise_multiplier:g}, sampling rate {m.sampling_rate:g})"

    @property
    def claim(self) -> DpEvent:
        """One step, or all of them."""
        if self.unit == "run":
            return self.mechanism.event
        return dpsgd_event(self.mechanism.noise_multiplier or 0.0, self.mechanism.sampling_rate, 1)

    def records(self, with_record: bool) -> tuple[Array, NDArray[np.int64]]:
        """The rows and labels of one world."""
        rows = np.zeros((self.n + 1, 2))
        rows[-1] = 100.0
        labels = np.zeros(self.n + 1, dtype=np.int64)
        return (rows, labels) if with_record else (rows[:-1], labels[:-1])

    def play(self, with_record: bool, runs: int) -> Array:
        """The statistic of each game."""
        if self.knowledge == "black-box":
            return np.array([self._train(with_record).model.parameters for _ in range(runs)])
        ratio = TrainingRatio(self.mechanism, *self.records(True), self.n)
        ratio.learn_constants(lambda world: self._train(world))
        played: list[float] = []
        ends: list[int] = [0]
        with watched_steps(lambda view: played.append(ratio(view))):
            while len(played) < runs if self.unit == "release" else len(ends) <= runs:
                self._train(with_record)
                ends.append(len(played))
        steps = np.array(played)
        return steps if self.unit == "release" else np.add.reduceat(steps, ends[:-1])

    def _train(self, with_record: bool) -> Any:
        X, y = self.records(with_record)
        return self.mechanism.train(X, y, random_state=self.random_state, n_records=self.n)


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
    """log P(noisy sum | with) - log P(noisy sum | without) of one step, where only the last record adds to the sum."""

    def __init__(self, mechanism: DPSGD, X: Array, y: NDArray[Any], n_records: int) -> None:
        setup = mechanism.prepare(X, y, n_records=n_records)
        self._shadow = setup.descent(setup.records)
        self._last = np.array([len(X) - 1])
        self._rate = mechanism.sampling_rate
        self._noise = (mechanism.noise_multiplier or 0.0) * mechanism.clip_norm
        self._constants: tuple[tuple[Any, ...], ...] = ((), ())

    def learn_constants(self, train: Any) -> None:
        """Run each world once and keep the constants of every step."""
        learned = []
        for world in (False, True):
            seen: list[StepView] = []
            with watched_steps(seen.append):
                train(world)
            learned.append((len(seen), *dict.fromkeys(view.constants for view in seen)))
        self._constants = (learned[0], learned[1])

    def __call__(self, view: StepView) -> float:
        without, with_record = self._constants
        if without != with_record:
            known = [view.constants in world for world in (without, with_record)]
            return math.inf if known == [False, True] else -math.inf if known == [True, False] else 0.0
        # the real clipping code says what the record would add at these parameters
        np.copyto(self._shadow._fast, view.parameters)
        own = self._shadow.clipped_sum(self._last).astype(np.float64)
        gauss = float(own @ view.noisy_sum - own @ own / 2) / self._noise**2
        if self._rate == 1:
            return gauss
        return float(np.logaddexp(math.log1p(-self._rate), math.log(self._rate) + gauss))


@dataclass(frozen=True)
class PipelineGame:
    """The estimator's ``fit`` from rows to threshold, on the neighbours of ``TrainingGame``.

    White-box: all noisy gradients and all noisy counts, exact log-likelihood ratio of both together. Black-box: the
    released parameters and the threshold. Accounting is cached for the length of the game: it sees public numbers only.
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
        """What is attacked."""
        return f"pipeline (guarantee {self.guarantee!r})"

    @property
    def claim(self) -> DpEvent:
        """The ledger of a fit."""
        return self._fit(False).ledger_.event

    def play(self, with_record: bool, runs: int) -> Array:
        """The statistic of each game."""
        played: list[Array] = []
        with ExitStack() as stack:
            cached = lru_cache(maxsize=None)(epsilon_of)
            for module in (_ledger, _calibrate):
                stack.enter_context(replaced(module, "epsilon_of", cached))
            if self.knowledge == "black-box":
                for _ in range(runs):
                    fitted = self._fit(with_record)
                    parameters = fitted.model_.arrays()["parameters"]
                    played.append(np.append(parameters, np.minimum(fitted.threshold_, 1.0)))
                return np.array(played)
            rows, labels = self._records.records(True)
            training = TrainingRatio(self._mechanism(), rows, labels, self.n)
            training.learn_constants(self._fit)
            searches = [self._reference(world) for world in (False, True)]
            steps: list[StepView] = []
            views: list[SearchView] = []
            stack.enter_context(watched_steps(steps.append))
            sizes: list[ReleasedSize] = []
            stack.enter_context(watched_search(views.append))
            stack.enter_context(watched_size(sizes.append))
            for _ in range(runs):
                steps.clear()
                views.clear()
                sizes.clear()
                fitted = self._fit(with_record)
                own = 1 - float(fitted.predict_proba(rows[-1:])[0, labels[-1]])
                total = sum(training(view) for view in steps)
                total += sum(_size_ratio(size, self.n) for size in sizes)
                for view in views:
                    total += _search_ratio(view, searches, own, with_record, self._sigma(fitted), bool(sizes))
                played.append(np.array(total))
        return np.array(played)

    @property
    def _records(self) -> TrainingGame:
        return TrainingGame(n=self.n)

    def _mechanism(self) -> DPSGD:
        return audited_mechanism(self.noise_multiplier, self.steps)

    def _fit(self, with_record: bool) -> PrivateConformalClassifier:
        X, y = self._records.records(with_record)
        estimator = PrivateConformalClassifier(
            self._mechanism(),
            epsilon=self.epsilon,
            delta=self.delta,
            guarantee=self.guarantee,
            classes=[0, 1],
            n_records=self.n,
            random_state=self.random_state,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            return estimator.fit(X, y)

    def _reference(self, with_record: bool) -> SearchView:
        seen: list[SearchView] = []
        with watched_search(seen.append):
            self._fit(with_record)
        return seen[0]

    @staticmethod
    def _sigma(fitted: PrivateConformalClassifier) -> float:
        history = possible_histories(fitted.ledger_.event)[0]
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
    told = _told_by_constants(view.constants, *(r.constants for r in references))
    if told:
        return told
    added = np.array([own <= (left + right) / 2 for left, right in view.brackets], dtype=float)
    counts = np.array(view.counts, dtype=float)
    exact = []
    for world, reference in enumerate(references):
        there = counts + (world - int(with_record)) * added
        # a bar that follows from a released size, which the attacker has seen, is the same in both worlds
        bar = view.bar if sized else reference.bar
        exact.append(reference.scale * there - reference.base - bar)
    return float((((view.margins - exact[0]) ** 2 - (view.margins - exact[1]) ** 2) / (2 * sigma**2)).sum())


def audit(
    game: str | Game = "search",
    *,
    knowledge: str = "white-box",
    runs: int | None = None,
    deltas: Sequence[float] = DELTAS,
    confidence: float = 0.99,
    null: bool = False,
) -> Audit:
    """Try to break a privacy claim of this library, with its own code, on this machine.

    ``game``: ``"search"``, ``"training"``, ``"sampled training"``, ``"pipeline"``, ``"torch tokens"`` and
    ``"torch buffers"`` (modules that must be refused; black-box, needs the extra ``dpscp[torch]``), or a game of your
    own. ``runs`` in each of the two worlds (default: about a minute of work at most). ``null=True`` plays both worlds
    without the record: every bound must then be 0. The result holds the claimed curve and the audited lower bound;
    ``passed`` is False if the claim was disproved, which happens to honest code with probability at most 1 -
    ``confidence``.

    >>> result = audit("training", runs=2000)
    >>> result.passed, 0 < result.share(0.01) < 1
    (True, True)

    Theory: section 1
    """
    default = 60_000
    if isinstance(game, str):
        check_choice("game", game, GAMES)
        unit = "release" if knowledge == "white-box" else "run"
        if game == "search":
            chosen: Game = SearchGame(knowledge, unit)
        elif game in ("torch tokens", "torch buffers"):
            chosen, default = ModuleGame(game.removeprefix("torch ")), 400
        elif game == "pipeline":
            chosen, default = PipelineGame(knowledge), 1000
        else:
            rate, noise = (1.0, 1.0) if game == "training" else (0.5, 0.7)
            # several steps with twice the noise tell about as much as one
            mechanism = audited_mechanism(*((noise, 400) if unit == "release" else (2 * noise, 4)), rate)
            chosen = TrainingGame(mechanism, knowledge, unit)
        if unit == "run":
            default = min(default, 4000)
    else:
        chosen = game
    runs = default if runs is None else check_count("runs", runs, minimum=4)
    claim = chosen.claim
    without = chosen.play(False, runs)[:runs]
    other = chosen.play(not null, runs)[:runs]
    return Audit(
        game=chosen.name,
        knowledge=chosen.knowledge,
        runs=runs,
        confidence=confidence,
        deltas=tuple(deltas),
        claimed=tuple(epsilon_of(claim, d) for d in deltas),
        audited=tuple(audited_epsilons(without, other, deltas, confidence).tolist()),
        null=null,
    )
