"""Convoys: many small arrays cost a wait for each buffer, not for each array; in both directions."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import Fake

import alpha_mpi as am
from alpha_mpi.devices import convoy as convoys
from alpha_mpi.devices import ring as rings
from alpha_mpi.devices.words import device_words, in_convoy
from alpha_mpi.digest import CHUNK
from alpha_mpi.errors import PeerFailed


def small(fake: Fake, count: int, words: int = 500) -> list[Any]:
    """Arrays of two devices, every third one strided, written to when the devices get there."""
    made = []
    for i in range(count):
        array = fake.array(np.zeros((words // 10, 10), np.float32), i % 2)
        array.later(np.arange(words, dtype=np.float32).reshape(-1, 10) + i)
        made.append(array.T if i % 3 == 0 else array)
    return made


def whole(words: Any) -> bytes:
    return b"".join(bytes(view) for view in words.steps(0, words.nbytes))


def settled(fake: Fake) -> None:
    """Nothing is lent out any more."""
    lent = rings.ring(fake)
    assert len(lent._free) + len(lent._busy) == lent._made <= rings.BUFFERS


def test_copies_go_ahead_of_the_reader(fake: Fake) -> None:
    arrays = small(fake, 300)
    words = [device_words(array) for array in arrays]
    convoy = in_convoy(words)
    assert convoy is not None
    fake.calls.clear()
    first = next(iter(words[0].steps(0, words[0].nbytes)))
    assert fake.calls.count("wait") == 1
    before = fake.calls[: fake.calls.index("wait")]
    assert before.count("to_host") > 250, "the others are under way before the first one is waited for"
    assert bytes(first) == arrays[0].data.tobytes()
    for array, one in zip(arrays[1:], words[1:], strict=True):
        assert whole(one) == array.data.tobytes()
    assert fake.calls.count("wait") <= 1 + 300 * 2048 // CHUNK + 2
    convoy.close()
    settled(fake)


def test_memory_is_bounded_and_any_order_is_right(fake: Fake) -> None:
    arrays = small(fake, 60, 100_000)
    words = [device_words(array) for array in arrays]
    convoy = in_convoy(words)
    assert convoy is not None
    rng = np.random.default_rng(3)
    for numbers in (range(60), range(0, 60, 7), range(59, -1, -1), rng.permutation(60), [5, 5, 5, 6]):
        for i in numbers:
            view = whole(words[i])
            assert view == arrays[i].data.tobytes()
            assert convoy._live <= convoys.AHEAD + 1
            assert words[i].copy(8, 400) == arrays[i].data.tobytes()[8:400], "a part is read by itself"
    convoy.close()
    assert convoy._live == 0 and fake.pinned_bytes <= rings.BUFFERS * CHUNK
    settled(fake)
    assert whole(words[3]) == arrays[3].data.tobytes(), "closed, and read once more"
    convoy.close()


@pytest.mark.parametrize("what", ["to_host", "copy", "wait", "record"])
@pytest.mark.parametrize("after", [0, 1, 7, 30])
def test_what_fails_is_told_in_its_turn(fake: Fake, what: str, after: int) -> None:
    """With the name of the array that is read; what goes ahead of it fails silently, and again then."""
    arrays = small(fake, 40, 60_000)
    words = [device_words(array, f"w{i}") for i, array in enumerate(arrays)]
    convoy = in_convoy(words)
    assert convoy is not None
    fake.fail(what, after)
    failed = []
    for i, (array, one) in enumerate(zip(arrays, words, strict=True)):
        try:
            assert whole(one) == array.data.tobytes()
        except PeerFailed as error:
            assert error.code == "device-failed" and error.region == f"w{i}"
            failed.append(i)
            assert whole(one) == array.data.tobytes(), "the next attempt is right"
    assert len(failed) <= 1
    convoy.close()
    assert convoy._live == 0
    settled(fake)


def test_too_few_or_too_large(fake: Fake) -> None:
    one = device_words(fake.array(np.zeros(9)))
    large = [device_words(fake.array(np.zeros(CHUNK, "f4"))) for _ in range(3)]
    empty = device_words(fake.array(np.zeros((0, 4))))
    assert in_convoy([]) is None and in_convoy([one, *large, empty]) is None
    assert whole(empty) == b"" and whole(one) == bytes(72)


def test_writes_share_buffers_and_one_wait(fake: Fake) -> None:
    arrays = small(fake, 300)
    words = [device_words(array) for array in arrays]
    fake.calls.clear()
    for i, one in enumerate(words):
        data = np.full(500, i, np.float32)
        one.put(memoryview(data.view(np.uint8).data), 0)
        data[:] = -1  # may be used again at once
    assert "wait" not in fake.calls and fake.calls.count("record") <= 300 * 2048 // CHUNK + 2
    for one in words:
        one.settle()
    assert fake.calls.count("wait") == 2, "one for each device"
    for i, array in enumerate(arrays):
        assert (array.data == i).all()
    settled(fake)
    words[0].fill(np.zeros((10, 50), np.float32))
    assert not arrays[0].data.any()


def state_of(arrays: dict[str, Any], **more: Any) -> am.State:
    state = am.State()
    for name, array in arrays.items():
        if name.startswith("both"):
            state.replicate(name, array)
        else:
            state.partition(name, array, shape=array.data.shape, layout=am.shares())
    return state


def test_a_save_and_a_resume_of_many(fake: Fake, tmp_path: pathlib.Path) -> None:
    hierarchy = am.Tree(2)

    def made(kept: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for i in range(120):
            values = np.full((50, 10), kept + i, np.float32)
            found[f"{('both', 'mine')[i % 2]}{i}"] = fake.array(
                values.T if i % 5 == 0 else values, i % 3 == 0
            )
        found["mine-large"] = fake.array(np.arange(CHUNK, dtype=np.float32) * kept)
        return found

    arrays = made(1)
    with am.Checkpointer(tmp_path / "s", state_of(arrays), hierarchy=hierarchy) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        for array in arrays.values():
            array.later(array.data + 1)
        fake.calls.clear()
        ckpt.save(2)
        assert fake.calls.count("wait") < 40, "120 arrays, twice"
        settled(fake)
    fresh = made(5)
    with am.Checkpointer(tmp_path / "s", state_of(fresh), hierarchy=hierarchy) as ckpt:
        fake.calls.clear()
        assert ckpt.resume().update == 2
        assert fake.calls.count("wait") < 40
    for name, array in arrays.items():
        assert fresh[name].data.tobytes() == array.data.tobytes(), name
    with am.open(tmp_path / "s") as store:
        for name, array in arrays.items():
            assert store["latest"][name][...].tobytes() == array.data.tobytes(), name
