"""What a torch module is tried and applied on at once follows from what its layers return."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpscp.training.torch import dry_run as dry_run_module  # noqa: E402
from dpscp.training.torch.dry_run import _require_same, _Trial, count_numbers, rows_at_once  # noqa: E402
from dpscp.training.torch.model import TorchModel  # noqa: E402


class Tokens(nn.Module):
    """Takes ids of words only, and returns many numbers for each."""

    def __init__(self):
        super().__init__()
        self.words, self.wide, self.head = nn.Embedding(2, 64), nn.Linear(64, 2048), nn.Linear(2048, 2)

    def forward(self, tokens):
        return self.head(self.wide(self.words(tokens.long())).mean(1))


class Refusing(nn.Module):
    def forward(self, rows):
        raise TypeError(len(rows))


class Pairs(nn.Module):
    """A layer that returns two tensors, one of them not a number of the record alone."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(3, 5, batch_first=True)

    def forward(self, rows):
        return self.inner(rows)[0].mean(1)


def test_numbers_are_those_of_the_innermost_layers_and_of_the_row():
    module = nn.Sequential(nn.Linear(6, 10), nn.Sequential(nn.ReLU(), nn.Linear(10, 3)))
    assert count_numbers(module, torch.zeros(4, 6)) == 6 + 10 + 10 + 3
    assert all(not part._forward_hooks for part in module.modules())
    assert count_numbers(Pairs(), torch.zeros(4, 7, 3)) == 7 * 3 + 7 * 5
    with pytest.raises(RuntimeError):
        count_numbers(module, torch.zeros(4, 5))
    assert all(not part._forward_hooks for part in module.modules())


def test_a_wide_module_gets_fewer_rows_at_once_on_a_processor():
    assert rows_at_once(nn.Linear(6, 3), (6,), "cpu") == 4096
    assert rows_at_once(nn.Linear(784, 3), (784,), "cpu") == 2**18 // 784
    wide = nn.Sequential(nn.Linear(6, 2**15), nn.Linear(2**15, 3))
    assert rows_at_once(wide, (6,), "cpu") == 2**23 // (6 + 2**15 + 3)
    # a card is not asked, since rows of the wrong kind would end the process there
    assert rows_at_once(Refusing(), (6,), "cuda") == 4096
    assert rows_at_once(nn.Linear(6, 2**20), (6,), "cpu") == 64


def test_rows_of_a_kind_that_the_module_does_not_take_are_left_out():
    numbers = 32 + 32 * 64 + 32 * 2048 + 2
    assert rows_at_once(Tokens(), (32,), "cpu") == 2**23 // numbers
    assert rows_at_once(Refusing(), (6,), "cpu") == 64


def test_predictions_go_through_the_module_in_such_blocks(monkeypatch):
    sizes = []
    module = nn.Sequential(nn.Linear(6, 20), nn.Linear(20, 2))

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, rows):
            sizes.append(len(rows))
            return self.inner(rows)

    X = np.random.default_rng(0).normal(size=(250, 6)).astype(np.float32)
    expected = module(torch.from_numpy(X)).detach().numpy()
    monkeypatch.setattr(dry_run_module, "_MOST_RETURNED", 100 * 28)
    found = TorchModel(Watched(), (6,), (0, 1)).outputs(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert sizes == [4, 100, 100, 50]


def trial(module, shape):
    made = _Trial(module, shape, lambda n, _: torch.zeros(n, dtype=torch.int64), nn.CrossEntropyLoss(), "cpu")
    made.own = dry_run_module._Rows(0)
    return made


def test_large_gradients_and_large_layers_are_tried_on_fewer_records():
    assert trial(nn.Linear(6, 3), (6,)).sizes == (67, 23, 11)
    assert trial(nn.Linear(400, 400), (400,)).sizes == (13, 11, 7)
    assert trial(nn.Linear(1000, 1000), (1000,)).sizes == (7, 5, 3)
    frozen = nn.Linear(6, 2**18).requires_grad_(False)
    assert trial(nn.Sequential(frozen, nn.AvgPool1d(2**17), nn.Linear(2, 3)), (6,)).sizes == (13, 11, 7)


@pytest.mark.parametrize("at_once", [1, 7, 2**18])
def test_a_difference_in_any_row_is_found(at_once, monkeypatch):
    monkeypatch.setattr(dry_run_module, "_COMPARED_NUMBERS", at_once)
    expected = [torch.arange(30.0).reshape(10, 3), torch.ones(10), torch.ones(10, 0)]
    keys = [9, 2, 5, 7]
    _require_same([e[keys] for e in expected], expected, keys)
    _require_same(expected, expected)
    _require_same([torch.tensor(2.0)], [torch.tensor(2.0)])
    for place in range(len(keys)):
        for number in (0.5, float("nan")):
            samples = [e[keys].clone() for e in expected]
            samples[0][place, 1] += number
            with pytest.raises(ValueError, match="depends on the other records"):
                _require_same(samples, expected, keys)
    with pytest.raises(ValueError, match="depends on the other records"):
        _require_same([e[keys] for e in expected], expected, [9, 2, 7, 5])
