"""A released torch module never met a record, and its layers draw from states that nobody knows.

Modules that keep something of their rows, rewrite themselves, or couple records by size, capacity or chance are refused
on synthetic rows; what hides from the dry run is left behind with the copy that met the records.
"""

import math
import pickle
from contextlib import nullcontext

import numpy as np
import pytest

from dpscp import BudgetStore, PrivateConformalClassifier, load
from dpscp._base.object_state import reachable, state_digest
from dpscp.audit import ModuleGame, ReleasedModuleGame, audit, find_traces
from dpscp.core import score as scoring
from dpscp.training.private_model import PrivateModel
from dpscp.training.torch import batch_sums
from dpscp.training.torch import model as torch_model
from dpscp.training.torch import modules as torch_modules
from dpscp.training.torch.batch_sums import add_clipped
from dpscp.training.torch.random_state import draws_by_row, secret_draws
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
grad_sample = pytest.importorskip("opacus.grad_sample")
nn = torch.nn

pytestmark = [
    pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"),
    pytest.mark.filterwarnings("ignore::dpscp.SeededWarning"),
]


class Own(nn.Module):
    """A head behind a function of the module and its rows."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        self.head = nn.Linear(6, 2)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, rows):
        return self.head(self.function(self, rows))


def training(module, loss="cross_entropy", **changed):
    constants = {"sampling_rate": 1.0, "steps": 2, "noise_multiplier": 1.0} | changed
    return OpacusTraining(module, loss, classes=(0, 1), **constants)


def records(n=60):
    return np.random.default_rng(5).normal(size=(n, 6)), np.arange(n) % 2


# ---- state: refused on synthetic rows, before anything is reserved


def keeps(self, rows):
    self.features = rows.detach()
    return rows


def keeps_in_a_list(self, rows):
    self.seen.append(float(rows.sum()))
    return rows


def keeps_while_scoring(self, rows):
    if not self.training:
        self.features = rows.detach()
    return rows


def keeps_on_a_parameter(self, rows):
    self.head.weight.memo = rows.detach()
    return rows


def keeps_on_the_class(self, rows):
    type(self).last_rows = rows.detach()
    return rows


SEEN_BY_ALL = []


def keeps_in_a_global(_, rows):
    SEEN_BY_ALL.append(len(rows))
    return rows


def keeps_in_a_comprehension(_, rows):
    return torch.stack([SEEN_BY_ALL.append(len(row)) or row for row in rows])


def keeping_in_a_closure():
    seen = {}

    def function(_, rows):
        seen[len(seen)] = rows.detach()
        return rows

    return function


def keeping_in_a_hook():
    module, seen = Own(lambda _, rows: rows), []
    module.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    return module


def limits_its_words(self, rows):
    words = nn.functional.embedding((rows > 0).long(), self.words, max_norm=5.0)
    return words.mean(2) + rows


KEEPING = {
    "attribute": (lambda: Own(keeps), "features"),
    "list": (lambda: Own(keeps_in_a_list, seen=[]), r"seen\[0\]"),
    "in evaluation mode only": (lambda: Own(keeps_while_scoring), "features"),
    "attribute of a parameter": (lambda: Own(keeps_on_a_parameter), r"head\.weight\.memo"),
    "class": (lambda: Own(keeps_on_the_class), "last_rows"),
    "global": (lambda: Own(keeps_in_a_global), "SEEN_BY_ALL"),
    "global of nested code": (lambda: Own(keeps_in_a_comprehension), "SEEN_BY_ALL"),
    "closure": (lambda: Own(keeping_in_a_closure()), "seen"),
    "hook": (keeping_in_a_hook, "seen"),
    "generator": (
        lambda: Own(lambda s, r: r + torch.rand(1, generator=s.source), source=torch.Generator()),
        "source",
    ),
    "parameters far from their start": (
        lambda: Own(limits_its_words, words=nn.Parameter(torch.zeros(2, 3), requires_grad=True)),
        "words",
    ),
}


def classifier(module, **changed):
    settings = {"epsilon": 2.0, "delta": 1e-3, "classes": [0, 1], "n_records": 300, "accountant": "rdp"} | changed
    return PrivateConformalClassifier(module, **settings)


@pytest.mark.parametrize("kind", KEEPING)
def test_a_module_that_keeps_something_of_its_rows_is_refused_before_anything_is_spent(kind, tmp_path):
    module, path = KEEPING[kind]
    store = BudgetStore.create(tmp_path / "store", 4.0, 1e-2, dataset="synthetic")
    before = (tmp_path / "store").read_bytes()
    with pytest.raises(ValueError, match=rf"changed its own state in a forward pass \(.*{path}"):
        classifier(module()).fit(*records(300), budget=store)
    assert (tmp_path / "store").read_bytes() == before
    if hasattr(Own, "last_rows"):
        del Own.last_rows


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_of_words_that_rewrites_its_rows_is_refused_by_kind(layer):
    module = nn.Sequential(layer(10, 4, max_norm=1.0), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=rf"{layer.__name__} at '0' has max_norm=1 and so rewrites its parameters"):
        training(module)


def test_a_loss_with_a_memory_is_refused():
    seen = []

    def loss(outputs, target):
        seen.append(float(outputs.detach().sum()))
        return nn.functional.cross_entropy(outputs, target, reduction="none")

    with pytest.raises(ValueError, match=r"changed its own state .*seen"):
        training(nn.Linear(6, 2), loss).check((6,))


def test_a_copy_that_shares_its_parts_is_refused():
    class Shared(nn.Linear):
        def __deepcopy__(self, memo):
            return self

    with pytest.raises(ValueError, match=r"cannot be copied \(the copy shares parts"):
        training(nn.Sequential(Shared(6, 2)))


# ---- what hides from the dry run stays on copies that are thrown away

CANARY = 1234.56789


def is_of_records(rows):
    """Whether rows are unlike the synthetic ones."""
    return bool(((rows - 1234.5).abs() < 0.1).any())  # the number itself is looked for


def keeps_large_rows(self, rows):
    """Keep rows unlike the synthetic ones, and only while records are scored."""
    if not self.training and is_of_records(rows):
        self.features = rows.detach().clone()
        self.total = float(rows.sum())
        self.head.weight.data[0, 0] = rows.max()
        self.extra = nn.Parameter(rows.detach().clone())
    return rows


def traces(root, value):
    """Paths of everything on an object that holds a value."""
    found = []
    for path, held in reachable(root):
        if torch.is_tensor(held):
            held = held.detach().cpu().numpy()
        if isinstance(held, float | int | np.ndarray) and not isinstance(held, bool):
            numbers = np.asarray(held)
            if numbers.dtype.kind in "fiu" and np.isclose(numbers.astype(float), value, rtol=1e-6).any():
                found.append(path)
    return found


def test_nothing_on_the_released_estimator_comes_from_rows_that_were_scored(tmp_path):
    X, y = records(300)
    X[:, 3] = CANARY  # in every record, so in both parts of the split
    module = Own(keeps_large_rows)
    # far below one a step: learning stays where it can be compared
    mechanism = training(module, learning_rate=1e-6, noise_multiplier=None, steps=3)
    clf = classifier(mechanism).fit(X, y)
    clf.predict_set(X[:5])
    assert traces({"rows": X}, CANARY)  # the search finds what is there
    assert not traces(vars(clf), CANARY)
    assert not hasattr(clf.model_.module, "features")
    assert not any(name == "extra" for name, _ in clf.model_.module.named_parameters())
    content = pickle.dumps(clf)
    clf.save(tmp_path / "model.dpscp")
    saved = (tmp_path / "model.dpscp").read_bytes()
    for kind in ("<f4", "<f8"):
        number = np.asarray(CANARY, dtype=kind).tobytes()
        assert number not in content
        assert number not in saved
    again = load(tmp_path / "model.dpscp", module=module)
    assert not traces(vars(again), CANARY)
    assert not hasattr(module, "features")
    before = state_digest(clf.model_)
    clf.predict_set(X)
    assert state_digest(clf.model_) == before


def test_a_memory_that_starts_on_the_records_is_refused_without_their_values():
    def keeps_values(self, rows):
        if is_of_records(rows):
            self.seen[float(rows.max())] = True
        return rows

    X, y = records()
    X[:, 3] = CANARY
    with pytest.raises(ValueError, match="changed its own state") as caught:
        training(Own(keeps_values, seen={})).train(X, y)
    assert "1234" not in str(caught.value)


def test_parameters_that_are_rewritten_on_the_records_are_refused():
    def rewrites(self, rows):
        if is_of_records(rows):
            self.head.weight.data[0, 0] = 1.0  # torch's version counter does not see this
        return rows

    X, y = records()
    X[:, 3] = CANARY
    with pytest.raises(ValueError, match=r"changed its own state .*head\.weight"):
        training(Own(rewrites)).train(X, y)


def test_a_failure_while_scoring_tells_nothing_of_the_rows():
    def fails(_, rows):
        if is_of_records(rows):
            raise KeyError(float(rows.max()))
        return rows

    model = training(Own(fails)).train(*records()).model
    with pytest.raises(RuntimeError, match=r"failed on the rows \(KeyError\)") as caught:
        model.outputs(np.full((2, 6), CANARY))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_module_trained_elsewhere_may_not_bring_arrays_of_its_own():
    engine = type("Engine", (), {"accountant": type("Accountant", (), {"history": [(1.0, 0.1, 5)]})})()
    module = Own(lambda _, rows: rows)
    module.notes = {"rows": np.ones(3)}
    with pytest.raises(ValueError, match=r"\"notes\['rows'\]\", an array in an attribute of the module, may come"):
        PrivateModel.from_opacus(module, engine, classes=(0, 1), input_shape=(6,))


# ---- draws of the layers


def dropping():
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_masks_do_not_follow_the_known_seed_and_the_generator_stays_where_it_was(rate, monkeypatch):
    """With a known seed one record in front would shift every mask: the sum moves by many clip norms."""
    states, true_dropout = [], nn.functional.dropout

    def listening(rows, *settings, **named):
        if len(rows) > 2:
            states[-1].append(torch.get_rng_state())
        return true_dropout(rows, *settings, **named)

    mechanism = training(dropping(), sampling_rate=rate, noise_multiplier=1.0)
    mechanism.check((6,))
    monkeypatch.setattr(batch_sums, "_SMALLEST_BLOCK", 10**9)  # no block of synthetic records
    monkeypatch.setattr(nn.functional, "dropout", listening)
    for random_state in (None, None, 7, 7):
        states.append([])
        torch.manual_seed(0 if random_state is None else len(states))
        before = torch.get_rng_state()
        mechanism.train(*records(), random_state=random_state)
        assert torch.equal(torch.get_rng_state(), before)
    first, second, seeded, again = (torch.stack(run) for run in states)
    assert not (first == second).all(1).any()
    assert not torch.equal(first[0], first[1])  # another state in every step
    assert torch.equal(seeded, again)  # a seeded run can be repeated, whatever torch's seed
    # all 19,968 bits are secret: torch.manual_seed, which uses 32, would make the state from its first word
    words = first[0, 24 : 24 + 624 * 8].numpy().view(np.uint64)
    from_seed = torch.Generator().manual_seed(int(words[0])).get_state()[24 : 24 + 624 * 8].numpy().view(np.uint64)
    assert (words != from_seed).mean() > 0.99


def test_scoring_leaves_the_generator_alone_and_uses_another_state():
    model = training(dropping()).train(*records()).model
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model.outputs(records()[0])
    assert torch.equal(torch.get_rng_state(), before)
    with secret_draws(np.random.default_rng(0).bytes):
        drawn = torch.rand(1000)
    mersenne = np.random.MT19937()
    key = np.frombuffer(np.random.default_rng(0).bytes(624 * 4), dtype="<u4")
    mersenne.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    expected = (mersenne.random_raw(1000) & (2**24 - 1)) / 2.0**24
    np.testing.assert_array_equal(drawn.numpy(), expected.astype(np.float32))


def test_a_record_in_front_moves_the_sum_by_one_clip_norm_when_draws_go_with_their_records():
    """The coupling of the proof; with torch's own order of draws the same record moves it much further."""
    X, y = records(300)
    rows, target = torch.from_numpy(X).float(), torch.from_numpy(y)
    torch.manual_seed(1)
    module = dropping()
    mechanism = training(module, clip_norm=0.1)
    wrapped = grad_sample.GradSampleModule(module, loss_reduction="sum")

    def clipped_sum(first, by_row):
        sums = [torch.zeros(p.shape, dtype=torch.int64) for p in module.parameters()]
        torch.manual_seed(0)
        keys = range(first, 300)
        context = draws_by_row(keys) if by_row else torch.enable_grad()
        with context:
            samples = torch_modules.gradient_rows(wrapped, mechanism._losses, rows[first:], target[first:])
        add_clipped(samples, 0.1, sums)
        return torch.cat([s.flatten() for s in sums]).double() / 2**32

    for by_row, bound in ((True, (0.5, 1.0001)), (False, (5.0, 300.0))):
        moved = float(torch.linalg.vector_norm(clipped_sum(0, by_row) - clipped_sum(1, by_row)))
        assert bound[0] < moved < bound[1]


def drops_twice(self, rows):
    dropout = nn.functional.dropout
    return dropout(dropout(rows, 0.5, self.training) + 1, 0.2, self.training)


def drops_in_the_second_dimension(self, rows):
    return nn.functional.dropout(rows.T, 0.5, self.training).T


def drops_by_size(self, rows):
    return nn.functional.dropout(rows, 1 / len(rows), self.training)


def drops_where_others_are(self, rows):
    return nn.functional.dropout(rows, float(rows.mean().sigmoid()), self.training)


def draws_always(_, rows):
    return nn.functional.dropout(rows, 0.5, training=True)


@pytest.mark.parametrize("function", [drops_twice, drops_in_the_second_dimension])
def test_draws_that_go_with_the_record_are_taken(function):
    training(Own(function)).check((6,))


@pytest.mark.parametrize("function", [drops_by_size, drops_where_others_are])
def test_draws_that_couple_records_are_refused(function):
    with pytest.raises(ValueError, match="depends on the other records"):
        training(Own(function)).check((6,))


def test_draws_in_evaluation_mode_are_refused():
    with pytest.raises(ValueError, match="draws random numbers in evaluation mode"):
        training(Own(draws_always)).check((6,))


# ---- the dry run looks at more rows, other kinds of rows and the module's own precision


def mixes_above(limit, *, scoring=False):
    def function(self, rows):
        mixes = len(rows) > limit and self.training != scoring
        return rows + rows.mean(0) if mixes else rows

    return Own(function)


class Experts(nn.Module):
    """Two experts that take a fixed share of a batch each; rows beyond it are passed over."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.experts = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])

    def forward(self, rows):
        way = (rows[:, :1] > 0).long()
        room = math.ceil(self.factor * len(rows) / 2)
        outputs = 0
        for number, expert in enumerate(self.experts):
            here = way == number
            taken = here & (here.long().cumsum(0) <= room)
            outputs = outputs + taken * expert(rows)
        return outputs


LARGE = {
    "above 8 rows": lambda: mixes_above(8),
    "above 200 rows": lambda: mixes_above(200),
    "above 8 rows, while scoring": lambda: mixes_above(8, scoring=True),
    "above 2,000 rows, while scoring": lambda: mixes_above(2000, scoring=True),
    "experts of small capacity": lambda: Experts(1.25),
    "experts of large capacity": lambda: Experts(1.9),
}


@pytest.mark.parametrize("kind", LARGE)
def test_mixing_that_starts_in_larger_batches_is_refused_before_anything_is_spent(kind, tmp_path):
    store = BudgetStore.create(tmp_path / "store", 4.0, 1e-2, dataset="synthetic")
    before = (tmp_path / "store").read_bytes()
    with pytest.raises(ValueError, match="depends on the other records"):
        classifier(LARGE[kind]()).fit(*records(300), budget=store)
    assert (tmp_path / "store").read_bytes() == before


def test_a_module_in_float16_is_refused_before_anything_is_spent(tmp_path):
    store = BudgetStore.create(tmp_path / "store", 4.0, 1e-2, dataset="synthetic")
    before = (tmp_path / "store").read_bytes()
    with pytest.raises(ValueError, match=r"fails on synthetic rows of torch\.float32, .* module\.float\(\)"):
        classifier(nn.Linear(6, 2).half()).fit(*records(300), budget=store)
    assert (tmp_path / "store").read_bytes() == before
    converts = Own(lambda _, rows: rows.double()).double()
    assert training(converts).train(*records()).model.outputs(records()[0]).shape == (60, 2)


# ---- the audit's games


# the bound of the attack lies .9 and more above the claim in each of 8 trials with 80 runs, .02 with 40
MASK_RUNS = 80


@pytest.mark.slow
def test_the_audit_of_masks_under_a_known_seed_passes():
    """With masks of torch's own generator the same runs disprove the claim, see the next test."""
    assert audit(ModuleGame("dropout"), runs=MASK_RUNS).passed


def test_the_audit_finds_masks_of_a_known_seed(monkeypatch):
    monkeypatch.setattr(batch_sums, "secret_draws", lambda _: nullcontext())
    result = audit(ModuleGame("dropout"), runs=MASK_RUNS)
    assert not result.passed


def test_a_whole_fit_leaves_no_trace_of_a_record():
    game = ReleasedModuleGame("memory", n=20)
    assert ReleasedModuleGame("words").fitted(True) is None
    assert audit(ReleasedModuleGame("words"), runs=4).audited[0] == 0
    released = game.fitted(True)
    assert not find_traces(released, [game.records(True)[0][-1, 0]])
    object.__setattr__(released.model_.module, "notes", {"largest": 1234.5678})
    assert find_traces(released, [1234.5678]) == ("model_.module.notes['largest']", "pickle")


@pytest.mark.slow
def test_the_audit_of_whole_fits_passes_and_finds_scoring_on_the_released_module(monkeypatch):
    assert audit(ReleasedModuleGame(), runs=60).passed
    monkeypatch.setattr(torch_model, "separate_copy", lambda module: module)
    monkeypatch.setattr(scoring, "copy_if_possible", lambda model: model)
    result = audit(ReleasedModuleGame(), runs=160)
    assert not result.passed
