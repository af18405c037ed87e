"""Arguments of torch training: none is ignored, and what cannot work is refused before anything is spent."""

import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest

import dpscp as dp
from dpscp.training import TorchDPSGD

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
nn, optim, schedulers = torch.nn, torch.optim, torch.optim.lr_scheduler

pytestmark = [pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")]


def head():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def records(n=200):
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, (X[:, 0] > 0).astype(int)


def trained(**changed):
    """The weights after a few seeded steps."""
    options = {"classes": (0, 1), "noise_multiplier": 1.0, "steps": 4, "sampling_rate": 0.5} | changed
    return TorchDPSGD(head(), **options).train(*records(), random_state=0, n_records=200)


# ---- arguments beside each other


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"steps": 7, "epochs": 2}, ("steps=7", "epochs=2")),
        ({"steps": 1000, "epochs": 2}, ("steps=1000", "epochs=2")),  # the default, but given
        ({"steps": 7, "epochs": 2, "batch_size": 20}, ("steps=7", "epochs=2")),
        ({"sampling_rate": 0.5, "batch_size": 10}, ("sampling_rate=0.5", "batch_size=10")),
        ({"sampling_rate": 0.01, "batch_size": 10}, ("sampling_rate=0.01", "batch_size=10")),
        ({"optimizer": functools.partial(optim.SGD, lr=1e-3)}, ("lr of optimizer", "learning_rate")),
        ({"momentum": 0.9, "optimizer": optim.SGD}, ("momentum=0.9", "partial(torch.optim.SGD, momentum=0.9)")),
    ],
)
def test_of_two_arguments_for_one_thing_none_is_ignored(given, names):
    with pytest.raises(ValueError, match=r"pass|remove") as refused:
        TorchDPSGD(head(), **given)
    assert all(name in str(refused.value) for name in names)


def test_numbers_that_follow_from_others_stay_so_in_copies():
    by_rate = TorchDPSGD(head(), epochs=2, sampling_rate=0.5)
    assert (by_rate.steps, replace(by_rate, sampling_rate=0.25).steps) == (4, 8)
    assert pickle.loads(pickle.dumps(by_rate)).steps == 4
    by_size = TorchDPSGD(head(), epochs=2, batch_size=20)
    assert by_size.with_records(100).with_noise(2.0).releases == (0.2, 10)
    assert TorchDPSGD(head(), epochs=2, batch_size=20, n_records=100).releases == (0.2, 10)
    plain = TorchDPSGD(head())
    assert (plain.sampling_rate, plain.steps, plain.learning_rate) == (0.01, 1000, 0.1)


# ---- values of one argument


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"optimizer": "AdamW"}, ValueError, "sgd.*adam.*AdamW"),
        ({"optimizer": optim.SGD(head().parameters(), lr=4711.0)}, TypeError, "an instance of SGD; pass torch.optim"),
        ({"scheduler": schedulers.StepLR(optim.SGD(head().parameters(), lr=0.1), 5)}, TypeError, "instance of StepLR"),
        ({"loss": "mse"}, ValueError, "cross_entropy.*mse"),
        ({"momentum": 1.0}, ValueError, "momentum must lie in"),
    ],
)
def test_messages_name_what_to_pass(given, error, message):
    with pytest.raises(error, match=message) as refused:
        TorchDPSGD(head(), **given)
    assert "4711" not in str(refused.value)


@pytest.mark.parametrize("loss", [lambda z, y: nn.functional.cross_entropy(z, y), nn.MSELoss(reduction="none")])
def test_a_loss_of_another_shape_is_explained(loss):
    module = nn.Linear(4, 1) if isinstance(loss, nn.Module) else head()
    with pytest.raises(ValueError, match=r"reduction='none' to a loss of torch.*outputs\[:, 0\]"):
        TorchDPSGD(module, loss=loss, classes=None if isinstance(loss, nn.Module) else (0, 1)).check((4,))


# ---- the optimizer and the schedule are tried first


class FailsLater(optim.SGD):
    def step(self):
        if getattr(self, "has_stepped", False):
            raise RuntimeError("no second step")
        self.has_stepped = True


WRONG = {
    "second step": ({"optimizer": FailsLater}, "failed in step 2 of the optimizer.*no second step"),
    "no lr": ({"optimizer": lambda parameters: optim.SGD(parameters)}, "'lr'.*called with the parameters"),
    "no optimizer": ({"optimizer": lambda parameters, **_: parameters}, "no attribute 'step'"),
    "closure": ({"optimizer": optim.LBFGS}, "closure.* gets no loss"),
    "plateau": ({"scheduler": lambda optimizer, _: schedulers.ReduceLROnPlateau(optimizer)}, "metrics.* gets no loss"),
    "too short": (
        {"scheduler": lambda optimizer, _: schedulers.OneCycleLR(optimizer, 1.0, total_steps=2)},
        "after step 3 of 3 training steps.*not after each epoch",
    ),
    "device": ({"device": "cuda:99"}, "device='cuda:99' cannot be used .*leave it out to train on the CPU"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_fail_in_training_spends_nothing(name, tmp_path):
    changed, message = WRONG[name]
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=5.0, delta=1e-5, dataset="x")
    mechanism = TorchDPSGD(head(), steps=3, sampling_rate=0.2, **changed)
    estimator = dp.PrivateConformalClassifier(
        mechanism, epsilon=3.0, classes=[0, 1], n_records=200, guarantee="split", accountant="rdp"
    )
    with pytest.raises(ValueError, match=message):
        estimator.fit(*records(), budget=store)
    assert not store.ledger().entries


def test_the_dry_run_of_the_optimizer_changes_no_parameter():
    module = head()
    before = module.weight.detach().clone()
    TorchDPSGD(module, classes=(0, 1), optimizer=optim.AdamW, steps=3).check((4,))
    assert torch.equal(module.weight, before)
    assert module.weight.grad is None


def test_a_schedule_gets_the_number_of_steps():
    seen = []

    def cosine(optimizer, steps):
        seen.append((steps, schedulers.CosineAnnealingLR(optimizer, steps)))
        return seen[-1][1]

    trained(scheduler=cosine, steps=6)
    assert {steps for steps, _ in seen} == {6}
    assert seen[-1][1].get_last_lr() == [pytest.approx(0.0, abs=1e-12)]  # at the end of the cosine
    trained(scheduler=lambda optimizer, steps: schedulers.OneCycleLR(optimizer, 1.0, total_steps=steps))
    # in an estimator: the steps of the records that train
    estimator = dp.PrivateConformalClassifier(
        TorchDPSGD(head(), epochs=2, batch_size=20, scheduler=cosine),
        epsilon=3.0,
        classes=[0, 1],
        n_records=200,
        guarantee="split",
        calibration_fraction=0.5,
        accountant="rdp",
    ).fit(*records())
    assert seen[-1][0] == estimator.ledger_.public_facts["training_steps"] == 10
