"""Numbers as text: a promise is rounded to the side on which it stays true, an observation to the nearest digit."""

import html
import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

# Levels are multiples of 1e-6; 1 - alpha in floats may lie this far beside the decimal that is meant.
_FLOAT_HAIR = 1e-12


def at_least(level: float, digits: int = 1) -> str:
    """A proven lower bound in percent, rounded down.

    >>> at_least(0.9996), at_least(0.9), at_least(1 - 0.3)
    ('99.9%', '90.0%', '70.0%')
    """
    unit = 10 ** (digits + 2)
    return f"{math.floor((level + _FLOAT_HAIR) * unit) / unit:.{digits}%}"


def at_most(level: float, digits: int = 1) -> str:
    """A proven upper bound in percent, rounded up.

    >>> at_most(0.0604), at_most(0.05)
    ('6.1%', '5.0%')
    """
    unit = 10 ** (digits + 2)
    return f"{math.ceil((level - _FLOAT_HAIR) * unit) / unit:.{digits}%}"


def asked(level: float) -> str:
    """A level that somebody chose, with the digits it was chosen with.

    >>> asked(0.9), asked(0.9995)
    ('90%', '99.95%')
    """
    return f"{100 * level:.6g}%"


def observed(rate: float, digits: int = 1) -> str:
    """A share that was counted or is expected, to the nearest digit; no promise. Only all is 100 %.

    >>> observed(0.9046), observed(0.99996), observed(1.0)
    ('90.5%', '99.996%', '100.0%')
    """
    while rate < 1 and float(f"{100 * rate:.{digits}f}") >= 100 and digits < 15:
        digits += 1
    return f"{rate:.{digits}%}"


def odds(probability: float) -> str:
    """A chosen probability as so many of so many.

    >>> odds(0.95), odds(0.999)
    ('19 of 20', '999 of 1000')
    """
    share = Fraction(probability).limit_denominator(10**6)
    return f"{share.numerator} of {share.denominator}"


def format_epsilon(epsilon: float) -> str:
    """What a release spent at most, rounded up: the text read back is never below the number.

    >>> format_epsilon(0.9993), format_epsilon(0.12341), format_epsilon(1.0000000001), format_epsilon(0.00012341)
    ('1.000', '0.124', '1.001', '0.000124')
    """
    tiny = 0 < epsilon < 1e-3
    return _rounded(epsilon, math.floor(math.log10(epsilon)) - 2 if tiny else -3, ROUND_CEILING)


def remaining_epsilon(epsilon: float) -> str:
    """What is left at least, rounded down: the text read back is never above the number.

    >>> remaining_epsilon(0.9999), remaining_epsilon(0.25), remaining_epsilon(-0.0001)
    ('0.999', '0.250', '-0.001')
    """
    return _rounded(epsilon, -3, ROUND_FLOOR)


def _rounded(value: float, place: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    # the shortest decimal that reads back as this float is what is rounded: 0.1 stays 0.100
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(place), rounding))


def chosen(value: float) -> str:
    """A number that somebody chose, with all its digits.

    >>> chosen(1.0), chosen(1e-6), chosen(1.00045)
    ('1', '1e-06', '1.00045')
    """
    return repr(float(value)).removesuffix(".0")


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal: titles, a rule, and the rows in columns of equal width.

    >>> text_table(["stage", "cost"], [["training", "1"]])
    ['stage     cost', '--------------', 'training  1']
    """
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(titles))]
    table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [table[0], "-" * len(table[0]), *table[1:]]


def html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a notebook; every text is escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_paragraph(text: str) -> str:
    """A paragraph for a notebook; the text is escaped.

    >>> html_paragraph("1 < 2")
    '<p>1 &lt; 2</p>'
    """
    return f"<p>{html.escape(text)}</p>"
