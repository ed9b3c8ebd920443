"""Agreement: collectives that are polled, and end within a deadline.

Each is called by every owner in the same order. The *deadline* is the longest wait of one step, in
seconds; past it `PeerFailed` (code ``silent``) is raised and the world is lost for collectives.
With one owner nothing is sent. No function here raises on one owner for what another one did: a
failure travels as a `Cause`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from .. import digest
from ..errors import Cause, PeerFailed, cause_of
from .world import World, as_world, mpi

#: Bytes of one slice of a broadcast; no message is longer.
SLICE = 64 << 20
#: Bytes of a slice of replicated words.
WORDS = 16 << 20
#: Longest encoded cause in bytes; every bounded cause fits.
CAUSE_LIMIT = 1 << 14
#: Longest text one owner may give to `gather_text`, in bytes.
TEXT_LIMIT = 1 << 16

_LENGTH = struct.Struct("<q")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Cause)


def encode_cause(cause: Cause) -> bytes:
    """Return a cause as bytes, at most `CAUSE_LIMIT`; its texts are cut if need be."""
    data = _encoder.encode(cause.bounded())
    if len(data) <= CAUSE_LIMIT:
        return data
    return _encoder.encode(
        Cause(kind=cause.kind[:40], code=cause.code[:40], message=cause.message[:1000], role=cause.role)
    )


def decode_cause(data: bytes) -> Cause:
    """Return the cause encoded by `encode_cause`; what cannot be read is a cause of its own."""
    try:
        return _decoder.decode(data).bounded()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return PeerFailed(f"a cause that cannot be read: {error}", code="bad-message").cause()


def agree(comm: Any, cause: Cause | None, deadline: float) -> Cause | None:
    """Return None if no owner brought a cause, else that of the lowest owner, on every owner."""
    world = as_world(comm)
    world.check()
    lowest = _lowest(world, cause is not None, deadline, "every owner's agreement")
    if lowest is None:
        return None
    own = b"" if cause is None else encode_cause(cause)
    data = bcast(world, own if world.rank == lowest else None, lowest, deadline)
    return decode_cause(data)


def bcast(comm: Any, data: bytes | None, root: int, deadline: float) -> bytes:
    """Return the root's bytes on every owner: the length first, then slices of at most 64 MiB."""
    world = as_world(comm)
    world.check()
    if world.alone:
        return data or b""
    length = bytearray(_LENGTH.pack(len(data or b"")))
    _bcast(world, length, root, deadline)
    size: int = _LENGTH.unpack(length)[0]
    if world.rank == root:
        whole = memoryview(data or b"")
        result = data or b""
    else:
        buffer = bytearray(size)
        whole, result = memoryview(buffer), b""
    for at in range(0, size, SLICE):
        _bcast(world, whole[at : at + SLICE], root, deadline)
    return result if world.rank == root else bytes(whole)


def gather_text(comm: Any, data: bytes, deadline: float) -> list[bytes] | None:
    """Return every owner's bytes, by owner, on owner 0; None on the others.

    Each text is cut to `TEXT_LIMIT` bytes.
    """
    world = as_world(comm)
    world.check()
    data = data[:TEXT_LIMIT]
    if world.alone:
        return [data]
    module, root = mpi(), world.rank == 0
    lengths = bytearray(_LENGTH.size * world.size) if root else None
    own = _LENGTH.pack(len(data))
    receive = None if lengths is None else [lengths, _LENGTH.size, module.BYTE]
    world.wait(world.raw.Igather([own, module.BYTE], receive, 0), deadline, "the length of every text")
    if lengths is None:
        world.wait(world.raw.Igatherv([data, module.BYTE], None, 0), deadline, "every owner's text")
        return None
    counts = [n for (n,) in _LENGTH.iter_unpack(lengths)]
    buffer = bytearray(sum(counts))
    request = world.raw.Igatherv([data, module.BYTE], [buffer, counts, None, module.BYTE], 0)
    world.wait(request, deadline, "every owner's text")
    texts, at = [], 0
    for count in counts:
        texts.append(bytes(buffer[at : at + count]))
        at += count
    return texts


def same_bytes(comm: Any, data: bytes, deadline: float) -> int | None:
    """Return the lowest owner whose bytes differ from owner 0's, or None; the same on every owner.

    Digests are compared.
    """
    world = as_world(comm)
    world.check()
    if world.alone:
        return None
    own = digest.raw(data)
    buffer = bytearray(own)
    _bcast(world, buffer, 0, deadline)
    return _lowest(world, bytes(buffer) != own, deadline, "every owner's comparison")


def spread(
    comm: Any,
    root: int,
    read: Callable[[int, int], Any] | None,
    nbytes: int,
    sink: Callable[[int, memoryview], None],
    deadline: float,
    slice: int = WORDS,
) -> Cause | None:
    """Send `nbytes` bytes from `root` to every owner in slices; return the agreed cause, or None.

    Called by every owner with the same `root`, `nbytes` and `slice`. `read(offset, n)` is called on
    the root alone, `sink(offset, view)` on every owner, the root included; the view is valid during
    the call only. When either raises, no owner is left waiting: a failed read ends the transfer at
    once, a failed sink leaves its owner taking part without effect.
    """
    world = as_world(comm)
    world.check()
    staging = None if world.rank == root else bytearray(min(slice, nbytes))
    cause: Cause | None = None
    for at in range(0, nbytes, slice):
        n = min(slice, nbytes - at)
        view, state = memoryview(b""), bytearray(1)
        if world.rank == root:
            try:
                assert read is not None
                view = _bytes(read(at, n), n)
            except BaseException as error:  # also the user's SystemExit: nobody may be left waiting
                cause, state = cause or cause_of(error, world.rank), bytearray(b"\x01")
        else:
            view = memoryview(staging or b"")[:n]
        _bcast(world, state, root, deadline)
        if state[0]:
            break
        _bcast(world, view, root, deadline)
        if cause is None:
            try:
                sink(at, view)
            except BaseException as error:
                cause = cause_of(error, world.rank)
    return agree(world, cause, deadline)


def _bytes(data: Any, n: int) -> memoryview:
    view = memoryview(data).cast("B")
    if len(view) != n:
        raise ValueError(f"asked for {n} bytes, got {len(view)}")
    return view


def _bcast(world: World, buffer: Any, root: int, deadline: float) -> None:
    if world.alone:
        return
    request = world.raw.Ibcast([buffer, mpi().BYTE], root)
    world.wait(request, deadline, "words from an owner", role=None if world.rank == root else root)


def _lowest(world: World, failed: bool, deadline: float, what: str) -> int | None:
    """Return the lowest owner that failed, on every owner, or None."""
    if world.alone:
        return 0 if failed else None
    own = bytearray(_LENGTH.pack(world.rank if failed else world.size))
    least = bytearray(_LENGTH.size)
    module = mpi()
    request = world.raw.Iallreduce([own, module.INT64_T], [least, module.INT64_T], module.MIN)
    world.wait(request, deadline, what)
    lowest: int = _LENGTH.unpack(least)[0]
    return None if lowest >= world.size else lowest
