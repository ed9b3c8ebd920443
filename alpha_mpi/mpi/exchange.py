"""Exchange: every owner gives every other owner some bytes, polled like all collectives."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..errors import Refused
from .world import World, mpi

#: Most bytes one owner may send or receive in one exchange.
LIMIT = 1 << 30

_LENGTH = struct.Struct("<q")


def exchange(world: World, outgoing: Sequence[bytes], deadline: float) -> list[bytes]:
    """Give ``outgoing[k]`` to owner k; return what each owner gave to this one, by owner.

    Called by every owner in the same order. Raises `Refused` (``too-large``) on every owner if one
    would send or receive more than 1 GiB, and `PeerFailed` past the deadline.
    """
    world.check()
    if world.alone:
        return [bytes(outgoing[0])]
    module, n = mpi(), world.size
    sent = bytearray(b"".join(_LENGTH.pack(len(data)) for data in outgoing))
    received = bytearray(_LENGTH.size * n)
    request = world.raw.Ialltoall([sent, _LENGTH.size, module.BYTE], [received, _LENGTH.size, module.BYTE])
    world.wait(request, deadline, "what every owner will send")
    counts = [c for (c,) in _LENGTH.iter_unpack(received)]
    mine = [len(data) for data in outgoing]
    most, found = bytearray(_LENGTH.pack(max(sum(mine), sum(counts)))), bytearray(_LENGTH.size)
    request = world.raw.Iallreduce([most, module.INT64_T], [found, module.INT64_T], module.MAX)
    world.wait(request, deadline, "every owner's agreement")
    if _LENGTH.unpack(found)[0] > LIMIT:
        raise Refused(
            "more bytes to exchange than one message may hold",
            code="too-large",
            expected=LIMIT,
            found=_LENGTH.unpack(found)[0],
        )
    whole, buffer = b"".join(outgoing), bytearray(sum(counts))
    request = world.raw.Ialltoallv([whole, mine, None, module.BYTE], [buffer, counts, None, module.BYTE])
    world.wait(request, deadline, "every owner's bytes")
    parts, at = [], 0
    for count in counts:
        parts.append(bytes(buffer[at : at + count]))
        at += count
    return parts
