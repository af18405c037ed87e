"""Serve the predictions of a model over HTTP (``dpscp serve``), with FastAPI.

The privacy promise of the model is not about the records of requests, but the people who send them expect secrecy. No
record, and no message that may contain one, is written to a log. A CSV table of a request is stored in a folder that
only this user can read, until its answer is sent.
"""

import asyncio
import codecs
import contextlib
import csv
import hmac
import io
import json
import logging
import math
import os
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from dpscp._base.suggestions import suggest
from dpscp.data.frames import label_text
from dpscp.data.schema import Schema
from dpscp.data.sources.tables import Table
from dpscp.data.table_check import check_table
from dpscp.deployment.prediction import predict_block, predict_table
from dpscp.report.verdict import judge

try:
    from fastapi import FastAPI, Request
    from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
    from starlette.background import BackgroundTask
except ImportError:
    raise ImportError("a server needs FastAPI and uvicorn; install them with pip install 'dpscp[serve]'") from None

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The limits of a request: its bytes, its records, and the seconds to send it and to answer it.
MOST_BYTES, MOST_RECORDS, MOST_SECONDS = 64 * 2**20, 500_000, 30.0
_SHORTEST_TOKEN = 16
# Predictions that run at the same time: more than one, so that a table does not stop the answers to single records.
_WORKERS = 3
_MOST_CONNECTIONS = 200
# The page and the health check need no token; they contain nothing but the version.
_OPEN_PATHS = ("/", "/health")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_log = logging.getLogger("dpscp")


class RequestError(Exception):
    """Refuse a request with an HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class OutcomeFile:
    """Append labeled records to a CSV file that ``dpscp monitor`` reads.

    The file may be moved at any time. Collecting releases nothing: only ``dpscp monitor`` does, from its own budget.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self.path, self._schema, self._lock = Path(path), schema, threading.Lock()
        if self.path.suffix.lower() not in (".csv", ".tsv"):
            raise ValueError(f"the name of {str(path)!r} must end in .csv")
        self.append([])  # fail early where it cannot be written
        if Table(self.path, schema.csv).names != list(schema.column_names):
            raise ValueError(f"{str(path)!r} does not have the columns of the model's schema; use another file")

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write records as the monitor can read them.

        All are refused if one of them is not readable.
        """
        names, text = self._schema.column_names, io.StringIO()
        # with this line end the writer also quotes a cell with a single CR, which readers treat as the end of a line
        lines = csv.writer(text, delimiter=self._schema.csv.separator_in(self.path.name), lineterminator="\r\n")
        lines.writerow(names)
        header = text.tell()
        lines.writerows([_cell(record[name], self._schema.csv.decimal) for name in names] for record in records)
        # the byte-order mark declares UTF-8, whatever encoding the schema declares
        whole = codecs.BOM_UTF8 + text.getvalue().encode()
        if records:
            self._check(whole, len(records))
        with self._lock:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(text.getvalue()[header:].encode() if os.fstat(handle).st_size else whole)
                file.flush()
                os.fsync(handle)

    def _check(self, content: bytes, n_records: int) -> None:
        """Check the new lines as the monitor would read them.

        One bad record makes the monitor refuse the whole file.
        """
        with tempfile.TemporaryDirectory(prefix="dpscp-serve-") as folder:
            table = Path(folder, self.path.name)
            table.write_bytes(content)
            found = check_table(table, self._schema)
        if found.problems:
            reason = found.problems[0].message.replace(repr(str(table)), "the table")
        elif found.n_records != n_records:
            reason = "the number of records in the table would not match"
        else:
            return
        raise RequestError(422, f"nothing was collected: {reason}")


def _cell(value: Any, decimal: str) -> str:
    """Return a JSON value as a cell of a CSV file."""
    if value is None:
        return ""
    return label_text(value).replace(".", decimal) if isinstance(value, float) else label_text(value)


class _Service:
    """The answers to requests."""

    def __init__(self, estimator: Any, outcomes: OutcomeFile | None) -> None:
        self.estimator, self.schema, self.outcomes = estimator, estimator.schema_, outcomes
        self.version, self.digest = version("dpscp"), estimator.digest()
        self.verdict = judge(estimator).to_dict()
        self._workers = asyncio.Semaphore(_WORKERS)

    async def compute(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of work in a thread, so that other requests can proceed."""
        async with self._workers:
            return await asyncio.to_thread(work, *arguments)

    async def page(self) -> Response:
        """Return the page for a browser."""
        text = Path(__file__).with_name("server.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def health(self) -> JSONResponse:
        """Report that the server works."""
        return JSONResponse({"status": "ok", "version": self.version})

    async def describe(self) -> JSONResponse:
        """Return the columns of a record, and the promises about predictions."""
        return JSONResponse(
            {
                "version": self.version,
                "model": self.digest,
                "task": self.schema.task,
                "target": self.schema.target,
                "classes": self.schema.classes,
                "record": record_schema(self.schema),
                "collects_outcomes": self.outcomes is not None,
                "verdict": self.verdict,
            }
        )

    async def statement(self) -> JSONResponse:
        """Return the privacy statement of the release."""
        return JSONResponse(self.estimator.statement())

    async def report(self) -> Response:
        """Return the public report of the release."""
        from dpscp.report.page import html_report

        return HTMLResponse(await self.compute(html_report, self.estimator))

    async def predict(self, request: Request) -> Response:
        """Predict records: JSON, or a table as CSV."""
        if _content_type(request) == "text/csv":
            return await self._predict_csv(request)
        records = _read_records(await _read_json(request), self.schema, labeled=False)
        return JSONResponse(await self.compute(_predict_records, self.estimator, self.schema, records))

    async def _predict_csv(self, request: Request) -> Response:
        folder = tempfile.TemporaryDirectory(prefix="dpscp-serve-")
        source, output = Path(folder.name, "records.csv"), Path(folder.name, "predictions.csv")
        try:
            with source.open("wb") as file:
                async for part in _read_body(request):
                    file.write(part)
            await self.compute(_predict_file, self.estimator, source, output)
        except BaseException:
            folder.cleanup()
            raise
        kind = f"text/csv; charset={self.schema.csv.encoding}"
        return FileResponse(output, media_type=kind, background=BackgroundTask(folder.cleanup))

    async def collect(self, request: Request) -> JSONResponse:
        """Collect labeled records for the monitor."""
        if self.outcomes is None:
            raise RequestError(404, "this server collects no outcomes; start it with --outcomes FILE")
        records = _read_records(await _read_json(request), self.schema, labeled=True)
        await self.compute(self.outcomes.append, records)
        return JSONResponse({"collected": len(records)}, 201)


def create_app(
    estimator: Any,
    *,
    outcomes: str | os.PathLike[str] | None = None,
    token: str | None = None,
    hosts: tuple[str, ...] = LOOPBACK,
) -> FastAPI:
    """Return an application that serves a fitted estimator.

    Needs the extra ``dpscp[serve]``.

    Parameters
    ----------
    estimator : PrivateConformalClassifier or PrivateConformalRegressor
        A fit with a schema.
    outcomes : str or path, optional
        A CSV file that collects the labeled records of ``POST /outcomes``. None: they are refused.
    token : str, optional
        The token that a client must send as ``Authorization: Bearer TOKEN``.
    hosts : tuple of str
        The names by which clients may address the server; ``("*",)`` allows all. Without a token this keeps pages of
        other sites from reading answers.

    Returns
    -------
    fastapi.FastAPI

    Privacy: nothing is computed from the records of the fit, and records of requests are not logged.
    """
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"token must have at least {_SHORTEST_TOKEN} characters")
    schema = _servable_schema(estimator)
    service = _Service(estimator, None if outcomes is None else OutcomeFile(outcomes, schema))
    # the pages of FastAPI load scripts from elsewhere
    app = FastAPI(title="dpscp", version=service.version, docs_url=None, redoc_url=None)
    routes: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
        ("GET", "/", service.page, {"include_in_schema": False}),
        ("GET", "/health", service.health, {}),
        ("GET", "/schema", service.describe, {}),
        ("GET", "/statement", service.statement, {}),
        ("GET", "/report", service.report, {"response_class": HTMLResponse}),
        ("POST", "/predict", service.predict, {"openapi_extra": _describe_body(schema, labeled=False)}),
        ("POST", "/outcomes", service.collect, {"openapi_extra": _describe_body(schema, labeled=True)}),
    )
    for method, path, answer, options in routes:
        app.add_api_route(path, answer, methods=[method], summary=answer.__doc__, **options)
    app.add_middleware(_Guard, token=token, hosts=hosts)
    return app


def serve(app: Any, host: str, port: int) -> None:
    """Answer requests until Ctrl-C.

    Parameters
    ----------
    app : application of ``create_app``
    host : name or address of this machine; the loopback address is reached from this machine alone.
    port : 0 chooses a free one.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        """Close a connection whose request header does not arrive in time.

        Uvicorn would wait.
        """

        def connection_made(self, transport: Any) -> None:
            """Start the clock."""
            super().connection_made(transport)
            self.loop.call_later(MOST_SECONDS, lambda: self.cycle or transport.close())

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as opened:
        address = f"[{host}]" if ":" in host else host
        print(f"http://{address}:{opened.getsockname()[1]} answers until Ctrl-C", flush=True)
        config = uvicorn.Config(
            app,
            http=Protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after the last answer
            uvicorn.Server(config).run([opened])


class _Guard:
    """Refuse other hosts and wrong tokens, and answer errors without a record.

    Each error is answered with a text.
    """

    def __init__(self, app: Any, *, token: str | None, hosts: tuple[str, ...]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] += [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, send_guarded)
            return
        except RequestError as error:
            status, reason = error.status, str(error)
        except TimeoutError:
            status, reason = 408, "the request took too long; send less at once"
        except Exception as error:  # its text may contain values of a record
            _log.error("a request failed with an unexpected error of type %s", type(error).__name__)
            status, reason = 500, f"unexpected {type(error).__name__}; report it with the kind of the request"
        if not started:
            # unread parts of the request make the connection unusable
            headers = {"Connection": "close"} | ({"WWW-Authenticate": "Bearer"} if status == 401 else {})
            await JSONResponse({"error": reason}, status, headers)(scope, receive, send_guarded)

    def _check(self, scope: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if "*" not in self.hosts and _host_name(headers.get(b"host", "")) not in self.hosts:
            raise RequestError(421, "the Host header does not name this server; use the name given by --host")
        if self.token is None or scope["path"] in _OPEN_PATHS:
            return
        given = headers.get(b"authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise RequestError(401, "send the token of the server as 'Authorization: Bearer TOKEN'")


def _host_name(host: str) -> str:
    """Return the name of a Host header, without port and brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host


def _servable_schema(estimator: Any) -> Schema:
    """Return the schema of a fit; refuse a fit that cannot predict requests.

    Requests contain records.
    """
    schema: Schema | None = getattr(estimator, "schema_", None)
    if schema is None:
        raise ValueError("a server needs a model with a schema; fit with schema=dp.Schema.read(...) or 'dpscp fit'")
    lost = [name for name in vars(estimator).get("unwritten_", ()) if name in ("groups", "conformity_score")]
    lost = [name for name in lost if getattr(estimator, name) is getattr(type(estimator), name)]
    if lost:
        raise ValueError(f"the file of this model lacks its function {lost[0]}; set it, then call create_app")
    return schema


# ---- requests


def _content_type(request: Any) -> str:
    """Return the type of the body, or refuse it.

    A page of another site may send other types.
    """
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in ("application/json", "text/csv"):
        raise RequestError(415, "send records with 'Content-Type: application/json' or 'text/csv'")
    return str(found)


async def _read_body(request: Any) -> AsyncIterator[bytes]:
    """Yield the body; refuse one that is too long, or that comes too slowly."""
    too_long = RequestError(413, f"a request may have {MOST_BYTES:,} bytes; send fewer records at once")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MOST_BYTES:
        raise too_long
    n_bytes = 0
    async with asyncio.timeout(MOST_SECONDS):
        async for part in request.stream():
            n_bytes += len(part)
            if n_bytes > MOST_BYTES:
                raise too_long
            yield part


async def _read_json(request: Any) -> Any:
    if _content_type(request) != "application/json":
        raise RequestError(415, "send records here with 'Content-Type: application/json'")
    body = b"".join([part async for part in _read_body(request)])
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
        if rb"\u" in body:
            json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is not a text
        return data
    except (ValueError, RecursionError):  # the message may contain a part of the body
        pass
    raise RequestError(400, "the body is not valid JSON; send a record, or a list of records")


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _read_records(data: Any, schema: Schema, *, labeled: bool) -> list[dict[str, Any]]:
    """Return the records of a JSON body, each with all columns.

    None stands for a missing value.
    """
    records = data if isinstance(data, list) else [data]
    if not all(isinstance(record, dict) for record in records):
        raise RequestError(400, 'send a record {"column": value, ...}, or a list of records')
    if len(records) > MOST_RECORDS:
        raise RequestError(413, f"a request may have {MOST_RECORDS:,} records; send fewer at once")
    names = schema.column_names if labeled else tuple(column.name for column in schema.feature_columns)
    known = {column.name for column in schema.columns} | set(schema.column_names)
    found = []
    for place, record in enumerate(records, 1):
        if others := [name for name in record if name not in known]:
            raise RequestError(422, f"record {place} has an unknown column {others[0]!r}{suggest(others[0], names)}")
        found.append({name: record.get(name) for name in names})
        if any(isinstance(value, dict | list) for value in found[-1].values()):
            raise RequestError(422, f"record {place} has a value that is a list or an object; send numbers and texts")
    return found


def _as_frame(records: list[dict[str, Any]], names: list[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(records, columns=names)


def _predict_records(estimator: Any, schema: Schema, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers to records as JSON values.

    Null is an infinite end of an interval.
    """
    if not records:
        return {"predictions": [], "errors": 0}
    frame = _as_frame(records, [column.name for column in schema.feature_columns])
    columns, n_errors = predict_block(estimator, schema, frame)
    columns["error"] = columns.pop("errors")
    values = [[_finite(value) for value in column.to_pylist()] for column in columns.values()]
    return {
        "predictions": [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)],
        "errors": n_errors,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _predict_file(estimator: Any, source: Path, output: Path) -> None:
    """Predict a table that was sent."""
    deadline = monotonic() + MOST_SECONDS

    def check(n: int) -> None:
        if n > MOST_RECORDS:
            raise RequestError(413, f"a request may have {MOST_RECORDS:,} records; send fewer at once")
        if monotonic() > deadline:
            raise RequestError(503, f"the answer took more than {MOST_SECONDS:g} s; send fewer records at once")

    schema = estimator.schema_
    try:
        table = Table(source, schema.csv)
        missing = [column.name for column in schema.feature_columns if column.name not in table.names]
        if missing:
            raise RequestError(422, f"the first line of the table lacks column {missing[0]!r}, which the model needs")
        predict_table(estimator, table, output, check=check)
        return
    except (ValueError, TypeError) as error:  # messages of this package contain no cell
        reason = str(error).replace(repr(str(source)), "the table")
    raise RequestError(422, reason)


# ---- OpenAPI


def record_schema(schema: Schema, *, labeled: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a record: the public declarations of its columns."""
    names = [column.name for column in schema.feature_columns]
    fields = {column.name: _describe_column(column) for column in schema.feature_columns}
    if labeled:
        labels = {"type": "number"} if schema.classes is None else {"enum": list(schema.classes)}
        fields |= dict.fromkeys(schema.target_names, labels)
        fields |= {} if schema.person is None else {schema.person: {"type": ["string", "integer"]}}
        names += [name for name in schema.column_names if name not in names]
    needed = [name for name in names if "null" not in fields[name].get("type", ())]
    return {"type": "object", "properties": fields, "required": needed}


def _describe_column(column: Any) -> dict[str, Any]:
    """Return the JSON schema of a column."""
    if column.type == "categorical":
        listed = isinstance(column.categories, tuple) and column.unknown == "refuse"
        found: dict[str, Any] = {"enum": list(column.categories)} if listed else {"type": ["string", "null"]}
        if isinstance(column.categories, tuple):
            found["examples"] = list(column.categories)
        return found
    kind = "string" if column.type == "date" else "number"
    found = {"type": kind} if column.missing == "refuse" else {"type": [kind, "null"]}
    if column.type == "date":
        found["format"] = "date"
    if isinstance(column.bounds, tuple):
        low, high = (str(end).removesuffix(".0") for end in column.bounds)
        found["description"] = f"values outside {low} to {high} are clipped"
    return found


def _describe_body(schema: Schema, *, labeled: bool) -> dict[str, Any]:
    """Return the request body in OpenAPI."""
    record = record_schema(schema, labeled=labeled)
    content: dict[str, Any] = {"application/json": {"schema": {"oneOf": [record, {"type": "array", "items": record}]}}}
    if not labeled:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": content}}
