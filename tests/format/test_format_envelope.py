"""Envelope and body: the questions asked before any field is read."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from format.format_values import bounded, labels
from hypothesis import example, given
from hypothesis import strategies as st

from alpha_mpi import digest
from alpha_mpi.canonical import canonical
from alpha_mpi.errors import Refused
from alpha_mpi.format.body import DEPTH, encode_body, is_deeper, kind_of
from alpha_mpi.format.envelope import are_digests, is_digest, open_envelope, seal

BODY = b'{"kind":"claim","version":1}'


def refusal(data: bytes, **options: object) -> str:
    with pytest.raises(Refused) as caught:
        open_envelope(data, file="the-file", **options)  # type: ignore[arg-type]
    assert caught.value.file == "the-file"
    return caught.value.code


@pytest.mark.parametrize("algorithm", digest.ALGORITHMS)
def test_round_trip(algorithm: str) -> None:
    if algorithm == "blake3":
        pytest.importorskip("blake3")
    data = seal(BODY, algorithm)
    assert open_envelope(data, file="f") == (BODY, digest.of(BODY, algorithm))
    assert data == BODY + b"\n" + digest.of(BODY, algorithm).encode() + b"\n"


def test_a_body_is_one_line() -> None:
    for body in (b"", b"{\n}"):
        with pytest.raises(ValueError, match="one line"):
            seal(body)


def test_every_cut_is_refused_as_truncated() -> None:
    data = seal(BODY)
    assert {refusal(data[:n]) for n in range(len(data))} == {"truncated"}


def test_too_large_is_asked_before_anything_else() -> None:
    assert refusal(seal(BODY), limit=10) == "too-large"
    assert refusal(b"x" * 11, limit=10) == "too-large"


@pytest.mark.parametrize(
    "data",
    [
        seal(BODY) + b"x",
        seal(BODY) + b"\n",
        b"\n" + seal(BODY),
        seal(BODY).replace(b"xxh3-128", b"xxh3-129"),
        seal(BODY).replace(b"xxh3-128", b"XXH3-128"),
        seal(BODY).replace(b"xxh3-128:", b"sha256:"),
        seal(BODY).replace(b"\n", b"\r\n"),
        seal(BODY).replace(b"claim", b"clain"),
        BODY + b"\nxxh3-128:" + digest.raw(BODY).hex().upper().encode() + b"\n",
        BODY + b"\n\xff\n",
    ],
)
def test_a_wrong_end_is_refused(data: bytes) -> None:
    assert refusal(data, code="corrupt-claim") == "corrupt-claim"


@bounded
@given(labels)
@example("".join(map(chr, range(0x300))) + "\u2028\ufeff\U0010ffff")
@example({"\ue000": 1, "\U00010000": 2, "\uffff": 3})
def test_our_fast_encoder_is_canonical(value: object) -> None:
    assert encode_body(value) == canonical(value)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


nested = st.recursive(
    st.integers(0, 9) | st.text('[]{}"\\n,:', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\}]', max_size=4), inner, max_size=3)
    ),
    max_leaves=15,
)


@bounded
@given(nested, st.integers(0, 7))
@example('a\\\\"', 0)
@example(["\\", '"[', "\\\\", "["], 1)
def test_depth_is_known_without_a_parser(value: object, depth: int) -> None:
    for escaped in (False, True):
        text = json.dumps(value, ensure_ascii=escaped).encode()
        assert is_deeper(text, depth) == (_depth(value) > depth)


@bounded
@given(st.text('[]{}"\\,a', max_size=40))
def test_depth_of_what_is_not_json_is_bounded_as_far_as_a_parser_gets(text: str) -> None:
    # Whatever is let through, no parser recurses deeper in it before it finds the fault.
    if is_deeper(text.encode(), 3):
        return
    try:
        assert _depth(json.loads(text)) <= 3
    except json.JSONDecodeError as error:
        opened = deepest = 0
        for token in re.findall(r'"(?:[^"\\]|\\.)*"|[][{}]', text[: error.pos]):
            opened += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
            deepest = max(deepest, opened)
        assert deepest <= 4 + 3


@pytest.mark.parametrize("body", [b"[" * 10**6, b'{"a":' * 10**6, b"[" * 10**5 + b"]" * 10**5, b"]" * 100])
def test_deep_nesting_is_refused_before_it_is_decoded(body: bytes) -> None:
    with pytest.raises(Refused, match="nest too deep"):
        kind_of(body, ("claim",), file="f", code="corrupt-claim")
    assert not is_deeper(b"[" * DEPTH + b"]" * DEPTH, DEPTH)
    assert is_deeper(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), DEPTH)


def test_kind_and_version_are_asked_before_the_fields() -> None:
    def code(body: object) -> str:
        with pytest.raises(Refused) as caught:
            kind_of(msgspec.json.encode(body), ("claim",), file="f", code="corrupt-claim")
        return caught.value.code

    assert code({"kind": "store", "version": 1}) == "corrupt-claim"
    assert code({"version": 1}) == "corrupt-claim"
    assert code([]) == "corrupt-claim"
    assert code({"kind": "claim", "version": 2, "new": {"fields": True}}) == "format-version"
    assert code({"kind": "claim", "version": 0}) == "format-version"
    assert code({"kind": "claim"}) == "format-version"
    assert code({"kind": "claim", "version": "1"}) == "corrupt-claim"


#: One that is a digest, and what is nearly one.
GOOD = digest.of(b"x")
NEARLY = [
    *(GOOD[:-1], GOOD + "0", GOOD + "\n", GOOD.upper(), GOOD[:-1] + "g", GOOD[:-1] + "\n"),
    *(GOOD.replace(":", ";"), GOOD[:-1] + "\u00e9", GOOD.replace("xxh3-128", "xxh3-129"), "", ":", "sha256:"),
    *(digest.of(b"x", "sha256"), "sha256:" + GOOD[9:], "xxh3-128:" + digest.of(b"x", "sha256")[7:]),
]


@pytest.mark.parametrize("odd", NEARLY)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_digests_of_many_are_judged_as_each_is(odd: str, at: int) -> None:
    texts = [GOOD, GOOD, GOOD]
    texts[at] = odd
    if are_digests(texts):
        assert all(map(is_digest, texts))
    one = [odd] * 3  # of one algorithm: there both say the same
    assert are_digests(one) == (is_digest(odd) is not None)
    assert are_digests([GOOD] * 3)


def test_two_wrong_digests_whose_lengths_add_up_are_found() -> None:
    assert not are_digests([GOOD[:-1], GOOD + "0"])
    assert not are_digests([GOOD + "\n" + GOOD, ""])
