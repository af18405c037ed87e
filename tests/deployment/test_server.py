"""A server on a real port, asked by a real HTTP client: answers, faults, and what it never writes down."""

import csv
import http.client
import io
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.sources.tables import Table
from dpscp.deployment import judge
from dpscp.deployment import server as server_module
from dpscp.deployment.server import OutcomeFile, RequestError, create_app, record_schema, serve

SECRET = "Musterfrau-71"
SCHEMA = {
    "task": "classification",
    "target": "ill",
    "classes": ["no", "yes"],
    "n_records": 2000,
    "columns": {
        "age": {"type": "numeric", "bounds": [0, 100]},
        "dose": {"type": "numeric", "bounds": [0, 1], "missing": "indicator"},
        "ward": {"type": "categorical", "categories": ["a", "b"]},
        "admitted": {"type": "date", "bounds": ["2020-01-01", "2026-12-31"]},
    },
}
PERSONS = {name: value for name, value in SCHEMA.items() if name != "n_records"} | {
    "person": "name",
    "rows_per_person": 2,
}


def people(n, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, n).round(1)
    ill = np.where(age + rng.normal(0, 15, n) > 50, "yes", "no")
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1500, n), "D")
    dose = np.where(rng.random(n) < 0.2, np.nan, rng.random(n).round(2))
    ward = rng.choice(["a", "b"], n)
    return pd.DataFrame({"age": age, "dose": dose, "ward": ward, "admitted": admitted.strftime("%Y-%m-%d"), "ill": ill})


@pytest.fixture(scope="module")
def fitted():
    clf = dp.PrivateConformalClassifier(epsilon=4.0, random_state=0)
    with pytest.warns(dp.SeededWarning):
        return clf.fit(people(2000), "ill", schema=dp.Schema.from_dict(SCHEMA))


@contextmanager
def running(folder, model, *options, name="model.dpscp"):
    """Start ``dpscp serve`` in a process of its own; yield its port and what it has written so far."""
    model.save(folder / name)
    command = [sys.executable, "-m", "dpscp", "serve", str(folder / name), "--port", "0", *map(str, options)]
    with (folder / "log.txt").open("w+b") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            while b"answers until" not in (text := (folder / "log.txt").read_bytes()):
                assert process.poll() is None, text
                time.sleep(0.05)
            yield int(text.split(b" answers")[0].rsplit(b":", 1)[1]), process
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def server(tmp_path_factory, fitted):
    folder = tmp_path_factory.mktemp("server")
    with running(folder, fitted, "--outcomes", "outcomes.csv") as (port, _):
        yield port, folder


def ask(port, method, path, body=None, kind="application/json", host="127.0.0.1", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
    connection.request(method, path, text, {"Content-Type": kind, "Host": f"{host}:{port}", **headers})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(found) if is_json else found, answer.headers


def as_records(frame):
    return json.loads(frame.to_json(orient="records"))


def test_answers_are_those_of_the_estimator(server, fitted):
    new = people(40, seed=1).drop(columns="ill")
    status, found, headers = ask(server[0], "POST", "/predict", as_records(new))
    labels, sets = fitted.predict_set(new)
    assert status == 200
    assert found["errors"] == 0
    assert headers["Cache-Control"] == "no-store"
    assert [row["prediction"] for row in found["predictions"]] == labels.tolist()
    assert [row["set"] for row in found["predictions"]] == [fitted.classes_[s].tolist() for s in sets[:, :, 0]]
    one = ask(server[0], "POST", "/predict", as_records(new)[0])[1]
    assert one["predictions"] == found["predictions"][:1]
    assert ask(server[0], "POST", "/predict", [])[1] == {"predictions": [], "errors": 0}


def test_a_table_gets_the_same_new_columns_as_on_the_command_line(server, fitted, tmp_path, run):
    new = people(300, seed=2)
    new.loc[7, "ward"] = "unknown"
    new.to_csv(tmp_path / "new.csv", index=False)
    fitted.save(tmp_path / "m.dpscp")
    assert run("predict m.dpscp new.csv -o out.csv")[0] == 0
    status, found, headers = ask(server[0], "POST", "/predict", (tmp_path / "new.csv").read_bytes(), "text/csv")
    assert status == 200
    assert headers.get_content_type() == "text/csv"
    assert found == (tmp_path / "out.csv").read_bytes()
    assert b"row 8: column 'ward'" in found


def test_what_is_public_can_be_read(server, fitted):
    port = server[0]
    assert ask(port, "GET", "/health")[1]["status"] == "ok"
    about = ask(port, "GET", "/schema")[1]
    assert about["model"] == fitted.digest()
    assert about["record"] == record_schema(fitted.schema_)
    assert about["record"]["required"] == ["age", "ward", "admitted"]
    assert about["record"]["properties"]["ward"]["enum"] == ["a", "b"]
    assert about["record"]["properties"]["age"]["description"] == "values outside 0 to 100 are clipped"
    assert about["verdict"] == judge(fitted).to_dict()
    assert ask(port, "GET", "/statement")[1] == json.loads(json.dumps(fitted.statement()))
    assert b"What this release promises" in ask(port, "GET", "/report")[1]
    bodies = ask(port, "GET", "/openapi.json")[1]["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert bodies["application/json"]["schema"]["oneOf"][0] == about["record"]
    status, page, headers = ask(port, "GET", "/")
    assert status == 200
    assert b"<form" in page
    assert b"http" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("status", "words", "body", "kind"),
    [
        (400, "not valid JSON", b'{"age": 1', "application/json"),
        (400, "not valid JSON", b'{"age": NaN}', "application/json"),
        (400, "not valid JSON", b"[" * 100_000, "application/json"),
        (400, "not valid JSON", b'{"ward": "\\ud800", "age": 1}', "application/json"),
        (400, "send a record", [1, 2], "application/json"),
        (422, "unknown column 'agee'. Did you mean 'age'?", {"agee": 1}, "application/json"),
        (422, "a list or an object", {"age": [1]}, "application/json"),
        (415, "Content-Type", b"age=1", "application/x-www-form-urlencoded"),
        (415, "Content-Type", b'{"age": 1}', "text/plain"),
        (422, "lacks column 'age'", b"a;b\n1;2\n", "text/csv"),
        (422, "cannot be read as CSV", b"age,dose,ward,admitted\n1,2\n", "text/csv"),
        (422, "already has a column", b"age,dose,ward,admitted,set\n1,,a,2024-01-01,x\n", "text/csv"),
        (422, "not written in utf-8", b"age,dose,ward,admitted\n1,,\xff\xfe\xfa,2024-01-01\n", "text/csv"),
    ],
)
def test_bad_requests_get_the_reason(server, status, words, body, kind):
    found = ask(server[0], "POST", "/predict", body, kind)
    assert found[0] == status
    assert words in found[1]["error"]


def test_a_wrong_value_is_explained_and_not_repeated(server):
    record = {"age": SECRET, "ward": SECRET, "admitted": SECRET}
    _, found, _ = ask(server[0], "POST", "/predict", record)
    assert found["errors"] == 1
    assert found["predictions"][0]["prediction"] is None
    assert all(name in found["predictions"][0]["error"] for name in ("age", "ward", "admitted"))
    assert SECRET not in json.dumps(found)


def test_other_pages_cannot_ask(server):
    """A page of another site reaches this machine by a name of its own, or by a form that needs no permission."""
    assert ask(server[0], "GET", "/schema", host="evil.example")[0] == 421
    assert ask(server[0], "POST", "/outcomes", b"{}", "text/plain")[0] == 415
    assert "Access-Control-Allow-Origin" not in ask(server[0], "GET", "/schema")[2]


def test_outcomes_are_collected_for_the_monitor(server, fitted, tmp_path, run):
    port, folder = server
    batch = people(400, seed=3)
    for start in (0, 200):
        status, found, _ = ask(port, "POST", "/outcomes", as_records(batch[start : start + 200]))
        assert (status, found) == (201, {"collected": 200})
    wrong = as_records(batch[:2])
    wrong[1]["ill"] = SECRET
    status, found, _ = ask(port, "POST", "/outcomes", wrong)
    assert status == 422
    assert "nothing was collected" in found["error"]
    assert SECRET not in found["error"]
    written = pd.read_csv(folder / "outcomes.csv")
    assert len(written) == 400
    assert (folder / "outcomes.csv").stat().st_mode & 0o077 == 0
    pd.testing.assert_frame_equal(written, batch[list(fitted.schema_.column_names)].reset_index(drop=True))
    fitted.save(tmp_path / "m.dpscp")
    line = f"monitor m.dpscp {folder / 'outcomes.csv'} --state s.json --epsilon 1 --seed 0"
    assert run(line)[0] == 0


@pytest.mark.parametrize(
    "changed",
    [{"name": None}, {"name": ""}, {"age": True}, {"age": "1,5"}, {"age": None}, {"ill": "maybe"}, {"name": "\x00"}],
)
def test_one_record_cannot_make_the_monitor_refuse_all_others(tmp_path, changed):
    """What was collected is read as a whole: a record that the monitor refuses would take all others with it."""
    schema = dp.Schema.from_dict(PERSONS)
    file, good = OutcomeFile(tmp_path / "o.csv", schema), {**as_records(people(1))[0], "name": "A"}
    file.append([good])
    with pytest.raises(RequestError, match="nothing was collected"):
        file.append([good, {**good, **changed}])
    assert not dp.check_table(tmp_path / "o.csv", schema).problems


def test_no_record_is_written_to_the_log(server):
    port, folder = server
    for body in ({"age": SECRET, "ward": SECRET}, SECRET.encode(), {SECRET: 1}):
        ask(port, "POST", "/predict", body)
    ask(port, "GET", f"/{SECRET}?name={SECRET}")
    assert SECRET not in (folder / "log.txt").read_text()


def test_many_clients_at_once(server, fitted):
    new = people(60, seed=4).drop(columns="ill")
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda record: ask(server[0], "POST", "/predict", record)[1], as_records(new)))
    assert [one["predictions"][0]["prediction"] for one in found] == fitted.predict(new).tolist()


def test_a_start_keeps_outcomes_and_a_token_is_needed_where_given(tmp_path, fitted):
    (tmp_path / "token.txt").write_text("a-long-random-text\n")
    record = as_records(people(1))
    OutcomeFile(tmp_path / "o.csv", fitted.schema_).append(record)
    with running(tmp_path, fitted, "--outcomes", "o.csv", "--token-file", "token.txt") as (port, _):
        assert ask(port, "GET", "/health")[0] == ask(port, "GET", "/")[0] == 200
        for wrong in ({}, {"Authorization": "Bearer a-long-random-tex"}, {"Authorization": "a-long-random-text"}):
            assert ask(port, "GET", "/schema", **wrong)[0] == 401
            assert ask(port, "POST", "/outcomes", record, **wrong)[0] == 401
        assert ask(port, "POST", "/outcomes", record, Authorization="Bearer a-long-random-text")[0] == 201
    assert len(pd.read_csv(tmp_path / "o.csv")) == 2


@contextmanager
def served_here(fitted, monkeypatch, capsys, **limits):
    """Serve in a thread of this process, so that limits and faults can be set."""
    import threading

    import uvicorn

    for name, value in limits.items():
        monkeypatch.setattr(server_module, name, value)
    servers = []
    run_server = uvicorn.Server.run
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, opened: (servers.append(self), run_server(self, opened)))
    app = create_app(fitted)
    thread = threading.Thread(target=serve, args=(app, "127.0.0.1", 0))
    thread.start()
    text = ""
    while "answers until" not in text or not servers or not servers[0].started:
        text += capsys.readouterr().out
        time.sleep(0.02)
    try:
        yield int(text.split(" answers")[0].rsplit(":", 1)[1])
    finally:
        servers[0].should_exit = True
        thread.join(20)


def test_limits_of_size_rows_and_time(fitted, monkeypatch, capsys):
    with served_here(fitted, monkeypatch, capsys, MOST_BYTES=5_000, MOST_RECORDS=20, MOST_SECONDS=1.0) as port:
        table = people(30).to_csv(index=False).encode()
        assert ask(port, "POST", "/predict", table, "text/csv")[0] == 413
        assert ask(port, "POST", "/predict", as_records(people(30)))[0] == 413
        status, found, _ = ask(port, "POST", "/predict", b" " * 6_000)
        assert status == 413
        assert "5,000 bytes" in found["error"]
        # in parts, without a declared length
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/predict", iter([b" " * 3_000] * 2), headers, encode_chunked=True)
        assert connection.getresponse().status == 413
        with socket.create_connection(("127.0.0.1", port)) as slow:  # a body that never ends
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(b"Content-Length: 100\r\n\r\n{")
            slow.settimeout(10)
            assert b"408" in slow.recv(100)
        with socket.create_connection(("127.0.0.1", port)) as slow:  # a head that never ends
            slow.sendall(b"POST /predict HTTP/1.1\r\n")
            slow.settimeout(10)
            assert slow.recv(100) == b""
        assert ask(port, "GET", "/health")[0] == 200


def test_an_unexpected_error_says_its_type_only(fitted, monkeypatch, capsys, caplog):
    def fail(*_):
        raise RuntimeError(SECRET)

    monkeypatch.setattr("dpscp.deployment.server._predict_records", fail)
    with served_here(fitted, monkeypatch, capsys) as port:
        status, found, _ = ask(port, "POST", "/predict", {"age": 1})
        assert status == 500
        assert "RuntimeError" in found["error"]
        assert SECRET not in found["error"]
    assert SECRET not in caplog.text
    assert "RuntimeError" in caplog.text


def test_refusals_before_the_first_request(fitted, tmp_path, run):
    fitted.save(tmp_path / "m.dpscp")
    assert "need a token" in run("serve m.dpscp --host 0.0.0.0")[2]
    (tmp_path / "short.txt").write_text("abc")
    assert "at least 16" in run("serve m.dpscp --token-file short.txt")[2]
    (tmp_path / "o.csv").write_text("other,names\n")
    assert "does not have the columns" in run("serve m.dpscp --outcomes o.csv")[2]
    assert "end in .csv" in run("serve m.dpscp --outcomes o.parquet")[2]
    with socket.create_server(("127.0.0.1", 0)) as used:
        assert "in use" in run(f"serve m.dpscp --port {used.getsockname()[1]}")[2]
    with pytest.raises(ValueError, match="schema"):
        create_app(dp.PrivateConformalClassifier())


def test_cells_are_read_again_as_they_were_sent(tmp_path):
    """German marks, quotes and formulas: what a client sent is what the monitor reads."""
    german = {**SCHEMA, "csv": {"separator": ";", "decimal": ",", "encoding": "cp1252"}}
    german["columns"] = {**SCHEMA["columns"], "ward": {"type": "categorical", "categories": ['=a"b', "Ö;\n", "1"]}}
    schema = dp.Schema.from_dict(german)
    values = [('=a"b', 1.5), ("Ö;\n", 2.0), (1, None)]
    sent = [{"age": 1.25, "dose": d, "ward": w, "admitted": "2024-02-01", "ill": "no"} for w, d in values]
    found = OutcomeFile(tmp_path / "o.csv", schema)
    found.append(sent[:2])
    found.append(sent[2:])
    text = (tmp_path / "o.csv").read_text("utf-8-sig")
    assert [row["dose"] for row in csv.DictReader(io.StringIO(text), delimiter=";")] == ["1,5", "2", ""]
    matrix = np.concatenate(
        [schema.matrix(frame) for frame in Table(tmp_path / "o.csv", schema.csv).frames("read", schema)]
    )
    np.testing.assert_array_equal(matrix, schema.matrix(pd.DataFrame(sent)))
