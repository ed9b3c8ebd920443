"""Messages between roles: every one carries the attempt; encoded as MessagePack, decoded strictly.

No message holds tensor bytes.
"""

from __future__ import annotations

import msgspec

from ..errors import KINDS, NAME_LIMIT, TEXT_LIMIT, Cause, Refused
from ..model.capture import Attempt, Prefix
from .manifest import ChildRecord
from .question import LARGEST_U4, Question
from .valid import check_child, check_prefix

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
    """Up or down: the sender lives and makes progress. With `group`: inside a replica group, from
    who has yet to send its digests."""

    attempt: Attempt
    group: bool = False


class Abort(msgspec.Struct, frozen=True, tag="abort", forbid_unknown_fields=True):
    """Up or down: nothing is published by this attempt. Down and `final`: with the cause that every
    role reports, the first one that reached the root; otherwise with the first the sender knows."""

    attempt: Attempt
    cause: Cause
    final: bool = False


class Ended(msgspec.Struct, frozen=True, tag="ended", forbid_unknown_fields=True):
    """Up: the attempt is over for the sender and all below it. `clean`: every one of them answered
    that its writer has stopped; otherwise somebody is lost, or may still write."""

    attempt: Attempt
    clean: bool = True


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

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)
_CODE = "corrupt-message"


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raises `Refused` (`too-large`) above `LIMIT`."""
    data = _ENCODER.encode(message)
    if len(data) > LIMIT:
        raise Refused(
            f"a message of type {type(message).__name__.lower()} is too long",
            code="too-large",
            expected=f"at most {LIMIT} bytes",
            found=f"{len(data)} bytes",
        )
    return data


def decode(data: bytes) -> Message:
    """Return the message of these bytes.

    Called on whatever a peer sent. Raises `Refused` (`too-large`, `corrupt-message`) on anything
    but the exact encoding of a message whose numbers, digests and texts are in bounds.
    """
    if len(data) > LIMIT:
        raise Refused("a message is too long", code="too-large", expected=f"at most {LIMIT}", found=len(data))
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refused(f"not a message: {error}", code=_CODE) from None
    if _ENCODER.encode(message) != data:
        raise Refused("not the one encoding of a message", code=_CODE)
    _check(message)
    return message


def _check(message: Message) -> None:
    ask = Question("(message)", _CODE)
    ask.number("epoch", message.attempt.epoch, 1)
    ask.number("save number", message.attempt.save, 0)
    if isinstance(message, (Begin, Enter, Commitment)) and message.prefix is not None:
        check_prefix(message.prefix, ask)
    if isinstance(message, (Begin, Go, Release)):
        ask.number("entry", message.entry, 1)
    if isinstance(message, (Enter, Abort, Doubt, Left)) and message.cause is not None:
        _check_cause(message.cause, ask)
    if isinstance(message, Begin):
        _check_digests(message.replicas, REPLICAS_LIMIT, ask)
    elif isinstance(message, Group):
        _check_digests(message.digests, LIMIT, ask)
    elif isinstance(message, Enter):
        ask.number("inventory", message.inventory)
        ask.number("payload", message.payload)
        if (message.prefix is None) != (message.cause is not None):
            ask.refuse("an owner enters with a prefix, or with the cause of having none")
    elif isinstance(message, Go):
        for name in ("inventory_slice", "inventory_rounds", "payload_slice", "payload_rounds"):
            ask.number(name, getattr(message, name))
    elif isinstance(message, Commitment):
        check_child(message.record, ask)
    elif isinstance(message, Release):
        ask.digest("root digest", message.root)


def _check_digests(pairs: tuple[tuple[int, str], ...], most: int, ask: Question) -> None:
    if len(pairs) > most:
        ask.refuse("digests listed", f"at most {most}", len(pairs))
    for ordinal, text in pairs:
        ask.number("ordinal", ordinal, 0, LARGEST_U4)
        ask.digest(f"digest of region {ordinal}", text)


def _check_cause(cause: Cause, ask: Question) -> None:
    if cause.kind not in KINDS:
        ask.refuse("kind of a cause", " or ".join(KINDS), cause.kind[:100])
    limits = {"code": NAME_LIMIT, "message": TEXT_LIMIT, "stage": NAME_LIMIT}
    limits.update(dict.fromkeys(("region", "file", "expected", "found"), NAME_LIMIT))
    for name, most in limits.items():
        value = getattr(cause, name)
        if value is not None:
            ask.text(f"{name} of a cause", value, most)
    if cause.role is not None:
        ask.number("role of a cause", cause.role, 0, LARGEST_U4)
