"""Which rows belong to which person: the choice is uniform and private, bad ids are refused, nothing is told."""

import numpy as np
import pytest

from dpscp.data.persons import Persons, choose_unit, keep_rows
from dpscp.privacy.random_streams import PlacedDraws

IDS = np.array(["b", "a", "b", "c", "a", "b", "b"])


def one_row_each(persons, seed):
    return persons.one_row_of_each(PlacedDraws(seed).uniform(range(persons.count)))


def test_rows_stand_person_by_person_in_the_order_of_the_table():
    kept, persons = keep_rows(IDS, n_rows=7, rows_per_person=10, random_state=0)
    assert kept.tolist() == [0, 2, 5, 6, 1, 4, 3]
    assert persons.offsets.tolist() == [0, 4, 6, 7]
    np.testing.assert_allclose(persons.weights, [0.25] * 4 + [0.5] * 2 + [1.0])
    assert persons.rows_of(np.array([0, 2])).tolist() == [0, 1, 2, 3, 6]


def test_one_row_a_person_leaves_the_table_as_it_is():
    kept, persons = keep_rows(np.arange(50)[::-1], n_rows=50, rows_per_person=3, random_state=0)
    assert kept.tolist() == list(range(50))
    assert (persons.weights == 1.0).all()
    assert persons.offsets.tolist() == Persons.single(50).offsets.tolist()
    assert one_row_each(persons, 7).tolist() == list(range(50))


@pytest.mark.parametrize("cap", [1, 2, 4])
def test_the_kept_rows_are_a_uniform_choice(cap):
    """Each of a person's rows is kept equally often, late rows as often as early ones."""
    runs = 4000
    counts = np.zeros(7)
    for seed in range(runs):
        kept, persons = keep_rows(IDS, n_rows=7, rows_per_person=cap, random_state=seed)
        assert persons.sizes.tolist() == [min(4, cap), min(2, cap), 1]
        counts[kept] += 1
    expected = np.array([min(1, cap / 4), min(1, cap / 2)] * 4)[[0, 1, 0, 0, 1, 0, 0]]
    expected[3] = 1.0
    # five standard deviations of a binomial
    allowed = 5 * np.sqrt(expected * (1 - expected) / runs)
    assert (np.abs(counts / runs - expected) <= allowed).all()


def test_the_scored_row_is_uniform_among_the_kept_ones():
    persons = Persons(np.array([0, 4, 5]), 4)
    runs = 4000
    counts = np.bincount(np.concatenate([one_row_each(persons, seed) for seed in range(runs)]), minlength=5)
    assert counts[4] == runs
    assert (np.abs(counts[:4] / runs - 0.25) <= 5 * np.sqrt(0.25 * 0.75 / runs)).all()


def test_without_a_seed_the_choice_is_not_repeated():
    ids = np.zeros(1000, dtype=int)
    first, second = (keep_rows(ids, n_rows=1000, rows_per_person=500)[0] for _ in range(2))
    assert first.tolist() != second.tolist()


def test_parts_draw_persons():
    _, persons = keep_rows(IDS, n_rows=7, rows_per_person=10, random_state=0)
    rows, part = persons.part(np.array([True, False, True]))
    assert rows.tolist() == [True] * 4 + [False] * 2 + [True]
    assert part.offsets.tolist() == [0, 4, 5]
    assert part.rows_per_person == 10


def test_a_pandas_column_works_and_must_not_be_a_feature():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["x", "y", "x"], name="patient", index=[7, 8, 9])
    kept, _ = keep_rows(column, n_rows=3, rows_per_person=2, columns=["age"])
    assert kept.tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match="also a feature"):
        keep_rows(column, n_rows=3, rows_per_person=2, columns=["age", "patient"])


def test_wrong_length_cap_and_kinds_are_refused_without_a_word_from_the_data():
    secret = ["secret-1", "secret-2"]
    with pytest.raises(ValueError, match="their lengths differ") as caught:
        keep_rows(secret, n_rows=37, rows_per_person=2)
    assert "secret" not in str(caught.value)
    assert "37" not in str(caught.value)
    with pytest.raises(ValueError, match="rows_per_person is required"):
        choose_unit(secret, None, n_records=None, n_persons=None)
    with pytest.raises(ValueError, match="rows_per_person"):
        keep_rows(secret, n_rows=2, rows_per_person=0)
    with pytest.raises(ValueError, match="mixes text") as caught:
        keep_rows(["7", 7], n_rows=2, rows_per_person=2)
    with pytest.raises(TypeError, match="Convert each id to text") as caught:
        keep_rows([["secret"], ["secret"]], n_rows=2, rows_per_person=2)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("given", [1, 3, 100])
def test_a_person_moves_the_count_at_every_threshold_by_at_most_one(given):
    """Brute force over all choices: one scored record a person, whatever number was given."""
    rng = np.random.default_rng(given)
    others, extra = rng.uniform(size=40), rng.uniform(size=given)
    thresholds = np.linspace(0, 1, 201)
    for seed in range(20):
        ids = np.append(np.arange(40), np.full(given, 99))
        kept, persons = keep_rows(ids, n_rows=len(ids), rows_per_person=3, random_state=seed)
        scored = np.append(others, extra)[kept[one_row_each(persons, seed)]]
        without = (others[:, None] <= thresholds).sum(axis=0) - len(others) / 2
        moved = (scored[:, None] <= thresholds).sum(axis=0) - len(scored) / 2 - without
        assert (np.abs(moved) == 0.5).all()
