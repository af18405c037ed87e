"""Persons with several rows in files and on clusters: brought together, capped, weighted, counted once."""

import json
import math
from dataclasses import replace

import dask
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core import fit as release
from dpscp.core.fit import BlockCounts
from dpscp.data.persons import Persons
from dpscp.data.schema import parse_schema
from dpscp.data.sources import ArraySource, Block, DaskSource, TableSource
from dpscp.data.sources.places import (
    Places,
    UnitSource,
    choose_one_row,
    join_person_block,
    keep_rows,
    split_by_person,
    take_census,
)
from dpscp.privacy import Unit, lattice_noise
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.training import DPSGD, Preprocessed, PrivateBounds, PrivateStandardize, TorchDPSGD
from dpscp.training.preprocessing.rescaled import PrivateTarget

dd = pytest.importorskip("dask.dataframe")
PEOPLE, CAP, BLOCKS = 400, 3, 4
SCHEMA = parse_schema(
    json.dumps(
        {
            "task": "classification",
            "target": "label",
            "classes": ["no", "yes"],
            "person": "who",
            "rows_per_person": CAP,
            "n_persons": PEOPLE,
            "columns": {"a": {"type": "numeric", "bounds": [-4, 4]}, "b": {"type": "numeric", "bounds": [-4, 4]}},
        }
    )
)


def made(ids=str):
    """One to five rows of each person, all over the table."""
    rng = np.random.default_rng(0)
    who = rng.permutation(np.repeat(np.arange(PEOPLE), rng.integers(1, 6, PEOPLE)))
    a, b = rng.normal(size=(2, len(who)))
    return pd.DataFrame({"who": [ids(w) for w in who], "a": a, "b": b, "label": np.where(a + b > 0, "yes", "no")})


def listed(block):
    return [(block.id, block.read(), block.targets, block.persons)]


def parquet(frame, folder):
    frame.to_parquet(folder / "t.parquet", index=False)
    return TableSource(folder / "t.parquet", SCHEMA, block_rows=math.ceil(len(frame) / BLOCKS))


def same(first, second):
    return all(
        i == j and (x == y).all() and (s == t).all() and (p.offsets == q.offsets).all()
        for (i, x, s, p), (j, y, t, q) in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("ids", [str, int])
def test_all_rows_of_a_person_meet_in_one_block(ids, tmp_path):
    frame = made(ids)
    source = parquet(frame, tmp_path)
    blocks = source.sum(listed)
    assert same(blocks, source.sum(listed))
    assert len(blocks) == BLOCKS
    assert all(len(targets) > len(frame) / BLOCKS / 2 for _, _, targets, _ in blocks)
    expected = sorted(tuple(sorted(rows["a"])) for _, rows in frame.groupby("who"))
    found = [tuple(sorted(part)) for _, rows, _, p in blocks for part in np.split(rows[:, 0], p.offsets[1:-1])]
    assert sorted(found) == expected  # whole persons, each once
    with dask.config.set(scheduler="synchronous"):
        cut = dd.from_pandas(frame, npartitions=BLOCKS)
        assert same(blocks, DaskSource.of_frame(cut, SCHEMA).sum(listed))
    # a person who leaves changes one block
    fewer = [(rows, targets) for _, rows, targets, _ in parquet(frame[frame["who"] != ids(7)], tmp_path).sum(listed)]
    changed = [len(x) != len(rows) for (_, x, _, _), (rows, _) in zip(blocks, fewer, strict=True)]
    assert sum(changed) == 1
    assert all((x == rows).all() for (_, x, _, _), (rows, _), c in zip(blocks, fewer, changed, strict=True) if not c)


def released(model):
    arrays = {name: value.tobytes() for name, value in model.model_.arrays().items()}
    # but for the sentence that says where the records came from
    ledger, believed = replace(model.ledger_, assumptions=()), set(model.ledger_.assumptions)
    certificates = [c.to_dict() | {"assumptions": set(c.assumptions) - believed} for c in model.certificates_]
    return arrays, model.threshold_.tobytes(), ledger.to_dict(), certificates


class Watched(DPSGD):
    """Training that looks at its persons."""

    def train_on(self, run):
        assert run.source.sum(rows_of_persons) <= {1, 2, CAP}
        return super().train_on(run)


class Sizes(set):
    def __add__(self, other):
        return Sizes(self | other)


def rows_of_persons(block):
    return Sizes(block.persons.sizes.tolist())


@pytest.mark.parametrize("guarantee", ["split", "corrected"])
def test_a_fit_on_files_and_clusters_is_that_in_memory(guarantee, tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(release, "BlockCounts", lambda *given: counted.append(BlockCounts(*given)) or counted[-1])

    def fitted(*given):
        mechanism = Watched(sampling_rate=0.3, steps=8, learning_rate=1.0, noise_multiplier=4.0)
        model = dp.PrivateConformalClassifier(mechanism, epsilon=6.0, guarantee=guarantee, random_state=2)
        return model.fit(*given, schema=SCHEMA)

    frame = made()
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    model = fitted(TableSource(tmp_path / "t.parquet", SCHEMA))
    assert model.ledger_.public_facts["n_persons"] == PEOPLE
    assert model.ledger_.public_facts["rows_per_person"] == CAP
    assert "exchangeable" in " ".join(map(str, model.certificate_.assumptions))
    assert "new person" in " ".join(map(str, model.certificate_.assumptions))
    assert released(model) == released(fitted(frame, "label"))
    if guarantee == "corrected":
        assert {counts.size for counts in counted} == {PEOPLE}  # one score each
        return
    model = fitted(parquet(frame, tmp_path))  # in blocks, persons are in another order
    with dask.config.set(scheduler="synchronous"):
        uneven = dd.concat(
            [dd.from_pandas(part, npartitions=1) for part in (frame[:7], frame[7:300], frame[300:900], frame[900:])]
        )
        assert released(fitted(uneven, "label")) == released(model)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert fitted(tmp_path / "t.csv", "label").ledger_.to_dict()["entries"] == model.ledger_.to_dict()["entries"]


def test_a_persons_rows_are_chosen_uniformly_and_each_person_counts_once():
    n, size = 4000, 5
    person = Persons(np.arange(n + 1) * size)
    block = Block(3, np.tile(np.arange(size), n)[:, None], np.arange(n * size), person)
    places = Places.of(take_census(replace(block, id=2)) + take_census(block))
    kept = keep_rows(PlacedDraws(1), places, 2, block)
    assert (kept.persons.sizes == 2).all()
    assert kept.persons.rows_per_person == 2
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], n, 2 / size)
    assert all(low <= count <= high for count in np.bincount(kept.read()[:, 0], minlength=size))
    one = choose_one_row(PlacedDraws(2), places, kept)
    assert len(one) == n
    assert one.persons is None
    assert (one.targets // size == np.arange(n)).all()
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], n, 1 / size)
    assert all(low <= count <= high for count in np.bincount(one.read()[:, 0], minlength=size))
    again = keep_rows(PlacedDraws(1), places, 2, replace(block, id=2))
    assert not (again.targets == kept.targets).all()


def test_repeating_a_persons_only_row_changes_no_sum_and_no_batch(monkeypatch):
    """What a mechanism makes of persons with three equal rows is what it makes of persons with one."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    y = X @ [1.0, -1.0] / 4

    def source(times):
        blocks = [
            Block(i, np.repeat(X[p], times, axis=0), np.repeat(y[p], times), Persons(np.arange(31) * times, CAP))
            for i, p in enumerate((slice(0, 30), slice(30, 60), slice(60, 90)))
        ]
        return UnitSource(ArraySource.of_blocks(blocks), Unit(CAP, by_person=True))

    torch.manual_seed(0)
    sgd = DPSGD(loss="squared", sampling_rate=0.3, steps=5, learning_rate=0.1, noise_multiplier=1.0, dtype="float64")
    net = TorchDPSGD(torch.nn.Linear(2, 1), "squared", 0.3, 5, 0.1, noise_multiplier=1.0)
    mechanisms = [
        sgd,
        net,
        Preprocessed((PrivateStandardize(-4, 4, 1.0),), sgd),
        PrivateTarget(sgd, (-1, 1), noise_multiplier=1.0),
        PrivateBounds(sgd, 2, target=True, noise=lattice_noise(50.0)),
    ]
    counts, released = [], PrivateBounds.release
    monkeypatch.setattr(PrivateBounds, "release", lambda s, c, *rest: counts.append(c) or released(s, c, *rest))
    for mechanism in mechanisms:
        once, thrice = (mechanism.train_source(source(times), random_state=1, n_records=90) for times in (1, 3))
        assert once.public_facts["n_persons"] == 90
        for name, value in once.model.arrays().items():
            np.testing.assert_allclose(thrice.model.arrays()[name], value, rtol=1e-5, atol=1e-7)
    assert (counts[0] == counts[1]).all()
    assert len(counts) == 2


def test_what_is_refused(tmp_path):
    model = dp.PrivateConformalClassifier(DPSGD(), epsilon=2.0, classes=["no", "yes"])
    frame = made()
    with pytest.raises(ValueError, match="the source has no ids; pass a frame or a path"):
        dp.PrivateConformalClassifier(DPSGD(), epsilon=2.0).fit(
            ArraySource(frame[["a", "b"]].to_numpy(), frame["label"].to_numpy(str)), schema=SCHEMA
        )
    source = parquet(frame, tmp_path)
    with pytest.raises(ValueError, match="the source has person ids"):
        model.fit(source)
    with pytest.raises(ValueError, match="persons needs X and y in memory"):
        model.fit(source, persons=frame["who"])
    rows, targets = np.zeros((2, 1)), np.zeros(2)
    with pytest.raises(ValueError, match="missing id"):
        split_by_person(rows, targets, ["x", None], 2)
    with pytest.raises(ValueError, match="one id for each row"):
        split_by_person(rows, targets, ["x"], 2)
    for doubtful in (["x", "x\0"], [1.0, 2.0], np.array([1, 2], dtype="float32")):
        with pytest.raises(ValueError, match=r"persons .*\. (Write|Read) "):
            split_by_person(rows, targets, doubtful, 2)


def test_text_in_one_part_and_numbers_in_another_are_refused_wherever_they_meet():
    """A person who is "7" here and 7 there would be two, in blocks that see nothing of each other."""
    rows, targets = np.zeros((1, 1)), np.zeros(1)
    parts = [split_by_person(rows, targets, ["7"], 2), split_by_person(rows, targets, [7], 2)]
    assert sorted(len(ids) for pieces in zip(*parts, strict=True) for *_, ids in pieces) == [0, 0, 1, 1]
    for place in range(2):
        with pytest.raises(ValueError, match="mixes text and integers"):
            join_person_block(place, [pieces[place] for pieces in parts])
    empty = split_by_person(rows[:0], targets[:0], [], 2)
    assert sum(join_person_block(place, [parts[0][place], empty[place]]).persons.count for place in range(2)) == 1


def test_ids_of_files_with_other_types_are_the_same_persons(tmp_path):
    """A column of integers is int32 in one file, int64 in another; floating-point numbers are refused."""
    folder = tmp_path / "t"
    folder.mkdir()
    frame = made(int)
    frame[:500].astype({"who": "int32"}).to_parquet(folder / "1.parquet", index=False)
    frame[500:].astype({"who": "uint64"}).to_parquet(folder / "2.parquet", index=False)
    apart = TableSource(folder, SCHEMA, block_rows=100)
    assert apart.sum(lambda block: block.owners.count) == PEOPLE
    frame[500:].astype({"who": "float64"}).to_parquet(folder / "2.parquet", index=False)
    with pytest.raises(ValueError, match="floating-point"):
        TableSource(folder, SCHEMA, block_rows=100).sum(len)
    frame[500:].astype({"who": "Int64"}).replace({"who": {7: None}}).to_parquet(folder / "2.parquet", index=False)
    with pytest.raises(ValueError, match="missing id"):
        TableSource(folder, SCHEMA, block_rows=100).sum(len)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert TableSource(tmp_path / "t.csv", SCHEMA, block_rows=100).sum(lambda block: block.owners.count) == PEOPLE
