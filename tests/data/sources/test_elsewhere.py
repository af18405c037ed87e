"""Files and clusters keep the promises of a source: the same blocks each time, sums in order, errors as they are."""

from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from dpscp.data.schema import parse_schema
from dpscp.data.sources import Block, DaskSource, RecordSource, TableSource
from dpscp.data.sources.places import is_in_memory

dd = pytest.importorskip("dask.dataframe")
SCHEMA = parse_schema(
    """
task = "classification"
target = "label"
classes = ["no", "yes"]

[columns.a]
type = "numeric"
bounds = [-9, 9]

[columns.b]
type = "categorical"
categories = ["u", "v", "w"]
"""
)


def made(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "other": rng.normal(size=n),
            "a": rng.normal(size=n).round(6),
            "b": rng.choice(["u", "v", "w"], n),
            "label": rng.choice(["no", "yes"], n),
        }
    )


def source_of(kind: str, frame: pd.DataFrame, folder: Path) -> RecordSource:
    """The frame behind each kind of source, in several blocks."""
    if kind == "parquet":
        frame.to_parquet(folder / "t.parquet", index=False)
        return TableSource(folder / "t.parquet", SCHEMA, scratch=folder, block_rows=10)
    if kind == "dask frame":
        return DaskSource.of_frame(dd.from_pandas(frame, npartitions=4), SCHEMA)
    X, y = SCHEMA.matrix(frame), SCHEMA.targets(frame)
    return DaskSource(da.from_array(X, chunks=(11, 2)), da.from_array(y, chunks=5))


KINDS = ["parquet", "dask frame", "dask"]


def doubled(rows):
    return 2.0 * rows


def doubled_rows(block):
    return block.with_steps(doubled)


def everything(block: Block):
    """Rows and targets of the block at its place among all, so that the sum shows all of them."""
    rows = np.zeros((60, 200))
    rows[block.id, : len(block) * block.width] = block.read().ravel()
    return rows, np.eye(60, dtype=int)[block.id] * len(block), int((block.targets == "yes").sum())


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_rows_in_order_each_time(kind, tmp_path):
    frame = made(43)
    source = source_of(kind, frame, tmp_path)
    assert isinstance(source, RecordSource)
    assert source.width == 4
    assert not is_in_memory(source)
    kept = source.map(doubled_rows, keep=True).map(doubled_rows)
    for read, factor in ((source, 1.0), (source.map(doubled_rows), 2.0), (kept, 4.0)):
        rows, sizes, yes = read.sum(everything)
        np.testing.assert_array_equal(rows, read.sum(everything)[0])
        found = np.concatenate([rows[i, : 4 * size] for i, size in enumerate(sizes)]).reshape(-1, 4)
        np.testing.assert_array_equal(found, factor * SCHEMA.matrix(frame))
        assert (sizes > 0).sum() >= 3
        assert yes == (frame["label"] == "yes").sum()
    assert not list(tmp_path.glob(".dpscp-*"))  # the scratch file has no name


def test_what_is_no_source_is_refused():
    X, y = da.ones((10, 2), chunks=5), da.ones(10, chunks=(3, 3, 4))
    assert DaskSource(X, y).sum(len) == 10
    with pytest.raises(ValueError, match="same chunks"):
        DaskSource(X, da.ones(9, chunks=3))
    with pytest.raises(ValueError, match="2 dimensions"):
        DaskSource(y, y)
    with pytest.raises(ValueError, match="real numbers"):
        DaskSource(X.astype(str), y).sum(len)
