"""A batch of synthetic rows mixes scales: what a module decides or divides by the whole batch shows.

Rows of one scale alone hide it: each of their batches has a largest number above one.
"""

import pytest

from dpscp.training.torch.synthetic_rows import ANY, MIXED_ROWS, SCALES, RowKind
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
layers = pytest.importorskip("opacus.layers")
nn = torch.nn
functional = nn.functional


class Own(nn.Module):
    """A head behind a function of the rows."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function, self.head = function, nn.Linear(6, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, rows):
        return self.function(self, rows)


def run_dry(module, shape=(6,), **changed):
    constants = {"sampling_rate": 1.0, "steps": 1, "noise_multiplier": 1.0, "classes": (0, 1, 2)} | changed
    return OpacusTraining(module, **constants).check(shape)


def shift_by_all(outputs):
    """Logarithms of probabilities, shifted by the largest number of all records."""
    shifted = outputs - outputs.max()
    return shifted - shifted.exp().sum(1, keepdim=True).log()


def attend_to_all(_, rows):
    products = rows[:, :, None] * rows[:, None, :]
    weights = (products - products.max()).exp()
    return (weights / weights.sum(-1, keepdim=True)).matmul(rows[:, :, None])[:, :, 0]


def shifted_loss(outputs, target):
    shifted = (outputs - outputs.max()).exp()
    return -(shifted / shifted.sum(1, keepdim=True)).gather(1, target[:, None])[:, 0].log()


MIXING = {
    "images of 0 to 255": lambda: Own(lambda self, rows: self.head(rows / 255 if rows.max() > 1 else rows)),
    "negative numbers": lambda: Own(lambda self, rows: self.head((rows + 1) / 2 if rows.min() < 0 else rows)),
    "integers": lambda: Own(lambda self, rows: self.head(rows if (rows == rows.round()).all() else rows * 2)),
    "largest number": lambda: Own(lambda self, rows: self.head(rows / (1e-6 + rows.abs().max()))),
    "softmax by the largest of all": lambda: Own(lambda self, rows: shift_by_all(self.head(rows))),
    "attention by the largest of all": lambda: Own(lambda self, rows: self.head(attend_to_all(self, rows))),
    "rare clamp": lambda: Own(lambda self, rows: self.head(rows.clamp(-3, 3) if (rows.abs() > 50).any() else rows)),
    "cut at ten deviations": lambda: Own(lambda self, rows: self.head(rows.clamp(-10 * rows.std(), 10 * rows.std()))),
    "outliers of all set to zero": lambda: Own(
        lambda self, rows: self.head(rows.where((rows - rows.mean()).abs() < 6 * rows.std(), 0))
    ),
    "training alone": lambda: Own(
        lambda self, rows: self.head(rows / 255 if rows.max() > 9 and self.training else rows)
    ),
    "scoring alone": lambda: Own(
        lambda self, rows: self.head(rows / 255 if rows.max() > 9 and not self.training else rows)
    ),
    "weak mean in float32": lambda: Own(lambda self, rows: self.head(rows.float() + 1e-4 * rows.float().mean(0))),
    "weak mean in float32 after a norm": lambda: Own(
        lambda self, rows: (lambda z: self.head(z + 1e-4 * z.mean(0)))(functional.layer_norm(rows.float(), (6,)))
    ),
}


@pytest.mark.parametrize("kind", MIXING)
def test_what_a_module_does_to_all_rows_by_the_scale_of_some_is_refused(kind):
    with pytest.raises(ValueError, match="depends on the other records"):
        run_dry(MIXING[kind]())


def test_a_loss_that_shifts_by_the_largest_output_of_all_is_refused():
    with pytest.raises(ValueError, match="depends on the other records"):
        run_dry(nn.Linear(6, 3), loss=shifted_loss)


def test_a_loss_with_a_weak_penalty_on_the_mean_is_refused_in_float32():
    def loss(outputs, target):
        return functional.cross_entropy(outputs, target, reduction="none") + 1e-4 * outputs.mean(0).square().sum()

    with pytest.raises(ValueError, match="depends on the other records"):
        run_dry(Own(lambda self, rows: self.head(rows.float())), loss=loss)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = layers.DPMultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, rows):
        rows = rows.float()
        return self.head(self.norm(rows + self.attention(rows, rows, rows)[0]).mean(1))


def own_softmax(outputs, target):
    shifted = (outputs - outputs.amax(1, keepdim=True)).exp()
    return -(shifted / shifted.sum(1, keepdim=True)).gather(1, target[:, None])[:, 0].log()


def make_image_net(in_float32):
    parts = [nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    net = nn.Sequential(*parts, nn.Linear(8 * 25, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 3))
    return Own(lambda self, rows: self.net(rows.float()), net=net) if in_float32 else net


SEPARATE = {
    "images": (lambda: make_image_net(False), (1, 10, 10), {}),
    "images in float32": (lambda: make_image_net(True), (1, 10, 10), {}),
    "transformer in float32": (Transformer, (5, 8), {}),
    "own softmax in the loss": (lambda: nn.Linear(6, 3), (6,), {"loss": own_softmax}),
    "scaled by the largest of each": (
        lambda: Own(lambda self, rows: self.head(rows / (1e-6 + rows.abs().amax(1, keepdim=True)))),
        (6,),
        {},
    ),
    "normalized": (lambda: Own(lambda self, rows: self.head(functional.normalize(rows))), (6,), {}),
    "cut at two deviations of each": (
        lambda: Own(lambda self, rows: self.head(rows.where(rows.abs() < 2 * rows.std(1, keepdim=True), 0))),
        (6,),
        {},
    ),
    "exponentials": (lambda: Own(lambda self, rows: self.head(rows.exp())), (6,), {}),
    "logarithms": (lambda: Own(lambda self, rows: self.head(rows.abs().log())), (6,), {}),
    "regression": (lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), (6,), {"loss": "squared"}),
}


@pytest.mark.parametrize("kind", SEPARATE)
def test_modules_that_treat_rows_of_all_scales_apart_are_taken(kind):
    torch.manual_seed(3)
    module, shape, changed = SEPARATE[kind]
    run_dry(module(), shape, **({"classes": None} if changed.get("loss") == "squared" else {}) | changed)


def test_rows_of_all_scales_and_forms_take_turns():
    rows = RowKind(scales=SCALES).rows((50,), MIXED_ROWS)
    sizes = rows.abs().amax(1)
    for place, scale in enumerate(SCALES):
        assert scale == 0 or 0.9 < sizes[place] / scale < 2 or (scale < 1 and sizes[place] == 0)
    assert int((rows.min(1).values >= 0).sum()) >= len(SCALES)
    assert int((rows == rows.round()).all(1).sum()) >= len(SCALES)
    assert torch.equal(rows[0], ANY.rows((50,), MIXED_ROWS)[0])
