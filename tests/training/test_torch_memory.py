"""What a torch module is tried and applied on at once follows from what its layers return."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dpscp.training.torch import comparison, synthetic_rows  # noqa: E402
from dpscp.training.torch.comparison import Differences, require_same, spread  # noqa: E402
from dpscp.training.torch.dry_run import Rows, _Trial  # noqa: E402
from dpscp.training.torch.model import TorchModel  # noqa: E402
from dpscp.training.torch.synthetic_rows import ANY, count_numbers, rows_at_once  # noqa: E402


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
    monkeypatch.setattr(synthetic_rows, "_MOST_RETURNED", 100 * 28)
    found = TorchModel(Watched(), (6,), (0, 1)).outputs(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert sizes == [4, 100, 100, 50]


def trial(module, shape):
    made = _Trial(module, shape, lambda n, _: torch.zeros(n, dtype=torch.int64), nn.CrossEntropyLoss(), "cpu")
    made.own = Rows(ANY)
    return made


def test_large_gradients_and_large_layers_are_tried_on_fewer_records():
    assert trial(nn.Linear(6, 3), (6,)).sizes == (67, 23, 11)
    assert trial(nn.Linear(400, 400), (400,)).sizes == (13, 11, 7)
    assert trial(nn.Linear(1000, 1000), (1000,)).sizes == (7, 5, 3)
    frozen = nn.Linear(6, 2**18).requires_grad_(False)
    assert trial(nn.Sequential(frozen, nn.AvgPool1d(2**17), nn.Linear(2, 3)), (6,)).sizes == (13, 11, 7)


@pytest.mark.parametrize("at_once", [1, 7, 2**18])
def test_a_difference_in_any_row_is_found(at_once, monkeypatch):
    monkeypatch.setattr(comparison, "_COMPARED_NUMBERS", at_once)
    expected, keys = torch.arange(30.0).reshape(10, 3), [9, 2, 5, 7]
    require_same(expected[keys], expected, keys)
    require_same(expected, expected)
    require_same(torch.ones(10, 0), torch.ones(10, 0))
    for place in range(len(keys)):
        for number in (0.5, float("nan"), float("inf")):
            found = expected[keys].clone()
            found[place, 1] += number
            with pytest.raises(ValueError, match="depends on the other records"):
                require_same(found, expected, keys)
    with pytest.raises(ValueError, match="depends on the other records"):
        require_same(expected[keys], expected, [9, 2, 7, 5])


@pytest.mark.parametrize("at_once", [1, 2**18])
def test_differences_are_relative_to_the_largest_number_of_a_parameter(at_once, monkeypatch):
    monkeypatch.setattr(comparison, "_COMPARED_NUMBERS", at_once)
    large, small = torch.tensor([[1e3, 0.0]]).double(), torch.tensor([[1e-3, 0.0]]).double()
    for dtype, relative in ((torch.float64, 1e-7), (torch.float32, 1e-3)):
        for factor, is_refused in ((0.9, False), (1.2, True)):
            differences = Differences([dtype, dtype])
            differences.add([large, small], [large, small])
            differences.add([large * (1 + factor * relative), small], [large, small])
            if is_refused:
                with pytest.raises(ValueError, match="depends on the other records"):
                    differences.refuse()
            else:
                differences.refuse()
    never_equal = Differences([torch.float32])
    never_equal.add([torch.tensor([torch.inf])], [torch.tensor([torch.inf])])
    with pytest.raises(ValueError, match="depends on the other records"):
        never_equal.refuse()


@pytest.mark.parametrize("n", [3, 5, 7, 13, 14, 67, 77, 91, 1001])
def test_rows_of_a_smaller_batch_are_different_ones(n):
    for count in (min(n, 3), min(n, 11), n):
        keys = spread(n, count)
        assert len(set(keys)) == count
        assert keys[0] == n - 1
