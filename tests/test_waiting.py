"""Waiting for others: what counts as their silence, and what is this process's own pause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from alpha_mpi.mpi import waiting, world
from alpha_mpi.mpi.waiting import PAUSE, Nap, Patience


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still but for sleeps, and for what the test lets pass."""
    now = [100.0]

    def forward(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", forward)
    return forward


def test_it_ends_at_its_limit(passes: Callable[[float], None]) -> None:
    patience, nap = Patience(10), Nap()
    looks = 0
    while not patience.ended():
        nap()
        looks += 1
    assert 10 <= patience.waited() < 10.01 and looks < 2100


def test_ones_own_pause_does_not_count(passes: Callable[[float], None]) -> None:
    patience = Patience(10)
    passes(4)
    assert patience.waited() == 4
    passes(3600)  # stopped for an hour: half of the limit counts, and the rest is left to hear from others
    assert patience.waited() == pytest.approx(5) and not patience.ended()


@pytest.mark.parametrize("before", [0, 4, 6, 9.9])
def test_half_of_the_limit_is_left_after_a_pause(passes: Callable[[float], None], before: float) -> None:
    patience = Patience(10)
    passes(before / 2)
    patience.waited()
    passes(before / 2)
    patience.waited()
    passes(60)
    assert not patience.ended()
    passes(4.9)
    assert not patience.ended()
    passes(0.2)
    assert patience.ended()


def test_a_short_limit_ends_although_looks_are_rare(passes: Callable[[float], None]) -> None:
    patience = Patience(0.01)
    passes(PAUSE)
    assert patience.ended()


def test_heard_from_it_begins_anew(passes: Callable[[float], None]) -> None:
    patience = Patience(10)
    for _ in range(5):
        passes(4)
        assert not patience.ended()
        patience.again()


@pytest.mark.parametrize("asleep", [0.0, 60.0])
def test_an_operation_that_ends_after_a_pause_is_no_silence(
    passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, asleep: float
) -> None:
    """All ranks are stopped in a collective, and woken one after the other: the first is not alone."""
    monkeypatch.setattr(world, "load", lambda: type("mpi4py", (), {"Exception": ValueError}))
    tests = 0

    class Request:
        def Test(self) -> bool:
            nonlocal tests
            tests += 1
            if tests == 100:
                passes(asleep)
            return tests == 200

    def fail(cause: object) -> None:
        raise AssertionError(cause)

    looked: list[int] = []
    assert world.poll(Request(), 5.0, fail, lambda: looked.append(tests))
    # Whether somebody has left is asked after a second of waiting, which a pause is not.
    assert tests == 200 and not looked
