"""The budget store: nothing is lost, nothing is spent twice, and every trouble has a message that says what to do."""

import json
import math
import multiprocessing
import os
import pickle
import sqlite3
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import dpscp as dp
from dpscp.privacy import (
    approximate_dp_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_mu,
    non_private_event,
    secret_split,
)
from dpscp.privacy import store as budget_module
from dpscp.privacy.store import BudgetStore, Reservation
from dpscp.training import DPSGD

DELTA = 1e-6
NAME = "clinic 2025"


def filtered_epsilon(mu, delta=DELTA):
    """Epsilon of mu-GDP at what a store's slack leaves of delta, by the formula of Dong, Roth and Su."""

    def excess(epsilon):
        below = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        return below - 0.95 * delta

    return brentq(excess, 1e-9, 50, xtol=1e-12)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.budget"


@pytest.fixture
def store(path):
    return BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)


def start(work, path):
    """Start ``work(path, answer)`` in a process of its own, and return the process and the other end of the pipe."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(path, there))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses none of the threads of this process
        process.start()
    there.close()
    return process, here


# ---- what it promises


def test_reserve_then_commit(store, path):
    reserved = store.reserve(gaussian_event(8.0), note="first")
    assert store.spent() == pytest.approx(filtered_epsilon(1 / 8))
    reserved.commit(gaussian_event(16.0))
    assert store.spent() == pytest.approx(filtered_epsilon(1 / 16))
    assert store.remaining() == pytest.approx(1 - store.spent())
    assert store.remaining(1e-3) > store.remaining()
    again = BudgetStore(path)
    assert again.budget == dp.Budget(1.0, DELTA)
    assert [line.kind for line in again.lines()] == ["budget", "reserve", "commit"]
    assert [(e.stage, e.note) for e in again.ledger().entries] == [("release", "first")]


def test_reservation_without_commit_stays_spent(store, path):
    store.reserve(gaussian_event(8.0), note="crashed")
    assert BudgetStore(path).spent() == pytest.approx(filtered_epsilon(1 / 8))
    assert "not committed" in store.summary()


def test_too_large_a_share_is_refused_and_changes_nothing(store, path):
    store.reserve(gaussian_event(6.0))
    before = path.read_bytes()
    assert not store.fits(gaussian_event(5.0))
    with pytest.raises(dp.BudgetError, match="does not fit"):
        store.reserve(gaussian_event(5.0))
    with pytest.raises(dp.BudgetError, match="does not fit"):
        store.reserve(non_private_event())
    assert path.read_bytes() == before
    assert store.fits(gaussian_event(20.0))


def test_a_commit_that_no_longer_fits_is_refused_and_the_reservation_stays(store):
    reserved = store.reserve(gaussian_event(8.0))
    with pytest.raises(dp.BudgetError, match="do not release"):
        reserved.commit(gaussian_event(1.0))
    assert store.spent() == pytest.approx(filtered_epsilon(1 / 8))
    reserved.commit(gaussian_event(8.0))
    with pytest.raises(ValueError, match="committed before"):
        reserved.commit(gaussian_event(8.0))


def test_a_commit_needs_its_reservation(store):
    """Without one nobody asked whether the share fits before the records were used."""
    kept = store.reserve(gaussian_event(40.0))
    before = store.lines()
    for note in (None, "never reserved"):
        with pytest.raises(ValueError, match="not in the store"):
            Reservation(store, "0" * 32).commit(gaussian_event(40.0), note)
    assert store.lines() == before
    kept.commit(gaussian_event(40.0))


def test_a_commit_counts_what_others_have_spent(store):
    store.reserve(gaussian_event(5.0))
    small = store.reserve(gaussian_event(50.0))
    with pytest.raises(dp.BudgetError, match="do not release"):
        small.commit(gaussian_event(6.0))  # alone it would fit
    assert small.store.fits(gaussian_event(50.0))


def test_a_store_is_never_overspent_by_a_hair(store):
    store.reserve(gaussian_event(1e3))
    total = brentq(lambda mu: filtered_epsilon(mu) - 1, 0.1, 1)
    over, under = (gaussian_event(1 / math.sqrt((share * total) ** 2 - 1e-6)) for share in (1.0001, 0.9999))
    with pytest.raises(dp.BudgetError, match="does not fit"):
        store.reserve(over)
    store.reserve(under)


def test_the_total_is_little_above_the_composition(store):
    events = [dpsgd_event(40.0, 0.1, 50), discrete_gaussian_event(4096 * 20, 2048, 10), gaussian_event(20.0)]
    for event in events:
        store.reserve(event).commit(event)
    assert 1 < store.spent() / epsilon_of(compose(*events), DELTA) < 1.02


def test_fit_reserves_exactly_what_it_commits(path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = (X[:, 0] > 0).astype(int)
    store = BudgetStore.create(
        path, epsilon=0.8, delta=1e-5, dataset=NAME
    )  # two of 0.5 compose to about 0.72, three to about 0.9
    for guarantee in ("universal", "split"):
        clf = dp.PrivateConformalClassifier(
            epsilon=0.5, delta=1e-5, classes=[0, 1], guarantee=guarantee, feature_bounds=dp.RowNorm(1.0)
        )
        with suppress(dp.GuaranteeWarning):  # so few records get full sets
            clf.fit(X, y, budget=store)
    _, first, done, second, done_too = store.lines()
    for reserve, commit in ((first, done), (second, done_too)):
        events = [[e["event"] for e in json.loads(line.content)["entries"]] for line in (reserve, commit)]
        assert events[0] == events[1]
    assert store.remaining() >= 0
    reg = dp.PrivateConformalRegressor(epsilon=0.5, delta=1e-5, y_bounds=(-3, 3), feature_bounds=dp.RowNorm(1.0))
    with pytest.raises(dp.BudgetError, match="does not fit"):
        reg.fit(X, X[:, 0], budget=store)
    assert not hasattr(reg, "model_")
    with pytest.raises(TypeError, match="must be a BudgetStore"):
        reg.fit(X, X[:, 0], budget=dp.Budget(1.0, 1e-5))


def test_a_fit_spends_from_the_store_what_its_ledger_says(path):
    store = BudgetStore.create(path, epsilon=2.0, delta=1e-5, dataset=NAME)
    X = np.random.default_rng(0).normal(size=(400, 3))
    model = dp.PrivateConformalClassifier(
        dp.training.DPSGD(steps=5), epsilon=1.0, delta=1e-5, classes=[0, 1], guarantee="asymptotic"
    ).fit(X, (X[:, 0] > 0).astype(int), budget=store)
    assert [e.stage for e in store.ledger().entries] == ["training", "calibration"]
    assert [e.event for e in store.ledger().entries] == [e.event for e in model.ledger_.entries]
    assert 0.99 <= model.ledger_.epsilon(1e-5) <= 1.0
    assert 1 < store.spent() / model.ledger_.epsilon(1e-5) < 1.01


def test_a_fit_that_fails_in_training_has_spent_its_share(path, monkeypatch):
    store = BudgetStore.create(path, epsilon=1.0, delta=1e-5, dataset=NAME)
    X = np.random.default_rng(0).normal(size=(50, 2))
    mechanism = dp.training.DPSGD(steps=5, noise_multiplier=30.0)

    def fails(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(dp.training.DPSGD, "train_source", fails)
    clf = dp.PrivateConformalClassifier(mechanism, epsilon=0.5, classes=[0, 1], guarantee="corrected")
    with pytest.raises(MemoryError):
        clf.fit(X, (X[:, 0] > 0).astype(int), budget=store)
    assert [line.kind for line in store.lines()] == ["budget", "reserve"]
    assert store.spent() > 0.4


# ---- fits that are chosen by what earlier ones released

POINTS = np.linspace(-9, 9, 241)
WEIGHTS = norm.pdf(POINTS) / norm.pdf(POINTS).sum()


def gaussian_profile(epsilon, mu):
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def split_profile(epsilon, mu_training, mu_held_out, fraction):
    """Delta of removing a record from a secret split of two Gaussian releases, at any real epsilon.

    The inner integral over the held-out part's normal number is the price of a call option.
    """
    trained = (1 - fraction) * np.exp(mu_training * POINTS - mu_training**2 / 2)
    strike = (np.exp(epsilon)[:, None] - trained) / fraction
    positive = np.maximum(strike, 1e-300)
    reach = mu_held_out / 2 - np.log(positive) / mu_held_out
    call = np.where(strike > 0, norm.cdf(reach) - positive * norm.cdf(reach - mu_held_out), 1 - strike)
    return fraction * call @ WEIGHTS


def largest(fits, low, high):
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def test_choosing_by_an_outcome_never_passes_the_total(path):
    """A Gaussian release, then whichever of the two largest shares is worse for the record, by the number released.

    By the sum of a fixed sequence both fit, and a record removed is told at epsilon 2.10 and delta 1e-5.
    """
    first, fraction, mu_training, delta = 0.35, 0.03, 0.05, 1e-5
    store = BudgetStore.create(path, epsilon=2.0, delta=delta, dataset=NAME)
    store.reserve(gaussian_event(1 / first))
    mu = largest(lambda mu: store.fits(gaussian_event(1 / mu)), 0.1, 1.0)
    split = {"training": gaussian_event(1 / mu_training), "fraction": fraction}
    mu_held_out = largest(lambda mu: store.fits(secret_split(held_out=gaussian_event(1 / mu), **split)), 0.1, 3.0)
    losses = first * POINTS + first**2 / 2  # of the first release, where the record is in

    def delta_of_choice(epsilon):
        left = epsilon - losses
        worse = np.maximum(gaussian_profile(left, mu), split_profile(left, mu_training, mu_held_out, fraction))
        return WEIGHTS @ worse

    assert brentq(lambda epsilon: delta_of_choice(epsilon) - delta, 0.5, 5) <= 2.0
    assert mu > 0.33  # a fixed sequence allows 0.359
    assert mu_held_out > 0.8


def test_committing_what_was_looked_at_alone_never_passes_the_total(path):
    """A Gaussian release and a secret split are reserved; by the Gaussian number, the split or another share follows.

    If the commit of the Gaussian release alone lowered the charge, a record would be told at epsilon 2.087 and delta
    1e-5.
    """
    first, fraction, mu_training, delta = 0.35, 0.03, 0.05, 1e-5
    store = BudgetStore.create(path, epsilon=2.0, delta=delta, dataset=NAME)
    seen, training = gaussian_event(1 / first), gaussian_event(1 / mu_training)

    def both(mu):
        return compose(seen, secret_split(training=training, fraction=fraction, held_out=gaussian_event(1 / mu)))

    mu_held_out = largest(lambda mu: store.fits(both(mu)), 0.1, 3.0)
    assert mu_held_out > 1.3
    reserved = store.reserve(both(mu_held_out))
    before = store.spent()
    reserved.commit(seen)
    assert store.spent() == before
    mu = largest(lambda mu: store.fits(gaussian_event(1 / mu)), 1e-3, 1.0)
    losses = first * POINTS + first**2 / 2

    def delta_of_choice(epsilon):
        left = epsilon - losses
        return WEIGHTS @ np.maximum(gaussian_profile(left, mu), split_profile(left, mu_training, mu_held_out, fraction))

    assert brentq(lambda epsilon: delta_of_choice(epsilon) - delta, 0.5, 5) <= 2.0


def test_only_gaussian_commits_of_gaussian_reservations_change_a_charge(path):
    store = BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)
    steps = store.reserve(dpsgd_event(40.0, 0.1, 50))
    before = store.spent()
    steps.commit(dpsgd_event(40.0, 0.1, 10))  # may have been stopped by what it saw
    assert store.spent() == before
    other = store.reserve(dpsgd_event(40.0, 0.1, 50))
    both = store.spent()
    other.commit(gaussian_event(1e6))
    assert store.spent() == both
    third = store.reserve(dpsgd_event(40.0, 0.1, 50))
    three = store.spent()
    assert three > both
    for more in (dpsgd_event(30.0, 0.1, 50), gaussian_event(5.0)):  # steps that were added by what it saw
        with pytest.raises(dp.BudgetError, match="spent something else than it reserved"):
            third.commit(more)
    last = store.reserve(gaussian_event(20.0))
    last.commit(gaussian_event(1e6))
    assert store.spent() == pytest.approx(three, rel=1e-6)


def test_steps_with_a_delta_of_their_own_take_it_from_the_slack(tmp_path):
    step = approximate_dp_event(0.1, 4e-8)
    small, wide = (
        BudgetStore.create(tmp_path / name, epsilon=1.0, delta=delta, dataset=NAME)
        for name, delta in (("small", DELTA), ("wide", 10 * DELTA))
    )
    small.reserve(step)
    with pytest.raises(dp.BudgetError, match="epsilon = inf"):
        small.reserve(step)
    for _ in range(3):
        wide.reserve(step)
    # the Gaussian that dominates a randomized answer at epsilon 0.1
    mu = 2 * norm.ppf(math.exp(0.1) / (1 + math.exp(0.1)))
    exact = brentq(lambda e: gaussian_profile(e, math.sqrt(3) * mu) - 9.5e-6, 1e-9, 9)
    assert wide.spent() == pytest.approx(exact, rel=3e-3)


def test_one_share_may_take_the_whole_total(store):
    event = gaussian_event(1 / gdp_mu(1.0, DELTA) + 1e-9)
    store.reserve(event).commit(event)
    assert (store.spent(), store.remaining()) == (1.0, 0.0)
    assert store.spent(1e-3) == pytest.approx(epsilon_of(event, 1e-3))
    for more in (event, gaussian_event(1e4)):
        assert not store.fits(more)
        with pytest.raises(dp.BudgetError, match="does not fit"):
            store.reserve(more)


@pytest.mark.parametrize(
    "whole", [gaussian_event(1 / gdp_mu(1.0, DELTA) + 1e-9), approximate_dp_event(0.99, 0.99 * DELTA)]
)
def test_a_share_that_took_the_whole_total_gives_nothing_back(store, whole):
    """What it looked at decides what else would be spent; the filter had no place for it."""
    store.reserve(whole).commit(gaussian_event(1e6))
    assert store.spent() == 1.0
    assert not store.fits(gaussian_event(1e6))


def test_a_commit_never_takes_the_whole_total_afterwards(store):
    reserved = store.reserve(gaussian_event(20.0))
    with pytest.raises(dp.BudgetError, match="spent something else than it reserved"):
        reserved.commit(gaussian_event(1 / gdp_mu(1.0, DELTA) + 1e-9))


# ---- opening and creating


def test_creating_and_opening_are_two_calls(path, tmp_path):
    for call in (
        lambda: BudgetStore(path),
        lambda: BudgetStore.open(path, dataset=NAME),
    ):
        with pytest.raises(FileNotFoundError, match=r"BudgetStore\.create"):
            call()
        assert not path.exists()
    with pytest.raises(ValueError, match="delta must lie strictly"):
        BudgetStore.create(path, epsilon=1.0, delta=0.0, dataset=NAME)
    with pytest.raises(ValueError, match="dataset must be a text"):
        BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=" ")
    assert not path.exists()
    made = BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)
    made.reserve(gaussian_event(8.0))
    content = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"BudgetStore\.open"):
        BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)
    assert path.read_bytes() == content
    assert BudgetStore(path).spent() == made.spent() > 0
    odd = BudgetStore.create(tmp_path / "a ?#%20 ü.budget", epsilon=1.0, delta=DELTA, dataset="Ä 'x'")
    assert os.path.exists(odd.path)
    again = pickle.loads(pickle.dumps(odd))
    assert (again.budget, again.dataset) == (odd.budget, "Ä 'x'")
    again.reserve(gaussian_event(8.0))  # the name travels with the object
    assert repr(odd).startswith("BudgetStore(")
    with pytest.raises(OSError, match="folder exists"):
        BudgetStore.create(tmp_path / "missing" / "x.budget", epsilon=1.0, delta=DELTA, dataset=NAME)


def test_a_creation_that_fails_leaves_no_file(path, monkeypatch):
    def fails(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(budget_module, "_write_head", fails)
    with pytest.raises(KeyboardInterrupt):
        BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)
    assert not path.exists()


def test_spending_repeats_the_name_of_the_data_set(store, path):
    with pytest.raises(ValueError, match=f"dataset must be '{NAME}'.* got 'other'"):
        BudgetStore.open(path, dataset="other")
    clf = dp.PrivateConformalClassifier(epsilon=0.5, classes=[0, 1], feature_bounds=dp.RowNorm(1.0))
    for nameless in (BudgetStore(path), BudgetStore.open(path)):
        assert nameless.dataset == NAME
        assert nameless.remaining() == 1.0  # reading needs no name
        with pytest.raises(ValueError, match="none was given"):
            nameless.reserve(gaussian_event(8.0))
        with pytest.raises(ValueError, match="none was given"):
            clf.fit(Untouchable(), Untouchable(), budget=nameless)
    assert len(store.lines()) == 1
    BudgetStore.open(path, dataset=NAME).reserve(gaussian_event(8.0))
    assert len(store.lines()) == 2


class Untouchable:
    """Records that nobody may look at."""

    def __getattr__(self, name):
        pytest.fail(f"a record was looked at ({name})")

    def __array__(self, *_, **__):
        pytest.fail("a record was looked at")


@pytest.mark.parametrize("kind", [dp.PrivateConformalClassifier, dp.PrivateConformalRegressor])
def test_a_seeded_fit_is_refused_before_a_record_is_looked_at(store, kind):
    with pytest.raises(ValueError, match="random_state=None"):
        kind(random_state=0).fit(Untouchable(), Untouchable(), budget=store)
    assert len(store.lines()) == 1


def test_a_mechanism_for_the_other_task_is_refused_before_anything_is_spent(store, path):
    before = path.read_bytes()
    reg = dp.PrivateConformalRegressor(DPSGD(), y_bounds=(-3, 3), feature_bounds=dp.RowNorm(1.0))
    with pytest.raises(ValueError, match=r"must train a regression model, but this one trains|is for regression"):
        reg.fit(np.zeros((40, 2)), np.arange(40) % 2, budget=store)
    assert path.read_bytes() == before


def test_seeded_ledgers_are_refused_wherever_they_come_in(store):
    seeded = dp.Ledger().add("x", gaussian_event(8.0)).mark_seeded()
    for call in (store.fits, store.reserve):
        with pytest.raises(ValueError, match="seed"):
            call(seeded)
    assert len(store.lines()) == 1
    reserved = store.reserve(gaussian_event(8.0))
    with pytest.raises(ValueError, match="do not release"):
        reserved.commit(seeded)
    assert [line.kind for line in store.lines()] == ["budget", "reserve"]  # the reservation stays spent


# ---- nobody rewrites history


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lines SET note = 'x'",
        "DELETE FROM lines",
        "INSERT OR REPLACE INTO lines SELECT line, kind, reservation, written, note, content, digest FROM lines",
        "INSERT INTO lines SELECT line + 7, 'commit', 'z', written, note, content, digest FROM lines LIMIT 1",
    ],
)
def test_the_file_refuses_changes(store, path, statement):
    store.reserve(gaussian_event(8.0))
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="lines are"):
        connection.execute(statement)
    connection.close()
    assert len(store.lines()) == 2


@pytest.mark.parametrize("change", ["UPDATE lines SET content = ? WHERE line = 1", "DELETE FROM lines WHERE line = 1"])
def test_a_line_changed_behind_its_back_is_noticed(store, path, change):
    for _ in range(2):
        store.reserve(gaussian_event(30.0))
    connection = sqlite3.connect(path)
    for trigger in ("no_update", "no_delete"):
        connection.execute(f"DROP TRIGGER {trigger}")
    harmless = dp.Ledger().to_json()
    connection.execute(change, (harmless,) if "?" in change else ())
    connection.commit()
    connection.close()
    for call in (store.spent, store.summary, lambda: store.reserve(gaussian_event(30.0)), lambda: BudgetStore(path)):
        with pytest.raises(ValueError, match="was altered at line 1"):
            call()


# ---- trouble


def test_damaged_foreign_and_newer_files(store, path, tmp_path):
    content = path.read_bytes()
    path.write_bytes(content[:512] + b"\xff" * 3000 + content[3512:])
    with pytest.raises(ValueError, match=r"damaged|altered|not a budget store"):
        BudgetStore(path).spent()
    path.write_bytes(b"this is no database, but it is long enough to look like one" * 20)
    with pytest.raises(ValueError, match="restore it from a backup"):
        BudgetStore(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="creation was interrupted"):
        BudgetStore(path)
    path.unlink()
    BudgetStore.create(path, epsilon=1.0, delta=DELTA, dataset=NAME)
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE lines (x)")
    connection.close()
    with pytest.raises(ValueError, match="not a budget store"):
        BudgetStore(other)
    for version in (0, 2, 99):
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        with pytest.raises(ValueError, match=f"has version {version}, but this release reads version 1 only"):
            BudgetStore(path)


def test_every_single_damaged_byte_is_noticed_or_harmless(store, path):
    """Flip one byte at a time: the store is refused or still reads the very same lines."""
    store.reserve(gaussian_event(8.0), note="kept")
    lines, content = store.lines(), path.read_bytes()
    for place in np.random.default_rng(0).choice(len(content), 150, replace=False):
        broken = bytearray(content)
        broken[place] ^= 0xFF
        path.write_bytes(broken)
        try:
            read = BudgetStore(path).lines()
        except (ValueError, OSError):
            continue
        assert read == lines


def test_a_damaged_count_does_not_hide_what_was_spent(store, path):
    """One byte says how many lines a page holds: set to 1, the total looked unspent."""
    store.reserve(gaussian_event(8.0)).commit(gaussian_event(8.0))
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    leaves = [at for at in range(size, len(content), size) if content[at] == 13 and content[at + 3 : at + 5] == b"\0\3"]
    assert leaves
    for at in leaves:
        for count in (0, 1, 2):
            path.write_bytes(content[: at + 4] + bytes([count]) + content[at + 5 :])
            with pytest.raises(ValueError, match="treat everything since that backup as spent"):
                store.remaining()


def test_read_only_file(store, path, monkeypatch):
    honest = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda file, **options: honest(file.replace("mode=rw", "mode=ro"), **options)
    )
    assert store.remaining() == 1.0
    with pytest.raises(PermissionError, match="make the file and its folder writable"):
        store.reserve(gaussian_event(8.0))


def reserve_on_a_small_disk(path, answer):
    import resource  # not on Windows

    store, written = BudgetStore.open(path, dataset=NAME), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, 24_000))
    try:
        for _ in range(60):
            store.reserve(gaussian_event(200.0), note="x" * 500)
            written += 1
    except OSError as error:
        answer.send((written, str(error)))


def test_full_disk(store, path):
    """A limit on the size of files stands for a full disk: a clear message, and the file stays sound."""
    process, answer = start(reserve_on_a_small_disk, path)
    written, message = answer.recv()
    process.join()
    assert "nothing was" in message
    assert len(store.lines()) == 1 + written


def test_lock_held_by_another_process(store, path, monkeypatch):
    monkeypatch.setattr(budget_module, "_LOCK_SECONDS", 0.2)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(TimeoutError, match="wait for it"):
        store.reserve(gaussian_event(8.0))
    connection.execute("ROLLBACK")
    connection.close()
    store.reserve(gaussian_event(8.0))


def test_the_lock_is_taken_before_anything_is_read(store, path, monkeypatch):
    """Between reading what is spent and writing a share nobody else may write: a later lock would come too late."""
    honest, tried = budget_module._append, []

    def append(*given):
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
        tried.append(1)
        honest(*given)

    monkeypatch.setattr(budget_module, "_append", append)
    store.reserve(gaussian_event(30.0)).commit(gaussian_event(30.0))
    assert tried == [1, 1]


# ---- several processes


def spend_all(path, answer):
    store = BudgetStore.open(path, dataset=NAME)
    answer.recv()
    with suppress(dp.BudgetError):
        while True:
            store.reserve(gaussian_event(12.0)).commit(gaussian_event(12.0))


def test_processes_together_never_overspend(store, path):
    writers = [start(spend_all, path) for _ in range(2)]
    for _, answer in writers:
        answer.send("go")
    for process, _ in writers:
        process.join()
        assert process.exitcode == 0
    # the largest number of these events that composes to at most 1
    most = next(k for k in range(1, 90) if filtered_epsilon(math.sqrt(k + 1) / 12) > 1)
    assert len(store.ledger().entries) == most
    assert store.remaining() >= 0


def spend_and_tell(path, answer):
    store = BudgetStore.open(path, dataset=NAME)
    while True:
        answer.send(store.reserve(gaussian_event(400.0)).identity)


def test_a_killed_writer_loses_nothing(store, path):
    process, answer = start(spend_and_tell, path)
    told = [answer.recv() for _ in range(3)]
    time.sleep(0.03)
    process.kill()
    process.join()
    with suppress(EOFError):
        while True:
            told.append(answer.recv())
    kept = [line.reservation for line in store.lines()[1:]]
    # whatever was told as reserved is there; at most one more had been written and not told
    assert kept[: len(told)] == told
    assert len(kept) - len(told) in (0, 1)
