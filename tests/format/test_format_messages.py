"""Messages: exact, bounded, and never believed beyond their bounds."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from format.format_values import D, bounded, causes, digests, number, positive, prefixes, small, some_prefix
from hypothesis import given
from hypothesis import strategies as st

from alpha_mpi.errors import Cause, Refused
from alpha_mpi.format import messages as m
from alpha_mpi.format.manifest import ChildRecord
from alpha_mpi.model.capture import Attempt

attempts = st.builds(Attempt, positive, positive)
listed = st.lists(st.tuples(small, digests), max_size=4).map(tuple)
records = st.builds(ChildRecord, st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1), digests, digests)
messages = st.one_of(
    st.builds(m.Begin, attempts, prefixes, positive, listed),
    st.builds(m.Enter, attempts, prefixes, st.none(), number, number),
    st.builds(m.Enter, attempts, st.none(), causes),
    st.builds(m.Go, attempts, positive, number, number, number, number),
    st.builds(m.Commitment, attempts, prefixes, records, st.booleans()),
    *[st.builds(kind, attempts) for kind in (m.Sign, m.Ended)],
    *[st.builds(kind, attempts, causes) for kind in (m.Abort, m.Doubt, m.Left)],
    st.builds(m.Release, attempts, digests, positive),
    st.builds(m.Group, attempts, listed),
)


@bounded
@given(messages)
def test_messages_come_back(message: m.Message) -> None:
    data = m.encode(message)
    assert m.decode(data) == message
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(Refused, match="not a message"):
            m.decode(data[:cut])
    with pytest.raises(Refused, match="not a message"):
        m.decode(data + b"\0")


@bounded
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_a_message(data: bytes) -> None:
    try:
        message = m.decode(data)
    except Refused as error:
        assert error.code == "corrupt-message"
    else:
        assert m.encode(message) == data


def test_every_flipped_bit_is_refused_or_is_another_message() -> None:
    message = m.Begin(Attempt(3, 7), some_prefix(), 5, ((0, D),))
    data = m.encode(message)
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        try:
            other = m.decode(bytes(flipped))
        except Refused:
            continue
        assert other != message
        assert m.encode(other) == flipped


A = Attempt(3, 7)
P = some_prefix()
CAUSE = Cause("refused", "some-code", "text")


@pytest.mark.parametrize(
    "wrong",
    [
        m.Sign(Attempt(0, 7)),
        m.Sign(Attempt(3, -1)),
        m.Sign(Attempt(3, 2**60)),
        m.Begin(A, dataclasses.replace(P, cover="x"), 5),
        m.Begin(A, P, 0),
        m.Begin(A, P, 5, ((-1, D),)),
        m.Begin(A, P, 5, ((0, "x"),)),
        m.Begin(A, P, 5, ((0, D),) * (m.REPLICAS_LIMIT + 1)),
        m.Enter(A, None, None),
        m.Enter(A, P, CAUSE),
        m.Enter(A, P, None, -1),
        m.Enter(A, P, None, 0, 2**53),
        m.Go(A, 1, -1, 0, 0, 0),
        m.Commitment(A, P, ChildRecord(0, 1, D, D), True),
        m.Commitment(A, P, ChildRecord(1, 0, D, D), True),
        m.Commitment(A, P, ChildRecord(1, 1, "x", D), True),
        m.Release(A, "x", 1),
        m.Release(A, D, 0),
        m.Group(A, ((0, "x"),)),
        m.Abort(A, dataclasses.replace(CAUSE, kind="os.system")),
        m.Abort(A, dataclasses.replace(CAUSE, message="x" * 1201)),
        m.Abort(A, dataclasses.replace(CAUSE, region="x" * 481)),
        m.Abort(A, dataclasses.replace(CAUSE, role=-1)),
    ],
)
def test_a_message_out_of_bounds_is_refused(wrong: m.Message) -> None:
    with pytest.raises(Refused) as caught:
        m.decode(msgspec.msgpack.encode(wrong))
    assert caught.value.code == "corrupt-message"


def test_long_messages_are_refused_on_both_sides() -> None:
    with pytest.raises(Refused) as caught:
        m.encode(m.Group(A, ((0, D),) * 100_000))
    assert caught.value.code == "too-large"
    with pytest.raises(Refused) as caught:
        m.decode(bytes(m.LIMIT + 1))
    assert caught.value.code == "too-large"
    with pytest.raises(Refused):
        m.decode(b"\x91" * m.LIMIT)


def test_the_longest_list_of_replicas_fits() -> None:
    message = m.Begin(A, P, 5, tuple((2**32 - 1, "sha256:" + "f" * 64) for _ in range(m.REPLICAS_LIMIT)))
    assert m.decode(m.encode(message)) == message
