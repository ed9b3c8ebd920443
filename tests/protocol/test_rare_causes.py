"""Causes that hardly ever come up: each names who or what is wrong."""

from __future__ import annotations

import pytest

from alpha_mpi.errors import PeerFailed, Refused, error_of
from alpha_mpi.protocol import causes
from alpha_mpi.protocol.hierarchy import Tree


def test_a_role_without_a_capture_is_named() -> None:
    error = error_of(causes.no_capture(3, None))
    assert isinstance(error, PeerFailed)
    assert (error.code, error.role) == ("no-capture", 3)
    # Where the role says why, that is the news; it is blamed unless the cause names another one.
    why = PeerFailed("x", code="user-code").cause()
    assert causes.no_capture(3, why).code == "user-code" and causes.no_capture(3, why).role == 3
    other = PeerFailed("x", code="user-code", role=1).cause()
    assert causes.no_capture(3, other) == other


def test_a_tree_has_a_fan_out() -> None:
    for wrong in (0, -1):
        with pytest.raises(Refused) as caught:
            Tree(wrong)
        assert (caught.value.code, caught.value.found) == ("hierarchy", str(wrong))
