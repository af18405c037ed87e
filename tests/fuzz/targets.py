"""What is fuzzed: everything that reads a text or a file somebody else may have written.

Each target takes bytes and may raise the documented errors only; anything else is a bug. Files with checksums would
stop a fuzzer at the first check, so the model target can also alter the content and seal it again.
"""

import io
import json
import os
import sqlite3
import tempfile
import zipfile
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import numpy as np

import dpscp as dp
from dpscp.data.model_files import FORMAT_VERSION
from dpscp.data.schema import SchemaError, parse_schema
from dpscp.privacy import Ledger, compose, dpsgd_event, gaussian_event, parallel
from dpscp.privacy import store as budget
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.store_log import Account

# memory, where there is one: a million small files should not reach a disk
FOLDER = tempfile.mkdtemp(prefix="dpscp-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def ledger_json(data: bytes) -> None:
    """``Ledger.from_json``: a ``ValueError``, or a ledger that survives a round trip."""
    try:
        ledger = Ledger.from_json(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        return
    text = ledger.to_json()
    assert Ledger.from_json(text).to_json() == text


def schema_text(data: bytes) -> None:
    """``parse_schema``: a ``SchemaError``, or a schema that, if complete, survives a round trip through TOML."""
    try:
        schema = parse_schema(data.decode("utf-8", "replace"))
    except SchemaError:
        return
    again = parse_schema(schema.to_toml())
    # what a column without a type says is not kept, and texts are compared because nan differs from itself
    assert schema.lacks or str(again) == str(schema)


def model_file(data: bytes) -> None:
    """``dp.load``: a ``ValueError``, or an estimator; raw bytes, or a valid file altered inside and sealed again."""
    _load_altered(data, None)


def torch_file(data: bytes) -> None:
    """``dp.load`` of a torch model with its architecture, as ``model_file``."""
    _load_altered(data, _module())


def _load_altered(data: bytes, module: Any) -> None:
    kind, rest = data[:1], data[1:]
    content = rest if kind < b"\x40" else _resealed(kind, rest, module is not None)
    path = os.path.join(FOLDER, f"model-{os.getpid()}")
    with open(path, "wb") as file:
        file.write(content)
    try:
        dp.load(path, module=module)
    except ValueError:
        return


def store_file(data: bytes) -> None:
    """The budget store's reader, in memory: SQLite's file with bytes overwritten, or lines altered and sealed again.

    An overwritten file is refused with an error that ``BudgetStore`` explains, or gives the very same lines. Altered
    lines are a ``ValueError``, or a total, a name and a ledger.
    """
    kind, rest = data[:1], data[1:]
    try:
        with _store_object()._errors():
            if kind < b"\x80":
                assert _lines_in(_overwritten(_store(), rest)) == _store_lines()
            else:
                account = Account.of_rows(_sealed_rows(rest))
                _ = account.budget, account.dataset, account.ledger()
    except (ValueError, OSError):
        return


def _overwritten(content: bytes, places: bytes) -> bytes:
    altered = bytearray(content)
    for i in range(0, len(places) - 3, 4):
        altered[int.from_bytes(places[i : i + 3], "little") % len(altered)] = places[i + 3]
    return bytes(altered)


def _lines_in(content: bytes) -> tuple[budget.Line, ...]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        return budget._checked_account(connection).lines
    finally:
        connection.close()


def _sealed_rows(rest: bytes) -> list[tuple[Any, ...]]:
    """The rows of a valid store with a piece of one column overwritten, and digests that fit."""
    lines = list(_store_lines())
    row, column = (rest[0] % len(lines), rest[1] % 5) if len(rest) > 1 else (0, 4)
    name = ("kind", "reservation", "written", "note", "content")[column]
    old = getattr(lines[row], name)
    place = int.from_bytes(rest[2:4], "little") % (len(old) + 1)
    dropped = rest[4] if len(rest) > 4 else 0
    text = old[:place] + rest[5:].decode("utf-8", "surrogateescape") + old[place + dropped :]
    lines[row] = replace(lines[row], **{name: text})
    previous = "0" * 64
    for i, line in enumerate(lines):
        lines[i] = replace(line, digest=line.expected_digest(previous))
        previous = lines[i].digest
    return [astuple(line) for line in lines]


TARGETS = {"ledger": ledger_json, "schema": schema_text, "model": model_file, "torch": torch_file, "store": store_file}


def _resealed(kind: bytes, rest: bytes, torch: bool) -> bytes:
    body, arrays = _model(torch)
    if kind < b"\xc0":
        # overwrite a piece of the body: place, length of what is dropped, the new text
        place = int.from_bytes(rest[:2], "little") % (len(body) + 1)
        dropped = rest[2] if len(rest) > 2 else 0
        body = body[:place] + rest[3:].decode("utf-8", "replace") + body[place + dropped :]
    else:
        name = sorted(arrays)[rest[0] % len(arrays)] if rest else min(arrays)
        old = arrays[name]
        place = int.from_bytes(rest[1:3], "little") % (len(old) + 1)
        arrays = {**arrays, name: old[:place] + rest[3:] + old[place + len(rest[3:]) :]}
    head = {"format": "dpscp-model", "version": FORMAT_VERSION, "arrays": list(arrays), "body": {}}
    text = json.dumps(head).replace("{}", body)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("header.json", text)
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


@cache
def _module() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


@cache
def _model_bytes(torch: bool) -> bytes:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    clf = dp.PrivateConformalClassifier(
        dp.training.TorchDPSGD(_module(), steps=3, sampling_rate=0.1, noise_multiplier=20.0)
        if torch
        else dp.training.DPSGD(steps=3, noise_multiplier=20.0),
        epsilon=1.0,
        classes=["a", "b"],
        guarantee="corrected",
        random_state=0,
    )
    clf.fit(X, np.where(X[:, 0] > 0, "a", "b"))
    path = os.path.join(FOLDER, f"valid-model-{torch}")
    clf.save(path)
    with open(path, "rb") as file:
        return file.read()


@cache
def _model(torch: bool) -> tuple[str, dict[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(_model_bytes(torch))) as archive:
        head = json.loads(archive.read("header.json"))
        return json.dumps(head["body"]), {name: archive.read(f"{name}.npy") for name in head["arrays"]}


@cache
def _store_object() -> BudgetStore:
    store = BudgetStore.create(os.path.join(FOLDER, "valid-store"), epsilon=1.0, delta=1e-6, dataset="x")
    store.reserve(gaussian_event(20.0)).commit(gaussian_event(20.0))
    connection = sqlite3.connect(store.path)
    connection.execute("VACUUM")
    connection.close()
    return store


@cache
def _store_lines() -> tuple[budget.Line, ...]:
    return _store_object().lines()


@cache
def _store() -> bytes:
    with open(_store_object().path, "rb") as file:
        return file.read()


def seeds(target: str) -> list[bytes]:
    """Valid inputs to start from."""
    if target == "ledger":
        whole = Ledger().add("train", dpsgd_event(2.0, 0.01, 100), "x").declare(n_records=5, classes=["a", "ü"])
        both = whole.add("both", parallel(gaussian_event(1.0), compose(gaussian_event(2.0), dpsgd_event(3.0, 0.5, 2))))
        return [whole.to_json().encode(), both.mark_seeded().to_json().encode(), Ledger().to_json().encode()]
    if target == "schema":
        columns = '[columns.age]\ntype = "numeric"\nbounds = [0, 110]\nmissing = "indicator"\n'
        columns += '[columns."r g"]\ntype = "categorical"\ncategories = ["n", "s"]\nunknown = "other"\n'
        head = 'task = "classification"\ntarget = "y"\nclasses = ["a", "b"]\nn_records = 10\n'
        return [
            (head + columns).encode(),
            b'task = "regression"\ntarget = "y"\nbounds = [0, 1]\n[columns.y]\ntype = "ignore"\n',
            b'{"task": "regression", "target": "y", "bounds": [0, 1e3], "columns": {"x": {"type": "numeric"}}}',
        ]
    if target in ("model", "torch"):
        torch = target == "torch"
        body = _model(torch)[0]
        inside = ("input_shape", "answers") if torch else ("widths",)
        places = [body.index(word) for word in (*inside, "classes", "ledger", "certificates", "group_values")]
        texts = [b"\x80" + place.to_bytes(2, "little") + b"\x05null" for place in places]
        return [b"\x00" + _model_bytes(torch), *texts, b"\xd0\x00\x40\x00<f8", b"\xd0\x01\x00\x00"]
    content = _store_lines()[0].content
    heads = [content.index(word) for word in ("1.0", "1e-06", '"x"', "slack")]
    altered = [b"\x80\x00\x04" + place.to_bytes(2, "little") + b"\x05null" for place in heads]
    return [
        b"",
        b"\x00\x00\x00\x00\x01",
        bytes(range(64)),
        *altered,
        b"\x80\x01\x04\x00\x00\x05{}",
        b"\x80\x02\x00\x00\x00\x09",
    ]
