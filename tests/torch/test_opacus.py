"""Models that Opacus trained, and other models that somebody already trained."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from dpscp._base.assumptions import FIXED_NUMBER
from dpscp.privacy import Ledger, Relation, as_accountant, dpsgd_event, epsilon_of, gaussian_event, non_private_event
from dpscp.torch.opacus import ledger_of_engine, torch_model
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.model import FunctionModel, PrivateModel

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

pytestmark = [
    pytest.mark.filterwarnings(f"ignore{words}")
    for words in (
        "::FutureWarning",
        "::DeprecationWarning",
        ":.*non-full backward hook.*",
        ":Full backward hook is firing",
    )
]


def problem(n=80, d=4):
    X = np.random.default_rng(1).normal(size=(n, d)).astype(np.float32)
    return X, np.argmax(X[:, :3], axis=1)


def zero_head(d=4, k=3):
    head = torch.nn.Linear(d, k)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def opacus_trained(accountant, module=None):
    X, y = problem()
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    module = module or zero_head()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant=accountant)
        private, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=20),
            noise_multiplier=2.0,
            max_grad_norm=1.0,
        )
        for _ in range(3):
            for rows, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(private(rows), labels).backward()
                optimizer.step()
    return private, engine, X


@pytest.mark.parametrize("accountant", ["rdp", "prv", "gdp"])
def test_from_opacus_keeps_the_ledger(accountant):
    private, engine, X = opacus_trained(accountant)
    model = PrivateModel.from_opacus(private, engine, classes=("a", "b", "c"))
    assert model.ledger.event == dpsgd_event(2.0, 0.25, 12)
    if accountant == "rdp":
        theirs = engine.get_epsilon(1e-5)
        # theirs is that of one step of a replacement, which ours chains twice
        assert epsilon_of(model.ledger.event, 1e-5, "rdp") == pytest.approx(theirs, rel=1e-3)
        assert 2 * theirs < model.ledger.epsilon(1e-5, accountant="rdp") < 3 * theirs
        assert model.ledger.epsilon(1e-5) == as_accountant("pld").replacement_epsilon(model.ledger.event, 1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(model.model.outputs(X), private(torch.from_numpy(X)).numpy(), rtol=1e-6)
    assert model.model.classes == ("a", "b", "c")
    assert model.model.task == "classification"
    assert model.model.n_features == 4
    assert model.model.predict_proba(X).shape == (80, 3)
    assert model.ledger.relation is Relation.REPLACE_ONE
    assert FIXED_NUMBER in model.ledger.assumptions


def test_every_stretch_of_an_opacus_history_is_in_the_ledger():
    """Noise or rate that changed on the way starts a new stretch of the engine's record."""
    engine = SimpleNamespace(accountant=SimpleNamespace(history=[(2.0, 0.25, 12), (3.0, 0.5, 7), (0.0, 0.5, 1)]))
    events = [entry.event for entry in ledger_of_engine(engine).entries]
    assert events == [dpsgd_event(2.0, 0.25, 12), dpsgd_event(3.0, 0.5, 7), non_private_event()]


def test_from_opacus_refuses_an_engine_without_history():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant="rdp")
    with pytest.raises(ValueError, match="recorded no step"):
        ledger_of_engine(engine)
    with pytest.raises(TypeError, match="PrivacyEngine"):
        PrivateModel.from_opacus(zero_head(), object())
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        torch_model("module")
    with pytest.raises(ValueError, match="input_shape is needed"):
        torch_model(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)))
    regression = torch_model(zero_head(4, 1))
    assert regression.task == "regression"
    with pytest.raises(TypeError, match="classification"):
        regression.predict_proba(np.zeros((1, 4)))
    engine.accountant.history = [(0.0, 0.1, 5)]
    assert not ledger_of_engine(engine).is_private


class Centered(torch.nn.Module):
    """A head whose buffer would be the mean of the records if training had set it."""

    def __init__(self):
        super().__init__()
        self.head = zero_head()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, rows):
        return self.head(rows - self.mean)


def test_a_buffer_is_trusted_only_if_a_copy_shows_that_training_did_not_set_it():
    module, engine = Centered(), SimpleNamespace(accountant=SimpleNamespace(history=[(2.0, 0.25, 12)]))
    kept = {"mean": module.mean.clone()}

    def released(start_buffers):
        return PrivateModel.from_opacus(module, engine, classes=(0, 1, 2), start_buffers=start_buffers)

    assert released(kept).model.predict_proba(problem()[0]).shape == (80, 3)
    for unknown in (None, {}, {"mean": [0.0] * 4}):
        with pytest.raises(ValueError, match="may come from the records"):
            released(unknown)
    with pytest.raises(ValueError, match="own memory, not a copy"):
        released(dict(module.named_buffers()))
    for other in (torch.zeros(5), torch.zeros(4, dtype=torch.float64), -torch.zeros(4)):
        with pytest.raises(ValueError, match="changed during training"):
            released({"mean": other})
    module.mean += 1.0
    with pytest.raises(ValueError, match="changed during training"):
        released(kept)


def test_private_model_wraps_functions_and_trained_mechanisms():
    X, y = problem()
    wrapped = PrivateModel.from_outputs(
        lambda rows: rows[:, :3], spent=gaussian_event(2.0), task="classification", n_features=4, classes=(0, 1, 2)
    )
    assert wrapped.ledger.event == gaussian_event(2.0)
    assert wrapped.model.predict_proba(X).shape == (80, 3)
    with_ledger = PrivateModel.from_outputs(
        lambda rows: rows[:, 0], spent=Ledger().add("a", gaussian_event(1.0)), task="regression", n_features=4
    )
    assert with_ledger.model.outputs(X).shape == (80, 1)
    with pytest.raises(TypeError, match="classification"):
        with_ledger.model.predict_proba(X)
    trained = DPSGD(classes=(0, 1, 2), steps=2, noise_multiplier=1.0).train(X, y, random_state=0)
    ours = PrivateModel.from_trained(trained)
    assert ours.ledger.event == trained.event
    assert not ours.ledger.is_private  # seeded
    with pytest.raises(ValueError, match="one row of outputs for each record"):
        FunctionModel(lambda rows: rows[:1], "regression", 4).outputs(X)
    with pytest.raises(ValueError, match="classes is required"):
        FunctionModel(lambda rows: rows, "classification", 4)
    for refused in (wrapped.model.arrays, wrapped.model.config, lambda: FunctionModel.from_parts({}, {})):
        with pytest.raises(TypeError, match="cannot be"):
            refused()
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        PrivateModel(trained.model, None)
    with pytest.raises(TypeError, match="model must be"):
        PrivateModel(object(), Ledger())
