"""Reception: a stream that arrives in slices cut anywhere is checked, and written where it belongs."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format.inventory import Inventory, Key
from alpha_mpi.format.pack import PackPlan, Slot
from alpha_mpi.model.schema import Region
from alpha_mpi.publication.merged import merged
from alpha_mpi.publication.own import Own
from alpha_mpi.publication.reception import Incoming, Outgoing
from alpha_mpi.publication.shards import SMALL, Shards, Wanted, Wants

NAMES = {i: f"w{i}" for i in range(200)}
#: Bytes of the arrays of each owner: with and without padding, small, large, and of several chunks.
SIZES = [
    *[64] * 40,
    *[100, 3, 16384, SMALL, SMALL + 1, 1, 65536, 5, digest.CHUNK, 7],
    *[17] * 20,
    *[2 * digest.CHUNK + 9, 300000, 300000],
    *[4096] * 30,
]


class Pack:
    """What of a pack's writer the reception uses, in memory; no byte may be written twice."""

    def __init__(self, plan: PackPlan) -> None:
        self.data = np.zeros(plan.tables_offset, np.uint8)
        self.times = np.zeros(plan.tables_offset, np.int8)
        self.writes = 0
        end, self._places = len(plan.header), {}
        for slot, offset, _ in plan.in_file:
            self._places[slot[:3]] = offset, offset - end
            end = offset + slot.nbytes
        self.end = end

    def place_of(self, key: Key) -> tuple[int, int]:
        return self._places[key]

    def pwrite(self, buffers: list[memoryview], offset: int) -> None:
        assert sum(map(len, buffers)) <= digest.CHUNK + 4096 * len(buffers)
        for buffer in buffers:
            self.data[offset : offset + len(buffer)] = np.frombuffer(buffer, np.uint8)
            self.times[offset : offset + len(buffer)] += 1
            offset += len(buffer)
        self.writes += 1


def shards_of(owner: int) -> Shards:
    """Return the shards of one owner, of seeded bytes."""
    draw = np.random.default_rng(owner)
    arrays = [draw.integers(0, 256, n, np.uint8) for n in SIZES]
    wanted = [
        Wanted(Region(i, NAMES[i], "per-owner", "uint8", a.shape), Own(i, owner, 0, None), a.nbytes, False)
        for i, a in enumerate(arrays)
    ]
    return Wants(wanted).of(arrays)


def inventory_of(shards: Shards) -> Inventory:
    wants = shards.wants
    columns = [*wants.pieces.ordinals], [0] * len(shards), [*wants.pieces.ints], [*shards.nbytes]
    return Inventory(*columns, wants.formats, shards.tables(digest.DEFAULT), ())


def slices(seed: int, total: int) -> list[int]:
    """Return where a stream of so many bytes is cut."""
    draw, cuts = np.random.default_rng(seed), [0]
    while cuts[-1] < total:
        step = int(draw.choice([1, 64, 4000, 65536, 1 << 20, 5 << 20]) * draw.integers(1, 3))
        cuts.append(min(total, cuts[-1] + step))
    return cuts


@pytest.mark.parametrize("by_owner", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_streams_land_whole_whatever_their_slices(seed: int, by_owner: bool) -> None:
    theirs = {owner: shards_of(owner) for owner in (1, 2, 5)}
    slots = [Slot(*key, n) for s in theirs.values() for key, n in zip(s.wants.keys, s.nbytes, strict=True)]
    pack = Pack(PackPlan.of(slots, by_owner=by_owner))
    coming = {k: Incoming(k, s.wants.keys, inventory_of(s), NAMES, digest.DEFAULT) for k, s in theirs.items()}
    going = {owner: Outgoing(shards) for owner, shards in theirs.items()}
    cuts = slices(seed, sum(SIZES)) if seed else [0, sum(SIZES)]
    for begin, end in itertools.pairwise(cuts):
        for owner in theirs:
            coming[owner].take(going[owner].read(begin, end - begin), pack)  # type: ignore[arg-type]
    assert all(one.received == one.nbytes == sum(SIZES) for one in coming.values())
    for shards in theirs.values():
        for key, array in zip(shards.wants.keys, shards.data, strict=True):
            offset, gap = pack.place_of(key)
            assert bytes(pack.data[offset : offset + array.nbytes]) == array.tobytes()
            assert not pack.data[offset - gap : offset].any()
    assert (pack.times[128 : pack.end] == 1).all() and not pack.times[:128].any()
    if by_owner and not seed:  # what lies together goes together
        assert pack.writes < 60


@pytest.mark.parametrize("at", [0, 39, 43, 48, 70, 73, 102])
@pytest.mark.parametrize("step", [1 << 30, 50_000])
def test_bytes_that_are_not_those_announced_name_their_region(at: int, step: int) -> None:
    shards = shards_of(1)
    slots = [Slot(*key, n) for key, n in zip(shards.wants.keys, shards.nbytes, strict=True)]
    pack = Pack(PackPlan.of(slots))
    coming = Incoming(1, shards.wants.keys, inventory_of(shards), NAMES, digest.DEFAULT)
    shards.data[at][-1] ^= 1
    going = Outgoing(shards)
    with pytest.raises(Refused) as caught:
        for begin in range(0, going.nbytes, step):
            coming.take(going.read(begin, min(step, going.nbytes - begin)), pack)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.role) == ("changed-while-saving", 1)
    assert caught.value.region == NAMES[at]


def test_what_all_owners_write_is_in_order_and_kept_while_it_is_the_same() -> None:
    mine, theirs = shards_of(0), {owner: inventory_of(shards_of(owner)) for owner in (2, 1)}
    found = merged(mine.wants, theirs)
    assert found.keys == sorted([*mine.wants.keys, *theirs[1].keys(1), *theirs[2].keys(2)])
    assert list(zip(found.pieces.ordinals, found.pieces.owners, strict=True)) == [k[:2] for k in found.keys]
    assert found.ordered([*mine.wants.keys, *theirs[1].keys(1), *theirs[2].keys(2)]) == found.keys
    assert merged(mine.wants, {k: inventory_of(shards_of(k)) for k in (1, 2)}) is found
    # A piece that begins elsewhere at the next save.
    theirs[1] = msgspec.structs.replace(theirs[1], starts=[8 * (i == 5) for i in range(len(SIZES))])
    other = merged(mine.wants, theirs)
    assert other is not found and (5, 1, 8) in other.keys and (5, 1, 8) not in found.keys
