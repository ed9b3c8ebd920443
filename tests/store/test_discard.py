"""Discard: what people remove, pin and unpin, and what they may not."""

import os

import pytest
from store.small_store import Killed, data_attempts, killed_at, publish, resume, whole

from alpha_mpi.errors import Refused
from alpha_mpi.restore import choose
from alpha_mpi.store import discard, durable, names
from alpha_mpi.store.observe import Position
from alpha_mpi.store.retention import Retention
from alpha_mpi.store.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.create_or_open(tmp_path / "ckpt", probe=False) as opened:
        yield opened


def check(store, position, offline=False):
    seen = choose.survey(store)
    discard.check(store, Position(*position), seen.epoch, seen.lineage, seen.abandoned, offline)


def remove(store, *positions, offline=False):
    seen = choose.survey(store)
    return discard.discard(store, seen.epoch, positions, seen.lineage, seen.abandoned, offline)


def code_of(call, *arguments, **options):
    with pytest.raises(Refused) as caught:
        call(*arguments, **options)
    return caught.value.code


def two_epochs(store):
    """Epoch 1: 1, 2 and 3, of which 3 is abandoned; epoch 2 continues 2 and publishes 1 and 2."""
    resume(store)
    made = [publish(store, 1, n) for n in (1, 2, 3)]
    resume(store, chosen=made[1], explicit=True)
    publish(store, 2, 1, update=10)
    publish(store, 2, 2, update=11)


def test_what_may_not_go(store):
    two_epochs(store)
    assert code_of(check, store, (2, 2)) == "newest-generation"
    assert code_of(check, store, (2, 2), offline=True) == "newest-generation"
    assert code_of(check, store, (2, 1)) == "open-epoch"
    assert code_of(check, store, (1, 9)) == "no-generation"
    assert discard.pin(store, Position(1, 1))
    assert code_of(check, store, (1, 1)) == "pinned"
    check(store, (2, 1), offline=True)
    check(store, (1, 3))


def test_the_base_of_a_job_that_published_nothing_stays(store):
    resume(store)
    for n in (1, 2):
        publish(store, 1, n)
    resume(store)
    assert code_of(check, store, (1, 2), offline=True) == "newest-generation"


def test_an_abandoned_one_goes_whole_and_the_seal_stays(store):
    two_epochs(store)
    report = remove(store, (1, 3))
    assert report.marked == [(1, 3)] and report.dropped == [(1, 3)]
    seen = choose.survey(store)
    assert seen.abandoned == () and seen.lineage == ((2, 2), (2, 1), (1, 2), (1, 1))
    assert "e000001-000003" not in data_attempts(store)
    assert store.published.exists(names.entry(1, 4))
    assert resume(store) == 3


def test_names_of_the_open_epoch_stay_occupied(store):
    two_epochs(store)
    assert remove(store, (2, 1), offline=True).marked == [(2, 1)]
    assert store.published.exists(names.entry(2, 1)) and store.published.exists(names.removed(2, 1))
    assert choose.survey(store).lineage == ((2, 2), (1, 2), (1, 1))
    publish(store, 2, 3, update=12)
    assert choose.survey(store).newest.position == (2, 3)


def test_what_a_running_job_marked_is_left_to_it(store):
    two_epochs(store)
    mine = Retention(store, 2, 1, choose.survey(store).lineage[:2])
    real, mine.complete = mine.complete, lambda report: None
    mine.run()  # killed, or slow, between mark and removal
    remove(store, (1, 3))
    assert "e000002-000001" in data_attempts(store)
    mine.complete = real
    assert remove(store, offline=True).failed == []
    assert "e000002-000001" not in data_attempts(store)


def test_a_continuation_that_came_meanwhile_stops_it(store):
    two_epochs(store)
    seen = choose.survey(store)
    resume(store)
    report = discard.discard(store, seen.epoch, [(1, 3)], seen.lineage, seen.abandoned, False)
    assert report.stopped and report.marked == []


def test_pins(store):
    resume(store)
    first, _ = publish(store, 1, 1), publish(store, 1, 2)
    at = Position(1, 1)
    assert discard.pin(store, at) and not discard.pin(store, at)
    assert discard.read_pin(store, at).root == first.root
    Retention(store, 1, 1, [(1, 2), (1, 1)]).run()
    assert whole(store, first)
    assert discard.unpin(store, at) and not discard.unpin(store, at)
    Retention(store, 1, 1, [(1, 2), (1, 1)]).run()
    assert code_of(discard.pin, store, at) == "removed-generation"
    assert code_of(discard.pin, store, Position(1, 9)) == "missing-root"


def test_a_stranger_in_the_name_of_a_pin_stays(store):
    resume(store)
    publish(store, 1, 1)
    with open(os.path.join(store.path, discard.pin_file(Position(1, 1))), "w") as file:
        file.write("mine")
    assert code_of(discard.pin, store, Position(1, 1)) == "corrupt-mark"
    assert code_of(discard.unpin, store, Position(1, 1)) == "corrupt-mark"


def test_a_pin_that_comes_after_the_mark_is_refused(store, monkeypatch):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2)
    real = discard.commit_bytes

    def commit(directory, name, data):
        discard.commit_bytes = real
        Retention(store, 1, 1, [(1, 2), (1, 1)]).run()
        real(directory, name, data)

    monkeypatch.setattr(discard, "commit_bytes", commit)
    assert code_of(discard.pin, store, Position(1, 1)) == "removed-generation"
    assert not store.published.exists(names.pinned(1, 1))


def test_killed_anywhere_and_completed(tmp_path, monkeypatch):
    for k in range(1, 80):
        with Store.create_or_open(tmp_path / str(k), probe=False) as store:
            two_epochs(store)
            with killed_at(monkeypatch, k) as count:
                try:
                    remove(store, (1, 3), (1, 1))
                except Killed:
                    pass
            seen = choose.survey(store)
            assert seen.lineage[:3] == ((2, 2), (2, 1), (1, 2)) and seen.damage is None
            assert all(whole(store, seen.candidate(store, p)) for p in (*seen.lineage, *seen.abandoned))
            left = [p for p in ((1, 3), (1, 1)) if p in (*seen.lineage, *seen.abandoned)]
            assert not remove(store, *left).failed
            assert data_attempts(store) == ["e000001-000002", "e000002-000001", "e000002-000002"]
            assert not [n for n in store.published.names() if n.endswith(".removed")]
            if not count.dead:
                return
    raise AssertionError("still killed after 80 operations")


def test_a_sync_that_fails_removes_nothing(store, monkeypatch):
    two_epochs(store)
    seen = choose.survey(store)

    def fail(self):
        raise OSError(5, "Input/output error", self.path)

    monkeypatch.setattr(durable.Directory, "sync", fail)
    with pytest.raises(OSError):
        discard.discard(store, seen.epoch, [(1, 3)], seen.lineage, seen.abandoned, False)
    monkeypatch.undo()
    assert len(data_attempts(store)) == 5
