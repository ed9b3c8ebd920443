"""Cards: whether each owner is on the device on which its part of a generation was saved.

The products all owners used stand in the contract, which owner 0 has compared; here each owner
compares its own devices with those that its role's manifest records. No shard has been read yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Refused, bounded, error_of
from ..format.claim import TEXT as SUBJECT
from ..format.manifest import DeviceRecord, Root
from ..model.accept import Accept, Accepted
from ..model.identity import Contract
from ..mpi.agreement import agree
from ..mpi.world import World


def compared_by(root: Root, by: str | None) -> str | None:
    """Return what is compared owner by owner, the same on every owner: ``"product"``, ``"uuid"``,
    or nothing. `by` is what this job binds."""
    saved = Contract.from_data(root.contract)
    if by is None or saved.device == "none":
        return None
    return "uuid" if "uuid" in (saved.device, by) else "product"


def agree_on_devices(
    world: World,
    saved: Sequence[DeviceRecord],
    mine: Sequence[DeviceRecord],
    by: str,
    file: str,
    accept: Accept | None,
    accepted: Accepted,
    deadline: float,
) -> Accepted:
    """Refuse another device on any owner, or return what is accepted with this difference in it.

    Called by every owner. Raises the same `Refused` (``wrong-device``) on each, with the lowest owner
    that is on another device.
    """
    cause = None
    if sorted(getattr(d, by) for d in saved) != sorted(getattr(d, by) for d in mine):
        cause = Refused(
            "its part was saved on another device "
            '(resume(accept=am.Accept(device="why")) goes on in spite of it)',
            code="wrong-device",
            role=world.rank,
            file=file,
            expected=spelled(saved),
            found=spelled(mine),
        ).cause()
    agreed = agree(world, cause, deadline)
    if agreed is None:
        return accepted
    if accept is None or accept.device is None:
        raise error_of(agreed)
    if any(what == "device" for what, _, _ in accepted):
        return accepted
    subject = f"owner {agreed.role}: saved on {agreed.expected}, resumed on {agreed.found}"
    return tuple(sorted((*accepted, ("device", bounded(subject, SUBJECT), accept.device))))


def spelled(devices: Sequence[DeviceRecord]) -> str:
    """Return devices for people."""
    return ", ".join(f"{d.product} ({d.uuid})" for d in devices) or "no GPU"
