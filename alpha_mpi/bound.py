"""Bound devices: what a contract binds of them, found when a job opens and looked at in every save."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from .devices.identity import Identity
from .devices.words import DeviceWords
from .errors import Refused
from .format.manifest import DeviceRecord
from .held import HeldPieces
from .model.identity import Contract
from .mpi.agreement import bcast, same_bytes
from .mpi.exchange import exchange
from .mpi.world import World
from .restore.cards import spelled

_NAMES = msgspec.msgpack.Decoder(tuple[str, ...])


@dataclasses.dataclass(frozen=True)
class Bound:
    """What is bound of the devices on which this owner's regions lie.

    Attributes
    ----------
    contract : Contract
        With the products of all owners' devices in it.
    by : str or None
        What is compared owner by owner: ``"product"``, ``"uuid"``, or nothing.
    devices : tuple of DeviceRecord
        This owner's, when the job opened.
    products : tuple of str or None
        Of all owners, where a region may lie on no other product; None where any will do.
    """

    contract: Contract
    by: str | None
    devices: tuple[DeviceRecord, ...]
    products: tuple[str, ...] | None

    @classmethod
    def of(cls, contract: Contract, found: Sequence[Identity], world: World, deadline: float) -> Bound:
        """Return what a contract binds, with what all owners use. Called by every owner."""
        products: tuple[str, ...] | None = None
        if contract.device != "none" and contract.product is None:
            products = _of_all(world, tuple(sorted({d.product for d in found})), deadline)
        by = "uuid" if contract.device == "uuid" else "product" if products else None
        devices = () if contract.device == "none" else records(found, world.rank)
        return cls(contract.on(products or ()), by, devices, products)

    def now(self, held: HeldPieces, owner: int) -> tuple[DeviceRecord, ...]:
        """Return what this owner's manifest records of the devices its words lie on at a capture.

        Raises `Refused` (``wrong-device``) for words on a device that was not there when the job
        opened.
        """
        if self.contract.device == "none":
            return ()
        found: dict[str, Identity] = {}
        known = {d.uuid for d in self.devices}
        for words in held.data:
            if not isinstance(words, DeviceWords):
                continue
            device = words.identity
            other = self.products is not None and device.product not in self.products
            if other or (self.by == "uuid" and device.uuid not in known):
                raise Refused(
                    "a region lies on another device than the contract was made for "
                    "(Contract(product=...) names it where no array is there at the start)",
                    code="wrong-device",
                    role=owner,
                    region=words.region,
                    expected=spelled(self.devices),
                    found=str(device),
                )
            found[device.uuid] = device
        return records(found.values(), owner)


def records(devices: Iterable[Identity], owner: int) -> tuple[DeviceRecord, ...]:
    """Return devices as a manifest records them: by UUID."""
    ordered = sorted(devices, key=lambda d: d.uuid)
    return tuple(DeviceRecord(owner, d.product, d.uuid, d.mig) for d in ordered)


def _of_all(world: World, mine: tuple[str, ...], deadline: float) -> tuple[str, ...]:
    """Return the products of all owners, on each of them; nearly always all have the same."""
    told = msgspec.msgpack.encode(mine)
    if same_bytes(world, told, deadline) is None:
        return mine
    parts = exchange(world, [told, *[b""] * (world.size - 1)], deadline)
    names = b""
    if world.rank == 0:
        names = msgspec.msgpack.encode(sorted({name for part in parts for name in _NAMES.decode(part)}))
    return _NAMES.decode(bcast(world, names if world.rank == 0 else None, 0, deadline))
