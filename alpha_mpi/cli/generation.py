"""Generations for commands: which one is meant, its name and state, and what its files weigh."""

from __future__ import annotations

import os
import stat

from ..errors import Refused
from ..model.capture import Attempt
from ..restore.asked import find as find
from ..restore.asked import position_of as position_of
from ..restore.choose import Survey
from ..store import names, observe
from ..store.durable import Directory
from ..store.observe import Position
from ..store.probe import probe
from ..store.signing import read_key
from ..store.store import Store
from .group import key_file


def name_of(position: Position) -> str:
    """Return what people call an entry: e000002-000001; of an epoch's record, its file."""
    if position.number == 0:
        return observe.record_file(position.epoch)
    return names.entry(*position).removesuffix(".json")


def state_of(seen: Survey, position: Position) -> str:
    """Return how a generation stands: newest, lineage (before it), or abandoned."""
    if seen.lineage and position == seen.lineage[0]:
        return "newest"
    return "lineage" if position in seen.lineage else "abandoned"


def check_there(store: Store, position: Position) -> None:
    """Refuse (``removed-generation``) a generation that retention took while it was looked at."""
    if observe.is_removed(store, position) or not store.published.exists(names.entry(*position)):
        raise Refused(
            "the generation was removed while it was read",
            code="removed-generation",
            file=observe.entry_file(*position),
        )


def open_to_read(path: str, file: str | None = None) -> Store:
    """Open a store with the key in `file`, by default the one given to the command."""
    file = file or key_file()
    return Store.open(path, key=None if file is None else read_key(file))


def open_to_change(path: str) -> Store:
    """Open an existing store to change it, once its file system was asked what it gives."""
    open_to_read(path).close()  # refuses what is no store, before anything is tried there
    with Directory.open(path) as directory:
        probe(directory)
        by_link = directory.by_link
    file = key_file()
    key = None if file is None else read_key(file)
    return Store.open(path, write=True, by_link=by_link, key=key)


def signature(store: Store, signed: bool) -> str:
    """Return what is known of the signatures of a store: none, checked, not checked."""
    if not signed:
        return "none"
    return "checked" if store.key is not None else "not checked"


def weight(store: Store, attempt: Attempt) -> tuple[int, int]:
    """Return (files, bytes) of an attempt's directory; nothing is opened but directories."""
    files = nbytes = 0
    try:
        with store.data.sub(names.attempt(attempt)) as top:
            for group in top.names():
                if names.parse_group(group) is None:
                    continue
                with top.sub(group) as directory:
                    for name in directory.names():
                        found = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
                        if names.parse_data(name) is not None and stat.S_ISREG(found.st_mode):
                            files, nbytes = files + 1, nbytes + found.st_size
    except (FileNotFoundError, Refused):
        pass  # a generation whose files are missing weighs what is left of it
    return files, nbytes
