"""Leftovers: files of attempts that no generation names, and how they go.

A *leftover* is an attempt's directory in data/ that no root names, or a temporary file whose writer
is gone. Files we do not recognise are *strangers*: they are reported and stay, with their directory.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Collection

from ..errors import Refused
from ..format.manifest import Manifest
from ..model.capture import Attempt
from . import names
from .durable import Directory
from .store import Store


@dataclasses.dataclass
class Removal:
    """What a removal did: names below the store.

    Attributes
    ----------
    files, bytes : int
        Removed files and their bytes.
    attempts : list of Attempt
        Attempts of which nothing is left.
    strangers : list of str
        Files and directories that stay because we did not make them.
    left : list of (str, int, str)
        Ours, but not removed: file, bytes, and why.
    """

    files: int = 0
    bytes: int = 0
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    strangers: list[str] = dataclasses.field(default_factory=list)
    left: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)


def named_by_root(manifest: Manifest) -> frozenset[Attempt]:
    """Return the attempts that a root itself names: its own, and those its shard records refer to."""
    places = {place for shard in manifest.shards for place in shard.places}
    return frozenset({manifest.prefix.attempt, *(Attempt(place.epoch, place.save) for place in places)})


def remove_attempt(store: Store, attempt: Attempt, removal: Removal | None = None) -> Removal:
    """Remove the files of one attempt, as far as they are ours and the disk lets us.

    Called by the root owner alone: after every role has ended an aborted attempt of the own epoch,
    and for attempts of older epochs that nothing names. Files that are gone already are no error,
    whoever removed them. Nothing is raised: what stays is in the report.
    """
    removal = removal or Removal()
    name = names.attempt(attempt)
    try:
        _clean_tree(store.data, name, names.DATA, removal)
        if not store.data.exists(name):
            removal.attempts.append(attempt)
    except FileNotFoundError:
        pass
    except Refused:
        removal.strangers.append(os.path.join(names.DATA, name))  # a file, or a link to somewhere
    except OSError as error:
        removal.left.append((os.path.join(names.DATA, name), 0, _why(error)))
    return removal


def leftovers(store: Store, epoch: int, named: Collection[Attempt], unknown_up_to: int = 0) -> Removal:
    """Remove what older epochs left behind: unnamed attempts, temporary files.

    Called by the root owner of `epoch`, once its claim and record are durable: no job of an older
    epoch can publish any more. `named` are the attempts that any generation in published/ names or
    refers to, abandoned ones too. Where a root cannot be read, nobody knows what it names: attempts
    up to the epoch `unknown_up_to` stay. Raises `OSError` only where a directory of the store itself
    cannot be listed.
    """
    if not store.epochs.exists(names.claim(epoch)):
        raise ValueError(f"epoch {epoch} has not been taken")
    removal = Removal()
    for name in store.data.names():
        attempt = names.parse_attempt(name)
        if attempt is None:
            removal.strangers.append(os.path.join(names.DATA, name))
        elif attempt.epoch < epoch:
            if attempt in named:
                _clean_named(store, name, removal)
            elif attempt.epoch > unknown_up_to:
                remove_attempt(store, attempt, removal)

    def of_older_claim(name: str) -> bool:
        # Also of this epoch: its record is durable, so whoever still writes it has lost.
        found = names.parse_claim(name)
        return found is not None and found <= epoch

    def of_older_entry(name: str) -> bool:
        found = names.parse_published(name)
        return found is not None and found[0] < epoch

    _clean(store.root, "", _temporary_of(lambda name: name == names.STORE_FILE), removal, quiet=True)
    _clean(store.epochs, names.EPOCHS, _temporary_of(of_older_claim), removal, quiet=True)
    _clean(store.published, names.PUBLISHED, _temporary_of(of_older_entry), removal, quiet=True)
    return removal


def _clean_tree(above: Directory, name: str, where: str, removal: Removal) -> None:
    """Remove an attempt's directory. Raises where something of ours stays."""
    where = os.path.join(where, name)
    failed = len(removal.left)
    with above.sub(name) as top:
        for group in top.names():
            if names.parse_group(group) is None:
                removal.strangers.append(os.path.join(where, group))
                continue
            try:
                with top.sub(group) as directory:
                    _clean(directory, os.path.join(where, group), _ours, removal)
                _rmdir(top, group)
            except FileNotFoundError:
                continue
            except Refused:
                removal.strangers.append(os.path.join(where, group))
    if len(removal.left) == failed:
        _rmdir(above, name)


def _clean_named(store: Store, name: str, removal: Removal) -> None:
    """Remove temporary files beside the files of a generation of an older epoch."""
    where = os.path.join(names.DATA, name)
    try:
        with store.data.sub(name) as top:
            for group in top.names():
                if names.parse_group(group) is not None:
                    with top.sub(group) as directory:
                        path = os.path.join(where, group)
                        _clean(directory, path, _temporary_of(_is_data), removal, quiet=True)
    except FileNotFoundError:
        pass
    except Refused as error:
        removal.strangers.append(error.file or where)
    except OSError as error:
        removal.left.append((where, 0, _why(error)))


def _clean(
    directory: Directory, where: str, ours: Callable[[str], bool], removal: Removal, quiet: bool = False
) -> None:
    """Remove the files that are `ours`; report the others unless `quiet`."""
    for name in directory.names():
        path = os.path.join(where, name)
        if not ours(name):
            if not quiet:
                removal.strangers.append(path)
            continue
        size = 0
        try:
            with directory.open_file(name) as file:
                size = file.size
        except Refused:
            removal.strangers.append(path)  # our name, but no file
            continue
        except OSError:
            pass  # its size is not known; perhaps it can still be removed
        try:
            directory.unlink(name, missing_ok=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            removal.left.append((path, size, _why(error)))
        else:
            removal.files += 1
            removal.bytes += size


def _rmdir(above: Directory, name: str) -> None:
    try:
        above.rmdir(name)
    except OSError as error:
        # A stranger is inside (and reported), or another client's open file keeps its name alive.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _is_data(name: str) -> bool:
    return names.parse_data(name) is not None


def _ours(name: str) -> bool:
    return _is_data(name) or _is_data(names.parse_temporary(name) or "")


def _temporary_of(final: Callable[[str], bool]) -> Callable[[str], bool]:
    def test(name: str) -> bool:
        inner = names.parse_temporary(name)
        return inner is not None and final(inner)

    return test


def _why(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno or 0)
