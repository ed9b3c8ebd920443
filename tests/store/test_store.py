"""The store itself: made once whoever comes first, known by its id, refused if it is something else."""

import os
import threading

import pytest
from store.small_store import Killed, killed_at, publish, resume

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format.claim import StoreFile, encode_store_file
from alpha_mpi.format.envelope import seal
from alpha_mpi.model.capture import Attempt
from alpha_mpi.restore import choose
from alpha_mpi.store import names
from alpha_mpi.store.store import Store


def refused(code, call):
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_made_with_the_directories_above_it(tmp_path):
    path = tmp_path / "run" / "a" / "ckpt"
    with Store.create_or_open(path) as store:
        assert sorted(os.listdir(path)) == ["data", "epochs", "published", "store.json"]
        assert store.probed.no_replace in ("rename", "link")
        assert store.algorithm == digest.DEFAULT and len(store.id) == 32
        with Store.open(path) as again, Store.create_or_open(path, probe=False) as third:
            assert again.id == third.id == store.id
            assert third.probed is None and third.writable and not again.writable


def test_every_directory_made_or_found_is_synced(tmp_path, monkeypatch):
    synced = []
    real = Store.create_or_open.__globals__["Directory"].sync
    monkeypatch.setattr(
        Store.create_or_open.__globals__["Directory"],
        "sync",
        lambda self: (synced.append(self.path), real(self))[1],
    )
    path = tmp_path / "run" / "ckpt"
    Store.create_or_open(path, probe=False).close()
    for made in (tmp_path.parent, tmp_path, tmp_path / "run", path):
        assert str(made) in synced
    synced.clear()
    (tmp_path / "other" / "ckpt").mkdir(parents=True)  # found: perhaps not synced by whoever made it
    Store.create_or_open(tmp_path / "other" / "ckpt", probe=False).close()
    assert str(tmp_path / "other") in synced


def test_moved_and_reached_by_a_link_is_the_same_store(tmp_path):
    with Store.create_or_open(tmp_path / "a") as store:
        first = store.id
    os.rename(tmp_path / "a", tmp_path / "b")
    os.symlink("b", tmp_path / "link")
    with Store.open(tmp_path / "link") as store:
        assert store.id == first


def test_many_at_once_mean_one_store(tmp_path):
    found, barrier = [], threading.Barrier(8)

    def make():
        barrier.wait()
        with Store.create_or_open(tmp_path / "new" / "ckpt") as store:
            found.append(store.id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_it_is_made(tmp_path, monkeypatch, after):
    for k in range(1, 40):
        path = tmp_path / f"{k}" / "ckpt"
        with killed_at(monkeypatch, k, after) as count:
            try:
                Store.create_or_open(path).close()
            except Killed:
                pass
        with Store.create_or_open(path) as store:
            assert resume(store) == 1
            assert publish(store, 1, 1).position == choose.survey(store).newest.position
        if not count.dead:
            return
    raise AssertionError("still killed after 40 operations")


def test_refuses_what_is_not_a_store(tmp_path):
    file = tmp_path / "file"
    file.write_text("text")
    refused("not-a-directory", lambda: Store.create_or_open(file))
    refused("not-a-directory", lambda: Store.open(file))
    refused("not-a-directory", lambda: Store.create_or_open(file / "below"))
    error = refused("no-store", lambda: Store.open(tmp_path / "missing"))
    assert error.file == str(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "empty").mkdir()
    refused("not-a-store", lambda: Store.open(tmp_path / "empty"))

    used = tmp_path / "used"
    (used / "data").mkdir(parents=True)
    error = refused("not-a-store", lambda: Store.create_or_open(used))
    assert "data" in error.found and os.listdir(used) == ["data"]

    other = tmp_path / "other"
    other.mkdir()
    for text in ("", "{}", '{"name": "somebody else\'s"}\n', "\n\n\n"):
        (other / "store.json").write_text(text)
        refused("not-a-store", lambda: Store.create_or_open(other))
        refused("not-a-store", lambda: Store.open(other))
        assert os.listdir(other) == ["store.json"]
    (other / "store.json").unlink()
    (other / "store.json").mkdir()
    refused("not-a-store", lambda: Store.open(other))


def test_strangers_beside_a_new_store_stay(tmp_path):
    (tmp_path / "README").write_text("mine")
    with Store.create_or_open(tmp_path) as store:
        assert choose.survey(store).strangers == ("README",)
    assert (tmp_path / "README").read_text() == "mine"


def test_a_newer_format_version_is_named(tmp_path):
    with Store.create_or_open(tmp_path / "s") as store:
        body = encode_store_file(StoreFile(id=store.id)).split(b"\n")[0]
    newer = body.replace(b'"version":1', b'"version":2')
    assert newer != body
    (tmp_path / "s" / "store.json").write_bytes(seal(newer))
    error = refused("format-version", lambda: Store.open(tmp_path / "s"))
    assert (error.expected, error.found) == ("1", "2")
    refused("format-version", lambda: Store.create_or_open(tmp_path / "s"))


def test_a_damaged_store_file_is_named(tmp_path):
    with Store.create_or_open(tmp_path / "s"):
        pass
    file = tmp_path / "s" / "store.json"
    data = file.read_bytes()
    for damaged, code in (
        (data[:20] + b"#" + data[21:], "corrupt-store-file"),
        (data[:-5], "truncated"),
        (data + b"more\n", "corrupt-store-file"),
        (data[: data.index(b"\n")], "truncated"),
    ):
        file.write_bytes(damaged)
        error = refused(code, lambda: Store.create_or_open(tmp_path / "s"))
        assert error.file == str(file)


def test_another_digest_algorithm_is_not_taken_silently(tmp_path):
    Store.create_or_open(tmp_path / "s", algorithm="sha256").close()
    with Store.create_or_open(tmp_path / "s") as store:
        assert store.algorithm == "sha256"
        assert resume(store) == 1
        assert publish(store, 1, 1).root.startswith("sha256:")
    refused("digest-algorithm", lambda: Store.create_or_open(tmp_path / "s", algorithm="xxh3-128"))
    refused("unknown-digest", lambda: Store.create_or_open(tmp_path / "t", algorithm="md5"))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("part", [names.PUBLISHED, names.DATA])
def test_a_used_store_that_lost_a_directory_does_not_begin_anew(tmp_path, part):
    with Store.create_or_open(tmp_path / "s") as store:
        resume(store)
    os.rmdir(tmp_path / "s" / part)
    error = refused("missing-directory", lambda: Store.create_or_open(tmp_path / "s"))
    assert error.file == str(tmp_path / "s" / part)
    refused("missing-directory", lambda: Store.open(tmp_path / "s"))


def test_a_name_is_believed_missing_only_after_the_visibility_deadline(tmp_path):
    timer = threading.Timer(0.2, lambda: Store.create_or_open(tmp_path / "late").close())
    timer.start()
    with Store.open(tmp_path / "late", visibility=20) as store:
        assert store.id
    timer.join()


def test_files_of_an_attempt(tmp_path):
    with Store.create_or_open(tmp_path / "s") as store:
        with pytest.raises(FileNotFoundError):
            store.files_of(Attempt(1, 1), 0)
        with store.files_of(Attempt(1, 1), 300, create=True) as directory:
            assert directory.path == str(tmp_path / "s/data/e000001-000001/001")
        store.files_of(Attempt(1, 1), 511).close()
