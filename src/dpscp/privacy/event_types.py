"""The events that dp-accounting lacks; ``events`` makes them and reads them."""

import attr
from dp_accounting.dp_event import DpEvent


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
class BoundedRangeDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """A mechanism whose privacy losses lie within an interval of fixed length.

    One record changes the log-probabilities of all outputs by amounts that differ by at most ``loss_range``. Such a
    mechanism is (loss_range, 0)-DP and loss_range^2 / 8-zCDP.

    An exponential mechanism with weights exp(-rate u(e)) has loss range rate * r, if one record changes u by amounts
    within r of each other over all e. In general r is twice the sensitivity. It is the sensitivity itself if an added
    record never lowers u.

    Attributes
    ----------
    loss_range : float
        The length of the interval.
    """

    loss_range: float


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
