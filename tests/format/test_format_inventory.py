"""Inventories: what an owner of a star says it will contribute, decoded strictly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format.inventory import Inventory, decode_inventory, encode_inventory
from alpha_mpi.format.manifest import DeviceRecord

OWNER = 3
UUID = "GPU-" + "-".join(["0" * 8, "0" * 4, "0" * 4, "0" * 4, "0" * 12])
GOOD = Inventory(
    [0, 0, 1, 4, 5],
    [10, 20, 0, 0, 0],
    [(10, 20), (20, 30), (2, 0, 0, 2, 5), (), (0, 300000)],
    [40, 40, 40, 17, digest.CHUNK + 1],
    ["float32", "float32", "float32", "json", "uint8"],
    [bytes(16)] * 4 + [bytes(32)],
    ((7, digest.of(b"")),),
    (DeviceRecord(OWNER, "P", UUID, ""),),
)
#: Column, which of its values, another value, and which shard is then named.
WRONG: dict[str, tuple[str, int, Any, int]] = {
    "an ordinal below": ("ordinals", 0, -1, 0),
    "an ordinal above": ("ordinals", 4, 1 << 32, 4),
    "an ordinal far above": ("ordinals", 4, 1 << 63, 4),
    "ordinals that fall": ("ordinals", 2, 9, 3),
    "one key twice": ("starts", 1, 10, 1),
    "starts that fall": ("starts", 1, 5, 1),
    "a start below": ("starts", 0, -1, 0),
    "a start above": ("starts", 3, 1 << 53, 3),
    "no bytes": ("nbytes", 1, 0, 1),
    "bytes below": ("nbytes", 1, -8, 1),
    "too many bytes": ("nbytes", 4, 1 << 53, 4),
    "a chunk digest too few": ("nbytes", 0, digest.CHUNK + 1, 0),
    "a chunk digest too many": ("nbytes", 4, digest.CHUNK, 4),
    "half a digest": ("chunks", 2, bytes(8), 2),
    "a piece of no word": ("pieces", 1, (20, 20), 1),
    "a piece of another rank": ("pieces", 2, (3, 0, 0, 2, 5), 2),
    "a piece of one integer": ("pieces", 3, (1,), 3),
}


def test_what_is_said_arrives() -> None:
    data = encode_inventory(GOOD)
    assert decode_inventory(data, OWNER, digest.DEFAULT) == GOOD
    assert GOOD.keys(OWNER) == [(0, 3, 10), (0, 3, 20), (1, 3, 0), (4, 3, 0), (5, 3, 0)]
    nothing = Inventory([], [], [], [], [], [], ())
    assert decode_inventory(encode_inventory(nothing), OWNER, digest.DEFAULT) == nothing


def test_pieces_of_one_region_may_be_of_two_kinds() -> None:
    mixed = msgspec.structs.replace(
        GOOD,
        ordinals=[0, 0, 0, 4, 5],
        starts=[10, 20, 30, 0, 0],
        pieces=[(10, 20), (2, 2, 0, 3, 10), *[(30, 40), (), (0, 9)]],
    )
    assert decode_inventory(encode_inventory(mixed), OWNER, digest.DEFAULT) == mixed


@pytest.mark.parametrize("what", WRONG)
def test_a_shard_that_cannot_be_is_named(what: str) -> None:
    column, i, value, named = WRONG[what]
    values = list(getattr(GOOD, column))
    values[i] = value
    bad = msgspec.structs.replace(GOOD, **{column: values})
    with pytest.raises(Refused) as caught:
        decode_inventory(encode_inventory(bad), OWNER, digest.DEFAULT)
    assert (caught.value.code, caught.value.role) == ("bad-message", OWNER)
    assert caught.value.found == str(bad.keys(OWNER)[named]) or caught.value.found == bad.keys(OWNER)[named]


@pytest.mark.parametrize("column", ["ordinals", "starts", "pieces", "nbytes", "formats", "chunks"])
def test_columns_of_two_lengths_are_refused(column: str) -> None:
    bad = msgspec.structs.replace(GOOD, **{column: getattr(GOOD, column)[:-1]})
    with pytest.raises(Refused, match="columns differ") as caught:
        decode_inventory(encode_inventory(bad), OWNER, digest.DEFAULT)
    assert caught.value.code == "bad-message"


@pytest.mark.parametrize("data", [b"", b"\xc1", encode_inventory(GOOD)[:-1], encode_inventory(GOOD) + b"\0"])
def test_what_is_no_inventory_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        decode_inventory(data, OWNER, digest.DEFAULT)
    assert (caught.value.code, caught.value.role) == ("bad-message", OWNER)


def test_devices_of_another_owner_are_refused() -> None:
    with pytest.raises(Refused, match="another owner"):
        decode_inventory(encode_inventory(GOOD), OWNER + 1, digest.DEFAULT)
    bad = msgspec.structs.replace(GOOD, devices=(DeviceRecord(OWNER, "P", "x", ""),))
    with pytest.raises(Refused) as caught:
        decode_inventory(encode_inventory(bad), OWNER, digest.DEFAULT)
    assert caught.value.code == "bad-message"
