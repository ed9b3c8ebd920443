"""Retention: the last N of the lineage stay, whoever is killed or deletes beside us."""

import multiprocessing
import os
import random

import pytest
from store.small_store import Killed, data_attempts, killed_at, publish, resume, whole, write_attempt

from alpha_mpi.errors import Refused
from alpha_mpi.format.claim import Mark, encode_mark
from alpha_mpi.model.capture import Attempt
from alpha_mpi.restore import choose
from alpha_mpi.store import durable, entries, leftovers, names, observe
from alpha_mpi.store.retention import Retention, keep_last
from alpha_mpi.store.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.create_or_open(tmp_path / "ckpt", probe=False) as opened:
        yield opened


def prune(store, epoch, keep):
    seen = choose.survey(store)
    return keep_last(store, epoch, keep, seen.lineage, seen.abandoned)


def numbers(store):
    return [position.number for position in choose.survey(store).lineage]


def published(store):
    return [name for name in store.published.names() if not names.parse_temporary(name)]


def test_keeps_the_last_ones_and_the_names_of_the_open_epoch(store):
    resume(store)
    retention = Retention(store, 1, keep=2)
    for n in range(1, 6):
        report = retention.published(publish(store, 1, n))
        assert not report.failed and report.stopped is None
        assert report.marked == ([(1, n - 2)] if n > 2 else [])
    assert numbers(store) == [5, 4]
    assert data_attempts(store) == ["e000001-000004", "e000001-000005"]
    # A name of the open epoch is never free again: a claim or a root must not take it twice.
    assert published(store) == sorted(
        [f"e000001-00000{n}.json" for n in range(1, 6)] + [f"e000001-00000{n}.removed" for n in (1, 2, 3)]
    )
    for position in ((1, 1), (1, 3)):
        with pytest.raises(Refused) as caught:
            observe.candidate(store, position)
        assert caught.value.code == "removed-generation"
    assert retention.run().marked == []


def test_roots_and_marks_go_once_their_epoch_has_ended(store):
    resume(store)
    retention = Retention(store, 1, keep=1)
    for n in (1, 2, 3):
        retention.published(publish(store, 1, n))
    assert resume(store) == 2
    seen = choose.survey(store)
    retention = Retention(store, 2, 1, seen.lineage, seen.abandoned)
    report = retention.run()  # nothing published yet: what the claim continues stays
    assert report.dropped == [(1, 1), (1, 2)] and report.marked == []
    assert published(store) == ["e000001-000003.json", "e000001-000004.json"]
    assert whole(store, choose.survey(store).newest)
    report = retention.published(publish(store, 2, 1))
    assert report.marked == [(1, 3)] and report.dropped == [(1, 3)]
    assert published(store) == ["e000001-000004.json", "e000002-000001.json"]  # the seal stays
    assert store.epochs.names() == ["e000001.json", "e000002.json"]
    assert data_attempts(store) == ["e000002-000001"]
    assert resume(store) == 3


def test_keeps_at_least_one(store):
    resume(store)
    with pytest.raises(Refused):
        Retention(store, 1, keep=0)


def test_r10_retention_never_looks_at_file_times(store):
    resume(store)
    retention = Retention(store, 1, keep=2)
    for n, update in ((1, 9), (2, 10), (3, 100)):
        retention.published(publish(store, 1, n, update=update))

    def updates():
        seen = choose.survey(store)
        return [seen.candidate(store, p).manifest.prefix.moment.update for p in seen.lineage]

    assert updates() == [100, 10]
    for times in ((3, 2, 1), (5, 5, 5)):
        for n, time in zip((1, 2, 3), times, strict=True):
            for root, _, files in os.walk(os.path.join(store.path, "data", f"e000001-00000{n}")):
                for file in files:
                    os.utime(os.path.join(root, file), (time, time))
            os.utime(os.path.join(store.path, observe.entry_file(1, n)), (time, time))
        assert updates() == [100, 10]
    retention.published(publish(store, 1, 4, update=101))
    assert updates() == [101, 100]
    assert all(whole(store, choose.survey(store).candidate(store, p)) for p in ((1, 3), (1, 4)))


def test_abandoned_generations_do_not_count_and_stay(store):
    resume(store)
    old = publish(store, 1, 1)
    publish(store, 1, 2)
    assert resume(store, chosen=old, explicit=True) == 2
    publish(store, 2, 1)
    publish(store, 2, 2)
    report = prune(store, 2, 2)
    assert report.marked == [(1, 1)]
    seen = choose.survey(store)
    assert seen.lineage == ((2, 2), (2, 1)) and seen.abandoned == ((1, 2),)
    assert whole(store, seen.candidate(store, (1, 2)))


def test_data_that_a_kept_generation_refers_to_stay(store):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2, places=[Attempt(1, 1)])
    publish(store, 1, 3, places=[Attempt(1, 1)])
    report = prune(store, 1, 2)
    assert report.marked == [(1, 1)] and report.removal.files == 0
    assert all(whole(store, choose.survey(store).candidate(store, (1, n))) for n in (2, 3))
    publish(store, 1, 4)
    prune(store, 1, 1)
    assert data_attempts(store) == ["e000001-000004"]


def test_data_referred_to_stay_when_the_root_goes(store):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2, places=[Attempt(1, 1)])
    resume(store)
    assert prune(store, 2, 1).dropped == [(1, 1)]
    seen = choose.survey(store)
    assert whole(store, seen.newest)
    named, unknown = choose.named(store, seen)
    leftovers.leftovers(store, 2, named, unknown)
    assert whole(store, choose.survey(store).newest)


def test_pinned_generations_stay(store):
    resume(store)
    first = publish(store, 1, 1)
    mark = Mark(kind="pinned", store=store.id, entry=(1, 1), root=first.root)
    durable.commit_bytes(store.published, names.pinned(1, 1), encode_mark(mark))
    for n in (2, 3):
        publish(store, 1, n)
    assert prune(store, 1, 1).marked == [(1, 2)]
    assert numbers(store) == [3, 1] and whole(store, first)


def test_a_stranger_in_the_name_of_a_mark_removes_nothing(store):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2)
    with open(os.path.join(store.path, "published", names.removed(1, 1)), "w") as file:
        file.write("mine")
    report = prune(store, 1, 1)
    assert report.marked == [] and len(report.failed) == 1
    assert data_attempts(store) == ["e000001-000001", "e000001-000002"]


def test_an_unreadable_generation_that_stays_stops_removal(store):
    resume(store)
    for n in (1, 2, 3):
        publish(store, 1, n)
    with open(os.path.join(store.path, observe.entry_file(1, 2)), "r+b") as file:
        file.write(b"??")
    report = prune(store, 1, 2)
    assert report.stopped is not None and report.removal.files == 0
    assert len(data_attempts(store)) == 3


def test_a_superseded_job_removes_nothing(store):
    resume(store)
    mine = Retention(store, 1, keep=1)
    for n in (1, 2):
        mine.published(publish(store, 1, n))
    third = publish(store, 1, 3)
    value = entries.Claim(
        store=store.id, epoch=2, continues=third.root, base=(1, 3), nonce="n", owners=1, job="next"
    )
    # Its seal alone is there yet.
    durable.commit_bytes(store.published, names.entry(1, 4), entries_encode(store, value))
    report = mine.published(third)
    assert report.stopped == "a newer continuation took over" and report.marked == []
    resume(store)
    assert mine.run().stopped == "a newer continuation took over"
    assert data_attempts(store) == ["e000001-000002", "e000001-000003"]


def entries_encode(store, value):
    from alpha_mpi.format.claim import encode_claim

    return encode_claim(value, store.algorithm)


def test_marks_that_may_be_lost_stop_retention_for_this_job(store, monkeypatch):
    resume(store)
    retention = Retention(store, 1, keep=1)
    publish(store, 1, 1)
    generation = publish(store, 1, 2)
    retention.lineage = [entries.Position(1, 1)]

    def fail(self):
        raise OSError(5, "Input/output error", self.path)

    monkeypatch.setattr(durable.Directory, "sync", fail)
    report = retention.published(generation)
    assert report.failed and report.marked == []
    monkeypatch.undo()
    assert retention.run().stopped is not None
    assert len(data_attempts(store)) == 2


def test_a_full_disk_keeps_everything_and_the_next_run_goes_on(store, monkeypatch):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2)
    real = durable._durable.create

    def create(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable._durable, "create", create)
    report = prune(store, 1, 1)
    assert report.failed and report.marked == []
    monkeypatch.setattr(durable._durable, "create", real)
    assert numbers(store) == [2, 1]
    assert prune(store, 1, 1).marked == [(1, 1)]


def _delete_retired(path, stop):
    """What other nodes did: delete files of generations that are retired."""
    rng = random.Random(1)
    with Store.open(path) as store:
        while not stop.is_set():
            for name in store.published.names():
                parsed = names.parse_published(name)
                if parsed is None or parsed[2] != "removed":
                    continue
                attempt = os.path.join(path, "data", names.attempt(Attempt(*parsed[:2])))
                for where, directories, files in os.walk(attempt, topdown=False):
                    for file in files:
                        if rng.random() < 0.7:
                            try:
                                os.unlink(os.path.join(where, file))
                            except OSError:
                                pass
                    for directory in directories:
                        try:
                            os.rmdir(os.path.join(where, directory))
                        except OSError:
                            pass


def test_r09_files_that_are_gone_already_are_no_error(store):
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    other = context.Process(target=_delete_retired, args=(store.path, stop))
    other.start()
    try:
        resume(store)
        retention = Retention(store, 1, keep=1)
        for n in range(1, 13):
            write_attempt(store, Attempt(1, n), roles=range(6))
            data = publish_root(store, n)
            report = retention.published(data)
            assert not report.failed and not report.removal.left and not report.removal.strangers
        report = retention.run()
        assert not report.failed
    finally:
        stop.set()
        other.join(timeout=60)
    assert other.exitcode == 0
    seen = choose.survey(store)
    assert seen.lineage == ((1, 12),) and whole(store, seen.newest)
    assert data_attempts(store) == ["e000001-000012"]


def test_an_own_publication_is_noted_by_its_position_and_nothing_raises(store, monkeypatch):
    resume(store)
    retention = Retention(store, 1, keep=1)
    for n in (1, 2):
        assert not retention.published(publish(store, 1, n).position).failed
    assert numbers(store) == [2]
    third = publish(store, 1, 3)

    def fail(self, name, limit):
        raise OSError(5, "Input/output error", name)

    monkeypatch.setattr(durable.Directory, "read", fail)
    assert retention.published(third.position).failed
    monkeypatch.undo()
    retention.run()
    assert numbers(store) == [3]
    assert data_attempts(store) == ["e000001-000003"]


def publish_root(store, n):
    from store.small_store import root_bytes

    root = entries.publish(store, 1, n, root_bytes(store, 1, n, update=n))
    return observe.candidate(store, (1, n), root)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("epochs", [1, 2])
def test_killed_anywhere_and_completed_by_the_next_run(tmp_path, monkeypatch, after, epochs):
    for k in range(1, 80):
        with Store.create_or_open(tmp_path / str(k), probe=False) as store:
            resume(store)
            for n in (1, 2, 3, 4):
                publish(store, 1, n)
            if epochs == 2:
                resume(store)
                publish(store, 2, 1)
            kept = choose.survey(store).lineage[:2]
            with killed_at(monkeypatch, k, after) as count:
                try:
                    prune(store, epochs, 2)
                except Killed:
                    pass
            # Nothing that is a generation has lost a byte, and the last two are generations.
            seen = choose.survey(store)
            assert seen.lineage[:2] == kept and seen.damage is None
            assert all(whole(store, seen.candidate(store, p)) for p in seen.lineage)
            report = prune(store, epochs, 2)
            assert not report.failed and report.stopped is None
            seen = choose.survey(store)
            assert seen.lineage == kept
            assert len(data_attempts(store)) == 2
            marks = [name for name in published(store) if name.endswith(".removed")]
            assert len(marks) == (2 if epochs == 1 else 0)
            if epochs == 2:
                assert "e000001-000005.json" in published(store)
                assert len(published(store)) == 3
            assert resume(store) == epochs + 1
            if not count.dead:
                return
    raise AssertionError("still killed after 80 operations")
