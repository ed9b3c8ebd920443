"""Pack readers: every byte asked, every damage named."""

import os

import numpy as np
import pytest
from restore.build_store import build, values_of

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import PackPlan, Place, ShardRecord, Slot
from alpha_mpi.model.layout import rows
from alpha_mpi.model.pieces import Interval
from alpha_mpi.protocol.hierarchy import Tree
from alpha_mpi.restore import packs
from alpha_mpi.restore.apply import apply
from alpha_mpi.restore.generation import Generation
from alpha_mpi.restore.packs import PackReader, Packs, opener, shard_digest
from alpha_mpi.restore.plan import Need, plan
from alpha_mpi.restore.staging import Staging
from alpha_mpi.restore.validate import Target, validate
from alpha_mpi.store.durable import Directory
from alpha_mpi.store.store import Store


def write(path, payloads, algorithm=digest.DEFAULT, edit=None):
    """Write a pack of {(ordinal, owner, start): bytes}; return its records."""
    slots = [Slot(*key, len(data)) for key, data in payloads.items()]
    plan = PackPlan.of(slots, algorithm)
    file = bytearray(plan.size)
    file[:128] = plan.header
    file[plan.directory_offset :] = plan.directory
    records = {}
    for slot, offset, table_offset in plan.entries:
        data = payloads[slot[:3]]
        table = digest.chunks(memoryview(data), algorithm)
        file[offset : offset + len(data)] = data
        file[table_offset : table_offset + len(table)] = table
        named = digest.shard("uint8", len(data), table, algorithm)
        key = slot[:3]
        piece = (key[2], key[2] + len(data))
        records[key] = ShardRecord(key[0], key[1], piece, len(data), named, (Place(1, 1, 0),))
    if edit:
        edit(file, plan)
    path.write_bytes(file)
    return records, plan


PAYLOADS = {(0, 0, 0): b"abc", (0, 1, 3): bytes(100_000), (1, 0, 0): bytes(range(256)) * 12_000}


@pytest.fixture
def folder(tmp_path):
    with Directory.open(tmp_path) as directory:
        yield directory


@pytest.mark.parametrize("algorithm", ["xxh3-128", "sha256", "blake3"])
def test_tables_and_payloads_come_back(tmp_path, folder, algorithm):
    records, _ = write(tmp_path / "p", PAYLOADS, algorithm)
    pack = PackReader(folder.open_file("p"), "p")
    at = pack.locate(list(records.values()), [key[2] for key in records])
    tables = pack.chunk_tables(at)
    for key, record, i, table in zip(records, records.values(), at, tables, strict=True):
        pack.check_table(record, "uint8", table)
        assert table == digest.chunks(memoryview(PAYLOADS[key]), algorithm)
        data = bytearray(record.nbytes)
        pack.read_into(data, pack.offsets[i])
        assert data == PAYLOADS[key]
        pack.check_padding(pack.offsets[i] + record.nbytes, pack.after(i))
    # Any order, any selection.
    assert pack.chunk_tables(at[::-1]) == tables[::-1]
    assert pack.chunk_tables([]) == []
    pack.close()


def test_the_shard_digest_is_the_formats():
    for nbytes in (1, 16384, 3 << 20):
        table = bytes(16 * digest.chunk_count(nbytes))
        assert shard_digest("float32", nbytes, table, "xxh3-128") == digest.shard("float32", nbytes, table)


def test_a_shard_that_is_not_there_or_of_another_length_is_refused(tmp_path, folder):
    records, _ = write(tmp_path / "p", PAYLOADS)
    pack = PackReader(folder.open_file("p"), "p")
    one = records[0, 0, 0]
    with pytest.raises(Refused) as caught:
        pack.locate([one], [7])
    assert caught.value.code == "missing-shard" and caught.value.file == "p"
    longer = ShardRecord(0, 0, (0, 4), 4, one.digest, one.places)
    with pytest.raises(Refused) as caught:
        pack.locate([longer], [0])
    assert caught.value.code == "corrupt-shard"
    pack.close()


def test_a_wrong_table_is_refused(tmp_path, folder):
    records, _ = write(tmp_path / "p", PAYLOADS)
    pack = PackReader(folder.open_file("p"), "p")
    record = records[0, 1, 3]
    with pytest.raises(Refused) as caught:
        pack.check_table(record, "uint8", bytes(16))
    assert (caught.value.code, caught.value.role) == ("corrupt-shard", 1)
    with pytest.raises(Refused):
        pack.check_table(record, "int8", digest.chunks(memoryview(PAYLOADS[0, 1, 3])))
    pack.close()


@pytest.mark.parametrize("where", ["header", "directory", "short", "long", "empty"])
def test_a_damaged_frame_is_refused_at_once(tmp_path, folder, where):
    def edit(file, plan):
        if where == "header":
            file[40] ^= 1
        elif where == "directory":
            file[plan.directory_offset + 8] ^= 1
        elif where == "short":
            del file[-1:]
        elif where == "long":
            file.append(0)
        else:
            file.clear()

    write(tmp_path / "p", PAYLOADS, edit=edit)
    with pytest.raises(Refused) as caught:
        PackReader(folder.open_file("p"), "p")
    codes = {"short": "truncated", "empty": "truncated"}
    assert caught.value.code == codes.get(where, "corrupt-pack")
    assert caught.value.file == "p"


def test_padding_that_is_not_zero_is_refused(tmp_path, folder):
    def edit(file, plan):
        file[plan.entries[0].offset + 3] = 1

    write(tmp_path / "p", PAYLOADS, edit=edit)
    pack = PackReader(folder.open_file("p"), "p")
    with pytest.raises(Refused, match="padding at byte 131") as caught:
        pack.check_padding(131, pack.after(0))
    assert caught.value.code == "corrupt-pack"
    pack.close()


def test_a_pack_is_opened_once_and_a_missing_one_named(tmp_path, folder):
    (tmp_path / "e000001-000001" / "000").mkdir(parents=True)
    write(tmp_path / "e000001-000001" / "000" / "000000.pack", PAYLOADS)
    opened = []
    inner = opener(folder)

    def count(place):
        opened.append(place)
        return inner(place)

    with Packs(count) as packs:
        assert packs.open(Place(1, 1, 0)) is packs.open(Place(1, 1, 0))
        assert len(opened) == 1
        for place in (Place(1, 1, 1), Place(1, 2, 0), Place(1, 1, 256)):
            with pytest.raises(Refused) as caught:
                packs.open(place)
            assert (caught.value.code, caught.value.role) == ("missing-pack", place.role)
            assert caught.value.file and caught.value.file.startswith("data/e00000")


@pytest.mark.parametrize("staging", [0, 1 << 20])
def test_few_files_are_open_however_many_packs_are_read(tmp_path, monkeypatch, staging):
    owners, shape = 12, (60, 7)
    regions = [("w", "array", "float64", shape)]
    values = values_of(regions, owners)
    build(tmp_path, regions, [rows()], values, owners=owners, hierarchy=Tree(3))
    monkeypatch.setattr(packs, "OPEN_LIMIT", 2)
    with Store.open(tmp_path) as store:
        generation = Generation.open(store, 1, 1)
        made = plan([Need(0, None, Interval(0, 420))], generation.helds(), generation.regions)
        before, most = len(os.listdir("/proc/self/fd")), [0]
        inner = packs.PackReader.read_into

        def read_into(self, buffer, offset):
            inner(self, buffer, offset)
            most[0] = max(most[0], len(os.listdir("/proc/self/fd")) - before)

        monkeypatch.setattr(packs.PackReader, "read_into", read_into)
        array = np.zeros(shape)
        checked = validate(made, Packs(opener(store.data)), [Target(array)], Staging(staging))
        apply(checked, [None])
        assert array.tobytes() == values[0].tobytes()
        assert most[0] <= 2
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_pack_that_is_gone_when_it_is_read_again(tmp_path, monkeypatch):
    regions = [("w", "array", "float64", (60, 7))]
    build(tmp_path, regions, [rows()], values_of(regions, 3), owners=3, hierarchy=Tree(3))
    monkeypatch.setattr(packs, "OPEN_LIMIT", 1)
    with Store.open(tmp_path) as store:
        generation = Generation.open(store, 1, 1)
        made = plan([Need(0, None, Interval(0, 420))], generation.helds(), generation.regions)
        checked = validate(made, Packs(opener(store.data)), [Target(np.zeros((60, 7)))], Staging(0))
        for pack in tmp_path.rglob("*.pack"):
            pack.unlink()
        with pytest.raises(Refused) as caught:
            apply(checked, [None])
        assert (caught.value.code, caught.value.role) == ("changed-while-reading", 0)
