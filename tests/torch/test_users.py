"""What a user of torch expects: epochs and batches, optimizers, schedules, float64, the module back, hints."""

import functools
import logging
import math

import numpy as np
import pytest

from dpscp import Ledger, PrivateConformalClassifier, PrivateConformalRegressor, RowNorm
from dpscp.privacy import dpsgd_event
from dpscp.privacy.rdp import _divergences
from dpscp.torch.model import TorchModel, torch_rows
from dpscp.training import DPSGD, TorchDPSGD

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = [
    pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"),
]


def records(n=200, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 4))
    return X, (X[:, 0] > 0).astype(int)


def head():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def training(module=None, **changed):
    return TorchDPSGD(module or head(), **({"classes": (0, 1), "noise_multiplier": 1.0} | changed))


def test_epochs_and_batch_size_are_translated_and_stated():
    asked = training(epochs=3, batch_size=30)
    known = asked.with_records(200)
    assert (known.sampling_rate, known.steps) == (0.15, 20)
    assert known.with_records(7) is known
    with pytest.raises(ValueError, match="batch_size needs the public number of records"):
        asked.calibrated(1.0, 1e-5)
    trained = asked.train(*records(), n_records=200)
    facts = trained.public_facts
    assert (facts["sampling_rate"], facts["training_steps"]) == (0.15, 20)
    assert (facts["epochs"], facts["batch_size"], facts["normalizer"]) == (3, 30, 30.0)
    assert trained.event == dpsgd_event(1.0, 0.15, 20)
    assert training(epochs=2, sampling_rate=0.3).steps == math.ceil(2 / 0.3)
    assert training(batch_size=50, steps=7).with_records(25).releases == (1.0, 7)
    for wrong in ({"epochs": 0}, {"batch_size": 0}):
        with pytest.raises((ValueError, TypeError)):
            training(**wrong)


def test_the_trained_module_comes_back_as_a_fresh_copy():
    X, y = records()
    settings = {"epsilon": 4.0, "delta": 1e-4, "n_records": 200, "accountant": "rdp"}
    estimator = PrivateConformalClassifier(training(noise_multiplier=None, steps=5), classes=[0, 1], **settings)
    assert not hasattr(estimator, "module_")
    fitted = estimator.fit(X, y)
    module = fitted.module_
    assert not module.training
    outputs = module(torch.from_numpy(X).float()).detach().numpy()
    np.testing.assert_allclose(outputs, fitted.model_.outputs(X), rtol=1e-5, atol=1e-6)
    module.weight.data.zero_()
    assert fitted.module_.weight.abs().sum() > 0
    bounded = PrivateConformalRegressor(nn.Linear(4, 1), y_bounds=(0, 1), feature_bounds=RowNorm(3.0), **settings).fit(
        X, y
    )
    assert isinstance(bounded.module_, nn.Linear)
    dense = PrivateConformalClassifier(DPSGD(steps=3), classes=[0, 1], feature_bounds=RowNorm(1.0), **settings).fit(
        X, y
    )
    assert not hasattr(dense, "module_")


def test_optimizers_and_schedules_of_torch_see_private_gradients_only():
    X, y = records()
    rates = []

    def halved(optimizer, _):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        rates.append(schedule)
        return schedule

    mechanism = training(
        optimizer=functools.partial(torch.optim.SGD, momentum=0.5), scheduler=halved, steps=3, learning_rate=0.8
    )
    by_torch = mechanism.train(X, y, random_state=1).model.module
    assert rates[-1].get_last_lr() == [0.1]
    plain = training(steps=3, learning_rate=0.8, momentum=0.5).train(X, y, random_state=1).model.module
    assert not torch.equal(by_torch.weight, plain.weight)
    constant = training(optimizer=functools.partial(torch.optim.SGD, momentum=0.5), steps=3, learning_rate=0.8).train(
        X, y, random_state=1
    )
    assert torch.equal(constant.model.module.weight, plain.weight)
    training(optimizer=torch.optim.AdamW, steps=2).train(X, y)
    seen = []

    def listens(parameters, lr):
        seen.append([p.grad for p in parameters])
        return torch.optim.SGD(parameters, lr=lr)

    training(optimizer=listens, steps=1).train(X, y)
    assert all(grad is None for grads in seen for grad in grads)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
def test_float64_modules_train_and_predict(loss):
    X, y = records()
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2 if loss == "cross_entropy" else 1)).double()
    classes = (0, 1) if loss == "cross_entropy" else None
    trained = training(module, loss=loss, classes=classes, steps=3).train(X, y, random_state=0)
    assert all(p.dtype == torch.float64 for p in trained.model.module.parameters())
    assert trained.model.outputs(X).dtype == np.float64
    again = TorchModel.from_parts({**trained.model.config(), "module": module}, trained.model.arrays())
    np.testing.assert_array_equal(again.outputs(X), trained.model.outputs(X))


def test_orders_that_do_not_converge_are_left_out_in_silence(caplog):
    _divergences.cache_clear()
    with caplog.at_level(logging.WARNING, logger="absl"):
        epsilon = Ledger().add("train", dpsgd_event(0.05, 0.9, 1)).epsilon(1e-5, accountant="rdp")
        logging.getLogger("absl").warning("something else")
    assert epsilon > 1
    assert [r.getMessage() for r in caplog.records if r.name == "absl"] == ["something else"]


def test_float32_records_are_neither_copied_nor_changed():
    X = np.ascontiguousarray(records()[0], dtype=np.float32)
    assert torch_rows(X) is X
    before = X.copy()
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    trained = training(head(), steps=2).train(X, records()[1])
    TorchModel(module, (4,), (0, 1)).outputs(X)
    trained.model.outputs(X)
    np.testing.assert_array_equal(X, before)
    X[3, 1] = 1e38
    assert torch_rows(X) is not X
    assert torch_rows(X).max() == np.float32(2.0**100)
    X[3, 1] = np.inf
    with pytest.raises(ValueError, match="NaN or infinity"):
        torch_rows(X)
    X[3, 1] = 0.0
    X.flags.writeable = False  # torch cannot share it
    assert torch_rows(X) is not X
