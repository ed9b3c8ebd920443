"""When a save is due by time: intervals, limits, and the texts that say how long."""

from __future__ import annotations

import math

import pytest

from alpha_mpi import Every, Refused
from alpha_mpi.timing import (
    AGAIN,
    MARGIN,
    RESERVE,
    UNMEASURED,
    Limit,
    Pace,
    daly,
    lost_share,
    seconds_of,
    young,
)


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds


def save(pace: Pace, clock: Clock, seconds: float, published: bool = True) -> None:
    clock.turn(seconds)
    pace.saved(seconds, published)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("10min", 600),
        ("10 m", 600),
        ("2d", 172800),
        ("12:30", 750),
        ("1:00:00", 3600),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
    ],
)
def test_a_length_of_time(given: object, seconds: float) -> None:
    assert seconds_of(given) == seconds


@pytest.mark.parametrize(
    "given", ["", "soon", "10 parsecs", "-5", 0, -1, math.inf, math.nan, True, None, "1:2:3:4"]
)
def test_what_is_no_length_of_time(given: object) -> None:
    with pytest.raises(Refused) as caught:
        seconds_of(given)
    assert caught.value.code == "argument"


def test_every() -> None:
    assert Every.of(None) == Every() and not Every().by_time
    assert Every.of(10) == Every(updates=10)
    assert Every.of("10min") == Every(seconds=600.0) and Every.of("10min").by_time
    both = Every(updates=5, mtbf="24h")
    assert Every.of(both) is both and both.mtbf == 86400.0 and both.by_time
    assert [u for u in range(12) if Every.of(5).counts(u)] == [5, 10]
    for wrong in (0, -1, True, 2.5, "often", [], Ellipsis):
        with pytest.raises(Refused) as caught:
            Every.of(wrong)
        assert caught.value.code == "argument"


def test_young_and_daly() -> None:
    """Against numbers worked out by hand, and against the interval that loses least."""
    assert young(50, 10000) == 1000.0
    # Daly's eq. 37 with C = 50, M = 10000: 1000 (1 + sqrt(1/400)/3 + (1/400)/9) - 50.
    assert daly(50, 10000) == pytest.approx(1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50)
    assert daly(500, 250) == 250 and daly(600, 250) == 250
    for c, m in ((1.0, 3600.0), (60.0, 86400.0), (300.0, 7200.0)):
        # Daly's exact expectation of the run time, up to constant factors (his equation 20).
        lost = min(
            (math.exp((t + c) / m) - 1) / t for t in (daly(c, m) * 2 ** (k / 8) for k in range(-16, 17))
        )
        assert (math.exp((daly(c, m) + c) / m) - 1) / daly(c, m) <= lost * 1.001
    assert lost_share(50, 950, 10000) == pytest.approx(0.05 + 0.05)


def test_by_time_from_the_end_of_the_last_save() -> None:
    clock = Clock()
    pace = Pace(Every(seconds=100), clock=clock)
    pace.began()
    said = []
    for _ in range(30):
        clock.turn(10)
        due = pace.wants().due
        said.append(due)
        if due:
            save(pace, clock, 55)
    assert [i for i, due in enumerate(said) if due] == [9, 19, 29]


def test_a_failed_save_leaves_it_due() -> None:
    clock = Clock()
    pace = Pace(Every(seconds=100), clock=clock)
    clock.turn(100)
    assert pace.wants().due
    save(pace, clock, 5, published=False)
    clock.turn(1)
    assert pace.wants().due and pace.save_seconds is None


def test_by_mtbf_the_first_save_is_the_measure() -> None:
    clock = Clock()
    pace = Pace(Every(mtbf=10000), clock=clock)
    clock.turn(1)
    assert pace.interval() == 0 and pace.wants().due
    save(pace, clock, 50)
    assert pace.save_seconds == 50 and pace.interval() == daly(50, 10000)
    clock.turn(daly(50, 10000) - 1)
    assert not pace.wants().due
    clock.turn(1.001)
    assert pace.wants().due


def test_before_the_limit_while_an_update_and_a_save_still_fit() -> None:
    clock = Clock()
    pace = Pace(Every(), Limit(10000, clock=clock), clock)
    pace.began()
    save(pace, clock, 100)
    last = None
    for _ in range(1000):
        clock.turn(60)
        wants = pace.wants()
        assert wants.due == wants.stop
        if wants.stop:
            break
        last = clock.now
    left = 1000 + 10000 - clock.now
    assert left >= 100, "it said so too late: the save does not fit"
    assert last is not None and 1000 + 10000 - last >= 60 + MARGIN * 100 + RESERVE > left


def test_a_save_is_no_part_of_an_update() -> None:
    clock = Clock()
    pace = Pace(Every(), Limit(10000, clock=clock), clock)
    clock.turn(10)
    pace.wants()
    save(pace, clock, 500)
    clock.turn(10)
    pace.wants()
    assert pace.need() == 10 + MARGIN * 500 + RESERVE


def test_without_a_measure_a_short_job_is_not_stopped_at_once() -> None:
    clock = Clock()
    short = Pace(Every(), Limit(60, clock=clock), clock)
    assert short.need() == 6 + 3 and not short.wants().stop
    long = Pace(Every(), Limit(86400, clock=clock), clock)
    assert long.need() == UNMEASURED + RESERVE
    assert Pace(Every(), Limit(-5, clock=clock), clock).wants().stop


def test_an_extended_limit_is_asked_for_once_in_a_while() -> None:
    clock, asked, answer = Clock(), [], [500.0]

    def again() -> float | None:
        asked.append(clock.now)
        return answer[0]

    limit = Limit(100, again, clock)
    assert not limit.over(50) and not asked
    clock.turn(60)
    assert not limit.over(50) and len(asked) == 1 and limit.left() == 500
    answer[0] = None  # nobody answers: what was known counts
    clock.turn(460)
    assert limit.over(50) and len(asked) == 2
    assert limit.over(50) and len(asked) == 2
    clock.turn(AGAIN)
    assert limit.over(50) and len(asked) == 3
