"""Digests: the names of bytes.

A *digest* is written ``ALGORITHM:HEX``; the algorithm stands beside each one. A *chunk* is 1 MiB
of a shard's payload, cut from the shard's start. Definitions: docs/format.md, section 3.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import xxhash

from .canonical import canonical
from .errors import Refused

_HEX = re.compile("[0-9a-f]+", re.ASCII)

#: Bytes in one chunk of a shard's payload.
CHUNK = 1 << 20
DEFAULT = "xxh3-128"


def _blake3() -> Any:
    try:
        import blake3
    except ImportError as error:
        raise Refused(
            "digest algorithm blake3 needs the package 'blake3': pip install alpha-mpi[blake3]",
            code="missing-package",
        ) from error
    return blake3.blake3()


_NEW: dict[str, Callable[[], Any]] = {
    "xxh3-128": xxhash.xxh3_128,
    "sha256": hashlib.sha256,
    "blake3": _blake3,
}
SIZES = {"xxh3-128": 16, "sha256": 32, "blake3": 32}
ALGORITHMS = tuple(SIZES)


def hasher(algorithm: str = DEFAULT) -> Any:
    """Return a fresh hash object with ``update`` and ``digest``. Raises `Refused` if unknown."""
    try:
        return _NEW[algorithm]()
    except KeyError:
        raise Refused(
            "unknown digest algorithm",
            code="unknown-digest",
            expected=" or ".join(ALGORITHMS),
            found=algorithm,
        ) from None


def raw(data: Any, algorithm: str = DEFAULT) -> bytes:
    """Return the digest of one buffer as raw bytes."""
    if algorithm == DEFAULT:
        return xxhash.xxh3_128_digest(data)
    h = hasher(algorithm)
    h.update(data)
    digest: bytes = h.digest()
    return digest


def raws(buffers: Iterable[Any], algorithm: str = DEFAULT) -> list[bytes]:
    """Return the digests of many buffers as raw bytes."""
    if algorithm == DEFAULT:
        return [xxhash.xxh3_128_digest(data) for data in buffers]
    return [raw(data, algorithm) for data in buffers]


def text(digest: bytes, algorithm: str = DEFAULT) -> str:
    """Return ``ALGORITHM:HEX`` of a raw digest."""
    return f"{algorithm}:{digest.hex()}"


def of(data: Any, algorithm: str = DEFAULT) -> str:
    """Return the digest of one buffer as ``ALGORITHM:HEX``."""
    return text(raw(data, algorithm), algorithm)


def parse(digest: str) -> tuple[str, bytes]:
    """Split ``ALGORITHM:HEX`` into the algorithm and raw bytes. Raises `ValueError`."""
    algorithm, _, hexa = digest.partition(":")
    size = SIZES.get(algorithm)
    if size is None or len(hexa) != 2 * size or not _HEX.fullmatch(hexa):
        raise ValueError(f"not a digest: {digest[:80]!r}")
    return algorithm, bytes.fromhex(hexa)


def combine(purpose: str, fields: object, tail: bytes = b"", algorithm: str = DEFAULT) -> str:
    """Digest of canonical JSON of [purpose, fields], a newline, then `tail`."""
    h = hasher(algorithm)
    h.update(canonical([purpose, fields]))
    h.update(b"\n")
    h.update(tail)
    return text(h.digest(), algorithm)


def chunks(data: memoryview, algorithm: str = DEFAULT) -> bytes:
    """Return the joined raw digests of the chunks of one contiguous buffer of bytes."""
    return b"".join(raw(data[i : i + CHUNK], algorithm) for i in range(0, len(data), CHUNK))


def chunk_count(nbytes: int) -> int:
    """Return how many chunks a payload of `nbytes` has."""
    return -(-nbytes // CHUNK)


def shard(format: str, nbytes: int, table: bytes, algorithm: str = DEFAULT) -> str:
    """Shard digest: H(purpose, algorithm, format, byte count, chunk size, chunk digests)."""
    return shards([format], [nbytes], [table], algorithm)[0]


def shards(
    formats: Iterable[str], sizes: Iterable[int], tables: Iterable[bytes], algorithm: str = DEFAULT
) -> list[str]:
    """Return the shard digest of each (format, byte count, chunk digests): a role may hold a hundred
    thousand, most of them alike."""
    return of_tables(heads("shard", formats, sizes, algorithm), tables, algorithm)


def region(format: str, nbytes: int, table: bytes, algorithm: str = DEFAULT) -> str:
    """Digest of one replicated region: of format, byte count and chunk digests of its flattened words,
    whoever writes them."""
    return of_tables(heads("region", [format], [nbytes], algorithm), [table], algorithm)[0]


class _Heads(dict[tuple[str, int], bytes]):
    """By format and byte count what stands before the chunk digests: `combine` spelled out. Names of
    formats and algorithms are plain words, which JSON quotes as they are."""

    def __init__(self, purpose: str, algorithm: str) -> None:
        super().__init__()
        self._begin = f'["{purpose}",["{algorithm}",'

    def __missing__(self, key: tuple[str, int]) -> bytes:
        head = self[key] = f'{self._begin}"{key[0]}",{key[1]},{CHUNK}]]\n'.encode()
        return head


def heads(
    purpose: str, formats: Iterable[str], sizes: Iterable[int], algorithm: str = DEFAULT
) -> list[bytes]:
    """Return what is digested before the chunk digests of a shard or a replicated region (`purpose`), of
    each format and byte count."""
    known = _Heads(purpose, algorithm)
    return list(map(known.__getitem__, zip(formats, sizes, strict=True)))


def of_tables(heads: Iterable[bytes], tables: Iterable[bytes], algorithm: str = DEFAULT) -> list[str]:
    """Return the digest of each head and chunk digests (see `heads`) as ``ALGORITHM:HEX``."""
    if algorithm == DEFAULT:
        named = xxhash.xxh3_128_hexdigest
        return [f"{DEFAULT}:{named(head + table)}" for head, table in zip(heads, tables, strict=True)]
    return [of(head + table, algorithm) for head, table in zip(heads, tables, strict=True)]


def replicas(regions: Iterable[str], algorithm: str = DEFAULT) -> str:
    """Replica digest: of the replicated regions' digests, in schema order."""
    # `combine` spelled out: a digest is text that JSON quotes as it is.
    listed = ",".join([f'"{region}"' for region in regions])
    return of(f'["replicas",[{listed}]]\n'.encode(), algorithm)
