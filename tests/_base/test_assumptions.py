"""Assumptions are typed values: ledgers and certificates refuse sentences, and files hold codes."""

import json
import pickle
import re
from pathlib import Path

import pytest

import dpscp as dp
from dpscp._base import assumptions
from dpscp._base.assumptions import HELD_OUT, OVERLAPPING_GROUPS, OWN_SCORE
from dpscp.guarantees import Stability
from dpscp.guarantees.certificate import Terms
from dpscp.privacy import Assumption


def certificate(*assumed):
    return dp.Certificate("split", 0.9, 0.9, assumed, Terms())


def test_sentences_are_refused_wherever_assumptions_go():
    for make in (
        lambda text: dp.Ledger().assume(text),
        lambda text: dp.Ledger(assumptions=(text,)),
        lambda text: dp.Ledger(assumptions=text),
        certificate,
        lambda text: Stability(0.1, 0.1, (text,)),
        lambda text: Stability(0.1, 0.1, text),
    ):
        with pytest.raises(TypeError, match="Assumption"):
            make(OWN_SCORE.sentence)


def test_a_file_is_read_by_its_codes_alone():
    ledger = dp.Ledger().assume(OWN_SCORE, OVERLAPPING_GROUPS(3), Assumption.stated("my sensors are honest"))
    written = ledger.to_dict()
    for found in written["assumptions"]:
        found["sentence"] = "reworded"
    again = dp.Ledger.from_dict(json.loads(json.dumps(written)))
    assert again == ledger == pickle.loads(pickle.dumps(ledger))
    assert [a.sentence for a in again.assumptions] == [a.sentence for a in ledger.assumptions]
    promise = certificate(HELD_OUT, OVERLAPPING_GROUPS(2))
    written = promise.to_dict()
    for found in written["assumptions"]:
        found["sentence"] = "reworded"
    assert dp.Certificate.from_dict(json.loads(json.dumps(written))) == promise
    assert OVERLAPPING_GROUPS(2).sentence in str(promise)


@pytest.mark.parametrize(
    "data", [{"code": "hope"}, {"code": "own_score", "values": [1]}, {"code": "overlapping_groups"}, {}, "x"]
)
def test_unknown_codes_and_other_values_are_refused(data):
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        Assumption.from_dict(data)
    with pytest.raises(ValueError, match="ledger"):
        dp.Ledger.from_dict(dp.Ledger().to_dict() | {"assumptions": [data]})


def test_every_code_has_a_sentence_of_its_own():
    written = re.findall(r'= _(?:kind|fixed)\(\s*"(\w+)"', Path(assumptions.__file__).read_text())
    assert sorted(written) == sorted(assumptions._SENTENCES)
    assert len(set(assumptions._SENTENCES.values())) == len(written) > 40


def test_repeated_assumptions_count_once():
    assert dp.Ledger().assume(OWN_SCORE).assume(OWN_SCORE, HELD_OUT).assumptions == (OWN_SCORE, HELD_OUT)
