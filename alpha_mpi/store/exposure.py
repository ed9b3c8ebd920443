"""Exposure: whether anybody at all may write to a store, whom its owner does not know."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from ..errors import shortened
from .durable import Directory
from .store import Store


class ExposedStoreWarning(UserWarning):
    """Users that are neither the owner of a store nor of its group can write to it."""


def exposed(directories: Iterable[Directory]) -> str | None:
    """Return a sentence on the first directory that others may write to, None if there is none."""
    for directory in directories:
        mode = os.fstat(directory.fd).st_mode
        if mode & stat.S_IWOTH:
            # A sticky bit keeps others' files; the next entry's name is still free for all.
            return (
                f"everybody may write to {shortened(directory.path)} (mode {stat.S_IMODE(mode):04o}): "
                "take that right from others, or see docs/security.md"
            )
    return None


def exposed_store(store: Store) -> str | None:
    """Return what `exposed` says of the four directories of a store."""
    return exposed((store.root, store.epochs, store.published, store.data))
