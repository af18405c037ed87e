"""A schema from a frame has names and types, and values only of columns that are declared public."""

import datetime

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.schema import SchemaError, parse_schema

FRAME = pd.DataFrame(
    {
        "age": [18.5, 93.25, np.nan],
        "region": ["canary-north", "canary-south", None],
        "kind": pd.Categorical(["canary-b", "canary-a", "canary-b"]),
        "member": [True, False, True],
        "day": [datetime.date(2020, 1, d) for d in (1, 2, 3)],
        "since": pd.to_datetime(["2020-01-01"] * 3),
        "y": ["canary-yes", "canary-no", "canary-no"],
    }
)


def test_no_value_enters_a_template():
    schema = dp.Schema.from_frame(FRAME, "y", task="classification")
    text = schema.to_toml()
    assert not any(mark in text for mark in ("canary", "18.5", "93.25", "2020-"))
    kinds = {column.name: column.type for column in schema.columns}
    text_types = {"region": "categorical", "kind": "categorical", "member": "categorical", "day": "categorical"}
    assert kinds == {"age": "numeric", "since": "date", **text_types}
    assert "the classes of the target" in schema.lacks
    assert not any("bounds" in words for words in schema.lacks)  # a fit finds them
    assert text.count("# bounds = [low, high]   # numeric") == 1
    assert text.count('# bounds = ["2015-01-01", "2025-12-31"]   # date') == 1
    assert parse_schema(text) == schema
    other = FRAME.assign(age=[1.0, 2.0, 3.0], region="x", kind=pd.Categorical(["z"] * 3), y="w")
    assert dp.Schema.from_frame(other, "y", task="classification") == schema


def test_what_is_wrong_is_refused():
    with pytest.raises(SchemaError, match="no column 'z'"):
        dp.Schema.from_frame(FRAME, "z")
    with pytest.raises(SchemaError, match="pass a frame"):
        dp.Schema.from_frame(np.ones((2, 2)))
