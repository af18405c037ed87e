"""A record's outputs, probabilities and scores have the same bits whatever the records around it are.

The count of a private search may change by 1 when a record is inserted, and the noise is made for that. If the other
records' scores moved with it, by a last bit only, all that lie at a midpoint of the search would change sides at once.
"""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpscp import PrivateConformalRegressor
from dpscp.data.persons import Persons
from dpscp.privacy import gaussian_event
from dpscp.threshold.counts import LookaheadCounter
from dpscp.training import DPSGD, corrected_outputs
from dpscp.training.engine.networks import AlikeBlocks, DenseModel, Loss, Network, RowOutputs
from dpscp.training.engine.threads import blas_threads
from dpscp.training.model import PrivateModel
from dpscp.training.preprocessing.preprocessed import PreprocessedModel
from dpscp.training.preprocessing.projections import MatrixTransform
from dpscp.training.preprocessing.steps import NormClip

# where products of most libraries change their way of rounding: few rows, odd ends, small matrices, parallel ones
SIZES = (1, 2, 3, 4, 15, 16, 17, 48, 63, 100, 101, 120, 121, 172, 300, 1000, 5000)
HIDDEN = {"head": (), "net": (16,)}


def dense(d, outputs, loss, hidden=(), dtype="float32", feature_bound=None):
    network = Network((d, *hidden, outputs))
    classes = None if loss in ("squared", "pinball") else tuple(range(max(2, outputs)))
    return DenseModel(network, Loss(loss), network.initial(1, 3.0).astype(dtype), classes, feature_bound)


def whitened(model):
    d = model.n_features
    matrix = np.random.default_rng(2).normal(size=(d, d)) / d
    return PreprocessedModel((NormClip(2.0), MatrixTransform(matrix)), model, d)


def different_results(function, d, order="C"):
    """How many different results one row gets, alone and among copies, in every place."""
    row = np.random.default_rng(3).normal(size=d)
    found = set()
    for n in SIZES:
        results = np.ascontiguousarray(function(np.asarray(np.tile(row, (n, 1)), order=order)))
        assert len(results) == n
        found |= {result.tobytes() for result in np.unique(results, axis=0)}
    return len(found)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize(("d", "outputs"), [(20, 1), (33, 7), (100, 10)])
@pytest.mark.covering
def test_outputs_and_probabilities_of_a_row_are_its_own(d, outputs, hidden, dtype, order):
    model = dense(d, outputs, "logistic" if outputs == 1 else "cross_entropy", hidden, dtype)
    assert different_results(model.outputs, d, order) == 1
    assert different_results(model.predict_proba, d, order) == 1
    bounded = dense(d, outputs, "squared", hidden, dtype, feature_bound=1.0)
    assert different_results(bounded.outputs, d, order) == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("d", [5, 33, 100])
@pytest.mark.covering
def test_a_transformed_row_is_its_own(d, order):
    model = whitened(dense(d, 3, "cross_entropy"))
    assert different_results(model.transform, d, order) == 1
    assert different_results(model.predict_proba, d, order) == 1
    scaled = PreprocessedModel((), whitened(dense(d, 1, "squared")), d, (-2.0, 5.0))
    assert different_results(scaled.outputs, d, order) == 1


@pytest.mark.parametrize(("loss", "classes"), [("logistic", (0, 1)), ("cross_entropy", tuple(range(10)))])
def test_a_corrected_output_is_its_own(loss, classes):
    rng = np.random.default_rng(4)
    mechanism = DPSGD(loss=loss, classes=classes, noise_multiplier=1.0, steps=3, keep_trajectory=True)
    trained = mechanism.train(rng.normal(size=(50, 100)), rng.integers(0, len(classes), 50), n_records=50)

    def corrected(X):
        return corrected_outputs(trained.model, trained.trajectory, X, np.ones(len(X), dtype=int))

    assert different_results(corrected, 100) == 1

    def corrected_for_pairs(X):
        """The first record of persons who have two equal ones."""
        pairs = Persons(2 * np.arange(len(X) + 1), rows_per_person=2)
        y = np.ones(2 * len(X), dtype=int)
        return corrected_outputs(trained.model, trained.trajectory, np.repeat(X, 2, axis=0), y, persons=pairs)[::2]

    assert different_results(corrected_for_pairs, 100) == 1


def test_a_product_that_rounds_by_place_is_noticed(monkeypatch):
    """An edge kernel in blocks of 48, in all float32 blocks of several rows, in all blocks of several rows: such sizes
    and precisions are not used, nothing else changes."""
    plain, every = RowOutputs._forward, set(range(2, 10_000))
    model, X = dense(21, 3, "cross_entropy"), np.random.default_rng(6).normal(size=(40, 21))
    expected = model.outputs(X)
    both = ("float32", "float64")
    for sizes, dtypes, places in (({48}, both, "all"), (every, ("float32",), 48), (every, both, 1)):

        def edge(self, layers, rows, values, sizes=sizes, dtypes=dtypes):
            plain(self, layers, rows, values)
            if len(rows) in sizes and rows.dtype in dtypes:
                values.outputs[-1][:, -1] *= 1 + 2.0**-22

        with monkeypatch.context() as patch:
            patch.setattr(AlikeBlocks, "_forward", edge)
            blocks = RowOutputs(model.network, model.parameters)
            assert blocks.size(40) == (blocks.chunk if places == "all" else places)
            assert (blocks.chunk == 1) == (places == 1)
            assert different_results(model.outputs, 21) == 1
            assert model.outputs(X).dtype == np.float32
            np.testing.assert_allclose(model.outputs(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_number_of_threads_is_checked_for_itself(threads):
    with threadpool_limits(threads, user_api="blas"):
        assert set(blas_threads()) == {threads}
        assert different_results(dense(100, 10, "cross_entropy", (64,)).outputs, 100) == 1


def first_count(monkeypatch, model, X, y, y_bounds):
    """What the search of a whole fit counts at its first midpoint."""
    counts, plain = [], LookaheadCounter.count

    def watched(self, left, right, steps_left):
        counts.append(plain(self, left, right, steps_left))
        return counts[-1]

    with monkeypatch.context() as patch:
        patch.setattr(LookaheadCounter, "count", watched)
        private = PrivateModel.from_outputs(model.outputs, spent=gaussian_event(1.0), task="regression", n_features=100)
        estimator = PrivateConformalRegressor(
            private, epsilon=8.0, delta=1e-5, guarantee="split", y_bounds=y_bounds, n_records=len(X), random_state=0
        )
        estimator.fit(X, y)
    return counts[0]


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning", "ignore::dpscp.SeededWarning")
@pytest.mark.parametrize(("kind", "n"), [("float32", 120), ("float64", 120), ("whitened", 100)])
def test_one_more_record_changes_no_count_by_more_than_one(monkeypatch, kind, n):
    """Equal records whose score is the first midpoint, up to the last bit: they changed sides together."""
    if kind == "whitened":
        model = whitened(dense(100, 1, "squared", dtype="float64"))
    else:
        model = dense(100, 1, "squared", (10,), dtype=kind)
    row = np.random.default_rng(5).normal(size=(1, 100))
    few, more = np.tile(row, (n, 1)), np.tile(row, (n + 1, 1))
    # the outputs as any way of multiplying gives them: targets one midpoint beyond each
    candidates = {float(z) for X in (few, more, few[:1]) for z in model.outputs(X)[:, 0]}
    spread = 2.0**-18 if kind == "float32" else 2.0**-45
    y_bounds = min(candidates) - spread, max(candidates) + spread
    middle = (y_bounds[1] - y_bounds[0]) / 2
    for output in candidates:
        for y in (output + middle, np.nextafter(output + middle, 100), np.nextafter(output + middle, -100)):
            with_it = first_count(monkeypatch, model, more, np.full(n + 1, y), y_bounds)
            without = first_count(monkeypatch, model, few, np.full(n, y), y_bounds)
            assert abs(with_it - without) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("large", [0.0, 1e29, 2.0**100, 1e31, 1e200, 1e300])
def test_large_numbers_elsewhere_change_no_bit_of_a_row(large, dtype):
    """Rows are copied where a sum of squares shows that they are small, and otherwise checked and clipped."""
    model = dense(20, 3, "cross_entropy", dtype=dtype)
    X = np.random.default_rng(4).normal(size=(500, 20))
    X[3, :4] = 0.0, -0.0, 5e-324, 1e-40
    alone = model.outputs(X)
    X[-1] = large
    among = model.outputs(X)
    assert among[:-1].tobytes() == alone[:-1].tobytes()
    assert among.tobytes() == model.outputs(np.asfortranarray(X)).tobytes()
    X[-1] = min(large, {"float32": 2.0**100, "float64": 2.0**900}[dtype])
    assert among.tobytes() == model.outputs(X).tobytes()
    for bad in (np.nan, np.inf, -np.inf):
        X[7, 7] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            model.outputs(X)
