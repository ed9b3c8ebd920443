"""Fuzz targets: bytes that were damaged with care, and what a decoder may make of them.

A *mutation* changes the value in a file, or its bytes, and then repairs the digests above the change:
random bytes alone would never get past the first digest. Allowed is a value that encodes to the same
bytes, or a `CheckpointError`; anything else is a crash, and becomes a test in test_crashes.py.
"""

from __future__ import annotations

import copy
import json
import pathlib
import struct
import tempfile
from collections.abc import Callable
from typing import Any

from format.format_values import (
    claims,
    group_manifests,
    marks,
    root_manifests,
    some_claim,
    some_group,
    some_root,
    store_files,
)
from hypothesis import strategies as st

from alpha_mpi import digest
from alpha_mpi.errors import CheckpointError
from alpha_mpi.format import pack
from alpha_mpi.format.claim import (
    decode_claim,
    decode_entry,
    decode_mark,
    decode_store_file,
    encode_claim,
    encode_mark,
    encode_store_file,
)
from alpha_mpi.format.documents import decode_document, encode_document
from alpha_mpi.format.envelope import seal
from alpha_mpi.format.manifest import decode_manifest, encode_manifest

# ---------------------------------------------------------------- values of JSON, mutated

#: What a field may hold that nobody expects there.
ODD = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**32, 2**53, 2**53 - 1, 2**63, 2**64, 10**400, -(2**63)]),
    st.sampled_from([True, False, None, "", "..", "/", "a/../b", "\0", "\x1b[2J", "x" * 2000, "é", "‮"]),
    st.sampled_from([0.5, 1e308, -0.0, 1.0]),
    st.sampled_from([[], {}, [[]], {"": {}}, [0] * 100, {"$int": "1"}, {"$float": "nan"}, {"$": 1}]),
    st.sampled_from(["xxh3-128:" + "0" * 32, "sha256:" + "f" * 64, "blake3:" + "0" * 64, "md5:", "0x1p+0"]),
    st.integers(),
    st.text(max_size=12),
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where every value inside a JSON value stands, the whole one last."""
    found: list[tuple[Any, ...]] = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        found += paths(part, (*at, key))
    return [*found, at]


def odd(data: st.DataObject) -> Any:
    """Draw an odd value, as a copy: it is changed again."""
    return copy.deepcopy(data.draw(ODD, "value"))


def mutated(data: st.DataObject, value: Any) -> Any:
    """Return a JSON value with one thing about it changed."""
    *way, last = data.draw(st.sampled_from(paths(value)), "where") or (None,)
    if last is None:
        return odd(data)
    parent = value
    for step in way:
        parent = parent[step]
    kind = data.draw(st.sampled_from(["put", "put", "put", "drop", "twice", "add", "swap", "deep"]), "how")
    old = parent[last]
    if kind == "drop":
        del parent[last]
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(last, old)
    elif kind == "add" and isinstance(parent, dict):
        parent[data.draw(st.text(max_size=8), "key")] = odd(data)
    elif kind == "swap" and isinstance(parent, list) and len(parent) > 1:
        other = data.draw(st.integers(0, len(parent) - 1), "with")
        parent[last], parent[other] = parent[other], old
    elif kind == "deep":
        for _ in range(data.draw(st.sampled_from([1, 31, 64, 300]), "levels")):
            old = [old]
        parent[last] = old
    elif isinstance(old, int) and not isinstance(old, bool) and data.draw(st.booleans(), "near"):
        parent[last] = old + data.draw(st.sampled_from([1, -1, 2**32, -(2**32)]), "by")
    else:
        parent[last] = odd(data)
    return value


def respelled(data: st.DataObject, body: bytes) -> bytes:
    """Return a body in other bytes: cut, with bytes changed, put in, or a key twice."""
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "repeat", "space"]), "spelling")
    at = data.draw(st.integers(0, max(0, len(body) - 1)), "at")
    if kind == "flip":
        body = body[:at] + bytes([body[at] ^ 1 << data.draw(st.integers(0, 7))]) + body[at + 1 :]
    elif kind == "cut":
        body = body[:at] + body[at + data.draw(st.integers(1, 40)) :]
    elif kind == "insert":
        body = body[:at] + data.draw(st.binary(min_size=1, max_size=20)) + body[at:]
    elif kind == "repeat":
        stop = data.draw(st.integers(at, min(len(body), at + 200)), "to")
        body = body[:stop] + body[at:stop] + body[stop:]
    else:
        body = body[:at] + b" " + body[at:]
    return body.replace(b"\n", b"") or b"{}"


def sealed(data: st.DataObject, good: bytes) -> bytes:
    """Return a JSON file mutated below its digest line, which is right again (or mutated too)."""
    body = good.split(b"\n")[0]
    value = json.loads(body)
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        value = mutated(data, value)
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    if data.draw(st.integers(0, 3), "respelled") == 0:
        body = respelled(data, body)
    algorithm = data.draw(st.sampled_from(["xxh3-128", "sha256", "blake3"]), "algorithm")
    whole = seal(body.replace(b"\n", b"") or b"{}", algorithm)
    return respelled(data, whole) if data.draw(st.integers(0, 9), "whole") == 0 else whole


def judge(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], data: bytes) -> None:
    """Decode; allowed are a refusal in one line and a value that encodes to the very bytes."""
    try:
        value = decode(data)
    except CheckpointError as error:
        assert "\n" not in str(error) and len(str(error)) < 8000
        return
    assert encode(value) == data, "decoded to a value of other bytes"


def _algorithm(data: bytes) -> str:
    return data.split(b"\n")[1].split(b":")[0].decode()


GOOD = [encode_manifest(some_group()), encode_manifest(some_root())]


def manifests(data: st.DataObject) -> None:
    """Group manifests and roots."""
    if data.draw(st.integers(0, 4), "drawn") == 0:
        good = encode_manifest(data.draw(group_manifests() | root_manifests(), "manifest"))
    else:
        good = data.draw(st.sampled_from(GOOD), "manifest")
    bad = sealed(data, good)
    judge(
        lambda b: decode_manifest(b, file="f", limit=1 << 24)[0],
        lambda m: encode_manifest(m, _algorithm(bad)),
        bad,
    )


def entries(data: st.DataObject) -> None:
    """Entries: roots and claims where either may stand."""
    good = data.draw(st.sampled_from([encode_manifest(some_root()), encode_claim(some_claim())]), "entry")
    bad = sealed(data, good)

    def encode(value: Any) -> bytes:
        made = encode_manifest if hasattr(value, "shards") else encode_claim
        return made(value, _algorithm(bad))

    judge(lambda b: decode_entry(b, "f"), encode, bad)


def small_files(data: st.DataObject) -> None:
    """Claims, marks and the store's own file."""
    kind = data.draw(st.sampled_from(["claim", "mark", "store"]), "kind")
    if kind == "claim":
        bad = sealed(data, encode_claim(data.draw(st.just(some_claim()) | claims, "claim")))
        judge(lambda b: decode_claim(b, "f"), lambda v: encode_claim(v, _algorithm(bad)), bad)
    elif kind == "mark":
        bad = sealed(data, encode_mark(data.draw(marks, "mark")))
        judge(lambda b: decode_mark(b, "f"), lambda v: encode_mark(v, _algorithm(bad)), bad)
    else:
        bad = sealed(data, encode_store_file(data.draw(store_files, "store")))
        judge(decode_store_file, encode_store_file, bad)


def documents(data: st.DataObject) -> None:
    """Documents of users: shards that hold JSON."""
    good = encode_document({"a": [1, 0.5, None, True, {"$b": 2**70}], "é": "x", "n": float("inf")})
    value = mutated(data, json.loads(good))
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    bad = respelled(data, body) if data.draw(st.booleans(), "respelled") else body
    judge(lambda b: decode_document(b, "f"), encode_document, bad)


# ---------------------------------------------------------------- packs

_U8 = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 63, 64, 127, 128, 4096, 2**32, 2**53, 2**63, 2**64 - 1, 2**64 - 64]),
)


def packs(data: st.DataObject) -> None:
    """Headers and directories of packs, with the digests over them right again."""
    slots = data.draw(
        st.lists(
            st.builds(
                pack.Slot, st.integers(0, 3), st.integers(0, 2), st.integers(0, 50), st.integers(1, 1 << 21)
            ),
            max_size=4,
            unique_by=lambda slot: slot[:3],
        ),
        "slots",
    )
    algorithm = data.draw(st.sampled_from(["xxh3-128", "sha256", "blake3"]), "algorithm")
    plan = pack.PackPlan.of(slots, algorithm)
    directory, head = bytearray(plan.directory), bytearray(plan.header[:96])
    for _ in range(data.draw(st.integers(0, 3), "changes below")):
        if directory:
            at = data.draw(st.integers(0, len(directory) // 8 - 1), "field") * 8
            struct.pack_into("<Q", directory, at, data.draw(_U8, "number"))
    if data.draw(st.integers(0, 4), "entries") == 0:
        step = pack.ENTRY.itemsize
        directory = directory + directory[:step] if data.draw(st.booleans()) else directory[step:]
    width = digest.SIZES[algorithm]
    head[64 : 64 + width] = digest.raw(bytes(directory), algorithm)
    for _ in range(data.draw(st.integers(0, 2), "changes above")):
        at = data.draw(st.sampled_from([8, 12, 32, 40, 48, 56, *range(16, 32)]), "at")
        struct.pack_into("<Q" if at >= 32 else "<I" if at < 16 else "<B", head, at, _number(data, at))
    header = bytes(head) + digest.raw(bytes(head), algorithm).ljust(32, b"\0")
    size = data.draw(st.just(plan.size) | _U8, "size of the file")
    try:
        opened = pack.open_header(header, "f", size)
        if opened.directory_nbytes > 1 << 20:
            return  # a reader of so small a file would not get that far
        read = pack.open_directory(opened, bytes(directory), "f")
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    for begin, end in pack.padding(opened, read):
        assert pack.HEADER <= begin < end <= opened.directory_offset
    for entry in read:
        assert pack.HEADER <= int(entry["offset"]) <= opened.tables_offset - int(entry["nbytes"])


def _number(data: st.DataObject, at: int) -> int:
    return data.draw(_U8, "number") % (2**64 if at >= 32 else 2**32 if at < 16 else 256)


# ---------------------------------------------------------------- whole stores

_STORE: list[pathlib.Path] = []


def stores(data: st.DataObject) -> None:
    """A store one of whose JSON files was mutated below its digest: judged, listed and resumed."""
    from damage import kit

    if not _STORE:
        _STORE.append(pathlib.Path(tempfile.mkdtemp(prefix="am-fuzz-")) / "ckpt")
        kit.make(_STORE[0])
    path = _STORE[0]
    file = data.draw(st.sampled_from([f for f in kit.FILES if not f.endswith(".pack")]), "file")
    good = (path / file).read_bytes()
    bad = sealed(data, good)
    try:
        (path / file).write_bytes(bad)
        before = kit.digests(path)
        code, _ = kit.run("verify", path, "--all")
        for command in ("ls", "why"):
            kit.run(command, path)
        assert kit.digests(path) == before
        if code == 0:
            return  # another value that means the same: a job's name in a claim that says no more
        try:
            job = kit.Job(path, visibility=0.0)
        except CheckpointError:
            return
        words = job.words
        with job.checkpointer as ckpt:
            try:
                ckpt.resume()
            except CheckpointError:
                assert job.words == words and kit.digests(path) == before
                return
        assert job.words != words
    finally:
        (path / file).write_bytes(good)
        for name in path.glob("*/*.json"):  # a resume that succeeded has taken an epoch
            if str(name.relative_to(path)) not in kit.FILES:
                name.unlink()


TARGETS: dict[str, Callable[[st.DataObject], None]] = {
    "manifests": manifests,
    "entries": entries,
    "claims, marks and the store file": small_files,
    "documents": documents,
    "packs": packs,
    "stores": stores,
}


def tidy() -> None:
    """Remove what the targets made."""
    import shutil

    while _STORE:
        shutil.rmtree(_STORE.pop().parent)
