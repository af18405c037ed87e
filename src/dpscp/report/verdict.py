"""Judge a release in four lines: what is proven, how strong the privacy is, how useful it is, who is served worse.

The lines follow from the ledger, the certificates and public numbers. Where a release was measured, they also follow
from the private evaluation, or from one that is marked as not private.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from dpscp._base.format import at_least, at_most, format_epsilon, format_level, format_odds, format_rate, html_card
from dpscp.core.findings import Findings, Part, PrivateEstimate
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
# So many classes or groups are named.
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
        """How a page marks it: "good", "care" or "bad"."""
        if self in (Grade.PROVEN, Grade.STRONG, Grade.USEFUL, Grade.NOBODY):
            return "good"
        bad = (Grade.NOTHING, Grade.CONTRADICTED, Grade.WEAK, Grade.NONE, Grade.NOT_USEFUL, Grade.SOMEBODY)
        return "bad" if self in bad else "care"


@dataclass(frozen=True)
class Sentence:
    """Hold a sentence with places in braces, and the words that fill them."""

    pattern: str
    values: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, pattern: str, **values: Any) -> "Sentence":
        """Return a sentence whose places have these words."""
        return cls(pattern, tuple((name, str(value)) for name, value in values.items()))

    def __str__(self) -> str:
        return self.pattern.format(**dict(self.values))


@dataclass(frozen=True)
class Line:
    """Hold one line of a verdict."""

    title: str
    grade: Grade
    sentences: tuple[Sentence, ...]

    @property
    def reason(self) -> str:
        """The sentences of the line."""
        return " ".join(map(str, self.sentences))

    def __str__(self) -> str:
        return f"{self.title}: {self.grade}. {self.reason}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """Hold the four lines about a release.

    Attributes
    ----------
    proven : what is proven, and at which level.
    privacy : how strong the protection is: epsilon, delta against 1 / n, what an attacker finds.
    usefulness : the sets compared with the same answer for everybody.
    served_worse : classes and groups that are clearly covered less than the target.
    is_internal : whether a line has numbers that were computed without noise.
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
    """Judge a release by what is proven, and by what was measured.

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
    found = tuple(one.findings for one in (release.evaluation, evaluation) if one is not None)
    return Verdict(
        _judge_proof(release, found),
        _judge_privacy(release),
        _judge_usefulness(release, found),
        _judge_parts(release, found),
        any(not one.is_private for one in found),
    )


# ---- what is proven


def _judge_proof(release: Release, found: tuple[Findings, ...]) -> Line:
    title, ledger = TITLES["proven"], release.ledger
    spent = format_epsilon(ledger.epsilon(release.budget.delta, release.accountant))
    cost = {"epsilon": spent, "delta": f"{release.budget.delta:g}", "neighbors": ledger.neighbors}
    if ledger.non_private_stages:
        reasons = "; ".join(ledger.not_private_because)
        return Line(title, Grade.NOTHING, (Sentence.of("Neither promise is proven: {reasons}.", reasons=reasons),))
    below = [sentence for one in found for sentence in _contradictions(release, one)]
    promises = tuple(sentence for certificate in release.certificates for sentence in _promise(release, certificate))
    if ledger.seeded:
        text = "Privacy is not proven: the noise came from a seed. Fit without random_state to publish."
        grade = Grade.CONTRADICTED if below else Grade.TESTS_ONLY
        return Line(title, grade, (*below, Sentence.of(text), *promises))
    privacy = Sentence.of("Privacy: epsilon {epsilon} at delta {delta}, for {neighbors}.", **cost)
    if below:
        return Line(title, Grade.CONTRADICTED, (*below, privacy, *promises))
    is_certified = all(certificate.is_certified for certificate in release.certificates)
    return Line(title, Grade.PROVEN if is_certified else Grade.IN_PART, (privacy, *promises))


def _promise(release: Release, certificate: Certificate) -> tuple[Sentence, ...]:
    """Return the promise of one certificate, on average and of one release."""
    if certificate.void_because:
        return (Sentence.of("No coverage is proven: {reason}.", reason=certificate.void_because),)
    if not certificate.classes_declared:
        return (Sentence.of("No coverage is proven, because the list of labels was taken from the records."),)
    if certificate.promise is Promise.RISK:
        text = "Mean {loss} of {unit}: at most {proven}, on average over repeated studies."
        words = {"proven": at_most(certificate.risk), "loss": loss_name(release)}
    elif certificate.is_certified:
        text = "Coverage of {unit}: at least {proven}, on average over repeated studies (target {target}, {guarantee})."
        words = {"proven": at_least(certificate.coverage)}
    else:
        text = (
            "Coverage of {unit}: {target} is expected and not proven ({guarantee}). At least {proven} is proven, on "
            "average over repeated studies."
        )
        words = {"proven": at_least(certificate.coverage)}
    about = certificate.about.replace("each group", "each class") if release.groups_are_classes else certificate.about
    names = {"unit": about, "guarantee": certificate.guarantee}
    promise = Sentence.of(text, target=format_level(certificate.target), **names, **words)
    return promise, _one_release(certificate)


def loss_name(release: Release) -> str:
    """Return what is small on average, where the promise is about a loss."""
    if release.kind != "multilabel":
        return "loss"
    return "loss by wrong labels" if release.certificate.terms.running_maximum else "loss by missed labels"


def _one_release(certificate: Certificate) -> Sentence:
    """Return what is known about a single release.

    Theory: Result I
    """
    level, confidence = certificate.terms.release_level, certificate.terms.release_confidence
    is_risk = certificate.promise is Promise.RISK
    if not level or confidence is None:
        verb = "lose somewhat more" if is_risk else "cover somewhat less"
        return Sentence.of(f"A single release may {verb}.")
    if is_risk:
        text = "{odds} such releases have a mean loss of at most {level}."
        return Sentence.of(text, odds=format_odds(confidence), level=at_most(1 - level))
    text = "{odds} such releases cover at least {level}."
    return Sentence.of(text, odds=format_odds(confidence), level=at_least(level))


def _contradictions(release: Release, found: Findings) -> Iterator[Sentence]:
    """Return a sentence for each level whose whole interval is below what a single release reaches.

    The promise is an average. Where no level of a single release is known, the average takes its place.
    """
    text = (
        "The evaluation shows coverage of at most {high}, below the promise of at least {promise}. Do not rely on "
        "these sets before you know the reason."
    )
    for certificate, rate in zip(release.certificates, found.coverages, strict=True):
        terms = certificate.terms
        reached = (
            certificate.coverage if terms.release_level is None else min(terms.release_level, certificate.coverage)
        )
        if rate.interval[1] < reached:
            yield Sentence.of(text, high=at_most(rate.interval[1]), promise=at_least(certificate.coverage))
            yield Sentence.of(WHY_BELOW)


# ---- how strong the privacy is


def _judge_privacy(release: Release) -> Line:
    title, ledger, delta = TITLES["privacy"], release.ledger, release.budget.delta
    if ledger.non_private_stages:
        text = "NOT private: a step used the records without protection, so an attacker may find everybody."
        return Line(title, Grade.NONE, (Sentence.of(text),))
    epsilon, n = ledger.epsilon(delta, release.accountant), release.certificate.terms.n_units
    grade = Grade.STRONG if epsilon <= _STRONG else Grade.MODERATE if epsilon <= _MODERATE else Grade.WEAK
    words = {"epsilon": format_epsilon(epsilon), "delta": f"{delta:g}", "n": "" if n is None else f"{n:,}"}
    comparison = "above 10" if epsilon > _MODERATE else "above 1" if epsilon > _STRONG else "at most 1"
    text = "Epsilon {epsilon} is {comparison}, for {neighbors}."
    sentences = [Sentence.of(text, comparison=comparison, neighbors=ledger.neighbors, **words)]
    if n is not None and delta <= 1 / n:
        sentences.append(Sentence.of("Delta {delta} is at most 1 / n, for n = {n}.", **words))
    elif n is not None:
        grade = Grade.WEAK
        text = "Delta {delta} is above 1 / n, for n = {n}: it would permit publishing one random record."
        sentences.append(Sentence.of(text, **words))
    found = ", ".join(at_most(1 - float(ledger.tradeoff(alarms))) for alarms in ATTACKS)
    text = "An attacker with {alarms} false alarms finds at most {found} of the {unit}s."
    alarms = ", ".join(format_level(rate) for rate in ATTACKS)
    sentences.append(Sentence.of(text, alarms=alarms, found=found, unit=ledger.unit.protected))
    if ledger.seeded:
        first = Sentence.of("NOT private: the noise came from a seed, so this run protects nobody. With secret noise:")
        return Line(title, Grade.NONE, (first, *sentences))
    return Line(title, grade, tuple(sentences))


# ---- how useful it is


def _judge_usefulness(release: Release, found: tuple[Findings, ...]) -> Line:
    title = TITLES["usefulness"]
    useless = _explain_useless(release)
    if release.groups_are_classes:
        found = tuple(map(_for_each_class, found))
    sentences = [sentence for one in found for sentence in _comparisons(one)]
    if useless is not None:
        advice = [Sentence.of(c.advice) for c in release.certificates[:1] if c.advice]
        return Line(title, Grade.NOT_USEFUL, (Sentence.of(useless), *advice, *sentences))
    if not found:
        text = "No evaluation tells whether the sets are small, or better than the same answer for everybody."
        if release.kind in ("scores", "losses"):
            text = "No evaluation tells whether this threshold is of use."
        return Line(title, Grade.NOT_MEASURED, (Sentence.of(text),))
    grade = _grade_usefulness(found[-1])
    if grade is not Grade.USEFUL:
        text = "This does not show that the sets are better than the same answer for everybody."
        sentences.append(Sentence.of(text))
    return Line(title, grade, tuple(sentences))


def _explain_useless(release: Release) -> str | None:
    """Return why a promise of the release is of no use; None if all may be of use."""
    for certificate, thresholds in zip(release.certificates, release.thresholds.T, strict=True):
        if certificate.void_because or not certificate.classes_declared:
            continue  # the first line says that nothing is proven
        if not certificate.terms.finite_threshold_expected or np.isinf(thresholds).all():
            return FULL_SETS
        if certificate.is_vacuous:
            return _TOO_LITTLE
    return None


def _for_each_class(found: Findings) -> Findings:
    """Compare with a constant answer of the same coverage of each class: it has each label that often."""
    rates = [part.rate for part in found.parts if part.kind == "class"]
    low, high = (sum(rate.interval[side] for rate in rates) for side in (0, 1))
    return replace(found, constant_size=PrivateEstimate(sum(rate.estimate for rate in rates), (low, high)))


def _grade_usefulness(found: Findings) -> Grade:
    """Compare an evaluation with the same answer for everybody."""
    if found.set_size is None:
        return Grade.NOT_MEASURED
    is_smaller = found.constant_size is not None and found.set_size.interval[1] < found.constant_size.interval[0]
    if found.accuracy is None or found.most_frequent is None:
        return Grade.USEFUL if is_smaller else Grade.NOT_SHOWN
    if found.accuracy.interval[0] > found.most_frequent.interval[1] or is_smaller:
        return Grade.USEFUL
    return Grade.NOT_USEFUL if found.accuracy.interval[1] < found.most_frequent.estimate else Grade.NOT_SHOWN


def _comparisons(found: Findings) -> Iterator[Sentence]:
    """Return what an evaluation says about the sets beside the same answer for everybody."""
    if found.accuracy is not None and found.most_frequent is not None:
        text = "The prediction is right for {accuracy}; the most frequent label would be right for {most}."
        rates = {"accuracy": found.accuracy.estimate, "most": found.most_frequent.estimate}
        yield Sentence.of(text, **{name: format_rate(rate) for name, rate in rates.items()})
    if found.set_size is not None:
        kind = "width of an interval" if found.accuracy is None else "number of labels in a set"
        yield Sentence.of("Mean {kind}: {size}.", kind=kind, size=f"{found.set_size.estimate:.3g}")
    if found.constant_size is not None:
        text = "With the same coverage, the same answer for everybody would need {size}."
        yield Sentence.of(text, size=f"{found.constant_size.estimate:.3g}")
    if found.full is not None and found.empty is not None:
        shares = {"full": format_rate(found.full.estimate), "empty": format_rate(found.empty.estimate)}
        yield Sentence.of("Full sets, which exclude nothing: {full}. Empty sets: {empty}.", **shares)
        if found.empty.interval[0] > 0:
            yield Sentence.of("An empty set says that no answer looks typical; treat it as an alarm, and ask a person.")
    if not found.is_private:
        yield Sentence.of(WITHOUT_NOISE)


# ---- who is served worse


def _judge_parts(release: Release, found: tuple[Findings, ...]) -> Line:
    title, target, level = TITLES["served_worse"], release.certificate.target, release.certificate.terms.release_level
    is_grouped, scope = release.group_values is not None, _scope(release)
    # a single release may cover a group with a promise of its own less than the target, as the first line says
    reached = min(target, level) if is_grouped and level else target
    measured = [(part, one) for one in found for part in one.parts]
    low = [(part, one) for part, one in measured if part.rate.interval[1] < reached]
    low.sort(key=lambda pair: pair[0].rate.estimate)
    if not measured:
        return Line(title, Grade.NOT_MEASURED, (Sentence.of(scope),))
    rare = [] if release.groups_are_classes else [_rare_classes(one) for one in found if one.rare_classes]
    rare = [] if any(part.kind == "class" for part, _ in low) else rare  # their advice is the same
    if not low:
        text = "No class or group is clearly below {reached}."
        return Line(title, Grade.NOBODY, (Sentence.of(text, reached=at_least(reached)), Sentence.of(scope), *rare))
    sentences = [_low_part(part) for part, _ in low[:_MOST_PARTS]]
    if len(low) > _MOST_PARTS:
        sentences.append(Sentence.of("And {count} more.", count=len(low) - _MOST_PARTS))
    sentences.append(Sentence.of("The target is {target}.", target=format_level(target)))
    advice = "Find the reason before you use these sets." if is_grouped else _advice(low[0][0])
    sentences += [Sentence.of(advice), *rare]
    if any(not one.is_private for _, one in low):
        sentences.append(Sentence.of(WITHOUT_NOISE))
    return Line(title, Grade.SOMEBODY, tuple(sentences))


def _scope(release: Release) -> str:
    """Return for whom the promise holds."""
    if release.group_values is None:
        return "The promise is an average over everybody, so a rare class or group may be served far worse."
    if release.groups_are_classes:
        return "The promise holds for each class."
    return "The promise holds for each group of the fit."


def _rare_classes(found: Findings) -> Sentence:
    """Return a hint for classes with few records."""
    text = 'Under 10 % of the records: {names}. groups="label" gives each class a promise of its own.'
    return Sentence.of(text, names=", ".join(found.rare_classes))


def _low_part(part: Part) -> Sentence:
    covered = f"{100 * part.rate.estimate:.0f}"
    return Sentence.of("Not for {kind} {name}: {covered} of 100.", kind=part.kind, name=part.name, covered=covered)


def _advice(part: Part) -> str:
    """Return what gives the lowest part a promise of its own."""
    if part.kind == "class":
        return 'Fit with groups="label" for a promise to each class.'
    return "Fit with groups for a promise to each group."
