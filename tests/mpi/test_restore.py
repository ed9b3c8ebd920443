"""Restore under MPI: every owner gets its words, or every owner the same refusal and no word changes."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from restore.build_store import build, take, values_of

from alpha_mpi.errors import CheckpointError, PeerFailed, Refused
from alpha_mpi.model import Contract, Learner
from alpha_mpi.model.formats import by_name
from alpha_mpi.model.layout import irregular, mesh, on, per_owner, replicated, rows, shares
from alpha_mpi.model.pieces import Interval, local_shape
from alpha_mpi.mpi.families import Families
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore import replicas, resume
from alpha_mpi.state import State
from alpha_mpi.store import durable
from alpha_mpi.store.store import Store

pytestmark = pytest.mark.mpi

CASES = [(Star(), False), (Tree(1), False), (Tree(2), False), (Tree(2), True)]


def regions_of(n: int) -> tuple[list[Any], list[Any], dict[int, list[list[Any]]]]:
    """Regions, rules and irregular pieces for n owners."""
    model = 2 if n % 2 == 0 else 1
    axes = {"data": n // model, "model": model}
    regions = [
        ("w", "array", "float32", (40 * n, 100)),
        ("big", "array", "float64", (200_000,)),
        ("copied", "array", "float32", (8, 5000)),
        ("copied/large", "array", "float64", (150, 2000)),
        ("some", "array", "int32", (n, 3)),
        ("odd", "array", "uint8", (100,)),
        ("b1", "array", "float64", ()),
        ("table", "array", "float32", (400_000,)),
        ("none", "array", "float64", (0, 3)),
        ("rng", "per-owner", "uint64", (5,)),
        ("d", "document", "json", ()),
        ("own", "per-owner-document", "json", ()),
        ("z", "array", "bfloat16", (777,)),
    ]
    rules = [
        rows(),
        shares(),
        mesh(axes, ("model",)),
        mesh(axes, (None, "model")),
        on([n - 1], shares()),
        irregular([]),
        *(replicated(),) * 3,
        per_owner(),
        replicated(),
        per_owner(),
        shares(),
    ]
    cuts = sorted({0, 100, *np.random.default_rng(n).integers(0, 100, 2 * n).tolist()})
    odd: list[list[Any]] = [[] for _ in range(n)]
    for i, (a, b) in enumerate(itertools.pairwise(cuts)):
        odd[i * 7 % n].append(Interval(a, b))
    return regions, rules, {5: odd}


class Job:
    """One owner's state, declared over arrays that remember what they were."""

    def __init__(self, n: int, k: int, setters: bool = False) -> None:
        self.n, self.k = n, k
        self.regions, self.rules, self.odd = regions_of(n)
        self.values = values_of(self.regions, n, seed=3)
        self.state = State()
        self.arrays: dict[str, Any] = {}
        self.documents: dict[str, Any] = {}
        self.setters = setters
        self.fail: str | None = None
        for (name, kind, format, shape), rule in zip(self.regions, self.rules, strict=True):
            self.declare(name, kind, format, shape, rule)
        self.before = {name: [a.copy() for a in arrays] for name, arrays in self.arrays.items()}

    def declare(self, name: str, kind: str, format: str, shape: tuple[int, ...], rule: Any) -> None:
        if format == "json":
            self.documents[name] = None

            def write(value: Any) -> None:
                if self.fail == name:
                    raise RuntimeError(f"{name} is not welcome")
                self.documents[name] = value

            if kind == "document":
                self.state.document(name, lambda: None, write)
            else:
                self.state.per_owner(name, Source(write))
            return
        dtype = by_name(format).dtype
        pieces = self.pieces(name, kind, shape, rule)
        local = [shape if p is None or kind != "array" else local_shape(p) for p in pieces]
        if isinstance(rule, type(replicated())):
            local = [shape]
        arrays = self.arrays[name] = [np.full(s, 7, dtype) for s in local]
        if isinstance(rule, type(irregular([]))):
            own = irregular(lambda: self.odd[5][self.k])
            self.state.partition(name, lambda: arrays, shape=shape, layout=own, dtype=dtype)
            return
        source: Any = (lambda: arrays[0]) if arrays else (lambda: None)
        options: dict[str, Any] = {}
        if self.setters and arrays:

            def put(value: Any) -> None:
                if self.fail == name:
                    raise RuntimeError(f"{name} is not welcome")
                arrays[0] = value

            source, options = (lambda: arrays[0].copy()), {"write": put}
        if kind == "per-owner":
            self.state.per_owner(name, source, **options)
        elif isinstance(rule, type(replicated())):
            self.state.replicate(name, source, **options)
        else:
            self.state.partition(name, source, shape=shape, layout=rule, dtype=dtype, **options)

    def pieces(self, name: str, kind: str, shape: tuple[int, ...], rule: Any) -> list[Any]:
        if kind == "per-owner":
            return [None]
        if name == "odd":
            return self.odd[5][self.k]
        return list(rule.pieces(shape, self.n, self.k))

    def restored(self) -> bool:
        """Whether every array and document is what was saved."""
        for (name, kind, format, shape), rule, value in zip(
            self.regions, self.rules, self.values, strict=True
        ):
            if format == "json":
                if self.documents[name] != (value[self.k] if kind != "document" else value):
                    return False
                continue
            for piece, array in zip(self.pieces(name, kind, shape, rule), self.arrays[name], strict=False):
                want = value[self.k] if kind == "per-owner" else take(value, piece)
                if array.tobytes() != want.tobytes():
                    return False
        return True

    def untouched(self) -> bool:
        return all(v is None for v in self.documents.values()) and all(
            a.tobytes() == b.tobytes()
            for name in self.arrays
            for a, b in zip(self.arrays[name], self.before[name], strict=True)
        )


class Source:
    """A document of each owner's own."""

    def __init__(self, write: Any) -> None:
        self.write = write

    def read(self) -> Any:
        return None


@contextlib.contextmanager
def folder(comm: Any) -> Iterator[pathlib.Path]:
    """A folder that all ranks see."""
    path = pathlib.Path(comm.bcast(tempfile.mkdtemp(prefix="am-restore-") if comm.rank == 0 else None, 0))
    try:
        yield path
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(path)


def publish(comm: Any, path: pathlib.Path, job: Job, hierarchy: Any, **options: Any) -> Any:
    built = None
    if comm.rank == 0:
        built = build(
            path,
            job.regions,
            job.rules,
            job.values,
            owners=comm.size,
            hierarchy=hierarchy,
            irregular=job.odd,
            **options,
        )
        built = (built.root, built.data_file(0, "pack").parent)
    return comm.bcast(built, 0)


def read(comm: Any, families: Families, store: Store, job: Job, root: str, **options: Any) -> Any:
    declared = job.state.declare(comm.size, comm.rank, families.hierarchy)
    contract = options.pop("contract", None) or Contract()
    return resume.read(
        store,
        resume.Chosen(1, 1, root),
        declared,
        families,
        options.pop("deadline", 20),
        options.pop("staging", 1 << 30),
        learner=options.pop("learner", Learner("test")),
        contract=contract.resolved(declared.schema),
    )


@pytest.mark.parametrize(("hierarchy", "setters"), CASES, ids=str)
def test_every_owner_gets_its_words(comm: Any, world: Any, hierarchy: Any, setters: bool) -> None:
    with folder(comm) as path:
        job = Job(comm.size, comm.rank, setters)
        root, _ = publish(comm, path, job, hierarchy, dealt=1 << 20)
        families = Families(world, hierarchy, 20)
        for staging in (1 << 30, 2 << 20, 0):
            job = Job(comm.size, comm.rank, setters)
            with Store.open(path) as store:
                checked = read(comm, families, store, job, root, staging=staging)
                assert job.untouched()
                checked.apply()
                checked.close()
            assert job.restored()
            assert (checked.moment.update, checked.moment.cursor) == (10, 10)
        families.free()


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
def test_each_role_opens_its_own_files_and_nothing_else(
    comm: Any, world: Any, everyone: Any, hierarchy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, _ = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        opened: list[str] = []
        inner = durable.Directory.open_file
        with Store.open(path) as store:
            monkeypatch.setattr(
                durable.Directory, "open_file", lambda self, name: (opened.append(name), inner(self, name))[1]
            )
            checked = read(comm, families, store, job, root, staging=0)
            checked.apply()
        own = 0 if isinstance(hierarchy, Star) else comm.rank
        mine = [f"{own:06d}.pack"]
        if comm.rank == 0:
            mine.append("e000001-000001.json")
        elif isinstance(hierarchy, Tree):
            mine.append(f"{own:06d}.manifest.json")
        assert sorted(opened) == sorted(mine)
        everything = [name for names in everyone(opened) for name in names if name.endswith(".json")]
        assert len(everything) == len(set(everything))
        families.free()


def same_everywhere(everyone: Any, caught: CheckpointError) -> None:
    facts = everyone((type(caught), caught.code, caught.role, caught.region, caught.file, caught.message))
    assert len(set(facts)) == 1, facts


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
@pytest.mark.parametrize("kind", ["pack", "manifest", "missing-pack", "missing-manifest"])
def test_damage_on_one_role_is_every_owners_refusal(
    comm: Any, world: Any, everyone: Any, hierarchy: Any, kind: str
) -> None:
    star = isinstance(hierarchy, Star)
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, files = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        victims = [0] if star else sorted({0, comm.size // 2, comm.size - 1})
        for role in victims:
            what = "manifest.json" if kind.endswith("manifest") else "pack"
            victim = files / f"{role:06d}.{what}"
            if what == "manifest.json" and role == 0:
                victim = path / "published" / "e000001-000001.json"
            if comm.rank == 0:
                good = victim.read_bytes()
                if kind.startswith("missing"):
                    victim.unlink()
                else:
                    data = bytearray(good)
                    data[len(data) // 2] ^= 4
                    victim.write_bytes(data)
            comm.Barrier()
            with Store.open(path) as store, pytest.raises(Refused) as caught:
                read(comm, families, store, job, root)
            same_everywhere(everyone, caught.value)
            # On a star every owner reads its own shards, and is itself the one that is hit.
            assert star or caught.value.role == role
            assert caught.value.file == os.fspath(victim.relative_to(path))
            assert job.untouched()
            comm.Barrier()
            if comm.rank == 0:
                victim.write_bytes(good)
            comm.Barrier()
        with Store.open(path) as store:
            read(comm, families, store, job, root).apply()
        assert job.restored()
        families.free()


def test_what_is_not_this_jobs_is_refused_before_a_shard_is_read(
    comm: Any, world: Any, everyone: Any
) -> None:
    hierarchy = Tree(2)
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, files = publish(comm, path, job, hierarchy)
        if comm.rank == 0:
            for pack in files.glob("*.pack"):
                pack.unlink()
        comm.Barrier()
        families = Families(world, hierarchy, 20)
        cases: list[tuple[str, Any]] = [
            ("other-learner", lambda s: read(comm, families, s, job, root, learner=Learner("other"))),
            ("other-contract", lambda s: read(comm, families, s, job, root, contract=Contract(combine="x"))),
        ]
        more = Job(comm.size, comm.rank)
        extra = np.zeros(3)
        more.state.replicate("extra", lambda: extra)
        cases.append(("schema-differs", lambda s: read(comm, families, s, more, root)))
        for code, call in cases:
            with Store.open(path) as store, pytest.raises(Refused) as caught:
                call(store)
            assert (caught.value.code, caught.value.role) == (code, None)
            same_everywhere(everyone, caught.value)
        families.free()


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
@pytest.mark.parametrize("name", ["w", "table", "copied"])
def test_words_that_are_not_finite_are_refused(
    comm: Any, world: Any, everyone: Any, hierarchy: Any, name: str
) -> None:
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        at = [r[0] for r in job.regions].index(name)
        job.values[at].reshape(-1)[-3] = np.inf
        root, _ = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        with Store.open(path) as store, pytest.raises(Refused) as caught:
            read(comm, families, store, job, root)
        assert (caught.value.code, caught.value.region) == ("non-finite", name)
        same_everywhere(everyone, caught.value)
        assert job.untouched()
        families.free()


def test_a_replica_digest_that_is_not_the_words_is_refused(
    comm: Any, world: Any, everyone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One receiver gets other bytes than were sent: it says so, and everybody refuses.
    hierarchy = Tree(2)
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, _ = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        inner = replicas.Incoming.accept

        def accept(self: Any, at: int, view: memoryview, keep: bool) -> None:
            if comm.rank == comm.size - 1 and self.region.name == "table":
                data = bytearray(view)
                data[5] ^= 1
                view = memoryview(data)
            inner(self, at, view, keep)

        monkeypatch.setattr(replicas.Incoming, "accept", accept)
        with Store.open(path) as store, pytest.raises(Refused) as caught:
            read(comm, families, store, job, root)
        assert (caught.value.code, caught.value.region) == ("corrupt-replica", "table")
        assert caught.value.role == comm.size - 1
        same_everywhere(everyone, caught.value)
        assert job.untouched()
        families.free()


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)], ids=str)
@pytest.mark.parametrize("name", ["big", "table", "copied/large"])
def test_a_store_that_changes_before_it_is_read_again(
    comm: Any, world: Any, everyone: Any, hierarchy: Any, name: str
) -> None:
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, files = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        with Store.open(path) as store:
            checked = read(comm, families, store, job, root, staging=0)
            comm.Barrier()
            if comm.rank == 0:
                at = [r[0] for r in job.regions].index(name)
                word = job.values[at].reshape(-1)[100:108].tobytes()
                pack = (files / "000000.pack").read_bytes()
                with (files / "000000.pack").open("r+b") as file:
                    file.seek(pack.index(word))
                    file.write(b"changed")
            comm.Barrier()
            with pytest.raises(Refused) as caught:
                checked.apply()
            checked.close()
        assert (caught.value.code, caught.value.region) == ("changed-while-reading", name)
        assert caught.value.role == 0
        same_everywhere(everyone, caught.value)
        families.free()


def test_the_users_failure_on_one_owner_is_everybodys(comm: Any, world: Any, everyone: Any) -> None:
    hierarchy = Tree(2)
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, _ = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        with Store.open(path) as store:
            checked = read(comm, families, store, job, root)
            if comm.rank == comm.size - 1:
                job.fail = "d"
            with pytest.raises(PeerFailed) as caught:
                checked.apply()
        assert (caught.value.role, caught.value.region) == (comm.size - 1, "d")
        same_everywhere(everyone, caught.value)
        job.fail = None
        with Store.open(path) as store:
            read(comm, families, store, job, root).apply()
        assert job.restored()
        families.free()


def test_a_slow_reader_is_not_a_lost_one(comm: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from alpha_mpi.restore.packs import PackReader

    hierarchy = Tree(2)
    with folder(comm) as path:
        job = Job(comm.size, comm.rank)
        root, _ = publish(comm, path, job, hierarchy)
        families = Families(world, hierarchy, 20)
        if comm.rank == comm.size - 1:
            inner = PackReader.read_into

            def slow(self: Any, buffer: Any, offset: int) -> None:
                time.sleep(0.3)
                inner(self, buffer, offset)

            monkeypatch.setattr(PackReader, "read_into", slow)
        with Store.open(path) as store:
            read(comm, families, store, job, root, deadline=1.5).apply()
        assert job.restored()
        families.free()
