"""One contender of `peers.py` in a process of its own: `python benchmarks/contender.py NAME '{"n": 1000}'`.

It prepares, says "ready", and takes a turn for each line on standard input. The answer is JSON: CPU and clock seconds,
the peak of memory beside what was held before (bytes), and what the turn found, where a table needs it.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from memory import measured

Turn = Callable[[], Any]
ALPHA, DELTA = 0.1, 1e-5


# ---- calibration: from predictions and targets to a threshold


def predicted(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    predictions = rng.random(n)
    return predictions, predictions + rng.uniform(-1, 1, n)


class Known:
    """The model of the peers that want one: its prediction is the only feature."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Known":  # noqa: ARG002
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, 0]

    def __sklearn_is_fitted__(self) -> bool:
        return True


def calibrate_dpscp(n: int) -> Turn:
    from quantile import threshold

    p, y = predicted(n)
    return lambda: threshold(np.abs(y - p))


def calibrate_partition(n: int) -> Turn:
    from quantile import numpy_peers

    p, y = predicted(n)
    return lambda: numpy_peers(np.abs(y - p))["np.partition"]()


def calibrate_quantile(n: int) -> Turn:
    from quantile import numpy_peers

    p, y = predicted(n)
    return lambda: numpy_peers(np.abs(y - p))["np.quantile"]()


def calibrate_mapie(n: int) -> Turn:
    from mapie.regression import SplitConformalRegressor
    from sklearn.base import BaseEstimator, RegressorMixin

    p, y = predicted(n)
    model = type("KnownModel", (Known, RegressorMixin, BaseEstimator), {})()

    def turn() -> None:
        peer = SplitConformalRegressor(model, confidence_level=1 - ALPHA, prefit=True)
        peer.conformalize(p[:, None], y).predict_interval(p[:1, None])

    return turn


def calibrate_crepes(n: int) -> Turn:
    from crepes import ConformalRegressor

    p, y = predicted(n)
    return lambda: ConformalRegressor().fit(y - p).predict_int(p[:1], confidence=1 - ALPHA)


def calibrate_puncc(n: int) -> Turn:
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.regression import SplitCP

    p, y = predicted(n)

    def turn() -> None:
        peer = SplitCP(BasePredictor(Known(), is_trained=True), train=False)
        peer.fit(X_calib=p[:, None], y_calib=y)
        peer.predict(p[:1, None], alpha=ALPHA)

    return turn


def calibrate_torchcp(n: int) -> Turn:
    import torch
    from torchcp.regression.predictor import SplitPredictor
    from torchcp.regression.score import ABS

    torch.set_num_threads(1)
    p, y = (torch.from_numpy(values).float()[:, None] for values in predicted(n))
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    peer = SplitPredictor(score_function=ABS(), model=model)
    return lambda: peer.calibrate([(p, y)], ALPHA)


# ---- private quantiles: the time of one, and the ranks by which many are off

# Grid points that OpenDP chooses among.
_CANDIDATES = 1001


def opendp_quantile(top: float, epsilon: float, measure: str) -> Callable[[np.ndarray], float]:
    """OpenDP's private quantile on a grid, accounted for by OpenDP."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "floating-point")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    grid = np.linspace(0, top, _CANDIDATES).tolist()

    def at(scale: float) -> Any:
        if measure == "pure":
            return dp.m.make_private_quantile(*space, dp.max_divergence(), grid, 1 - ALPHA, scale)
        made = dp.m.make_private_quantile(*space, dp.zero_concentrated_divergence(), grid, 1 - ALPHA, scale)
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(made), DELTA)

    return dp.binary_search_chain(at, d_in=1, d_out=epsilon if measure == "pure" else (epsilon, DELTA))


def diffprivlib_quantile(top: float, epsilon: float) -> Callable[[np.ndarray], float]:
    from diffprivlib.tools import quantile

    return lambda scores: quantile(scores, 1 - ALPHA, epsilon=epsilon, bounds=(0.0, top))


def exponential_mechanism(top: float, epsilon: float, level: str) -> Callable[[np.ndarray], float]:
    """The exponential mechanism of the paper's rivals, with the accounting of this library."""
    from experiments.exponential import exponential_quantile, exponential_rate

    from dpscp.privacy import Budget

    rate = exponential_rate(Budget(epsilon, DELTA), None, 1)
    setting = {"alpha": ALPHA, "score_range": (0.0, top), "rate": rate, "level": level}
    return lambda scores: exponential_quantile(scores, **setting).threshold


def our_search(top: float, epsilon: float, correction: str) -> Callable[[np.ndarray], float]:
    from dpscp import private_quantile
    from dpscp.privacy import gdp_mu

    setting = {"alpha": ALPHA, "score_range": (0.0, top), "mu": gdp_mu(epsilon, DELTA), "correction": correction}
    return lambda scores: private_quantile(scores, **setting).threshold


PRIVATE: dict[str, Callable[[float, float], Callable[[np.ndarray], float]]] = {
    "dpscp_aimed": lambda top, epsilon: our_search(top, epsilon, "none"),
    "dpscp_promised": lambda top, epsilon: our_search(top, epsilon, "minimax"),
    "exponential_aimed": lambda top, epsilon: exponential_mechanism(top, epsilon, "plain"),
    "exponential_promised": lambda top, epsilon: exponential_mechanism(top, epsilon, "corrected"),
    "opendp_pure": lambda top, epsilon: opendp_quantile(top, epsilon, "pure"),
    "opendp_zcdp": lambda top, epsilon: opendp_quantile(top, epsilon, "zcdp"),
    "diffprivlib": diffprivlib_quantile,
}


def quantile_time(which: str, n: int) -> Turn:
    p, y = predicted(n)
    found = PRIVATE[which](1.0, 1.0)
    return lambda: float(found(np.abs(y - p)))


def quantile_ranks(which: str, settings: list[tuple[str, int, float]], repetitions: int) -> Turn:
    """Mean number of scores between the threshold and the wanted order statistic, with its standard error."""

    def off(law: str, n: int, epsilon: float) -> list[float]:
        found = PRIVATE[which](10.0 if law == "wide" else 1.0, epsilon)
        rng, ranks = np.random.default_rng(1), []
        for _ in range(repetitions):
            scores = rng.random(n) ** (8 if law == "crowded" else 1)
            ranks.append(abs(np.count_nonzero(scores <= found(scores)) - np.ceil((1 - ALPHA) * (n + 1))))
        return [float(np.mean(ranks)), float(np.std(ranks) / np.sqrt(repetitions))]

    return lambda: [off(*setting) for setting in settings]


# ---- growth with the number of scores


def growth(entry_point: str, n: int) -> Turn:
    from quantile import draw, entry_points, numpy_peers

    scores = draw("uniform", n, np.float64)
    return (numpy_peers(scores) | entry_points(scores))[entry_point]


# ---- accounting: noise and epsilon of sampled training

_RATE, _STEPS = 0.01, 5000


def noises() -> Iterator[float]:
    """A new one each turn: whoever remembers answers has none."""
    return (1.0 + turn / 1000 for turn in range(10**6))


def epsilon_by(of: Callable[[float], float]) -> Turn:
    drawn = noises()
    return lambda: float(of(next(drawn)))


def epsilon_dpscp(accountant: str) -> Turn:
    from dpscp.privacy import dpsgd_event, epsilon_of

    return epsilon_by(lambda noise: epsilon_of(dpsgd_event(noise, _RATE, _STEPS), DELTA, accountant))


def epsilon_dp_accounting(accountant: str) -> Turn:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def of(noise: float) -> float:
        event = dp_accounting.PoissonSampledDpEvent(_RATE, dp_accounting.GaussianDpEvent(noise))
        made = PLDAccountant() if accountant == "pld" else RdpAccountant()
        return made.compose(event, _STEPS).get_epsilon(DELTA)

    return epsilon_by(of)


def epsilon_opacus(accountant: str) -> Turn:
    from opacus.accountants import create_accountant

    def of(noise: float) -> float:
        made = create_accountant(accountant)
        made.history = [(noise, _RATE, _STEPS)]
        return made.get_epsilon(DELTA)

    return epsilon_by(of)


def epsilon_prv() -> Turn:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    def of(noise: float) -> float:
        made = PRVAccountant(
            [PoissonSubsampledGaussianMechanism(sampling_probability=_RATE, noise_multiplier=noise)],
            eps_error=0.01, delta_error=DELTA / 1000, max_self_compositions=[_STEPS],
        )  # fmt: skip
        return made.compute_epsilon(DELTA, [_STEPS])[2]

    return epsilon_by(of)


def noise_by(of: Callable[[float], float]) -> Turn:
    """Budgets just above 1, a new one each turn."""
    drawn = noises()
    return lambda: float(of(next(drawn)))


def noise_dpscp(accountant: str) -> Turn:
    from dpscp.privacy import noise_multiplier

    return noise_by(lambda epsilon: noise_multiplier(epsilon, DELTA, _RATE, _STEPS, accountant))


def noise_opacus(accountant: str) -> Turn:
    from opacus.accountants.utils import get_noise_multiplier

    return noise_by(
        lambda epsilon: get_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=_RATE, steps=_STEPS, accountant=accountant,
            epsilon_tolerance=0.001,
        )
    )  # fmt: skip


def noise_dp_accounting() -> Turn:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(noise: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(_RATE, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, _STEPS)

    return noise_by(
        lambda epsilon: dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, event, epsilon, DELTA, dp_accounting.ExplicitBracketInterval(1.0, 10.0), tol=0.001
        )
    )


# ---- prediction


def prediction_model(name: str, rows: int) -> Turn:
    """The released model of a case, for those whose environment has no dpscp."""
    import prediction

    model = prediction.fitted(name, *prediction.made(name, rows))
    told = {"weights": model.model_.layers[0].tolist(), "threshold": float(model.threshold_[0])}
    return lambda: told


def prediction_turn(name: str, peer: str, rows: int, weights: list[list[float]], threshold: float) -> Turn:
    import prediction

    case = prediction.Case(*prediction.made(name, rows), np.array(weights, dtype=np.float32), threshold)
    predict = prediction.CONTENDERS[name][peer](case)

    def turn() -> None:  # what is predicted is not told
        predict()

    return turn


# ---- a whole comparison that takes its turns in one process


def training_case(name: str, rounds: int) -> Turn:
    import training

    (case,) = (case for case in training.CASES if case.name == name)
    return lambda: training.measure(case, rounds)


def main() -> None:
    warnings.simplefilter("ignore")
    name, given = sys.argv[1:]
    turn = globals()[name](**json.loads(given))
    print("ready", flush=True)
    for _ in sys.stdin:
        found: list[Any] = []
        clock = time.perf_counter()
        cpu, memory = measured(lambda found=found: found.append(turn()))
        answer = {"cpu": cpu, "clock": time.perf_counter() - clock, "memory": memory}
        if isinstance(found[0], float | list | dict):
            answer["found"] = found[0]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
