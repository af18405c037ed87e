"""Terms of layers: the same gradients, norms and sums as autograd's for one record, and a bounded rounding.

The kinds of layers and their configurations include those of the tests of Opacus' gradients of single records.
"""

import itertools
import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from dpscp.torch import terms as terms_module
from dpscp.torch.checks import RefusedError, _add_rows
from dpscp.torch.terms import ClipRule, LookupTerm, ProductTerm, SampleTerm
from dpscp.training.engine.gradients import CLIP_SLACK

functional = nn.functional
# autograd itself rounds in float32
TOLERANCE = 2e-5


class Own(nn.Module):
    """Parts of a module, and a caller's own forward."""

    def __init__(self, own_forward, **parts):
        super().__init__()
        self.own_forward = own_forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.own_forward(self, x)


def headed(layer, numbers):
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(numbers, 3))


def convolutions():
    """The configurations of the tests of Opacus, for one, two and three dimensions."""
    kinds = {1: (nn.Conv1d, (6, 9)), 2: (nn.Conv2d, (4, 8, 7)), 3: (nn.Conv3d, (4, 4, 5, 6))}
    choices = {
        1: [(1, 0, 1, 1), (2, 1, 1, 1), (1, "same", 2, 1), (3, 2, 2, 2), (1, "valid", 1, 6)],
        2: [(1, 0, 1, 1), ((2, 1), (1, 0), 1, 1), (1, "same", (2, 1), 1), (2, 2, 2, 2), (1, 1, 1, 4)],
        3: [(1, 0, 1, 1), (2, 1, 1, 2), (1, "same", 1, 1), ((1, 2, 1), (0, 1, 1), 1, 1)],
    }
    for d, (kind, shape) in kinds.items():
        for (stride, padding, dilation, groups), mode in itertools.product(choices[d], ("zeros", "circular")):
            if mode == "circular" and padding in (0, "valid"):
                continue
            layer = kind(
                shape[0], 2 * shape[0], 3 if d < 3 else (1, 3, 3), stride, padding, dilation, groups, padding_mode=mode,
                bias=stride != 2,
            )  # fmt: skip
            numbers = layer(torch.zeros(1, *shape)).numel()
            yield f"conv{d}d {stride} {padding} {dilation} {groups} {mode}", headed(layer, numbers), shape


def norms():
    for name, layer, shape in (
        ("layer norm", nn.LayerNorm(5), (4, 5)),
        ("layer norm of two", nn.LayerNorm((4, 5), eps=1e-3), (4, 5)),
        ("layer norm without bias", nn.LayerNorm(5, bias=False), (4, 5)),
        ("group norm", nn.GroupNorm(2, 4), (4, 3, 3)),
        ("group norm of rows", nn.GroupNorm(1, 6), (6,)),
        ("group norm not affine", nn.GroupNorm(2, 4, affine=False), (4, 3, 3)),
        ("instance norm 1d", nn.InstanceNorm1d(4, affine=True), (4, 7)),
        ("instance norm 2d", nn.InstanceNorm2d(4, affine=True), (4, 3, 3)),
        ("instance norm 3d", nn.InstanceNorm3d(2, affine=True), (2, 3, 3, 2)),
        ("RMS norm", nn.RMSNorm(5), (4, 5)),
    ):
        yield name, headed(layer, int(np.prod(shape))), shape


def recurrent():
    options = [
        {}, {"bias": False}, {"num_layers": 2, "dropout": 0.0}, {"bidirectional": True}, {"batch_first": False},
        {"num_layers": 2, "bidirectional": True, "bias": False},
    ]  # fmt: skip
    for kind, option in itertools.product((nn.RNN, nn.GRU, nn.LSTM), options):
        more = [{}]
        if kind is nn.RNN:
            more = [{}, {"nonlinearity": "relu"}]
        if kind is nn.LSTM:
            more = [{}, {"proj_size": 3}]
        for other in more:
            settings = {"batch_first": True} | option | other
            core = kind(3, 4, **settings)
            width = settings.get("proj_size", 4) * (2 if settings.get("bidirectional") else 1)
            swap = not settings["batch_first"]
            module = Own(
                lambda s, x, swap=swap: s.head(s.core(x.transpose(0, 1))[0].sum(0) if swap else s.core(x)[0].sum(1)),
                core=core,
                head=nn.Linear(width, 3),
            )
            yield f"{kind.__name__} {option | other}", module, (3, 3)


def more_of_opacus():
    """Configurations of the tests of Opacus that the other families do not have."""
    for name, layer, shape in (
        ("conv1d, even kernel", nn.Conv1d(3, 1, 2, padding="same", dilation=2), (3, 8)),
        ("conv2d, even kernel", nn.Conv2d(3, 1, 4, padding="same"), (3, 6, 7)),
        ("conv2d, one column", nn.Conv2d(1, 1, (3, 1), dilation=(3, 1), bias=False), (1, 8, 1)),
        ("conv3d, other sides", nn.Conv3d(3, 3, (1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 2), groups=3), (3, 3, 6, 7)),
        ("conv3d, same size", nn.Conv3d(1, 2, (1, 2, 3), padding="same", dilation=(1, 2, 2)), (1, 3, 6, 6)),
        ("group norm of channels", nn.GroupNorm(4, 4), (4, 3, 3)),
        ("layer norm of three", nn.LayerNorm((2, 3, 5)), (2, 3, 5)),
        ("dense without bias", nn.Linear(5, 4, bias=False), (2, 3, 5)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch copies inputs of even kernels
            yield name, headed(layer, layer(torch.zeros(1, *shape)).numel()), shape
    table = Own(
        lambda s, x: s.head(s.table((x * 5).long()).mean((1, 2, 3))), table=nn.Embedding(5, 4), head=nn.Linear(4, 3)
    )
    yield "indices of three dimensions", table, (2, 3, 2)
    for bias, kv, zero in ((False, False, True), (True, True, True)):
        core = nn.MultiheadAttention(8, 2, batch_first=True, bias=bias, add_bias_kv=kv, add_zero_attn=zero)
        yield f"attention, bias {bias}, {kv}, {zero}", Own(attend, core=core, head=nn.Linear(8, 3)), (5, 8)


def tied_table():
    module = Own(
        lambda s, x: s.last(s.table((x * 4).long()).tanh().mean(1)), table=nn.Embedding(5, 6), last=nn.Linear(6, 5)
    )
    module.last.weight = module.table.weight
    return module


def half_frozen():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    module[0].weight.requires_grad_(False)
    module[1].bias.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module


def frozen_backbone():
    back = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh()).requires_grad_(False)
    back[1].running_mean.fill_(0.3)
    return nn.Sequential(back, nn.Linear(5, 3))


def hooked():
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    module[0].register_forward_hook(lambda _, __, output: output * 2)
    return module


def words(table):
    return Own(lambda s, x: s.head(s.table((x * 5).long()).mean(1)), table=table, head=nn.Linear(4, 3))


def fold(self, x):
    return self.layer(x.reshape(-1, 1)).reshape(len(x), 6, 3).sum(1)


def use_twice(self, x):
    return self.layer(x) + x @ self.layer.weight.T


def attend(self, x):
    return self.head(self.core(x, x, x)[0].mean(1))


def others():
    shared = nn.Linear(6, 6)
    twice = Own(lambda s, x: s.head(s.layer(s.layer(x).tanh())), layer=nn.Linear(6, 6), head=nn.Linear(6, 3))
    one = torch.tensor(1.5)
    yield "dense", nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (6,)
    yield "dense by its name", Own(lambda s, x: s.layer(input=x), layer=nn.Linear(6, 3)), (6,)
    yield "tokens", headed(nn.Linear(6, 5), 20), (4, 6)
    yield "tokens and more", headed(nn.Linear(6, 5), 40), (2, 4, 6)
    # products that are large enough for oneDNN
    yield "wide", nn.Sequential(nn.Linear(600, 700), nn.Tanh(), nn.Linear(700, 600, bias=False)), (600,)
    yield "many tokens", headed(nn.Linear(64, 64), 64 * 256), (256, 64)
    yield "large convolution", headed(nn.Conv2d(8, 32, 3, padding=1), 32 * 24 * 24), (8, 24, 24)
    yield "large convolution of groups", headed(nn.Conv2d(8, 64, 3, groups=2), 64 * 24 * 24), (8, 26, 26)
    yield "words", words(nn.Embedding(5, 4)), (7,)
    yield "padded words", words(nn.Embedding(5, 4, padding_idx=-3)), (7,)
    for mode, padding in itertools.product(("sum", "mean", "max"), (None, -3)):
        bag = nn.EmbeddingBag(5, 4, mode=mode, padding_idx=padding)
        module = Own(lambda s, x: s.head(s.table((x * 5).long())), table=bag, head=nn.Linear(4, 3))
        yield f"bag of words, {mode}{'' if padding is None else ', padded'}", module, (7,)
    yield "bilinear", Own(lambda s, x: s.layer(x, x), layer=nn.Bilinear(6, 6, 3)), (6,)
    yield "transposed convolution", headed(nn.ConvTranspose2d(2, 3, 2), 75), (2, 4, 4)
    yield "PReLU", nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3)), (6,)
    yield "shared layer", nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(6, 3)), (6,)
    yield "called twice", twice, (6,)
    yield "tied table", tied_table(), (7,)
    yield "half frozen", half_frozen(), (2, 6, 6)
    yield "frozen backbone", frozen_backbone(), (6,)
    yield "own parameters", Own(lambda s, x: s.layer(x * s.scale), layer=nn.Linear(6, 3), scale=nn.Parameter(one)), (6,)
    yield "weight norm", nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Linear(5, 3)), (6,)
    yield "hook", hooked(), (6,)
    yield "folded", Own(fold, layer=nn.Linear(1, 3)), (6,)
    yield "weight used beside its layer", Own(use_twice, layer=nn.Linear(6, 3)), (6,)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, bias=True)
    yield "attention", Own(attend, core=attention, head=nn.Linear(8, 3)), (5, 8)
    crossed = nn.MultiheadAttention(8, 2, batch_first=True, kdim=4, vdim=4, add_bias_kv=True)
    yield (
        "attention of another width",
        Own(lambda s, x: s.head(s.core(x, x[..., :4], x[..., 4:])[0].mean(1)), core=crossed, head=nn.Linear(8, 3)),
        (5, 8),
    )
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)
    yield "transformer", Own(lambda s, x: s.head(s.core(x).mean(1)), core=encoder, head=nn.Linear(8, 3)), (5, 8)


torch.manual_seed(0)
CASES = {
    name: (module, shape)
    for make in (convolutions, norms, recurrent, more_of_opacus, others)
    for name, module, shape in make()
}


# these take long to trace, or resemble others
RARE = (
    r"conv3d [^o]|conv.*circular|(RNN|GRU) {'|LSTM {'(bias|num|bidir|batch)|conv1d (3|1 valid)|conv2d 2 2",
    r".*norm (of|not|without)|instance norm (1|3)d|tokens and more|attention of|bag of|called twice|dense by|padded",
)
SLOW = [name for name in CASES if re.match("|".join(RARE), name)]


@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:Using padding='same' with even")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_gradients_are_those_of_autograd_and_records_stay_apart(trace, name):
    module, shape = CASES[name]
    traced = trace(module, shape, size=3)
    assert max(traced.errors()) < TOLERANCE
    assert traced.moved() == 0.0
    terms, _ = traced.terms()
    factors = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    for term in terms:
        wanted = torch.einsum("i,i...->...", factors, term.single_gradients().double())
        torch.testing.assert_close(term.weighted_sum(factors, None), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", ["tokens", "conv2d 1 same (2, 1) 1 zeros", "conv1d 2 1 1 1 zeros"])
def test_ghost_norms_and_single_gradients_agree(trace, monkeypatch, name, held):
    monkeypatch.setattr("dpscp.torch.layers._MOST_HELD", 1 << 30 if held else 0)
    monkeypatch.setattr("dpscp.torch.layers._MOST_GHOST_PLACES", 0 if held else 1 << 30)
    monkeypatch.setattr(terms_module, "_AT_ONCE", 1000)
    module, shape = CASES[name]
    traced = trace(module, shape, size=3)
    assert isinstance(traced.terms()[0][0], SampleTerm if held else ProductTerm)
    assert max(traced.errors()) < TOLERANCE


def test_kinds_of_layers_have_terms_and_others_have_gradients(trace):
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.PReLU(), nn.Flatten(), nn.Linear(32, 4), nn.LayerNorm(4)
    )
    found = trace(module, (1, 6, 6)).graph
    assert [call.kind for call in found.calls] == ["conv", "linear"]
    assert found.others == ("1.weight", "1.bias", "2.weight", "5.weight", "5.bias")


def test_an_unused_parameter_is_named(trace):
    module = Own(lambda s, x: s.layer(x), layer=nn.Linear(6, 3), idle=nn.Linear(2, 2))
    with pytest.raises(RefusedError, match=r"idle\.weight, idle\.bias do not enter the loss"):
        trace(module, (6,))


# ---- what one record can do to a sum


def rational_norm(total):
    """The squared norm, exactly."""
    return sum(Fraction(float(value)) ** 2 for value in total.flatten())


def test_places_that_cancel_add_at_most_one_clip_norm_each():
    """Large numbers that cancel inside a record: neither the norm nor the sum may lose what is left of them."""
    torch.manual_seed(3)
    n, places, rule = 40, 64, ClipRule(1.0, 4096.0, 64)
    errors, inputs = torch.randn(n, places, 3), torch.randn(n, places, 5)
    for i, size in enumerate(np.geomspace(1, 1e18, n)):  # pairs of places that cancel but for the last bits
        errors[i, ::2] *= float(size)
        errors[i, 1::2], inputs[i, 1::2] = -errors[i, ::2], inputs[i, ::2] * (1 + 2.0**-20)
    parameter = (3, 5)
    term = ProductTerm(parameter, errors, inputs)
    factors, _ = rule.factors([term], None)
    exact = [
        [
            [sum(Fraction(float(errors[i, t, a])) * Fraction(float(inputs[i, t, b])) for t in range(places))
             for b in range(5)]
            for a in range(3)
        ]
        for i in range(n)
    ]  # fmt: skip
    for i in range(n):
        length = Fraction(float(factors[i])) ** 2 * sum(v * v for line in exact[i] for v in line)
        assert length <= 1
    total = term.weighted_sum(factors, None)
    wanted = [[sum(Fraction(float(factors[i])) * exact[i][a][b] for i in range(n)) for b in range(5)] for a in range(3)]
    off = sum((Fraction(float(total[a, b])) - wanted[a][b]) ** 2 for a in range(3) for b in range(5))
    assert off <= Fraction(CLIP_SLACK / 2) ** 2
    # without the bound on what cancels the longest record would be off by more than that
    magnitude = (errors[-1].double().norm(dim=1) * inputs[-1].double().norm(dim=1)).sum()
    assert float(factors[-1] * magnitude) <= rule.cancellation([term]) * (1 + 1e-9)
    # 8192 rows of a product and one product more, 4096 blocks, 41 levels of pairs
    alone = SampleTerm(parameter, errors[:, :, :1])
    assert rule.cancellation([alone, term]) == pytest.approx(9e-5 * 2**52 / ((8193 + 4096 + 41) * 4096), rel=1e-12)


def test_nothing_may_be_as_long_as_one_clip_norm_in_a_batch_whose_rounding_is_larger():
    """Also where nothing cancels: records are shortened by what the rounding of so many of them would be."""
    rows = SampleTerm((3,), 10 * torch.eye(3, dtype=torch.float64))
    for most_records, share in ((4096.0, 1.0), (2.0**30, None)):
        rule = ClipRule(1.0, most_records, 64)
        share = rule.cancellation([rows]) if share is None else share
        factors, _ = rule.factors([rows], None)
        assert 0.05 < share <= 1
        np.testing.assert_allclose(10 * factors, share, rtol=1e-9)
    assert share < 0.5


@pytest.mark.parametrize("padding", [-1, 2])
def test_the_gradient_of_a_table_is_torchs_own(padding):
    errors, indices = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [2, 2, 4]])
    expected = torch.ops.aten.embedding_dense_backward(errors, indices, 5, padding, False)
    torch.testing.assert_close(_add_rows(errors, indices, 5, padding), expected)


def test_ghost_norms_are_not_below_the_true_ones():
    """Where nearly everything cancels, the sum over pairs of places is rounding alone."""
    torch.manual_seed(7)
    n, places = 12, 16
    errors, inputs = torch.randn(n, places, 2), torch.randn(n, places, 3)
    errors[:, 1::2], inputs[:, 1::2] = -errors[:, ::2], inputs[:, ::2] * (1 + 2.0**-22)
    term = ProductTerm((2, 3), errors, inputs)
    for i, found in enumerate(term.squared_norms()):
        exact = [
            sum(Fraction(float(errors[i, t, a])) * Fraction(float(inputs[i, t, b])) for t in range(places))
            for a in range(2)
            for b in range(3)
        ]
        assert Fraction(float(found)) >= sum(value * value for value in exact)


@pytest.mark.parametrize("scale", [1e-44, 1e-20, 1.0, 1e18, 1e38])
@pytest.mark.parametrize("clip_norm", [1e-30, 1.0, 1e30])
def test_no_record_is_longer_than_the_clip_norm_at_any_scale(scale, clip_norm):
    torch.manual_seed(4)
    n, parameter = 5, (3, 5)
    errors, inputs = torch.randn(n, 2, 3) * scale, torch.randn(n, 2, 5)
    indices = torch.randint(0, 3, (n, 2))
    for term in (
        SampleTerm(parameter, torch.randn(n, 3, 5) * scale),
        ProductTerm(parameter, errors[:, :1], inputs[:, :1]),
        ProductTerm(parameter, errors, inputs),
        LookupTerm((3, 3), errors, indices),
    ):
        factors, finite = ClipRule(clip_norm, 1e4, 64).factors([term], None)
        for i in range(n):
            alone = term.weighted_sum(torch.where(torch.arange(n) == i, factors, 0.0), None)
            assert rational_norm(alone) <= Fraction(1)
        assert finite.all()


@pytest.fixture
def singly(monkeypatch):
    """Float32 products of single records also where they are small."""
    monkeypatch.setattr(terms_module, "_FEWEST_SINGLE_PLACES", 2)
    monkeypatch.setattr(terms_module, "_LARGE_PRODUCT", 1)


def coarse(x, weight, bias=None):
    """A product in 16 bits, as libraries compute it where a setting or a variable asks for it, and too long."""
    return 1.5 * nn.functional.linear(x.bfloat16(), weight.bfloat16()).float()


@pytest.mark.usefixtures("singly")
@pytest.mark.parametrize("product", [terms_module.linear, coarse])
@pytest.mark.parametrize("size", [1e-43, 1e-22, 1.0, 1e18])
def test_sums_of_float32_products_move_by_one_clip_norm_without_a_record(monkeypatch, product, size):
    """Whatever they round: places that cancel, numbers that underflow, and a product of low precision."""
    monkeypatch.setattr(terms_module, "linear", product)
    torch.manual_seed(6)
    n, places = 24, 8
    errors, inputs = torch.randn(n, places, 3), torch.randn(n, places, 5)
    for i, scale in enumerate(np.geomspace(1, 1e9, n)):
        errors[i] *= float(scale * size)
        if i % 2:  # pairs of places that cancel but for the last bits
            errors[i, 1::2], inputs[i, 1::2] = -errors[i, ::2], inputs[i, ::2] * (1 + 2.0**-20)
    terms = [ProductTerm((3, 5), errors, inputs), SampleTerm((3,), errors.sum(1))]
    assert terms[0].has_single_products
    rule = ClipRule(1e-30 if size < 1 else 1.0, 4096.0, 64)
    factors, finite = rule.factors(terms, None)
    assert finite.all()

    def exact(numbers):
        return [Fraction(float(value)) for value in numbers.flatten()]

    alone = []  # what each record adds, all parameters
    for i in range(n):
        own = torch.where(torch.arange(n) == i, factors, 0.0)
        alone.append([value for term in terms for value in exact(term.weighted_sum(own, None))])
        assert sum(value**2 for value in alone[-1]) <= 1
    whole = [value for term in terms for value in exact(term.weighted_sum(factors, None))]
    off = [value - sum(column) for value, column in zip(whole, zip(*alone, strict=True), strict=True)]
    assert sum(value**2 for value in off) <= Fraction(CLIP_SLACK / 2) ** 2
    for out in range(0, n, 5):  # the others move by the rounding of the float64 sum alone, also in other places
        rest = [i for i in range(n) if i != out][::-1]
        fewer = [ProductTerm((3, 5), errors[rest], inputs[rest]), SampleTerm((3,), errors[rest].sum(1))]
        moved = [v for term in fewer for v in exact(term.weighted_sum(rule.factors(fewer, None)[0], None))]
        change = sum((a - b) ** 2 for a, b in zip(whole, moved, strict=True))
        assert change <= Fraction(1 + CLIP_SLACK) ** 2


@pytest.mark.usefixtures("singly")
def test_a_float32_product_beyond_its_range_adds_nothing():
    errors, inputs = torch.ones(2, 4, 3), torch.ones(2, 4, 5)
    errors[0], inputs[0] = 1e25, 1e25
    term = ProductTerm((3, 5), errors, inputs)
    factors, finite = ClipRule(1.0, 100.0, 16).factors([term], None)
    assert finite.all()
    torch.testing.assert_close(term.weighted_sum(factors, None).norm(), torch.tensor(1.0, dtype=torch.float64))
    assert not term.weighted_sum(factors * torch.tensor([1, 0]), None).any()


@pytest.mark.usefixtures("singly")
def test_float32_and_float64_products_agree():
    errors, inputs, factors = torch.randn(5, 6, 3), torch.randn(5, 6, 7), torch.rand(5, dtype=torch.float64)
    wanted = torch.einsum("i,ita,itb->ab", factors, errors.double(), inputs.double())
    torch.testing.assert_close(
        ProductTerm((3, 7), errors, inputs).weighted_sum(factors, None), wanted, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_adds_nothing(wrong):
    torch.manual_seed(5)
    parameter, lookup = (3, 5), (4, 3)
    errors, inputs, samples = torch.randn(4, 2, 3), torch.randn(4, 2, 5), torch.randn(4, 3, 5)
    errors[1, 0, 2], inputs[2, 1, 1], samples[3, 0, 0] = wrong, wrong, wrong
    terms = [
        ProductTerm(parameter, errors, inputs),
        SampleTerm(parameter, samples),
        LookupTerm(lookup, errors, torch.randint(0, 4, (4, 2))),
    ]
    rule = ClipRule(1.0, 100.0, 16)
    factors, finite = rule.factors(terms, None)
    assert finite.tolist() == [True, False, False, False]
    totals = [term.weighted_sum(factors, finite) for term in terms]
    assert all(torch.isfinite(total).all() for total in totals)
    assert sum(float(total.square().sum()) for total in totals) <= 1.0


def test_norms_of_long_texts_are_computed_a_few_records_at_a_time(monkeypatch):
    indices, errors = torch.randint(0, 5, (6, 9)), torch.randn(6, 9, 4)
    whole = LookupTerm((5, 4), errors, indices)
    expected, largest, true_gram = whole.squared_norms(), [], terms_module._gram
    monkeypatch.setattr(terms_module, "_AT_ONCE", 200)
    monkeypatch.setattr(terms_module, "_gram", lambda values: (largest.append(len(values)), true_gram(values))[1])
    torch.testing.assert_close(LookupTerm((5, 4), errors, indices).squared_norms(), expected)
    assert largest == [2, 2, 2]
