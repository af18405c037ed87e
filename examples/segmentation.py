"""Control the share of a lesion's pixels that a mask misses, with one private threshold for all scans.

Data: synthetic images of 24 x 24 pixels with one round lesion each, and a model that is unsure at its edge. The losses
are a table: one row for each scan, one column for each public threshold. Patients have up to three scans each.
"""

import argparse

import numpy as np

import dpscp as dp

THRESHOLDS = np.linspace(0, 1, 64)


def scans(patients: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lesion masks, the model's doubt about each pixel, and the patient of each scan."""
    ids = np.repeat(np.arange(patients), rng.integers(1, 4, size=patients))
    place = np.indices((24, 24)).reshape(2, 1, -1)
    center, radius = rng.uniform(6, 18, size=(2, len(ids), 1)), rng.uniform(2, 6, size=(len(ids), 1))
    distance = np.sqrt(((place - center) ** 2).sum(axis=0)) - radius
    blur = rng.uniform(0.3, 2.0, size=(patients, 1))[ids]
    doubt = 1 / (1 + np.exp(-(distance + rng.normal(size=distance.shape)) / blur))
    return distance <= 0, doubt, ids


def missed_pixels(lesions: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """The share of each lesion that its mask misses, at every threshold."""
    missed = [(lesions & (doubt > t)).sum(axis=1) for t in THRESHOLDS]
    return np.stack(missed, axis=1) / lesions.sum(axis=1, keepdims=True)


def draw(path: str, lesions: np.ndarray, doubt: np.ndarray, masks: np.ndarray) -> None:
    """Draw eight scans: bright where the model sees a lesion, its true edge, and the mask around it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.3), layout="constrained")
    for place, axis in enumerate(figure.subplots(2, 4).flat):
        axis.imshow(1 - doubt[place].reshape(24, 24), cmap="gray")
        axis.contour(lesions[place].reshape(24, 24), levels=[0.5], colors="tab:orange", linewidths=2)
        axis.contour(masks[place].reshape(24, 24), levels=[0.5], colors="tab:blue", linewidths=1)
        axis.set_axis_off()
    figure.savefig(path)


def main(quick: bool, figure: str | None) -> None:
    rng, patients = np.random.default_rng(0), 400 if quick else 1500
    lesions, doubt, ids = scans(patients, rng)
    released = dp.control_risk(
        missed_pixels(lesions, doubt),
        thresholds=THRESHOLDS,
        alpha=0.1,
        epsilon=1.0,
        delta=1e-6,
        persons=ids,
        rows_per_person=3,
        n_persons=patients,
    )
    new_lesions, new_doubt, new_ids = scans(patients, rng)
    masks = new_doubt <= released.threshold
    losses = (new_lesions & ~masks).sum(axis=1) / new_lesions.sum(axis=1)
    by_patient = np.bincount(new_ids, weights=losses) / np.bincount(new_ids)
    size = masks.sum() / new_lesions.sum()
    print(f"risk 0.1: mean loss {by_patient.mean():.4f} on {patients} held-out, masks {size:.2f} times the lesions")
    print(f"epsilon {released.ledger.epsilon(1e-6):.3f} at delta 1e-06 for a patient with all scans")
    if figure:
        draw(figure, new_lesions, new_doubt, masks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer patients")
    parser.add_argument("--figure", help="picture file to write")
    main(**vars(parser.parse_args()))
