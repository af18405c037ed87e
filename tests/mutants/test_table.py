"""The table keeps up with the code: every error can still be made, and the tests that must notice exist."""

from table import MUTANTS


def test_an_entry_says_what_is_wrong_and_who_notices():
    """Whether each still applies is checked by ``make lint``."""
    assert len({(m.where, m.edits) for m in MUTANTS}) == len(MUTANTS) >= 80
    assert all(m.tests and m.why for m in MUTANTS)
