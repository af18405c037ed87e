"""Load ``dpscp serve`` and a server of scikit-learn: requests of one row at a fixed rate, and one large table.

    python benchmarks/serving.py

Each server runs on one core, the client on another. The peer is a scikit-learn pipeline of the same columns behind
FastAPI, which checks nothing and has no sets. Requests are sent at their times, whatever the answers take.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

import dpscp as dp

RATE, SECONDS, CLIENTS, ROWS = 200, 20, 16, 100_000
NUMBERS = 8
PEER = """
import io, sys
import pandas as pd, uvicorn, joblib
from fastapi import FastAPI, Request, Response
model, app = joblib.load(sys.argv[1]), FastAPI()
@app.post("/predict")
async def predict(request: Request):
    body = await request.body()
    if request.headers["content-type"] == "text/csv":
        frame = pd.read_csv(io.BytesIO(body))
        frame["prediction"] = model.predict(frame)
        return Response(frame.to_csv(index=False), media_type="text/csv")
    frame = pd.DataFrame([await request.json()])
    return {"prediction": model.predict(frame).tolist()}
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(0, 1, size=(n, NUMBERS)).round(4), columns=[f"x{i}" for i in range(NUMBERS)])
    frame["ward"] = rng.choice(["a", "b", "c"], n)
    frame["ill"] = np.where(frame["x0"] + rng.normal(0, 0.3, n) > 0.5, "yes", "no")
    return frame


def fit_ours(folder):
    columns = {f"x{i}": {"type": "numeric", "bounds": [0, 1]} for i in range(NUMBERS)}
    columns["ward"] = {"type": "categorical", "categories": ["a", "b", "c"]}
    schema = {"task": "classification", "target": "ill", "classes": ["no", "yes"], "columns": columns}
    clf = dp.PrivateConformalClassifier(epsilon=1.0, n_records=10_000)
    clf.fit(table(10_000), "ill", schema=dp.Schema.from_dict(schema)).save(folder / "model.dpscp")
    return [sys.executable, "-m", "dpscp", "serve", str(folder / "model.dpscp"), "--port"]


def fit_peer(folder):
    import joblib
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    encode = make_column_transformer((OneHotEncoder(), ["ward"]), remainder="passthrough")
    frame = table(10_000)
    joblib.dump(make_pipeline(encode, LogisticRegression()).fit(frame.drop(columns="ill"), frame["ill"]), folder / "m")
    (folder / "peer.py").write_text(PEER)
    return [sys.executable, str(folder / "peer.py"), str(folder / "m")]


def ask(connection, body, kind):
    connection.request("POST", "/predict", body, {"Content-Type": kind})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def load(port):
    """Return the seconds from the time of each request to its answer."""
    records = [json.dumps(row) for row in table(500, seed=1).drop(columns="ill").to_dict("records")]
    start, delays = time.monotonic() + 0.5, []

    def client(first):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for place in range(first, RATE * SECONDS, CLIENTS):
            due = start + place / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            ask(connection, records[place % len(records)], "application/json")
            delays.append(time.monotonic() - due)

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return delays


def measure(command, port):
    os.sched_setaffinity(0, {0})
    process = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL)
    os.sched_setaffinity(0, {1})
    try:
        body = json.dumps(table(1).drop(columns="ill").to_dict("records")[0])
        for _ in range(300):
            try:
                ask(http.client.HTTPConnection("127.0.0.1", port), body, "application/json")
                break
            except OSError:
                time.sleep(0.1)
        delays = load(port)
        many, times = table(ROWS, seed=2).drop(columns="ill").to_csv(index=False).encode(), []
        for _ in range(3):
            begin = time.monotonic()
            ask(http.client.HTTPConnection("127.0.0.1", port), many, "text/csv")
            times.append(time.monotonic() - begin)
        return np.quantile(delays, 0.5), np.quantile(delays, 0.99), statistics.median(times)
    finally:
        process.terminate()
        process.wait()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            "dpscp serve": measure(fit_ours(folder), 8471),
            "scikit-learn behind FastAPI": measure(fit_peer(folder), 8472),
        }
    print(f"{RATE} requests a second of one row for {SECONDS} s; one table of {ROWS:,} rows; one core")
    print("server                        median, ms   p99, ms   table, s")
    for label, (middle, slowest, whole) in found.items():
        print(f"{label:<29} {1000 * middle:10.1f} {1000 * slowest:9.1f} {whole:10.2f}")
    ours, peer = found.values()
    print("ratio                         " + "".join(f"{a / b:10.2f}" for a, b in zip(ours, peer, strict=True)))


if __name__ == "__main__":
    main()
