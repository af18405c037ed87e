"""Train dense networks by DP-SGD on a device of torch, usually a GPU.

The same mechanism as `dpscp.training.engine.loop` with the same proof of what one record can do to a sum
(docs/floating_point.md), which rests on three things that are done here as there:

1. A record's errors and layer inputs have the same bits wherever it stands. Records go through the layers in blocks of
   one size, the last one padded; before the first record is used synthetic records are put in every place of a block.
2. Norms, clipping factors and weights are float64.
3. So are the sums, and no term goes through more than 12,400 additions: at most 1024 in a product, then one for each
   product of a block and one for each block. Before the first record is used, products of synthetic numbers are
   compared with their exact values: a device, or a setting, that replaces float64 by something shorter is refused.

Noise is drawn on the device (`DeviceNoise`), rounded to the same grid, and accounted for in the same way. Batches are
drawn by the processor. Runs with a seed repeat themselves on the same device and differ from those of the processor.

Records in the blocks of a source stay there: each block's batch goes to a device of the process that has the
block (`DeviceBatchSums`), and its sum comes back, to be added by pairs. State and noise are then the processor's, see
`dpscp.training.engine.batching`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.data.persons import Persons
from dpscp.training.engine.block_sums import PRODUCT_ROWS, choose_sums
from dpscp.training.engine.loop import EngineBlock, RunConstants, StepObserver, StepView, UpdateRule, check_batch
from dpscp.training.engine.networks import Loss, Network
from dpscp.training.engine.padding import whole_lanes
from dpscp.training.torch.modules import load_torch

# Numbers of a block, and the most and the fewest records of one.
_BLOCK_NUMBERS = 1 << 26
_MOST_ROWS, _FEWEST_ROWS = 1 << 16, 16
# The most blocks in a sum: with the additions inside a block the proof allows so many.
_MOST_BLOCKS = 1 << 13


def check_device(name: str) -> Any:
    """Return the torch device of this name; ValueError if it is unavailable."""
    torch = load_torch()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}); leave it out to train on the CPU") from None
    return device


class DeviceDescent:
    """The state of one run on a device; see `dpscp.training.engine.loop.Descent`.

    Theory: section 1.6
    """

    def __init__(self, public: RunConstants, records: "DeviceRecords", observer: StepObserver | None = None) -> None:
        torch = load_torch()
        self.rule, self.normaliser, self.grid, self.step_count = public.rule, public.normaliser, public.grid, 0
        self._observer, self._owners = observer, records.owners
        self.sums = _DeviceSums(public.network, public.loss, records, public.clip_norm, public.dtype, public.normaliser)
        device = self.sums.total.device
        self._constants = torch.from_numpy(_step_constants(public.rule)).to(device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)  # of the next step
        self.parameters, self._noise, self._gradient, self._velocity, self._squares, self._sum = (
            torch.zeros_like(self.sums.total) for _ in range(6)
        )
        self._finish = record_graph(self._move, device)
        self._take_step = record_graph(self._step_of_one_block, device) if len(records) else None
        # recording has run the steps' work on synthetic numbers
        for state in (self._place, self._velocity, self._squares, self._sum):
            state.zero_()
        self.parameters.copy_(torch.from_numpy(np.asarray(public.initial, dtype=np.float64)))
        self.sums.parameters.copy_(self.parameters)

    def step(self, batch: NDArray[np.int64] | None, noise: Any) -> None:
        """Take one noisy step, also on an empty batch.

        `noise` is in grid units, on the device; None adds none.
        """
        before = None if self._observer is None else self.current()
        if self.grid:
            self._noise.copy_(noise)
        index = None if batch is None else self._owners.rows_of(batch)
        if self._take_step is not None and index is not None and len(index) <= self.sums.size:
            self.sums.take(index)
            self._take_step()
        else:
            self.sums.clipped(index)
            self._finish()
        if self._observer is not None and before is not None:
            constants = (self.normaliser, self.grid, float(self.rule.learning_rates[self.step_count]))
            noisy: Array = self._gradient.cpu().numpy() * (self._unit * self.normaliser)
            self._observer(StepView(before, noisy, constants))
        self.step_count += 1

    @property
    def _unit(self) -> float:
        """Return the grid over the normalizer, the scale of `_gradient`."""
        return (self.grid or 1.0) / self.normaliser

    def _step_of_one_block(self) -> None:
        """Take the step whose batch is the block that was taken.

        Recorded as one piece: starting a recording takes longer than a short step.
        """
        self.sums.total.zero_()
        self.sums.add_taken_block()
        self._move()

    def _move(self) -> None:
        """Compute the next iterate from the sum and the noise."""
        torch, rule, gradient = load_torch(), self.rule, self._gradient
        rate, correction, averaged = self._constants.index_select(0, self._place)[0]
        self._place += 1
        if self.grid:
            torch.add(self._noise, self.sums.total, alpha=1 / self.grid, out=gradient).round_()
        else:
            gradient.copy_(self.sums.total)
        direction = gradient
        if rule.optimizer == "adam":
            first, second, tiny = rule.adam
            self._velocity.mul_(first).add_(gradient, alpha=(1 - first) * self._unit)
            self._squares.mul_(second).addcmul_(gradient, gradient, value=(1 - second) * self._unit**2)
            direction = self._velocity / self._squares.sqrt().mul_(correction).add_(tiny)
        elif rule.momentum:
            direction = torch.add(gradient, self._velocity, alpha=rule.momentum, out=self._velocity)
        self.parameters.addcmul_(direction, rate, value=-1 if rule.optimizer == "adam" else -self._unit)
        if rule.radius is not None:
            # a vector inside the ball is multiplied by one
            self.parameters.mul_((rule.radius / self.parameters.norm()).clamp_(max=1.0))
        self.sums.parameters.copy_(self.parameters)
        if rule.averaged > 1:
            self._sum.addcmul_(self.parameters, averaged)

    def current(self) -> Array:
        """Return the current iterate, in the precision the gradients see."""
        return np.array(self.sums.parameters.cpu().numpy())

    def released(self) -> Array:
        """Return the average of the last iterates, after all steps."""
        average = self._sum / self.rule.averaged if self.rule.averaged > 1 else self.parameters
        return np.array(average.to(self.sums.parameters.dtype).cpu().numpy())


def _step_constants(rule: UpdateRule) -> Array:
    """Return the rate, Adam's correction and the averaging flag of each step."""
    steps = len(rule.learning_rates)
    done = np.arange(1, steps + 1)
    rates, corrections = np.array(rule.learning_rates, dtype=np.float64), np.ones(steps)
    if rule.optimizer == "adam":
        rates /= 1 - rule.adam[0] ** done
        corrections /= np.sqrt(1 - rule.adam[1] ** done)
    return np.stack([rates, corrections, done > steps - rule.averaged], axis=1)


@dataclass(frozen=True)
class DeviceRecords:
    """Records on the device.

    Rows without their bias coordinate, squared norms with it, targets, weights.

    They live while training runs.
    """

    rows: Any
    squared_norms: Any
    targets: Any
    weights: Any
    owners: Persons = field(default_factory=lambda: Persons.single(0))
    """Whose records these are; known of all records, and not of a part of them."""

    @classmethod
    def of(cls, records: EngineBlock, network: Network, device: Any) -> "DeviceRecords":
        """Return a copy of the records."""
        torch = load_torch()
        features = records.rows[:, : network.widths[0]]

        def moved(values: Array) -> Any:
            return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(device)

        rows = torch.empty(features.shape, dtype=torch.from_numpy(features[:0]).dtype, device=device)
        for start in range(0, len(features), _MOST_ROWS):
            rows[start : start + _MOST_ROWS] = moved(features[start : start + _MOST_ROWS])
        norms, targets, weights = map(moved, (records.squared_norms, records.targets, records.owners.weights))
        return cls(rows, norms, targets, weights, records.owners)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def columns(self) -> tuple[Any, Any, Any, Any]:
        """Return rows, squared norms, targets and weights."""
        return self.rows, self.squared_norms, self.targets, self.weights

    def part(self, start: int, stop: int) -> "DeviceRecords":
        """Return the records from start to stop."""
        return DeviceRecords(*(values[start:stop] for values in self.columns))


class _DeviceSums:
    """Weighted sums of clipped gradients at ``parameters``, by ghost norms.

    Records are processed block by block.

    ``batch`` is the public expected number of records.
    """

    def __init__(
        self, network: Network, loss: Loss, records: DeviceRecords, clip_norm: float, dtype: str, batch: float
    ) -> None:
        torch, device = load_torch(), records.rows.device
        self._network, self._loss, self._records, self._limit = network, loss, records, clip_norm
        self._sums = choose_sums(device, clip_norm, intercept=network.intercept)
        self.parameters = torch.zeros(network.n_parameters, dtype=getattr(torch, dtype), device=device)
        self.total = torch.zeros(network.n_parameters, dtype=torch.float64, device=device)
        self._layers: list[Any] = network.layers(self.parameters)  # views of tensors as of arrays
        self._totals: list[Any] = network.layers(self.total)
        self._quantiles = torch.tensor(loss.quantiles, dtype=self.parameters.dtype, device=device)
        _require_float64(device)
        most = min(_MOST_ROWS, _BLOCK_NUMBERS // sum(out + 2 * into for out, into in network.shapes))
        self.size = _whole_products(max(_FEWEST_ROWS, min(most, batch + 3 * math.sqrt(batch) + 1)))
        while not self._rounds_alike():
            if self.size <= max(_FEWEST_ROWS, 4 * batch / _MOST_BLOCKS):
                raise ValueError(
                    f"{device} rounds a record differently in another place of a batch, so the effect of one record is "
                    "not bounded; train on the CPU (device=None)"
                )
            self.size = _whole_products(self.size / 2)
        # how many places of the next block are taken, and by which records
        self._taken = torch.zeros(1 + self.size, dtype=torch.int64, device=device)
        self._upload = Upload(self._taken)
        self._add_taken = record_graph(self.add_taken_block, device) if len(records) else self.add_taken_block
        self._add_everybody: Callable[[], object] | None = None

    def clipped(self, index: NDArray[np.int64] | None) -> None:
        """Put the sum over these records (None: all) into ``total``."""
        check_batch(len(self._records) if index is None else len(index), most=self.size * _MOST_BLOCKS)
        self.total.zero_()
        if not len(self._records):
            return
        if index is None:
            if self._add_everybody is None:
                self.take(np.arange(len(self._records) // self.size * self.size, len(self._records)))
                self._add_everybody = record_graph(self._add_all, self.total.device)
                self.total.zero_()
            self._add_everybody()
            return
        for start in range(0, len(index), self.size):
            self.take(index[start : start + self.size])
            self._add_taken()

    def take(self, index: NDArray[np.int64]) -> None:
        """Make these records the next block."""
        self._upload.next[0] = len(index)
        self._upload.next[1 : 1 + len(index)] = index
        self._upload.next[1 + len(index) :] = 0
        self._upload.send()

    def _add_all(self) -> None:
        whole = len(self._records) // self.size * self.size
        for start in range(0, whole, self.size):
            self.add(self._records.part(start, start + self.size))
        if whole < len(self._records):
            self.add_taken_block()

    def add_taken_block(self) -> None:
        """Add the sum over the block that was taken to ``total``."""
        self.add(DeviceRecords(*self._sums.gather(self._records.columns, self._taken)))

    def add(self, block: DeviceRecords) -> None:
        """Add the sum over a block of ``size`` records to ``total``."""
        errors, inputs, factors = self._errors(self._loss, block)
        for total, error, values in zip(self._totals, errors, inputs, strict=True):
            self._sums.add_product(total, error, values, factors)

    def _errors(self, loss: Loss, block: DeviceRecords) -> tuple[list[Any], list[Any], Any]:
        """Return each layer's errors and inputs, and the factor of each record."""
        network = self._network
        inputs, values = [], block.rows
        for depth, layer in enumerate(self._layers):
            inputs.append(values)
            values = self._sums.apply(layer, values)
            if depth < len(self._layers) - 1:
                values = values.relu() if network.activation == "relu" else values.tanh()
        errors = [loss_error(loss, values, block.targets, self._quantiles)]
        for layer, values in zip(self._layers[:0:-1], inputs[:0:-1], strict=True):
            back = errors[0] @ layer[:, : values.shape[1]].contiguous()
            errors.insert(0, _through(network.activation, back, values))
        return errors, inputs, self._sums.clip(errors, inputs, block.squared_norms, block.weights)

    def _rounds_alike(self) -> bool:
        """Return whether synthetic records get the same bits in every place."""
        torch, size, width = load_torch(), self.size, self._network.widths[0]
        synthetic = Network((width, 1), intercept=False)
        self.parameters.copy_(torch.from_numpy(self._network.initial(0, 1.0)))
        long = self.total.new_full((size,), 16 * self._limit**2)  # said to be so long that clipping acts
        once, labels = torch.ones_like(long), torch.zeros_like(long, dtype=torch.int64)
        # the own loss may round as well; the squared one hides no bit of an output
        for i, loss in enumerate((self._loss, *[Loss("squared")] * (1 + 12 // self._network.widths[-1]))):
            row = torch.from_numpy(synthetic.initial(1 + i, math.sqrt(width))).to(self.parameters)
            target = labels if loss.name == "cross_entropy" else once / 2
            block = DeviceRecords(row.expand(size, width).contiguous(), long, target, once)
            errors, inputs, factors = self._errors(loss, block)
            if not all(bool((values == values[:1]).all()) for values in (*errors, *inputs, factors)):
                return False
        return True


class DeviceBatchSums:
    """Sums of clipped gradients on the device over records in CPU memory.

    Each batch is copied to the device block by block.

    ``batch`` is the public expected number of records.
    """

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str, batch: float, device: str) -> None:
        torch, nobody = load_torch(), EngineBlock.build(np.empty((0, network.shapes[0][1]), dtype=dtype), np.empty(0))
        there = DeviceRecords.of(nobody, network, check_device(device))
        self._sums = _DeviceSums(network, loss, there, clip_norm, dtype, batch)
        kinds = there.rows.dtype, torch.float64, torch.int64 if loss.name == "cross_entropy" else there.rows.dtype
        shapes = (self._sums.size, network.widths[0]), *[(self._sums.size,)] * 3
        columns = [there.rows.new_zeros(s, dtype=k) for s, k in zip(shapes, (*kinds, torch.float64), strict=True)]
        self._block, self._uploads = DeviceRecords(*columns), list(map(Upload, columns))

    def clipped(self, parameters: Array, records: EngineBlock, persons: NDArray[np.int64] | None) -> Array:
        """Return the weighted sum over the batch (None: all) at these parameters."""
        sums, owners = self._sums, records.owners
        rows = None if persons is None else owners.rows_of(persons)
        count = len(records) if rows is None else len(rows)
        check_batch(count, most=sums.size * _MOST_BLOCKS)
        sums.parameters.copy_(load_torch().from_numpy(np.array(parameters)))  # what was sent may be read-only
        sums.total.zero_()
        held = records.rows[:, : self._block.rows.shape[1]], records.squared_norms, records.targets, owners.weights
        for start in range(0, count, sums.size):
            here = slice(start, min(count, start + sums.size))
            size = here.stop - start
            for upload, values in zip(self._uploads, held, strict=True):
                upload.next[:size] = values[here if rows is None else rows[here]]
                upload.next[size:] = 0  # padding, of weight zero
                upload.send()
            sums.add(self._block)
        total: Array = sums.total.cpu().numpy()
        return total.copy()


def _whole_products(rows: float) -> int:
    """Return the next block size that divides into equal products."""
    return whole_lanes(rows) if rows <= PRODUCT_ROWS else PRODUCT_ROWS * math.ceil(rows / PRODUCT_ROWS)


def _through(activation: str, back: Any, values: Any) -> Any:
    """Return gradients at an activation's inputs, from those at its outputs ``values``."""
    if activation == "relu":
        return load_torch().ops.aten.threshold_backward(back, values, 0)
    return back * (1 - values * values)


def loss_error(loss: Loss, z: Any, target: Any, quantiles: Any) -> Any:
    """Return the derivative of each record's loss in the outputs z (records, units).

    See `Loss.error`.
    """
    if loss.name == "cross_entropy":
        error = z.softmax(1)
        return error.scatter_add_(1, target[:, None], error.new_full((len(z), 1), -1))
    column = target[:, None].to(z.dtype)
    if loss.name == "logistic":
        return z.sigmoid() - column
    if loss.name == "squared":
        return (z - column) * 2
    if loss.name == "huber":
        return (z - column).clamp(-loss.huber_delta, loss.huber_delta)
    return (z > column).to(z.dtype) - quantiles


class Upload:
    """Copy an array to the device without waiting for the device.

    Of two arrays in pinned memory one is written while the other may still be on its way.
    """

    def __init__(self, into: Any) -> None:
        torch = load_torch()
        self._into, self._on_gpu, self._turn = into, into.device.type == "cuda", 0
        self._held = [torch.zeros(into.shape, dtype=into.dtype, pin_memory=self._on_gpu) for _ in range(2)]
        self._sent = [torch.cuda.Event() for _ in range(2)] if self._on_gpu else []
        self.next: Array = self._held[0].numpy()

    def send(self) -> None:
        """Copy ``next`` to the device.

        ``next`` is then another array, whose content is old.
        """
        self._into.copy_(self._held[self._turn], non_blocking=True)
        if self._on_gpu:
            self._sent[self._turn].record(load_torch().cuda.current_stream(self._into.device))
        self._turn = 1 - self._turn
        if self._on_gpu:
            self._sent[self._turn].synchronize()
        self.next = self._held[self._turn].numpy()


def _require_float64(device: Any) -> None:
    """Compare products with their exact values, to the precision that float64 has."""
    torch, count = load_torch(), 64
    powers = np.exp2(np.arange(count * count) * 37 % 80 - 40)  # large terms that cancel hide what is lost of small ones
    synthetic = Network((count, count), intercept=False)
    left, right = ((synthetic.initial(seed, 1.0) * powers).reshape(count, count) for seed in (1, 2))
    errors, values = (torch.from_numpy(numbers).to(device) for numbers in (left.T.copy(), right))
    product = errors.new_zeros((count, count))
    choose_sums(device, 1.0, intercept=False).add_product(product, errors, values, errors.new_ones(count))
    computed = product.cpu().numpy()
    allowed = count * 2.0**-53 * (np.abs(left) @ np.abs(right)) * (1 + 1e-9)
    for i in range(count):
        j = 7 * i % count
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(left[i].tolist(), right[:, j].tolist(), strict=True))
        if abs(Fraction(computed[i, j].item()) - exact) > Fraction(allowed[i, j].item()):
            raise ValueError(
                f"{device} does not multiply in float64, which the bound on the effect of one record needs; turn off "
                "its emulation, or train on the CPU (device=None)"
            )


def record_graph(work: Callable[[], object], device: Any) -> Callable[[], object]:
    """Return the work as one recorded CUDA graph; elsewhere the work itself.

    A short step spends most of its time on starting kernels.
    """
    if device.type != "cuda":
        return work
    cuda = load_torch().cuda
    aside = cuda.Stream(device)  # of this device, also where another is the current one: else nothing is recorded
    aside.wait_stream(cuda.current_stream(device))
    with cuda.stream(aside):
        work()  # libraries make their workspaces now, which a recording must not
    cuda.current_stream(device).wait_stream(aside)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=aside):
        work()
    replay: Callable[[], object] = graph.replay
    return replay
