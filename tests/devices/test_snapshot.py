"""Snapshots on a device: what is saved is what was there when it was ordered, whatever is written then."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import CARD, OTHER, Array, Fake, FakeError, Jax, Numba, Torch, Unnamed, Versioned

import alpha_mpi as am
from alpha_mpi import staged
from alpha_mpi.devices import ring as rings
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.snapshot import SPARE, Snapshot, snapshot
from alpha_mpi.devices.words import device_words
from alpha_mpi.digest import CHUNK
from alpha_mpi.errors import PeerFailed, Refused

LARGE = CHUNK // 4 * 2 + 77


def arrays(fake: Fake, kind: Any = Array) -> list[Any]:
    """Arrays on both devices: several chunks, strided, tiny, empty."""
    made = [
        fake.array(np.zeros(LARGE, np.float32), 0, kind),
        fake.array(np.zeros((90, 40), np.float64), 1, kind),
        fake.array(np.zeros((), np.int64), 0, kind),
        fake.array(np.zeros((0, 4), np.int64), 1, kind),
    ]
    made[1] = made[1].T if kind is not Jax else made[1]
    return made


def later(fake: Fake, made: list[Any], value: int) -> None:
    for array in made:
        (array._array if isinstance(array, Jax) else array).later(value)


def run(fake: Fake) -> None:
    """Let every producer get to its end, at once."""
    for stream in list(fake.streams):
        if stream.producer:
            stream.run(len(stream.work))


def taken(made: list[Any]) -> Snapshot:
    found = snapshot([device_words(array) for array in made])
    assert isinstance(found, Snapshot)
    return found


@pytest.mark.parametrize("kind", [Array, Unnamed, Numba, Torch, Versioned, Jax])
def test_what_comes_after_is_not_in_it(fake: Fake, kind: Any) -> None:
    made = arrays(fake, kind)
    later(fake, made, 5)
    found = taken(made)
    later(fake, made, 6)
    run(fake)
    assert (made[0].get() == 6).all(), "the producer is through before a word has left the device"
    for array, words in zip(made, found.words, strict=True):
        assert words.contiguous and not words.writable
        assert (words.fetch() == 5).all() and words.shape == array.get().shape
    assert set(fake.held) == {0, 1} and fake.held[0] < 4 * LARGE + 2000
    del words
    found.release()
    found.release()
    assert not any(fake.held.values())


def test_nothing_is_waited_for_where_the_streams_are_known(fake: Fake) -> None:
    """What a save needs that returns before its words are written: no host waits for the copies."""
    made = arrays(fake)
    later(fake, made, 5)
    fake.calls.clear()
    found = taken(made)
    assert "wait" not in fake.calls and len(found.ordered) == 2
    for event in found.ordered:
        event.wait()
    for array in made:
        array.data[...] = 6  # not in any order: the copies are done
    assert all((words.fetch() == 5).all() for words in found.words)
    fake.calls.clear()
    assert len(taken(arrays(fake, Torch)).ordered) == 2 and fake.calls.count("wait") == 2


def test_a_producer_that_is_not_told_to_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(CARD, OTHER)
    with seam.replaced(fake):
        made = arrays(fake)
        later(fake, made, 5)
        words = [device_words(array) for array in made]
        monkeypatch.setattr(fake, "follow", lambda *_: None)
        found = snapshot(words)
        assert isinstance(found, Snapshot)
        later(fake, made, 6)
        run(fake)
        assert (found.words[0].fetch() == 6).all()


def test_no_room(fake: Fake) -> None:
    made = arrays(fake)
    words = [device_words(array) for array in made]
    fake.total = 4 * LARGE + SPARE
    told = snapshot(words)
    assert (
        isinstance(told, str) and str(CARD) in told and f"takes {-(-4 * LARGE // 512) * 512 + 512} " in told
    )
    assert not any(fake.held.values()) and "room" not in fake.calls and "copy_there" not in fake.calls
    fake.total = 1 << 30
    fake.fail("room", after=1)  # free, but not in one piece
    told = snapshot(words)
    assert isinstance(told, str) and str(OTHER) in told and "room failed" in told
    assert not any(fake.held.values()) and "copy_there" not in fake.calls
    assert isinstance(snapshot([device_words(fake.array(np.zeros((0, 3))))]), Snapshot)


@pytest.mark.parametrize("what", ["free", "copy_there", "record", "follow", "wait", "copy"])
def test_a_device_that_fails(what: str) -> None:
    fake = Fake(CARD, OTHER, early=what == "copy")
    with seam.replaced(fake):
        made = arrays(fake, Torch if what == "wait" else Array)
        words = [device_words(array, "w") for array in made]
        fake.fail(what)
        with pytest.raises(PeerFailed, match=f"{what} failed") as told:
            snapshot(words)
        assert told.value.code == "device-failed" and isinstance(told.value.__cause__, FakeError)
        assert not any(fake.held.values()), "also while the error is kept"
        assert isinstance(snapshot(words), Snapshot)


def test_a_device_that_is_lost_hides_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(CARD, OTHER)
    with seam.replaced(fake):
        found = taken(arrays(fake))

        def lost(device: int) -> Any:
            raise FakeError("lost")

        monkeypatch.setattr(fake, "using", lost)
        found.release()
    assert not any(fake.held.values())


def state_of(made: list[Any]) -> am.State:
    state = am.State()
    for i, array in enumerate(made):
        state.partition(f"w{i}", array, shape=array.data.shape, layout=am.shares())
    state.replicate("host", np.arange(5))
    return state


class Hasty(staged.Staged):
    """A save during which the producers go on as soon as the snapshot is ordered."""

    def __init__(self, held: Any, ask: bool) -> None:
        super().__init__(held, ask)
        made, value = self.after
        for array in made:
            array.later(value)
            array.get()

    after: Any = ((), 0)


@pytest.mark.parametrize("hierarchy", [am.Star(), am.Tree(2)])
def test_a_save_from_a_snapshot(
    fake: Fake, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hierarchy: Any
) -> None:
    made = [array for array in arrays(fake) if array.data.size]
    monkeypatch.setattr("alpha_mpi.saving.Staged", Hasty)
    with am.Checkpointer(tmp_path / "s", state_of(made), hierarchy=hierarchy, snapshot="device") as ckpt:
        ckpt.resume()
        for value in (1, 2, 3):
            later(fake, made, value)
            monkeypatch.setattr(Hasty, "after", (made, -value))
            ckpt.save(value)
            assert not any(fake.held.values())
            with am.open(tmp_path / "s") as store:
                for i in range(len(made)):
                    assert (store["latest"][f"w{i}"][...] == value).all()
            assert all((array.data == -value).all() for array in made)
        lent = rings.ring(fake)
        assert len(lent._free) + len(lent._busy) == lent._made


def test_a_save_without_room_says_so(fake: Fake, tmp_path: pathlib.Path) -> None:
    made = [array for array in arrays(fake) if array.data.size]
    with am.Checkpointer(tmp_path / "s", state_of(made), snapshot="device") as ckpt:
        ckpt.resume()
        fake.total = SPARE
        later(fake, made, 7)
        with pytest.warns(
            staged.SnapshotWarning, match="no snapshot on Fake One .* saved without one"
        ) as told:
            ckpt.save(1)
        assert told[0].filename == __file__
        fake.total = 1 << 30
        later(fake, made, 8)
        ckpt.save(2)
    with am.open(tmp_path / "s") as store:
        assert [(g["w0"][...] == v).all() for g, v in zip(store, (7, 8), strict=True)] == [True, True]


@pytest.mark.parametrize("what", ["copy_there", "to_host", "wait"])
def test_a_save_that_fails_gives_the_memory_back(fake: Fake, tmp_path: pathlib.Path, what: str) -> None:
    made = [array for array in arrays(fake) if array.data.size]
    with am.Checkpointer(tmp_path / "s", state_of(made), snapshot="device") as ckpt:
        ckpt.resume()
        later(fake, made, 1)
        fake.fail(what)
        with pytest.raises(PeerFailed) as told:
            ckpt.save(1)
        assert told.value.code == "device-failed" and not any(fake.held.values())
        made[0].get()
        made[0].data[3] = np.nan
        with pytest.raises(Refused, match="infinite or not a number"):
            ckpt.save(2)
        assert not any(fake.held.values())
        made[0].data[3] = 1
        ckpt.save(3)
        assert not any(fake.held.values())


def test_what_a_user_may_ask_for(tmp_path: pathlib.Path) -> None:
    state = am.State()
    state.replicate("w", np.zeros(3))
    with pytest.raises(Refused) as told:
        am.Checkpointer(tmp_path / "s", state, snapshot="host")
    assert told.value.code == "argument" and '"device"' in str(told.value)
    with am.Checkpointer(tmp_path / "s", state, snapshot="device") as ckpt:  # on the host: nothing to do
        ckpt.resume()
        ckpt.save(1)
