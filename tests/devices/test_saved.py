"""Arrays on a GPU, saved and resumed by one owner: every way they can be declared."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from fake_device import Array, Fake, Jax, Numba, Torch

import alpha_mpi as am
from alpha_mpi.devices.words import device_words
from alpha_mpi.digest import CHUNK

LARGE = CHUNK // 4 * 2 + 77


class Model:
    """One array of every kind: of two devices, strided, tiny, immutable, and of the host."""

    def __init__(self, fake: Fake, update: int) -> None:
        numbers = np.arange(LARGE, dtype=np.float32) + update
        self.values = {
            "w": numbers,
            "second": numbers.astype(np.float64)[: LARGE // 3].reshape(-1, 1) / 3,
            "strided": numbers[:4096].reshape(32, 128).T,
            "tiny": np.array(update, np.int64),
            "torch": numbers[::-1][:5000],
            "jax": numbers[100:400].reshape(3, 100),
            "host": numbers[:10] / 7,
        }
        self.w = fake.array(self.values["w"])
        self.second = fake.array(self.values["second"], 1)
        self.strided = fake.array(self.values["strided"].T).T
        self.tiny = fake.array(self.values["tiny"])
        self.torch = fake.array(self.values["torch"], 1, Torch)
        self.jax = Jax(fake, self.values["jax"], 1)
        self.host = self.values["host"].copy()

    def state(self) -> am.State:
        state = am.State()
        state.replicate("w", self.w)
        state.partition("second", self.second, shape=self.second.data.shape, layout=am.rows())
        state.replicate("strided", lambda: self.strided)
        state.per_owner("tiny", self, "tiny")
        state.partition("torch", self.torch, shape=(5000,), layout=am.shares())
        state.replicate("jax", self, "jax")
        state.replicate("host", self.host)
        return state

    def check(self, values: dict[str, Any]) -> None:
        for name, expected in values.items():
            found = self.host if name == "host" else getattr(self, name).get()
            assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("hierarchy", [am.Star(), am.Tree(2)])
@pytest.mark.parametrize("staging", [1 << 30, 0])
def test_saved_and_resumed(fake: Fake, tmp_path: pathlib.Path, hierarchy: Any, staging: int) -> None:
    model = Model(fake, 1)
    with am.Checkpointer(tmp_path / "s", model.state(), hierarchy=hierarchy) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        later = Model(fake, 2).values
        for name in ("w", "second", "torch"):
            getattr(model, name).later(later[name])  # begun, and saved before anybody waits for it
        ckpt.save(2)
        assert fake.current() == 0
    expected = {**model.values, **{name: later[name] for name in ("w", "second", "torch")}}
    with am.open(tmp_path / "s") as store:
        for name, values in expected.items():
            found = store["latest"][name][...]
            assert found.tobytes() == values.tobytes(), name

    fresh = Model(fake, 5)
    fresh.w.later(np.zeros(LARGE))  # what the producer has begun must not come after what is restored
    jax = fresh.jax
    with am.Checkpointer(tmp_path / "s", fresh.state(), hierarchy=hierarchy, staging=staging) as ckpt:
        assert ckpt.resume().update == 2
        fresh.check(expected)
        assert fresh.jax is not jax and fresh.jax.device == 1
        with pytest.raises(am.Refused) as told:
            ckpt.save(3)
        assert told.value.code == "unchanged-state"


def test_words_that_change_while_they_are_saved(fake: Fake, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """Another stream writes between the two looks."""
    array = fake.array(np.zeros(LARGE, np.float32))
    state = am.State()
    state.partition("w", array, shape=(LARGE,), layout=am.shares())
    with am.Checkpointer(tmp_path / "s", state) as ckpt:
        ckpt.resume()
        from alpha_mpi.publication import writer

        look = writer.PackWriter._look_again

        def changed(self: Any) -> None:
            array.data[LARGE - 1] = 1
            look(self)

        with monkeypatch.context() as patch:
            patch.setattr(writer.PackWriter, "_look_again", changed)
            with pytest.raises(am.Refused) as told:
                ckpt.save(1)
            assert (told.value.code, told.value.region) == ("changed-while-saving", "w")
        ckpt.save(2)


@pytest.mark.parametrize("how", ["replicate", "per_owner", "partition"])
def test_all_is_there_when_resume_returns(fake: Fake, tmp_path: pathlib.Path, how: str) -> None:
    """Nobody waits for a device after a resume: the words are in its memory."""
    values = np.arange(99, dtype=np.int32)
    array = fake.array(values, 1)

    def state() -> am.State:
        found = am.State()
        more = {"shape": (99,), "layout": am.shares()} if how == "partition" else {}
        getattr(found, how)("w", array, **more)
        return found

    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    array.data[...] = 0
    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
        assert array.data.tobytes() == values.tobytes()


def test_a_tree_in_one_line(fake: Fake, tmp_path: pathlib.Path) -> None:
    """`am.save` takes arrays on devices, of whichever library; `am.load` gives those of NumPy."""
    values = np.arange(LARGE, dtype=np.float32)
    tree = {"w": fake.array(values), "more": [fake.array(values[:9], 1, Numba), {"name": "x"}]}
    tree["w"].later(values + 1)
    am.save(tmp_path / "s", tree)
    found = am.load(tmp_path / "s")
    assert found["w"].tobytes() == (values + 1).tobytes() and found["more"][1] == {"name": "x"}
    assert found["more"][0].tobytes() == values[:9].tobytes()


def test_an_error_that_is_kept_keeps_no_buffer(fake: Fake, tmp_path: pathlib.Path) -> None:
    """More refusals, each kept with its frames, than the ring has buffers for."""
    from alpha_mpi.devices import ring
    from alpha_mpi.publication.own import Own
    from alpha_mpi.publication.source import source_of

    array = fake.array(np.full(3 * CHUNK // 4, np.nan, np.float32))
    state = state_of(array)
    region = state.declare(1, 0, am.Star()).regions[0]
    kept = []
    for _ in range(2 * ring.BUFFERS):
        source = source_of(region, Own(0, 0, 0, None), device_words(array), True)
        with pytest.raises(am.Refused) as told:
            source.table("xxh3-128")
        kept.append(told)
    lent = ring.ring(fake)
    assert lent._made <= ring.BUFFERS and len(lent._free) + len(lent._busy) == lent._made


def test_words_that_are_not_finite(fake: Fake, tmp_path: pathlib.Path) -> None:
    array = fake.array(np.zeros((100, 7), np.float16).T)
    state = am.State()
    state.partition("w", array, shape=(7, 100), layout=am.rows())
    with am.Checkpointer(tmp_path / "s", state) as ckpt:
        ckpt.resume()
        array.data[3, 5] = np.nan
        with pytest.raises(am.Refused, match=r"index \(3, 5\)") as told:
            ckpt.save(1)
        assert told.value.code == "non-finite"


@pytest.mark.parametrize("what", ["to_host", "copy", "wait", "record"])
def test_a_device_that_fails_in_a_save_or_a_resume(fake: Fake, tmp_path: pathlib.Path, what: str) -> None:
    values = np.arange(LARGE, dtype=np.float32)
    array = fake.array(values)
    state = am.State()
    state.partition("w", array, shape=(LARGE,), layout=am.shares())
    with am.Checkpointer(tmp_path / "s", state) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        array.later(values + 1)
        fake.fail(what, after=2 if what == "wait" else 0)
        with pytest.raises(am.PeerFailed) as told:
            ckpt.save(2)
        assert told.value.code == "device-failed" and told.value.region == "w"
        assert ckpt.save(3).name == "e000001-000002", "nothing was published by the one that failed"
    array.later(values)
    with am.Checkpointer(tmp_path / "s", state_of(array)) as ckpt:
        fake.fail("to_device")
        with pytest.raises(am.PeerFailed) as told:
            ckpt.resume()
        assert told.value.code == "device-failed"
    with am.Checkpointer(tmp_path / "s", state_of(array)) as ckpt:
        assert ckpt.resume().update == 3
    assert array.data.tobytes() == (values + 1).tobytes()


def state_of(array: Any) -> am.State:
    state = am.State()
    state.partition("w", array, shape=array.data.shape, layout=am.shares())
    return state


def test_nothing_is_written_to_a_device_before_all_is_validated(fake: Fake, tmp_path: pathlib.Path) -> None:
    array, second = fake.array(np.ones(LARGE, np.float32)), fake.array(np.ones(9))

    def state() -> am.State:
        found = am.State()
        found.partition("w", array, shape=(LARGE,), layout=am.shares())
        found.per_owner("last", second)
        return found

    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    (pack,) = (tmp_path / "s").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    at = data.rindex(np.ones(9).tobytes())
    data[at] ^= 1
    pack.write_bytes(data)
    array.data[...], second.data[...] = 5, 5
    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        with pytest.raises(am.Refused) as told:
            ckpt.resume()
        assert told.value.code == "corrupt-shard"
    assert (array.data == 5).all() and (second.data == 5).all() and "to_device" not in fake.calls


def test_no_copy_is_under_way_behind_an_error(fake: Fake, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """A save whose disk fails, and a resume whose device fails: the arrays are the user's again."""
    values = np.arange(LARGE, dtype=np.float32)
    arrays = [
        fake.array(values),
        fake.array(values[:99], 1),
        *(fake.array(values[:80_000] + i) for i in range(9)),
    ]

    def state() -> am.State:
        found = am.State()
        for i, array in enumerate(arrays):
            found.partition(f"w{i}", array, shape=array.data.shape, layout=am.shares())
        return found

    def under_way() -> int:
        return sum(one in ("to_host", "to_device") for one in fake.calls) - fake.calls.count("copy")

    from alpha_mpi.publication import writer

    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
        for part in ("_flush", "_add"):  # among the chunks of the large one; among the small ones
            work = getattr(writer.PackWriter, part)
            calls: list[Any] = []

            def full(self: Any, *more: Any, work: Any = work, calls: list[Any] = calls) -> Any:
                calls.append(more)
                found = work(self, *more)
                if len(calls) == (1 if work.__name__ == "_flush" else 5):
                    raise OSError(28, "full")
                return found

            with monkeypatch.context() as patch:
                patch.setattr(writer.PackWriter, part, full)
                with pytest.raises(am.CommitFailed):
                    ckpt.save(1)
            assert not under_way(), part
        ckpt.save(2)
    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        fake.fail("to_device", after=5)
        with pytest.raises(am.PeerFailed):
            ckpt.resume()
    assert fake.calls.count("to_device") == 6 and under_way() == 1, "the one that failed to begin"


def test_what_cannot_be_filled_on_a_device(fake: Fake) -> None:
    read_only = fake.array(np.zeros(3))
    read_only.writable = False
    other = Fake()
    for source in (read_only, Jax(fake, np.zeros(3), 0), lambda: fake.array(np.zeros(3))):
        state = am.State()
        state.replicate("w", source)
        with pytest.raises(am.Refused) as told:
            state.declare(1, 0, am.Star())
        assert told.value.code == "cannot-set" and told.value.region == "w"
    assert other.calls == []


def test_a_function_that_takes_new_arrays(fake: Fake, tmp_path: pathlib.Path) -> None:
    held = {"w": Jax(fake, np.arange(6.0), 1)}
    given: list[Any] = []
    array = fake.array(np.arange(4.0))

    def state() -> am.State:
        found = am.State()
        found.replicate("w", lambda: held["w"], write=lambda new: held.update(w=new))
        found.replicate("plain", lambda: array, write=given.append)
        return found

    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    held["w"] = Jax(fake, np.zeros(6), 1)
    with am.Checkpointer(tmp_path / "s", state()) as ckpt:
        ckpt.resume()
    assert isinstance(held["w"], Jax) and held["w"].device == 1
    assert held["w"].get().tolist() == list(range(6))
    assert isinstance(given[0], np.ndarray), "a library that makes no arrays gets one of NumPy's"
    assert isinstance(array, Array)
