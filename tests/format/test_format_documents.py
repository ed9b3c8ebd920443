"""Documents: every number comes back as it was, everything else is refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from format.format_values import bounded, texts
from hypothesis import example, given
from hypothesis import strategies as st

from alpha_mpi.errors import Refused
from alpha_mpi.format.documents import DEPTH, decode_document, encode_document

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.sampled_from(("$", "$float", "$int", "$$float")), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal down to types and the bits of floats."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


@bounded
@given(values)
@example([2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 0, -1])
@example([0.0, -0.0, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, math.inf, -math.inf, math.nan])
@example({"$float": "0x1p+0"})
@example({"$int": "5", "$": {}})
def test_documents_come_back(value: Any) -> None:
    data = encode_document(value)
    again = decode_document(data)
    assert same(again, value)
    assert encode_document(again) == data


def test_the_bytes_are_those_of_the_page() -> None:
    value = {"b": 0.5, "a": [2**60, -0.0, "é\n"], "$k": None}
    expected = (
        '{"$$k":null,"a":[{"$int":"1152921504606846976"},{"$float":"-0x0.0p+0"},"é\\n"],'
        '"b":{"$float":"0x1.0000000000000p-1"}}'
    )
    assert encode_document(value) == expected.encode()


def test_plain_values_of_other_types() -> None:
    class Name(str):
        pass

    given_ = {"n": (1, 2), "f": np.float64(0.1), "g": np.float32(0.5), "i": np.int64(7), "b": np.bool_(True)}
    assert same(
        decode_document(encode_document(given_)), {"n": [1, 2], "f": 0.1, "g": 0.5, "i": 7, "b": True}
    )
    assert same(decode_document(encode_document(Name("x"))), "x")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(10_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, object()]}, "$.a[1] is of type object"),
        ({"a": {"b": b"x"}}, "$.a.b is of type bytes"),
        ({1: 2}, "key of type int"),
        ({"a": {None: 2}}, "$.a is a dict with a key of type NoneType"),
        (["\ud800"], "$[0] is a text with an unpaired surrogate"),
        ({"\udfff": 1}, "unpaired surrogate"),
        ([1j], "of type complex"),
        ([np.arange(3)], "of type ndarray"),
        ([np.complex64(1)], "of NumPy type complex64"),
        ([np.longdouble(1)], "of NumPy type"),
        ({1, 2}, "of type set"),
        ([10**4001], "an integer of"),
        (CYCLE, "too deep"),
        (DEEP, "too deep"),
    ],
)
def test_what_json_does_not_know_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(Refused) as caught:
        encode_document(value)
    assert caught.value.code == "document"
    assert said in caught.value.message


def test_the_deepest_document_comes_back() -> None:
    deep: Any = 1.5  # its mark is one level
    for _ in range(DEPTH - 1):
        deep = [deep]
    assert decode_document(encode_document(deep)) == deep
    with pytest.raises(Refused, match="too deep"):
        encode_document([deep])
    huge: Any = 10**3990
    assert decode_document(encode_document([huge])) == [huge]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" 1",
        b"1 ",
        b"1\n",
        b"01",
        b"-0",
        b"1.0",
        b"1e3",
        b"NaN",
        b"Infinity",
        b"9007199254740993",
        b"1" * 10**6,
        b'{"a":1,"a":1}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'"\\u0041"',
        b'"\\ud800"',
        b'"\xff"',
        b'{"$float":"1.5"}',
        b'{"$float":"0x1p+0"}',
        b'{"$float":"0x1.8p+0"}',
        b'{"$float":"NaN"}',
        b'{"$float":"-nan"}',
        b'{"$float":" 0x1.8000000000000p+0"}',
        b'{"$float":"0x1.8000000000000p+9999"}',
        b'{"$float":1}',
        b'{"$float":"inf","a":1}',
        b'{"$int":"5"}',
        b'{"$int":"+99999999999999999999"}',
        b'{"$int":"9' + b"9" * 5000 + b'"}',
        b'{"$int":"0"}',
        b'{"$pickle":"x"}',
        b'{"$":1}',
        b"[" * 10**6,
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 10**5,
        b"[1,]",
        b"{}{}",
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        decode_document(data, "the-file")
    assert (caught.value.code, caught.value.file) == ("corrupt-document", "the-file")


@bounded
@given(st.binary(max_size=60) | st.text('[]{}",:$floatin0123x.p+-', max_size=40).map(str.encode))
def test_any_bytes_give_a_value_of_these_bytes_or_a_refusal(data: bytes) -> None:
    try:
        value = decode_document(data)
    except Refused as error:
        assert error.code == "corrupt-document"
    else:
        assert encode_document(value) == data
