"""The ids of persons: equal ids are one person in every source and block, everything doubtful is refused."""

import datetime as dt
import decimal
import enum
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpscp as dp
from dpscp.data.persons import PersonIds, number_persons, read_person_ids
from dpscp.data.sources.places import join_person_block, split_by_person

pl = pytest.importorskip("polars")
torch = pytest.importorskip("torch")

INTEGERS = [7, 9, 7, -2]
NOON = dt.datetime(2020, 1, 31, 12)
ALIKE = {
    "integers": [
        INTEGERS,
        *(np.array(INTEGERS, dtype=kind) for kind in ("int8", object)),
        pd.Series(INTEGERS, dtype="Int64"),
        pd.Series(pd.Categorical(INTEGERS, categories=[3, 9, 7, -2])),
        pl.Series(INTEGERS),
        pa.chunked_array([INTEGERS[:1], [], INTEGERS[1:]], pa.int64()),
        pa.array(INTEGERS).dictionary_encode(),
        torch.tensor(INTEGERS, dtype=torch.int8),
    ],
    "text": [
        ["a", "b", "a", "c"],
        np.array(["a", "b", "a", "c"]),
        pd.Series(["a", "b", "a", "c"], dtype="string[python]"),
        pl.Series(["a", "b", "a", "c"], dtype=pl.Categorical),
        pa.array(["a", "b", "a", "c"], pa.large_string()),
        pa.array(["a", "b", "a", "c"]).dictionary_encode(),
    ],
}
CASES = [(kind, place) for kind, given in ALIKE.items() for place in range(len(given))]


@pytest.mark.parametrize(("kind", "place"), CASES, ids=lambda part: str(part))
def test_the_same_ids_have_the_same_keys_however_they_are_given(kind, place):
    first, found = read_person_ids(ALIKE[kind][0]), read_person_ids(ALIKE[kind][place])
    assert found.kind == kind
    assert found.keys.tolist() == first.keys.tolist()
    assert [type(key) for key in found.keys.tolist()] == [type(key) for key in first.keys.tolist()]
    assert found.hashes().tolist() == first.hashes().tolist()
    assert found.numbers().tolist() == [0, 1, 0, 2][: len(found)]
    assert "persons" not in repr(found)
    assert repr(found).count("keys") == 0


class Own(enum.IntEnum):
    ONE = 1


class Word(str):
    __slots__ = ()


NAN = float("nan")
MISSING = {
    "None": [1, None],
    "NaN in a list": ["a", NAN],
    "NaN array": np.array([1.0, NAN]),
    "masked": np.ma.array([1, 2], mask=[0, 1]),
    "Int64": pd.Series([1, None], dtype="Int64"),
    "category": pd.Series(["a", None], dtype="category"),
    "polars": pl.Series([1, None]),
    "Arrow": pa.array([1, None]),
    "Arrow dictionary": pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])),
    "Arrow index": pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a"])),
    "empty text": ["a", " "],
    "text of R": ["a", "NA"],
}
FLOATS = {
    "list": [1.0, 2.0],
    "float64": np.array([1.0, 2.0]),
    "beside integers": [2**60 + 1, 2.0**60],
    "pandas nullable": pd.Series([1.0, 2.0], dtype="Float64"),
    "Arrow": pa.array([1.0, 2.0]),
    "torch": torch.tensor([1.0, 2.0]),
    "complex": np.array([1j, 2j]),
}
OBJECTS = {
    "tuples": [("a", 1), ("b", 1)],
    "tensors": list(torch.tensor([7, 7])),
    "bytes": [b"a", b"b"],
    "decimal": [decimal.Decimal(1), decimal.Decimal(2)],
    "enum": [Own.ONE, Own.ONE],
    "derived text": [Word("a"), Word("b")],
    "instants of pandas": pd.Series([NOON, NOON]),
    "booleans": [True, False],
    "booleans and integers": [True, 1],
    "multi-index": pd.MultiIndex.from_tuples([(1, 2), (1, 3)]),
    "Arrow structs": pa.array([{"a": 1}, {"a": 2}]),
    "scalars": list(pa.array([1, 2])),
    "set": {1, 2},
    "generator": (i for i in range(2)),
    "matrix": torch.zeros(2, 2, dtype=torch.int64),
}
MIXED = {
    "text and integers": ["7", 7],
    "object column": pd.Series(["a", 1], dtype=object),
    "categories": pd.Series([1, True, "a"], dtype="category")[:2],
}


@pytest.mark.parametrize(
    ("ids", "error", "told"),
    [
        *(pytest.param(ids, ValueError, "missing id", id=f"missing {name}") for name, ids in MISSING.items()),
        *(pytest.param(ids, ValueError, "floating-point", id=f"float {name}") for name, ids in FLOATS.items()),
        *(pytest.param(ids, TypeError, "persons must", id=name) for name, ids in OBJECTS.items()),
        *(pytest.param(ids, ValueError, "mixes", id=name) for name, ids in MIXED.items()),
    ],
)
def test_what_may_split_or_merge_persons_is_refused(ids, error, told):
    with pytest.raises(error, match=told):
        number_persons(ids, 2)


def test_no_message_carries_an_id():
    for ids in (["secret", 1], ["secret", None], [("secret",)], [b"secret"], ["secret\0"], [Word("secret")]):
        with pytest.raises((TypeError, ValueError)) as caught:
            read_person_ids(ids)
        assert "secret" not in str(caught.value)
        assert caught.value.__context__ is None


LARGE = 2**63 + 5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([7, 7], dtype="int32"), np.array([7, 7], dtype="uint64")),
        (np.array([7, LARGE], dtype="uint64"), [LARGE, 7]),
        (np.array([LARGE, 7], dtype="uint64"), np.array([7, 7])),
        (np.array([LARGE, LARGE + 1], dtype="uint64"), [LARGE, LARGE + 1]),
        (pl.Series([7, LARGE], dtype=pl.Object), [LARGE, 7]),
        (pa.array([7, LARGE], pa.uint64()), pl.Series([7, LARGE], dtype=pl.UInt64)),
        (["seven", "x"], pa.array(["seven", "x"])),
    ],
    ids=str,
)
def test_one_person_has_one_key_in_every_block(first, second):
    """Rows of a person that lie in two files of other types go to one place and are one person there."""
    pieces = []
    for ids in (first, second):
        n = len(ids)
        pieces.append(pickle.loads(pickle.dumps(split_by_person(np.zeros((n, 1)), np.zeros(n), ids, 3))))
    blocks = [join_person_block(place, [parts[place] for parts in pieces]) for place in range(3)]
    everyone = PersonIds.joined([read_person_ids(first), read_person_ids(second)])
    assert sum(block.persons.count for block in blocks) == len(set(everyone.keys.tolist()))
    assert sum(map(len, blocks)) == len(everyone)


def test_integers_beyond_int64_are_not_their_low_bits():
    assert number_persons([-1, 2**64 - 1, 2**64 - 1, 2**70, -1], 5).tolist() == [0, 1, 1, 2, 0]
    pieces = [split_by_person(np.zeros((1, 1)), np.zeros(1), ids, 1)[0] for ids in ([-1], [2**64 - 1])]
    assert join_person_block(0, pieces).persons.count == 2


def test_many_rows_of_one_person_move_the_released_size_by_one_person():
    """200 rows of one person whose ids are elements of a tensor were 200 persons."""
    n, own = 2000, 200
    ids = torch.cat([torch.arange(n), torch.full((own,), n)])
    scores = np.linspace(0, 1, n + own)
    options = {"held_out": True, "score_range": (0, 1), "epsilon": 1, "delta": 1e-5, "rows_per_person": 3}
    found = dp.calibrate(scores, persons=ids, random_state=0, **options)
    assert found.ledger.public_facts["n_persons"] == n + 1
    with pytest.raises(TypeError, match="Convert each id to text"):
        dp.calibrate(scores, persons=list(ids), **options)


def test_ids_of_a_source_are_columns_of_its_schema():
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    source = dp.sources.ArraySource(X, y, n_blocks=2)
    with pytest.raises(ValueError, match="schema that declares the column of ids"):
        dp.PrivateConformalClassifier(rows_per_person=2).fit(source, persons=np.arange(40))
