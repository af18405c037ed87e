"""Fits on a Spark frame: the bits of the same blocks in memory, also when an executor dies and partitions come again.

Needs pyspark and Java, which are not among the libraries of the tests: ``make test-spark``.
"""

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.schema import SchemaError
from dpscp.data.sources import ArraySource, Block, SparkSource
from dpscp.training import DPSGD
from dpscp.training.mechanisms import dpsgd

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Spark warns about versions of its own
N = 600
SCHEMA = dp.Schema.from_dict(
    {
        "task": "classification",
        "target": "label",
        "classes": ["no", "yes"],
        "n_records": N,
        "columns": {
            "a.b": {"type": "numeric", "bounds": [-4, 4]},
            "c": {"type": "categorical", "categories": ["u", "v", "w"]},
        },
    }
)


def made():
    rng = np.random.default_rng(0)
    a, c = rng.normal(size=N), rng.choice(["u", "v", "w"], N)
    return pd.DataFrame({"a.b": a, "c": c, "label": np.where(a + (c == "u") > 0, "yes", "no"), "unused": "x"})


@pytest.fixture(scope="module")
def spark():
    pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    paths = {"spark.executor.memory": "700m", "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    builder = pyspark.sql.SparkSession.builder.master("local-cluster[2,1,700]")  # two executors
    session = builder.config(map=settings | paths).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def frame(spark, tmp_path_factory):
    table = spark.createDataFrame([tuple(row) for row in made().itertuples(index=False)], list(made().columns))
    cut = table.repartition(3, "c", "label")  # by hash: six kinds of rows, and some partition may be empty
    with pytest.raises(ValueError, match="setCheckpointDir"):
        SparkSource(cut, SCHEMA)
    spark.sparkContext.setCheckpointDir(str(tmp_path_factory.mktemp("checkpoints")))
    return cut


def classifier(**changes):
    mechanism = DPSGD(hidden=(4,), sampling_rate=0.3, steps=5, learning_rate=1.0, dtype="float64")
    return dp.PrivateConformalClassifier(mechanism, epsilon=4.0, guarantee="split", random_state=3, **changes)


def listed(block):
    return [(block.id, block.read(), block.targets)]


def in_memory(source):
    return ArraySource.of_blocks([Block(*parts) for parts in source.sum(listed)])


class DyingOnce:
    """A function whose process dies at the first attempt at block 1."""

    def __init__(self, function):
        self.function = function

    def __call__(self, block):
        if block.id == 1 and pyspark.TaskContext.get().attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.function(block)


def executors(parent):
    """The processes below this one in which Spark works on partitions."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                here = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
                found += [int(process.name)] if here else executors(int(process.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_bits_of_the_same_blocks_in_memory_also_when_an_executor_is_killed(frame, released, monkeypatch):
    source = SparkSource(frame, SCHEMA)
    blocks = in_memory(source)
    assert blocks.sum(len) == source.sum(DyingOnce(len)) == N
    expected = released(classifier().fit(blocks, schema=SCHEMA))
    victims, steps, progress = executors(os.getpid()), [], dpsgd.progress

    def watched(rounds, *given):
        for step in progress(rounds, *given):
            steps.append(step)
            if len(steps) == 2:
                os.kill(victims[0], signal.SIGKILL)
            yield step

    monkeypatch.setattr(dpsgd, "progress", watched)
    # the source and not the frame, which Spark computes again, with other rows in another order
    assert released(classifier().fit(source, schema=SCHEMA)) == expected
    assert len(steps) == 5
    assert len(victims) == 2
    assert set(executors(os.getpid())) != set(victims)


@pytest.mark.usefixtures("frame")  # it sets the checkpoint folder
def test_a_partition_that_is_read_again_has_the_same_rows_in_the_same_order(spark):
    """A frame that gives other rows each time it is computed, read three times from one source."""
    drawn = spark.range(200, numPartitions=2).selectExpr(
        "rand() * 8 - 4 AS `a.b`", "'u' AS c", "IF(rand() < 0.5, 'no', 'yes') AS label"
    )
    source = SparkSource(drawn, SCHEMA)
    first, *others = (source.map(lambda block: block, keep=keep).sum(listed) for keep in (False, False, True))
    for again in others:
        for (i, rows, targets), (j, same_rows, same_targets) in zip(first, again, strict=True):
            assert i == j
            assert (rows == same_rows).all()
            assert (targets == same_targets).all()


def test_all_rows_of_a_person_meet_in_one_partition(spark, frame):
    declared = {**SCHEMA.to_dict(), "person": "who", "rows_per_person": 2, "n_persons": 100}
    schema = dp.Schema.from_dict({name: value for name, value in declared.items() if name != "n_records"})
    table = made().assign(who=[f"p{i % 100}" for i in range(N)])
    cut = spark.createDataFrame([tuple(row) for row in table.itertuples(index=False)], list(table.columns))
    source = SparkSource(cut.repartition(3), schema)
    assert source.sum(persons_of) == sorted(source.sum(persons_of)) == [6] * 100
    model = classifier().fit(source, schema=schema)
    assert model.ledger_.public_facts["n_persons"] == 100


def persons_of(block):
    return block.owners.sizes.tolist()


def test_a_bad_cell_is_refused_with_the_words_for_a_table_in_memory(spark, frame, tmp_path):
    bad = frame.withColumn("a.b", pyspark.sql.functions.expr("IF(c = 'w', 'canary-9182', '1')"))
    store = dp.BudgetStore.create(tmp_path / "b.budget", 10.0, 1e-4, dataset="people")
    with pytest.raises(SchemaError) as alone:
        classifier().fit(made().assign(**{"a.b": "canary-9182"}), "label", schema=SCHEMA)
    model = classifier().set_params(random_state=None)
    with pytest.raises(SchemaError) as late:
        model.fit(bad, "label", schema=SCHEMA, budget=store)
    assert str(late.value) == str(alone.value)
    assert not store.ledger().entries


def test_totals_larger_than_a_piece_arrive_whole(frame):
    numbers = SparkSource(frame, SCHEMA).sum(many)
    assert numbers.shape == (5_000_000,)
    assert (numbers == N).all()


def many(block):
    return np.full(5_000_000, len(block))  # 40 MB


@pytest.mark.usefixtures("frame")
def test_an_error_of_a_query_is_not_shown(spark):
    texts = spark.range(9).selectExpr("'canary-4711' AS text", "'u' AS c", "'no' AS label")
    query = texts.selectExpr("CAST(text AS DOUBLE) AS `a.b`", "c", "label")
    with pytest.raises(ValueError, match="the Spark frame cannot be read") as found:
        SparkSource(query, SCHEMA)
    assert "canary" not in "".join(traceback.format_exception(found.value))
