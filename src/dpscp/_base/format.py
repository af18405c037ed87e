"""Format numbers: bounds are rounded so that they stay true.

Observed rates are rounded to the nearest digit.
"""

import html
import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

# Levels are multiples of 1e-6. 1 - alpha in floats may differ by this much from the intended decimal.
_FLOAT_ERROR = 1e-12


def at_least(level: float, digits: int = 1) -> str:
    """Format a proven lower bound in percent, rounded down.

    >>> at_least(0.9996), at_least(0.9), at_least(1 - 0.3)
    ('99.9%', '90.0%', '70.0%')
    """
    unit = 10 ** (digits + 2)
    return f"{math.floor((level + _FLOAT_ERROR) * unit) / unit:.{digits}%}"


def at_most(level: float, digits: int = 1) -> str:
    """Format a proven upper bound in percent, rounded up.

    >>> at_most(0.0604), at_most(0.05)
    ('6.1%', '5.0%')
    """
    unit = 10 ** (digits + 2)
    return f"{math.ceil((level - _FLOAT_ERROR) * unit) / unit:.{digits}%}"


def format_level(level: float) -> str:
    """Format a requested level in percent with all its digits.

    >>> format_level(0.9), format_level(0.9995)
    ('90%', '99.95%')
    """
    return f"{100 * level:.6g}%"


def format_rate(rate: float, digits: int = 1) -> str:
    """Format an observed or expected share in percent; only 1 becomes 100 %.

    >>> format_rate(0.9046), format_rate(0.99996), format_rate(1.0)
    ('90.5%', '99.996%', '100.0%')
    """
    while rate < 1 and float(f"{100 * rate:.{digits}f}") >= 100 and digits < 15:
        digits += 1
    return f"{rate:.{digits}%}"


def format_odds(probability: float) -> str:
    """Format a requested probability as a fraction in words.

    >>> format_odds(0.95), format_odds(0.999)
    ('19 of 20', '999 of 1000')
    """
    share = Fraction(probability).limit_denominator(10**6)
    return f"{share.numerator} of {share.denominator}"


def format_epsilon(epsilon: float) -> str:
    """Format a spent epsilon, rounded up: the text is never below the number.

    >>> format_epsilon(0.9993), format_epsilon(0.12341), format_epsilon(1.0000000001), format_epsilon(0.00012341)
    ('1.000', '0.124', '1.001', '0.000124')
    """
    return _round_decimal(epsilon, _last_place(epsilon), ROUND_CEILING)


def format_remaining_epsilon(epsilon: float) -> str:
    """Format a remaining epsilon, rounded down: the text is never above the number.

    >>> format_remaining_epsilon(0.9999), format_remaining_epsilon(0.25), format_remaining_epsilon(-0.0001)
    ('0.999', '0.250', '-0.001')
    >>> format_remaining_epsilon(1.2345e-9)
    '1.23E-9'
    """
    return _round_decimal(epsilon, _last_place(epsilon), ROUND_FLOOR)


def _last_place(epsilon: float) -> int:
    """Return the power of ten of the last printed digit.

    A tiny number is printed with three digits.
    """
    return math.floor(math.log10(epsilon)) - 2 if 0 < epsilon < 1e-3 else -3


def _round_decimal(value: float, place: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    # round the shortest decimal of this float, so that 0.1 becomes 0.100
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(place), rounding))


def format_number(value: float) -> str:
    """Format a requested number with all its digits.

    >>> format_number(1.0), format_number(1e-6), format_number(1.00045)
    ('1', '1e-06', '1.00045')
    """
    return repr(float(value)).removesuffix(".0")


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table for a terminal, in columns of equal width.

    >>> text_table(["stage", "cost"], [["training", "1"]])
    ['stage     cost', '--------------', 'training  1']
    """
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(titles))]
    table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [table[0], "-" * len(table[0]), *table[1:]]


def html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a notebook; every text is escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_paragraph(text: str) -> str:
    """Return a paragraph for a notebook; the text is escaped.

    >>> html_paragraph("1 < 2")
    '<p>1 &lt; 2</p>'
    """
    return f"<p>{html.escape(text)}</p>"


# Colors are transparent greys and the text color of the notebook, so that one card serves light and dark schemes.
_CARD = (
    "flex:1 1 19em;min-width:0;max-width:34em;box-sizing:border-box;border:1px solid rgba(128,128,128,.4);"
    "border-radius:8px;padding:10px 14px;background:rgba(128,128,128,.07);color:inherit;text-align:left"
)
_WARNING = "border-left:4px solid #d97706;background:rgba(217,119,6,.14);padding:4px 8px;margin:6px 0"


def html_card(
    title: str, headline: str, texts: Sequence[str], warnings: Sequence[str] = (), details: Sequence[str] = ()
) -> str:
    """Return one promise as a card for a notebook.

    Every text is escaped, except ``details``, which are elements.

    The details are folded.
    """
    shown = [
        f'<div style="opacity:.75;font-size:.9em">{html.escape(title)}</div>',
        f'<div style="font-size:1.45em;font-weight:650;line-height:1.3">{html.escape(headline)}</div>',
        *(f'<p style="margin:6px 0">{html.escape(text)}</p>' for text in texts),
        *(f'<p style="{_WARNING}">{html.escape(text)}</p>' for text in warnings),
    ]
    if details:
        folded = f'<div style="overflow-x:auto">{"".join(details)}</div>'
        shown.append(f'<details><summary style="cursor:pointer">Details</summary>{folded}</details>')
    return f'<div class="dpscp-card" style="{_CARD}">{"".join(shown)}</div>'


def html_cards(cards: Sequence[str]) -> str:
    """Return cards side by side, or below each other where there is little width.

    >>> html_cards(["<div>a</div>"])
    '<div style="display:flex;flex-wrap:wrap;gap:10px;align-items:flex-start"><div>a</div></div>'
    """
    return f'<div style="display:flex;flex-wrap:wrap;gap:10px;align-items:flex-start">{"".join(cards)}</div>'
