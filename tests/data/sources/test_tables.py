"""Every kind of table gives the records, the bits and the messages of the same rows in memory."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import dask.dataframe as dd
import datasets
import duckdb
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.orc
import pytest

import dpscp as dp
from dpscp.cli.main import main
from dpscp.data.sources import TableSource
from dpscp.data.sources.files import TableError
from dpscp.data.sources.tables import Table

N, CANARY = 700, "canary-4711"
DECLARED = {
    "task": "classification",
    "target": "label",
    "classes": ["no", "yes"],
    "n_records": N,
    "columns": {
        "a": {"type": "numeric", "bounds": [-4, 4]},
        "b": {"type": "categorical", "categories": ["u", "v"]},
        "year": {"type": "numeric", "bounds": [2020, 2026]},
    },
}
SCHEMA = dp.Schema.from_dict(DECLARED)
PERSONS = dp.Schema.from_dict(
    {**DECLARED, "n_records": None, "person": "who", "rows_per_person": 2, "n_persons": N // 2}
)


def made(n=N):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=n).round(6), rng.choice(["u", "v"], n)
    label = np.where(a + (b == "u") > 0.5, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "year": np.repeat([2023, 2024], n // 2), "label": label})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One table in every form."""
    place, frame = tmp_path_factory.mktemp("tables"), made()
    for name in ("parts", "csv/deep", "hive/year=2023", "hive/year=2024", "pattern/x"):
        (place / name).mkdir(parents=True)
    frame.to_parquet(place / "t.parquet", index=False)
    for name in ("t.csv", "t.csv.gz"):
        frame.to_csv(place / name, index=False)
    frame.to_csv(place / "t.tsv", index=False, sep="\t")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pyarrow.feather.write_feather(table, place / "t.arrow")
    pyarrow.orc.write_table(table, place / "t.orc")
    for number, part in enumerate((frame[:233], frame[233:400], frame[400:])):
        part.to_parquet(place / f"parts/{number}.parquet", index=False)
        part.to_csv(place / f"csv/deep/{number}.csv", index=False)
        part.to_parquet(place / f"pattern/x/{number}.pq", index=False)
    (place / "parts/_SUCCESS").touch()
    (place / "pattern/notes.txt").write_text("no table")
    for year, part in frame.groupby("year"):
        part.drop(columns="year").to_parquet(place / f"hive/year={year}/p.parquet", index=False)
    fsspec.filesystem("memory").pipe("/scanner/t.csv", (place / "t.csv").read_bytes())
    return place


FILES = {
    "csv": "t.csv",
    "compressed": "t.csv.gz",
    "tabs": "t.tsv",
    "arrow": "t.arrow",
    "orc": "t.orc",
    "folder": "parts",
    "folder of csv": "csv",
    "hive": "hive",
    "pattern": "pattern/**/?.pq",
    "url": "file://{}/t.parquet",
    "url of a pattern": "file://{}/parts/*.parquet",
}


def table_of(kind, folder):
    if kind == "memory":
        return "memory://scanner/t.csv"
    if kind == "list":
        return [folder / f"parts/{number}.parquet" for number in range(3)]
    if kind == "dataset":
        return ds.dataset(folder / "hive", partitioning="hive")
    if kind == "filtered":
        return ds.dataset(folder / "parts").filter(ds.field("year") > 0)
    if kind == "reader":
        return pa.Table.from_pandas(made()).to_reader(100)
    if kind == "polars":
        return pl.scan_parquet(folder / "t.parquet").filter(pl.col("year") > 0)
    if kind == "duckdb":
        return duckdb.sql(f"select * from '{folder / 't.parquet'}'")
    if kind == "hugging face":
        return datasets.Dataset.from_pandas(made())
    if kind == "its stream":
        return datasets.Dataset.from_pandas(made()).to_iterable_dataset()
    name = FILES[kind]
    return name.format(folder) if "://" in name else folder / name


KINDS = [
    *FILES,
    "memory",
    "list",
    "dataset",
    "filtered",
    "reader",
    "polars",
    "duckdb",
    "hugging face",
    "its stream",
]


def listed(block):
    return [(block.id, block.read().tobytes(), block.targets.tobytes())]


def classifier():
    training = dp.training.DPSGD(sampling_rate=0.3, steps=5, learning_rate=1.0)
    return dp.PrivateConformalClassifier(training, epsilon=4.0, guarantee="split", random_state=3, accountant="rdp")


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(made(), "label", schema=SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_bits_of_the_same_rows_in_memory(kind, folder, fitted):
    rows, targets = SCHEMA.matrix(made()), SCHEMA.targets(made())
    source = TableSource(table_of(kind, folder), SCHEMA, block_rows=128)
    starts = range(0, N, 128)  # blocks have the public size, whatever the files are
    expected = [(i, rows[s : s + 128].tobytes(), targets[s : s + 128].tobytes()) for i, s in enumerate(starts)]
    assert source.sum(listed) == source.sum(listed) == expected
    found = classifier().fit(table_of(kind, folder), "label", schema=SCHEMA)
    assert found.threshold_.tobytes() == fitted.threshold_.tobytes()
    assert all(np.array_equal(a, fitted.model_.arrays()[name]) for name, a in found.model_.arrays().items())
    assert [e.note for e in found.ledger_.entries] == [e.note for e in fitted.ledger_.entries]
    np.testing.assert_array_equal(found.predict_set(table_of(kind, folder))[1], fitted.predict_set(made())[1])
    assert dp.check_table(table_of(kind, folder), SCHEMA) == dp.check_table(made(), SCHEMA)
    wrong = dp.Schema.from_dict({**DECLARED, "classes": ["no", "perhaps"]})
    (problem,) = dp.check_table(table_of(kind, folder), wrong).problems
    assert problem.n_records == (made()["label"] == "yes").sum()


class S3(BaseHTTPRequestHandler):
    """The part of S3 that reading needs: sizes, ranges of bytes and lists of names."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self):
        found = self.files.get(unquote(urlsplit(self.path).path))
        self.answer(404 if found is None else 200, b"", {"Content-Length": str(len(found or b""))})

    def do_GET(self):
        address = urlsplit(self.path)
        found = self.files.get(unquote(address.path))
        if found is None:
            prefix = f"{address.path.rstrip('/')}/{parse_qs(address.query).get('prefix', [''])[0]}"
            names = sorted(name for name in self.files if name.startswith(prefix))
            rows = "".join(
                f"<Contents><Key>{name.split('/', 2)[2]}</Key><Size>{len(self.files[name])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for name in names
            )
            listed = f"<KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>{rows}"
            self.answer(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode())
        elif "Range" in self.headers:
            start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self.answer(206, found[start : stop + 1])
        else:
            self.answer(200, found)

    def answer(self, code, content, headers=None):
        self.send_response(code)
        for name, text in (headers or {"Content-Length": str(len(content))}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Write nothing."""


@pytest.fixture
def bucket(folder):
    """The parts of the table in a bucket, and the options of its URL."""
    S3.files = {f"/b/parts/{path.name}": path.read_bytes() for path in (folder / "parts").iterdir()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), S3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"?scheme=http&endpoint_override=127.0.0.1:{server.server_port}&region=us-east-1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["parts", "parts/*.parquet", "parts/1.parquet"])
def test_a_bucket_gives_the_records_of_its_files(path, bucket, folder):
    found = TableSource(f"s3://user:{CANARY}@b/{path}{bucket}", SCHEMA, block_rows=128).sum(listed)
    assert found == TableSource(str(folder / path), SCHEMA, block_rows=128).sum(listed)


def test_a_key_in_a_url_is_not_printed(bucket):
    for name in ("no.parquet", "parts/2.parque"):
        refused(f"s3://user:{CANARY}@b/{name}{bucket}&x={CANARY}", "^(?!.*user)", (TableError, FileNotFoundError))


def test_no_command_keeps_or_prints_a_key_of_a_url(bucket, tmp_path, monkeypatch, capfd):
    """Neither the note beside the model, which recognizes the table, nor the name of a batch, nor a command to copy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(dp.Schema.from_dict({**DECLARED, "n_records": None}).to_toml())
    fitted, new = (f"s3://user:{CANARY}@b/parts/{name}.parquet{bucket}" for name in (0, 1))
    spend = ["--epsilon", "4", "--delta", "1e-6"]
    assert main(["schema", fitted, "--target", "label"]) == 0
    assert (tmp_path / "0.schema.toml").is_file()
    for name in ("m", "again"):  # the second one says that the table was fitted before
        assert main(["fit", fitted, "--schema", "s.toml", *spend, "-o", f"{name}.dpscp"]) == 0
    assert "'s3://b/parts/0.parquet' was fitted before (m.dpscp)" in capfd.readouterr().err
    assert main(["evaluate", "m.dpscp", fitted, *spend]) == 1
    assert "'s3://b/parts/0.parquet' is the table that the model was fitted on" in capfd.readouterr().err
    state = ["--state", "state.json", "--tolerated", "0.2", *spend]
    assert main(["monitor", "m.dpscp", new, *state]) in (0, 4)
    assert json.loads((tmp_path / "state.json").read_text())["batches"][0]["name"] == "1.parquet"
    (tmp_path / "open.toml").write_text('target = "label"\n')
    assert main(["fit", fitted, "--schema", "open.toml", *spend]) == 1
    printed = capfd.readouterr()
    assert CANARY not in printed.out + printed.err
    assert not [path.name for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def source_sum(table, schema):
    return TableSource(table, schema).sum(len)


def refused(table, said, error=TableError):
    with pytest.raises(error, match=said) as found:
        source_sum(table, SCHEMA)
    assert CANARY not in str(found.value)


def test_what_is_not_read_is_refused(folder, tmp_path):
    refused(tmp_path / "no.parquet", "does not exist", FileNotFoundError)
    refused(folder / "t.parqet", "Did you mean 't.parquet'", FileNotFoundError)
    refused(tmp_path, "contains no table")
    refused(folder / "pattern", "notes.txt' has no ending of a table")
    refused(folder / "*.x", "contains no table")
    refused([folder / "t.parquet", folder / "t.csv"], "must have one format")
    refused([folder / "t.parquet", folder / "t.parquet"], "has a file twice")
    refused("no-such-system://x/t.csv", "cannot be opened")
    refused("", "path of the table is empty")
    refused(datasets.DatasetDict(train=datasets.Dataset.from_pandas(made())), r"such as X\['train'\]")
    made().to_parquet(tmp_path / "1.parquet", index=False)
    made().drop(columns="a").to_parquet(tmp_path / "2.parquet", index=False)
    refused(tmp_path, "2.parquet' lacks column 'a'")
    refused(ds.dataset(tmp_path), "a file of the dataset lacks column 'a'")
    made().rename(columns={"a": CANARY}).to_csv(tmp_path / "1.csv", index=False)
    made().to_csv(tmp_path / "2.csv", index=False)
    refused([tmp_path / "1.csv", tmp_path / "2.csv"], "lacks column 'a'", (TableError, dp.data.schema.SchemaError))
    (tmp_path / "_temporary").mkdir()
    made().to_parquet(tmp_path / "_temporary/3.parquet", index=False)
    refused(tmp_path / "**/*.parquet", "hidden or unfinished")
    with pytest.raises(TypeError, match="needs a schema"):
        classifier().fit(folder / "t.parquet", None)
    for other in ([made(), made()], iter([made()]), duckdb.connect()):
        with pytest.raises(ValueError, match=r"or list of paths, an Arrow Dataset.*got (list|list_iterator|DuckDB)"):
            classifier().fit(other, "label", schema=SCHEMA)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "orc"])
def test_a_damaged_file_is_named_without_its_content(ending, tmp_path):
    (tmp_path / f"t.{ending}").write_text(CANARY)
    refused(tmp_path / f"t.{ending}", "cannot be read as")


def test_a_changed_page_of_parquet_is_refused(tmp_path):
    path, whole = tmp_path / "t.parquet", pa.Table.from_pandas(made())
    pa.parquet.write_table(whole, path, write_page_checksum=True, compression="none", row_group_size=300)
    content = bytearray(path.read_bytes())
    content[pa.parquet.read_metadata(path).row_group(1).column(0).data_page_offset + 100] ^= 1
    path.write_bytes(content)
    refused(path, "cannot be read as Parquet")
    (problem,) = dp.check_table(path, SCHEMA).problems
    assert problem.place == f"row group 1 (the first is 0), column 'a' of {str(path)!r}"


def test_a_check_names_the_line_of_a_short_record(tmp_path):
    path, lines = tmp_path / "t.csv", made().to_csv(index=False).splitlines()
    lines[500] = CANARY
    path.write_text("\n".join(lines))
    with pytest.raises(TableError, match="all rows have the same length") as found:
        TableSource(path, SCHEMA).sum(len)
    said = "".join(traceback.format_exception(found.value))
    assert ("dpscp check" in said, CANARY in said, "501" in str(found.value)) == (True, False, False)
    (problem,) = dp.check_table(path, SCHEMA).problems
    assert (problem.place, CANARY in str(problem)) == (f"line 501 of {str(path)!r}", False)


@pytest.mark.parametrize(
    ("column", "cell", "schema", "said"),
    [
        ("b", CANARY, SCHEMA, "column 'b' has a missing value"),
        ("a", CANARY, SCHEMA, "column 'a' is declared numeric but has a value that is not a number"),
        ("a", None, SCHEMA, "column 'a' has missing values"),
        ("a", {CANARY: 1}, SCHEMA, "column 'a' is nested"),
        ("label", CANARY, SCHEMA, "the target column 'label' has a missing label"),
        ("who", None, PERSONS, "persons has a missing id"),
    ],
)
def test_an_error_of_a_record_names_file_and_column_and_a_check_names_the_record(column, cell, schema, said, tmp_path):
    bad = made().assign(who=np.arange(len(made())) // 2)
    parts = [bad[:300], bad[300:].astype({column: object})]
    parts[1].loc[690:692, column] = pd.Series([cell] * 3, index=[690, 691, 692])
    if isinstance(cell, dict):
        parts[1][column] = [cell] * len(parts[1])
    for number, part in enumerate(parts):
        texts = part.astype({column: "str"}) if cell == CANARY else part
        texts.to_parquet(tmp_path / f"{number}.parquet", index=False)
    with pytest.raises(ValueError, match=said) as found:
        classifier().fit(tmp_path, "label", schema=schema)
    (note,) = found.value.__notes__
    text = "".join(traceback.format_exception(found.value))
    assert "1.parquet" in note
    assert "dpscp check" in note
    assert not any(secret in str(found.value) + note for secret in ("391", "691", CANARY))
    assert CANARY not in text
    (problem,) = dp.check_table(tmp_path, schema).problems
    assert (said in problem.message, CANARY in str(problem)) == (True, False)
    place = repr(str(tmp_path / "1.parquet"))
    assert problem.place == (place if isinstance(cell, dict) else f"record 391 of {place}")
    assert problem.n_records == (None if isinstance(cell, dict) else 3)


def test_an_error_of_another_library_is_not_shown(tmp_path):
    """It contains the cell that does not fit the type of the first file."""
    made().to_parquet(tmp_path / "1.parquet", index=False)
    bad = made().astype({"a": str})
    bad.loc[100, "a"] = CANARY
    bad.to_parquet(tmp_path / "2.parquet", index=False)
    query = f"select cast(a as double) as a, b, year, label from '{tmp_path}/2.parquet'"
    for read, table, said in (
        (source_sum, ds.dataset(tmp_path), "different types"),
        (source_sum, duckdb.sql(query), "different types"),
        (dp.check_table, duckdb.sql(query), "different types"),
    ):
        with pytest.raises(ValueError, match=said) as found:
            read(table, SCHEMA)
        assert CANARY not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("schema", [SCHEMA, PERSONS])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_an_error_in_a_graph_of_dask_is_not_shown(schema, is_shuffled):
    bad = made().astype({"a": str}).assign(who=np.arange(N) // 2)
    bad.loc[100, "a"] = CANARY
    frame = dd.from_pandas(bad, npartitions=3)
    frame["a"] = frame["a"].astype(float)
    if is_shuffled:
        frame = frame.shuffle("who")
    with pytest.raises(ValueError, match="the Dask collection cannot be read") as found:
        classifier().fit(frame, "label", schema=schema)
    assert CANARY not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize("in_memory", [0, 2**27])
@pytest.mark.parametrize("schema", [SCHEMA, PERSONS])
def test_a_table_is_read_once(schema, in_memory, tmp_path, monkeypatch):
    """Later readings are those of memory or of the scratch file."""
    made().assign(who=np.arange(N) // 2).to_csv(tmp_path / "t.csv", index=False)
    reads, read = [], Table.batches
    monkeypatch.setattr(Table, "batches", lambda *words: reads.append(1) or read(*words))
    monkeypatch.setattr("dpscp.data.sources.tables._IN_MEMORY", in_memory)
    classifier().fit(tmp_path / "t.csv", "label", schema=schema)
    assert len(reads) == 1


def test_an_error_of_a_remote_file_system_is_not_printed(monkeypatch):
    def fail(_):
        raise OSError(CANARY)

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    refused("memory://scanner/t.csv", r"cannot be opened \(OSError\)")


_LONG_FIT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in children of a script in the background
import dpscp as dp
from dpscp.data.sources import tables
tables._IN_MEMORY = 0
store = dp.BudgetStore.open("study.budget", dataset="people")
training = dp.training.DPSGD(sampling_rate=0.3, steps=10**7, learning_rate=1.0)
fit = dp.PrivateConformalClassifier(training, epsilon=2.0, guarantee="split", accountant="rdp", verbose=1).fit
try:
    fit(sys.argv[1], "label", schema=dp.Schema.read("s.toml"), budget=store)
except KeyboardInterrupt as error:
    print(*error.__notes__)
"""


def test_an_interrupted_fit_leaves_only_its_charge(folder, tmp_path):
    """A real process and a real signal, in the middle of training from scratch files."""
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    (tmp_path / "scratch").mkdir()
    store = dp.BudgetStore.create(tmp_path / "study.budget", epsilon=4.0, delta=1e-5, dataset="people")
    process = subprocess.Popen(
        [sys.executable, "-c", _LONG_FIT, folder / "parts"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(process.stderr.readline, "")
    shown = []
    for line in lines:
        shown.append(line.strip())
        if "prepare the records for training" in line:
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert said.endswith("study.budget' stays charged.\n")
    assert not list((tmp_path / "scratch").iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= {"s.toml", "scratch", "study.budget", "study.budget.lock"}
    assert 0 < store.remaining(1e-5) < 3
    assert shown[0] == "dpscp: read the table"
