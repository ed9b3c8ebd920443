"""What one role finds, or is, every owner refuses alike: at 1, 2, 4 and 7 owners, on star and tree.

The cases of a size are dealt inside one launch. The role at fault is the root, an inner role, a leaf.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.format.envelope import seal
from alpha_mpi.model import formats
from alpha_mpi.mpi import contribution, windows
from alpha_mpi.publication.writer import PackWriter
from tests.mpi.scenario import HIERARCHIES, Words, name_of, open_, publish, refusal, refused_resume, restored
from tests.mpi.scenario import team as team_of

pytestmark = pytest.mark.mpi


def roles_of(hierarchy: Any, owners: int) -> list[int]:
    """Root, inner role and leaf that have files of their own."""
    return [0] if isinstance(hierarchy, am.Star) else sorted({0, 1 % owners, owners - 1})


# ---------------------------------------------------------------- restore


def flip(path: pathlib.Path, other: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: pathlib.Path, other: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: pathlib.Path, other: pathlib.Path) -> None:
    path.write_bytes(b"")


def longer(path: pathlib.Path, other: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def gone(path: pathlib.Path, other: pathlib.Path) -> None:
    path.unlink()


def of_another_generation(path: pathlib.Path, other: pathlib.Path) -> None:
    shutil.copyfile(other, path)


def a_directory(path: pathlib.Path, other: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


def a_fifo(path: pathlib.Path, other: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: pathlib.Path, other: pathlib.Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


def a_newer_version(path: pathlib.Path, other: pathlib.Path) -> None:
    body = path.read_bytes().split(b"\n")[0]
    path.write_bytes(seal(body.replace(b'"version":1', b'"version":2')))


HARMS: list[Callable[[pathlib.Path, pathlib.Path], None]] = [
    *(flip, cut, empty, longer, gone, of_another_generation, a_directory, a_fifo, a_link, a_newer_version),
]


def file_of(kind: str, role: int, save: int) -> str:
    if kind == "manifest" and role == 0:
        return f"published/e000001-{save:06d}.json"
    return f"data/e000001-{save:06d}/000/{role:06d}.{'pack' if kind == 'pack' else 'manifest.json'}"


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_a_damaged_file_of_any_role(team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    """R03, R05: all refuse, naming the file; neither the store nor a word of any owner changes."""
    if team is None:
        return
    path, size = mpi_tmp_path / "s", team.size
    words = Words(team, ("w", (40, 3), np.float32, am.rows()), ("mean", (7,), np.float64, None))
    publish(path, words, team, 10, 20, hierarchy=hierarchy)
    fresh = Words(team, *words.regions)
    roles = roles_of(hierarchy, size)
    tried = 0
    for kind in ("pack", "manifest"):
        for n, harm in enumerate(HARMS):
            role = roles[(n + (kind == "pack")) % len(roles)]
            if kind == "pack" and harm is a_newer_version:
                continue
            if kind == "manifest" and role == 0 and harm is gone:
                role = roles[-1]
                if role == 0:
                    continue  # a root that is gone is a save that was never published
            file, other = file_of(kind, role, 2), file_of(kind, role, 1)
            victim = path / file
            good = victim.read_bytes()
            team.barrier()
            if team.rank == 0:
                harm(victim, path / other)
            team.barrier()
            told = refused_resume(team, path, fresh.state(), hierarchy=hierarchy, visibility=0.05)
            assert told.file is not None and told.file.endswith(file), (harm.__name__, told)
            assert isinstance(hierarchy, am.Star) or told.role in (role, None), (harm.__name__, told)
            assert all(set(a.view(np.uint8).reshape(-1)) <= {0xA5} for a in fresh.arrays.values())
            if team.rank == 0:
                shutil.rmtree(victim) if victim.is_dir() and not victim.is_symlink() else None
                victim.unlink(missing_ok=True)
                victim.with_name("aside").unlink(missing_ok=True)
                victim.write_bytes(good)
            team.barrier()
            tried += 1
    assert tried >= 18
    assert restored(path, words, team, hierarchy=hierarchy).update == 20


# ---------------------------------------------------------------- publication


class Faulty:
    """Two regions, whose source on this owner may do something else for once."""

    def __init__(self, team: Any, path: pathlib.Path, hierarchy: Any, **options: Any) -> None:
        a, b = am.shares().bounds(40, team.size, team.rank)
        self.team, self.w, self.mean = team, np.zeros(b - a), np.zeros(5, np.float32)
        self.instead: Callable[[], Any] | None = None
        state = am.State()
        state.partition("w", self.get, shape=(40,), layout=am.shares(), dtype=np.float64)
        state.replicate("mean", self.mean)
        state.partition("odd", self.w, shape=(40,), layout=am.shares(), finite=False)
        self.checkpointer = open_(path, state, team, hierarchy=hierarchy, **options)

    def get(self) -> Any:
        return self.w if self.instead is None else self.instead()


def raising(error: BaseException) -> Callable[[np.ndarray], Any]:
    def fail(w: np.ndarray) -> Any:
        raise error

    return fail


def not_finite(value: float) -> Callable[[np.ndarray], Any]:
    def change(w: np.ndarray) -> Any:
        bad = w.copy()
        bad[-1] = value
        return bad

    return change


#: What a source gives, the code of the refusal, and what its text quotes.
SOURCES: list[tuple[Callable[[np.ndarray], Any], str, str]] = [
    (lambda w: w.astype(np.float32), "wrong-format", "float32"),
    (lambda w: np.zeros(len(w) + 1), "wrong-shape", ""),
    (lambda w: None, "", ""),
    (not_finite(np.nan), "non-finite", "not a number"),
    (not_finite(-np.inf), "non-finite", "infinite"),
    (raising(MemoryError("no room")), "user-code", "MemoryError: no room"),
    (raising(OSError(5, "a disk of the program")), "", "disk of the program"),
    (raising(RecursionError("too deep")), "user-code", "RecursionError"),
    (raising(StopIteration()), "user-code", "StopIteration"),
]


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_a_source_that_fails_on_one_role(team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    """R17, R29: every role gets the same error naming role and region; then all save again."""
    if team is None:
        return
    job = Faulty(team, mpi_tmp_path / "s", hierarchy)
    with job.checkpointer as ckpt:
        ckpt.resume()
        for n, (source, code, text) in enumerate(SOURCES):
            offender = [0, team.size // 2, team.size - 1][n % 3]
            job.w += 1
            if team.rank == offender:
                job.instead = lambda source=source: source(job.w)  # type: ignore[misc]
            told = refusal(team, lambda n=n: ckpt.save(n + 1))  # type: ignore[misc]
            assert (told.role, told.region) == (offender, "w"), told
            assert told.code == code or not code, told
            assert text in str(told), told
            if code == "non-finite":
                a, b = am.shares().bounds(40, team.size, offender)
                assert f"word {b - a - 1}, index ({b - a - 1},) of the owner's array" in str(told), told
            job.instead = None
            ckpt.save(n + 1)
        # What is declared with finite=False may hold anything.
        job.instead = lambda: np.zeros(len(job.w))
        job.w[...] = np.nan
        assert ckpt.save(len(SOURCES) + 1).moment.update == len(SOURCES) + 1


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_words_that_change_on_one_role(
    team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if team is None:
        return
    job = Faulty(team, mpi_tmp_path / "s", hierarchy, check_space=False)
    flush = PackWriter._flush
    with job.checkpointer as ckpt:
        ckpt.resume()
        for n, offender in enumerate(roles_of(hierarchy, team.size)):
            job.w += 1

            def meanwhile(self: PackWriter) -> None:
                job.w += 0.5  # after its digest was taken, before it is written
                flush(self)

            with monkeypatch.context() as patch:
                if team.rank == offender:
                    patch.setattr(PackWriter, "_flush", meanwhile)
                told = refusal(team, lambda n=n: ckpt.save(n + 1))  # type: ignore[misc]
            assert told.code == "changed-while-saving" and told.role in (offender, None), told
            ckpt.save(n + 1)


DECLARED: list[tuple[str, dict[str, Any]]] = [
    ("other-learner", {"learner": am.Learner("another")}),
    ("other-contract", {"contract": am.Contract(combine="another")}),
    ("layout-differs", {"hierarchy": am.Tree(5)}),
    ("schema-differs", {"more": True}),
]


@pytest.mark.mpi(min_size=2)
def test_another_declaration_on_one_role(team: Any, mpi_tmp_path: pathlib.Path) -> None:
    if team is None:
        return
    for n, (code, options) in enumerate(DECLARED):
        offender = [1, team.size - 1][n % 2]
        mine: dict[str, Any] = {"hierarchy": am.Tree(2), "learner": am.Learner("one")}
        words = Words(team, ("w", (40,), np.float32, am.shares()))
        if team.rank == offender:
            mine |= {k: v for k, v in options.items() if k != "more"}
            if "more" in options:
                words = Words(team, *words.regions, ("more", (4,), np.float32, None))
        told = refusal(
            team, lambda mine=mine, words=words: open_(mpi_tmp_path / "s", words.state(), team, **mine)
        )  # type: ignore[misc]
        assert (told.code, told.role) == (code, offender), told
    publish(mpi_tmp_path / "s", Words(team, ("w", (40,), np.float32, am.shares())), team, 1)


# ---------------------------------------------------------------- what hardly ever happens


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_manifests_that_fit_no_window(
    team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if team is None:
        return
    words = Words(team, ("w", (40,), np.float32, am.shares()))
    publish(mpi_tmp_path / "s", words, team, 1, hierarchy=hierarchy)
    with monkeypatch.context() as patch:
        patch.setattr(windows, "PATH_LIMIT", 100)
        told = refused_resume(team, mpi_tmp_path / "s", words.state(), hierarchy=hierarchy)
        assert (told.code, told.expected) == ("path-too-large", "100"), told
    assert restored(mpi_tmp_path / "s", words, team, hierarchy=hierarchy).update == 1


@pytest.mark.mpi(min_size=2)
def test_words_that_are_not_as_long_as_announced(
    team: Any, mpi_tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if team is None:
        return
    job = Faulty(team, mpi_tmp_path / "s", am.Star())
    with job.checkpointer as ckpt:
        ckpt.resume()
        real = contribution.MemberGather._words

        def short(self: Any, actions: Any, kind: int, offset: int, n: int) -> Any:
            def payload(at: int, count: int) -> memoryview:
                return memoryview(actions.payload(at, count)).cast("B")[:-1]

            if kind == contribution.INVENTORY:
                return real(self, actions, kind, offset, n)
            return real(self, types.SimpleNamespace(payload=payload), kind, offset, n)

        for n, offender in enumerate((1, team.size - 1)):
            job.w += 1
            with monkeypatch.context() as patch:
                if team.rank == offender:
                    patch.setattr(contribution.MemberGather, "_words", short)
                told = refusal(team, lambda n=n: ckpt.save(n + 1))  # type: ignore[misc]
            assert (told.code, told.role) == ("bad-length", offender), told
            ckpt.save(n + 1)


# ---------------------------------------------------------------- scenarios, as they were told


@pytest.mark.mpi(min_size=4)
def test_r03_the_owner_whose_shard_is_damaged(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """R03: all four name role 2, region m and the file; with fallback all four have update 10."""
    regions = [("p", (400,), np.float32, am.shares()), ("m", (4000,), np.float32, am.shares())]
    path, tree = mpi_tmp_path / "s", am.Tree(2)
    with team_of(comm, 4) as four:
        if four is None:
            return
        publish(path, Words(four, *regions), four, 10, 20, hierarchy=tree)
        file = "data/e000001-000002/000/000002.pack"
        if four.rank == 0:
            data = bytearray((path / file).read_bytes())
            data[3000] ^= 1  # in the middle of its words of m
            (path / file).write_bytes(data)
        four.barrier()
        words = Words(four, *regions)
        told = refused_resume(four, path, words.state(), hierarchy=tree)
        assert (told.code, told.role, told.region) == ("corrupt-shard", 2, "m"), told
        assert told.file is not None and told.file.endswith(file)
        assert all(set(a.view(np.uint8)) == {0xA5} for a in words.arrays.values())
        with open_(path, words.state(), four, hierarchy=tree) as ckpt:
            assert ckpt.resume(fallback=True).update == 10
            assert ckpt.resumed is not None
            assert ckpt.resumed.skipped == (("e000001-000002", "corrupt-shard"),)
        words.check(10)


@pytest.mark.mpi(min_size=4)
def test_r08_bound_to_others_is_no_reason_to_go_back_unasked(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """R08: 20 is refused, also with fallback; 10 is continued when asked for by name, as a fork."""
    many, few = (6, 4) if comm.size >= 6 else (3, 2)
    path, region = mpi_tmp_path / "s", ("w", (60,), np.float32, am.shares())
    bound = {"contract": am.Contract(placement="bound")}
    with team_of(comm, many) as part:
        if part is not None:
            publish(path, Words(part, region), part, 10, **bound)
    comm.barrier()
    with team_of(comm, few) as part:
        if part is not None:
            words = Words(part, region)
            with open_(path, words.state(), part, **bound) as ckpt:
                ckpt.resume(accept=am.Accept(contract="fewer nodes are free"))
                words.at(20)
                ckpt.save(20)
    comm.barrier()
    with team_of(comm, many) as part:
        if part is not None:
            words = Words(part, region)
            told = refused_resume(part, path, words.state(), **bound)
            assert told.code == "placement-bound" and f"{few} owners" in str(told), told
            with open_(path, words.state(), part, **bound) as ckpt:
                told = refusal(part, lambda: ckpt.resume(fallback=True))
                assert told.code == "placement-bound", told
                assert ckpt.resume(generation=10).update == 10
                assert ckpt.resumed is not None and ckpt.resumed.forked
            words.check(10)
    comm.barrier()


@pytest.mark.mpi(min_size=8)
def test_r17_roles_five_and_six_of_eight(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """R17: a tree of fan-out 3; the error names role 5 (of two the first), then all save again."""
    job = Faulty(comm, mpi_tmp_path / "s", am.Tree(3))
    with job.checkpointer as ckpt:
        ckpt.resume()
        for update, offenders in ((1, (5,)), (2, (5, 6))):
            job.w += 1
            if comm.rank in offenders:
                job.instead = lambda: raising(ValueError("bad"))(job.w)
            told = refusal(comm, lambda update=update: ckpt.save(update))  # type: ignore[misc]
            assert told.role in offenders and told.region == "w" and "ValueError: bad" in str(told), told
            job.instead = None
            ckpt.save(update)
        for update, fault in ((3, SystemExit(3)), (4, KeyboardInterrupt())):
            job.w += 1
            if comm.rank == 5:
                job.instead = lambda fault=fault: raising(fault)(job.w)  # type: ignore[misc]
                with pytest.raises(type(fault)):
                    ckpt.save(update)
            else:
                with pytest.raises(am.PeerFailed) as caught:
                    ckpt.save(update)
                assert caught.value.role == 5
            job.instead = None
            ckpt.save(update)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("format", "bits"),
    [
        ("float32", 0x7FC00000),
        ("float32", 0x7F800000),
        ("bfloat16", 0x7FC0),
        ("float8_e4m3fn", 0x7F),
        ("int16", 0x7FC0),
    ],
)
def test_r29_a_word_that_is_no_number(comm: Any, mpi_tmp_path: pathlib.Path, format: str, bits: int) -> None:
    """R29: 6 is refused on both, naming role 1, ema and the word; 7 succeeds. Integers are fine."""
    with team_of(comm, 2) as two:
        if two is None:
            return
        dtype = formats.by_name(format).dtype
        words = Words(two, ("ema", (24,), dtype, am.shares()))
        with open_(mpi_tmp_path / "s", words.state(), two) as ckpt:
            ckpt.resume()
            words.at(5)
            ckpt.save(5)
            words.at(6)
            if two.rank == 1:
                words.arrays["ema"].view(f"u{dtype.itemsize}")[7] = bits
            if format == "int16":
                assert ckpt.save(6).moment.update == 6
                return
            told = refusal(two, lambda: ckpt.save(6))
            assert (told.code, told.role, told.region) == ("non-finite", 1, "ema"), told
            assert "word 7" in str(told)
            words.at(7)
            ckpt.save(7)
        assert restored(mpi_tmp_path / "s", words, two).update == 7
