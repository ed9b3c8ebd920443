"""The golden store: bytes of the first release, written and read again, byte for byte.

Read by the library's format room and by the reader that was written from docs/format.md alone.
"""

from __future__ import annotations

import ast
import json
import math
import pathlib
import shutil
from typing import Any

import msgspec
import numpy as np
import oracle
import pytest
from golden import generate

from alpha_mpi.errors import Refused
from alpha_mpi.format import (
    check_records,
    cover,
    decode_claim,
    decode_entry,
    decode_manifest,
    decode_mark,
    decode_store_file,
    encode_claim,
    encode_manifest,
    encode_mark,
    encode_store_file,
    pack,
)
from alpha_mpi.format.claim import Claim
from alpha_mpi.format.manifest import DeviceRecord
from alpha_mpi.format.signature import Key
from alpha_mpi.restore import choose
from alpha_mpi.restore.verify import verify
from alpha_mpi.store.store import Store

GOLDEN = pathlib.Path(generate.__file__).parent / "v1"
FILES = sorted(str(p.relative_to(GOLDEN)) for p in GOLDEN.rglob("*") if p.is_file())
SIGNED = GOLDEN.parent / "signed"
DEVICE = GOLDEN.parent / "device"
CHILD = "data/e000001-000001/000/000001.manifest.json"
FIRST, SECOND = "e000001-000001", "e000002-000001"


def test_the_generator_still_writes_the_same_bytes() -> None:
    made = generate.store()
    assert sorted(made) == FILES
    for name, data in made.items():
        assert (GOLDEN / name).read_bytes() == data, name


def test_the_generator_still_writes_the_same_signed_store() -> None:
    made = generate.signed()
    assert sorted(made) == sorted(str(p.relative_to(SIGNED)) for p in SIGNED.rglob("*") if p.is_file())
    for name, data in made.items():
        assert (SIGNED / name).read_bytes() == data, name


def test_the_generator_still_writes_the_same_device_store() -> None:
    made = generate.device()
    assert sorted(made) == sorted(str(p.relative_to(DEVICE)) for p in DEVICE.rglob("*") if p.is_file())
    for name, data in made.items():
        assert (DEVICE / name).read_bytes() == data, name


def test_the_device_store_is_read() -> None:
    found = oracle.read_generation(DEVICE)
    assert found.arrays["w"].tolist() == [0, 1, 2, 3]
    with Store.open(DEVICE) as store:
        assert verify(store, choose.survey(store).newest.epoch, 1).whole  # type: ignore[union-attr]
    for name, product in ((f"published/{FIRST}.json", "NVIDIA H200"), (CHILD, "NVIDIA H200 MIG 1g.18gb")):
        manifest, _ = decode_manifest((DEVICE / name).read_bytes(), name)
        (device,) = manifest.devices_of(manifest.role)
        assert device.product == product and encode_manifest(manifest) == (DEVICE / name).read_bytes()


@pytest.mark.parametrize(
    "devices",
    [
        (),
        ((1, "P", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "1g"),),
        ((1, "P", "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),),
        ((1, "P", "GPU-00010203", ""),),
        ((1, "", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),),
        ((1, "P" * 257, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),),
        ((2**32, "P", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),),
        ((1, "P", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),) * 2,
        ((0, "P", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", ""),),
    ],
)
def test_devices_that_no_manifest_records(devices: Any) -> None:
    """Refused by the library, on writing and on reading, and by the oracle."""
    data = (DEVICE / CHILD).read_bytes()
    manifest, _ = decode_manifest(data, CHILD)
    records = tuple(DeviceRecord(*device) for device in devices)
    wrong = msgspec.structs.replace(manifest, devices=records)
    body = json.loads(data.split(b"\n")[0]) | {"devices": [list(d) for d in devices]}
    other_owner = devices and devices[0][0] == 0
    if other_owner:  # valid by itself; not under a root with a tree
        root, _ = decode_manifest((DEVICE / f"published/{FIRST}.json").read_bytes(), FIRST)
        assert root.root is not None
        with pytest.raises(Refused) as told:
            check_records(wrong, root.root, CHILD)
    else:
        with pytest.raises(oracle.Damaged):
            oracle.read_manifest(body)
        with pytest.raises(Refused) as told:
            encode_manifest(wrong)
    assert told.value.code == "corrupt-manifest"


def test_the_signed_store_is_read_with_its_key_and_without() -> None:
    for key in (None, generate.KEY):
        found = oracle.read_generation(SIGNED, key=key)
        assert (found.entry, found.update, found.arrays["w"].tolist()) == (FIRST, 3, [0, 1, 2, 3])
    with pytest.raises(oracle.Damaged, match="not the signature"):
        oracle.read_generation(SIGNED, key=bytes(32))
    with pytest.raises(oracle.Damaged, match="not signed"):
        oracle.read_generation(GOLDEN, key=generate.KEY)
    with Store.open(SIGNED, key=Key(generate.KEY)) as store:
        seen = choose.survey(store)
        assert seen.signed and seen.newest is not None and seen.newest.name == FIRST
        assert verify(store, 1, 1).whole


@pytest.mark.parametrize("name", ["epochs/e000001.json", f"published/{FIRST}.json"])
def test_every_flip_in_a_signed_file_is_seen_without_the_key(name: str, tmp_path: pathlib.Path) -> None:
    copy = shutil.copytree(SIGNED, tmp_path / "s")
    good = (copy / name).read_bytes()
    line = good.split(b"\n")[2]
    cut = good[: -len(line) - 1]
    flips = [good[:i] + bytes([good[i] ^ 1 << i % 8]) + good[i + 1 :] for i in range(len(good))]
    more = [cut, good[:-1], good + b"\n", good + line + b"\n", cut + line.lower().replace(b"h", b"H") + b"\n"]
    for bad in flips + more:
        (copy / name).write_bytes(bad)
        with pytest.raises(oracle.Damaged):
            oracle.read_generation(copy, FIRST if name.startswith("published") else None)
        with Store.open(copy) as store:
            seen = choose.survey(store)
            assert seen.damage is not None and seen.damage.file == name, bad


def again(name: str, data: bytes) -> bytes:
    """Return the file encoded again from what was decoded."""
    if name == "store.json":
        return encode_store_file(decode_store_file(data, name))
    if name.startswith("epochs/"):
        return encode_claim(decode_claim(data, name))
    if name.endswith((".removed", ".pinned")):
        return encode_mark(decode_mark(data, name))
    if name.startswith("published/"):
        entry = decode_entry(data, name)
        return encode_claim(entry) if isinstance(entry, Claim) else encode_manifest(entry)
    if name.endswith(".manifest.json"):
        return encode_manifest(decode_manifest(data, name)[0])
    header = pack.open_header(data[: pack.HEADER], name, len(data))
    directory = pack.open_directory(header, data[header.directory_offset :], name)
    slots = [pack.Slot(*(int(e[c]) for c in ("ordinal", "owner", "start", "nbytes"))) for e in directory]
    plan = pack.PackPlan.of(slots, header.algorithm)
    whole = bytearray(data)
    whole[: pack.HEADER] = plan.header
    whole[plan.directory_offset :] = plan.directory
    assert all(not any(data[a:b]) for a, b in pack.padding(header, directory))
    return bytes(whole)


@pytest.mark.parametrize("name", FILES)
def test_every_golden_file_decodes_and_encodes_to_itself(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    assert again(name, data) == data


def test_the_roots_agree_with_their_manifests() -> None:
    for name in (FIRST, SECOND):
        file = f"published/{name}.json"
        top = decode_entry((GOLDEN / file).read_bytes(), file)
        assert not isinstance(top, Claim) and top.root is not None
        check_records(top, top.root, file)
        assert cover(top.shards, [c.cover for c in top.children]) == top.prefix.cover
        for child in top.children:
            path = f"data/e000001-000002/000/{child.role:06d}.manifest.json"
            manifest, _ = decode_manifest((GOLDEN / path).read_bytes(), path)
            check_records(manifest, top.root, path)
            assert cover(manifest.shards) == child.cover
            assert manifest.prefix == top.prefix


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize(("entry", "update"), [(FIRST, 1), (SECOND, 2), (None, 2)])
def test_the_independent_reader_reads_what_was_written(entry: str | None, update: int) -> None:
    found = oracle.read_generation(GOLDEN, entry)
    assert found.entry == (entry or SECOND)
    assert (found.update, found.cursor, found.epoch, found.owners) == (update, 16 * update, update, 3)
    assert found.manifests == (3 if update == 1 else 1)
    names = [r.name for r in generate.SCHEMA]
    for ordinal, array in generate.arrays(update).items():
        got = found.arrays[names[ordinal]]
        assert found.formats[names[ordinal]] == generate.SCHEMA[ordinal].format
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()
    rng = np.arange(12).reshape(3, 4) if update == 1 else 100 * np.arange(3)[:, None] + np.arange(4)
    assert (found.arrays["rng"] == rng).all()
    assert same(found.documents, {"schedule": generate.SCHEDULE})
    notes = [{"owner": k} if update == 1 else [k, None, True] for k in range(3)]
    assert same(found.per_owner_documents, {"note": notes})
    assert found.learner["rate"] == 0.01
    assert found.contract["labels"] == {"$odd": 2**60}


def test_the_independent_reader_imports_nothing_of_ours() -> None:
    tree = ast.parse(pathlib.Path(oracle.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    known = {
        "__future__",
        "dataclasses",
        "hashlib",
        "hmac",
        "itertools",
        "json",
        "math",
        "pathlib",
        "re",
        "struct",
    }
    assert imported <= known | {"sys", "typing", "numpy", "xxhash", "blake3"}


#: What is read to meet a file: a generation, or (None) the way to the newest one.
JUDGED: list[tuple[str, str | None]] = [
    ("store.json", FIRST),
    ("epochs/e000001.json", None),
    ("epochs/e000002.json", None),
    ("published/e000001-000001.json", FIRST),
    ("published/e000001-000003.json", None),
    ("published/e000002-000001.json", SECOND),
    *[(name, FIRST) for name in FILES if name.startswith("data/e000001")],
    ("data/e000002-000001/000/000000.pack", SECOND),
]


@pytest.mark.parametrize(("name", "entry"), JUDGED)
def test_the_independent_reader_refuses_a_flip_anywhere(
    name: str, entry: str | None, tmp_path: pathlib.Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    data = (store / name).read_bytes()
    # One bit in each of at most about 400 bytes, spread over the file: over every part of a pack.
    step = max(1, len(data) // 400)
    where = range(0, len(data), step)
    if step > 9:  # the large pack is nearly all payload: its header and tail are asked closely
        where = [*range(128), *where, *range(len(data) - 500, len(data))]  # type: ignore[assignment]
    for i in where:
        flipped = bytearray(data)
        flipped[i] ^= 1 << i % 8
        (store / name).write_bytes(flipped)
        with pytest.raises(oracle.Damaged):
            oracle.read_generation(store, entry)


def test_a_shard_named_in_an_older_pack_is_judged_there(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    path = store / "data/e000001-000002/000/000002.pack"
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(oracle.Damaged, match="a chunk of shard"):
        oracle.read_generation(store, SECOND)
    path.unlink()
    with pytest.raises(oracle.Damaged, match="missing"):
        oracle.read_generation(store, SECOND)


def test_the_newest_generation_is_the_base_of_an_epoch_that_published_nothing(
    tmp_path: pathlib.Path,
) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    (store / f"published/{SECOND}.json").unlink()
    assert oracle.read_generation(store).entry == FIRST
    (store / "epochs/e000002.json").unlink()  # the seal alone says that epoch 2 was claimed
    assert oracle.read_generation(store).entry == FIRST
    with pytest.raises(oracle.Damaged):
        oracle.read_generation(store, "e000001-000003")
