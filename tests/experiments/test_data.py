from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import data

ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 99999, 0, 40, US, "
)


@pytest.fixture(autouse=True)
def _forget() -> None:
    for loader in (data.adult, data.bank, data.blood_features, data.diabetes, data.housing):
        loader.cache_clear()


def test_adult_joins_both_files_and_encodes_by_public_facts_only(tmp_path: Path) -> None:
    folder = tmp_path / "adult"
    folder.mkdir()
    pd.Series([ADULT + "<=50K", ADULT.replace("State-gov", "?") + ">50K"]).to_csv(
        folder / "adult.data.gz", index=False, header=False, sep="\t"
    )
    pd.Series(["|1x3 Cross validator", ADULT + ">50K."]).to_csv(
        folder / "adult.test.gz", index=False, header=False, sep="\t"
    )
    table = data.adult(tmp_path)
    assert table.y.tolist() == [0, 1, 1]
    assert table.bounds is not None
    low, high = table.bounds
    assert table.X.shape == (3, len(low))
    np.testing.assert_array_equal(np.clip(table.X, low, high), table.X)
    names = list(data.ADULT_NUMBERS)
    assert table.X[0, names.index("capital_gain")] == data.ADULT_NUMBERS["capital_gain"][1]
    work = len(names) + np.arange(8)
    assert table.X[0, work].sum() == 1
    assert table.X[1, work].sum() == 0


def test_diabetes_keeps_whose_stay_it_is_apart_from_the_features(tmp_path: Path) -> None:
    folder = tmp_path / "diabetes130"
    folder.mkdir()
    row = {name: high for name, (_, high) in data.DIABETES_NUMBERS.items()}
    row |= {name: listed.split(", ")[0] for name, listed in data.DIABETES_CATEGORIES.items()}
    stays = [
        {**row, "age": "[70-80)", "patient_nbr": 7_000_001, "readmitted": "<30"},
        {**row, "age": "[0-10)", "patient_nbr": 7_000_001, "readmitted": "NO", "race": "?"},
    ]
    pd.DataFrame(stays).to_csv(folder / "diabetic_data.csv.gz", index=False)
    table = data.diabetes(tmp_path)
    assert table.persons is not None
    assert table.persons.tolist() == [7_000_001] * 2
    assert table.y.tolist() == [2, 0]
    assert table.X[:, 0].tolist() == [75.0, 5.0]
    assert not (table.X == 7_000_001).any()
    races = len(data.DIABETES_NUMBERS) + np.arange(5)
    assert table.X[:, races].sum(axis=1).tolist() == [1.0, 0.0]
