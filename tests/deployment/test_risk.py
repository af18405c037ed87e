"""Private risk control: the mean loss is bounded in finite samples, whatever the losses are (Result J)."""

import json
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import dpscp as dp
from dpscp.core.losses import sum_losses
from dpscp.data.persons import Persons
from dpscp.guarantees.certificate import Promise
from dpscp.privacy import gaussian_event, lattice_noise
from dpscp.privacy.pld import discrete_gaussian_cdf
from dpscp.threshold import private_quantile
from dpscp.threshold.counts import LossSums

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")

RNG = np.random.default_rng
GRID = np.linspace(0, 1, 33)


def control(losses, **options):
    return dp.control_risk(losses, **{"epsilon": 1.0, "delta": 1e-6, "random_state": 0} | options)


def sums_of(losses, resolution, *, owners=None, generator=None, running_maximum=False):
    losses = np.asarray(losses, dtype=float)
    owners = owners or Persons.single(len(losses))
    (found,) = sum_losses(
        lambda j: losses[:, j],
        losses.shape[1],
        rows=None,
        owners=owners,
        groups=None,
        dither=(generator or RNG(0)).random(owners.count),
        resolution=resolution,
        running_maximum=running_maximum,
    )
    return found


@cache
def view_of_search(size, resolution, n_places, alpha, count_noise):
    """The public constants of a search: they follow from the number of records, not from the losses."""
    sums, views = LossSums(size, resolution, np.zeros(n_places, dtype=np.int64)), []
    private_quantile(
        sums,
        alpha=alpha,
        score_range=sums.place_range,
        count_noise=lattice_noise(count_noise, Fraction(1, 2), resolution),
        steps=sums.steps,
        n_records=size,
        random_state=0,
        observer=views.append,
    )
    return views[0]


def law_of_places(sums, *, alpha, count_noise):
    """The exact law of the released place: every path of the search with the probability of its integer noise."""
    view = view_of_search(sums.size, sums.resolution, len(sums.sums), alpha, count_noise)
    sigma, law = lattice_noise(count_noise, Fraction(1, 2), sums.resolution).sigma, {(-1, 2**sums.steps - 1): 1.0}
    for rise in view.rises:
        after = {}
        for (left, right), probability in law.items():
            middle = (left + right) // 2
            short = view.bar + rise - view.scale * sums.count(left, right, 1) + view.base
            accept = 1 - float(discrete_gaussian_cdf(float(short) - 1, sigma))
            for bracket, chance in (((left, middle), accept), ((middle, right), 1 - accept)):
                after[bracket] = after.get(bracket, 0.0) + probability * chance
        law = after
    return {right: probability for (_, right), probability in law.items()}


def exact_risk(table, *, alpha, count_noise, resolution):
    """The mean loss of each record when the search sees the others, with no simulation."""
    total, n = 0.0, len(table)
    for i, own in enumerate(table):
        law = law_of_places(sums_of(np.delete(table, i, axis=0), resolution), alpha=alpha, count_noise=count_noise)
        total += sum(probability * (own[place] if place < len(own) else 0.0) for place, probability in law.items())
    return total / n


@pytest.mark.parametrize(("n", "count_noise", "alpha"), [(9, 0.6, 0.2), (99, 3.0, 0.1)])
def test_the_worst_staircase_of_losses_keeps_the_risk(n, count_noise, alpha):
    """A climb over the places at which n records lose nothing more finds the worst: close to alpha, never above."""
    rng, places = RNG(n), np.arange(7)

    def risk(last):
        """The exact mean loss of each record when the search sees the others; ``last`` is where its loss ends."""
        table, total = (last[:, None] > places).astype(float), 0.0
        for end in np.unique(last):
            others = np.delete(table, int(np.argmax(last == end)), axis=0)
            law = law_of_places(sums_of(others, 64), alpha=alpha, count_noise=count_noise)
            total += np.mean(last == end) * sum(p for place, p in law.items() if place < end)
        return total

    best = np.sort(rng.choice(8, size=n, p=[1 - alpha] + [alpha / 7] * 7))
    worst = risk(best)
    for _ in range(50):
        trial = np.where(rng.random(n) < 3 / n, rng.integers(0, 8, size=n), best)
        if (value := risk(trial)) > worst:
            best, worst = trial, value
        assert value <= alpha
    assert worst > 0.85 * alpha  # the climb comes close


@pytest.mark.parametrize("kind", ["lattice", "atoms", "ties"])
def test_small_tables_keep_the_risk_exactly(kind):
    rng, worst = RNG(5), 0.0
    for _ in range(25):
        n, m = int(rng.integers(3, 9)), 3
        if kind == "lattice":
            table = -np.sort(-rng.integers(0, 5, size=(n, m)) / 4, axis=1)
        elif kind == "atoms":
            table = (rng.integers(0, m + 1, size=(n, 1)) > np.arange(m)).astype(float)
        else:
            table = np.tile(-np.sort(-rng.integers(0, 5, size=m) / 4), (n, 1))
        risk = exact_risk(table, alpha=0.3, count_noise=0.4, resolution=4)
        assert risk <= 0.3
        worst = max(worst, risk)
    assert worst > 0.12


def test_rounding_by_a_secret_uniform_keeps_the_mean_and_the_order():
    losses = -np.sort(-RNG(0).random((4, 6)), axis=1)
    rounded = np.array([sums_of(losses, 2, generator=RNG(seed)).sums for seed in range(1_000)]) / 2
    assert np.all(np.diff(rounded, axis=1) >= 0)
    error = 5 * np.sqrt(len(losses) / 16 / 1_000)  # a rounding to halves has a variance of at most 1/16
    assert np.allclose(rounded.mean(axis=0), (1 - losses).sum(axis=0), atol=error)
    assert sums_of(np.zeros((3, 2)), 64).sums.tolist() == [192, 192]
    assert sums_of(np.ones((3, 2)), 64).sums.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["smooth", "false negatives"])
def test_new_records_lose_what_was_promised(kind, is_quick):
    rng, risks = RNG(1), []

    def draw(n):
        if kind == "smooth":
            return np.clip(1 - GRID / rng.beta(2, 3, size=n)[:, None], 0, 1)
        positive = rng.random((n, 6)) < 0.4
        scores = rng.beta(2, 4, size=(n, 6))
        missed = positive[:, :, None] & (scores[:, :, None] > GRID)
        return missed.sum(axis=1) / np.maximum(positive.sum(axis=1), 1)[:, None]

    for seed in range(16 if is_quick else 40):
        found = control(draw(400), thresholds=GRID, n_records=400, random_state=seed)
        place = int(np.searchsorted(GRID, found.threshold))
        risks.append(draw(2_000)[:, place].mean() if place < len(GRID) else 0.0)
    error = np.std(risks) / len(risks) ** 0.5
    assert 0.06 < np.mean(risks) <= 0.1 + 3 * error


def test_a_table_and_a_function_give_the_same_release():
    u = RNG(1).beta(2, 3, size=1_000)

    def losses(t):
        return np.clip(1 - t / u, 0, 1)

    of_function = control(losses, threshold_range=(0, 1))
    parts = 2 ** of_function.ledger.public_facts["search_steps"]
    points = np.arange(1, parts) / parts
    of_table = control(np.stack([losses(t) for t in points], axis=1), thresholds=points)
    assert of_function.threshold == of_table.threshold
    assert of_function.ledger.epsilon(1e-6) <= 1.0
    assert "n_records" in of_function.ledger.public_facts


def test_the_loss_of_a_person_is_the_mean_over_their_rows():
    rows = np.array([[1.0, 0.5], [0.5, 0.0], [0.25, 0.0]])
    found = sums_of(rows, 4, owners=Persons(np.array([0, 2, 3]), 2))
    assert found.size == 2
    assert found.sums.tolist() == [1 + 3, 3 + 4]


def test_persons_count_once_and_the_ledger_says_so():
    losses = np.clip(1 - GRID / RNG(2).beta(2, 3, size=3_000)[:, None], 0, 1)
    found = control(losses, thresholds=GRID, persons=np.arange(3_000) // 3, rows_per_person=3, n_persons=1_000)
    assert found.certificate.unit.by_person
    assert found.ledger.unit.by_person
    assert "a random record of a new person" in str(found.certificate)
    with pytest.raises(ValueError, match="rows_per_person"):
        control(losses, thresholds=GRID, persons=np.arange(3_000) // 3)


def test_groups_and_levels_have_thresholds_of_their_own():
    rng = RNG(3)
    group = rng.integers(0, 2, size=4_000)
    u = rng.beta(2, 3, size=4_000) * np.where(group == 1, 1.0, 0.5)
    losses = np.clip(1 - GRID / u[:, None], 0, 1)
    found = control(losses, alpha=[0.2, 0.1], thresholds=GRID, groups=dp.Groups(group, values=[0, 1]))
    assert found.threshold.shape == (2, 2)
    assert np.all(found.threshold[0] < found.threshold[1])
    assert np.all(found.threshold[:, 0] < found.threshold[:, 1])
    assert [c.risk for c in found.certificates] == [0.2, 0.1]
    assert control(losses, alpha=[0.2, 0.1], thresholds=GRID).threshold.shape == (2,)


def test_records_that_training_has_seen_need_a_smaller_level():
    losses = np.clip(1 - GRID / RNG(4).beta(2, 3, size=4_000)[:, None], 0, 1)
    apart = control(losses, thresholds=GRID)
    again = control(losses, thresholds=GRID, training=gaussian_event(8.0))
    assert again.certificate.guarantee == "universal"
    assert again.certificate.risk == 0.1
    assert again.certificate.terms.inner_level > apart.certificate.terms.inner_level
    assert again.threshold > apart.threshold
    assert again.ledger.epsilon(1e-6) <= 1.0
    with pytest.raises(ValueError, match="training="):
        control(losses, thresholds=GRID, held_out=False)


def test_only_resolution_one_speaks_of_a_single_release():
    losses = np.clip(1 - GRID / RNG(5).beta(2, 3, size=2_000)[:, None], 0, 1)
    fine, coarse = control(losses, thresholds=GRID), control(losses, thresholds=GRID, resolution=1)
    assert fine.certificate.terms.release_level is None
    assert "independent draws" not in " ".join(map(str, fine.certificate.assumptions))
    assert 0.8 < coarse.certificate.terms.release_level < 0.9
    assert "such releases have a mean loss of at most" in str(coarse.certificate)
    with pytest.raises(ValueError, match="resolution=1"):
        control(losses, thresholds=GRID, release_confidence=0.95)
    sure = control(losses, thresholds=GRID, resolution=1, release_confidence=0.95)
    assert sure.certificate.terms.release_level == 0.9


def test_the_certificate_speaks_of_a_loss_and_comes_back_from_a_file():
    losses = np.clip(1 - GRID / RNG(6).beta(2, 3, size=1_000)[:, None], 0, 1)
    certificate = control(losses, alpha=0.3, thresholds=GRID).certificate
    assert certificate.promise is Promise.RISK
    assert certificate.risk == 0.3
    assert "mean loss of a new record is at most 30.0%" in str(certificate)
    assert "Prediction sets" not in str(certificate)
    assert dp.Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate


def test_a_loss_that_rises_is_replaced_by_its_running_maximum():
    losses = np.array([[0.5, 0.25, 0.75, 0.0]] * 40)
    with pytest.raises(ValueError, match="must not rise"):
        control(losses, thresholds=np.arange(4))
    assert sums_of(losses[:1], 4, running_maximum=True).sums.tolist() == [1, 1, 1, 4]
    found = control(losses, thresholds=np.arange(4), running_maximum=True)
    assert "The mean running maximum of the loss of" in str(found.certificate)
    assert "The loss itself may rise with the threshold; it never exceeds" in str(found.certificate)


@pytest.mark.parametrize(
    ("losses", "options", "words"),
    [
        (np.zeros((5, 2)), {"thresholds": [1, 0]}, "increasing"),
        (np.zeros((5, 2)), {"thresholds": [0, 1, 2]}, "one column for each"),
        (np.zeros((5, 2)), {}, "thresholds"),
        (np.zeros((5, 2)), {"threshold_range": (0, 1)}, "threshold_range"),
        (np.zeros_like, {"thresholds": [0, 1]}, "threshold_range"),
        (np.full((5, 2), "x"), {"thresholds": [0, 1]}, "one number"),
        (np.zeros((5, 2)), {"thresholds": [0, 1], "groups": np.zeros(5)}, "no values are declared"),
        (np.zeros((5, 2)), {"thresholds": [0, 1], "resolution": 0}, "resolution"),
        (np.zeros((0, 2)), {"thresholds": [0, 1]}, "n_records"),
    ],
)
def test_wrong_arguments_are_named(losses, options, words):
    with pytest.raises(ValueError, match=words):
        control(losses, **options)


def test_no_records_and_too_few_records_get_no_finite_threshold():
    empty = control(np.zeros((0, 2)), thresholds=[0, 1], n_records=500)
    few = control(np.tile([1.0, 1.0], (3, 1)), thresholds=[0, 1])
    assert np.isinf(empty.threshold) or empty.threshold in (0, 1)
    assert np.isinf(few.threshold)
    assert few.certificate.is_vacuous


def test_noise_off_the_lattice_of_the_sums_is_refused():
    sums = LossSums(10, 64, np.arange(7))
    options = {"alpha": 0.1, "score_range": sums.place_range, "n_records": 10, "random_state": 0}
    with pytest.raises(ValueError, match="multiple of resolution"):
        private_quantile(sums, count_noise=lattice_noise(50.0, Fraction(1, 2)), steps=3, **options)
    with pytest.raises(ValueError, match="at most 3"):
        private_quantile(sums, count_noise=lattice_noise(50.0, Fraction(1, 2), 64), steps=4, **options)
