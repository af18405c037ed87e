"""The demo: private prediction sets on real personal records, with a report to open.

Data: the RAND Health Insurance Experiment (20,190 person-years, public domain, bundled with statsmodels). Task: how many
outpatient visits will a person make in a year (none, 1-2, 3-5, 6 or more), from insurance and health variables. All bounds below come from the
study's code book, not from the data.
"""

import argparse
import html
import time
from pathlib import Path

import numpy as np
import statsmodels.api as sm

import dpscp as dp

CLASSES = ["none", "1-2", "3-5", "6 or more"]
# public ranges: log coinsurance, individual deductible, log annual incentive, log maximum expenditure, physical
# limitation, number of chronic diseases, and self-rated health good / fair / poor
BOUNDS = {
    "lncoins": (0, 4.7),
    "idp": (0, 1),
    "lpi": (0, 7.2),
    "fmde": (0, 8.5),
    "physlm": (0, 1),
    "disea": (0, 60),
    "hlthg": (0, 1),
    "hlthf": (0, 1),
    "hlthp": (0, 1),
}
EPSILON, DELTA, LEVEL = 1.0, 1e-6, 0.9

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>dpscp demo report</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; overflow-wrap: anywhere; }}
.bar {{ background: #3b7dd8; height: 1rem; display: inline-block; vertical-align: middle; margin-right: .5rem; }}
.note {{ color: #888; }} h1 {{ line-height: 1.2; }}
</style></head><body>
<h1>How many doctor visits next year?</h1>
<p>A private model of outpatient visits, trained on {n_train} person-years of the RAND Health Insurance Experiment, with prediction sets.</p>
<h2>What is promised</h2>
<p><b>Privacy.</b> The release is differentially private with epsilon {epsilon:.3f} (budget {budget}) at delta {delta:g},
for adding or removing one record.</p>
<p><b>Coverage.</b> {certificate}</p>
<h2>What held-out records show <span class="note">(evaluation, outside the promise)</span></h2>
<table><tr><th>coverage on {n_test} held-out records</th><td>{coverage:.3f} (target {level})</td></tr>
<tr><th>labels in a set, on average</th><td>{size:.2f} of {n_classes}</td></tr>
<tr><th>sets with a single label</th><td>{single:.1%}</td></tr></table>
<table><tr><th>labels in the set</th><th>share of held-out records</th></tr>{sizes}</table>
<h2>The ledger</h2>
<table><tr><th>stage</th><th>what happened</th></tr>{entries}</table>
<h2>Declared public</h2><table>{facts}</table>
<h2>What this does not protect</h2>
<p>Whether the study was run, the facts listed above, and anything a person tells about themselves elsewhere. Another fit on the same
records spends again.</p>
<p class="note">dpscp {version}; fitted in {seconds:.1f} s.</p></body></html>"""


def main() -> None:
    """Fit, check on held-out records, write the report, print three lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo_report.html"), help="where to write the report")
    arguments = parser.parse_args()

    frame = sm.datasets.randhie.load_pandas().data
    X = frame[list(BOUNDS)]
    y = np.array(CLASSES)[np.digitize(frame["mdvis"], [0.5, 2.5, 5.5])]
    held_out = np.random.default_rng(0).permutation(len(y)) < 5000

    start = time.perf_counter()
    clf = dp.PrivateConformalClassifier(
        epsilon=EPSILON,
        delta=DELTA,
        confidence_level=LEVEL,
        classes=CLASSES,
        feature_bounds=tuple(np.array(list(BOUNDS.values()), dtype=float).T),
        n_records=int((~held_out).sum()),
    ).fit(X[~held_out], y[~held_out])
    seconds = time.perf_counter() - start

    _, sets = clf.predict_set(X[held_out])
    sets = sets[:, :, 0]
    coverage = dp.metrics.coverage(y[held_out], sets, classes=clf.classes_)
    size = dp.metrics.efficiency(sets)
    shares = np.bincount(sets.sum(axis=1), minlength=len(CLASSES) + 1) / len(sets)
    cell = html.escape
    page = PAGE.format(
        n_train=clf.ledger_.public_facts["n_records"],
        n_test=len(sets),
        n_classes=len(CLASSES),
        epsilon=clf.ledger_.epsilon(DELTA),
        budget=EPSILON,
        delta=DELTA,
        level=LEVEL,
        certificate=cell(str(clf.certificate_)),
        coverage=coverage,
        size=size,
        single=dp.metrics.informativeness(sets),
        sizes="".join(
            f'<tr><td>{k}</td><td><span class="bar" style="width:{12 * s:.2f}rem"></span>{s:.1%}</td></tr>'
            for k, s in enumerate(shares)
        ),
        entries="".join(f"<tr><td>{cell(e.stage)}</td><td>{cell(e.note)}</td></tr>" for e in clf.ledger_.entries),
        facts="".join(
            f"<tr><th>{cell(k.replace('_', ' '))}</th><td>{cell(str(v))}</td></tr>"
            for k, v in clf.ledger_.public_facts.items()
        ),
        version=dp.__version__,
        seconds=seconds,
    )
    arguments.output.write_text(page, encoding="utf-8")
    print(f"privacy:  epsilon {clf.ledger_.epsilon(DELTA):.3f} at delta {DELTA:g} (budget {EPSILON})")
    print(
        f"coverage: {coverage:.3f} on {len(sets)} held-out records, at least {clf.certificate_.coverage:.2f} proven "
        f"({clf.certificate_.guarantee}); {size:.2f} of {len(CLASSES)} labels in a set"
    )
    print(f"report:   {arguments.output.resolve()}")


if __name__ == "__main__":
    main()
