"""Every file name of a store: made and parsed here, and nowhere else.

A name parses only if making it again gives the same name. What does not parse is a *stranger*:
reported, never deleted, never an error. Layout and names: docs/format.md, section "The store".
"""

from __future__ import annotations

import re
import secrets

from ..model.capture import Attempt

STORE_FILE = "store.json"
EPOCHS = "epochs"
PUBLISHED = "published"
DATA = "data"
DIAG = "diag"

#: Roles whose files share one sub-directory of an attempt.
GROUP = 256

_CLAIM = re.compile(r"e([0-9]{6,})\.json", re.ASCII)
_PUBLISHED = re.compile(r"e([0-9]{6,})-([0-9]{6,})\.(json|removed|pinned)", re.ASCII)
_VIEW = re.compile(r"e([0-9]{6,15})-([0-9]{6,15})\.h5", re.ASCII)
_ATTEMPT = re.compile(r"e([0-9]{6,})-([0-9]{6,})", re.ASCII)
_GROUP = re.compile(r"[0-9]{3,}", re.ASCII)
_DATA = re.compile(r"([0-9]{6,})\.(pack|manifest\.json)", re.ASCII)
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.ASCII | re.DOTALL)
_KINDS = {"json": "entry", "removed": "removed", "pinned": "pinned"}


def claim(epoch: int) -> str:
    """Return the name of an epoch's claim, in `EPOCHS`."""
    return f"e{epoch:06d}.json"


def entry(epoch: int, number: int) -> str:
    """Return the name of an entry (a root or a seal), in `PUBLISHED`."""
    return f"e{epoch:06d}-{number:06d}.json"


def removed(epoch: int, number: int) -> str:
    """Return the name of the mark that retention removed this entry, in `PUBLISHED`."""
    return f"e{epoch:06d}-{number:06d}.removed"


def pinned(epoch: int, number: int) -> str:
    """Return the name of the mark that this entry is kept, in `PUBLISHED`."""
    return f"e{epoch:06d}-{number:06d}.pinned"


def view(epoch: int, number: int) -> str:
    """Return the name of an HDF5 view of an entry, in the store's root; it is no part of the store."""
    return f"e{epoch:06d}-{number:06d}.h5"


def parse_view(name: str) -> tuple[int, int] | None:
    """Return (epoch, number) of a view's name, None for any other name."""
    match = _VIEW.fullmatch(name)
    if match is None:
        return None
    epoch, number = int(match[1]), int(match[2])
    return (epoch, number) if epoch and number and view(epoch, number) == name else None


def attempt(attempt: Attempt) -> str:
    """Return the name of an attempt's directory, in `DATA`."""
    return f"e{attempt.epoch:06d}-{attempt.save:06d}"


def group(role: int) -> str:
    """Return the name of the sub-directory of an attempt that holds this role's files."""
    return f"{role // GROUP:03d}"


def pack(role: int) -> str:
    """Return the name of a role's pack, in its `group`."""
    return f"{role:06d}.pack"


def manifest(role: int) -> str:
    """Return the name of a role's group manifest, in its `group`."""
    return f"{role:06d}.manifest.json"


def temporary(name: str) -> str:
    """Return a fresh name, in the same directory, for a file that will be called `name`."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


def parse_claim(name: str) -> int | None:
    """Return the epoch of a claim's name, or None for a stranger."""
    match = _CLAIM.fullmatch(name)
    if match is None:
        return None
    epoch = int(match[1])
    return epoch if epoch > 0 and claim(epoch) == name else None


def parse_published(name: str) -> tuple[int, int, str] | None:
    """Return (epoch, number, "entry" or "removed" or "pinned"), or None for a stranger."""
    match = _PUBLISHED.fullmatch(name)
    if match is None:
        return None
    epoch, number = int(match[1]), int(match[2])
    if epoch < 1 or number < 1 or f"e{epoch:06d}-{number:06d}.{match[3]}" != name:
        return None
    return epoch, number, _KINDS[match[3]]


def parse_attempt(name: str) -> Attempt | None:
    """Return the attempt of a directory's name, or None for a stranger."""
    match = _ATTEMPT.fullmatch(name)
    if match is None:
        return None
    found = Attempt(int(match[1]), int(match[2]))
    return found if found.epoch > 0 and found.save > 0 and attempt(found) == name else None


def parse_group(name: str) -> int | None:
    """Return the number of a sub-directory (its roles divided by `GROUP`), or None."""
    if _GROUP.fullmatch(name) is None:
        return None
    number = int(name)
    return number if f"{number:03d}" == name else None


def parse_data(name: str) -> tuple[int, str] | None:
    """Return (role, "pack" or "manifest"), or None for a stranger."""
    match = _DATA.fullmatch(name)
    if match is None:
        return None
    role = int(match[1])
    if f"{role:06d}.{match[2]}" != name:
        return None
    return role, "pack" if match[2] == "pack" else "manifest"


def parse_temporary(name: str) -> str | None:
    """Return the name that a temporary file was going to have, or None for a stranger."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1]
