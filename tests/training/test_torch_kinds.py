"""Kinds of rows and of layers that a dry run must see: texts, padded rows, changes in place, padding modes."""

import copy
from functools import partial

import pytest

from dpscp.training.torch import comparison, layer_terms
from dpscp.training.torch import dry_run as dry_run_module
from dpscp.training.torch.layer_terms import OpacusTerms
from dpscp.training.torch.synthetic_rows import ANY, BITS, PADDED, TEXTS, UNIT
from dpscp.training.torch.terms import single_gradients
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
layers = pytest.importorskip("opacus.layers")
nn = torch.nn
functional = nn.functional

pytestmark = pytest.mark.filterwarnings("ignore:.*noise_multiplier.*", "ignore::dpscp.GuaranteeWarning")


def training(module, **changed):
    constants = {"sampling_rate": 1.0, "steps": 1, "noise_multiplier": 0.0, "learning_rate": 1.0, "clip_norm": 0.3}
    return OpacusTraining(module, classes=(0, 1, 2), **(constants | changed))


class Own(nn.Module):
    """A module of a few parts and a forward function."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.own_forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, rows):
        return self.own_forward(self, rows)


# ---- texts and padded rows


def words(function, **settings):
    """Word vectors, a function of them and of the word ids, and a head."""
    frozen = settings.pop("frozen", False)
    parts = {"words": nn.Embedding(9, 8, **settings).requires_grad_(not frozen), "head": nn.Linear(8, 3)}
    return Own(lambda self, rows: self.head(function(self.words, rows.long())), **parts)


def cut_to_the_longest(vectors, ids):
    return vectors(ids[:, : max(1, int((ids != 0).sum(1).max()))]).mean(1)


def cut_at_the_end(vectors, ids):
    last = (ids != 0).any(0).nonzero().max()
    return vectors(ids[:, : int(last) + 1]).mean(1)


def cut_at_the_start(vectors, ids):
    first = (ids != 0).any(0).nonzero().min()
    return vectors(ids[:, int(first) :]).mean(1)


def center(vectors, ids):
    found = vectors(ids).mean(1)
    return found - found.mean(0)


def center_detached(vectors, ids):
    found = vectors(ids).mean(1)
    return found - found.mean(0).detach()


def attend_over_the_batch(vectors, ids):
    found = vectors(ids).mean(1)
    return (found @ found.T).softmax(1) @ found


def mean_of_words(vectors, ids):
    is_word = (ids != 0)[..., None]
    return (vectors(ids) * is_word).sum(1) / is_word.sum(1).clamp(min=1)


def cut_where_nothing_is(vectors, ids):
    """Cut the batch, which changes no mean of words."""
    return mean_of_words(vectors, ids[:, : int((ids != 0).any(0).nonzero().max()) + 1])


def cut_series(self, rows):
    last = int((rows != 0).any(2).any(0).nonzero().max())
    return self.head(rows[:, : last + 1].mean(1))


MIXERS = {
    "cut to the longest text": (lambda: words(cut_to_the_longest), (12,)),
    "cut at the end": (lambda: words(cut_at_the_end), (12,)),
    "cut at the start": (lambda: words(cut_at_the_start), (12,)),
    "cut to the longest text, padding_idx": (lambda: words(cut_to_the_longest, padding_idx=0), (12,)),
    "cut series": (lambda: Own(cut_series, head=nn.Linear(4, 3)), (5, 4)),
    "cut series while training": (
        lambda: Own(
            lambda s, r: cut_series(s, r) if s.training else s.head(r.mean(1)),
            head=nn.Linear(4, 3),
        ),
        (5, 4),
    ),
    "frozen words, centered": (lambda: words(center, frozen=True), (7,)),
    "frozen words, centered and detached": (lambda: words(center_detached, frozen=True), (7,)),
    "words, centered and detached": (lambda: words(center_detached), (7,)),
    "frozen words, attention over the batch": (lambda: words(attend_over_the_batch, frozen=True), (7,)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_texts_that_are_mixed_are_refused(name):
    build, shape = MIXERS[name]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="gradient of a record depends on the other records"):
        training(build()).check(shape)


def test_texts_that_are_mixed_while_they_are_scored_are_refused():
    module = words(None)
    module.own_forward = lambda self, rows: self.head(
        self.words(rows.long()).mean(1) if self.training else cut_to_the_longest(self.words, rows.long())
    )
    with pytest.raises(ValueError, match="depends on the other records"):
        training(module).check((12,))


SEPARATE = {
    "words": (lambda: words(lambda vectors, ids: vectors(ids).mean(1)), (7,)),
    "mean of words": (lambda: words(mean_of_words), (7,)),
    "cut where nothing is": (lambda: words(cut_where_nothing_is, padding_idx=0), (7,)),
    # rows of zeros have no direction: that kind of rows is left out
    "rows of length one": (
        lambda: Own(lambda s, r: s.head(r / r.norm(dim=1, keepdim=True)), head=nn.Linear(3, 3)),
        (3,),
    ),
    "positive rows": (lambda: Own(lambda s, r: s.head(r.log()), head=nn.Linear(3, 3)), (3,)),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_modules_that_keep_texts_and_rows_apart_are_taken(name):
    build, shape = SEPARATE[name]
    training(build()).check(shape)


def test_the_kinds_of_rows_are_those_that_a_module_takes_and_tells_apart():
    def found(module, shape):
        trial = dry_run_module._Trial(
            module, shape, lambda n, _: torch.zeros(n, dtype=torch.int64), nn.CrossEntropyLoss(reduction="none"), "cpu"
        )
        trial.find_rows(None)
        return trial.precise.kind, {rows.kind for rows in trial.others}

    # numbers between zero and one are one word: a module of words is tried on texts first, of as many words as it knows
    assert found(words(mean_of_words), (7,)) == (TEXTS[2], {UNIT, BITS})
    assert [kind.tokens for kind in TEXTS] == [2, 3, 8, 64, 1024]
    assert found(nn.Linear(6, 3), (6,)) == (ANY, {UNIT, TEXTS[2], BITS, PADDED})
    assert found(Own(lambda s, r: s.head(r.log()), head=nn.Linear(6, 3)), (6,)) == (UNIT, set())


@pytest.mark.parametrize("shape", [(12,), (1, 12), (5, 4)])
def test_padded_rows_have_zeros_at_either_end_and_many_lengths(shape):
    for kind in (PADDED, TEXTS[0], TEXTS[3]):
        rows = kind.rows(shape, 67).numpy().reshape(67, max(shape[:2]) if 1 in shape else shape[0], -1)
        is_there = (rows != 0).all(2)
        assert is_there[0].all()
        lengths = is_there.sum(1)
        assert set(lengths) == set(range(1, rows.shape[1] + 1))
        assert is_there[0::2, 0].all()
        assert is_there[1::2, -1].all()
        # a few rows, of which some are tried alone, have several lengths
        assert len(set(lengths[:4])) > 2
    assert TEXTS[3].rows((12,), 4).max() == 63
    assert torch.equal(TEXTS[3].rows((12,), 5)[:4], TEXTS[3].rows((12,), 4))


# ---- layers that Opacus gets wrong or refuses


class Block(nn.Module):
    """A residual block as in torchvision, with changes in place."""

    def __init__(self, channels):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.GroupNorm(2, channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.GroupNorm(2, channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, rows):
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(rows)))))
        out += rows
        return self.relu(out)


class Recurrent(nn.Module):
    """Layers of Opacus and a change in place by one of torch's."""

    def __init__(self):
        super().__init__()
        self.series, self.relu, self.head = layers.DPLSTM(4, 6, batch_first=True), nn.ReLU(True), nn.Linear(6, 3)

    def forward(self, rows):
        return self.head(self.relu(self.series(rows)[0][:, -1] + 0.1))


def images(**settings):
    pooled = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, **settings), pooled)


def temperature(**parts):
    def forward(self, rows):
        for name in parts:
            rows = getattr(self, name)(rows)
        return rows * self.scale

    return Own(forward, scale=nn.Parameter(torch.ones(())), **parts)


LAYERS = {
    "padding_idx": (lambda: words(mean_of_words, padding_idx=0), (7,), True),
    "reflect": (lambda: images(padding_mode="reflect"), (2, 6, 6), True),
    "circular": (lambda: images(padding_mode="circular"), (2, 6, 6), True),
    "dense, in place": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(True), nn.Linear(8, 3)), (6,), True),
    "residual, in place": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        (2, 6, 6),
        True,
    ),
    "parameter without dimensions": (lambda: temperature(head=nn.Linear(6, 3)), (6,), False),
    "input in place": (lambda: nn.Sequential(nn.ReLU(True), nn.Linear(6, 3)), (6,), True),
    "with Opacus, in place": (Recurrent, (5, 4), False),
    "own parameter, in place": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.PReLU(8), nn.Hardtanh(inplace=True), nn.Linear(8, 3)),
        (6,),
        False,
    ),
}


def clipped_sums(module, rows, target, clip_norm):
    """Clip and add the gradients of single records, by plain autograd."""
    module = copy.deepcopy(module).double()
    trained = list(module.parameters())
    totals = [torch.zeros_like(p) for p in trained]
    for row, label in zip(rows.double(), target, strict=True):
        found = torch.autograd.grad(functional.cross_entropy(module(row[None].clone()), label[None]), trained)
        length = torch.sqrt(sum(gradient.square().sum() for gradient in found))
        for total, gradient in zip(totals, found, strict=True):
            total += gradient * min(1.0, clip_norm / float(length))
    return totals


@pytest.mark.parametrize("physical_batch", [None, 5])  # float64 sums, integers
@pytest.mark.parametrize("name", LAYERS)
def test_sums_are_those_of_single_records(name, physical_batch):
    build, shape, by_layers = LAYERS[name]
    torch.manual_seed(1)
    module, source = build(), torch.Generator().manual_seed(2)
    rows = torch.randint(0, 9, (21, 7), generator=source).float() if shape == (7,) else None
    rows, target = torch.randn(21, *shape, generator=source) if rows is None else rows, torch.arange(21) % 3
    start = copy.deepcopy(module)
    mechanism = training(module, physical_batch=physical_batch)
    assert mechanism._run_dry(shape, (0, 1, 2)).plan.by_layers == by_layers
    trained = mechanism.train(rows.numpy(), target.numpy(), n_records=21).model.module
    expected = clipped_sums(start, rows, target, 0.3)
    assert str(trained) == str(start)  # the released module changes in place where the caller's does
    for before, after, wanted in zip(start.parameters(), trained.parameters(), expected, strict=True):
        found = 21 * (before.detach() - after.detach()).double()
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_value_that_is_used_again_after_a_change_in_place_is_no_other_function():
    """Without the change in place Opacus would train another module: that is refused."""

    def forward(self, rows):
        inner = self.first(rows)
        return self.head(self.act(self.relu(inner)) + inner)  # inner was changed

    parts = {"first": nn.Linear(6, 6), "relu": nn.ReLU(True), "act": nn.PReLU(6), "head": nn.Linear(6, 3)}
    with pytest.raises(ValueError, match="is not the gradient of its own loss"):
        training(Own(forward, **parts)).check((6,))
    parts["act"] = nn.Tanh()
    training(Own(forward, **parts)).check((6,))  # the layers give terms, and nothing is replaced


def test_opacus_gets_copies_without_changes_in_place():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(True), nn.Dropout(0.5, inplace=True))
    OpacusTerms(module)
    assert [part.inplace for part in module[1:]] == [False, False]


# ---- messages about layers


def test_errors_on_synthetic_rows_are_shown():
    def fails(self, rows):
        if len(rows) > 4:
            raise KeyError("the words of the module")
        return self.head(rows)

    with pytest.raises(ValueError, match=r"larger batch of synthetic rows: KeyError: 'the words of the module'"):
        training(Own(fails, head=nn.Linear(6, 3))).check((6,))
    with pytest.raises(ValueError, match=r"rows of shape \(6,\): RuntimeError: mat1 and mat2 shapes cannot"):
        training(nn.Linear(5, 3)).check((6,))
    with pytest.raises(ValueError, match=r"outputs or losses are not finite"):
        training(Own(lambda s, r: s.head(r) * torch.inf, head=nn.Linear(6, 3))).check((6,))
    with pytest.raises(ValueError, match="the gradient of a record is not finite"):
        training(Own(lambda s, r: (s.head(r) * 0).abs().sqrt() * s.head(r), head=nn.Linear(6, 3))).check((6,))


def test_a_change_in_place_that_opacus_refuses_is_explained():
    def forward(self, rows):
        inner = self.act(rows)
        inner += rows
        return self.head(inner)

    with pytest.raises(ValueError, match=r"modified inplace.*write x = x \+ y, not x \+= y"):
        training(Own(forward, act=nn.PReLU(6), head=nn.Linear(6, 3))).check((6,))


def masked_gradient():
    module = nn.Linear(6, 3)
    module.weight.register_hook(lambda gradient: gradient * 0)
    return module


def shared_positions(self, rows):
    return self.head(self.words(rows.long()) + self.places(torch.arange(7))).mean(1)


def packed(self, rows):
    lengths = (rows > 0).sum(1).clamp(min=1)
    pack = nn.utils.rnn.pack_padded_sequence(self.words(rows.long()), lengths, batch_first=True, enforce_sorted=False)
    return self.head(self.layer(pack)[1][0][-1])


def whiten_by_all(self, rows):
    return self.head(functional.batch_norm(rows, None, None, training=True))


EXPLAINED = {
    "hook of a parameter": (masked_gradient, (6,), "the parameter 'weight' has a hook .* apply a mask in forward"),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        (6,),
        "ParametrizedLinear at '0': use torch.nn.Linear without",
    ),
    "parameter beside a dropout": (
        lambda: temperature(drop=nn.Dropout(), head=nn.Linear(6, 3)),
        (6,),
        r"\(Own\) has parameters of its own \(scale\) beside layers: move each one into a torch.nn.Module",
    ),
    "parameter beside a buffer": (
        lambda: temperature(norm=nn.BatchNorm1d(6).requires_grad_(False), head=nn.Linear(6, 3)),
        (6,),
        r"\(Own\) has parameters of its own \(scale\) beside buffers: move each one into a torch.nn.Module",
    ),
    "positions that records share": (
        lambda: Own(shared_positions, words=nn.Embedding(9, 8), places=nn.Embedding(7, 8), head=nn.Linear(8, 3)),
        (7,),
        r"gradient of 'places.weight' does not have .* positions.expand\(len\(rows\), -1\)",
    ),
    "packed sequence": (
        lambda: Own(
            packed, words=nn.Embedding(9, 4), layer=layers.DPLSTM(4, 5, batch_first=True), head=nn.Linear(5, 3)
        ),
        (7,),
        "gets a PackedSequence.* Give it padded rows",
    ),
    "statistics of a batch": (
        lambda: Own(whiten_by_all, head=nn.Linear(6, 3)),
        (6,),
        "runs on 4 synthetic rows and fails on one alone: ValueError: Expected more than 1 value per channel",
    ),
    "tuple": (lambda: Own(lambda s, r: (s.head(r), r), head=nn.Linear(6, 3)), (6,), "it returns a tuple; return the"),
    "one row": (lambda: Own(lambda s, r: s.head(r)[0], head=nn.Linear(6, 3)), (6,), r"its output has the shape \(3,\)"),
}


@pytest.mark.parametrize("kind", EXPLAINED)
def test_what_is_refused_is_named_with_a_remedy(kind):
    build, shape, words = EXPLAINED[kind]
    with pytest.raises(ValueError, match=words):
        training(build()).check(shape)


RECURRENT = {
    "DPRNN(4, 5, 1, batch_first=True, nonlinearity='relu')": lambda: nn.RNN(4, 5, nonlinearity="relu"),
    "DPLSTM(4, 5, 2, batch_first=True, dropout=0.1, bidirectional=True)": lambda: nn.LSTM(
        4, 5, 2, dropout=0.1, bidirectional=True
    ),
    "DPGRU(4, 5, 1, batch_first=True, bias=False)": lambda: nn.GRU(4, 5, bias=False),
}


@pytest.mark.parametrize("instead", RECURRENT)
def test_recurrent_layers_of_torch_are_refused_with_their_replacement(instead):
    layer = RECURRENT[instead]()
    module = Own(lambda s, r: s.head(s.layer(r)[0].mean(1)), layer=layer, head=nn.Linear(5, 3))
    with pytest.raises(ValueError, match=f"{type(layer).__name__} at 'layer': use opacus.layers.") as caught:
        training(module)
    assert f"opacus.layers.{instead}" in str(caught.value)
    replacement = eval(f"layers.{instead}")  # code that runs
    assert sum(p.numel() for p in replacement.parameters()) == sum(p.numel() for p in layer.parameters())
    training(Own(module.own_forward, layer=layer.requires_grad_(False), head=nn.Linear(5, 3)))  # frozen ones are taken


def test_a_bag_of_words_is_refused_with_its_replacement():
    module = Own(lambda s, r: s.head(s.bag(r.long())), bag=nn.EmbeddingBag(9, 5), head=nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"EmbeddingBag at 'bag': use torch\.nn\.Embedding\(9, 5\) and the mean"):
        training(module).check((7,))


def test_batch_normalization_of_flat_rows_gets_a_replacement_that_runs():
    flat = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(True), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"use torch\.nn\.GroupNorm\(1, 8\),? or freeze"):
        training(flat)
    flat[1] = nn.GroupNorm(1, 8)
    training(flat).check((6,))


@pytest.mark.parametrize(
    ("mode", "name"),
    [(torch.inference_mode, "inference_mode"), (lambda: torch.autocast("cpu", torch.bfloat16), "autocast")],
)
def test_modes_of_torch_that_change_gradients_are_refused(mode, name):
    mechanism = training(nn.Linear(6, 3))
    mechanism.check((6,))  # what was found is kept
    with mode(), pytest.raises(ValueError, match=rf"call fit outside torch\.{name}\(\)"):
        mechanism.check((6,))


# ---- memory


def test_a_dry_run_by_layers_holds_few_single_gradients(monkeypatch):
    """It held those of ``physical_batch`` records, from Opacus."""
    found, compute = [], comparison.single_gradients

    def listening(*values):
        gradients = compute(*values)
        found.append(sum(gradient.numel() for gradient in gradients))
        return gradients

    monkeypatch.setattr(comparison, "single_gradients", listening)
    monkeypatch.setattr(layer_terms, "OpacusTerms", None)
    module = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 3))
    training(module, physical_batch=4096).check((100,))
    assert 0 < max(found) <= 2**18


def test_padding_words_have_no_gradient_where_opacus_computes_it():
    torch.manual_seed(0)
    module = Own(
        lambda self, rows: self.head(self.recurrent(self.words(rows.long()))[0][:, -1]),
        words=nn.Embedding(9, 8, padding_idx=2),
        recurrent=layers.DPLSTM(8, 6, batch_first=True),
        head=nn.Linear(6, 3),
    )
    training(module).check((7,))
    terms = OpacusTerms(copy.deepcopy(module))
    rows, target = torch.randint(0, 9, (5, 7)).float(), torch.arange(5) % 3
    table = next(number for number, p in enumerate(terms.trained) if p.shape == (9, 8))
    losses = partial(functional.cross_entropy, reduction="none")
    found = single_gradients(terms(losses, rows, target), terms.trained, list(range(5)))[table]
    for row in range(5):
        loss = functional.cross_entropy(module(rows[row : row + 1]), target[row : row + 1])
        torch.testing.assert_close(found[row], torch.autograd.grad(loss, module.words.weight)[0])
    assert not found[:, 2].any()


@pytest.mark.parametrize("classes", [(0, 1, 2), None])
def test_a_module_that_drops_the_dimension_of_one_record_is_told_so(classes):
    module = Own(lambda self, rows: self.head(rows).squeeze(), head=nn.Linear(6, 1 if classes is None else 3))
    mechanism = OpacusTraining(
        module, "squared" if classes is None else "cross_entropy", classes=classes, noise_multiplier=1.0
    )
    with pytest.raises(ValueError, match=r"for a batch of one record the module returns the shape .*squeeze\(1\)"):
        mechanism.check((6,))
