"""Models of transformers, timm and peft with random weights: traced, isolated, trained, saved.

`make test-all` installs them without their dependencies (tests/torch/requirements.txt).
"""

import importlib
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import dpscp as dp
from dpscp.torch.forms import RecordForm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
WORDS, LENGTH, RECORDS = 50, 12, 240


@pytest.fixture(scope="module", autouse=True)
def torchvision():
    """Import torchvision, whose operations are missing beside a build of torch for other devices."""
    pytest.importorskip("transformers")
    kept = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(9):
        try:
            importlib.import_module("torchvision")
            break
        except ModuleNotFoundError:
            break
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            assert missing is not None
            kept.define(f"{missing[1]}(Tensor a, Tensor b, float c) -> Tensor")
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
    yield
    del kept


def small(name):
    """Return a model with random weights."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "num_labels": 2}
    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if name == "BERT":
        config = transformers.BertConfig(**sizes, **layers, max_position_embeddings=32)
        return transformers.BertForSequenceClassification(config)
    if name.startswith("GPT-2"):
        more = {"pad_token_id": 0} if "padding" in name else {}
        config = transformers.GPT2Config(**sizes, n_embd=16, n_layer=1, n_head=2, n_positions=32, **more)
        return transformers.GPT2ForSequenceClassification(config)
    if name == "Llama":
        return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**sizes, **layers))
    if name == "ViT":
        config = transformers.ViTConfig(**layers, image_size=16, patch_size=8, num_labels=2)
        return transformers.ViTForImageClassification(config)
    if name == "LoRA":
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(small("BERT"), peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1))
    timm = pytest.importorskip("timm")
    if name == "ConvNeXt":
        return timm.create_model("convnext_atto", num_classes=2)
    if name == "Swin":
        return timm.create_model("swin_tiny_patch4_window7_224", num_classes=2, img_size=56)
    return timm.create_model("resnet18", num_classes=2)


TEXTS = (("input_ids", (LENGTH,), "integer"), ("attention_mask", (LENGTH,), "integer"))
SHAPES = {
    "BERT": TEXTS, "GPT-2": TEXTS, "GPT-2 with padding": TEXTS, "Llama": TEXTS, "LoRA": TEXTS,
    "ViT": (3, 16, 16), "ConvNeXt": (3, 32, 32), "Swin": (3, 56, 56),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_records_stay_apart_and_terms_are_gradients(trace, name):
    model = small(name)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    traced = trace(model, RecordForm.of(SHAPES[name], "float32"), size=4)
    if name in ("BERT", "GPT-2", "GPT-2 with padding", "Llama", "LoRA"):
        for value in traced.inputs:
            value[:, 0] = 1  # a mask of zeros alone has no attention
        changed = [value.clone() for value in traced.inputs]
        changed[0][1, 1:] = torch.arange(2, LENGTH + 1)
        before, after = traced.gradients()[0], traced.gradients(changed)[0]
        assert not torch.equal(before[1], after[1])
        assert torch.equal(before[[0, 2, 3]], after[[0, 2, 3]])
    else:
        assert traced.moved() == 0.0
    if name != "Swin":  # which draws the depth of its layers
        assert max(traced.errors()) < 1e-4


def texts():
    rng = np.random.default_rng(0)
    ids = rng.integers(2, WORDS, (RECORDS, LENGTH))
    mask = (np.arange(LENGTH) < rng.integers(4, LENGTH + 1, (RECORDS, 1))).astype(int)
    return {"input_ids": ids * mask, "attention_mask": mask}, (ids[:, 0] > WORDS // 2).astype(int)


def classifier(model, **changed):
    training = dp.training.TorchDPSGD(model, sampling_rate=0.3, steps=4, optimizer="adam", learning_rate=0.01)
    settings = {"epsilon": 8.0, "delta": 1e-3, "classes": [0, 1], "n_records": RECORDS, "random_state": 0}
    return dp.PrivateConformalClassifier(training, **settings | changed)


@pytest.mark.parametrize("name", ["BERT", "GPT-2 with padding"])
def test_texts_train_predict_and_are_saved(name, tmp_path):
    inputs, labels = texts()
    fitted = classifier(small(name)).fit(inputs, labels)
    found = fitted.predict(inputs)
    fitted.save(tmp_path / "model")
    loaded = dp.load(tmp_path / "model", module=small(name))
    np.testing.assert_array_equal(loaded.predict(inputs), found)
    assert fitted.input_shape_ == TEXTS
    with pytest.raises(ValueError, match="records of shape"):
        fitted.predict({"input_ids": inputs["input_ids"]})
    wrong = inputs["input_ids"].copy()
    wrong[3, 2] = WORDS
    with pytest.raises(ValueError, match=rf"input_ids must hold indices .* from 0 to {WORDS - 1}"):
        classifier(small(name)).fit({**inputs, "input_ids": wrong}, labels)


def test_every_form_of_the_same_texts_gives_the_same_fit():
    transformers, datasets = importlib.import_module("transformers"), pytest.importorskip("datasets")
    inputs, labels = texts()

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return RECORDS

        def __getitem__(self, place):
            found = {name: torch.from_numpy(values[place]) for name, values in inputs.items()}
            return found | {"labels": int(labels[place])}

    model = small("BERT")
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    table = datasets.Dataset.from_dict({**{k: v.tolist() for k, v in inputs.items()}, "label": labels.tolist()})
    forms = [
        (inputs, labels), (transformers.BatchEncoding(tensors), labels), ({**inputs, "labels": labels}, None),
        (table, None), (table, "label"), (Items(), None),
        (dp.sources.DatasetSource(Items()), None),
    ]  # fmt: skip
    expected = None
    for X, y in forms:
        fitted = classifier(model).fit(X, y)
        found = fitted.model_.outputs(np.concatenate(list(inputs.values()), axis=1))
        expected = found if expected is None else expected
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_adapters_move_and_the_rest_stays():
    inputs, labels = texts()
    model = small("LoRA")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    released = classifier(model).fit(inputs, labels).module_
    moved = {name for name, value in released.state_dict().items() if not torch.equal(value, before[name])}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert moved == trained
    assert any("lora_A" in name for name in moved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batch_norm_of_timm_is_refused_with_its_activation():
    with pytest.raises(ValueError, match=r"BatchNormAct2d|BatchNorm2d at 'bn1'.*GroupNorm"):
        dp.training.TorchDPSGD(small("resnet"))
    timm = importlib.import_module("timm")
    with pytest.raises(ValueError, match=r"BatchNormAct2d at .*GroupNorm.*because it has an activation"):
        dp.training.TorchDPSGD(timm.create_model("efficientnet_b0", num_classes=2))
