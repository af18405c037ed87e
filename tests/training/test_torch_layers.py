"""Gradients of torch modules layer by layer: the same norms and sums as single gradients, and a bounded rounding."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscp.data.sources import Block
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.torch import batch_sums, layer_terms, trainer
from dpscp.training.torch import dry_run as dry_run_module
from dpscp.training.torch import terms as terms_module
from dpscp.training.torch.dry_run import dry_run
from dpscp.training.torch.layer_terms import GradientPlan, LayerTerms
from dpscp.training.torch.terms import ClipRule, LookupTerm, ProductTerm, SampleTerm, single_gradients
from dpscp.training.torch.trainer import OpacusTraining
from dpscp.training.torch.updates import set_gradients

torch = pytest.importorskip("torch")
layers = pytest.importorskip("opacus.layers")
nn = torch.nn

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def losses(outputs, target):
    return nn.functional.cross_entropy(outputs, target, reduction="none")


class Own(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.own_forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, rows):
        return self.own_forward(self, rows)


class Text(nn.Module):
    """Tokens to classes; ``attends`` adds torch's own attention."""

    def __init__(self, padding_idx=None, attends=False):
        super().__init__()
        self.attends = attends
        self.words, self.inner = nn.Embedding(11, 16, padding_idx=padding_idx), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, rows):
        values = self.inner(self.words(rows.long()))
        if self.attends:
            values = values + nn.functional.scaled_dot_product_attention(values, values, values)
        return self.head(self.norm(values).mean(1))


def images(**settings):
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(inplace=True), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, (3, 1), padding="same", **settings), nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip


def half_frozen():
    module = images()
    module[0].weight.requires_grad_(False)
    module[2].bias.requires_grad_(False)
    module[5].bias.requires_grad_(False)
    return module


CASES = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (6,)),
    "dense by its name": (lambda: Own(lambda s, r: s.layer(input=r), layer=nn.Linear(6, 3)), (6,)),
    "tokens": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)), (4, 6)),
    "images": (images, (2, 8, 8)),
    "groups": (lambda: images(groups=2), (2, 8, 8)),
    "circular": (lambda: images(padding_mode="circular"), (2, 8, 8)),
    "half frozen": (half_frozen, (2, 8, 8)),
    "series": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 4, 3, stride=2, dilation=2),
            nn.InstanceNorm1d(4, affine=True),
            nn.Conv1d(4, 5, 2, bias=False),
            nn.Flatten(),
            nn.Linear(10, 3),
        ),
        (3, 10),
    ),
    "words": (Text, (7,)),
    "padded words": (lambda: Text(2), (7,)),
    "attention": (lambda: Text(attends=True), (7,)),
}
N = 9


def batch(shape, n=N, seed=0):
    source = torch.Generator().manual_seed(seed)
    words = len(shape) == 1 and shape[0] == 7
    rows = torch.randint(0, 5, (n, *shape), generator=source).float() if words else None
    return torch.randn(n, *shape, generator=source) if rows is None else rows, torch.arange(n) % 3


def gradients_by_autograd(module, rows, target):
    trained = [p for p in module.parameters() if p.requires_grad]
    found = [
        torch.autograd.grad(losses(module(rows[i : i + 1]), target[i : i + 1]).sum(), trained) for i in range(len(rows))
    ]
    return [torch.stack(parts).double() for parts in zip(*found, strict=True)]


def summed(terms, trained, factors, counted=None):
    totals = [torch.zeros(p.shape, dtype=torch.float64) for p in trained]
    for term in terms:
        place = next(i for i, p in enumerate(trained) if p is term.parameter)
        totals[place] += term.weighted_sum(factors, counted)
    return totals


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_norms_and_sums_are_those_of_single_gradients(monkeypatch, name, channels_last, held):
    torch.manual_seed(0)
    module, shape = CASES[name][0](), CASES[name][1]
    if channels_last and len(shape) != 3:
        pytest.skip("no images")
    if not held:
        monkeypatch.setattr(layer_terms, "_MOST_HELD", 0)
    monkeypatch.setattr(terms_module, "_AT_ONCE", 1000)
    rows, target = batch(shape)
    expected = gradients_by_autograd(module, rows, target)
    if channels_last:
        module, rows = (value.to(memory_format=torch.channels_last) for value in (module, rows))
    computed = LayerTerms(module)
    with torch.no_grad():
        terms = computed(losses, rows, target)
        kinds = {type(term) for term in terms}
        assert ProductTerm in kinds
        assert (LookupTerm in kinds) == ("words" in name or name == "attention")
        ghost = any(term.errors.shape[1] > 1 for term in terms if isinstance(term, ProductTerm))
        assert ghost == (not held and not name.startswith("dense"))
        norms = sum(sample.flatten(1).square().sum(1) for sample in expected).sqrt()
        clip_norm = float(norms.median())
        factors, finite = ClipRule(clip_norm, 100.0, 16).factors(terms, None)
        assert finite.all()
        # the reference has float32 roundings of its own, 3e-5 on some processors
        torch.testing.assert_close(factors, 1 / norms.clamp(min=clip_norm), rtol=2e-4, atol=0)
        for found, sample in zip(single_gradients(terms, computed.trained, [5, 2]), expected, strict=True):
            torch.testing.assert_close(found.double(), sample[[5, 2]], rtol=1e-3, atol=1e-4)
        for found, sample in zip(summed(terms, computed.trained, factors[:7]), expected, strict=True):
            wanted = torch.einsum("i,i...->...", factors[:7], sample[:7])
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for p in module.parameters())


def tied():
    first, second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(6, 3))


def hooked():
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda _, __, output: output * 2)
    return module


def writes_later(self, rows):
    inputs = rows * 1
    outputs = self.layer(inputs)
    inputs.mul_(2)
    return outputs


SINGLE = {
    "tied": (tied, (6,)),
    "called twice": (
        lambda: Own(lambda s, r: s.head(s.layer(s.layer(r).tanh())), layer=nn.Linear(6, 6), head=nn.Linear(6, 3)),
        (6,),
    ),
    "recurrent": (
        lambda: Own(
            lambda s, r: s.head(s.layer(r)[0][:, -1]), layer=layers.DPLSTM(3, 4, batch_first=True), head=nn.Linear(4, 3)
        ),
        (5, 3),
    ),
}


ONE = torch.ones(())
UNSUPPORTED = {
    "hook": hooked,
    "changed input": lambda: Own(writes_later, layer=nn.Linear(6, 3)),
    "folded": lambda: Own(lambda s, r: s.layer(r.reshape(-1, 1)).reshape(len(r), 6, 3).sum(1), layer=nn.Linear(1, 3)),
    "own parameter": lambda: Own(lambda s, r: s.layer(r) * s.scale, layer=nn.Linear(6, 3), scale=nn.Parameter(ONE)),
    "sparse": lambda: Own(lambda s, r: s.layer(r.long()).sum(1), layer=nn.Embedding(9, 3, sparse=True)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_layers_that_do_something_else_have_no_terms(name):
    module = UNSUPPORTED[name]()
    rows, target = batch((6,))
    with pytest.raises((layer_terms.UnsupportedLayerError, ValueError), match="Call every layer with trained"):
        LayerTerms(module)(losses, rows.abs(), target)


def training(module, **changed):
    constants = {"sampling_rate": 1.0, "steps": 2, "noise_multiplier": 0.0, "classes": (0, 1, 2)} | changed
    return OpacusTraining(module, **constants)


@pytest.mark.parametrize("name", SINGLE)
def test_other_modules_get_single_gradients(name):
    module, shape = SINGLE[name][0](), SINGLE[name][1]
    plan = training(module)._run_dry(shape, (0, 1, 2)).plan
    assert not plan.by_layers


@pytest.mark.parametrize("name", ["squared_norms", "weighted_sum", "single_gradients"])
@pytest.mark.parametrize("kind", [SampleTerm, ProductTerm, LookupTerm])
def test_terms_that_are_not_those_of_single_records_are_not_used(monkeypatch, kind, name):
    function = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda *values: function(*values) * 0.999)
    module, shape = CASES["words"][0](), CASES["words"][1]
    if kind is not SampleTerm:  # Opacus' own gradients are such terms
        assert not training(module)._run_dry(shape, (0, 1, 2)).plan.by_layers
    else:
        with pytest.raises(ValueError, match="is not the gradient of its own loss"):
            training(module)._run_dry(shape, (0, 1, 2))


def flat(module):
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


@pytest.mark.filterwarnings("ignore:.*noise_multiplier.*")
@pytest.mark.parametrize("name", ["images", "attention", "half frozen"])
def test_a_run_by_layers_takes_the_steps_of_exact_sums(monkeypatch, name):
    torch.manual_seed(1)
    module, shape = CASES[name][0](), CASES[name][1]
    rows, target = batch(shape, 200)
    mechanism = training(module, steps=3, learning_rate=1.0, sampling_rate=0.5, clip_norm=0.3)
    assert mechanism._run_dry(shape, (0, 1, 2)).plan.by_layers
    made, seen = batch_sums.Engine._alike_blocks, []
    monkeypatch.setattr(batch_sums.Engine, "_alike_blocks", lambda engine: seen.append(made(engine)) or seen[-1])
    fast = mechanism.train(rows.numpy(), target.numpy(), random_state=3).model.module
    assert seen[0] is not None
    monkeypatch.setattr(batch_sums, "_SMALLEST_BLOCK", 10**9)
    exact = mechanism.train(rows.numpy(), target.numpy(), random_state=3).model.module
    assert seen[1] is None
    np.testing.assert_allclose(flat(fast), flat(exact), rtol=1e-4, atol=1e-5)


# ---- what one record can do to a sum


def engine_of(module, shape, device="cpu", **changed):
    mechanism = training(module, device=device, **changed)
    rows, target = batch(shape, 300)
    setup = mechanism._prepare(mechanism._array_source(rows.numpy(), target.numpy()), 0, 300)
    engine = batch_sums.Engine(setup.run)
    engine.start_from(setup.run.module)
    return engine, next(iter(setup.source.map(lambda block: block).sum(lambda block: [block])))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["images", "words"])
def test_a_record_in_front_moves_a_sum_by_one_clip_norm_and_the_slack(name, device):
    torch.manual_seed(2)
    module, shape = CASES[name][0](), CASES[name][1]
    engine, block = engine_of(module, shape, device, clip_norm=0.01)
    assert engine.blocks is not None
    for count in (1, 40, 299):
        whole, rest = (engine.sum(block, np.arange(first, count + 1)) for first in (0, 1))
        moved = float(sum((a - b).square().sum() for a, b in zip(whole, rest, strict=True)).sqrt())
        assert 0.99 < moved <= 1 + CLIP_SLACK


@pytest.mark.parametrize("device", DEVICES)
def test_padded_blocks_on_a_device_give_the_same_sums(device):
    torch.manual_seed(2)
    module = CASES["images"][0]()
    engine, block = engine_of(module, (2, 8, 8), device)
    parts = [np.arange(200), np.arange(200, 230)]
    weights = torch.linspace(0.1, 1, 300, dtype=torch.float64)
    expected = engine.sum(block, np.arange(230))
    with torch.no_grad():
        for given in (None, weights):
            on_device = batch_sums._GpuBlocks(engine, 208).sum(block, parts, given)
            if given is None:
                for found, wanted in zip(on_device, expected, strict=True):
                    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        weighted = batch_sums.Engine._sum_parts(engine, engine.blocks, block, parts, weights)
    for found, wanted in zip(on_device, weighted, strict=True):
        torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-5)


def test_a_pass_that_cannot_be_recorded_runs_as_it_is(monkeypatch):
    engine, block = engine_of(nn.Linear(6, 3), (6,))
    expected = engine.sum(block, np.arange(20))
    monkeypatch.setattr(batch_sums, "_free_memory", lambda _: 0)  # the records stay where they are
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(batch_sums, "record_graph", lambda *_: 1 / 0)
    with torch.no_grad():
        found = batch_sums._GpuBlocks(engine, 32).sum(block, [np.arange(20)], None)
    assert waited == [torch.device("cpu")]
    torch.testing.assert_close(found, expected)


def rational_norm(vector):
    return sum(Fraction(float(v)) ** 2 for v in vector.flatten())


def test_places_that_cancel_add_at_most_one_clip_norm_each():
    """Large numbers that cancel inside a record: neither the norm nor the sum may lose what is left of them."""
    torch.manual_seed(3)
    n, places, rule = 40, 64, ClipRule(1.0, 4096.0, 64)
    errors, inputs = torch.randn(n, places, 3), torch.randn(n, places, 5)
    for i, size in enumerate(np.geomspace(1, 1e18, n)):  # pairs of places that cancel but for the last bits
        errors[i, ::2] *= float(size)
        errors[i, 1::2], inputs[i, 1::2] = -errors[i, ::2], inputs[i, ::2] * (1 + 2.0**-20)
    parameter = torch.zeros(3, 5)
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


def test_ghost_norms_are_not_below_the_true_ones():
    """Where nearly everything cancels, the sum over pairs of places is rounding alone."""
    torch.manual_seed(7)
    n, places = 12, 16
    errors, inputs = torch.randn(n, places, 2), torch.randn(n, places, 3)
    errors[:, 1::2], inputs[:, 1::2] = -errors[:, ::2], inputs[:, ::2] * (1 + 2.0**-22)
    term = ProductTerm(torch.zeros(2, 3), errors, inputs)
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
    n, parameter = 5, torch.zeros(3, 5)
    errors, inputs = torch.randn(n, 2, 3) * scale, torch.randn(n, 2, 5)
    indices = torch.randint(0, 3, (n, 2))
    for term in (
        SampleTerm(parameter, torch.randn(n, 3, 5) * scale),
        ProductTerm(parameter, errors[:, :1], inputs[:, :1]),
        ProductTerm(parameter, errors, inputs),
        LookupTerm(torch.zeros(3, 3), indices, errors),
    ):
        factors, finite = ClipRule(clip_norm, 1e4, 64).factors([term], None)
        for i in range(n):
            alone = term.weighted_sum(torch.where(torch.arange(n) == i, factors, 0.0), None)
            assert rational_norm(alone) <= Fraction(1)
        assert finite.all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_adds_nothing(wrong):
    torch.manual_seed(5)
    parameter, lookup = torch.zeros(3, 5), torch.zeros(4, 3)
    errors, inputs, samples = torch.randn(4, 2, 3), torch.randn(4, 2, 5), torch.randn(4, 3, 5)
    errors[1, 0, 2], inputs[2, 1, 1], samples[3, 0, 0] = wrong, wrong, wrong
    terms = [
        ProductTerm(parameter, errors, inputs),
        SampleTerm(parameter, samples),
        LookupTerm(lookup, torch.randint(0, 4, (4, 2)), errors),
    ]
    rule = ClipRule(1.0, 100.0, 16)
    factors, finite = rule.factors(terms, None)
    assert finite.tolist() == [True, False, False, False]
    totals = [term.weighted_sum(factors, finite) for term in terms]
    assert all(torch.isfinite(total).all() for total in totals)
    assert sum(float(total.square().sum()) for total in totals) <= 1.0


def test_a_factor_is_a_function_of_its_record():
    """Whatever stands beside it, and however many there are."""
    torch.manual_seed(6)
    engine, block = engine_of(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3)), (6,))
    assert engine.blocks is not None
    seen = {}
    rows, target = torch.from_numpy(block.rows), torch.from_numpy(block.targets)
    for size in (16, 64, engine.blocks.chunk):
        if engine.blocks.size(size) != size:
            continue
        for start in (0, 5, 100):
            index = [7, *(i % 300 for i in range(start, start + size - 1))]
            terms = engine.terms(losses, rows[index], target[index])
            with torch.no_grad():
                seen.setdefault("factor", set()).add(float(engine.rule.factors(terms, None)[0][0]))
    assert len(seen["factor"]) == 1


def test_modules_that_round_by_the_place_get_exact_sums(monkeypatch):
    true = batch_sums.Engine._synthetic_results

    def by_place(engine, size):
        for values in true(engine, size):
            yield values + np.arange(size) * (values.dtype.kind == "f")

    monkeypatch.setattr(batch_sums.Engine, "_synthetic_results", by_place)
    engine, block = engine_of(nn.Linear(6, 3), (6,))
    assert engine.blocks is None
    whole, rest = (engine.sum(block, np.arange(first, 300)) for first in (0, 1))
    moved = float(sum((a - b).square().sum() for a, b in zip(whole, rest, strict=True)).sqrt())
    assert moved <= 1


def test_batches_without_a_bound_are_refused_or_summed_exactly(monkeypatch):
    rows, target = (values.numpy() for values in batch((6,), 5000))
    with pytest.raises(ValueError, match="four times as large as the nominal number") as caught:
        training(nn.Linear(6, 3)).train(rows, target, n_records=10)
    assert "5000" not in str(caught.value)
    engine, block = engine_of(nn.Linear(6, 3), (6,))
    assert engine.blocks is not None
    monkeypatch.setattr(batch_sums, "MOST_BLOCKS", 0)
    with pytest.raises(ValueError, match="lower sampling_rate, or give a larger physical_batch"):
        engine.sum(block, np.arange(5))
    monkeypatch.setattr(terms_module, "_SUM_SLACK", 1e-12)
    assert engine_of(nn.Linear(6, 3), (6,))[0].blocks is None


class Series(nn.Module):
    """A layer that returns a pair, and a head."""

    def __init__(self):
        super().__init__()
        self.series, self.head = layers.DPLSTM(3, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, rows):
        return self.head(self.series(rows)[0][:, -1])


def test_blocks_get_smaller_with_the_numbers_that_layers_return(monkeypatch):
    dense = training(nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3)))
    plan = dense._run_dry((6,), (0, 1, 2)).plan
    assert plan == GradientPlan(by_layers=True, numbers=6 + 50 + 50 + 3)
    assert dense._at_once(plan) == 320
    wide = replace(plan, numbers=2**21 // 100)
    assert dense._at_once(wide) == 96
    assert dense._at_once(replace(wide, numbers=10**9)) == 32
    assert replace(dense, physical_batch=7)._at_once(wide) == 7
    # a large number asks for no more memory than that: of layers' results, or of single gradients
    large = replace(dense, physical_batch=10**6)
    assert [large._at_once(replace(plan, numbers=numbers)) for numbers in (2**10, 2**20)] == [2**15, 320]
    assert large._at_once(GradientPlan(numbers=2**10)) == min(2**15, 2**24 // 503)
    # a batch of many records has at most MOST_BLOCKS blocks all the same
    tried = replace(dense._run_dry((6,), (0, 1, 2)), plan=wide)
    assert [dense._public_run(batch, tried).at_once for batch in (100.0, 10**5, 10**6)] == [96, 96, 320]
    assert replace(dense, physical_batch=7)._public_run(10**6, tried).at_once == 7
    # single gradients of 503 numbers each are held: as few as that, unless the batch needs more
    monkeypatch.setattr(trainer, "_MOST_HELD", {"cpu": 503 * 50})
    monkeypatch.setattr(trainer, "_MOST_EVER_HELD", 503 * 200)
    held = GradientPlan(numbers=109)
    assert [dense._at_once(held, records) for records in (0, 4096 * 100, 4096 * 300)] == [50, 100, 200]
    assert not training(Series())._run_dry((4, 3), (0, 1, 2)).plan.by_layers
    assert training(Series())._run_dry((4, 3), (0, 1, 2)).plan.numbers > 12 + 4 * 8 + 3


@pytest.mark.parametrize("most", [67 * 21 - 1, 1])
def test_large_modules_are_tried_on_fewer_records_and_mixing_is_found(most, monkeypatch):
    monkeypatch.setattr(dry_run_module, "_MOST_HELD", most)
    assert training(nn.Linear(6, 3))._run_dry((6,), (0, 1, 2)).plan.by_layers
    mixing = Own(lambda s, r: s.head(r - r.mean(0)), head=nn.Linear(6, 3))
    with pytest.raises(ValueError, match="depends on the other records"):
        training(mixing)._run_dry((6,), (0, 1, 2))


def test_mixing_far_apart_in_a_batch_is_found_in_a_large_module_too(monkeypatch):
    monkeypatch.setattr(dry_run_module, "_MOST_HELD", 1)
    far = Own(lambda s, r: s.head(r + r.roll(10, 0) if len(r) > 10 else r), head=nn.Linear(6, 3))
    with pytest.raises(ValueError, match="depends on the other records"):
        training(far)._run_dry((6,), (0, 1, 2))


def test_parameters_without_a_gradient_add_nothing():
    unused = Own(lambda s, r: s.head(r), head=nn.Linear(6, 3), other=nn.Linear(6, 3))
    before = copy.deepcopy(unused.other.weight)
    rows, target = batch((6,), 50)
    trained = training(unused, learning_rate=1.0).train(rows.numpy(), target.numpy()).model.module
    assert torch.equal(trained.other.weight, before)
    assert not torch.equal(trained.head.weight, unused.head.weight)
    constant = Own(lambda s, r: r[:, :3].detach() + 0 * s.head.weight.detach().sum(), head=nn.Linear(6, 3))
    assert LayerTerms(constant)(losses, rows, target) == []
    engine = engine_of(nn.Linear(6, 3), (6,))[0]
    block = Block(0, rows.numpy(), target.numpy())
    engine.sum(block, np.arange(5))
    engine.terms = lambda *_: []
    assert all(not total.any() for total in engine.sum(block, np.arange(5)))
    with torch.no_grad():
        assert all(not t.any() for t in batch_sums._GpuBlocks(engine, 16).sum(block, [np.arange(5)], None))


# ---- what only a GPU does, without one


def test_an_engine_on_a_gpu_sums_there_and_needs_no_generators_for_a_recorded_pass():
    engine, block = engine_of(nn.Linear(6, 3), (6,))
    asked = []

    class Blocks:
        is_recorded = True

        def __init__(self, _, size):
            asked.append(size)

        def sum(self, _, parts, __):
            asked.append([len(part) for part in parts])
            return ["sums"]

    engine.device, true_blocks, batch_sums._GpuBlocks = torch.device("meta"), batch_sums._GpuBlocks, Blocks
    try:
        assert not isinstance(engine.draws(lambda count: bytes(count)), nullcontext)
        assert engine.sum(block, np.arange(20)) == engine.sum(block, np.arange(20)) == ["sums"]
    finally:
        batch_sums._GpuBlocks = true_blocks
    assert asked == [engine.blocks.chunk, [20], [20]]
    assert isinstance(engine.draws(lambda count: bytes(count)), nullcontext)


def test_gradients_on_a_device_come_from_one_vector():
    parameters = [nn.Parameter(torch.zeros(shape, device="meta")) for shape in ((3, 2), (4,))]
    set_gradients(parameters, [torch.zeros(p.shape, dtype=torch.float64, device="meta") for p in parameters], 0.5)
    assert [(p.grad.shape, p.grad.dtype) for p in parameters] == [((3, 2), torch.float32), ((4,), torch.float32)]
    mixed = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    set_gradients(mixed, [torch.ones(2).double() for _ in mixed], 0.5)
    assert [p.grad.tolist() for p in mixed] == [[0.5, 0.5], [0.5, 0.5]]
    assert [p.grad.dtype for p in mixed] == [torch.float32, torch.float64]


def test_a_module_that_runs_nowhere_is_tried_on_the_processor_first():
    tried = []

    def forward(self, rows):
        tried.append(rows.device.type)
        raise RuntimeError

    module = Own(forward, layer=nn.Linear(6, 3))
    with pytest.raises(ValueError, match="fails on synthetic rows"):
        dry_run(module, (6,), lambda count, _: torch.zeros(count), losses, device="meta")
    assert tried[0] == "cpu"
    assert set(tried) == {"cpu", "meta"}


def test_norms_of_long_texts_are_computed_a_few_records_at_a_time(monkeypatch):
    indices, errors = torch.randint(0, 5, (6, 9)), torch.randn(6, 9, 4)
    whole = LookupTerm(torch.zeros(5, 4), indices, errors)
    expected, largest, true_gram = whole.squared_norms(), [], terms_module._gram
    monkeypatch.setattr(terms_module, "_AT_ONCE", 200)
    monkeypatch.setattr(terms_module, "_gram", lambda values: (largest.append(len(values)), true_gram(values))[1])
    torch.testing.assert_close(LookupTerm(torch.zeros(5, 4), indices, errors).squared_norms(), expected)
    assert largest == [2, 2, 2]
