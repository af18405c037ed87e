"""Saved files: exact on return, refused when anything in them is not as written, and never executed."""

import io
import json
import os
import pickle
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dpscp as dp
from dpscp import PrivateConformalClassifier, PrivateConformalRegressor
from dpscp.data import model_files as persistence
from dpscp.data.table_writer import open_writer
from dpscp.report.page import write_atomically
from dpscp.training import DPSGD, OutputPerturbation, Preprocessed, PrivateCentering, UnitNorm

CLASSIFIER = {"epsilon": 4.0, "guarantee": "split", "accountant": "rdp", "random_state": 0}
REGRESSOR = CLASSIFIER | {"y_bounds": (-6, 6), "feature_bounds": (-1, 1)}


def labeled(n=400):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.uniform(-1, 1, size=(n, 4))
    X[:, 0] += y - 1
    return X, y


def measured(n=400):
    X, y = labeled(n)
    return X, X.sum(axis=1) + 0.1 * y


@pytest.fixture(scope="module")
def model():
    return PrivateConformalClassifier(DPSGD(steps=10), classes=[0, 1, 2], **CLASSIFIER).fit(*labeled())


@pytest.fixture(scope="module")
def content(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    model.save(path)
    return path.read_bytes()


def reload(fitted, path):
    fitted.save(path)
    return dp.load(path)


def same_state(a, b):
    assert a.ledger_ == b.ledger_
    assert a.certificates_ == b.certificates_
    assert str(a.certificate_) == str(b.certificate_)
    np.testing.assert_array_equal(a.threshold_, b.threshold_)
    assert a.n_features_in_ == b.n_features_in_
    assert a.digest() == b.digest()


class TestReturn:
    @pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")  # full sets come back as well
    @pytest.mark.parametrize("score", ["lac", "aps", "raps"])
    @pytest.mark.parametrize("kind", ["recipe", "sgd", "output", "preprocessed", "network"])
    @pytest.mark.covering
    def test_classifier(self, tmp_path, kind, score):
        mechanism = {
            "recipe": None,
            "sgd": DPSGD(steps=10),
            "output": OutputPerturbation(),
            "preprocessed": Preprocessed((UnitNorm(), PrivateCentering()), DPSGD(steps=10, dtype="float64")),
            "network": DPSGD(hidden=(5,), steps=10, activation="tanh"),
        }[kind]
        X, y = labeled()
        levels = [0.7, 0.9]
        fitted = PrivateConformalClassifier(
            mechanism, classes=[0, 1, 2], conformity_score=score, confidence_level=levels, **CLASSIFIER
        ).fit(X, y)
        loaded = reload(fitted, tmp_path / "model.bin")
        assert type(loaded) is PrivateConformalClassifier
        for before, after in zip(fitted.predict_set(X), loaded.predict_set(X), strict=True):
            np.testing.assert_array_equal(before, after)
            assert before.dtype == after.dtype
        np.testing.assert_array_equal(fitted.predict_proba(X), loaded.predict_proba(X))
        same_state(fitted, loaded)
        assert loaded.get_params()["confidence_level"] == levels

    @pytest.mark.parametrize("score", ["absolute", "normalized", "cqr", "auto"])
    def test_regressor(self, tmp_path, score):
        X, y = measured()
        fitted = PrivateConformalRegressor(conformity_score=score, clip_to_bounds=True, **REGRESSOR).fit(X, y)
        loaded = reload(fitted, tmp_path / "model")
        assert loaded.conformity_score_ == fitted.conformity_score_ == ("cqr" if score == "auto" else score)
        for before, after in zip(fitted.predict_interval(X), loaded.predict_interval(X), strict=True):
            np.testing.assert_array_equal(before, after)
        same_state(fitted, loaded)

    def test_infinite_thresholds(self, tmp_path):
        X, y = labeled(10)
        with pytest.warns(dp.GuaranteeWarning):
            fitted = PrivateConformalClassifier(DPSGD(steps=5), classes=[0, 1, 2], **CLASSIFIER).fit(X, y)
        loaded = reload(fitted, tmp_path / "model")
        assert loaded.certificate_.is_vacuous
        assert loaded.predict_set(X)[1].all()


class TestWriting:
    def test_exactly_the_path_and_nothing_beside_it(self, tmp_path, model):
        for name in ("model", "model.npz.txt", "with blank", "ümlaut"):
            model.save(tmp_path / name)
        model.save(str(tmp_path / "text"))
        assert sorted(os.listdir(tmp_path)) == sorted(["model", "model.npz.txt", "with blank", "ümlaut", "text"])

    def test_what_cannot_be_written_leaves_nothing(self, tmp_path, model):
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError, match="folder"):
            model.save(tmp_path / "folder")
        with pytest.raises(FileNotFoundError):
            model.save(tmp_path / "missing" / "model")
        assert os.listdir(tmp_path) == ["folder"]
        assert os.listdir(tmp_path / "folder") == []

    def test_a_write_that_breaks_off_leaves_the_old_file(self, tmp_path, model, monkeypatch):
        path = tmp_path / "model"
        path.write_text("old")
        calls = []

        def full_disk(self, name, data):
            calls.append(name)
            if len(calls) > 1:
                raise OSError("no space left")

        monkeypatch.setattr(zipfile.ZipFile, "writestr", full_disk)
        with pytest.raises(OSError, match="no space"):
            model.save(path)
        assert len(calls) == 2
        assert os.listdir(tmp_path) == ["model"]
        assert path.read_text() == "old"

    @pytest.mark.parametrize(("umask", "tables"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
    def test_files_respect_the_umask_and_the_file_that_they_replace(self, tmp_path, model, umask, tables):
        """Who may not read the user's other files does not read predictions, while they are written or later."""
        old = os.umask(umask)
        try:
            for name in ("sets.csv", "sets.parquet", "sets.csv.gz"):
                with open_writer(tmp_path / name) as write:
                    write(pa.RecordBatch.from_pydict({"predicted": [1, 2]}))
                    (temporary,) = tmp_path.glob(".dpscp-*")
                    assert stat.S_IMODE(temporary.stat().st_mode) == tables
                assert stat.S_IMODE((tmp_path / name).stat().st_mode) == tables
            write_atomically(tmp_path / "report.html", b"page")
            assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == tables
            model.save(tmp_path / "model")
            assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o600
            (tmp_path / "report.html").chmod(0o400)
            write_atomically(tmp_path / "report.html", b"again")
            assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o400
        finally:
            os.umask(old)


def load_bytes(tmp_path, data):
    path = tmp_path / "candidate"
    path.write_bytes(data)
    return dp.load(path)


def members(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_body(content, change):
    """A file whose header was changed by somebody who knows the format."""
    parts = members(content)
    head = json.loads(parts["header.json"])
    change(head["body"])
    return zipped(parts | {"header.json": json.dumps(head).encode()})


def with_array(content, name, array, **options):
    """A file with another array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return zipped(members(content) | {f"{name}.npy": buffer.getvalue()})


class TestDamage:
    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            dp.load(tmp_path / "nothing")
        with pytest.raises(ValueError, match="cannot be loaded"):
            dp.load(tmp_path)

    def test_cut_off_anywhere(self, tmp_path, content):
        for end in range(0, len(content), max(1, len(content) // 100)):
            with pytest.raises(ValueError, match="cannot be loaded"):
                load_bytes(tmp_path, content[:end])

    def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(self, tmp_path, content, model):
        X, _ = labeled(20)
        expected, refused = model.predict_proba(X), 0
        rng = np.random.default_rng(0)
        # every byte of the zip's own structure at the end, and a sample of the rest
        places = [*range(len(content) - 400, len(content)), *rng.choice(len(content) - 400, 200, replace=False)]
        for place in places:
            altered = bytearray(content)
            altered[place] ^= int(rng.integers(1, 256))
            try:
                loaded = load_bytes(tmp_path, bytes(altered))
            except ValueError:
                refused += 1
                continue
            # dates and attributes of zip members are not part of the content
            np.testing.assert_array_equal(loaded.predict_proba(X), expected)
            assert loaded.ledger_ == model.ledger_
            assert loaded.certificates_ == model.certificates_
            np.testing.assert_array_equal(loaded.threshold_, model.threshold_)
        assert refused > 0.5 * len(places)

    @pytest.mark.parametrize("version", [0, persistence.FORMAT_VERSION + 1, 10**9, "1", None, 1.0, [1], True])
    def test_another_version(self, tmp_path, content, version):
        parts = members(content)
        head = json.loads(parts["header.json"]) | {"version": version}
        with pytest.raises(ValueError, match=r"format version .* but this release reads version 1 only"):
            load_bytes(tmp_path, zipped(parts | {"header.json": json.dumps(head).encode()}))

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"PK",
            b"hello",
            pickle.dumps({"a": 1}),
            b"\x89HDF\r\n\x1a\n" + bytes(100),
            json.dumps({"format": "dpscp-model"}).encode(),
            os.urandom(2000),
            b"PK\x05\x06" + bytes(18),
        ],
        ids=["empty", "two bytes", "text", "pickle", "hdf", "json", "random", "empty zip"],
    )
    def test_foreign_files(self, tmp_path, data):
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_bytes(tmp_path, data)

    def test_missing_members(self, tmp_path, content):
        parts = members(content)
        for name in parts:
            with pytest.raises(ValueError, match="cannot be loaded"):
                load_bytes(tmp_path, zipped({k: v for k, v in parts.items() if k != name}))

    def test_compressed_members_are_refused(self, tmp_path, content):
        """A few kilobytes could unpack into all memory."""
        bomb = members(content) | {"bomb.npy": bytes(10**6)}
        with pytest.raises(ValueError, match="compressed"):
            load_bytes(tmp_path, zipped(bomb, zipfile.ZIP_DEFLATED))

    def test_a_header_without_end(self, tmp_path, content):
        deep = b"[" * 10**5
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_bytes(tmp_path, zipped(members(content) | {"header.json": deep}))


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


class TestHostileContent:
    """Files with valid checksums: somebody wrote them on purpose. Nothing runs, and only ValueError comes back."""

    def test_no_pickle_is_opened(self, tmp_path, content, monkeypatch):
        monkeypatch.chdir(tmp_path)
        array = np.empty(1, dtype=object)
        array[0] = Bomb()
        for name in ("threshold", "classes", "model/parameters"):
            with pytest.raises(ValueError, match="cannot be loaded: an array has another type"):
                load_bytes(tmp_path, with_array(content, name, array, allow_pickle=True))
        assert os.listdir(tmp_path) == ["candidate"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda b: b.update({"class": "os.system"}),
            lambda b: b.update({"class": ["PrivateConformalClassifier"]}),
            lambda b: b.pop("class"),
            lambda b: b.pop("parameters"),
            lambda b: b["parameters"].update(temperature=1),
            lambda b: b.update(parameters=[1]),
            lambda b: b.pop("model"),
            lambda b: b["model"].update(model="torch"),
            lambda b: b["model"].update(model={"a": 1}),
            lambda b: b["model"].update(widths=[4, 7, 3]),
            lambda b: b["model"].update(widths=[10**30, 3]),
            lambda b: b["model"].update(widths=None),
            lambda b: b["model"].update(widths=[]),
            lambda b: b.update(ledger="{}"),
            lambda b: b.update(ledger=3),
            lambda b: b.update(certificates=[]),
            lambda b: b.update(certificates=[{}]),
            lambda b: b["certificates"][0].update(guarantee="magic"),
            lambda b: b["certificates"][0].update(coverage="high"),
            lambda b: b.update(n_features_in=float("inf")),
            lambda b: b.update(n_features_in="four"),
            lambda b: b.update(group_values=3),
            lambda b: b.clear(),
        ],
    )
    def test_a_header_that_makes_no_sense(self, tmp_path, content, change):
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_bytes(tmp_path, with_body(content, change))

    @pytest.mark.parametrize("name", ["threshold", "classes", "model/parameters"])
    @pytest.mark.parametrize(
        "array",
        [np.zeros((2, 2, 2)), np.array(["a", "b"]), np.zeros(0), np.array(1j), np.full(1, np.nan)],
        ids=["shape", "text", "empty", "complex", "nan"],
    )
    def test_an_array_that_does_not_fit(self, tmp_path, content, name, array):
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_bytes(tmp_path, with_array(content, name, array))

    @pytest.mark.parametrize("descr", ["<f8", "<U0", "|S0", "<U1", "|b1", "<M8[s]", "|V0", "|O", [("a", "<f8")]])
    @pytest.mark.parametrize("shape", [(10**9,), (10**15,), (2**62, 4), (-1, -(10**9)), ()])
    def test_an_array_that_claims_to_be_huge_takes_no_memory(self, tmp_path, content, descr, shape):
        text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        altered = zipped(members(content) | {"classes.npy": data})
        tracemalloc.start()
        with pytest.raises(ValueError, match="cannot be loaded"):
            load_bytes(tmp_path, altered)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2**22

    def test_an_edited_release_has_another_digest(self, tmp_path, content, model):
        """Anyone can write a valid file, so a file alone proves nothing; the digest tells whose release it is."""

        def claim(body):
            body["ledger"]["entries"] = []

        lied = load_bytes(tmp_path, with_body(content, claim))
        assert lied.ledger_.epsilon(1e-5) == 0
        parameters = np.load(io.BytesIO(members(content)["model/parameters.npy"]))
        edited = [
            lied,
            load_bytes(tmp_path, with_array(content, "threshold", np.array([0.5]))),
            load_bytes(tmp_path, with_array(content, "model/parameters", np.nextafter(parameters, 9))),
            load_bytes(tmp_path, with_array(content, "classes", np.array([0, 1, 3]))),
            load_bytes(tmp_path, with_body(content, lambda body: body["certificates"][0].update(coverage=0.99))),
            load_bytes(tmp_path, with_body(content, lambda body: body["parameters"].update(epsilon=0.1))),
        ]
        digests = [model.digest(), *(other.digest() for other in edited)]
        assert len(set(digests)) == len(digests)
        assert load_bytes(tmp_path, content).digest() == digests[0]
        assert model.statement()["release"]["sha256"] == digests[0]

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_a_text_of_numbers_that_are_no_characters(self, tmp_path, content, order):
        text = np.array([ord("a"), 0x110000], dtype=f"{order}u4").view(f"{order}U1")
        with pytest.raises(ValueError, match="not a text"):
            load_bytes(tmp_path, with_array(content, "classes", text))

    def test_members_that_share_bytes(self, tmp_path, content):
        """Many entries of one large member would be read each into memory of its own."""
        size = struct.pack("<I", len(members(content)["threshold.npy"]))
        place = content.rindex(b"threshold.npy")  # in the directory at the end of the file
        start = content.rindex(b"PK\x01\x02", 0, place)
        entry = content[start : start + 46]
        assert entry[20:24] == entry[24:28] == size
        claimed = struct.pack("<I", 2**31)
        altered = content[: start + 20] + claimed + claimed + content[start + 28 :]
        with pytest.raises(ValueError, match="larger than the file"):
            load_bytes(tmp_path, altered)

    def test_members_outside_the_list_are_not_read(self, tmp_path, content, model):
        parts = members(content) | {"../evil.npy": pickle.dumps(Bomb()), "extra.npy": b"?"}
        assert load_bytes(tmp_path, zipped(parts)).ledger_ == model.ledger_
        assert not (tmp_path.parent / "evil.npy").exists()
