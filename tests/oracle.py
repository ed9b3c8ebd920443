"""An independent reader of stores, written from docs/format.md alone.

It imports nothing of the library: NumPy, json, struct, hashlib and xxhash only. It reads a whole
generation, checks every digest, every piece and every byte of padding on the way, and raises
`Damaged` at the first thing that is not as the page says. Slow and plain on purpose.

``python tests/oracle.py STORE [ENTRY]`` prints what it found.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import json
import math
import pathlib
import re
import struct
import sys
from typing import Any, NoReturn

import numpy as np
import xxhash

CHUNK = 1 << 20
MAGIC = bytes.fromhex("89414d504b0d0a1a")
WIDTHS = {"xxh3-128": 16, "sha256": 32, "blake3": 32}
#: NumPy's little-endian dtype of each format; bfloat16 and float8 come back as their raw bits.
FORMATS = {
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "float16": "<f2",
    "bfloat16": "<u2", "int32": "<i4", "uint32": "<u4", "float32": "<f4", "int64": "<i8",
    "uint64": "<u8", "float64": "<f8", "complex64": "<c8", "complex128": "<c16",
    **{f"float8_{x}": "|u1" for x in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz")},
    **{f"float8_{x}": "|u1" for x in ("e5m2", "e5m2fnuz", "e8m0fnu")},
}  # fmt: skip
PREFIX_KEYS = {"attempt", "contract", "cover", "layout", "learner", "moment", "replicas", "schema", "version"}
ROOT_KEYS = {"continues", "contract", "entry", "hierarchy", "layouts", "learner", "owners", "replicas"}
ROOT_KEYS |= {"schema", "score", "signed", "store"}
CLAIM_KEYS = {"base", "continues", "epoch", "fork", "host", "job", "kind", "nonce", "owners", "restart"}
CLAIM_KEYS |= {"accepted", "signed", "skipped", "store", "version"}


class Damaged(Exception):
    """Something is not as docs/format.md says."""


@dataclasses.dataclass
class Generation:
    """A whole generation. Per-owner arrays have a leading owner axis; `formats` names the format
    of each array, `documents` holds plain documents and, by owner, lists of per-owner ones."""

    entry: str
    root: str
    update: int
    cursor: int
    epoch: int
    owners: int
    arrays: dict[str, np.ndarray]
    formats: dict[str, str]
    documents: dict[str, Any]
    per_owner_documents: dict[str, list[Any]]
    learner: dict[str, Any]
    contract: dict[str, Any]
    manifests: int


def no(what: str) -> NoReturn:
    raise Damaged(what)


def need(condition: object, what: str) -> None:
    if not condition:
        raise Damaged(what)


# ------------------------------------------------------------ section 2: canonical JSON


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse(body: bytes, depth: int) -> Any:
    deep = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[][{}]', body):
        deep += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        need(deep <= depth, "nested too deep")
    try:
        value = json.loads(body.decode(), parse_float=no, parse_constant=no, parse_int=integer)
        again = canonical(value)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not JSON: {error}") from error
    need(again == body, "not canonical")
    return value


def integer(text: str) -> int:
    need(len(text) <= 17 and abs(int(text)) <= 2**53, f"the number {text[:40]}")
    return int(text)


def number(value: Any, least: int = 0, most: int = 2**53 - 1) -> int:
    need(type(value) is int and least <= value <= most, f"the number {value!r}")
    return int(value)


def fields(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    need(isinstance(value, dict) and set(value) == keys, f"the fields of {what}")
    return dict(value)


def items(value: Any, length: int | None, what: str) -> list[Any]:
    need(isinstance(value, list) and length in (None, len(value)), f"not a list: {what}")
    return list(value)


# ------------------------------------------------------------ section 3: digests


def raw(algorithm: str, data: bytes) -> bytes:
    if algorithm == "xxh3-128":
        return xxhash.xxh3_128(data).digest()
    if algorithm == "sha256":
        return hashlib.sha256(data).digest()
    import blake3

    return bytes(blake3.blake3(data).digest())


def algorithm_of(text: Any) -> str:
    need(isinstance(text, str), "a digest that is no text")
    algorithm, _, digits = text.partition(":")
    need(re.fullmatch("[0-9a-f]*", digits) and len(digits) == 2 * WIDTHS.get(algorithm, -1), "not a digest")
    return str(algorithm)


def check(text: Any, data: bytes, what: str) -> None:
    algorithm = algorithm_of(text)
    need(text == f"{algorithm}:{raw(algorithm, data).hex()}", f"digest of {what}")


def check_combined(text: Any, purpose: str, listed: Any, tail: bytes, what: str) -> None:
    check(text, canonical([purpose, listed]) + b"\n" + tail, what)


# ------------------------------------------------------------ sections 1, 4, 5, 6: small files


def load(path: pathlib.Path, limit: int = 1 << 20) -> tuple[dict[str, Any], str, bytes]:
    """Return (value, digest of the body, whole file) of a JSON file."""
    need(path.is_file() and not path.is_symlink(), f"{path} is missing")
    data = path.read_bytes()
    need(len(data) <= limit, f"{path} is too long")
    need(data.count(b"\n") == 2 and data.endswith(b"\n"), f"{path} is not two lines")
    return of_lines(data.split(b"\n")[:2], str(path))


def of_lines(lines: list[bytes], path: str) -> tuple[dict[str, Any], str, bytes]:
    need(len(lines) == 2, f"{path} is not two lines")
    body, line = lines
    text = line.decode("utf-8", "replace")
    check(text, body, path)
    value = parse(body, 64)
    need(isinstance(value, dict), f"{path} holds no object")
    return value, text, body + b"\n" + line + b"\n"


def load_signed(
    path: pathlib.Path, key: bytes | None, places: list[list[Any]], limit: int = 1 << 20
) -> tuple[dict[str, Any], str, bytes]:
    """Return what `load` does of a root or a claim; with a key, one of `places` must be signed."""
    need(path.is_file() and not path.is_symlink(), f"{path} is missing")
    data = path.read_bytes()
    need(len(data) <= limit and data.endswith(b"\n"), f"{path} is too long, or cut")
    lines = data.split(b"\n")[:-1]
    if len(lines) == 3:
        match = re.fullmatch(rb"(hmac-sha256:([0-9a-f]{64})):([0-9a-f]{16})", lines[2])
        need(match, f"{path}: the third line is no signature")
        assert match is not None
        need(hashlib.sha256(match[1]).hexdigest()[:16].encode() == match[3], f"{path}: a damaged signature")
    need(key is None or len(lines) == 3, f"{path} is not signed")
    if key is not None:
        digest_line = lines[1].decode("utf-8", "replace")
        need(digest_line.startswith(("sha256:", "blake3:")), f"{path}: a digest too weak to be signed")
        texts = [canonical(["signature", [*place, digest_line]]) for place in places]
        macs = [hmac.new(key, text, "sha256").hexdigest() for text in texts]
        need(lines[2].split(b":")[1].decode() in macs, f"{path}: not the signature of this key and name")
    value, text, _ = of_lines(lines[:2], str(path))
    said = value.get("root") if value.get("kind") == "manifest" else value
    need(isinstance(said, dict) and said.get("signed") is (len(lines) == 3), f"{path}: signed or not")
    return value, text, data


def numbers_in(directory: pathlib.Path, pattern: str) -> list[tuple[int, ...]]:
    found = []
    for path in directory.iterdir():
        match = re.fullmatch(pattern, path.name)
        if match and all(f"{int(g):06d}" == g and int(g) for g in match.groups()):
            found.append(tuple(int(g) for g in match.groups()))
    return sorted(found)


def need_accepted(claim: dict[str, Any]) -> None:
    """Check what a claim says was accepted: [kind, subject, reason], in order."""
    accepted = items(claim["accepted"], None, "accepted")
    need(len(accepted) <= 4096 and (not accepted or claim["continues"] is not None), "accepted")
    keys, once = [], []
    for one in accepted:
        kind, subject, reason = items(one, 3, "a difference accepted")
        need(kind in {"contract", "device", "extra", "learner", "missing"}, "a difference's kind")
        for text in (subject, reason):
            need(isinstance(text, str) and 1 <= len(text) <= 1024, "a difference's text")
        keys.append((kind, subject))
        once += [kind] * (kind not in {"extra", "missing"})
    need(keys == sorted(set(keys)) and len(once) == len(set(once)), "the order of what was accepted")


def newest(store: pathlib.Path, key: bytes | None = None) -> str:
    """Return the entry name of the newest generation."""
    id_ = load(store / "store.json")[0].get("id")
    epochs = {e for (e,) in numbers_in(store / "epochs", r"e(\d{6,})\.json")}
    entries = numbers_in(store / "published", r"e(\d{6,})-(\d{6,})\.json")
    removed = set(numbers_in(store / "published", r"e(\d{6,})-(\d{6,})\.removed"))
    claims, roots = {}, []
    for epoch in epochs:
        place = ["claim", id_, epoch, 0]
        claims[epoch] = load_signed(store / "epochs" / f"e{epoch:06d}.json", key, [place])
    for epoch, entry in entries:
        file = store / "published" / f"e{epoch:06d}-{entry:06d}.json"
        places = [["root", id_, epoch, entry], ["claim", id_, epoch + 1, 0]]
        loaded = load_signed(file, key, places, 1 << 30)
        if loaded[0].get("kind") == "manifest":
            roots.append((epoch, entry))
        elif epoch + 1 not in claims or claims[epoch + 1][2] == loaded[2]:
            claims[epoch + 1] = loaded
    need(claims, "no epoch was ever claimed")
    last = max(claims)
    claim = fields(claims[last][0], CLAIM_KEYS, "a claim")
    need_accepted(claim)
    mine = [r for r in roots if r[0] == last and r not in removed]
    if mine:
        return "e{:06d}-{:06d}".format(*max(mine))
    need(claim["base"] is not None, "the store holds no generation")
    return "e{:06d}-{:06d}".format(*claim["base"])


# ------------------------------------------------------------ section 7: manifests


def read_prefix(value: Any) -> dict[str, Any]:
    prefix = fields(value, PREFIX_KEYS, "a prefix")
    need(prefix["version"] == 1, "format version")
    attempt = fields(prefix["attempt"], {"epoch", "save"}, "an attempt")
    number(attempt["epoch"], 1)
    number(attempt["save"], 1)
    moment = fields(prefix["moment"], {"cursor", "epoch", "update"}, "a moment")
    number(moment["cursor"]), number(moment["epoch"], 1), number(moment["update"])
    for key in PREFIX_KEYS - {"attempt", "moment", "version"}:
        algorithm_of(prefix[key])
    return prefix


def read_manifest(value: Any) -> dict[str, Any]:
    keys = {"children", "kind", "prefix", "role", "root", "shards", "size"}
    optional = {"devices"} & set(value) if isinstance(value, dict) else set()
    manifest = fields(value, keys | optional, "a manifest")
    if optional:
        read_devices(items(manifest["devices"], None, "devices"))
    need(manifest["kind"] == "manifest", "kind of a manifest")
    read_prefix(manifest["prefix"])
    role, size = number(manifest["role"]), number(manifest["size"], 1)
    at = role + 1
    for child in items(manifest["children"], None, "children"):
        child_role, child_size, _, _ = items(child, 4, "a child record")
        need(number(child_role) == at, "a child out of preorder")
        at += number(child_size, 1)
    need(at == role + size, "the size of a subtree")
    need((role == 0) == (manifest["root"] is not None), "role 0 is the root")
    own = [s[:3] for s in items(manifest["shards"], None, "shards") if len(items(s, 6, "a shard")) == 6]
    manifest["cover"] = [own, [child[3] for child in manifest["children"]]]
    return manifest


def read_devices(devices: list[Any]) -> None:
    need(devices, "an empty list of devices")
    keys = []
    for device in devices:
        owner, product, uuid, mig = items(device, 4, "a device")
        need(isinstance(product, str) and 1 <= len(product) <= 256, "a device's product")
        need(isinstance(mig, str) and len(mig) <= 256, "a device's MIG profile")
        form = f"{'MIG' if mig else 'GPU'}-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
        need(isinstance(uuid, str) and re.fullmatch(form, uuid), "a device's UUID")
        keys.append((number(owner, 0, 2**32 - 1), uuid))
    need(keys == sorted(set(keys)), "the order of devices")


def read_root(manifest: dict[str, Any]) -> dict[str, Any]:
    root, prefix = fields(manifest["root"], ROOT_KEYS, "a root"), manifest["prefix"]
    schema = items(root["schema"], None, "schema")
    names = set()
    for region in schema:
        fields(region, {"format", "kind", "name", "shape"}, "a region")
        need(isinstance(region["name"], str) and 1 <= len(region["name"]) <= 1024, "a region's name")
        names.add(region["name"])
        document = region["kind"] in ("document", "per-owner-document")
        need(document or region["kind"] in ("array", "per-owner"), "kind of a region")
        need(region["format"] == "json" if document else region["format"] in FORMATS, "format of a region")
        need(len(items(region["shape"], 0 if document else None, "a shape")) <= 32, "axes")
        number(math.prod(number(n) for n in region["shape"]))
    need(len(names) == len(schema), "two regions of one name")
    listed = [[r["name"], r["kind"], r["format"], r["shape"]] for r in schema]
    check_combined(prefix["schema"], "schema", listed, b"", "the schema")
    check_combined(prefix["learner"], "learner", root["learner"], b"", "the learner")
    check_combined(prefix["contract"], "contract", root["contract"], b"", "the contract")
    keys = {"accumulation", "combine", "formats", "labels", "placement", "product"}
    if isinstance(root["contract"], dict) and "device" in root["contract"]:
        keys.add("device")
        need(root["contract"]["device"] in ("none", "uuid"), "what a contract binds of devices")
    fields(root["contract"], keys, "a contract")
    layout = [items(root["layouts"], len(schema), "layouts"), root["owners"], root["hierarchy"]]
    check_combined(prefix["layout"], "layout", layout, b"", "the layout")
    replicas = [items(r, 2, "a replica") for r in items(root["replicas"], None, "replicas")]
    check_combined(prefix["replicas"], "replicas", [text for _, text in replicas], b"", "the replicas")
    expected = [
        i
        for i, (r, rule) in enumerate(zip(schema, root["layouts"], strict=True))
        if r["kind"] == "document" or (r["kind"] == "array" and rule == {"rule": "replicated"})
    ]
    need([i for i, _ in replicas] == expected, "the list of replicated regions")
    number(root["owners"], 1)
    if root["score"] is not None:
        need(math.isfinite(plain({"$float": root["score"]})), "a score")
    kind = root["hierarchy"].get("kind")
    need(kind in ("star", "tree"), "hierarchy")
    need(manifest["size"] == (1 if kind == "star" else root["owners"]), "roles in the tree")
    return root


def children_of(role: int, size: int, fan_out: int) -> list[list[int]]:
    """Return [role, size] of the children: shares of the roles below, the larger first."""
    below, found, at = size - 1, [], role + 1
    count = min(fan_out, below)
    for i in range(count):
        share = below // count + (i < below % count)
        found.append([at, share])
        at += share
    return found


def all_manifests(store: pathlib.Path, top: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every manifest of a generation, in preorder, each checked against the record above."""
    prefix = top["prefix"]
    check_combined(prefix["cover"], "cover", top["cover"], b"", "the cover of the root")
    directory = "e{epoch:06d}-{save:06d}".format(**prefix["attempt"])
    found, stack = [top], list(reversed(top["children"]))
    while stack:
        role, size, digest, cover = stack.pop()
        path = store / "data" / directory / f"{role // 256:03d}" / f"{role:06d}.manifest.json"
        value, _, data = load(path, 1 << 30)
        check(digest, data, str(path))
        manifest = read_manifest(value)
        need((manifest["role"], manifest["size"]) == (role, size), f"{path} is of another role")
        need(manifest["prefix"] == prefix, f"{path} has another prefix")
        check_combined(cover, "cover", manifest["cover"], b"", f"the cover of {path}")
        stack.extend(reversed(manifest["children"]))
        found.append(manifest)
    need([m["role"] for m in found] == list(range(top["size"])), "a role is missing")
    if "fan_out" in root["hierarchy"]:
        for m in found:
            expected = children_of(m["role"], m["size"], number(root["hierarchy"]["fan_out"], 1))
            need([c[:2] for c in m["children"]] == expected, f"the children of role {m['role']}")
    return found


def placed(piece: list[Any], region: dict[str, Any]) -> tuple[int, int, Any]:
    """Return (first word, words, index into an array of the region's shape or flattened)."""
    shape = region["shape"]
    if not piece:
        need(region["kind"] != "array", "an array in a whole")
        return 0, math.prod(shape), None
    need(region["kind"] == "array", "a piece of a whole")
    if len(piece) == 2:
        start, stop = piece
        need(0 <= start < stop <= math.prod(shape), "an interval outside its region")
        return start, stop - start, slice(start, stop)
    rank = piece[0]
    need(rank == len(shape) >= 1 and len(piece) == 2 * rank + 1, "a box of another rank")
    starts, stops = piece[1 : rank + 1], piece[rank + 1 :]
    need(all(0 <= a < b <= n for a, b, n in zip(starts, stops, shape, strict=True)), "a box outside")
    first = sum(a * math.prod(shape[i + 1 :]) for i, a in enumerate(starts))
    box = tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))
    return first, math.prod(b - a for a, b in zip(starts, stops, strict=True)), box


# ------------------------------------------------------------ section 8: documents


def plain(value: Any) -> Any:
    """Return the value a document's JSON stands for."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$float"}:
        text = value["$float"]
        need(isinstance(text, str) and re.fullmatch("[-+.0-9a-finpx]{3,26}", text), "a float")
        decoded = float.fromhex(text)
        need(decoded.hex() == text, "a float written otherwise")
        return decoded
    if set(value) == {"$int"}:
        digits = value["$int"]
        need(re.fullmatch(r"-?[1-9]\d{0,3999}", str(digits)), "an integer written otherwise")
        need(abs(int(digits)) > 2**53, "an integer that needs no mark")
        return int(digits)
    need(all(not k.startswith("$") or k.startswith("$$") for k in value), "a key that means nothing")
    return {k.removeprefix("$"): plain(v) for k, v in value.items()}


# ------------------------------------------------------------ section 9: packs


class Pack:
    """One pack file, read whole and checked whole."""

    def __init__(self, path: pathlib.Path) -> None:
        need(path.is_file() and not path.is_symlink(), f"{path} is missing")
        self.data = data = path.read_bytes()
        need(len(data) >= 128 and data[:8] == MAGIC, f"{path} is no pack")
        self.algorithm = data[16:32].rstrip(b"\0").decode("ascii", "replace")
        self.width = width = WIDTHS.get(self.algorithm, 0)
        need(width and data[16:32] == self.algorithm.encode().ljust(16, b"\0"), "algorithm of a pack")
        need(data[96:128] == raw(self.algorithm, data[:96]).ljust(32, b"\0"), "digest of a header")
        version, chunk = struct.unpack_from("<II", data, 8)
        count, tables, directory, size = struct.unpack_from("<QQQQ", data, 32)
        need(version == 1 and chunk == CHUNK and size == len(data), "fields of a header")
        need(tables % 64 == 0 and 128 <= tables <= directory <= size, "offsets of a header")
        need(size - directory == 40 * count, "length of a directory")
        need(data[64:96] == raw(self.algorithm, data[directory:]).ljust(32, b"\0"), "digest of a directory")
        self.where: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        used, at, last = [(0, 128)], tables, (-1, -1, -1)
        for i in range(count):
            *key, offset, nbytes, table = struct.unpack_from("<IIQQQQ", data, directory + 40 * i)
            need(tuple(key) > last, "a directory out of order")
            need(nbytes >= 1 and offset + nbytes <= tables, "a payload outside")
            need(offset % (4096 if nbytes >= 65536 else 64) == 0, "a payload not aligned")
            need(table == at, "a chunk table elsewhere")
            last = (key[0], key[1], key[2])
            at += width * -(-nbytes // CHUNK)
            used.append((offset, offset + nbytes))
            self.where[last] = (offset, nbytes, table)
        need(directory == -(-at // 64) * 64, "the place of the directory")
        used += [(tables, at), (directory, size)]
        for (_, stop), (start, _) in itertools.pairwise(sorted(used)):
            need(stop <= start, "payloads overlap")
            need(not any(data[stop:start]), "padding that is not zero")

    def shard(self, key: tuple[int, int, int], nbytes: int, digest: str, format: str) -> bytes:
        """Return the payload of a shard, checked from its digest down."""
        need(key in self.where, f"shard {key} is missing")
        offset, length, table = self.where[key]
        need(length == nbytes, f"length of shard {key}")
        chunks = self.data[table : table + self.width * -(-nbytes // CHUNK)]
        algorithm = algorithm_of(digest)
        check_combined(digest, "shard", [algorithm, format, nbytes, CHUNK], chunks, f"shard {key}")
        payload = self.data[offset : offset + nbytes]
        need(chunk_table(algorithm, payload) == chunks, f"a chunk of shard {key}")
        return payload


def chunk_table(algorithm: str, data: bytes) -> bytes:
    return b"".join(raw(algorithm, data[i : i + CHUNK]) for i in range(0, len(data), CHUNK))


# ------------------------------------------------------------ section 12: a whole generation


class Assembly:
    """Puts shards together: every word once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.schema, self.owners = root["schema"], root["owners"]
        self.arrays: dict[int, np.ndarray] = {}
        self.taken: dict[int, np.ndarray] = {}
        self.documents: dict[int, dict[int, bytes]] = {}
        for i, region in enumerate(self.schema):
            if region["format"] == "json":
                self.documents[i] = {}
                continue
            shape = list(region["shape"])
            if region["kind"] == "per-owner":
                shape = [self.owners, *shape]
            self.arrays[i] = np.zeros(shape, FORMATS[region["format"]])
            self.taken[i] = np.zeros(shape, bool)

    def put(self, ordinal: int, owner: int, index: Any, payload: bytes) -> None:
        if ordinal in self.documents:
            need(owner not in self.documents[ordinal], "a document twice")
            self.documents[ordinal][owner] = payload
            return
        array, taken = self.arrays[ordinal], self.taken[ordinal]
        if isinstance(index, slice):
            array, taken = array.reshape(-1), taken.reshape(-1)
        elif index is None:
            index = (owner, ...)
        need(not taken[index].any(), f"words of region {ordinal} twice")
        array[index] = np.frombuffer(payload, array.dtype).reshape(array[index].shape)
        taken[index] = True

    def finish(self, root: dict[str, Any]) -> None:
        for i, taken in self.taken.items():
            need(taken.all(), f"words of region {self.schema[i]['name']!r} are missing")
            if self.schema[i]["format"] == "bool":
                need((self.arrays[i].view("u1") <= 1).all(), "a bool that is neither 0 nor 1")
        for i, by_owner in self.documents.items():
            every = self.schema[i]["kind"] == "per-owner-document"
            need(
                sorted(by_owner) == list(range(self.owners)) if every else len(by_owner) == 1,
                f"document {self.schema[i]['name']!r} is missing or too many",
            )
        for i, text in root["replicas"]:
            data = next(iter(self.documents[i].values())) if i in self.documents else self.arrays[i].tobytes()
            algorithm = algorithm_of(text)
            listed = [algorithm, self.schema[i]["format"], len(data), CHUNK]
            check_combined(text, "region", listed, chunk_table(algorithm, data), f"replicated region {i}")


def read_generation(
    store_path: str | pathlib.Path, entry_name: str | None = None, key: bytes | None = None
) -> Generation:
    """Return a generation of a store, by default the newest; signed, with a key. Raises `Damaged`."""
    store = pathlib.Path(store_path)
    head = fields(load(store / "store.json")[0], {"digest", "id", "kind", "version"}, "store.json")
    need((head["kind"], head["version"]) == ("store", 1) and head["digest"] in WIDTHS, "store.json")
    name = entry_name or newest(store, key)
    epoch, entry = (int(n) for n in name.removeprefix("e").split("-"))
    need(not (store / "published" / f"{name}.removed").exists(), f"{name} is removed")
    place = ["root", head["id"], epoch, entry]
    value, root_digest, _ = load_signed(store / "published" / f"{name}.json", key, [place], 1 << 30)
    top = read_manifest(value)
    root, prefix = read_root(top), top["prefix"]
    named = (root["store"], root["entry"], prefix["attempt"]["epoch"])
    need(named == (head["id"], entry, epoch), f"{name} stands under another name")
    manifests = all_manifests(store, top, root)
    assembly, packs, own = Assembly(root), {}, {}
    for manifest in manifests:
        last: tuple[int, int, int] = (-1, -1, -1)
        for owner, *_ in manifest.get("devices", ()):
            need(owner < root["owners"], "a device of no owner")
            need(root["hierarchy"]["kind"] == "star" or owner == manifest["role"], "another owner's device")
        for ordinal, owner, piece, nbytes, digest, places in manifest["shards"]:
            need(number(ordinal) < len(root["schema"]), "a shard of no region")
            need(number(owner) < root["owners"], "a shard of no owner")
            need(root["hierarchy"]["kind"] == "star" or owner == manifest["role"], "another owner's shard")
            region = root["schema"][ordinal]
            first, held, index = placed([number(n) for n in items(piece, None, "a piece")], region)
            if region["format"] != "json":
                need(nbytes == held * np.dtype(FORMATS[region["format"]]).itemsize, "bytes of a piece")
            key = (ordinal, owner, first)
            need(key > last, "shard records out of order")
            last = key
            need(len(items(places, None, "places")) >= 1, "a shard without a place")
            for place in places:
                e, s, r = (number(n) for n in items(place, 3, "a place"))
                if (e, s, r) not in packs:
                    path = store / f"data/e{e:06d}-{s:06d}/{r // 256:03d}/{r:06d}.pack"
                    packs[e, s, r] = Pack(path)
                payload = packs[e, s, r].shard(key, nbytes, digest, region["format"])
                if {"epoch": e, "save": s} == prefix["attempt"]:
                    need(r == manifest["role"], "a shard in another role's pack")
                    own.setdefault((e, s, r), set()).add(key)
            assembly.put(ordinal, owner, index, payload)
    for place, keys in own.items():
        need(set(packs[place].where) == keys, "a pack holds shards that nothing names")
    assembly.finish(root)
    return result(name, root_digest, top, assembly, len(manifests))


def result(name: str, digest: str, top: dict[str, Any], a: Assembly, manifests: int) -> Generation:
    root, moment = top["root"], top["prefix"]["moment"]
    documents, per_owner = {}, {}
    for i, by_owner in a.documents.items():
        values = [plain(parse(by_owner[k], 128)) for k in sorted(by_owner)]
        region = a.schema[i]
        if region["kind"] == "document":
            documents[region["name"]] = values[0]
        else:
            per_owner[region["name"]] = values
    return Generation(
        entry=name,
        root=digest,
        update=moment["update"],
        cursor=moment["cursor"],
        epoch=moment["epoch"],
        owners=root["owners"],
        arrays={a.schema[i]["name"]: array for i, array in a.arrays.items()},
        formats={a.schema[i]["name"]: a.schema[i]["format"] for i in a.arrays},
        documents=documents,
        per_owner_documents=per_owner,
        learner=plain(root["learner"]),
        contract=plain(root["contract"]),
        manifests=manifests,
    )


if __name__ == "__main__":
    g = read_generation(*sys.argv[1:3])
    print(f"{g.entry} {g.root}: update {g.update}, cursor {g.cursor}, epoch {g.epoch}, {g.owners} owners")
    for region, array in g.arrays.items():
        print(f"  {region[:60]!r}: {g.formats[region]} {array.shape}")
    for region, document in {**g.documents, **g.per_owner_documents}.items():
        print(f"  {region[:60]!r}: {json.dumps(document)[:100]}")
