"""Judge a release: proof, strength of privacy, usefulness, weak groups.

The verdict has one line for each of these. The lines follow from the ledger, the certificates and public numbers. With
an evaluation, they also follow from its numbers, which are private or marked as not private.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dpscp._base.format import at_least, at_most, format_epsilon, format_level, format_rate, html_card
from dpscp.core.evaluation import PrivateEstimate, PrivateEvaluation
from dpscp.guarantees import Certificate
from dpscp.guarantees.certificate import Promise
from dpscp.report.release import Release

# False-alarm rates at which the best attacker is described.
ATTACKS = (0.01, 0.05, 0.1)
# Tiers of epsilon, as in "How to DP-fy ML" (Ponomareva and others, 2023).
_STRONG, _MODERATE = 1.0, 10.0
# The lines, by their names in a statement.
TITLES = {
    "proven": "proven",
    "privacy": "privacy strength",
    "usefulness": "usefulness",
    "served_worse": "who is served worse",
}
# The largest number of classes or groups that a line names.
_MOST_PARTS = 5

FULL_SETS = "The promise holds only because the sets contain nearly every answer, so it is not useful."
_TOO_LITTLE = "Too little coverage is proven for the promise to be useful."
WITHOUT_NOISE = "These numbers were computed without noise and are not private."
WHY_BELOW = (
    "Possible reasons: the declared number is wrong; these records differ from those of the fit (other people, another "
    "time, an unshuffled table); or, if the difference is small, chance."
)


class Grade(StrEnum):
    """The outcome of one line in a word or two."""

    PROVEN = "both promises"
    IN_PART = "privacy only"
    NOTHING = "nothing"
    TESTS_ONLY = "not for use, a test"
    CONTRADICTED = "contradicted"
    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"
    NONE = "none"
    USEFUL = "useful"
    NOT_SHOWN = "not shown"
    NOT_USEFUL = "not useful"
    NOT_MEASURED = "not measured"
    SOMEBODY = "somebody"
    NOBODY = "nobody found"

    @property
    def tone(self) -> str:
        """The mark of the grade on a page: "good", "care" or "bad"."""
        if self in (Grade.PROVEN, Grade.STRONG, Grade.USEFUL, Grade.NOBODY):
            return "good"
        bad = (Grade.NOTHING, Grade.CONTRADICTED, Grade.WEAK, Grade.NONE, Grade.NOT_USEFUL, Grade.SOMEBODY)
        return "bad" if self in bad else "care"


@dataclass(frozen=True)
class Line:
    """Hold one line of a verdict."""

    title: str
    grade: Grade
    sentences: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The sentences of the line."""
        return " ".join(self.sentences)

    def __str__(self) -> str:
        return f"{self.title}: {self.grade}. {self.reason}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """Hold the four lines about a release.

    Attributes
    ----------
    proven : what is proven, and at which level.
    privacy : how strong the protection is: epsilon, delta against 1 / n, what an attacker finds.
    usefulness : the sets, compared with a constant answer for every record.
    served_worse : classes and groups whose coverage is clearly below the target.
    is_internal : whether a line contains numbers that were computed without noise.
    """

    proven: Line
    privacy: Line
    usefulness: Line
    served_worse: Line
    is_internal: bool

    @property
    def lines(self) -> tuple[Line, ...]:
        """The four lines in order."""
        return self.proven, self.privacy, self.usefulness, self.served_worse

    def to_dict(self) -> dict[str, Any]:
        """Return the lines as JSON values, in English."""
        lines = zip(TITLES, self.lines, strict=True)
        found = {name: {"grade": str(line.grade), "words": line.reason} for name, line in lines}
        return {**found, "has_exact_numbers": self.is_internal}

    def html_card(self) -> str:
        """Return the lines as a card for a notebook."""
        headline = f"{self.proven.grade}; privacy {self.privacy.grade}; usefulness {self.usefulness.grade}"
        return html_card("Verdict", headline, [str(line) for line in self.lines])

    def __str__(self) -> str:
        return "\n".join(str(line) for line in self.lines)


def judge(released: Any, evaluation: Any = None) -> Verdict:
    """Judge a release by its certificates and its evaluation.

    Parameters
    ----------
    released : Release, or fitted or loaded estimator
    evaluation : PrivateEvaluation, or an evaluation without privacy (``dpscp.report.evaluate``), of this release.
        The private evaluation of the fit itself is always used.

    Returns
    -------
    Verdict

    Privacy: nothing is computed from records here. Numbers of an evaluation without privacy are marked.
    """
    release: Release = released.as_release()
    found = tuple(one for one in (release.evaluation, evaluation) if one is not None)
    return Verdict(
        _judge_proof(release, found),
        _judge_privacy(release),
        _judge_usefulness(release, found),
        _judge_parts(release, found),
        any(not one.is_private for one in found),
    )


# ---- what is proven


def _judge_proof(release: Release, found: tuple[PrivateEvaluation, ...]) -> Line:
    title, ledger, delta = TITLES["proven"], release.ledger, release.budget.delta
    if ledger.non_private_stages:
        return Line(title, Grade.NOTHING, (f"Neither promise is proven: {'; '.join(ledger.not_private_because)}.",))
    below = [sentence for one in found for sentence in _contradictions(release, one)]
    promises = [sentence for certificate in release.certificates for sentence in _promise(release, certificate)]
    spent = format_epsilon(ledger.epsilon(delta, release.accountant))
    privacy = f"Privacy: epsilon {spent} at delta {delta:g}, for {ledger.neighbors}."
    is_certified = all(certificate.is_certified for certificate in release.certificates)
    grade = Grade.PROVEN if is_certified else Grade.IN_PART
    if ledger.seeded:
        privacy = "Privacy is not proven: the noise came from a seed. Fit without random_state to publish."
        grade = Grade.TESTS_ONLY
    return Line(title, Grade.CONTRADICTED if below else grade, (*below, privacy, *promises))


def _promise(release: Release, certificate: Certificate) -> Iterator[str]:
    """Return the promise of one certificate, on average and of one release."""
    if certificate.void_because:
        yield f"No coverage is proven: {certificate.void_because}."
        return
    if not certificate.classes_declared:
        yield "No coverage is proven, because the list of labels was taken from the records."
        return
    about = certificate.about.replace("each group", "each class") if release.groups_are_classes else certificate.about
    average, target, name = "on average over repeated studies", format_level(certificate.target), certificate.guarantee
    if certificate.promise is Promise.RISK:
        yield f"Mean {loss_name(release)} of {about}: at most {at_most(certificate.risk)}, {average}."
    elif certificate.is_certified:
        proven = f"at least {at_least(certificate.coverage)}, {average}"
        yield f"Coverage of {about}: {proven} (target {target}, {name})."
    else:
        yield f"Coverage of {about}: {target} is expected and not proven ({name})."
        yield f"At least {at_least(certificate.coverage)} is proven, {average}."
    yield f"{certificate.one_release[0].upper()}{certificate.one_release[1:]}."


def loss_name(release: Release) -> str:
    """Return the name of the loss that the promise bounds on average."""
    if release.kind != "multilabel":
        return "loss"
    return "loss by wrong labels" if release.certificate.terms.running_maximum else "loss by missed labels"


def _contradictions(release: Release, found: PrivateEvaluation) -> Iterator[str]:
    """Return a sentence for each level that an evaluation shows to be missed.

    Its whole interval is below the level of a single release. The promise is an average. If no level of a single
    release is known, the average is used instead.
    """
    for certificate, rate in zip(release.certificates, found.coverages, strict=True):
        proven, level = certificate.coverage, certificate.terms.release_level
        if rate.interval[1] < (proven if level is None else min(level, proven)):
            high, promise = at_most(rate.interval[1]), at_least(proven)
            yield f"The evaluation shows coverage of at most {high}, below the promise of at least {promise}."
            yield "Do not rely on these sets before you know the reason."
            yield WHY_BELOW


# ---- how strong the privacy is


def _judge_privacy(release: Release) -> Line:
    title, ledger, delta = TITLES["privacy"], release.ledger, release.budget.delta
    if ledger.non_private_stages:
        text = "NOT private: a step used the records without protection, so an attacker may find everybody."
        return Line(title, Grade.NONE, (text,))
    epsilon, n = ledger.epsilon(delta, release.accountant), release.certificate.terms.n_units
    grade, comparison = Grade.WEAK, "above 10"
    if epsilon <= _MODERATE:
        grade, comparison = (Grade.STRONG, "at most 1") if epsilon <= _STRONG else (Grade.MODERATE, "above 1")
    sentences = [f"Epsilon {format_epsilon(epsilon)} is {comparison}, for {ledger.neighbors}."]
    if n is not None and delta <= 1 / n:
        sentences.append(f"Delta {delta:g} is at most 1 / n, for n = {n:,}.")
    elif n is not None:
        grade, risk = Grade.WEAK, "it would permit publishing one random record"
        sentences.append(f"Delta {delta:g} is above 1 / n, for n = {n:,}: {risk}.")
    alarms = ", ".join(format_level(rate) for rate in ATTACKS)
    found = ", ".join(at_most(1 - float(ledger.tradeoff(rate))) for rate in ATTACKS)
    unit = ledger.unit.protected
    sentences.append(f"An attacker with {alarms} false alarms finds at most {found} of the {unit}s.")
    if ledger.seeded:
        first = "NOT private: the noise came from a seed, so this run protects nobody. With secret noise:"
        return Line(title, Grade.NONE, (first, *sentences))
    return Line(title, grade, tuple(sentences))


# ---- how useful it is


def _judge_usefulness(release: Release, found: tuple[PrivateEvaluation, ...]) -> Line:
    title, useless = TITLES["usefulness"], _explain_useless(release)
    constants = [_constant_size(release, one) for one in found]
    sentences = [text for one, constant in zip(found, constants, strict=True) for text in _comparisons(one, constant)]
    if useless is not None:
        advice = release.certificate.advice
        return Line(title, Grade.NOT_USEFUL, (useless, *([advice] if advice else []), *sentences))
    if not found:
        text = "No evaluation tells whether the sets are small, or better than a constant answer."
        if release.kind in ("scores", "losses"):
            text = "No evaluation tells whether this threshold is of use."
        return Line(title, Grade.NOT_MEASURED, (text,))
    grade = _grade_usefulness(found[-1], constants[-1])
    if grade is not Grade.USEFUL:
        sentences.append("This does not show that the sets are better than a constant answer.")
    return Line(title, grade, tuple(sentences))


def _explain_useless(release: Release) -> str | None:
    """Return the reason why a promise is useless; None if all may be useful."""
    for certificate, thresholds in zip(release.certificates, release.thresholds.T, strict=True):
        if certificate.void_because or not certificate.classes_declared:
            continue  # the first line states that nothing is proven
        if not certificate.terms.finite_threshold_expected or np.isinf(thresholds).all():
            return FULL_SETS
        if certificate.is_vacuous:
            return _TOO_LITTLE
    return None


def _constant_size(release: Release, found: PrivateEvaluation) -> PrivateEstimate | None:
    """Return the size of the constant answer with the same coverage.

    It is that of each class if classes are the groups.
    """
    if not release.groups_are_classes:
        return found.constant_size
    rates = found.by_class.values()
    low, high = (sum(rate.interval[side] for rate in rates) for side in (0, 1))
    return PrivateEstimate(sum(rate.estimate for rate in rates), (low, high))


def _grade_usefulness(found: PrivateEvaluation, constant: PrivateEstimate | None) -> Grade:
    """Compare an evaluation with the constant answer for every record."""
    is_smaller = constant is not None and found.set_size.interval[1] < constant.interval[0]
    if found.accuracy is None or found.most_frequent is None:
        return Grade.USEFUL if is_smaller else Grade.NOT_SHOWN
    if found.accuracy.interval[0] > found.most_frequent.interval[1] or is_smaller:
        return Grade.USEFUL
    return Grade.NOT_USEFUL if found.accuracy.interval[1] < found.most_frequent.estimate else Grade.NOT_SHOWN


def _comparisons(found: PrivateEvaluation, constant: PrivateEstimate | None) -> Iterator[str]:
    """Return sentences that compare the sets with one constant answer.

    The constant answer is the same for every record of the evaluation.
    """
    if found.accuracy is not None and found.most_frequent is not None:
        right, most = format_rate(found.accuracy.estimate), format_rate(found.most_frequent.estimate)
        yield f"The prediction is right for {right}; the most frequent label would be right for {most}."
    kind = "width of an interval" if found.accuracy is None else "number of labels in a set"
    yield f"Mean {kind}: {found.set_size.estimate:.3g}."
    if constant is not None:
        yield f"With the same coverage, a constant answer would need {constant.estimate:.3g}."
    if found.full is not None and found.empty is not None:
        full, empty = format_rate(found.full.estimate), format_rate(found.empty.estimate)
        yield f"Full sets, which exclude nothing: {full}. Empty sets: {empty}."
        if found.empty.interval[0] > 0:
            yield "An empty set says that no answer looks typical; treat it as an alarm, and ask a person."
    if not found.is_private:
        yield WITHOUT_NOISE


# ---- who is served worse


def _judge_parts(release: Release, found: tuple[PrivateEvaluation, ...]) -> Line:
    title, scope, target = TITLES["served_worse"], _scope(release), release.certificate.target
    parts = [part for one in found for part in one.parts]
    low = [part for part in parts if part[2].interval[1] < _reached(release, part[0])]
    if not parts:
        return Line(title, Grade.NOT_MEASURED, (scope,))
    hints = [] if release.groups_are_classes else [text for one in found for text in _rare_classes(one)]
    if not low:
        text = f"No class or group is clearly below {at_least(min(_reached(release, kind) for kind, _, _ in parts))}."
        return Line(title, Grade.NOBODY, (text, scope, *hints))
    low.sort(key=lambda part: part[2].estimate)
    sentences = [f"Not for {kind} {name}: {100 * rate.estimate:.0f} of 100." for kind, name, rate in low]
    if len(low) > _MOST_PARTS:
        sentences[_MOST_PARTS:] = [f"And {len(low) - _MOST_PARTS} more."]
    advice = "Fit with groups for a promise to each group."
    if release.group_values is not None:
        advice = "Find the reason before you use these sets."
    elif low[0][0] == "class":
        advice = 'Fit with groups="label" for a promise to each class.'
    sentences += [f"The target is {format_level(target)}.", advice]
    if all(kind != "class" for kind, _, _ in low):
        sentences += hints  # otherwise both give the same advice
    if any(not one.is_private for one in found):
        sentences.append(WITHOUT_NOISE)
    return Line(title, Grade.SOMEBODY, tuple(sentences))


def _reached(release: Release, kind: str) -> float:
    """Return the coverage that a class or group must reach.

    It is the promised level, or the target without a promise.
    """
    certificate = release.certificate
    is_promised = release.group_values is not None and release.groups_are_classes == (kind == "class")
    level = certificate.terms.release_level if is_promised else None
    return certificate.target if level is None else min(level, certificate.target)


def _scope(release: Release) -> str:
    """Return a sentence about the scope of the promise."""
    if release.group_values is None:
        return "The promise is an average over everybody, so a rare class or group may be served far worse."
    return f"The promise holds for each {'class' if release.groups_are_classes else 'group of the fit'}."


def _rare_classes(found: PrivateEvaluation) -> Iterator[str]:
    """Yield a hint for classes with few records."""
    if names := [str(name) for name, rate in found.class_shares.items() if 0 < rate.estimate < 0.1]:
        yield f'Under 10 % of the records: {", ".join(names)}. groups="label" gives each class a promise of its own.'
