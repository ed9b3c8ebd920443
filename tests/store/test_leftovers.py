"""Leftovers: only what nobody names, only of older epochs, never a stranger."""

import os

import pytest
from store.small_store import PAYLOAD, Killed, data_attempts, killed_at, publish, resume, whole, write_attempt

from alpha_mpi.model.capture import Attempt
from alpha_mpi.restore import choose
from alpha_mpi.store import durable, leftovers, names, observe
from alpha_mpi.store.store import Store


@pytest.fixture
def store(tmp_path):
    with Store.create_or_open(tmp_path / "ckpt", probe=False) as opened:
        yield opened


def clean(store, epoch):
    named, unknown = choose.named(store, choose.survey(store))
    return leftovers.leftovers(store, epoch, named, unknown)


def touch(store, name, data=b"mine"):
    path = os.path.join(store.path, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


def test_only_after_the_own_claim(store):
    with pytest.raises(ValueError, match="has not been taken"):
        leftovers.leftovers(store, 1, ())


def test_unnamed_attempts_of_older_epochs_go_and_those_of_the_own_stay(store):
    resume(store)
    first = publish(store, 1, 1, save=1)
    write_attempt(store, Attempt(1, 2), roles=(0, 1, 300))  # aborted by a kill
    publish(store, 1, 2, save=3)
    resume(store)
    write_attempt(store, Attempt(2, 1))  # of this epoch: perhaps still written
    removal = clean(store, 2)
    assert data_attempts(store) == ["e000001-000001", "e000001-000003", "e000002-000001"]
    assert removal.attempts == [Attempt(1, 2)]
    assert removal.files == 5 and removal.bytes == 3 * len(PAYLOAD) + 2 * 3
    assert not removal.left and not removal.strangers
    assert whole(store, first) and whole(store, choose.survey(store).newest)
    again = clean(store, 2)
    assert (again.files, again.attempts, again.left) == (0, [], [])


def test_abandoned_generations_and_what_records_refer_to_stay(store):
    resume(store)
    old = publish(store, 1, 1)
    publish(store, 1, 2)
    write_attempt(store, Attempt(1, 3))
    resume(store, chosen=old, explicit=True)
    publish(store, 2, 1, places=[Attempt(1, 3)])  # its bytes lie in an attempt that no root is named by
    resume(store)
    clean(store, 3)
    assert data_attempts(store) == [
        "e000001-000001",
        "e000001-000002",
        "e000001-000003",
        "e000002-000001",
    ]


def test_a_generation_marked_as_removed_names_nothing(store):
    from alpha_mpi.store.entries import mark_removed

    resume(store)
    first = publish(store, 1, 1)
    publish(store, 1, 2)
    mark_removed(store, first.position, first.root)
    store.published.sync()
    resume(store)
    clean(store, 2)
    assert data_attempts(store) == ["e000001-000002"]


def test_an_unreadable_root_keeps_what_it_may_name(store):
    resume(store)
    publish(store, 1, 1)
    publish(store, 1, 2)
    write_attempt(store, Attempt(1, 3))
    resume(store)
    write_attempt(store, Attempt(2, 1))
    resume(store)
    touch(store, observe.entry_file(1, 1), b"garbage")
    removal = clean(store, 3)
    assert data_attempts(store) == ["e000001-000001", "e000001-000002", "e000001-000003"]
    assert removal.attempts == [Attempt(2, 1)]


def test_strangers_stay_with_their_directories(store):
    resume(store)
    write_attempt(store, Attempt(1, 1))
    made = [
        "data/e000001-000001/000/notes.txt",
        "data/e000001-000001/mine/x",
        "data/e000001-1/000/000000.pack",
        "data/e000001-000002",
        "data/.hidden",
        "published/.e000001-000001.json.tmp",
        "epochs/backup.json",
    ]
    for name in made:
        touch(store, name)
    os.symlink(store.path, os.path.join(store.path, "data", "e000001-000003"))
    os.mkdir(os.path.join(store.path, "data/e000001-000001/000/000001.pack"))
    resume(store)
    removal = clean(store, 2)
    assert removal.files == 1
    assert all(os.path.exists(os.path.join(store.path, name)) for name in made)
    assert os.path.islink(os.path.join(store.path, "data", "e000001-000003"))
    assert sorted(removal.strangers) == [
        "data/.hidden",
        "data/e000001-000001/000/000001.pack",
        "data/e000001-000001/000/notes.txt",
        "data/e000001-000001/mine",
        "data/e000001-000002",
        "data/e000001-000003",
        "data/e000001-1",
    ]
    assert removal.attempts == []


def test_temporary_names_of_older_epochs_go(store):
    resume(store)
    publish(store, 1, 1)
    resume(store)
    tail = "0123456789abcdef.tmp"
    old = [
        f".store.json.{tail}",
        f"epochs/.e000002.json.{tail}",
        f"published/.e000001-000002.json.{tail}",
        f"published/.e000001-000001.removed.{tail}",
        f"data/e000001-000001/000/.000000.pack.{tail}",
        f"data/e000001-000002/000/.000000.pack.{tail}",
        f"data/e000001-000002/000/.000007.manifest.json.{tail}",
    ]
    kept = [
        f"epochs/.e000003.json.{tail}",
        f"published/.e000002-000001.json.{tail}",
        f"data/e000002-000001/000/.000000.pack.{tail}",
    ]
    for name in [*old, *kept]:
        touch(store, name)
    removal = clean(store, 2)
    assert [name for name in old if os.path.exists(os.path.join(store.path, name))] == []
    assert all(os.path.exists(os.path.join(store.path, name)) for name in kept)
    assert removal.files == len(old) and removal.strangers == []
    assert whole(store, choose.survey(store).newest)


def test_an_aborted_attempt_of_the_own_epoch(store):
    resume(store)
    first = publish(store, 1, 1)
    write_attempt(store, Attempt(1, 2), roles=(0, 5, 700))
    removal = leftovers.remove_attempt(store, Attempt(1, 2))
    assert removal.attempts == [Attempt(1, 2)] and removal.files == 5
    assert data_attempts(store) == ["e000001-000001"]
    assert leftovers.remove_attempt(store, Attempt(1, 2)).files == 0
    assert whole(store, first)


def test_what_cannot_be_removed_is_reported_with_its_size(store, monkeypatch):
    resume(store)
    write_attempt(store, Attempt(1, 1))
    resume(store)
    real = durable.Directory.unlink

    def unlink(self, name, missing_ok=True):
        if name == names.pack(0):
            raise PermissionError(13, "Permission denied", name)
        real(self, name, missing_ok)

    monkeypatch.setattr(durable.Directory, "unlink", unlink)
    removal = clean(store, 2)
    assert removal.left == [("data/e000001-000001/000/000000.pack", len(PAYLOAD), "Permission denied")]
    assert removal.attempts == []
    monkeypatch.undo()
    assert clean(store, 2).attempts == [Attempt(1, 1)]


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_cleaning(tmp_path, monkeypatch, after):
    for k in range(1, 60):
        with Store.create_or_open(tmp_path / str(k), probe=False) as store:
            resume(store)
            publish(store, 1, 1)
            for save in (2, 3):
                write_attempt(store, Attempt(1, save), roles=(0, 1, 256))
            resume(store)
            with killed_at(monkeypatch, k, after) as count:
                try:
                    clean(store, 2)
                except Killed:
                    pass
            assert whole(store, choose.survey(store).newest)
            clean(store, 2)
            assert data_attempts(store) == ["e000001-000001"]
            if not count.dead:
                return
    raise AssertionError("still killed after 60 operations")
