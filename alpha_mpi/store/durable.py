"""Durable files: the only way in which anything of this library becomes durable or visible.

A *directory* is an open descriptor; everything inside is reached relative to it. A *target* is a
file that is being written under a temporary name; its *commit* makes it durable and gives it its
final name, which nobody else may have: sync data, close, rename with no-replace, sync directory
(four stages, one C function; native/durable.c).

Every failure of the disk is an `OSError` with `filename` (the whole path) and `stage`: one of
``create``, ``write``, ``preallocate``, ``sync-data``, ``close``, ``rename``, ``sync-directory``,
``make-directory``. A name that is taken is `FileExistsError` at ``rename``. After a failure at
``sync-directory`` of a commit the file is visible, and perhaps not durable.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, cast

from ..errors import Refused
from . import _durable, names

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

#: Longest wait for a directory that "exists" already but cannot be opened yet, in seconds.
APPEAR = 5.0
#: Files of this size on are reserved before they are written, so that a full disk is found early.
RESERVE = 64 << 20


class Directory:
    """An open directory. Closed by `close`, or at the end of its ``with`` block.

    `by_link` says that the file system has no (or a false) rename with no-replace, so that commits
    begin with `link`; sub-directories opened from here inherit it. `probe` finds it out; a plain
    "not supported" is also found by each commit itself.
    """

    __slots__ = ("by_link", "fd", "path")

    def __init__(self, path: str, fd: int, by_link: bool = False) -> None:
        self.path = path
        self.fd = fd
        self.by_link = by_link

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Directory:
        """Open the directory that the user named; only here symbolic links are followed."""
        text = os.path.abspath(os.fspath(path))
        return cls(text, os.open(text, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sub(self, name: str, create: bool = False) -> Directory:
        """Open a directory inside; with `create`, make it and make its name durable.

        Called with `create` by every role that is about to write there, whoever made it: a role
        that only found it must not commit files below a name that a power cut can lose. Raises
        `Refused` ``not-a-directory`` if the name is a file or a symbolic link.
        """
        path = self._path(name)
        if not create:
            return self._open(name, path)
        # A distributed file system may answer "exists" before it lets the name be opened.
        limit = time.monotonic() + APPEAR
        pause = 0.002
        while True:
            _durable.make_directory(self.fd, name, path)
            try:
                found = self._open(name, path)
                break
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE) or time.monotonic() >= limit:
                    error.stage = "make-directory"  # type: ignore[attr-defined]
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        try:
            self.sync()
        except BaseException:
            found.close()
            raise
        return found

    def _open(self, name: str, path: str) -> Directory:
        try:
            return Directory(path, _durable.open_directory(self.fd, name, path), self.by_link)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
        raise Refused(
            "a directory is needed here",
            code="not-a-directory",
            file=path,
            expected="directory",
            found=self._kind(name),
        )

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _kind(self, name: str) -> str:
        try:
            mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except OSError as error:
            return os.strerror(error.errno or 0)
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link"}
        kinds |= {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
        return kinds.get(stat.S_IFMT(mode), "device")

    def names(self) -> list[str]:
        """Return all names inside, sorted. Nothing may be decided from a name that is missing."""
        # An own descriptor: a second reader of the same one would move its position.
        fd = _durable.open_directory(self.fd, ".", self.path)
        try:
            return sorted(os.listdir(fd))
        finally:
            _close(fd)

    def exists(self, name: str) -> bool:
        """Return whether the name is there, as anything."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            error.filename = self._path(name)
            raise
        return True

    def unlink(self, name: str, missing_ok: bool = True) -> None:
        """Remove a file's name; durable only after `sync`."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except OSError as error:
            if missing_ok and error.errno == errno.ENOENT:
                return
            error.filename = self._path(name)
            raise

    def rmdir(self, name: str, missing_ok: bool = True) -> None:
        """Remove an empty directory; durable only after `sync`."""
        try:
            os.rmdir(name, dir_fd=self.fd)
        except OSError as error:
            if missing_ok and error.errno == errno.ENOENT:
                return
            error.filename = self._path(name)
            raise

    def sync(self) -> None:
        """Make the names inside durable."""
        _durable.sync_directory(self.fd, self.path)

    def open_file(self, name: str) -> ReadFile:
        """Open a regular file for reading.

        Raises `FileNotFoundError` if missing, `Refused` ``not-a-file`` for anything but a regular
        file (a FIFO is never waited for, a symbolic link never followed).
        """
        path = self._path(name)
        fd, size = _durable.open_file(self.fd, name, path)
        if fd < 0:
            raise Refused(
                "a regular file is needed here",
                code="not-a-file",
                file=path,
                expected="file",
                found=self._kind(name),
            )
        return ReadFile(path, fd, size)

    def read(self, name: str, limit: int) -> bytes:
        """Return a whole file of at most `limit` bytes. Raises as `open_file`, or ``too-large``."""
        with self.open_file(name) as file:
            if file.size > limit:
                raise Refused(
                    "the file is larger than any valid one",
                    code="too-large",
                    file=file.path,
                    expected=f"at most {limit} bytes",
                    found=f"{file.size} bytes",
                )
            data = bytearray(file.size)
            file.pread_into(data, 0)
            return bytes(data)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            _close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Directory({self.path!r})"


class ReadFile:
    """An open regular file; `size` is its size when it was opened."""

    __slots__ = ("fd", "path", "size")

    def __init__(self, path: str, fd: int, size: int) -> None:
        self.path = path
        self.fd = fd
        self.size = size

    def pread_into(self, buffer: Buffer, offset: int) -> None:
        """Fill the whole writable, contiguous buffer from `offset` on.

        Raises `Refused` ``truncated`` if the file ends before.
        """
        got = _durable.read(self.fd, buffer, offset, self.path)
        wanted = memoryview(buffer).nbytes
        if got != wanted:
            raise Refused(
                "the file ends early",
                code="truncated",
                file=self.path,
                expected=f"{offset + wanted} bytes",
                found=f"{offset + got} bytes",
            )

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            _close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Target:
    """A file under a temporary name, until `commit` gives it its own.

    With `size` (bytes) the space of a large file is asked for at once, and a commit with another
    number of bytes written is an error. At the end of a ``with`` block a target that was not
    committed is abandoned.
    """

    __slots__ = ("_directory", "_fd", "_size", "_temporary", "manner", "name", "path", "written")

    def __init__(self, directory: Directory, name: str, size: int | None = None) -> None:
        self._fd = -1
        self._directory = directory
        self._size = size
        self._temporary = names.temporary(name)
        self.name = name
        self.path = os.path.join(directory.path, name)
        #: After the commit: ``rename`` or ``link``, how the name was taken.
        self.manner = ""
        #: Bytes that the kernel took so far.
        self.written = 0
        self._fd = _durable.create(directory.fd, self._temporary, self.path)
        if size is not None and size >= RESERVE:
            try:
                _durable.preallocate(self._fd, size, self.path)
            except BaseException:
                self.abandon()
                raise

    def write(self, buffers: Buffer | Iterable[Buffer]) -> int:
        """Append contiguous buffers (or one); return their bytes. All are written, or it raises."""
        return self.pwrite(buffers, self.written)

    def pwrite(self, buffers: Buffer | Iterable[Buffer], offset: int) -> int:
        """Write one contiguous buffer, or several one after the other, from `offset` on.

        `written` counts every byte, so no byte is to be written twice where `size` was given.
        """
        if not isinstance(buffers, list | tuple):
            try:
                buffers = (memoryview(cast("Buffer", buffers)),)
            except TypeError:
                pass  # an iterable of buffers that is no buffer itself
        count = _durable.write(self._fd, cast("Iterable[Buffer]", buffers), offset, self.path)
        self.written += count
        return count

    def fileno(self) -> int:
        """Return the descriptor, for another way to the same file that is closed before the commit."""
        return self._fd

    def wrote(self, nbytes: int) -> None:
        """Count bytes that were written another way. The commit makes them durable with the others."""
        self.written += nbytes

    def commit(self, sync_directory: bool = True) -> None:
        """Make the file durable and visible under its final name: the four stages.

        With ``sync_directory=False`` the caller calls `Directory.sync` once, after the last commit
        in that directory and before anybody is told. The target is finished in any case. Raises
        `FileExistsError` if another file has the name (never if it is this very file).
        """
        if self._size is not None and self.written != self._size:
            self.abandon()
            raise ValueError(f"{self.path}: {self.written} bytes written, {self._size} declared")
        fd, self._fd = self._fd, -1
        directory = self._directory
        size = -1 if self._size is None else self._size
        try:
            by_link = _durable.commit(
                *(directory.fd, fd, self._temporary, self.name),
                *(size, directory.by_link, sync_directory, self.path),
            )
        except BaseException:
            self._remove()
            raise
        self.manner = "link" if by_link else "rename"

    def abandon(self) -> None:
        """Close and remove the temporary file; does nothing once committed or abandoned."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            _close(fd)
            self._remove()

    def _remove(self) -> None:
        # Best effort: a temporary file that stays is a leftover, and the first failure is the news.
        try:
            self._directory.unlink(self._temporary)
        except OSError:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def __del__(self) -> None:
        if self._fd >= 0:
            _close(self._fd)


def _close(fd: int) -> None:
    """Close a descriptor through which nothing was written that anybody wants; it is gone in any case."""
    # An error here (a network file system's, late) must not fail a save that needs nothing of it.
    try:
        os.close(fd)
    except OSError:
        pass


def commit_bytes(directory: Directory, name: str, data: Buffer, sync_directory: bool = True) -> None:
    """Write one buffer as the file `name` and commit it; raises as `Target.commit`."""
    with Target(directory, name) as target:
        target.write((data,))
        target.commit(sync_directory)


def adopt(directory: Directory, temporary: str, name: str) -> None:
    """Commit a file that another library wrote under the name `temporary`; raises as `Target.commit`."""
    path = os.path.join(directory.path, name)
    fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory.fd)
    _durable.commit(directory.fd, fd, temporary, name, -1, directory.by_link, True, path)
