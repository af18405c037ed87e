"""Frozen image features for BloodMNIST: torchvision's ImageNet ResNet-18 (the paper's backbone) and VGG-16's conv4_3.

    python -m experiments.features resnet18 --data DIR

writes ``features/bloodmnist_resnet18_512.npz`` beside the images: float16 features (17092, 512) and labels. The weights
come through torchvision's ordinary download. Where they cannot be had, the studies use features extracted before, and
every table says which.

Paper: Section 6.1 [subsec:real_data_classification]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import blood_images

__all__ = ["BACKBONES", "extract"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_SD = (0.229, 0.224, 0.225)
BATCH = 256
# pixels of one side after resizing; VGG's conv4_3 sees 8 x 8 pixels of input for one of output
SIDE = {"resnet18": 224, "vgg16": 112}
BACKBONES = tuple(SIDE)
# torchvision's vgg16().features: the ReLU after conv4_3 is layer 22
_VGG_CONV4_3 = 23


def extract(backbone: str, data: Path | None) -> Path:
    """Compute the features of all images once and return the file: 512 numbers an image, averaged over its pixels."""
    if backbone not in BACKBONES:
        raise ValueError(f"backbone must be one of {', '.join(BACKBONES)}, got {backbone!r}")
    folder = (Path.home() / ".medmnist" if data is None else data) / "features"
    path = folder / f"bloodmnist_{backbone}_512.npz"
    if path.exists():
        return path
    import torch

    images = blood_images(data)
    network = _network(backbone)
    mean = torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1)
    sd = torch.tensor(IMAGENET_SD).view(1, 3, 1, 1)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(images.X), BATCH):
            batch = torch.from_numpy(images.X[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
            batch = torch.nn.functional.interpolate(batch, size=SIDE[backbone], mode="bilinear", align_corners=False)
            maps = network((batch - mean) / sd)
            rows.append(maps.mean(dim=(2, 3)).numpy().astype(np.float16))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, features=np.concatenate(rows), labels=images.y)
    return path


def _network(backbone: str) -> Any:
    """The frozen part of the network, up to maps of 512 channels."""
    import torch
    from torchvision import models

    if backbone == "resnet18":
        whole = models.resnet18(weights=models.ResNet18_Weights.IMAGENET1K_V1)
        # everything before the average pool and the classification layer
        part = torch.nn.Sequential(*list(whole.children())[:-2])
    else:
        part = models.vgg16(weights=models.VGG16_Weights.IMAGENET1K_V1).features[:_VGG_CONV4_3]
    return part.eval()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.features", description=__doc__.splitlines()[0])
    parser.add_argument("backbone", choices=BACKBONES)
    parser.add_argument("--data", type=Path, default=None, help="folder with medmnist/bloodmnist.npz")
    arguments = parser.parse_args()
    print(extract(arguments.backbone, arguments.data))


if __name__ == "__main__":
    main()
