"""Capture: one owner's pieces at one moment, and the prefix that binds it to its attempt.

The *capture prefix* is what every role must agree on, field by field, before any byte is written.
"""

from __future__ import annotations

import dataclasses

#: Version of the store format (docs/format.md). Never reused.
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, order=True)
class Attempt:
    """(epoch, save number): names one attempt to publish; equal on all owners without a message."""

    epoch: int
    save: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where the learner stands: finished updates, items of input consumed, continuations."""

    update: int = 0
    cursor: int = 0
    epoch: int = 0


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The capture prefix (DESIGN.md section 3). All digests are ``ALGORITHM:HEX``."""

    version: int
    attempt: Attempt
    schema: str
    learner: str
    contract: str
    layout: str
    cover: str
    moment: Moment
    replicas: str

    def difference(self, other: Prefix) -> tuple[str, str, str] | None:
        """Return (field, ours, theirs) of the first field that differs, or None."""
        for f in dataclasses.fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if mine != theirs:
                return f.name, str(mine), str(theirs)
        return None
