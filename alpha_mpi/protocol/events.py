"""What a publication machine is told (events) and what it asks for (effects).

The machines of `publication` do no I/O and read no clock: `handle(event, now)` returns effects; a
driver (MPI, simulator, explorer) carries them out and reports back with further events.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..errors import Cause
from ..format.manifest import ChildRecord
from ..format.messages import Message
from ..model.capture import Prefix

# ---------------------------------------------------------------- events


@dataclasses.dataclass(frozen=True)
class Entered:
    """First event: the own capture is ready (prefix, replicated regions' digests), or failed.

    Star, owner > 0: `inventory` and `payload` are the bytes it will contribute to the gathers.
    """

    prefix: Prefix | None
    replicas: tuple[tuple[int, str], ...] = ()
    cause: Cause | None = None
    inventory: int = 0
    payload: int = 0


@dataclasses.dataclass(frozen=True)
class Received:
    """A message arrived from another role (on a star: owner)."""

    sender: int
    message: Message


@dataclasses.dataclass(frozen=True)
class ShardsDurable:
    """Own shards are durable (on a star: every owner's). `copies`: digests of own pieces that are
    in a replica group, (ordinal, piece digest); `changed`: some own word differs from the newest
    generation of the lineage."""

    changed: bool = True
    copies: tuple[tuple[int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class ManifestDurable:
    """The own group manifest is durable: the record the parent will hold."""

    record: ChildRecord


@dataclasses.dataclass(frozen=True)
class RootDurable:
    """The root was renamed and its directory synced: published."""

    root: str


@dataclasses.dataclass(frozen=True)
class RootInDoubt:
    """The root was renamed but is not known durable."""

    cause: Cause


@dataclasses.dataclass(frozen=True)
class Failed:
    """Own writing, manifest or root failed, and surely nothing was published (star, owner > 0:
    contributing failed before the last slice). For other troubles: `Disturbed`."""

    cause: Cause


@dataclasses.dataclass(frozen=True)
class Disturbed:
    """Something beside the own work went wrong here (a peer's process is gone, an interrupt, a
    message that could not be sent): this role aborts if it still may, otherwise it changes nothing."""

    cause: Cause


@dataclasses.dataclass(frozen=True)
class PayloadSent:
    """Star, owner > 0: every slice of the own payload has been taken."""


@dataclasses.dataclass(frozen=True)
class WriterStopped:
    """After `StopWriting`: no thread of this role touches the store or the user's arrays."""


@dataclasses.dataclass(frozen=True)
class NextEntry:
    """Answer to `LookAtNextEntry`: `superseded` is set if a newer epoch's claim stands there;
    `visible` says whether this attempt's root can be seen."""

    superseded: Cause | None
    visible: bool | None


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time passed; `written` is the own writer's byte count so far."""

    written: int = 0


Event = (
    Entered
    | Received
    | ShardsDurable
    | ManifestDurable
    | RootDurable
    | RootInDoubt
    | Failed
    | Disturbed
    | PayloadSent
    | WriterStopped
    | NextEntry
    | Tick
)

# ---------------------------------------------------------------- effects


@dataclasses.dataclass(frozen=True)
class Send:
    """Send one message to a role (on a star: owner)."""

    to: int
    message: Message


@dataclasses.dataclass(frozen=True)
class WriteShards:
    """Make the own shards durable (on a star, owner 0: gather and write everybody's)."""


@dataclasses.dataclass(frozen=True)
class SendPayload:
    """Star, owner > 0: contribute to the gathers as `Go` says."""


@dataclasses.dataclass(frozen=True)
class WriteManifest:
    """Make the own group manifest durable, naming these children."""

    children: tuple[ChildRecord, ...]


@dataclasses.dataclass(frozen=True)
class PublishRoot:
    """Take entry `entry` with the root manifest naming these children."""

    children: tuple[ChildRecord, ...]
    entry: int


@dataclasses.dataclass(frozen=True)
class StopWriting:
    """Stop the own writer soon; answer with `WriterStopped`."""


@dataclasses.dataclass(frozen=True)
class LookAtNextEntry:
    """The parent is silent after the own commitment: look at the entry this attempt was to take."""

    entry: int = 0


@dataclasses.dataclass(frozen=True)
class End:
    """The attempt has ended for this role. `clean`: every role below answered, nobody writes any
    more (root only: the attempt's leftovers may be removed)."""

    outcome: Literal["published", "not-published", "in-doubt"]
    root: str | None = None
    entry: int | None = None
    cause: Cause | None = None
    clean: bool = False


Effect = Send | WriteShards | SendPayload | WriteManifest | PublishRoot | StopWriting | LookAtNextEntry | End
