"""Schema and identity: what is refused at declaration, and what makes two of them differ."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpha_mpi.canonical import canonical
from alpha_mpi.errors import Refused
from alpha_mpi.model.identity import Contract, Learner
from alpha_mpi.model.schema import NAME_LIMIT, Region, Schema, check_shape

NAMES = [
    "n" * 400,
    "漢" * 300,
    "a/b/../c;d e\nf",
    "../../etc/passwd",
    "\u202eright to left",
    "emoji 🦊",
    "e\u0301",
    "\u00e9",
    " ",
    "$key",
]


def schema(*regions: tuple[str, str, str, tuple[int, ...]]) -> Schema:
    return Schema.of(regions)


W = ("w", "array", "float32", (3, 4))
B = ("b", "array", "float64", ())
D = ("d", "document", "json", ())


@pytest.mark.parametrize("name", NAMES)
def test_r30_names_of_any_script_are_kept_unchanged(name: str) -> None:
    made = schema((name, "array", "int8", (2,)))
    assert made.regions[0].name == name
    assert json.loads(canonical(made.as_data()))[0][0] == name
    assert made.digest() != schema((name + "x", "array", "int8", (2,))).digest()


@pytest.mark.parametrize("name", ["", "\ud800", "a\udfffb", "n" * (NAME_LIMIT + 1), None, 3, b"w"])
def test_r30_names_that_cannot_be_kept_are_refused_on_one_line(name: object) -> None:
    with pytest.raises(Refused) as refusal:
        schema((name, "array", "int8", (2,)))  # type: ignore[arg-type]
    assert refusal.value.code == "name"
    text = str(refusal.value)
    assert "\n" not in text and text.isprintable()
    text.encode()


def test_r30_a_refusal_quotes_a_name_escaped() -> None:
    with pytest.raises(Refused) as refusal:
        schema(("two\nlines\u202e", "array", "int8", (2,)), ("two\nlines\u202e", "array", "int8", (2,)))
    assert refusal.value.code == "name"
    assert "two\\nlines\\u202e" in str(refusal.value).replace("\\\\", "\\")
    assert str(refusal.value).isprintable()


def test_names_that_look_alike_are_two_names() -> None:
    made = schema(("\u00e9", "array", "int8", ()), ("e\u0301", "array", "int8", ()))
    assert len(made.regions) == 2 and made.named("e\u0301") == made.regions[1]
    assert made.named("e") is None


@pytest.mark.parametrize(
    ("region", "code"),
    [
        (("w", "table", "int8", ()), "kind"),
        (("w", "array", "int3", ()), "format"),
        (("w", "array", "json", ()), "format"),
        (("w", "document", "int8", ()), "format"),
        (("w", "document", "json", (2,)), "format"),
        (("w", "array", "int8", (-1,)), "shape"),
        (("w", "array", "int8", (1 << 53,)), "shape"),
        (("w", "array", "int64", (1 << 50, 1)), "shape"),
        (("w", "array", "int8", (1 << 30, 1 << 30)), "shape"),
        (("w", "array", "int8", (1,) * 33), "shape"),
    ],
)
def test_regions_that_cannot_be_are_refused(region: tuple[str, str, str, tuple[int, ...]], code: str) -> None:
    with pytest.raises(Refused) as refusal:
        schema(region)
    assert (refusal.value.code, refusal.value.region) == (code, "w")


def test_shapes_are_whole_numbers() -> None:
    assert check_shape([3, 4]) == (3, 4) and check_shape(()) == ()
    for bad in (3, (3.0,), "34", None):
        with pytest.raises(Refused) as refusal:
            check_shape(bad)
        assert refusal.value.code == "shape"


def test_ordinals_are_positions() -> None:
    with pytest.raises(ValueError, match="ordinal"):
        Schema((Region(1, "w", "array", "int8", ()),))
    assert Region(0, "w", "array", "int8", (3, 4)).size == 12
    assert Region(0, "d", "document", "json", ()).is_document


def test_the_digest_is_that_of_the_declaration_in_order() -> None:
    every = [
        schema(W, B),
        schema(B, W),
        schema(W),
        schema(("w", "array", "float32", (4, 3)), B),
        schema(("w", "array", "bfloat16", (3, 4)), B),
        schema(("w", "per-owner", "float32", (3, 4)), B),
        schema(("v", "array", "float32", (3, 4)), B),
    ]
    assert len({s.digest() for s in every}) == len(every)
    assert schema(W, B).digest() == schema(W, B).digest()
    assert schema(W).digest("sha256").startswith("sha256:")


def test_a_difference_names_every_region() -> None:
    mine = schema(W, B, D, ("m", "array", "int8", (2,)))
    theirs = schema(B, ("w", "array", "bfloat16", (3, 5)), ("extra", "array", "int8", ()), D)
    lines = mine.difference(theirs)
    assert lines == [
        "'m' is missing",
        "'extra' is additional",
        "'w' has another format: expected float32, found bfloat16",
        "'w' has another shape: expected (3, 4), found (3, 5)",
        "another order: expected 'w', found 'b'",
    ]
    assert mine.difference(mine) == []


def test_learners_are_equal_by_their_labels_alone() -> None:
    a = Learner("mlp", rate=0.01, inputs={"set": "digits", "seed": 7}, width=64)
    assert a == Learner("mlp", 0.01, {"seed": 7, "set": "digits"}, width=64)
    assert a.digest() == Learner("mlp", 0.01, {"seed": 7, "set": "digits"}, width=64).digest()
    assert a.label == "mlp" and a.has_inputs and not Learner().has_inputs
    assert a == Learner(np.str_("mlp"), np.float64(0.01), {"seed": np.int64(7), "set": "digits"}, width=64)
    assert a.difference(Learner("mlp", 0.02, {"set": "digits", "seed": 7}, width=64.5)) == [
        "width: expected 64, found 64.5",
        "rate: expected 0.01, found 0.02",
    ]
    others = [
        Learner("mlp2", 0.01, {"set": "digits", "seed": 7}, width=64),
        Learner("mlp", 0.010000000000000002, {"set": "digits", "seed": 7}, width=64),
        Learner("mlp", 0.01, {"set": "digits", "seed": 8}, width=64),
        Learner("mlp", 0.01, {"set": "digits", "seed": 7}, width=65),
        Learner("mlp", 0.01, {"set": "digits", "seed": 7}, width=64.0),
        Learner("mlp", 0.01, {"set": "digits", "seed": 7}),
        Learner(),
    ]
    assert len({x.digest() for x in [a, *others]}) == 8
    assert all(x != a for x in others) and len({a, *others}) == 8
    assert a.difference(others[3]) == ["width: expected 64, found 65"]
    assert a.difference(others[0]) == ["label: expected 'mlp', found 'mlp2'"]
    assert "mlp" in repr(a)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8"))
    | st.sampled_from(["$float", "$int"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$float", "$int", "$$x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(values, values)
def test_a_learner_comes_back_from_its_data(inputs: object, label: object) -> None:
    a = Learner("l", inputs=inputs, some=label)
    again = Learner.from_data(json.loads(canonical(a.as_data())))
    assert again == a and again.digest() == a.digest()


@pytest.mark.parametrize("bad", [object(), {1: 2}, b"x", {"a": "\ud800"}, {"\ud800": 1}, math, {3, 4}])
def test_labels_json_cannot_hold_are_refused(bad: object) -> None:
    for make in (lambda: Learner("x", inputs=bad), lambda: Contract(some=bad)):
        with pytest.raises(Refused) as refusal:
            make()
        assert refusal.value.code == "label"


def test_labels_are_bounded() -> None:
    deep: list[object] = []
    for _ in range(40):
        deep = [deep]
    for bad in (deep, list(range(20_000))):
        with pytest.raises(Refused):
            Learner("x", inputs=bad)
    with pytest.raises(Refused):
        Learner(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"inputs": None, "label": 3, "labels": {}, "rate": None},
        {"inputs": None, "label": "", "labels": [], "rate": None},
        {"inputs": None, "label": "", "labels": {}, "rate": {"$float": "zz"}},
        {"inputs": {"$int": "1" * 5000}, "label": "", "labels": {}, "rate": None},
        {"inputs": None, "label": "", "labels": {}, "rate": None, "more": 1},
    ],
)
def test_data_that_are_no_learner_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(Refused) as refusal:
        Learner.from_data(data)
    assert refusal.value.code == "label"


def test_a_contract_takes_the_formats_of_the_schema() -> None:
    made = schema(W, B, D, ("v", "array", "float32", (2,)))
    contract = Contract(combine="by rank").resolved(made)
    assert contract.as_data()["formats"] == ["float32", "float64"]
    assert contract.resolved(schema(W)) == contract
    assert Contract.from_data(json.loads(canonical(contract.as_data()))) == contract
    assert Contract(formats=["float64", "float32"], combine="by rank") == contract
    assert not contract.bound and Contract(placement="bound").bound
    assert contract.difference(Contract(combine="pairwise").resolved(made)) == [
        "combine: expected 'by rank', found 'pairwise'"
    ]
    assert contract.digest() != Contract().resolved(made).digest()
    assert len({contract, Contract()}) == 2 and "by rank" in repr(contract)
    for bad in ({"placement": "loose"}, {}):
        with pytest.raises(Refused):
            Contract.from_data(bad)
    with pytest.raises(Refused):
        Contract(placement="loose")
