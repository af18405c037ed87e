"""Events: what was released with how much noise, and the JSON form of that.

Helpers for the events of dp-accounting, and the events that it lacks. An event states what was released and with how
much noise. ``accounting`` computes the cost. All helpers take public numbers only. Neighbors differ by one added or
removed record.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attr
import numpy as np
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from dpscp._base.checks import check_count, check_fraction, check_nonnegative, check_positive, check_probability
from dpscp.exceptions import UnsupportedEventError

# A ledger with several parallel stages has one history for each combination of parts; typical ledgers have about five.
_MOST_HISTORIES = 64
# Far above any real noise scale or number of steps, and far below the largest float of an accountant.
_LARGEST_COUNT = 10**18
# The field of dp-accounting that has another name in JSON.
_THEIRS, _OURS = "sampling_probability", "sampling_rate"
_NAMES: dict[type[DpEvent], str] = {}
_READERS: dict[str, tuple[type[DpEvent], Callable[..., DpEvent]]] = {}


@attr.frozen
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Discrete Gaussian noise of scale ``sigma`` on an integer statistic.

    Exactly rho-zCDP with rho = (sensitivity / sigma)^2 / 2. Its trade-off curve lies slightly below that of the
    continuous Gaussian, so it has its own privacy loss distribution.

    Attributes
    ----------
    sigma : int
        The noise scale.
    sensitivity : int
        The largest change of the statistic when one record is added or removed.
    """

    sigma: int
    sensitivity: int = 1


@attr.frozen
class ApproximateDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """A mechanism of which only an (epsilon, delta) guarantee is known.

    Attributes
    ----------
    epsilon, delta : float
    """

    epsilon: float
    delta: float = 0.0


@attr.frozen
class ParallelDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Mechanisms on disjoint parts: each record is used by one of ``events``.

    The cost is that of the most expensive part, not the sum (parallel composition of f-DP).

    Assumes: the part is a fixed function of the record itself, or is drawn for each record on its own.

    Attributes
    ----------
    events : tuple of DpEvent
        The event of each part.
    """

    events: tuple[DpEvent, ...] = attr.field(converter=tuple)


@attr.frozen
class SecretSplitDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Two mechanisms; each record is secretly assigned to one of them.

    Each record is assigned to ``held_out`` with probability ``fraction``, otherwise to ``training``. ``held_out`` may
    use the output of ``training``. The cost is that of the mixture, which is below that of the more expensive part.

    Assumes: the assignment and everything that depends on it stay secret. In particular, no exact size of a part is
    published, used or named in a message. A size may be released with noise by ``held_out`` or ``training``, which then
    pay for it.

    Attributes
    ----------
    training, held_out : DpEvent
    fraction : float
        The probability that a record is held out.

    Theory: The secret split
    """

    training: DpEvent
    held_out: DpEvent
    fraction: float


def checked_count(name: str, value: object) -> int:
    """Return a positive integer that no accountant turns into infinity."""
    count = check_count(name, value)
    if count > _LARGEST_COUNT:
        raise ValueError(f"{name} must be at most {_LARGEST_COUNT:g}")
    return count


def _repeated(event: DpEvent, count: int) -> DpEvent:
    count = checked_count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def gaussian_event(noise_multiplier: float, count: int = 1) -> DpEvent:
    """Return the event of ``count`` releases with continuous Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        The noise scale divided by the sensitivity.
    count : int

    Returns
    -------
    DpEvent
    """
    return _repeated(GaussianDpEvent(check_positive("noise_multiplier", noise_multiplier)), count)


def dpsgd_event(noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """Return the event of DP-SGD: noisy gradient sums over Poisson samples.

    Parameters
    ----------
    noise_multiplier : float
        The noise scale divided by the clip norm.
    sampling_rate : float
        The probability that a record enters a batch; 1 is full-batch descent.
    steps : int

    Returns
    -------
    DpEvent

    Paper: Algorithm 3 [alg:dp-sgd]
    """
    check_positive("noise_multiplier", noise_multiplier)
    sampling_rate = check_fraction("sampling_rate", sampling_rate)
    if sampling_rate == 1:
        return gaussian_event(noise_multiplier, steps)
    step = PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(float(noise_multiplier)))
    return SelfComposedDpEvent(step, checked_count("steps", steps))


def discrete_gaussian_event(sigma: int, sensitivity: int = 1, count: int = 1) -> DpEvent:
    """Return the event of integer releases with discrete Gaussian noise.

    Parameters
    ----------
    sigma : int
        The noise scale.
    sensitivity, count : int

    Returns
    -------
    DpEvent
    """
    return _repeated(
        DiscreteGaussianDpEvent(checked_count("sigma", sigma), checked_count("sensitivity", sensitivity)), count
    )


def approximate_dp_event(epsilon: float, delta: float = 0.0) -> DpEvent:
    """Return the event of a step that is only known to be (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float

    Returns
    -------
    DpEvent
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, got {delta:g}; use non_private_event() for a step without privacy")
    return ApproximateDpEvent(epsilon, delta)


def non_private_event() -> DpEvent:
    """Return the event of a step without privacy: epsilon becomes infinite.

    Returns
    -------
    DpEvent
    """
    return NonPrivateDpEvent()


def compose(*events: DpEvent) -> DpEvent:
    """Return one event for several that ran one after the other on the same records.

    Parameters
    ----------
    *events : DpEvent

    Returns
    -------
    DpEvent
    """
    for event in events:
        require_event(event)
    if len(events) == 1:
        return events[0]
    return ComposedDpEvent(tuple(events)) if events else NoOpDpEvent()


def parallel(*events: DpEvent) -> DpEvent:
    """Return one event for several that ran on disjoint parts of the records.

    Parameters
    ----------
    *events : DpEvent
        See ``ParallelDpEvent`` for the condition on the parts.

    Returns
    -------
    DpEvent
    """
    distinct = tuple(dict.fromkeys(map(frozen_event, events)))
    if not distinct:
        return NoOpDpEvent()
    return distinct[0] if len(distinct) == 1 else ParallelDpEvent(distinct)


def secret_split(training: DpEvent, held_out: DpEvent, fraction: float) -> DpEvent:
    """Return one event for two mechanisms on secret random parts of the records.

    Parameters
    ----------
    training, held_out : DpEvent
    fraction : float
        The probability that a record is held out; see ``SecretSplitDpEvent``.

    Returns
    -------
    DpEvent

    Theory: The secret split
    """
    check_probability("fraction", fraction)
    return SecretSplitDpEvent(frozen_event(training), frozen_event(held_out), float(fraction))


def secret_parts(training: DpEvent, *held_out: tuple[DpEvent, float]) -> DpEvent:
    """Return one event for several mechanisms on random parts of the records.

    One secret coin of a record's own, with a face for each part, decides. The mixture of three is a secret split whose
    held-out side is a secret split again.

    Parameters
    ----------
    training : DpEvent
        The event of the part that the shares leave.
    *held_out : tuple of (DpEvent, float)
        The event of each other part and the probability that a record is in it.

    Returns
    -------
    DpEvent

    Theory: The secret split
    """
    (event, share), *others = held_out
    if not others:
        return secret_split(training, event, share)
    together = share + sum(fraction for _, fraction in others)
    inner = secret_parts(event, *((other, fraction / together) for other, fraction in others))
    return secret_split(training, inner, together)


def require_event(event: object) -> DpEvent:
    """Return ``event`` if it is an event; raise ``TypeError`` otherwise."""
    if not isinstance(event, DpEvent):
        raise TypeError(f"event must be a DpEvent (see dpscp.privacy.dpsgd_event), got {type(event).__name__}")
    return event


def _parts(event: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events inside an event; none for a basic or an unknown one.

    The event under sampling is part of one basic event: it cannot be accounted for alone.
    """
    kind = type(require_event(event))
    if kind is SelfComposedDpEvent:
        return (event.event,) if check_count("count", event.count, minimum=0) else ()
    if kind is SecretSplitDpEvent:
        return event.training, event.held_out
    return tuple(event.events) if kind in (ComposedDpEvent, ParallelDpEvent) else ()


def _with_parts(event: DpEvent, parts: tuple[DpEvent, ...]) -> DpEvent:
    """Return the event with other events inside, in a tuple."""
    kind = type(event)
    if kind in (ComposedDpEvent, ParallelDpEvent):
        return kind(parts)
    if kind is SecretSplitDpEvent:
        return SecretSplitDpEvent(parts[0], parts[1], event.fraction)
    return SelfComposedDpEvent(parts[0], event.count) if parts else event


def frozen_event(event: DpEvent) -> DpEvent:
    """Return the event with tuples for lists, so that it is immutable and hashable."""
    return _with_parts(event, tuple(map(frozen_event, _parts(event))))


def disclose_parts(event: DpEvent) -> DpEvent:
    """Return the event as if the part of every record were public.

    This is an upper bound that needs no mixture.
    """
    parts = tuple(map(disclose_parts, _parts(event)))
    return ParallelDpEvent(parts) if type(event) is SecretSplitDpEvent else _with_parts(event, parts)


def composed_parts(event: DpEvent) -> list[DpEvent]:
    """Return the events that ``event`` composes, or the event itself."""
    if not isinstance(event, ComposedDpEvent):
        return [event]
    return [part for inner in event.events for part in composed_parts(inner)]


def parallel_parts(event: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events of which each record is used by exactly one.

    This is the event itself if it has no parallel parts.
    """
    if isinstance(event, SecretSplitDpEvent):
        # the held-out side of three parts is a secret split again
        held_out = event.held_out
        rest = parallel_parts(held_out) if isinstance(held_out, SecretSplitDpEvent) else (held_out,)
        return event.training, *rest
    return tuple(event.events) if isinstance(event, ParallelDpEvent) else (event,)


def describe_event(event: DpEvent) -> str:
    """Describe the event; the noise is given in units of one record's effect."""
    match event:
        case GaussianDpEvent():
            return f"one noisy sum (noise scale: {event.noise_multiplier:.4g} times one record)"
        case DiscreteGaussianDpEvent():
            return f"one noisy count (noise scale: {event.sigma / event.sensitivity:.4g} times one record)"
        case SelfComposedDpEvent():
            return f"{event.count} times {describe_event(event.event)}"
        case PoissonSampledDpEvent():
            return f"{describe_event(event.event)}, over a random share of {event.sampling_probability:.3g}"
        case ComposedDpEvent():
            return "; ".join(map(describe_event, event.events))
        case ParallelDpEvent():
            return " | ".join(map(describe_event, event.events))
        case SecretSplitDpEvent():
            return f"{describe_event(event.training)} | {describe_event(event.held_out)} (secret assignment)"
    return type(event).__name__.removesuffix("DpEvent")


def basic_events(event: DpEvent) -> frozenset[DpEvent]:
    """Return every basic event that may have used some record."""
    parts = _parts(event)
    if not parts:
        return frozenset().union(*possible_histories(event))
    return frozenset().union(*map(basic_events, parts))


def possible_histories(event: DpEvent) -> list[Counter[DpEvent]]:
    """Return the counts of basic events for each choice of parallel parts, each once.

    A record lies in exactly one part, so the cost of ``event`` is the largest over the list.
    """
    found = _HISTORIES.get(type(require_event(event)), _one_history)(event)
    return list({frozenset(history.items()): history for history in found}.values())


def _one_history(event: DpEvent) -> list[Counter[DpEvent]]:
    return [Counter({event: 1})]


def _gaussian_histories(event: GaussianDpEvent) -> list[Counter[DpEvent]]:
    # events of dp-accounting accept zero noise, which releases the exact statistic
    exact = check_nonnegative("noise_multiplier", event.noise_multiplier) == 0
    return [Counter({NonPrivateDpEvent() if exact else event: 1})]


def _sampled_histories(event: PoissonSampledDpEvent) -> list[Counter[DpEvent]]:
    if NonPrivateDpEvent() in basic_events(event.event):
        return [Counter({NonPrivateDpEvent(): 1})]
    if not isinstance(event.event, GaussianDpEvent):
        raise UnsupportedEventError(
            f"the event under Poisson sampling must be Gaussian, got {type(event.event).__name__}; use gaussian_event"
        )
    return [Counter({event: 1})]


def _secret_histories(event: SecretSplitDpEvent) -> list[Counter[DpEvent]]:
    """Return the mixture for each choice inside the two parts."""
    choices = [possible_histories(part) for part in (event.training, event.held_out)]
    if any(NonPrivateDpEvent() in history for histories in choices for history in histories):
        return [Counter({NonPrivateDpEvent(): 1})]
    first, second = ([_as_one_event(history) for history in histories] for histories in choices)
    return [Counter({SecretSplitDpEvent(a, b, event.fraction): 1}) for a in first for b in second]


def _as_one_event(history: Counter[DpEvent]) -> DpEvent:
    """Return a history as one event."""
    return compose(*(event if count == 1 else SelfComposedDpEvent(event, count) for event, count in history.items()))


def _repeated_histories(event: SelfComposedDpEvent) -> list[Counter[DpEvent]]:
    if not _parts(event):
        return [Counter()]
    inner = possible_histories(event.event)
    if len(inner) > 1 and event.count > 1:
        raise ValueError("a parallel event cannot be repeated; add each repetition as its own ledger entry")
    return [Counter({e: k * event.count for e, k in h.items()}) for h in inner]


def _composed_histories(event: ComposedDpEvent) -> list[Counter[DpEvent]]:
    together: list[Counter[DpEvent]] = [Counter()]
    for part in event.events:
        choices = possible_histories(part)
        # k fits with the same two parts have k + 1 histories, not 2^k
        together = list({frozenset((h := a + b).items()): h for a in together for b in choices}.values())
        if len(together) > _MOST_HISTORIES:
            raise UnsupportedEventError(
                f"the parallel parts have more than {_MOST_HISTORIES} combinations; merge some ledger entries"
            )
    return together


def _parallel_histories(event: ParallelDpEvent) -> list[Counter[DpEvent]]:
    return [history for part in event.events for history in possible_histories(part)] or [Counter()]


_HISTORIES: dict[type[DpEvent], Callable[[Any], list[Counter[DpEvent]]]] = {
    GaussianDpEvent: _gaussian_histories,
    NoOpDpEvent: lambda _event: [Counter()],
    PoissonSampledDpEvent: _sampled_histories,
    SecretSplitDpEvent: _secret_histories,
    SelfComposedDpEvent: _repeated_histories,
    ComposedDpEvent: _composed_histories,
    ParallelDpEvent: _parallel_histories,
}


def register_event(name: str, cls: type[DpEvent], read: Callable[..., DpEvent] | None = None) -> None:
    """Register a class of basic events, so that ledgers and files accept it.

    Parameters
    ----------
    name : str
        The type in JSON.
    cls : type
        A class of attrs. Class and name must not be registered yet; ``ValueError`` otherwise.
    read : callable, optional
        Build an event from all its fields, by name; default: ``cls``.
    """
    if cls in _NAMES or name in _READERS:
        raise ValueError(f"{cls.__name__} or the name {name!r} is registered already; choose another")
    _NAMES[cls], _READERS[name] = name, (cls, read or cls)


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Return the event as plain JSON values."""
    name = _NAMES.get(type(require_event(event)))
    if name is None:
        known = ", ".join(_READERS)
        raise ValueError(f"{type(event).__name__} has no JSON form; use register_event, or one of: {known}")
    fields = attr.asdict(event, recurse=False)
    return {"type": name} | {_OURS if field == _THEIRS else field: _to_json(value) for field, value in fields.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_dict(value)
    if isinstance(value, list | tuple):
        return [event_to_dict(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def event_from_dict(data: Mapping[str, Any]) -> DpEvent:
    """Return the event that ``event_to_dict`` wrote; raise ``ValueError`` otherwise."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ValueError("an event must be a JSON object with the key 'type'")
    kind = data["type"]
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"the event type is unknown; it must be one of: {', '.join(_READERS)}")
    cls, read = _READERS[kind]
    fields = {_THEIRS if key == _OURS else key: _from_json(value) for key, value in data.items() if key != "type"}
    # a missing field must not get the default of a function
    if set(fields) != {field.name for field in attr.fields(cls)}:
        raise ValueError(f"a {kind!r} event must have exactly the fields of {cls.__name__}")
    try:
        return read(**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a {kind!r} event has a wrong field: {error}") from None


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(event_from_dict, value))
    return event_from_dict(value) if isinstance(value, Mapping) else value


def _several(events: Any) -> tuple[DpEvent, ...]:
    # an empty string or object would be read as "nothing was spent"
    if not isinstance(events, tuple):
        raise ValueError("events must be a list")
    return events


def _self_composed(event: DpEvent, count: int) -> DpEvent:
    return SelfComposedDpEvent(require_event(event), checked_count("count", count))


def _sampled(event: DpEvent, sampling_probability: float) -> DpEvent:
    return PoissonSampledDpEvent(check_fraction("sampling_rate", sampling_probability), require_event(event))


register_event("gaussian", GaussianDpEvent, gaussian_event)
register_event("discrete_gaussian", DiscreteGaussianDpEvent, discrete_gaussian_event)
register_event("approximate_dp", ApproximateDpEvent, approximate_dp_event)
register_event("no_op", NoOpDpEvent)
register_event("non_private", NonPrivateDpEvent)
register_event("repeated", SelfComposedDpEvent, _self_composed)
register_event("poisson_sampled", PoissonSampledDpEvent, _sampled)
register_event("composed", ComposedDpEvent, lambda events: ComposedDpEvent(_several(events)))
register_event("parallel", ParallelDpEvent, lambda events: ParallelDpEvent(_several(events)))
register_event("secret_split", SecretSplitDpEvent, secret_split)
