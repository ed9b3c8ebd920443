"""Direct writing from a device's memory: the same bytes in the file, whatever kvikio or the store does."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from fake_device import CARD, Array, Fake, FakeError, Torch
from fake_kvikio import Kvikio

import alpha_mpi as am
from alpha_mpi import staged
from alpha_mpi.devices import gds
from alpha_mpi.devices import ring as rings
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.direct import Direct
from alpha_mpi.devices.words import device_words
from alpha_mpi.digest import CHUNK
from alpha_mpi.errors import PeerFailed, Refused

WORDS = CHUNK // 4 * 21 + 77
FEW = CHUNK // 4 * 5 + 77
PAGE = 4096


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Kvikio:
    found = Kvikio()
    found.install(monkeypatch)
    return found


class Written:
    """A file, and what was written to it which way."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.plain_bytes = self.direct_bytes = 0
        self.direct = Direct()

    def plain(self, view: memoryview, offset: int) -> None:
        self.plain_bytes += os.pwrite(self.fd, view, offset)

    def wrote(self, nbytes: int) -> None:
        self.direct_bytes += nbytes

    def words(self, array: Any, offset: int, begin: int = 0, end: int | None = None) -> bytes:
        """Write the words of an array; return what was seen of them on the way."""
        words = device_words(array, "w")
        file = self.direct.opened(self.fd, self.wrote)
        assert file is not None
        try:
            steps = file.steps(words, begin, words.nbytes if end is None else end, offset, self.plain)
            return b"".join(bytes(view) for view in steps)
        finally:
            file.close()
            file.close()

    def bytes_at(self, offset: int, nbytes: int) -> bytes:
        assert self.plain_bytes + self.direct_bytes == nbytes
        return os.pread(self.fd, nbytes, offset)


def settled(fake: Fake, kvikio: Kvikio) -> None:
    lent = rings.ring(fake)
    assert len(lent._free) + len(lent._busy) == lent._made <= rings.BUFFERS
    assert kvikio.pending == kvikio.open == 0 and not any(fake.held.values())


@pytest.mark.parametrize("kind", [Array, Torch])
@pytest.mark.parametrize("device", [0, 1])
def test_the_same_bytes(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, kind: Any, device: int) -> None:
    """After what the producer has begun; whole chunks directly, several at a time; the rest plainly."""
    array = fake.array(np.zeros(WORDS, np.float32), device, kind)
    array.later(np.arange(WORDS, dtype=np.float32))
    written = Written(tmp_path / "f")
    seen = written.words(array, 3 * PAGE)
    assert seen == array.data.tobytes() == written.bytes_at(3 * PAGE, 4 * WORDS)
    assert [n for _, n in kvikio.writes] == [CHUNK] * 21 and written.direct_bytes == 21 * CHUNK
    assert written.direct.nbytes == 21 * CHUNK and written.direct.reason is None
    assert 1 < kvikio.most <= rings.DEPTH
    settled(fake, kvikio)


def test_strided_and_parts(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path) -> None:
    array = fake.array(np.arange(1500 * 1024, dtype=np.float32).reshape(1500, 1024))
    for i, view in enumerate((array.T, array[::-1, 1:])):
        written = Written(tmp_path / f"{i}")
        assert written.words(view, PAGE) == view.data.tobytes()
        assert written.bytes_at(PAGE, view.data.nbytes) == view.data.tobytes() and written.direct_bytes
    written = Written(tmp_path / "part")
    part = written.words(array, PAGE, 4 * CHUNK, 5 * CHUNK + 400)
    assert part == array.data.tobytes()[4 * CHUNK : 5 * CHUNK + 400] == written.bytes_at(PAGE, CHUNK + 400)
    settled(fake, kvikio)


def test_what_is_not_aligned_goes_by_the_host(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path) -> None:
    array = fake.array(np.arange(WORDS, dtype=np.float32))
    written = Written(tmp_path / "f")
    assert written.words(array, 64) == written.bytes_at(64, 4 * WORDS) and not kvikio.writes
    file = written.direct.opened(written.fd, written.wrote)
    assert file is not None
    sizes = [(0, CHUNK), (PAGE, 2 * CHUNK), (64, CHUNK), (0, CHUNK - 4)]
    assert [file.takes(*one) for one in sizes] == [True, True, False, False]
    file.close()
    assert not file.takes(0, CHUNK)
    settled(fake, kvikio)


@pytest.mark.parametrize("number", [0, 3, 20])
@pytest.mark.parametrize("how", ["short", "nothing", "fails", "fails at once", "another error"])
def test_writes_that_fail(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, how: str, number: int) -> None:
    """By way of the host then, with the reason, and nothing more is tried directly."""
    error = ValueError("boom") if how == "another error" else RuntimeError("boom")
    kvikio.failing[number] = {"short": CHUNK // 2, "nothing": 0}.get(how, error)
    if how == "fails at once":
        kvikio.at_once.add(number)
    array = fake.array(np.arange(WORDS, dtype=np.float32))
    written = Written(tmp_path / "f")
    assert written.words(array, PAGE) == array.data.tobytes() == written.bytes_at(PAGE, 4 * WORDS)
    assert written.direct.reason is not None
    assert ("boom" if isinstance(kvikio.failing[number], Exception) else "bytes were written") in (
        written.direct.reason
    )
    assert len(kvikio.writes) <= number + rings.DEPTH
    settled(fake, kvikio)


def test_no_memory_on_the_device(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path) -> None:
    fake.total = 1 << 20
    array = fake.array(np.arange(WORDS, dtype=np.float32))
    written = Written(tmp_path / "f")
    assert written.words(array, PAGE) == array.data.tobytes() == written.bytes_at(PAGE, 4 * WORDS)
    assert not kvikio.writes and "no memory on the device" in str(written.direct.reason)
    settled(fake, kvikio)


@pytest.mark.parametrize("what", ["copy_there", "to_host", "copy", "record", "wait"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_device_that_fails(kvikio: Kvikio, tmp_path: pathlib.Path, what: str, after: int) -> None:
    fake = Fake(CARD)
    with seam.replaced(fake):
        array = fake.array(np.arange(WORDS, dtype=np.float32))
        written = Written(tmp_path / "f")
        words = device_words(array, "w")
        file = written.direct.opened(written.fd, written.wrote)
        assert file is not None
        fake.fail(what, after)
        with pytest.raises(PeerFailed, match=f"{what} failed") as told:
            for _ in file.steps(words, 0, words.nbytes, 0, written.plain):
                pass
        assert told.value.code == "device-failed" and isinstance(told.value.__cause__, FakeError)
        file.close()
        settled(fake, kvikio)


def test_a_reader_that_stops_early(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path) -> None:
    """Nothing is read from the device's copies any more when it is gone; a full disk is told as it is."""
    words = device_words(fake.array(np.arange(WORDS, dtype=np.float32)))
    written = Written(tmp_path / "f")
    file = written.direct.opened(written.fd, written.wrote)
    assert file is not None
    steps: Any = file.steps(words, 0, words.nbytes, 0, written.plain)
    for _ in range(4):
        next(steps)
    steps.close()
    assert kvikio.pending == 0
    queue = rings.stream(fake, 0)
    assert queue.done == len(queue.work), "nor is anything read from the array"
    kvikio.failing = dict.fromkeys(range(100), RuntimeError("no space"))

    def full(view: memoryview, offset: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        for _ in file.steps(words, 0, words.nbytes, 0, full):
            pass
    file.close()
    settled(fake, kvikio)


def test_a_store_that_cannot(fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path) -> None:
    kvikio.refuses = "NVFS driver initialization error"
    written = Written(tmp_path / "f")
    assert written.direct.opened(written.fd, written.wrote) is None
    assert written.direct.reason == "RuntimeError: NVFS driver initialization error"


def test_kvikio_that_is_not_there(monkeypatch: pytest.MonkeyPatch, kvikio: Kvikio) -> None:
    gds.check()
    assert gds.is_there()
    monkeypatch.delattr(kvikio.defaults, "set")  # before 25.02
    with pytest.raises(Refused, match="cannot be used") as told:
        gds.check()
    assert told.value.code == "missing-package"
    monkeypatch.setitem(sys.modules, "kvikio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"alpha-mpi\[gds-cuda12\]") as told:
        gds.check()
    assert told.value.code == "missing-package" and not gds.is_there()


def state_of(made: list[Any]) -> am.State:
    state = am.State()
    state.replicate("host", np.arange(400_000))
    for i, array in enumerate(made):
        state.partition(f"w{i}", array, shape=array.data.shape, layout=am.shares())
    state.replicate("both", made[0])
    return state


def arrays(fake: Fake) -> list[Any]:
    """Large, strided on the other device, small, and one of just a chunk."""
    shapes = [(FEW,), (1100, 300), (40, 3), (CHUNK // 4,), (77,)]
    made = [fake.array(np.zeros(shape, np.float32), i % 2) for i, shape in enumerate(shapes)]
    made[1] = made[1].T
    return made


def saved(fake: Fake, path: pathlib.Path, hierarchy: Any = None, **more: Any) -> dict[str, bytes]:
    """Save twice, and resume; return the bytes of every pack."""
    made = arrays(fake)
    with am.Checkpointer(path, state_of(made), hierarchy=hierarchy or am.Star(), **more) as ckpt:
        ckpt.resume()
        for update in (1, 2):
            for i, array in enumerate(made):
                array.later(np.arange(array.data.size).reshape(array.data.shape) % (97 + update + i))
            ckpt.save(update)
    fresh = arrays(fake)
    with am.Checkpointer(path, state_of(fresh), hierarchy=hierarchy or am.Star()) as ckpt:
        assert ckpt.resume().update == 2
    assert all(a.get().tobytes() == b.get().tobytes() for a, b in zip(made, fresh, strict=True))
    return {str(pack.relative_to(path)): pack.read_bytes() for pack in path.rglob("*.pack")}


@pytest.mark.parametrize(
    ("hierarchy", "more"),
    [(am.Star(), {}), (am.Tree(2), {"digest": "sha256"}), (am.Star(), {"snapshot": "device"})],
    ids=str,
)
def test_a_store_has_the_same_bytes(
    fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, hierarchy: Any, more: Any
) -> None:
    plain = saved(fake, tmp_path / "plain", hierarchy, **more)
    assert not kvikio.writes
    direct = saved(fake, tmp_path / "direct", hierarchy, gpu_direct=True, **more)
    assert direct == plain and len(plain) == 2
    assert len(kvikio.writes) == 2 * (5 + 1 + 1 + 5) and {n for _, n in kvikio.writes} == {CHUNK}
    settled(fake, kvikio)


@pytest.mark.parametrize("number", [0, 9])
def test_a_save_whose_direct_writes_fail(
    fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, number: int
) -> None:
    plain = saved(fake, tmp_path / "plain")
    kvikio.failing[number] = RuntimeError("boom")
    with pytest.warns(staged.DirectWarning, match="not directly: RuntimeError: boom") as told:
        direct = saved(fake, tmp_path / "direct", gpu_direct=True)
    assert direct == plain and len(told) == 1, "the next save tries again"
    settled(fake, kvikio)


def test_a_store_that_cannot_be_written_to_directly(
    fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path
) -> None:
    kvikio.refuses = "no O_DIRECT here"
    plain = saved(fake, tmp_path / "plain", gpu_direct=False)
    with pytest.warns(staged.DirectWarning, match="no O_DIRECT here") as told:
        assert saved(fake, tmp_path / "direct", gpu_direct=True) == plain
    assert told[0].filename == __file__
    assert saved(fake, tmp_path / "auto", gpu_direct="auto") == plain, "and says nothing"
    assert not kvikio.writes


@pytest.mark.parametrize("what", ["copy_there", "wait"])
def test_a_save_in_which_the_device_fails(
    fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, what: str
) -> None:
    made = arrays(fake)
    with am.Checkpointer(tmp_path / "s", state_of(made), gpu_direct=True) as ckpt:
        ckpt.resume()
        fake.fail(what, 4)
        with pytest.raises(PeerFailed) as told:
            ckpt.save(1)
        assert told.value.code == "device-failed"
        settled(fake, kvikio)
        ckpt.save(2)
    settled(fake, kvikio)


def test_words_that_change_between_the_looks(
    fake: Fake, kvikio: Kvikio, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alpha_mpi.publication import writer

    made = arrays(fake)
    look = writer.PackWriter._look_again

    def changed(self: Any) -> None:
        made[0].data[FEW - 1] = 1
        look(self)

    with am.Checkpointer(tmp_path / "s", state_of(made), gpu_direct=True) as ckpt:
        ckpt.resume()
        monkeypatch.setattr(writer.PackWriter, "_look_again", changed)
        with pytest.raises(Refused) as told:
            ckpt.save(1)
        assert told.value.code == "changed-while-saving"
    assert kvikio.writes
    settled(fake, kvikio)


def test_what_a_user_may_ask_for(
    tmp_path: pathlib.Path, kvikio: Kvikio, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = am.State()
    state.replicate("w", np.zeros(3))
    with pytest.raises(Refused) as told:
        am.Checkpointer(tmp_path / "s", state, gpu_direct="yes")
    assert told.value.code == "argument"
    monkeypatch.setitem(sys.modules, "kvikio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"gds-cuda13") as told:
        am.Checkpointer(tmp_path / "s", state, gpu_direct=True)
    assert told.value.code == "missing-package"
    with am.Checkpointer(tmp_path / "s", state, gpu_direct="auto") as ckpt:
        ckpt.resume()
        ckpt.save(1)
