"""Tidying: what a job says of files that it wanted to remove and could not."""

from __future__ import annotations

from .errors import warn_user
from .store.entries import Position
from .store.retention import Named, Retention


class LeftoverWarning(UserWarning):
    """Retired or left-over files could not be removed; nothing is lost, a later run tries again."""


def retire(retention: Retention, position: Position, named: Named | None) -> None:
    """Retire what a generation just published puts beyond `keep`. Called by owner 0.

    Raises nothing but a warning that the user's filter makes an error. `named` is what the root names,
    where this process knows that it published it: it is not read again.
    """
    retired = retention.published(position, named)
    if retired.failed:
        warn(retired.failed[0])
    else:
        warn_left(retired.removal.left)


def warn_left(left: list[tuple[str, int, str]]) -> None:
    """Warn of files that stay: (file, bytes, why) of each; of none nothing is said."""
    if left:
        file, _, why = left[0]
        nbytes = sum(size for _, size, _ in left)
        warn(f"{file}: {why} ({len(left)} files, {nbytes} bytes in all)")


def warn(reason: str) -> None:
    """Warn that files stay."""
    warn_user(LeftoverWarning(f"retired or left-over files stay for now: {reason}"))
