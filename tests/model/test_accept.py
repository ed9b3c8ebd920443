"""What a user accepts needs a reason."""

from __future__ import annotations

from typing import Any

import pytest

from alpha_mpi import Accept, Refused


def test_names_and_reasons() -> None:
    one = Accept(learner="l", missing={"a": "x"}, extra=["b", "c"], why="y")
    assert one == Accept(learner="l", missing={"a": "x"}, extra={"c": "y", "b": "y"})
    assert hash(one) == hash(Accept(learner="l", missing={"a": "x"}, extra={"b": "y", "c": "y"}))
    assert one != Accept(learner="l") and one != "l"
    assert repr(Accept(device="d")) == "Accept(device='d')"
    assert Accept().as_data() == {
        "learner": None, "contract": None, "device": None, "missing": {}, "extra": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        {"learner": ""},
        {"learner": " \n"},
        {"contract": True},
        {"device": "d" * 1025},
        {"learner": "\ud800"},
        {"missing": ["a"]},
        {"missing": {"a": ""}},
        {"missing": {"a": None}},
        {"missing": "a", "why": "x"},
        {"extra": 7},
        {"extra": ["a"], "why": ""},
        {"extra": {str(i): "r" * 1000 for i in range(600)}},
    ],
)
def test_no_reason_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Refused) as told:
        Accept(**given)
    assert told.value.code == "argument"


def test_a_name_that_no_region_has_is_refused() -> None:
    with pytest.raises(Refused) as told:
        Accept(extra={"": "x"})
    assert told.value.code == "name"
