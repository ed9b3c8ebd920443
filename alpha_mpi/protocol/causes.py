"""Causes: what a machine says when it ends an attempt itself.

Each names the role at fault in words that do not depend on who noticed, so that two observers of
one fault say the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from ..errors import Cause, InDoubt, PeerFailed, Refused
from ..model.capture import Attempt, Moment

#: The name of the region of that ordinal, or None.
RegionName = Callable[[int], str | None]


def refused(code: str, text: str, role: int, expected: object = None, found: object = None) -> Cause:
    """Return why what `role` sent cannot be counted."""
    return Cause(
        kind=Refused.kind,
        code=code,
        message=text,
        role=role,
        expected=None if expected is None else plain(expected),
        found=None if found is None else plain(found),
    ).bounded()


def missing(role: int) -> Cause:
    """Return the cause that names a silent role."""
    return Cause(
        kind=PeerFailed.kind,
        code="missing-subtree",
        message="no sign of life within the deadline; what it and the roles below it hold is missing",
        role=role,
    )


def left(reason: Cause, sender: int) -> Cause:
    """Return why no save succeeds any more: a program has left the block with an error, or is gone."""
    if reason.code == "left":
        return reason  # passed on by a neighbour of the one who left
    if reason.code == "lost" and reason.role is not None:
        return reason  # the same for who met the dead process itself and for who was told
    return Cause(
        kind=PeerFailed.kind,
        code="left",
        message=f"its program has left the checkpointer's block: {reason.message}",
        role=sender if reason.role is None else reason.role,
    ).bounded()


def no_capture(role: int, cause: Cause | None) -> Cause:
    """Return why `role` has no capture, blamed on it where the cause names nobody."""
    if cause is None:
        return Cause(kind=PeerFailed.kind, code="no-capture", message="it has no capture", role=role)
    return cause if cause.role is not None else dataclasses.replace(cause, role=role)


def out_of_step(role: int, ours: Attempt, theirs: Attempt) -> Cause:
    """Return why nothing can be published: `role` is at a later attempt while this one runs."""
    return Cause(
        kind=PeerFailed.kind,
        code="attempt",
        message="it is at a later attempt: the owners do not call save equally often",
        role=role,
        expected=plain(ours),
        found=plain(theirs),
    )


def unexpected(role: int, message: str) -> Cause:
    """Return why `role` cannot be trusted any further: its message has no place here."""
    return Cause(
        kind=PeerFailed.kind,
        code="unexpected-message",
        message=f"it sent a message of type {message} that has no place here",
        role=role,
    ).bounded()


def unknown_child(sender: int, expected: Iterable[int]) -> Cause:
    """Return why a commitment of a role that is not a child cannot be counted."""
    children = ", ".join(map(str, expected)) or "none"
    text = "it committed to a role that is not its parent"
    return refused("unknown-child", text, sender, f"a child among {children}", sender)


def stalled(role: int, deadline: float, *, publishing: bool = False) -> Cause:
    """Return why `role` gives up on its own work; while publishing nobody knows how it ended."""
    return Cause(
        kind=InDoubt.kind if publishing else PeerFailed.kind,
        code="in-doubt" if publishing else "stalled",
        message="its own work wrote nothing for the whole deadline",
        retryable=not publishing,
        role=role,
        expected=f"progress within {deadline:g} s",
    )


def silent_parent(role: int | None, visible: bool | None) -> Cause:
    """Return why a committed role cannot say how the attempt ended."""
    seen = {True: "the root can be seen", False: "no root can be seen", None: "the store did not answer"}
    return Cause(
        kind=InDoubt.kind,
        code="in-doubt",
        message=f"published or not is unknown: nobody answered the commitment; {seen[visible]}",
        role=role,
        visible=visible,
    )


def diverged_copy(
    role: int, ordinal: int, expected: str, found: str, region_name: RegionName | None
) -> Cause:
    """Return why `role` cannot commit: its copy of a piece differs from its replica group's."""
    return Cause(
        kind=Refused.kind,
        code="diverged-replica",
        message="its copy of a piece differs from that of the group's lowest owner",
        retryable=True,
        role=role,
        region=named(ordinal, region_name),
        expected=expected,
        found=found,
    ).bounded()


def named(ordinal: int, region_name: RegionName | None) -> str:
    """Return a region's name, or its ordinal where the name is not at hand."""
    name = region_name(ordinal) if region_name is not None else None
    return f"#{ordinal}" if name is None else name


def plain(value: object) -> str:
    """Return one side of a disagreement as people read it."""
    if isinstance(value, Moment):
        return f"update {value.update}, cursor {value.cursor}, epoch {value.epoch}"
    if isinstance(value, Attempt):
        return f"save {value.save} of epoch {value.epoch}"
    return str(value)
