"""Inventory: what one owner of a star contributes, without the bytes. Never written to a file.

An *item* is one shard: its key, piece, byte count and chunk digests, from which owner 0 makes the
record and checks every byte it receives. Decoded strictly, like every message.
"""

from __future__ import annotations

import msgspec

from .. import digest
from ..errors import Refused
from .manifest import DeviceRecord
from .question import LARGEST, Question
from .valid import check_devices, piece_fault


class Item(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One shard of one owner. `chunks` are its joined raw chunk digests."""

    ordinal: int
    owner: int
    start: int
    piece: tuple[int, ...]
    nbytes: int
    format: str
    chunks: bytes

    @property
    def key(self) -> tuple[int, int, int]:
        """The shard's key within its role."""
        return self.ordinal, self.owner, self.start


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All items of one owner in the order of their keys, and (ordinal, piece digest) of its copies
    of pieces that another owner writes; the devices its words lie on, where they are recorded."""

    items: tuple[Item, ...]
    copies: tuple[tuple[int, str], ...]
    devices: tuple[DeviceRecord, ...] = ()


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
    last = (-1, -1, -1)
    for item in found.items:
        count = digest.chunk_count(item.nbytes) if 0 < item.nbytes < LARGEST else -1
        if (
            item.owner != owner
            or item.key <= last
            or not 0 <= item.start < LARGEST
            or piece_fault(item.piece)
            or len(item.chunks) != count * digest.SIZES[algorithm]
        ):
            raise Refused(
                "an inventory with an item that cannot be", code="bad-message", role=owner, found=item.key
            )
        last = item.key
    if found.devices:
        check_devices(found.devices, Question(f"the inventory of owner {owner}", "bad-message"))
        if any(device.owner != owner for device in found.devices):
            raise Refused("a device of another owner", code="bad-message", role=owner)
    return found
