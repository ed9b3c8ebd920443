"""Store: one directory that holds the generations of one line of learners.

A *store* is known by its id (store.json), never by the spelling of its path. It holds `epochs/`,
`published/` and `data/`; whoever makes the store makes store.json first, by no-replace, so that two
jobs that begin at once mean the same store, and a kill in between leaves what the next one ends.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from .. import digest
from ..errors import Refused
from ..format import claim as claims
from ..format import signature
from ..format.envelope import SMALL_LIMIT
from ..format.signature import Key
from ..model.capture import Attempt
from . import names, probe
from .durable import Directory, commit_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

#: Failures that say a directory above the store is not ours to sync; what lies there was found, not made.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)

T = TypeVar("T")


class Store:
    """An open store. Closed by `close`, or at the end of its ``with`` block.

    Attributes
    ----------
    path : str
        As the user spelled it, made absolute; used in messages only.
    id, algorithm : str
        From store.json: who it is, and the digest algorithm of everything written into it.
    root, epochs, published, data : Directory
        The four open directories.
    writable : bool
        Whether it was opened to add to it.
    probed : Probe or None
        What the file system promised, where it was asked.
    key : Key or None
        Signs what is written, and everything read must be signed by it. Never leaves this process.
    """

    def __init__(
        self,
        root: Directory,
        value: claims.StoreFile,
        parts: list[Directory],
        writable: bool,
        key: Key | None = None,
    ) -> None:
        self.path = root.path
        self.id = value.id
        self.algorithm = value.digest
        self.root = root
        self.epochs, self.published, self.data = parts
        self.writable = writable
        self.probed: probe.Probe | None = None
        self.key = key

    @classmethod
    def create_or_open(
        cls,
        path: str | os.PathLike[str],
        algorithm: str | None = None,
        probe: bool = True,
        visibility: float = 0.0,
        key: Key | None = None,
    ) -> Store:
        """Open the store at `path` to write; make it, and the directories above it, if it is missing.

        Called by the root owner. Afterwards every name up to the store's root is durable.
        `algorithm` is that of a store made now (None: `digest.DEFAULT`, with a key ``sha256``); an
        existing store with another one is refused. With `probe` the file system is asked for its
        promises first. A missing name is believed after `visibility` seconds.

        Raises `Refused`: ``not-a-directory``, ``not-a-store`` (a store of something else, or files of
        ours without a store.json), ``format-version``, ``corrupt-store-file``, ``digest-algorithm``,
        ``weak-digest``, ``missing-directory``, and what `probe.probe` raises.
        """
        new = algorithm or (digest.DEFAULT if key is None else "sha256")
        digest.hasher(new)  # unknown, or its package is missing: before any file
        root = _make_root(os.path.abspath(os.fspath(path)))
        try:
            value = _read_store_file(root)
            _check_strong(new if value is None else value.digest, key, root)
            if value is None:
                _check_unused(root, visibility)
            promised = _probe(root) if probe else None
            if value is None:
                value = _make_store_file(root, new)
            elif algorithm is not None and value.digest != algorithm:
                raise Refused(
                    "the store was made with another digest algorithm",
                    code="digest-algorithm",
                    file=os.path.join(root.path, names.STORE_FILE),
                    expected=algorithm,
                    found=value.digest,
                )
            _check_strong(value.digest, key, root)
            store = cls(root, value, _make_parts(root, visibility), writable=True, key=key)
        except BaseException:
            root.close()
            raise
        store.probed = promised
        return store

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        write: bool = False,
        visibility: float = 0.0,
        by_link: bool = False,
        key: Key | None = None,
    ) -> Store:
        """Open an existing store; makes and changes nothing.

        Called by commands, and by every owner but the root's, which says `by_link` as its probe
        found it. A missing name is believed after `visibility` seconds. Raises `Refused` as
        `create_or_open`, and ``no-store`` where nothing is at `path`. With a `key` every root and claim
        read from it must be signed.
        """
        text = os.path.abspath(os.fspath(path))
        try:
            root = await_name(lambda: _open_root(text), visibility)
        except FileNotFoundError:
            raise Refused("there is no store here", code="no-store", file=text) from None
        parts: list[Directory] = []
        try:
            root.by_link = by_link
            value = await_name(lambda: _demand_store_file(root), visibility)
            _check_strong(value.digest, key, root)
            for name in (names.EPOCHS, names.PUBLISHED, names.DATA):
                parts.append(await_name(lambda name=name: _open_part(root, name), visibility))  # type: ignore[misc]
            return cls(root, value, parts, write, key)
        except BaseException as error:
            for directory in (root, *parts):
                directory.close()
            if isinstance(error, FileNotFoundError):
                _refuse_missing(root, error)
            raise

    def files_of(self, attempt: Attempt, role: int, create: bool = False) -> Directory:
        """Open the directory that holds this role's pack and manifest of an attempt.

        With `create`, called by each role before it writes: makes it and makes its names durable.
        """
        with self.data.sub(names.attempt(attempt), create) as top:
            return top.sub(names.group(role), create)

    def close(self) -> None:
        """Close all directories; a second call does nothing."""
        for directory in (self.data, self.published, self.epochs, self.root):
            directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.path!r}, id={self.id!r})"


def await_name(look: Callable[[], T], visibility: float) -> T:
    """Return what `look` returns; a `FileNotFoundError` is believed only after `visibility` seconds.

    Network file systems remember for a while that a name was missing.
    """
    limit = time.monotonic() + visibility
    pause = 0.01
    while True:
        try:
            return look()
        except FileNotFoundError:
            if time.monotonic() >= limit:
                raise
        time.sleep(min(pause, max(0.0, limit - time.monotonic())))
        pause = min(2 * pause, 0.5)


def _check_strong(algorithm: str, key: Key | None, root: Directory) -> None:
    if key is not None and algorithm not in signature.ALGORITHMS:
        error = signature.weak(algorithm)
        error.file = os.path.join(root.path, names.STORE_FILE)
        raise error


def _probe(root: Directory) -> probe.Probe:
    return probe.probe(root)


def culprit(path: str) -> str:
    """Return what is no directory where `path` needs one: itself, or something above it."""
    text = os.path.abspath(path)
    while not os.path.lexists(text) and text != os.path.dirname(text):
        text = os.path.dirname(text)
    return text


def _open_root(path: str) -> Directory:
    try:
        return Directory.open(path)
    except NotADirectoryError:
        at = culprit(path)
        raise Refused(
            "a store is a directory" if at == path else f"this file stands where {path} needs a directory",
            code="not-a-directory",
            file=at,
            expected="directory",
            found="file",
        ) from None


def _make_root(path: str) -> Directory:
    """Open the directory at `path`, made with those above it; names made or found are durable."""
    above, name = os.path.split(path)
    try:
        found = _open_root(path)
    except FileNotFoundError:
        if above == path:
            raise
        with _make_root(above) as parent:
            return parent.sub(name, create=True)
    # Found: perhaps a moment ago made by another job of ours, which dies before it syncs the name.
    if above != path and not found.exists(names.STORE_FILE):
        try:
            with Directory.open(above) as parent:
                parent.sync()
        except OSError as error:
            if error.errno not in _NOT_OURS:
                found.close()
                raise
    return found


def _read_store_file(root: Directory) -> claims.StoreFile | None:
    file = os.path.join(root.path, names.STORE_FILE)
    try:
        data = root.read(names.STORE_FILE, SMALL_LIMIT)
    except FileNotFoundError:
        return None
    except Refused as error:
        raise Refused(
            f"this is no store of ours: {error.message}", code="not-a-store", file=file, found=error.found
        ) from None
    try:
        return claims.decode_store_file(data, file=file)
    except Refused as error:
        if b'"kind":"store"' in data[:4096] or error.code == "format-version":
            raise
        raise Refused(f"this is no store of ours: {error.message}", code="not-a-store", file=file) from error


def _demand_store_file(root: Directory) -> claims.StoreFile:
    value = _read_store_file(root)
    if value is None:
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(root.path, names.STORE_FILE)
        )
    return value


def _check_unused(root: Directory, visibility: float) -> None:
    """Refuse a directory with files of a store but no store.json: never take over what may be lost."""
    ours = {names.EPOCHS, names.PUBLISHED, names.DATA}.intersection(root.names())
    if not ours:
        return
    try:
        await_name(lambda: _demand_store_file(root), visibility)
    except FileNotFoundError:
        raise Refused(
            "the directory is in use, and not by a store of ours",
            code="not-a-store",
            file=root.path,
            expected=f"{names.STORE_FILE}, or none of {names.EPOCHS}, {names.PUBLISHED}, {names.DATA}",
            found=", ".join(sorted(ours)),
        ) from None


def _make_store_file(root: Directory, algorithm: str) -> claims.StoreFile:
    value = claims.StoreFile(id=secrets.token_hex(16), digest=algorithm)
    try:
        commit_bytes(root, names.STORE_FILE, claims.encode_store_file(value))
    except OSError as error:
        # Another job was first, perhaps while ours lost its temporary file to its cleaning.
        winner = _read_store_file(root) if getattr(error, "stage", None) == "rename" else None
        if winner is None:
            raise
        root.sync()
        return winner
    return value


def _open_part(root: Directory, name: str) -> Directory:
    return root.sub(name)


def _make_parts(root: Directory, visibility: float) -> list[Directory]:
    """Open the three directories, made if the store is new; then their names are durable."""
    parts: list[Directory] = []
    try:
        parts.append(root.sub(names.EPOCHS, create=True))
        begun = any(names.parse_claim(name) for name in parts[0].names())
        for name in (names.PUBLISHED, names.DATA):
            if begun:
                # A store that has claims had all three: do not begin anew where one was lost.
                await_name(lambda name=name: _open_part(root, name).close(), visibility)  # type: ignore[misc]
            parts.append(root.sub(name, create=True))
    except BaseException as error:
        for directory in parts:
            directory.close()
        if isinstance(error, FileNotFoundError):
            _refuse_missing(root, error)
        raise
    return parts


def _refuse_missing(root: Directory, error: FileNotFoundError) -> None:
    """Raise what a missing part of a store means."""
    file = os.fsdecode(error.filename) if error.filename else root.path
    if os.path.basename(file) == names.STORE_FILE:
        raise Refused(
            "this directory is no store", code="not-a-store", file=root.path, expected=names.STORE_FILE
        ) from None
    raise Refused(
        "a directory of the store is missing: it was removed, or the store was never finished",
        code="missing-directory",
        file=file,
    ) from None
