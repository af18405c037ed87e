"""Write a self-contained HTML report on a fitted estimator, with figures.

matplotlib and jinja2 are imported only when a page or a figure is made (``pip install 'dpscp[report]'``).
"""

from dpscp.report.numbers import Evaluation, evaluate, study_budget
from dpscp.report.page import html_report, write_report

__all__ = [
    "Evaluation",
    "evaluate",
    "html_report",
    "study_budget",
    "write_report",
]
