"""Draws of a module: they have the law that torch's own have, and are numbers of the record alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpscp.torch.checks import RefusedError
from dpscp.torch.draws import draw_numbers
from dpscp.torch.trainer import TorchDPSGD

functional = nn.functional
MANY = 20_000


def generator(x):
    return torch.Generator().manual_seed(3)


DRAWS = {
    "rand": (lambda x: torch.rand(len(x), 1), stats.uniform()),
    "rand of a generator": (lambda x: torch.rand(len(x), 1, generator=generator(x)), stats.uniform()),
    "rand_like": (lambda x: torch.rand_like(x), stats.uniform()),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 3), stats.uniform(-1, 4)),
    "randn": (lambda x: torch.randn(len(x), 1), stats.norm()),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), stats.norm(2, 3)),
    "normal of tensors": (lambda x: torch.normal(x * 0 + 1, 2.0), stats.norm(1, 2)),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), stats.expon(scale=0.5)),
    "randint": (lambda x: torch.randint(3, 7, (len(x), 1)).float(), stats.randint(3, 7)),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), stats.bernoulli(0.3)),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), stats.bernoulli(0.3)),
    "dropout": (lambda x: functional.dropout(x * 0 + 1, 0.2) * 0.8, stats.bernoulli(0.8)),
    "feature dropout": (lambda x: functional.dropout1d(x[..., None] * 0 + 1, 0.2)[..., 0] * 0.8, stats.bernoulli(0.8)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_the_law_of_torch(trace, name):
    draw, law = DRAWS[name]
    traced = trace(Weighted(draw), (1,), lambda z, _: z[:, 0], size=4)
    source = np.random.default_rng(7)
    found = []
    for _ in range(MANY // 4 // 100):
        wide = draw_numbers(traced.graph.draws, 400, source)
        for start in range(0, 400, 4):
            traced.draws = [numbers[start : start + 4] for numbers in wide]
            found.append(traced.gradients()[0][:, 0].numpy())
        if len(found) * 4 >= 2000:
            break
    values = np.concatenate(found)
    if hasattr(law.dist, "pmf"):
        support = np.unique(np.round(values, 4))
        observed = np.array([(np.abs(values - v) < 1e-3).sum() for v in support])
        expected = law.pmf(np.round(support)) * len(values)
        assert observed.sum() == len(values)
        assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-5
        assert expected.sum() == pytest.approx(len(values), rel=1e-6)
    else:
        assert stats.kstest(values, law.cdf).pvalue > 1e-5


class Weighted(nn.Module):
    """A parameter times what is drawn: its gradient is the draw."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.weight = draw, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * self.draw(x)


def test_draws_of_records_are_independent(trace):
    traced = trace(Weighted(lambda x: torch.randn(len(x), 1)), (1,), lambda z, _: z[:, 0], size=256)
    source = np.random.default_rng(1)
    rows = []
    for _ in range(2):
        traced.draws = draw_numbers(traced.graph.draws, 256, source)
        rows.append(traced.gradients()[0][:, 0].numpy())
    assert len(np.unique(np.concatenate(rows))) == 512
    assert abs(np.corrcoef(*rows)[0, 1]) < 5 / 16
    assert abs(np.corrcoef(rows[0][1:], rows[0][:-1])[0, 1]) < 5 / 16


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.poisson(x * 0 + 3),
        lambda _: torch.multinomial(torch.ones(4), 1)[None].float(),
    ],
)
def test_other_draws_are_refused_by_name(trace, draw):
    with pytest.raises((RefusedError, ValueError), match="draw"):
        trace(Weighted(draw), (1,), lambda z, _: z[:, 0])


class Masked(Weighted):
    """One that draws in training alone."""

    def forward(self, x):
        return self.weight * (torch.rand(len(x), 1) if self.training else x)


def test_every_step_has_draws_of_its_own():
    """One parameter whose gradient is a draw: two steps without noise move it by the two draws."""
    mechanism = TorchDPSGD(Masked(None), lambda z, _: z[:, 0], 1.0, 2, 1.0, noise_multiplier=0.0)
    one, two = (
        float(
            replace(mechanism, steps=steps)
            .train([[1.0]], [0.0], random_state=0, n_records=1)
            .model.module.weight.detach()
        )
        for steps in (1, 2)
    )
    assert 0 < 1 - one < 1
    assert 0 < one - two < 1
    assert abs((one - two) - (1 - one)) > 1e-6
