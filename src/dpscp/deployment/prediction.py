"""Predict the rows of a table: add the answers of a model to its columns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpscp.data.schema import Schema
from dpscp.data.sources.files import TableError
from dpscp.data.sources.tables import Table
from dpscp.data.table_writer import open_writer


def predict_block(estimator: Any, schema: Schema, frame: Any, first: int = 1) -> tuple[dict[str, Any], int]:
    """Return the new columns of a block, and its number of unpredicted rows.

    A row that violates the schema has no prediction. The last column, ``errors``, gives its row number and the reason.
    The privacy promise is about the records of the fit, not about rows to predict.

    Parameters
    ----------
    frame : n rows with the columns of the schema.
    first : row number of the first one in the table.

    Returns
    -------
    columns : dict of Arrow arrays of length n
    n_errors : int
    """
    import pyarrow as pa

    X, errors = schema.rows(frame)
    bad = np.array([error is not None for error in errors], dtype=bool)
    places = pa.array(np.arange(len(bad)), mask=bad)
    columns = {name: values.take(places) for name, values in estimator.predict_arrow(X).items()}
    texts = [error and f"row {first + place}: {error}" for place, error in enumerate(errors)]
    return columns | {"errors": pa.array(texts, pa.string())}, int(bad.sum())


def predict_table(
    estimator: Any,
    table: Table,
    output: Path,
    *,
    raw: bool = False,
    check: Callable[[int], None] | None = None,
) -> tuple[int, int, list[str]]:
    """Write a table with the answers of a model as new columns, block by block.

    Parameters
    ----------
    output : file to write, see ``open_writer``.
    raw : bool
        Whether texts that look like formulas are written to CSV unchanged.
    check : function, optional
        Called with the number of rows read so far, before each block is predicted. It may raise an error.

    Returns
    -------
    n : int
        Rows of the table.
    n_errors : int
        Rows without a prediction.
    columns : list of str
        The new columns.
    """
    schema: Schema = estimator.schema_
    n, n_errors, added = 0, 0, list[str]()
    with open_writer(output, table.csv_format, raw=raw) as write:
        for block in table.batches("predict"):
            if check is not None:
                check(n + len(block))
            columns, bad = predict_block(estimator, schema, table.as_frame(block, schema), n + 1)
            n, n_errors, added = n + len(block), n_errors + bad, list(columns)
            for name, values in columns.items():
                if name in block.schema.names:
                    raise TableError(f"the table already has a column {name!r}; rename or drop that column")
                block = block.append_column(name, values)
            write(block)
    return n, n_errors, added
