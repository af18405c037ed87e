"""Records cannot meet: what a module computes for one record is the same whoever else is in the block (theory 15)."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from dpscp.data.sources import Block
from dpscp.torch.checks import RefusedError

functional = nn.functional
NUMBER = ((), "float32")


def cross_entropy(outputs, target):
    return functional.cross_entropy(outputs, target, reduction="none")


def square(outputs, target):
    return (outputs[:, 0] - target) ** 2


class Forward(nn.Module):
    """A linear layer, and a caller's own forward around it."""

    def __init__(self, forward, **buffers):
        super().__init__()
        self.layer, self._own, self.calls = nn.Linear(5, 3), forward, 0
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self._own(self, x)


class _OwnRule(torch.autograd.Function):
    """Doubles its input, and adds up the records of a block when it is mapped."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, error):
        return error * 2

    @staticmethod
    def vmap(_, __, x):
        return x * x.sum(), 0


@torch.library.custom_op("dpscp_tests::add_up", mutates_args=())
def add_up(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum()


add_up.register_fake(torch.empty_like)


def count_in_attribute(self, x):
    self.calls += 1
    return self.layer(x) * self.calls


def count_by_out(self, x):
    torch.add(self.n, 1, out=self.n)
    return self.layer(x) * self.n


def count_by_foreach(self, x):
    torch._foreach_add_([self.n], 1.0)
    return self.layer(x) * self.n


def count_in_place(self, x):
    self.n += 1
    return self.layer(x) * self.n


def keep_last(self, x):
    found = self.layer(x) + self.n
    self.n.copy_(x.detach().sum().reshape(1))
    return found


def remember(self, x):
    found = self.layer(x) + getattr(self, "last", torch.zeros(5)).sum()
    self.last = x.detach()
    return found


def table_of_record(self, x):
    return functional.embedding((x * 0).long()[:, :3], torch.stack([self.layer(x[0])] * 2)).mean(1)


class Watching(torch.Tensor):
    """A caller's tensor, whose code is called with what it meets."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


aten, SPARSE = torch.ops.aten, torch.eye(5).to_sparse()


def places_of_the_record(self, x):
    """The gradient of a pooling writes to any place that it is given."""
    wide, places = x[None, :, None, :4], (x[None, :, None, :2] * 4).long()
    found = aten.max_pool2d_with_indices_backward(
        places.float(), wide.contiguous(), [1, 2], [1, 2], [0, 0], [1, 1], False, places
    )
    return self.layer(x + found.sum())


def numbers_that_nobody_wrote(self, x):
    return self.layer(x + aten._embedding_bag(torch.ones(3, 5), (x[0] * 2).long(), torch.tensor([0]))[3].sum())


def pivots_of_the_record(self, x):
    return self.layer(torch.linalg.lu_solve(torch.diag(x[0] + 1), (x[0] * 4).int() + 1, x.T).T)


def statistics_in_silence(self, x):
    return self.layer(x + aten.batch_norm_update_stats(x.T, self.n, self.n, 0.1)[0].sum())


REFUSED = {
    "places of a record": (places_of_the_record, "numbers of one record"),
    "pivots of a record": (pivots_of_the_record, "numbers of one record"),
    "lengths of a record": (
        lambda self, x: self.layer(x + torch.segment_reduce(x[0], "sum", lengths=(x[0] * 2).long(), unsafe=True).sum()),
        "numbers of one record",
    ),
    "results that are not filled": (numbers_that_nobody_wrote, "numbers of one record"),
    "batch statistics in silence": (statistics_in_silence, "numbers of one record"),
    "a sparse constant": (lambda self, x: self.layer(torch.sparse.mm(SPARSE, x.T).T), "numbers of one record"),
    "branch on a value": (lambda self, x: self.layer(x if x.sum() > 0 else -x), "torch.where"),
    "item": (lambda self, x: self.layer(x) * x.max().item(), "torch.where"),
    "tolist": (lambda self, x: self.layer(x) * x.sum().tolist(), "torch.where"),
    "numpy": (lambda self, x: self.layer(torch.from_numpy(x.detach().numpy())), "computes something else"),
    "mask as index": (lambda self, x: self.layer(x * x[x > 0.5].sum()), "torch.where"),
    "nonzero": (lambda self, x: self.layer(x) * x.nonzero().sum(), "torch.where"),
    "unique": (lambda self, x: self.layer(x) * x.unique().sum(), "torch.where"),
    "random of Python": (lambda self, x: self.layer(x) * random.random(), "computes something else"),
    "random of NumPy": (lambda self, x: self.layer(x) * np.random.rand(), "computes something else"),
    "counter in an attribute": (count_in_attribute, "computes something else"),
    "memory between calls": (remember, "computes something else"),
    "counter by out=": (count_by_out, "in place"),
    "counter by _foreach_": (count_by_foreach, "numbers of one record"),
    "counter in place": (count_in_place, "in place"),
    "memory in a buffer": (keep_last, "in place"),
    "as_strided": (lambda self, x: self.layer(x.as_strided((1, 5), (5, 1))), "numbers of one record"),
    "autograd.Function": (lambda self, x: _OwnRule.apply(self.layer(x)), "gradient of their own"),
    "custom operation": (lambda self, x: self.layer(add_up(x)), "not an operation of torch"),
    "memory of others by prims": (
        lambda self, x: self.layer(
            x + torch.ops.prims.empty_strided((1, 5), (5, 1), dtype=x.dtype, device=x.device, requires_grad=False)
        ),
        "not an operation of torch",
    ),
    "sum by prims": (lambda self, x: self.layer(x + torch.ops.prims.sum(x, [1])[:, None]), "not an operation of torch"),
    "index_fill": (lambda self, x: self.layer(x.index_fill(1, (x[0, :1]).long(), 0.0)), "numbers of one record"),
    "table made of the record": (table_of_record, "looks up rows of a table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(trace, name):
    forward, words = REFUSED[name]
    with pytest.raises(RefusedError, match=words):
        trace(Forward(forward, n=torch.zeros(1)), (5,))


def test_parameters_with_code_of_their_own_are_refused(trace):
    module = Forward(lambda self, x: self.layer(x))
    module.layer.bias = nn.Parameter(torch.ones(3).as_subclass(Watching))
    with pytest.raises(RefusedError, match=r"'layer\.bias' is a Watching"):
        trace(module, (5,))


def test_a_refusal_names_the_layer_and_what_to_write(trace):
    module = nn.Sequential(nn.Linear(5, 5), Forward(REFUSED["branch on a value"][0]))
    with pytest.raises(RefusedError) as refused:
        trace(module, (5,))
    assert str(refused.value).startswith("Forward at '1': the code branches on a value of a record")
    assert "tracing" not in str(refused.value)  # the words of torch are about its own tools


def fill_partly(self, x):
    held = torch.empty(64, 5)
    held[:1] = x
    return self.layer(held.sum(0, keepdim=True))


def fill_bad_numbers(self, x):
    """Replace sentinels by the mean of the batch."""
    return self.layer(torch.where(x > 0.9, x.mean(), x))


def largest_target(outputs, target):
    return cross_entropy(outputs, target) * (1 + target.max())


def skip_batch(outputs, target):
    losses = cross_entropy(outputs, target)
    return torch.where(torch.isfinite(losses).all(), losses, losses * 0)


ISOLATED = {
    "mean over the batch": (lambda self, x: self.layer(x + x.mean(0)), cross_entropy),
    "softmax over the batch": (lambda self, x: self.layer(x).softmax(0) * self.layer(x), cross_entropy),
    "sentinels filled with the mean": (fill_bad_numbers, cross_entropy),
    "loss with the largest target": (lambda self, x: self.layer(x), largest_target),
    "loss that skips a batch": (lambda self, x: self.layer(x), skip_batch),
    "partly filled empty": (fill_partly, cross_entropy),
    "flip of the batch": (lambda self, x: self.layer(x + x.flip(0)), cross_entropy),
    "conversion by prims": (
        lambda self, x: self.layer(torch.ops.prims.convert_element_type(x, torch.float64).float()),
        cross_entropy,
    ),
    "sort and cumsum": (lambda self, x: self.layer(x.sort(0).values + x.cumsum(0)), cross_entropy),
    "convolution with weights of the record": (
        lambda self, x: self.layer(functional.conv1d(x[None], x[None, :, :3], padding=1)[0]),
        cross_entropy,
    ),
    "attention": (lambda self, x: self.layer(functional.scaled_dot_product_attention(x, x, x)), cross_entropy),
    "pooling": (lambda self, x: self.layer(functional.max_pool1d(x, 3, 1, 1)), cross_entropy),
    "determinant": (lambda self, x: self.layer(x * torch.logdet(x.T @ x + self.spread)), cross_entropy),
    "pseudo-inverse": (
        lambda self, x: self.layer(torch.linalg.pinv(x.T @ x + self.spread)[-1:] + x),
        cross_entropy,
    ),
    "search": (lambda self, x: self.layer(x + torch.searchsorted(x.sort().values, x)), cross_entropy),
    "interpolation": (
        lambda self, x: self.layer(functional.interpolate(x[None], 10, mode="nearest-exact")[0, :, 3:8]),
        cross_entropy,
    ),
    "solution": (lambda self, x: self.layer(torch.linalg.solve(self.spread + x, x.T).T), cross_entropy),
    "scatter": (lambda self, x: self.layer(x.scatter_add(1, (x * 4).long().clamp(0, 4), x)), cross_entropy),
    "dropout": (lambda self, x: self.layer(functional.dropout(x, 0.5)), cross_entropy),
    "one coin": (lambda self, x: self.layer(x * (torch.rand(1) < 0.5)), cross_entropy),
    "random order of the records": (lambda self, x: self.layer(x[torch.rand(len(x)).argsort()]), cross_entropy),
}


@pytest.mark.parametrize("name", ISOLATED)
def test_terms_of_others_do_not_move(trace, name):
    forward, loss = ISOLATED[name]
    assert trace(Forward(forward, spread=torch.eye(5) * 1e5), (5,), loss).moved() == 0.0


def test_terms_of_others_do_not_move_where_one_is_not_finite(trace):
    traced = trace(Forward(lambda self, x: self.layer(x)), (5,), square, NUMBER)
    for bad in (float("nan"), float("inf"), 1e38):
        inputs = [traced.inputs[0].clone()]
        inputs[0][1] = bad
        before, after = traced.gradients()[0], traced.gradients(inputs)[0]
        assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])


def sum_of(traced, inputs, target, seed=1):
    """Return the clipped sum of a block of all records."""
    rows = np.concatenate([value.reshape(len(target), -1).numpy() for value in inputs], axis=1)
    sums = traced.engine.sum(
        Block(0, rows, target.numpy()), np.arange(len(target)), traced.parameters, np.random.default_rng(seed)
    )
    return torch.cat([total.flatten() for total in sums])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_record_that_is_not_finite_adds_zero(trace, bad):
    traced = trace(Forward(lambda self, x: self.layer(x) * x.exp().sum()), (5,), square, NUMBER)
    inputs = [traced.inputs[0].clone()]
    inputs[0][1] = bad
    others = [0, 2, 3]
    whole = sum_of(traced, inputs, traced.target)
    assert torch.isfinite(whole).all()
    rest = [value[others] for value in inputs]
    assert torch.allclose(whole, sum_of(traced, rest, traced.target[others]), atol=1e-12)


def test_a_singular_matrix_adds_zero_and_raises_nothing(trace):
    def invert(self, x):
        return self.layer(torch.linalg.inv(torch.diag(x[0]))[None].sum(1))

    traced = trace(Forward(invert), (5,))
    inputs = [traced.inputs[0].clone() + 1]
    inputs[0][1] = 0.0
    whole, others = sum_of(traced, inputs, traced.target), [0, 2, 3]
    assert torch.allclose(whole, sum_of(traced, [inputs[0][others]], traced.target[others]), atol=1e-12)


def test_an_index_out_of_range_adds_zero(trace):
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(self.table((x * 2).long()).mean(1))

    traced = trace(Lookup(), (4,))
    inputs = [traced.inputs[0].clone()]
    inputs[0][2, 0] = 900.0
    before, after = traced.gradients()[0], traced.gradients(inputs)
    assert after[1].tolist() == [False, False, True, False]
    assert torch.equal(before[[0, 1, 3]], after[0][[0, 1, 3]])


INDEXED = {
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(1, i[None]),
    "take": lambda x, i: x.take(i)[None],
    "index": lambda x, i: x[:, i],
    "index_put": lambda x, i: x.index_put((torch.zeros_like(i), i), x[0, :2]),
    "index_add": lambda x, i: x.index_add(1, i, x[:, :2]),
    "index_copy": lambda x, i: x.index_copy(1, i, x[:, :2]),
    "scatter": lambda x, i: x.scatter(1, i[None], x[:, :2]),
    "index_reduce": lambda x, i: x.index_reduce(1, i, x[:, :2], "mean"),
    "put": lambda x, i: x.put(i, x[0, :2]),
    "searchsorted": lambda x, i: torch.searchsorted(x[:, :2], x, sorter=i[None]) + x,
}


@pytest.mark.parametrize("name", INDEXED)
def test_places_out_of_range_reach_no_other_record(trace, name):
    """The places are numbers of the record: after its end, and before its start."""
    operation = INDEXED[name]
    traced = trace(
        Forward(lambda self, x: self.layer(functional.pad(operation(x, (x[0, :2] * 2).long()), (0, 5))[:, :5])), (5,)
    )
    before = traced.gradients()[0]
    for place in (2.5, 3.5, 900.0, -0.5, -3.0, -900.0):
        inputs = [traced.inputs[0].clone()]
        inputs[0][1, 0] = place
        after, failed = traced.gradients(inputs)
        assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])
        assert failed is None or failed.tolist() == [False, True, False, False]


def test_clipped_sums_have_the_norm_of_the_clip_norm(trace):
    traced = trace(Forward(lambda self, x: self.layer(x) * 1e3), (5,), square, NUMBER)
    for record in range(4):
        alone = sum_of(traced, [traced.inputs[0][[record]]], traced.target[[record]])
        assert 0.999 < float(alone.norm()) <= 1.0


def test_no_memory_of_a_block_is_left_as_it_was(trace):
    """The gradient of a convolution is given memory in place of an input that it does not read."""
    traced = trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten()), (1, 6, 6))
    names = [str(node.target) for node in traced.engine._block._graph.graph.nodes]
    assert any("convolution_backward" in name for name in names)
    assert not any("empty" in name for name in names)


def test_an_edited_forward_is_not_called(trace):
    """Autoreload replaces a class's forward while training runs."""
    traced = trace(Forward(lambda self, x: self.layer(x)), (5,))
    before, old = traced.gradients()[0], Forward.forward
    try:
        Forward.forward = lambda self, x: self.layer(x - x.mean(0))
        assert torch.equal(before, traced.gradients()[0])
    finally:
        Forward.forward = old


def test_draws_ignore_the_global_generators(trace):
    """Another thread seeds torch's generator again and again."""
    traced = trace(Forward(lambda self, x: self.layer(functional.dropout(x, 0.5))), (5,))
    stop = threading.Event()

    def seed():
        while not stop.is_set():
            torch.manual_seed(0)
            random.seed(0)

    thread = threading.Thread(target=seed)
    thread.start()
    try:
        found = [sum_of(traced, traced.inputs, traced.target, seed) for seed in (1, 2, 1)]
    finally:
        stop.set()
        thread.join()
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_global_generators_are_left_alone(trace):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    traced = trace(Forward(lambda self, x: self.layer(functional.dropout(x, 0.5))), (5,))
    torch.manual_seed(5)
    sum_of(traced, traced.inputs, traced.target)
    assert torch.equal(before, torch.get_rng_state())


def test_constants_are_copied(trace):
    weights = torch.ones(3)
    traced = trace(Forward(lambda self, x: self.layer(x)), (5,), lambda z, y: cross_entropy(z * weights, y))
    before = traced.gradients()[0]
    weights.mul_(50)
    assert torch.equal(before, traced.gradients()[0])
