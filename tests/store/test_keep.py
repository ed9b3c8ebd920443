"""Keep: the last, every M-th and the best generations stay."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.small_store import Killed, data_attempts, killed_at, publish, resume, whole

from alpha_mpi.errors import Refused
from alpha_mpi.restore import choose
from alpha_mpi.store.discard import pin
from alpha_mpi.store.keep import Keep, Scored
from alpha_mpi.store.observe import Position
from alpha_mpi.store.retention import Retention
from alpha_mpi.store.store import Store

SCORES = [5.0, None, 1.0, 3.0, 1.0, 9.0]


def lineage(scores=SCORES):
    """Updates 10, 20, ...; newest first."""
    made = [Scored(Position(1, n), 10 * n, s) for n, s in enumerate(scores, 1)]
    return made[::-1]


def stays(keep, scores=SCORES):
    return sorted(p.number for p in keep.stays(lineage(scores)))


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep(), [6]),
        (Keep(last=2), [5, 6]),
        (Keep(last=9), [1, 2, 3, 4, 5, 6]),
        (Keep(every=20), [2, 4, 6]),
        (Keep(every=1000), [6]),
        (Keep(best=1), [5, 6]),  # of equal scores the newer one
        (Keep(best=2), [3, 5, 6]),
        (Keep(best=9), [1, 3, 4, 5, 6]),
        (Keep(best=2, highest=True), [1, 6]),
        (Keep(last=1, every=40, best=1, highest=True), [4, 6]),
    ],
)
def test_who_stays(keep, expected):
    assert stays(keep) == expected


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=8), st.booleans())
def test_the_best_are_never_worse_than_those_that_go(scores, highest):
    keep = Keep(best=2, highest=highest)
    kept = keep.stays(lineage(scores))
    scored = [g for g in lineage(scores) if g.score is not None]
    sign = -1 if highest else 1
    worst = [sign * g.score for g in scored if g.position in kept]
    assert all(sign * g.score >= sorted(worst)[1] for g in scored if g.position not in kept)


@pytest.mark.parametrize(
    "wrong", [{"last": 0}, {"last": None}, {"last": True}, {"every": 0}, {"every": 1.5}, {"best": -1}]
)
def test_wrong_rules_are_refused(wrong):
    with pytest.raises(Refused) as caught:
        Keep(**wrong)
    assert caught.value.code == "argument"


@pytest.fixture
def store(tmp_path):
    with Store.create_or_open(tmp_path / "ckpt", probe=False) as opened:
        yield opened


def numbers(store):
    return [position.number for position in choose.survey(store).lineage]


def test_the_best_stays_over_many_saves_and_continuations(store):
    resume(store)
    retention = Retention(store, 1, Keep(last=1, every=50, best=2))
    pick = random.Random(4)
    scores = {n: float(pick.randrange(100)) for n in range(1, 13)}
    for n, score in scores.items():
        assert not retention.published(publish(store, 1, n, update=10 * n, score=score)).failed
        best = sorted(range(1, n + 1), key=lambda m: (scores[m], -m))[:2]
        expected = {n, *best, *(m for m in range(1, n) if m % 5 == 0)}
        # The best two so far: who was pushed out once was not among them.
        assert set(numbers(store)) <= expected and n in numbers(store) and set(best) <= expected
    kept = set(numbers(store))
    assert resume(store) == 2
    seen = choose.survey(store)
    retention = Retention(store, 2, Keep(last=1, every=50, best=2), seen.lineage, seen.abandoned)
    retention.published(publish(store, 2, 1, update=999, score=1000.0))
    left = {p.number for p in choose.survey(store).lineage if p.epoch == 1}
    assert left <= kept
    assert all(whole(store, choose.survey(store).candidate(store, p)) for p in choose.survey(store).lineage)


def test_an_unreadable_generation_stays(store):
    resume(store)
    for n in (1, 2, 3):
        publish(store, 1, n, score=float(n))
    path = f"{store.path}/published/e000001-000001.json"
    with open(path, "r+b") as file:
        file.write(b"??")
    report = Retention(store, 1, Keep(best=1), [(1, 3), (1, 2), (1, 1)]).run()
    assert report.failed and (1, 1) not in report.marked


def test_a_pin_that_comes_while_retention_decides_is_seen(store, monkeypatch):
    resume(store)
    for n in (1, 2):
        publish(store, 1, n)
    from alpha_mpi.store import retention as module

    real = module.mark_removed

    def mark(store, position, root):
        monkeypatch.setattr(module, "mark_removed", real)
        assert pin(store, position)
        real(store, position, root)

    monkeypatch.setattr(module, "mark_removed", mark)
    report = Retention(store, 1, 1, [(1, 2), (1, 1)]).run()
    assert report.marked == [] and numbers(store) == [2, 1]
    assert len(data_attempts(store)) == 2


def test_killed_anywhere_with_rules(tmp_path, monkeypatch):
    keep = Keep(last=1, every=2, best=1)
    for k in range(1, 80):
        with Store.create_or_open(tmp_path / str(k), probe=False) as store:
            resume(store)
            for n in range(1, 7):
                publish(store, 1, n, score=float(n))
            with killed_at(monkeypatch, k) as count:
                try:
                    Retention(store, 1, keep, choose.survey(store).lineage).run()
                except Killed:
                    pass
            seen = choose.survey(store)
            assert {6, 4, 2, 1} <= {p.number for p in seen.lineage} and seen.lineage[0] == (1, 6)
            assert all(whole(store, seen.candidate(store, p)) for p in seen.lineage)
            assert not Retention(store, 1, keep, seen.lineage).run().failed
            assert numbers(store) == [6, 4, 2, 1] and len(data_attempts(store)) == 4
            if not count.dead:
                return
    raise AssertionError("still killed after 80 operations")
