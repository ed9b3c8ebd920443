"""Repartition: a generation resumes on any other placement, bit for bit, or is refused by name.

A *team* of a ranks saves and a team of b ranks resumes, within one launch.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits
from restore.build_store import build

import alpha_mpi as am
from alpha_mpi.model.layout import Irregular, Replicated
from alpha_mpi.model.pieces import local_shape
from alpha_mpi.mpi.families import Families
from alpha_mpi.mpi.world import open_world
from alpha_mpi.protocol.hierarchy import path as tree_path
from alpha_mpi.restore import resume as restore
from alpha_mpi.store import durable
from alpha_mpi.store.store import Store
from tests.mpi.scenario import Words, name_of, open_, publish, refusal, snapshot, team

pytestmark = pytest.mark.mpi

HIERARCHIES = [am.Star(), am.Tree(2), am.Tree(3)]


def whole(name: str, update: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return fill(name, update, shape, dtype)


def settle(comm: Any) -> None:
    """Wait for everybody. Polled: a blocking wait would take the core from those who still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def cut(array: np.ndarray, piece: Any) -> np.ndarray:
    """The words of a piece of an array, in the piece's own shape."""
    if isinstance(piece, am.Interval):
        return array.reshape(-1)[piece.start : piece.stop].copy()
    return array[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))].copy()


def factors(n: int) -> tuple[int, int]:
    """The most square grid of n owners."""
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return a, n // a


def odd_pieces(shape: tuple[int, ...], n: int, k: int, seed: int) -> list[am.Interval]:
    """Irregular pieces: the flattened words cut at random and dealt at random."""
    rng = np.random.default_rng([seed, n])
    size = math.prod(shape)
    cuts = sorted({0, size, *rng.integers(0, size + 1, 2 * n).tolist()})
    owners = rng.integers(0, n, len(cuts)).tolist()
    return [am.Interval(a, b) for (a, b), o in zip(itertools.pairwise(cuts), owners, strict=False) if o == k]


#: Ways to lay out a two-dimensional region on n owners.
LAYOUTS: dict[str, Any] = {
    "rows": lambda n: am.rows(),
    "columns": lambda n: am.rows(1),
    "shares": lambda n: am.shares(),
    "grid": lambda n: am.grid(factors(n)),
    "mesh": lambda n: am.mesh({"data": factors(n)[0], "model": factors(n)[1]}, ("model",)),
    "mesh2": lambda n: am.mesh({"data": factors(n)[1], "model": factors(n)[0]}, (None, "model")),
    "some": lambda n: am.on(range(n - 1, -1, -2), am.shares()),
    "two": lambda n: am.on(sorted({0, n - 1}), am.replicated()),
    "replicated": lambda n: am.replicated(),
    "irregular": lambda n: "irregular",
}


class Job:
    """One owner's state: regions of `fill`, each laid out by name."""

    def __init__(
        self, comm: Any, layouts: dict[str, tuple[tuple[int, ...], Any, str]], setters: bool = False
    ):
        self.rank, self.size = comm.rank, comm.size
        self.layouts, self.setters = layouts, setters
        self.arrays: dict[str, list[np.ndarray]] = {}
        self.pieces: dict[str, list[Any]] = {}
        self.document: Any = None
        self.state = am.State()
        for name, (shape, dtype, layout) in layouts.items():
            self._declare(name, shape, np.dtype(dtype), layout)
        self.state.document("note", lambda: self.document, self._take)

    def _take(self, value: Any) -> None:
        self.document = value

    def _declare(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], layout: str) -> None:
        rule = LAYOUTS[layout](self.size)
        if rule == "irregular":
            pieces: list[Any] = odd_pieces(shape, self.size, self.rank, len(name))
            rule = am.irregular(pieces)
        else:
            pieces = list(rule.pieces(shape, self.size, self.rank))
        self.pieces[name] = pieces
        local = [shape if isinstance(rule, Replicated) else local_shape(p) for p in pieces]
        arrays = self.arrays[name] = [np.full(s, 7, dtype) for s in local]
        if isinstance(rule, Irregular):
            self.state.partition(name, arrays, shape=shape, layout=rule, dtype=dtype)
            return
        empty = np.zeros(shape, dtype)
        more: dict[str, Any] = {}
        source: Any = lambda: arrays[0] if arrays else empty  # noqa: E731
        if self.setters:
            source = lambda: arrays[0].copy() if arrays else empty  # noqa: E731
            more = {"write": lambda value: arrays.__setitem__(0, value)}
        if isinstance(rule, Replicated):
            self.state.replicate(name, source, **more)
        else:
            self.state.partition(name, source, shape=shape, layout=rule, dtype=dtype, **more)

    def at(self, update: int) -> None:
        self.document = {"update": update}
        for name, (shape, dtype, _) in self.layouts.items():
            everything = whole(name, update, shape, dtype)
            for array, piece in zip(self.arrays[name], self.pieces[name], strict=True):
                array[...] = cut(everything, piece).reshape(array.shape)

    def check(self, update: int) -> None:
        assert self.document == {"update": update}
        for name, (shape, dtype, _) in self.layouts.items():
            everything = whole(name, update, shape, dtype)
            for array, piece in zip(self.arrays[name], self.pieces[name], strict=False):
                assert same_bits(array, cut(everything, piece).reshape(array.shape)), name


SHAPES = {
    "a": ((29, 17), np.float32),
    "b": ((7, 40), ml_dtypes.bfloat16),
    "c": ((5, 3), np.int64),
    "large": ((300, 1000), np.float64),
    "empty": ((0, 3), np.float32),
    "e4": ((13, 11), ml_dtypes.float8_e4m3fn),
}


def laid_out(*names: str) -> dict[str, tuple[tuple[int, ...], Any, str]]:
    """The regions, with these layouts in turn."""
    turn = itertools.cycle(names)
    return {name: (shape, dtype, next(turn)) for name, (shape, dtype) in SHAPES.items()}


def save(comm: Any, path: pathlib.Path, owners: int, layouts: Any, update: int, **more: Any) -> None:
    with team(comm, owners) as part:
        if part is not None:
            job = Job(part, layouts)
            with open_(path, job.state, part, **more) as ckpt:
                ckpt.resume()
                job.at(update)
                ckpt.save(update)
    settle(comm)


def resume(comm: Any, path: pathlib.Path, owners: int, layouts: Any, update: int, **more: Any) -> None:
    setters = more.pop("setters", False)
    with team(comm, owners) as part:
        if part is not None:
            job = Job(part, layouts, setters)
            with open_(path, job.state, part, **more) as ckpt:
                moment = ckpt.resume()
                assert moment.update == update
            job.check(update)
    settle(comm)


@pytest.mark.parametrize("staging", [1 << 30, 1 << 20, 0])
def test_every_count_on_every_other(comm: Any, mpi_tmp_path: pathlib.Path, staging: int) -> None:
    # Layouts and hierarchies change along with the counts. A launch of n tries the pairs of n; the
    # largest one those of 7.
    counts, largest = (1, 2, 3, 4, 7), comm.size if comm.size < 8 else 7
    turn = [1 << 30, 1 << 20, 0].index(staging)
    pairs = [p for p in itertools.product(counts, repeat=2) if max(p) == largest]
    for i, (a, b) in list(enumerate(pairs))[turn::3]:
        layouts = list(LAYOUTS)
        before = laid_out(*layouts[i % len(layouts) :], *layouts[: i % len(layouts)])
        after = laid_out(*layouts[(i * 2 + 3) % len(layouts) :], *layouts[: (i * 2 + 3) % len(layouts)])
        path = mpi_tmp_path / f"{a}-{b}"
        save(comm, path, a, before, 3, hierarchy=HIERARCHIES[i % 3])
        other = HIERARCHIES[(i // 3 + 1) % 3]
        resume(comm, path, b, after, 3, hierarchy=other, staging=staging, setters=i % 2 == 1)


#: Every layout from every other, dealt to launches of different sizes.
PAIRS = list(itertools.product(LAYOUTS, repeat=2))
DEALT = {1: slice(0, None, 27), 2: slice(5, None, 9), 3: slice(0, None, 3), 4: slice(1, None, 3)}


def test_every_layout_from_every_other(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    n = comm.size
    a, b = (4, 3) if n >= 4 else (n, max(1, n - 1))
    if n > 4:
        a, b = 5, n
    for i, (before, after) in list(enumerate(PAIRS))[DEALT.get(n, slice(2, None, 20))]:
        path = mpi_tmp_path / f"{before}-{after}"
        save(comm, path, a, laid_out(before), 5, hierarchy=HIERARCHIES[i % 3])
        resume(comm, path, b, laid_out(after), 5, hierarchy=HIERARCHIES[i // 3 % 3], setters=i % 2 == 0)


def test_irregular_pieces_that_moved_between_the_same_owners(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    for hierarchy in HIERARCHIES if comm.size <= 4 else HIERARCHIES[1:2]:
        path = mpi_tmp_path / name_of(hierarchy)
        words = whole("a", 1, (29, 17), np.float32)

        def state(pieces: list[Any]) -> tuple[am.State, list[np.ndarray]]:
            arrays = [np.zeros(local_shape(p), np.float32) for p in pieces]
            made = am.State()
            made.partition("a", arrays, shape=(29, 17), layout=am.irregular(pieces), dtype=np.float32)
            return made, arrays

        for seed in range(3):
            pieces = odd_pieces((29, 17), comm.size, comm.rank, seed)
            made, arrays = state(pieces)
            with open_(path, made, comm, hierarchy=hierarchy) as ckpt:
                moment = ckpt.resume()
                if seed:
                    assert moment.update == seed
                    assert all(same_bits(x, cut(words, p)) for x, p in zip(arrays, pieces, strict=True))
                for array, piece in zip(arrays, pieces, strict=True):
                    array[...] = cut(words, piece)
                ckpt.save(seed + 1, unchanged_ok=True)


@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_a_save_after_it_knows_whether_anything_changed(
    comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any
) -> None:
    path, b = mpi_tmp_path / "s", max(1, comm.size - 1)
    save(comm, path, comm.size, laid_out("rows", "irregular"), 1, hierarchy=am.Tree(3))
    with team(comm, b) as part:
        if part is not None:
            job = Job(part, laid_out("shares", "mesh", "replicated"))
            with open_(path, job.state, part, hierarchy=hierarchy) as ckpt:
                ckpt.resume()
                again = ckpt.save(1)
                assert (again.name, again.moment.update) == ("e000001-000001", 1)
                assert refusal(part, lambda: ckpt.save(2)).code == "unchanged-state"
                if part.rank == b - 1 and job.pieces["a"]:
                    job.arrays["a"][0].reshape(-1)[:1].view(np.uint8)[0] ^= 1
                assert refusal(part, lambda: ckpt.save(1)).code == "other-words"
                assert ckpt.save(2).name == "e000002-000001"
    settle(comm)


# ------------------------------------------------ what is opened and read


def owners_of(layout: str, n: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Per word of a region: the owner that writes it, and the number of the chunk it lies in."""
    rule = LAYOUTS[layout](n)
    owner, chunk = np.full(shape, -1), np.full(shape, -1)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for k in reversed(range(n)):
        for piece in rule.pieces(shape, n, k):
            at = cut(numbers, piece).reshape(-1)
            owner.reshape(-1)[at] = k
            chunk.reshape(-1)[at] = np.arange(len(at)) * 8 // (1 << 20)
    return owner, chunk


COUNTED = [("rows", "rows"), ("rows", "columns"), ("columns", "shares"), ("grid", "some"), ("mesh", "grid")]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("saved", [am.Star(), am.Tree(2)], ids=name_of)
def test_each_owner_opens_and_reads_no_more_than_it_needs(
    comm: Any, mpi_tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, saved: Any
) -> None:
    for before, after in COUNTED[comm.size % 3 :: 3]:
        with monkeypatch.context() as patch:
            count(comm, mpi_tmp_path / f"{before}-{after}", patch, saved, before, after)


def count(
    comm: Any, path: pathlib.Path, patch: pytest.MonkeyPatch, saved: Any, before: str, after: str
) -> None:
    shape, a, b = (512, 1024), comm.size, comm.size - 1
    layouts = {name: {"w": (shape, np.float64, layout)} for name, layout in ((0, before), (1, after))}
    save(comm, path, a, layouts[0], 1, hierarchy=saved)
    opened: list[str] = []
    read = [0]
    inner, filled = durable.Directory.open_file, durable.ReadFile.pread_into

    def pread_into(self: Any, buffer: Any, offset: int) -> None:
        if self.path.endswith(".pack"):
            read[0] += len(buffer)
        filled(self, buffer, offset)

    with team(comm, b) as part:
        if part is not None:
            job = Job(part, layouts[1])
            with open_(path, job.state, part, hierarchy=am.Tree(3)) as ckpt:
                patch.setattr(durable.Directory, "open_file", lambda s, n: (opened.append(n), inner(s, n))[1])
                patch.setattr(durable.ReadFile, "pread_into", pread_into)
                ckpt.resume()
            job.check(1)
    settle(comm)
    owner, chunk = owners_of(before, a, shape)
    star = isinstance(saved, am.Star)

    def needed(k: int) -> tuple[set[int], int]:
        """The saved owners behind new owner k's words, and the bytes of the chunks."""
        rule = LAYOUTS[after](b)
        if rule.group(shape, b, k)[:1] not in ([k], (k,)):
            return set(), 0  # it gets its words from another owner
        found: set[tuple[int, int]] = set()
        for piece in rule.pieces(shape, b, k):
            pairs = np.stack([cut(owner, piece).reshape(-1), cut(chunk, piece).reshape(-1)], 1)
            found |= {(int(o), int(c)) for o, c in np.unique(pairs, axis=0)}
        nbytes = 0
        for o, c in found:
            size = int((owner == o).sum()) * 8
            nbytes += min(1 << 20, size - (c << 20))
        return {o for o, _ in found}, nbytes

    behind = [needed(k) for k in range(b)]
    everything = comm.allgather((opened, read[0]))
    roles = set().union(*(owners for owners, _ in behind))
    paths = set() if star else {r for role in roles for r in tree_path(saved, a, role)} - {0}
    for k, (files, nbytes) in enumerate(everything[:b]):
        owners, least = behind[k]
        document = {0} if k == 0 else set()  # the note, which the root holds
        packs = {0} if star and owners else owners
        expected = [f"{r:06d}.pack" for r in packs | document]
        expected += [f"{r:06d}.manifest.json" for r in paths if r % b == k]
        found = [f for f in files if f.startswith("0")]
        assert sorted(found) == sorted(expected), (k, found)
        assert least <= nbytes <= least + len(packs | document) * (16 << 10), (k, least, nbytes)


@pytest.mark.mpi(min_size=3)
def test_an_irregular_layout_opens_every_manifest_once_in_total(
    comm: Any, mpi_tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = comm.size, comm.size - 1
    save(comm, mpi_tmp_path / "s", a, laid_out("irregular"), 1, hierarchy=am.Tree(2))
    opened: list[str] = []
    inner = durable.Directory.open_file
    monkeypatch.setattr(durable.Directory, "open_file", lambda s, n: (opened.append(n), inner(s, n))[1])
    resume(comm, mpi_tmp_path / "s", b, laid_out("rows", "irregular"), 1, hierarchy=am.Star())
    mine = [name for name in opened if name.endswith(".manifest.json")]
    assert sorted(mine) == [
        f"{r:06d}.manifest.json" for r in range(1, a) if comm.rank < b and r % b == comm.rank
    ]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_words_that_many_need_are_read_once(
    comm: Any, mpi_tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, hierarchy: Any
) -> None:
    # Dealt over the root and its children then; all owners, groups of owners, and rows now.
    n, shape = comm.size, (600, 1000)
    regions = [(name, "array", "float64", shape) for name in ("to rows", "to all", "to groups", "from rows")]
    rules = [am.replicated(), am.replicated(), am.replicated(), am.rows()]
    values = [fill(name, 1, shape, np.float64) for name, *_ in regions]
    path = mpi_tmp_path / "s"
    root = None
    if comm.rank == 0:
        built = build(path, regions, rules, values, owners=n, hierarchy=am.Tree(2), dealt=1 << 20)
        root = built.root
    root = comm.bcast(root, 0)
    b = n - 1
    rows, groups = am.rows(), am.mesh({"copies": b, "one": 1}, ("one",))
    with team(comm, b) as part:
        read = [0]
        if part is not None:
            arrays = {name: np.zeros(shape) for name, *_ in regions}
            a, z = rows.bounds(shape[0], b, part.rank)
            arrays["to rows"] = np.zeros((z - a, shape[1]))
            state = am.State()
            state.partition("to rows", arrays["to rows"], shape=shape, layout=rows)
            state.replicate("to all", arrays["to all"])
            state.partition("to groups", arrays["to groups"], shape=shape, layout=groups)
            state.replicate("from rows", arrays["from rows"])
            filled = durable.ReadFile.pread_into

            def pread_into(self: Any, buffer: Any, offset: int) -> None:
                read[0] += len(buffer) if self.path.endswith(".pack") and len(buffer) > 50_000 else 0
                filled(self, buffer, offset)

            for staging in (1 << 30, 6 << 20, 0) if n <= 4 else (6 << 20,):
                for array in arrays.values():
                    array[...] = 0
                families = Families(open_world(part, 20), hierarchy, 20)
                declared = state.declare(part.size, part.rank, hierarchy)
                with Store.open(path) as store, monkeypatch.context() as patch:
                    read[0] = 0
                    patch.setattr(durable.ReadFile, "pread_into", pread_into)
                    checked = restore.read(
                        store,
                        restore.Chosen(1, 1, root),
                        declared,
                        families,
                        20,
                        staging,
                        learner=am.Learner("test"),
                        contract=am.Contract().resolved(declared.schema),
                    )
                    assert not any(array.any() for array in arrays.values())
                    total = part.allreduce(read[0])
                    checked.apply()
                    checked.close()
                families.free()
                families.world.free()
                for (name, *_), value in zip(regions, values, strict=True):
                    expected = value[a:z] if name == "to rows" else value
                    assert same_bits(arrays[name], expected), name
                # Each region once, but for the chunks at the edges of rows; what does not fit the
                # staging is read once more to be passed on.
                once = 4 * math.prod(shape) * 8
                again = once // 4 if staging == 0 else 0
                assert once <= total <= once + again + 3 * b * (1 << 20), (staging, total / once)
    settle(comm)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("kind", ["pack", "manifest.json", "missing pack", "missing manifest.json"])
def test_damage_is_every_owners_refusal_and_touches_nothing(
    comm: Any, mpi_tmp_path: pathlib.Path, kind: str
) -> None:
    n, path = comm.size, mpi_tmp_path / "s"
    save(comm, path, n, laid_out("rows", "shares"), 1, hierarchy=am.Tree(2))
    role = n - 1
    file = path / "data" / "e000001-000001" / "000" / f"{role:06d}.{kind.split()[-1]}"
    if comm.rank == 0:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.unlink()
        if not kind.startswith("missing"):
            file.write_bytes(data)
    settle(comm)
    for b in {1, n - 1}:
        with team(comm, b) as part:
            if part is not None:
                job = Job(part, laid_out("columns", "replicated", "mesh"))
                before = snapshot(part, path)
                with open_(path, job.state, part, hierarchy=am.Star()) as ckpt:
                    told = refusal(part, ckpt.resume)
                assert told.role == role and told.file == str(file.relative_to(path))
                assert told.code.startswith("missing" if kind.startswith("missing") else "corrupt")
                assert snapshot(part, path) == before and job.document is None
                assert all((a == 7).all() for arrays in job.arrays.values() for a in arrays)
        settle(comm)


# ------------------------------------------------ per-owner state


@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_r23_a_rule_says_what_another_number_of_owners_has(
    comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any
) -> None:
    path, a = mpi_tmp_path / "s", comm.size
    told: list[tuple[int, int, int]] = []

    def state(k: int, n: int, rule: Any) -> tuple[am.State, np.ndarray, Any, list[float]]:
        words, generator = fill(f"rng{k}", 1, (250,), np.uint64), np.random.default_rng(k)
        scale = [k + 0.5]
        made = am.State()
        more = {} if rule is None else {"repartition": rule}
        made.per_owner("words", words, **more)
        made.per_owner("stream", am.rng(generator), **more)
        made.per_owner("scale", lambda: scale[0], write=lambda v: scale.__setitem__(0, v), **more)
        return made, words, generator, scale

    def turned(values: list[Any], old: int, new: int, owner: int) -> Any:
        assert len(values) == old
        told.append((old, new, owner))
        return values[(owner + 1) % old]

    made, _, _, _ = state(comm.rank, a, None)
    with open_(path, made, comm, hierarchy=hierarchy) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        # The same owners: each has its own, whatever the rule says.
    made, words, _, _ = state(comm.rank, a, turned)
    words[...] = 0
    with open_(path, made, comm, hierarchy=HIERARCHIES[2]) as ckpt:
        ckpt.resume()
    assert same_bits(words, fill(f"rng{comm.rank}", 1, (250,), np.uint64)) and not told
    for b in {1, max(1, a - 1), a // 2 or 1} - {a}:
        with team(comm, b) as part:
            if part is not None:
                made, words, generator, scale = state(part.rank + 50, b, None)
                before = words.copy()
                with open_(path, made, part, hierarchy=hierarchy) as ckpt:
                    error = refusal(part, ckpt.resume)
                assert (error.code, error.region) == ("per-owner-state", "words")
                assert f"{a} owners" in str(error) and f"{b} owners" in str(error)
                assert same_bits(words, before)
                made, words, generator, scale = state(part.rank + 50, b, turned)
                with open_(path, made, part, hierarchy=hierarchy) as ckpt:
                    ckpt.resume()
                old = (part.rank + 1) % a
                assert same_bits(words, fill(f"rng{old}", 1, (250,), np.uint64))
                assert generator.bit_generator.state == np.random.default_rng(old).bit_generator.state
                assert scale == [old + 0.5] and type(scale[0]) is float
                assert set(told) == {(a, b, part.rank)}
                told.clear()
        settle(comm)


@pytest.mark.mpi(min_size=2)
def test_a_rule_that_fails_is_everybodys_refusal(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    def declared(rule: Any) -> tuple[am.State, np.ndarray]:
        words, made = np.full(5, comm.rank), am.State()
        made.per_owner("words", words, repartition=rule)
        return made, words

    made, _ = declared(None)
    with open_(mpi_tmp_path / "s", made, comm) as ckpt:
        ckpt.resume()
        ckpt.save(1)

    def broken(values: list[Any], old: int, new: int, owner: int) -> Any:
        if owner == new - 1:
            raise ValueError("no such stream")
        return values[0]

    rules = [
        (broken, "user-code", "no such stream"),
        (lambda values, *_: np.zeros(4, values[0].dtype), "wrong-shape", "(5,)"),
        (lambda values, *_: np.zeros(5, np.float32), "wrong-format", "float32"),
    ]
    with team(comm, comm.size - 1) as part:
        for rule, code, text in rules:
            if part is None:
                continue
            made, words = declared(rule)
            before = snapshot(part, mpi_tmp_path / "s")
            with open_(mpi_tmp_path / "s", made, part) as ckpt:
                error = refusal(part, ckpt.resume)
            assert (error.code, error.region) == (code, "words") and text in str(error)
            assert (words == comm.rank).all()
            assert snapshot(part, mpi_tmp_path / "s") == before


# ------------------------------------------------ scenarios


@pytest.mark.mpi(min_size=7)
@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_r06_adam_on_other_numbers_of_owners(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    shape, path = (1_000_003,), mpi_tmp_path / "s"
    regions = [(name, shape, np.float32, am.shares()) for name in ("p", "m", "v")]
    regions.append(("beta_powers", (2,), np.float64, None))
    for update, owners in enumerate((4, 6, 3, 1, 7)):
        with team(comm, owners) as part:
            if part is not None:
                words = Words(part, *regions)
                with open_(path, words.state(), part, hierarchy=hierarchy) as ckpt:
                    moment = ckpt.resume()
                    assert moment.update == update
                    if update:
                        words.check(update)
                    words.at(update + 1)
                    ckpt.save(update + 1)
        settle(comm)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_r07_more_owners_than_words_and_fewer(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    four = am.irregular
    path = mpi_tmp_path / "s"
    regions: list[Any] = [
        ("z", (0,), np.float32, am.shares()),
        ("zz", (3, 0, 5), np.int8, am.rows()),
        ("s", (), np.float64, am.shares()),
        ("one", (1, 9, 4), np.float16, am.rows()),
    ]
    with team(comm, 4) as part:
        if part is not None:
            mine = [am.Interval(2 * part.rank, min(2 * part.rank + 2, 6))] if part.rank < 3 else []
            words = Words(part, ("a", (6,), np.float32, four(mine)), *regions)
            state = am.State()
            given = [words.arrays["a"]] if mine else []
            state.partition("a", given, shape=(6,), layout=four(mine), dtype=np.float32)
            for name, shape, dtype, rule in regions:
                state.partition(name, words.arrays[name], shape=shape, layout=rule, dtype=dtype)
            with open_(path, state, part, hierarchy=hierarchy) as ckpt:
                ckpt.resume()
                words.at(1)
                ckpt.save(1)
    settle(comm)
    for owners in (4, 1, 3, comm.size):
        with team(comm, owners) as part:
            if part is not None:
                for rule in (am.shares(), None):
                    fresh = Words(part, ("a", (6,), np.float32, rule), *regions)
                    with open_(path, fresh.state(), part, hierarchy=hierarchy) as ckpt:
                        assert ckpt.resume().update == 1
                    fresh.check(1)
        settle(comm)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("hierarchy", HIERARCHIES[:2], ids=name_of)
def test_r08_bound_to_its_owners(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path, region = mpi_tmp_path / "s", ("w", (60,), np.float32, am.shares())
    bound = {"hierarchy": hierarchy, "contract": am.Contract(placement="bound")}
    others = 6 if comm.size >= 6 else 3
    with team(comm, 4) as part:
        if part is not None:
            publish(path, Words(part, region), part, 10, 20, **bound)
    settle(comm)
    with team(comm, others) as part:
        if part is not None:
            for fallback in (False, True):
                words = Words(part, region)
                before = snapshot(part, path)
                with open_(path, words.state(), part, **bound) as ckpt:
                    told = refusal(part, lambda: ckpt.resume(fallback=fallback))  # noqa: B023
                assert told.code == "placement-bound"
                assert "4 owners" in str(told) and f"{others} owners" in str(told)
                assert set(words.arrays["w"].view(np.uint8)) <= {0xA5}
                assert snapshot(part, path) == before
    settle(comm)
    # The owner count is what is bound: another hierarchy and layout are fine.
    with team(comm, 4) as part:
        if part is not None:
            words = Words(part, ("w", (60,), np.float32, am.rows()))
            bound["hierarchy"] = am.Tree(3)
            with open_(path, words.state(), part, **bound) as ckpt:
                assert ckpt.resume().update == 20
            words.check(20)
