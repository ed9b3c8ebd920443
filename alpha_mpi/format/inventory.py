"""Inventory: what one owner of a star contributes, without the bytes. Never written to a file.

From it owner 0 makes the records, and checks every byte it receives. Decoded strictly, like every
message.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from .. import digest
from ..errors import Refused
from .columns import Pieces
from .manifest import DeviceRecord
from .question import LARGEST, LARGEST_U4, Question
from .valid import check_devices, piece_fault

#: A shard's key: (ordinal, owner, start).
Key = tuple[int, int, int]


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All shards of one owner in the order of their keys, in columns; and (ordinal, piece digest) of
    its copies of pieces that another owner writes; the devices its words lie on, where they are
    recorded. `chunks` are joined raw chunk digests."""

    ordinals: list[int]
    starts: list[int]
    pieces: list[tuple[int, ...]]
    nbytes: list[int]
    formats: list[str]
    chunks: list[bytes]
    copies: tuple[tuple[int, str], ...]
    devices: tuple[DeviceRecord, ...] = ()

    def keys(self, owner: int) -> list[Key]:
        """Return the key of each shard."""
        return list(zip(self.ordinals, itertools.repeat(owner), self.starts, strict=False))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Inventory)


def encode_inventory(inventory: Inventory) -> bytes:
    """Return the bytes an owner contributes to the first gather of a star."""
    return _ENCODER.encode(inventory)


def decode_inventory(data: bytes, owner: int, algorithm: str) -> Inventory:
    """Return the inventory of `owner`. Raises `Refused` (``bad-message``) for anything else."""
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(
            "an inventory that cannot be read", code="bad-message", role=owner, found=error
        ) from None
    columns = (found.starts, found.pieces, found.nbytes, found.formats, found.chunks)
    if any(len(column) != len(found.ordinals) for column in columns):
        raise Refused(
            "an inventory whose columns differ in length", code="bad-message", role=owner, found=len(data)
        )
    wrong = _first_fault(found, owner, algorithm)
    if wrong is not None:
        raise Refused(
            "an inventory with a shard that cannot be",
            code="bad-message",
            role=owner,
            found=found.keys(owner)[wrong],
        )
    if found.devices:
        check_devices(found.devices, Question(f"the inventory of owner {owner}", "bad-message"))
        if any(device.owner != owner for device in found.devices):
            raise Refused("a device of another owner", code="bad-message", role=owner)
    return found


def _first_fault(found: Inventory, owner: int, algorithm: str) -> int | None:
    """Return which shard cannot be: of keys in order, pieces, and as many digests as it has chunks."""
    for column, least, most in (
        (found.ordinals, 0, LARGEST_U4),
        (found.starts, 0, LARGEST),
        (found.nbytes, 1, LARGEST),
    ):
        if column and not (least <= min(column) and max(column) <= most):
            return next(i for i, value in enumerate(column) if not least <= value <= most)
    ordinals, starts, nbytes = (np.array(c, np.int64) for c in (found.ordinals, found.starts, found.nbytes))
    falls = (ordinals[1:] < ordinals[:-1]) | ((ordinals[1:] == ordinals[:-1]) & (starts[1:] <= starts[:-1]))
    counts = -(-nbytes // digest.CHUNK) * digest.SIZES[algorithm]
    odd = counts != np.fromiter(map(len, found.chunks), np.int64, len(found.chunks))
    odd[1:] |= falls
    if odd.any():
        return int(odd.argmax())
    if Pieces(found.ordinals, [owner] * len(found.ordinals), found.pieces).are_sound:
        return None
    return next((i for i, piece in enumerate(found.pieces) if piece_fault(piece)), None)
