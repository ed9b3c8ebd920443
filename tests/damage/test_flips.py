"""One flipped bit anywhere: found by `verify`, never restored, and nothing is changed for it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from damage import kit

from alpha_mpi.restore.verify import verify
from alpha_mpi.store import check
from alpha_mpi.store.store import Store

#: Files up to so many bytes are small: every position is tried.
SMALL = 600


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("made") / "ckpt"
    kit.make(path)
    return path


@pytest.fixture(scope="module")
def store(made: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return kit.copy(made, tmp_path_factory.mktemp("flipped") / "ckpt")


def flips(good: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    """Give (position, bytes with one bit flipped there) at every `step`-th byte, each its own bit."""
    for at in range(0, len(good), step):
        yield at, good[:at] + bytes([good[at] ^ 1 << at // step % 8]) + good[at + 1 :]


def found_wrong(path: pathlib.Path, file: str) -> bool:
    """What `verify --all` does, without the command around it: whether `file` is named as wrong."""
    with Store.open(path) as store:
        problems = check.faults(store)
        generation = kit.FILES[file]
        if generation:
            epoch, number = (int(part.lstrip("e")) for part in generation.split("-"))
            problems += verify(store, epoch, number).problems
    return any(kit.names_file(error, file) for error in problems)


@pytest.mark.parametrize("file", [f for f in kit.FILES if f != "store.json"])
def test_every_flip_is_found_in_its_file(store: pathlib.Path, file: str) -> None:
    """R05: every byte of the small files, and of all others as many positions from end to end."""
    path = store / file
    good = path.read_bytes()
    tried = 0
    try:
        for at, bad in flips(good, 1 if len(good) <= SMALL else -(-len(good) // 40)):
            path.write_bytes(bad)
            assert found_wrong(store, file), at
            tried += 1
    finally:
        path.write_bytes(good)
    assert tried >= 38
    assert not found_wrong(store, file)


def test_every_flip_in_the_store_file_is_refused(store: pathlib.Path) -> None:
    path = store / "store.json"
    good = path.read_bytes()
    try:
        for bit in range(8 * len(good)):
            path.write_bytes(good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :])
            with pytest.raises(kit.am.CheckpointError) as caught:
                Store.open(store)
            assert caught.value.file is not None and caught.value.file.endswith("store.json"), bit
    finally:
        path.write_bytes(good)
    Store.open(store).close()


@pytest.mark.parametrize("file", kit.FILES)
def test_verify_ends_in_1_and_nothing_is_restored(store: pathlib.Path, file: str) -> None:
    """R05: a resume that needs the file is refused, with the store and the job as they were."""
    path, generation = store / file, kit.FILES[file]
    good = path.read_bytes()
    whole = kit.digests(store)
    try:
        for _, bad in flips(good, -(-len(good) // 5)):
            path.write_bytes(bad)
            before = kit.digests(store)
            code, said = kit.run("verify", store, "--all")
            assert code == 1 and file in said, said
            assert kit.digests(store) == before
            if generation != "":
                error = kit.refused(store, generation)
                assert kit.names_file(error, file) or file == "store.json", error
    finally:
        path.write_bytes(good)
    assert kit.digests(store) == whole


@pytest.mark.slow
@pytest.mark.parametrize("file", kit.FILES)
def test_every_byte_of_every_file_through_the_command(store: pathlib.Path, file: str) -> None:
    path = store / file
    good = path.read_bytes()
    try:
        for at, bad in flips(good, 1):
            path.write_bytes(bad)
            code, said = kit.run("verify", store, "--all")
            assert code == 1 and file in said, (at, said)
    finally:
        path.write_bytes(good)


def test_what_is_not_damaged_is_still_restored(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """R05: where a file is not needed the words are exact, or it is refused; never wrong values."""
    job = kit.Job(kit.copy(made, tmp_path / "whole"))
    with job.checkpointer as ckpt:
        ckpt.resume()
    for n, file in enumerate(f for f, g in kit.FILES.items() if g not in (None, kit.NEWEST)):
        path = kit.copy(made, tmp_path / str(n))
        data = bytearray((path / file).read_bytes())
        data[len(data) // 2] ^= 16
        (path / file).write_bytes(data)
        again = kit.Job(path)
        with again.checkpointer as ckpt:
            assert ckpt.resume().update == 40, file
        assert again.words == job.words, file
