"""Train a private head on frozen features from public images.

Data: scikit-learn's 1,797 digits of 8 x 8 pixels; 500 of them serve as public images. Needs the extra ``dpscp[torch]``.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

import dpscp as dp


def backbone(images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.nn.Module:
    """Train on public images without privacy (BatchNorm is allowed here), drop the last layer and freeze the rest."""
    body = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 4 * 4, 32),
        torch.nn.Tanh(),
    )
    whole = torch.nn.Sequential(body, torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(whole(images), labels).backward()
        optimizer.step()
    return body.requires_grad_(False)  # frozen: the library keeps it in evaluation mode


def main(quick: bool) -> None:
    digits, labels = shuffle(*load_digits(return_X_y=True), random_state=0)  # the file is ordered by writer
    images = (digits.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    body = backbone(torch.from_numpy(images[:500]), torch.from_numpy(labels[:500]), steps=30 if quick else 100)
    X, y, new, truth = images[500:1400], labels[500:1400], images[1400:], labels[1400:]
    clf = dp.PrivateConformalClassifier(
        dp.training.TorchDPSGD(
            torch.nn.Sequential(body, torch.nn.Linear(32, 10)),
            steps=20 if quick else 60,
            sampling_rate=0.25,
            learning_rate=2.0,
        ),
        epsilon=1.0,
        guarantee="split",
        classes=list(range(10)),
        n_records=len(y),
    ).fit(X, y)
    _, sets = clf.predict_set(new)
    coverage, size = dp.metrics.coverage(truth, sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
    print(f"level 0.9: coverage {coverage:.4f} on {len(sets)} held-out, {size:.2f} labels of 10")
    print(f"accuracy {np.mean(clf.predict(new) == truth):.3f}, epsilon {clf.ledger_.epsilon(1e-5):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    main(parser.parse_args().quick)
