"""Train a small convolutional network on images privately, predict sets, save and load it.

Data: scikit-learn's 1,797 digits of 8 x 8 pixels. Needs the extra ``dpscp[torch]``.
"""

import argparse
import os
import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import dpscp as dp


def network() -> torch.nn.Module:
    """Return a network with GroupNorm in place of BatchNorm: a layer must not mix the records of a batch."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.GroupNorm(4, 16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 4 * 4, 10),
    )


def draw(path: str, images: np.ndarray, sets: np.ndarray) -> None:
    """Draw ten images, each under its prediction set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    for place, axis in enumerate(figure.subplots(2, 5).flat):
        axis.imshow(images[place, 0], cmap="gray_r")
        axis.set_title("{" + ", ".join(str(digit) for digit in np.flatnonzero(sets[place])) + "}")
        axis.set_axis_off()
    figure.savefig(path)


def main(quick: bool, figure: str | None) -> None:
    digits, labels = shuffle(*load_digits(return_X_y=True), random_state=0)  # the file is ordered by writer
    images = digits.reshape(-1, 1, 8, 8).astype(np.float32)
    n = 1400
    records = torch.utils.data.TensorDataset(torch.from_numpy(images[:n]), torch.from_numpy(labels[:n]))
    training = dp.training.TorchDPSGD(
        network(), steps=15 if quick else 60, sampling_rate=0.25, learning_rate=1.0, momentum=0.9
    )
    clf = dp.PrivateConformalClassifier(
        training,
        epsilon=4.0,
        confidence_level=0.95,
        guarantee="split",
        classes=list(range(10)),
        feature_bounds=(0, 16),  # public, the same for every pixel
        n_records=n,
    )
    clf.fit(records)
    _, sets = clf.predict_set(images[n:])
    coverage, size = dp.metrics.coverage(labels[n:], sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
    print(f"level 0.95: coverage {coverage:.4f} on {len(sets)} held-out, {size:.2f} labels of 10")
    print(f"accuracy {np.mean(clf.predict(images[n:]) == labels[n:]):.3f}, epsilon {clf.ledger_.epsilon(1e-5):.3f}")

    if figure:
        draw(figure, images[n:], sets[:, :, 0])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "digits.dpscp")
        clf.save(path)  # parameters, thresholds, ledger, certificate; no code and no record
        loaded = dp.load(path, module=network())
    print("the loaded sets are the same:", np.array_equal(loaded.predict_set(images[n:])[1], sets))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--figure", help="picture file to write")
    main(**vars(parser.parse_args()))
