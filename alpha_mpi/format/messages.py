"""Messages between roles: every one carries the attempt; encoded as MessagePack, decoded strictly.

No message holds tensor bytes.
"""

from __future__ import annotations

import msgspec

from ..errors import Cause
from ..model.capture import Attempt, Prefix
from .manifest import ChildRecord

#: Longest encoded message in bytes; a longer one is a fault of the sender.
LIMIT = 1 << 20


#: At most this many replicated regions are listed in one message.
REPLICAS_LIMIT = 8192


class Begin(msgspec.Struct, frozen=True, tag="begin", forbid_unknown_fields=True):
    """Down a tree: the root's prefix, before any byte is written, and the entry to be taken.

    `replicas` lists (ordinal, region digest) of the replicated regions, so that whoever differs
    can name the region; empty where there are more than `REPLICAS_LIMIT`.
    """

    attempt: Attempt
    prefix: Prefix
    entry: int
    replicas: tuple[tuple[int, str], ...] = ()


class Enter(msgspec.Struct, frozen=True, tag="enter", forbid_unknown_fields=True):
    """To owner 0 of a star (fixed-size gather): own prefix, or the cause of having none.

    `inventory` and `payload` are the bytes this owner will contribute to the two gathers.
    """

    attempt: Attempt
    prefix: Prefix | None
    cause: Cause | None
    inventory: int = 0
    payload: int = 0


class Go(msgspec.Struct, frozen=True, tag="go", forbid_unknown_fields=True):
    """From owner 0 of a star: all prefixes agree; contribute. `inventory` and `payload` are the
    bytes of one gather slice per owner; `rounds` how many slices of each there are."""

    attempt: Attempt
    entry: int
    inventory_slice: int
    inventory_rounds: int
    payload_slice: int
    payload_rounds: int


class Commitment(msgspec.Struct, frozen=True, tag="commitment", forbid_unknown_fields=True):
    """Up: the sender's prefix and the one record its parent will hold. The sender is durable.

    `changed` says whether any word of the subtree differs from the lineage's newest generation.
    """

    attempt: Attempt
    prefix: Prefix
    record: ChildRecord
    changed: bool


class Sign(msgspec.Struct, frozen=True, tag="sign", forbid_unknown_fields=True):
    """Up or down: the sender lives and makes progress."""

    attempt: Attempt


class Abort(msgspec.Struct, frozen=True, tag="abort", forbid_unknown_fields=True):
    """Up or down: nothing is published by this attempt; with the first cause."""

    attempt: Attempt
    cause: Cause


class Ended(msgspec.Struct, frozen=True, tag="ended", forbid_unknown_fields=True):
    """Up: the sender's writer has stopped after an abort and all its children answered."""

    attempt: Attempt


class Release(msgspec.Struct, frozen=True, tag="release", forbid_unknown_fields=True):
    """Down: the root is durable. `root` is its digest, `entry` its number."""

    attempt: Attempt
    root: str
    entry: int


class Doubt(msgspec.Struct, frozen=True, tag="doubt", forbid_unknown_fields=True):
    """Down: the root was renamed but is not known to be durable."""

    attempt: Attempt
    cause: Cause


class Left(msgspec.Struct, frozen=True, tag="left", forbid_unknown_fields=True):
    """Any direction: the sender's program left the block with an error; no save succeeds any more."""

    attempt: Attempt
    cause: Cause


class Group(msgspec.Struct, frozen=True, tag="group", forbid_unknown_fields=True):
    """Inside a replica group: digests of the pieces of its lowest owner, (ordinal, piece digest)."""

    attempt: Attempt
    digests: tuple[tuple[int, str], ...]


Message = Begin | Enter | Go | Commitment | Sign | Abort | Ended | Release | Doubt | Left | Group
