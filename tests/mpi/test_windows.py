"""Windows: each manifest is read once, by its own role; everybody else reads its parent's memory."""

from __future__ import annotations

from typing import Any

import pytest

from alpha_mpi.errors import Refused
from alpha_mpi.mpi import examine, onesided, windows
from alpha_mpi.mpi.families import Families
from alpha_mpi.mpi.lending import Lending
from alpha_mpi.mpi.world import Solo, World, mpi
from alpha_mpi.protocol.hierarchy import Hierarchy, Star, Tree, path

pytestmark = pytest.mark.mpi

HIERARCHIES = [Star(), Tree(1), Tree(2), Tree(3), Tree(16)]


def manifest(role: int, size: int = 3000) -> bytes:
    return f"manifest of role {role} ".encode() * (size // 20 + role)


class Store:
    """Counts how often each manifest is read."""

    def __init__(self, families: Families, size: int = 3000) -> None:
        self.families, self.size, self.reads = families, size, 0
        self.refuse: int | None = None

    def __call__(self, parents: tuple[bytes, ...]) -> bytes:
        role = self.families.role
        here = path(self.families.hierarchy, self.families.world.size, role)
        assert parents == tuple(manifest(r, self.size) for r in here[:-1])
        self.reads += 1
        if role == self.refuse:
            raise Refused("wrong digest", code="corrupt-manifest", role=role)
        return manifest(role, self.size)


def expected(hierarchy: Hierarchy, world: World, size: int = 3000) -> tuple[bytes, ...]:
    role = 0 if isinstance(hierarchy, Star) else world.rank
    return tuple(manifest(r, size) for r in path(hierarchy, world.size, role))


@pytest.mark.parametrize("by", ["windows", "messages"])
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=str)
def test_everybody_gets_its_path(
    world: World, everyone: Any, hierarchy: Hierarchy, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "messages" and world.rank == world.size - 1:
        monkeypatch.setenv(onesided.SWITCH, "No")  # one rank is enough
    families = Families(world, hierarchy, 20)
    assert world.one_sided == (by == "windows" or world.alone)
    for size in (20, 3000, 300_000):
        store = Store(families, size)
        onesided.counters.reset()
        got, cause = windows.read_path(families, store, 20)
        assert cause is None
        assert got == expected(hierarchy, world, size)
        reads = everyone(store.reads)
        star = isinstance(hierarchy, Star)
        assert reads == ([1] + [0] * (world.size - 1) if star else [1] * world.size)
        # One Get per reader and window; nobody serves itself.
        assert onesided.counters.gets == ([] if world.rank == 0 or by == "messages" else [1])
        assert (onesided.counters.bytes > 0) == (world.rank > 0)
        serves = (
            by == "windows"
            and world.size > 1
            and (world.rank == 0 if star else bool(families.place.children))
        )
        assert onesided.counters.windows == int(serves)
    families.free()


def test_a_long_path_is_read_in_several_gets(
    world: World, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onesided, "GET_LIMIT", 1000)
    families = Families(world, Tree(2), 20)
    onesided.counters.reset()
    got, cause = windows.read_path(families, Store(families), 20)
    assert cause is None and got == expected(Tree(2), world)
    if world.rank > 0:
        assert onesided.counters.gets == [-(-onesided.counters.bytes // 1000)]
    families.free()


class Lying:
    """A window whose reads leave the buffer as it was."""

    def __init__(self, window: Any) -> None:
        self.window = window

    def __getattr__(self, name: str) -> Any:
        return getattr(self.window, name)

    def Get(self, buffer: Any, rank: int, target: Any) -> None:
        pass


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fault", ["no window", "no lock", "other words", "a read fails"])
def test_windows_that_do_not_work_are_not_used(
    world: World, everyone: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests go by messages then, on all ranks; `alpha-mpi doctor` says why."""
    real, failure = onesided.open_window, mpi().Exception(mpi().ERR_WIN)
    opened = []

    def open_window(world: World, size: int) -> Any:
        window = real(world, size)
        opened.append(window)
        if fault == "no window" or (fault == "no lock" and world.rank == 1):
            raise failure
        return Lying(window) if fault == "other words" and world.rank == world.size - 1 else window

    def get(*arguments: Any) -> int:
        raise failure

    monkeypatch.setattr(onesided, "open_window", open_window)
    if fault == "a read fails" and world.rank == 1:
        monkeypatch.setattr(onesided, "get", get)
    said = set(everyone(onesided.trial(world, 20)))
    assert len(said) == 1 and (found := said.pop()) is not None
    assert ("other words" if fault == "other words" else str(failure)) in found
    for hierarchy in (Star(), Tree(2)):
        families = Families(world, hierarchy, 20)
        assert not world.one_sided
        got, cause = windows.read_path(families, Store(families), 20)
        assert (got, cause) == (expected(hierarchy, world), None)
        families.free()
    examined = examine.examine()
    assert examined is not None and examined.seconds is None and examined.without == found
    for window in opened:
        onesided.close_window(window, world)  # the library leaves them alone: they work here


@pytest.mark.parametrize("by", ["windows", "messages"])
def test_files_are_lent_to_whoever_asks(world: World, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onesided, "GET_LIMIT", 1000)
    world.one_sided = by == "windows"
    owners = world.size
    # File n lies with owner n mod size; everybody wants those that its rank divides, and its own.
    wanted = {n: (n % owners, b"%d" % n) for n in range(3 * owners) if n % (world.rank + 1) == 0}
    lending = Lending(world, 20)
    onesided.counters.reset()
    asked = lending.ask(wanted)
    assert all(described == b"%d" % n and n % owners == world.rank for n, described in asked.items())
    assert lending.serve({n: manifest(n) for n in asked}) == {n: manifest(n) for n in wanted}
    abroad = [n for n in wanted if n % owners != world.rank]
    assert onesided.counters.bytes == sum(len(manifest(n)) for n in abroad)
    if by == "messages":
        assert onesided.counters.windows == 0 and not onesided.counters.gets


@pytest.mark.parametrize("hierarchy", [Star(), Tree(1), Tree(2)], ids=str)
def test_a_refusal_reaches_all_below_and_nobody_else(world: World, comm: Any, hierarchy: Hierarchy) -> None:
    families = Families(world, hierarchy, 20)
    for refuse in range(1 if isinstance(hierarchy, Star) else world.size):
        store = Store(families)
        store.refuse = refuse
        got, cause = windows.read_path(families, store, 20)
        if refuse in path(hierarchy, world.size, families.role):
            assert got is None
            assert cause == Refused("wrong digest", code="corrupt-manifest", role=refuse).cause()
        else:
            assert (got, cause) == (expected(hierarchy, world), None)
    got, cause = windows.read_path(families, Store(families), 20)
    assert (got, cause) == (expected(hierarchy, world), None)
    families.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", [Star(), Tree(1), Tree(2)], ids=str)
def test_a_late_role_is_named_and_the_next_reading_works(
    world: World, comm: Any, hierarchy: Hierarchy
) -> None:
    families = Families(world, hierarchy, 20)
    late = world.size - 1
    if world.rank == late:
        comm.Barrier()  # until everybody else has given up
    got, cause = windows.read_path(families, Store(families), 1.0)
    if late == 1 or isinstance(hierarchy, Star) or world.rank == late:
        assert cause is not None
    if cause is not None:
        assert got is None and cause.code == "silent" and cause.role == late
    if world.rank != late:
        comm.Barrier()
    assert families.world.lost is None  # nothing collective was left half done
    got, cause = windows.read_path(families, Store(families), 20)
    assert (got, cause) == (expected(hierarchy, world), None)
    families.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", [Star(), Tree(1), Tree(2)], ids=str)
def test_a_late_root_is_named_by_all(world: World, comm: Any, hierarchy: Hierarchy) -> None:
    families = Families(world, hierarchy, 20)
    if world.rank == 0:
        comm.Barrier()
    got, cause = windows.read_path(families, Store(families), 1.0)
    assert got is None and cause is not None and cause.code == "silent"
    if world.rank > 0:
        assert cause.role == 0
        comm.Barrier()
    got, cause = windows.read_path(families, Store(families), 20)
    assert (got, cause) == (expected(hierarchy, world), None)
    families.free()


@pytest.mark.mpi(min_size=2)
def test_no_window_after_a_lost_peer(world: World) -> None:
    families = Families(world, Star(), 20)
    world.lost = Refused("gone", code="silent").cause()
    got, cause = windows.read_path(families, Store(families), 2)
    assert got is None and cause is not None
    families.free()


def test_alone_without_mpi() -> None:
    for hierarchy in (Star(), Tree(2)):
        families = Families(Solo(), hierarchy, 1)
        assert windows.read_path(families, lambda parents: b"root", 1) == ((b"root",), None)
        got, cause = windows.read_path(families, Store(families), 1)
        assert got == (manifest(0),) and cause is None
