"""Torch models in files: parameters as arrays, the architecture from the caller, and no mistake about which it is."""

import copy
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

import dpscp as dp
from dpscp.training import DPSGD, TorchDPSGD

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"),  # few records: the sets may be full
]

OPTIONS = {"epsilon": 4.0, "guarantee": "split", "accountant": "rdp", "random_state": 0, "n_records": 300}


def labeled(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, (X[:, 0] > 0).astype(int)


def net(activation=torch.nn.Tanh, hidden=6):
    return torch.nn.Sequential(torch.nn.Linear(4, hidden), activation(), torch.nn.Linear(hidden, 2))


def fitted(module, **options):
    training = TorchDPSGD(module, steps=4, sampling_rate=0.2, learning_rate=0.5)
    return dp.PrivateConformalClassifier(training, classes=[0, 1], **OPTIONS, **options).fit(*labeled())


@pytest.fixture(scope="module")
def model():
    return fitted(net(), feature_bounds=(-1, 1))


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "model.dpscp"
    model.save(path)
    return path


def test_a_module_comes_back_in_a_fresh_copy_of_its_architecture(model, path):
    fresh = net()
    before = copy.deepcopy(fresh.state_dict())
    loaded = dp.load(path, module=fresh)
    X, _ = labeled()
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict_set(X)[1], model.predict_set(X)[1])
    assert loaded.ledger_ == model.ledger_
    assert loaded.certificates_ == model.certificates_
    assert loaded.digest() == model.digest()
    assert all(torch.equal(before[name], value) for name, value in fresh.state_dict().items())


def test_the_file_holds_arrays_and_text_only(path):
    with zipfile.ZipFile(path) as archive:
        assert {name.rsplit(".", 1)[1] for name in archive.namelist()} == {"npy", "json"}
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as file:
                    np.lib.format.read_array(file, allow_pickle=False)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, r"not its code; give the architecture, dp\.load\(path, module=net\)"),
        ("net", "must be a torch.nn.Module, got str"),
        (net(torch.nn.ReLU), "gives other outputs on synthetic records"),
        (net(torch.nn.Hardtanh), "gives other outputs on synthetic records"),
        (net(hidden=7), r"another architecture.* size mismatch for 0.weight"),
        (torch.nn.Linear(4, 2), "another architecture.* Missing key.*weight"),
        (torch.nn.Sequential(*net(), torch.nn.Linear(2, 2)), "another architecture.* Missing key.*3.weight"),
    ],
)
def test_another_architecture_is_refused(path, module, told):
    with pytest.raises(ValueError, match=told):
        dp.load(path, module=module)


def test_a_file_that_holds_its_whole_model_takes_no_module(tmp_path):
    clf = dp.PrivateConformalClassifier(DPSGD(steps=3), classes=[0, 1], feature_bounds=(-1, 1), **OPTIONS)
    clf.fit(*labeled()).save(tmp_path / "m")
    with pytest.raises(ValueError, match="contains the whole model; remove module"):
        dp.load(tmp_path / "m", module=net())


def with_backbone(seed):
    torch.manual_seed(seed)
    body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU())
    body[1].running_mean.uniform_()
    body.requires_grad_(False)
    return torch.nn.Sequential(body, torch.nn.Linear(5, 2))


def test_a_frozen_backbone_is_in_the_file_with_its_statistics(tmp_path):
    model = fitted(with_backbone(0))
    model.save(tmp_path / "m")
    loaded = dp.load(tmp_path / "m", module=with_backbone(1))
    X, _ = labeled()
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_regressor_and_a_module_that_opacus_trained(tmp_path):
    X, _ = labeled()
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 1))
    engine = SimpleNamespace(accountant=SimpleNamespace(history=[(4.0, 0.1, 5)]))
    private = dp.PrivateModel.from_opacus(module, engine)
    reg = dp.PrivateConformalRegressor(private, y_bounds=(-4, 4), **OPTIONS | {"guarantee": "universal"})
    reg.fit(X, X.sum(axis=1)).save(tmp_path / "m")
    loaded = dp.load(tmp_path / "m", module=torch.nn.Sequential(torch.nn.Linear(4, 1)))
    np.testing.assert_array_equal(loaded.predict_interval(X)[1], reg.predict_interval(X)[1])


class Remembering(torch.nn.Linear):
    def get_extra_state(self):
        return {"code": "anything"}

    def set_extra_state(self, state):
        pass


def test_a_state_without_a_plain_form_is_refused_when_saving(tmp_path):
    with pytest.raises(TypeError, match="'_extra_state' of the module's state dict is dict"):
        fitted(Remembering(4, 2)).save(tmp_path / "m")
    model = fitted(net())
    model.model_.module.register_buffer("more", torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"'more' of the module's state dict is torch\.bfloat16"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
