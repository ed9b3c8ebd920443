"""Many small arrays in one save: written together, and still each judged by itself."""

from __future__ import annotations

import pathlib
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fill import same_bits

import alpha_mpi as am
from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.model.formats import by_name
from alpha_mpi.model.schema import Region
from alpha_mpi.publication.own import Own
from alpha_mpi.publication.shards import SMALL, Shards, Wanted, Wants
from alpha_mpi.publication.source import source_of
from alpha_mpi.publication.writer import PackWriter
from alpha_mpi.store import durable


def strided(array: np.ndarray) -> np.ndarray:
    """Return the same words, not one behind the other."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


#: Ways in which words lie in memory.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda a: a,
    "fortran": np.asfortranarray,
    "strided": strided,
    "swapped": lambda a: a.astype(a.dtype.newbyteorder("S")),
}
FORMATS = ("float32", "float64", "int64", "bool", "complex64", "bfloat16", "float8_e5m2", "uint8")


def arrays(seed: int) -> dict[str, np.ndarray]:
    """Return 96 arrays of all kinds, few bytes to a chunk and more, by name."""
    draw, found = np.random.default_rng(seed), {}
    for i in range(96):
        dtype = by_name(FORMATS[i % len(FORMATS)]).dtype
        layout = list(LAYOUTS)[i // 3 % len(LAYOUTS)]
        shape = (int(draw.integers(1, 40)), int(draw.integers(1, 70)))
        if i % 31 == 30:  # between the small ones: one that is written alone, and one of several chunks
            shape = (SMALL if i < 60 else 3 * SMALL, 2)
        words = draw.integers(0, 100, shape).astype(np.float32).astype(dtype)
        found[f"{i:02d} {layout} {dtype}"] = LAYOUTS[layout](words)
    found["a number of no axis"] = np.array(3.5)
    return found


def declared(given: dict[str, np.ndarray], documents: dict[str, Any], read: list[str]) -> am.State:
    """Return a state of these arrays, every third replicated, and a document after every tenth."""
    state = am.State()
    for i, (name, array) in enumerate(given.items()):

        def getter(name: str = name) -> np.ndarray:
            read.append(name)
            return given[name]

        if i % 3 == 2:
            state.replicate(name, getter)
        else:
            rule = am.rows() if array.ndim else am.shares()
            state.partition(name, getter, shape=array.shape, layout=rule)
        if i % 10 == 9:
            note = f"note {i}"
            documents.setdefault(note, i)
            state.document(
                note, lambda note=note: documents[note], lambda v, n=note: documents.update({n: v})
            )
    return state


@pytest.mark.parametrize("algorithm", digest.ALGORITHMS)
def test_arrays_of_all_kinds_come_back_each_read_once(tmp_path: pathlib.Path, algorithm: str) -> None:
    first, documents, read = arrays(1), dict[str, Any](), list[str]()
    state = declared(first, documents, read)
    with am.Checkpointer(tmp_path / "s", state, comm=None, digest=algorithm) as ckpt:
        ckpt.resume()
        for update in (1, 2):
            first["00 plain float32"][0, 0] = update
            documents["note 9"] = "x" * 100 * update
            read.clear()
            ckpt.save(update)
            assert read == list(first)
    again, found = arrays(1), dict[str, Any]()
    for array in again.values():
        array[...] = np.zeros((), array.dtype)
    with am.Checkpointer(tmp_path / "s", declared(again, found, []), comm=None) as ckpt:
        assert ckpt.resume().update == 2
    assert found == documents
    for name, array in first.items():
        assert same_bits(np.ascontiguousarray(again[name]), np.ascontiguousarray(array)), name


Many = tuple[am.Checkpointer, dict[str, np.ndarray]]


@pytest.fixture(params=["partition", "replicate"])
def many(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[tuple[am.Checkpointer, dict[str, np.ndarray]]]:
    given = {f"w{i}": np.ones(4096, np.float32) for i in range(200)}
    given["w70"] = strided(np.ones((4, 1024), np.float32))
    given["w90"] = np.ones((8, 512), ml_dtypes.bfloat16)
    given["w91"] = np.ones(512, np.int64)
    state = am.State()
    for name, array in given.items():
        if request.param == "replicate":
            state.replicate(name, array)
        else:
            state.partition(name, array, shape=array.shape, layout=am.rows())
    with am.Checkpointer(tmp_path / "s", state, comm=None, keep=2) as ckpt:
        ckpt.resume()
        yield ckpt, given


@pytest.mark.parametrize("name", ["w0", "w70", "w90", "w199"])
def test_a_word_that_is_not_finite_is_named(many: Many, name: str) -> None:
    ckpt, given = many
    ckpt.save(1)
    given["w0"][1] = 7
    good = given[name].copy()
    index = (3,) if good.ndim == 1 else (good.shape[0] - 1, 3)
    given[name][index] = np.inf
    with pytest.raises(Refused) as caught:
        ckpt.save(2)
    assert (caught.value.code, caught.value.region, caught.value.role) == ("non-finite", name, 0)
    assert str(index) in str(caught.value.found)
    given[name][...] = good
    assert ckpt.save(2).moment.update == 2


def test_of_two_arrays_that_are_not_finite_the_first_is_named(many: Many) -> None:
    ckpt, given = many
    given["w90"][0, 0] = np.nan  # of a format that is looked at later
    given["w120"][5] = np.inf
    with pytest.raises(Refused, match="word 0, index") as caught:
        ckpt.save(1)
    assert (caught.value.code, caught.value.region) == ("non-finite", "w90")


@pytest.mark.parametrize("name", ["w3", "w70", "w90", "w91", "w199"])
def test_words_that_change_during_a_save_are_found(
    many: Many, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt, given = many
    real = PackWriter._look_again

    def change(writer: PackWriter) -> None:
        given[name][0] += 1
        real(writer)

    monkeypatch.setattr(PackWriter, "_look_again", change)
    with pytest.raises(Refused) as caught:
        ckpt.save(1)
    assert (caught.value.code, caught.value.region) == ("changed-while-saving", name)
    monkeypatch.undo()
    assert ckpt.save(1).moment.update == 1


@pytest.mark.parametrize("name", ["r3", "r9", "p3", "large"])
def test_replicated_words_that_change_before_they_are_written_are_found(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every owner agreed on by its digest is what is written, also beside words nobody compares."""
    given = {f"{kind}{i}": np.ones(100) for i in range(10) for kind in "rp"} | {"large": np.ones(70_000)}
    state = am.State()
    for i, (key, array) in enumerate(given.items()):
        if key.startswith("p"):
            state.partition(key, array, shape=array.shape, layout=am.rows())
        else:
            state.replicate(key, array)
        if i == 7:
            state.document("note", lambda: "x", lambda value: None)
    real = PackWriter.add_all

    def change(writer: PackWriter, shards: Shards) -> list[bytes]:
        given[name][7] += 1
        return real(writer, shards)

    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        monkeypatch.setattr(PackWriter, "add_all", change)
        if name == "p3":  # nobody has seen those: they are the words of this moment
            assert ckpt.save(1).moment.update == 1
            return
        with pytest.raises(Refused) as caught:
            ckpt.save(1)
        assert (caught.value.code, caught.value.region) == ("changed-while-saving", name)


@pytest.mark.parametrize("step", ["_add_few", "_look_again"])
@pytest.mark.parametrize("kind", ["resized", "of another format"])
def test_an_array_that_becomes_another_in_place_is_named(
    kind: str, step: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may change not the words of an array alone, but what the array is."""
    given = {f"w{i}": np.ones(1000, np.float32) for i in range(9)}
    state = am.State()
    for name, array in given.items():
        state.partition(name, array, shape=array.shape, layout=am.rows())
    real = getattr(PackWriter, step)

    def change(writer: PackWriter, *few: Any) -> Any:
        if kind == "resized":
            given["w3"].resize(900, refcheck=False)
            given["w4"].resize(1100, refcheck=False)  # as many bytes in all
        else:
            given["w3"].dtype = np.int32  # type: ignore[misc]
        return real(writer, *few)

    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        monkeypatch.setattr(PackWriter, step, change)
        if (kind, step) == ("of another format", "_look_again"):  # the bytes written are those that are there
            assert ckpt.save(1).moment.update == 1
            return
        with pytest.raises(Refused) as caught:
            ckpt.save(1)
        assert (caught.value.code, caught.value.region) == ("changed-while-saving", "w3")
        assert caught.value.role == 0


def test_what_is_packed_is_packed_a_few_at_a_time(tmp_path: pathlib.Path) -> None:
    """Words in another order than they are stored take a chunk of memory, not a copy of the state."""
    draw, state = np.random.default_rng(2), am.State()
    given = [np.asfortranarray(draw.random((64, 128))) for _ in range(200)]  # 12.5 MiB
    for i, array in enumerate(given):
        state.partition(f"w{i}", array, shape=array.shape, layout=am.rows())
    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        tracemalloc.start()
        try:
            ckpt.save(1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 5 << 20


def test_small_arrays_are_written_together(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt, given = many
    calls: list[int] = []
    real = durable.Target.pwrite

    def counted(target: durable.Target, buffers: Any, offset: int) -> int:
        count = real(target, buffers, offset)
        if target.name.endswith(".pack"):
            calls.append(count)
        return count

    monkeypatch.setattr(durable.Target, "pwrite", counted)
    ckpt.save(1)
    nbytes = sum(array.nbytes for array in given.values())
    assert sum(calls) >= nbytes
    assert len(calls) <= nbytes / digest.CHUNK + 4  # header, a last part of a chunk, and what ends the file


@pytest.mark.parametrize("format", ["float32", "bfloat16", "complex128", "bool"])
def test_no_array_that_lies_as_it_is_stored_is_copied(format: str) -> None:
    array = np.ones((30, 20), by_name(format).dtype)
    region = Region(0, "w", "per-owner", format, array.shape)
    source = source_of(region, Own(0, 0, 0, None), array, True)
    for view in (source.memory, source.view(), *source.steps()):
        assert view is not None and view.readonly
        assert np.shares_memory(np.frombuffer(view, np.uint8), array.view(np.uint8))
    assert source_of(region, Own(0, 0, 0, None), array.T, True).memory is None


def shards_of(given: list[np.ndarray], finite: list[bool]) -> Shards:
    """Return these arrays as shards, each of a region of its own."""
    wanted = []
    for i, array in enumerate(given):
        format = by_name(array.dtype.name)
        region = Region(i, f"w{i}", "per-owner", format.name, array.shape)
        wanted.append(Wanted(region, Own(i, 0, 0, None), array.size * format.itemsize, finite[i]))
    return Wants(wanted).of(given)


@pytest.mark.parametrize("algorithm", digest.ALGORITHMS)
def test_digests_of_many_are_those_of_each(algorithm: str) -> None:
    given = list(arrays(5).values())
    shards = shards_of(given, [True] * len(given))
    found = shards.tables(algorithm)
    assert found == [source.table(algorithm) for source in shards]
    some: list[bytes | None] = [None if i % 3 else table for i, table in enumerate(found)]
    for known in (some, [*some[:40], *found[40:]], found):  # digests that are known already
        assert shards.wants.of(given, known).tables(algorithm) == found


def test_a_few_are_those_that_fit_one_write() -> None:
    sizes = [SMALL, 8, SMALL + 8, 8, *[SMALL] * 5, 8, *[8] * 1200]
    few = list(shards_of([np.zeros(n // 8) for n in sizes], [False] * len(sizes)).few_at_once())
    assert [k for one in few for k in range(one.start, one.stop)] == list(range(len(sizes)))
    assert [one.stop - one.start for one in few] == [2, 1, 4, 1000, 203]
    assert [one.total for one in few] == [sum(sizes[one.start : one.stop]) for one in few]
    assert all(one.total <= digest.CHUNK and one.stop - one.start <= 1000 for one in few)


@pytest.mark.parametrize("change", ["strided", "swapped", "another format", "another shape"])
def test_an_array_that_is_replaced_between_saves_is_looked_at_anew(
    tmp_path: pathlib.Path, change: str
) -> None:
    """What lay in memory as it is stored at the last save need not at this one."""
    given = {f"w{i}": np.arange(6.0 * 4).reshape(6, 4) + i for i in range(20)}
    state = am.State()
    for name, array in given.items():
        state.partition(name, lambda name=name: given[name], shape=array.shape, layout=am.rows())
    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        words = given["w7"] + 1
        if change == "strided":
            given["w7"] = strided(words)
        elif change == "swapped":
            given["w7"] = words.astype(">f8")
        else:
            given["w7"] = words.view(np.int64) if change == "another format" else words.reshape(8, 3)
            with pytest.raises(Refused) as caught:
                ckpt.save(2)
            assert (caught.value.code, caught.value.region) == (f"wrong-{change[8:]}", "w7")
            return
        ckpt.save(2)
    again = {name: np.zeros_like(array) for name, array in given.items()}
    state = am.State()
    for name, array in again.items():
        state.partition(name, array, shape=array.shape, layout=am.rows())
    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        assert ckpt.resume().update == 2
    assert all(np.array_equal(again[name], array) for name, array in given.items())


def test_a_save_reads_no_root_back(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has just published it knows; with `keep` every save retires something."""
    ckpt, given = many
    read: list[str] = []
    real = durable.Directory.read

    def noted(directory: durable.Directory, name: str, *more: Any) -> bytes:
        read.append(name)
        return real(directory, name, *more)

    monkeypatch.setattr(durable.Directory, "read", noted)
    for update in range(1, 7):
        given["w0"][0] = update
        ckpt.save(update)
    assert "e000001-000004.removed" in read
    assert not [name for name in read if name.startswith("e0") and name.endswith(".json")]


def test_finiteness_of_many_is_that_of_each() -> None:
    draw = np.random.default_rng(3)
    for _ in range(50):
        given = []
        for _ in range(12):
            format = by_name(FORMATS[int(draw.integers(len(FORMATS)))])
            array = np.ones(int(draw.integers(1, 50)), format.dtype)
            if format.floating and draw.random() < 0.1:
                array[int(draw.integers(len(array)))] = np.nan
            given.append(array if draw.random() < 0.8 else strided(array))
        shards = shards_of(given, [bool(draw.random() < 0.8) for _ in given])
        (few,) = shards.few_at_once()
        outcomes = []
        for together in (True, False):
            try:
                if together:
                    few.check_finite(few.shown()[0])
                else:
                    for source in shards:
                        source.check_finite(source.view(), 0)
                outcomes.append(None)
            except Refused as error:
                outcomes.append((error.region, error.found))
        assert outcomes[0] == outcomes[1]
