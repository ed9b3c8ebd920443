"""Windows: manifests read once from the store, and by everybody else from their parent's memory.

Level by level: a parent tells its family that the path from the root to itself is ready (or refused,
with the cause), fills a window, and each child gets the path with one-sided reads. On a tree a window
serves at most fan-out readers; on a star one window serves all owners.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..errors import Cause, CheckpointError, PeerFailed, cause_of
from .agreement import decode_cause, encode_cause
from .channel import Channel
from .families import Families
from .onesided import PATH_LIMIT, fetch, serve
from .waiting import Nap, Patience

_NOTE = struct.Struct("<qq")  # call number; bytes of the path, or one of the words below
_HERE, _MAKE, _REFUSED = -1, -2, -3
#: A child waits for its parent's first word, and then for the word to make the window, this many deadlines
#: (the first for each level above it): longer than the parent waits for its children.
_READY, _GO = 1.1, 1.2
_LENGTH = struct.Struct("<q")


def read_path(
    families: Families, read_own: Callable[[tuple[bytes, ...]], bytes], deadline: float
) -> tuple[tuple[bytes, ...] | None, Cause | None]:
    """Return the manifest files on the path from the root to this owner's role.

    Called by every owner, in step. `read_own(parents)` reads this role's manifest file from the
    store and checks it against the record in the last of `parents`; it is called once per role (on
    a star by owner 0 alone) and not at all below a role that refused. Returns (path, None), or
    (None, cause) with the cause of the nearest refusal above; a role that refuses still serves
    every later level. Does not agree: the caller does, next.
    """
    families.calls += 1
    path: tuple[bytes, ...] = ()
    cause: Cause | None = None
    up, down = families.notes
    if up is not None:
        try:
            path, cause = _receive(up, families, deadline)
        except CheckpointError as error:
            cause = error.cause()
    if cause is None and (up is None or not families.star):
        try:
            path = (*path, read_own(path))
        except BaseException as error:  # also the user's: nobody below may be left waiting
            cause = cause_of(error, families.world.rank)
    if down is not None:
        try:
            cause = _serve(down, families, path, cause, deadline)
        except CheckpointError as error:
            cause = cause or error.cause()
    return (None, cause) if cause is not None else (path, None)


def _receive(notes: Channel, families: Families, deadline: float) -> tuple[tuple[bytes, ...], Cause | None]:
    """Read the path from the parent's memory."""
    family = families.world if families.star else families.up
    assert family is not None
    # A parent may have waited this long itself: who waited speaks last, so that the error names the
    # silent role.
    depth = max(families.place.depth, 1)
    head, text = _notes(notes, families, {0}, deadline * (_READY + _GO * (depth - 1)))[0]
    size = head
    if head != _REFUSED:
        notes.send(0, _NOTE.pack(families.calls, _HERE))
        head, text = _notes(notes, families, {0}, deadline * _GO)[0]
    if head == _REFUSED:
        return (), decode_cause(text)
    return _unpack(fetch(family, size, deadline)), None


def _serve(
    notes: Channel, families: Families, files: tuple[bytes, ...], cause: Cause | None, deadline: float
) -> Cause | None:
    """Let the family read the path from this role's memory, or tell it the cause."""
    family = families.world if families.star else families.down
    assert family is not None
    children = set(range(1, family.size))
    data = b"" if cause is not None else _pack(files)

    def tell(head: int, text: bytes = b"") -> None:
        for child in children:
            notes.send(child, _NOTE.pack(families.calls, head) + text)

    try:
        family.check()
        families.world.check()
        if len(data) > PATH_LIMIT:
            raise PeerFailed(
                "the manifests of the path do not fit a window",
                code="path-too-large",
                expected=PATH_LIMIT,
                found=len(data),
            )
        if cause is None:
            # Making a window cannot be polled: every child must say that it waits for nothing else.
            tell(len(data))
            _notes(notes, families, children, deadline)
            tell(_MAKE)
    except CheckpointError as error:
        cause = error.cause()
    if cause is not None:
        tell(_REFUSED, encode_cause(cause))
        notes.flush(min(deadline, 1.0))
        return cause
    notes.flush(deadline)
    serve(family, data, deadline)
    return None


def _notes(
    notes: Channel, families: Families, awaited: set[int], deadline: float
) -> dict[int, tuple[int, bytes]]:
    """Return one note of this call from each awaited rank of the family; name who sends none."""
    patience, nap = Patience(deadline), Nap()
    got: dict[int, tuple[int, bytes]] = {}
    while True:
        early = []
        for source, data in notes.poll():
            call, head = _NOTE.unpack_from(data)
            if call == families.calls:
                got[source] = (head, data[_NOTE.size :])
            elif call > families.calls:  # the sender gave this reading up and began the next
                early.append((source, data))
        notes.unread(early)
        missing = awaited - got.keys()
        if not missing:
            return got
        dead = missing & notes.lost
        if dead or patience.ended():
            raise PeerFailed(
                "its process ended" if dead else f"nothing heard for {deadline:g} s while reading manifests",
                code="lost" if dead else "silent",
                role=families.role_at(min(dead or missing), up=0 in awaited),
            )
        nap()


def _pack(files: tuple[bytes, ...]) -> bytes:
    lengths = (len(files), *(len(file) for file in files))
    return b"".join((*(_LENGTH.pack(n) for n in lengths), *files))


def _unpack(data: bytes) -> tuple[bytes, ...]:
    (count,) = _LENGTH.unpack_from(data)
    at, files = _LENGTH.size * (1 + count), []
    for i in range(count):
        (size,) = _LENGTH.unpack_from(data, _LENGTH.size * (1 + i))
        files.append(data[at : at + size])
        at += size
    return tuple(files)
