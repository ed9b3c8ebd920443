"""A disk that remembers: ``python blocklog.py FOLDER LOG BYTES`` serves two files in FOLDER, by FUSE.

``disk``   holds so many bytes; each write to it, and each flush, is appended to LOG. A loop device and a
           file system stand on it, so LOG has what the file system asked of its disk, in order.
``mark``   what is written to it is appended to LOG as well: reports of the program under test, in the
           same order.

It speaks the kernel's protocol itself (linux/fuse.h), so that nothing need be installed; only root may
mount it. It ends when FOLDER is unmounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

ENTRY = struct.Struct("<cQI")
WRITE, FLUSH, MARK = b"W", b"F", b"M"

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS = 1, 2, 3, 4, 14, 15, 16, 17
_RELEASE, _FSYNC, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 18, 20, 25, 26, 27, 28, 29
_ACCESS, _INTERRUPT, _DESTROY, _BATCH_FORGET, _FALLOCATE = 34, 36, 38, 42, 43
_BIG_WRITES, _DIRECT_IO, _KEEP_CACHE = 1 << 5, 1, 2
_MOST = 128 << 10
_TOP, _DISK, _MARK = 1, 2, 3
_NODES = {b"disk": _DISK, b"mark": _MARK}


class Logged(NamedTuple):
    """One thing that happened to the disk; of a mark, `data` is what was reported."""

    kind: bytes
    offset: int
    data: bytes


def read_log(path: pathlib.Path) -> Iterator[Logged]:
    """Yield everything in order."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        kind, offset, length = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        yield Logged(kind, offset, data[at : at + length])
        at += length


class Server:
    """Answers the kernel until the folder is unmounted."""

    def __init__(self, folder: str, log: str, size: int) -> None:
        self.disk = bytearray(size)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"blocklog", folder.encode(), b"fuse.blocklog", 0, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)

    def append(self, kind: bytes, offset: int = 0, data: bytes = b"") -> None:
        """Remember it, before the kernel hears that it is done."""
        os.write(self.log, ENTRY.pack(kind, offset, len(data)) + data)

    def serve(self) -> None:
        """Answer."""
        while True:
            try:
                request = os.read(self.fd, _MOST + 8192)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                if error.errno == errno.ENODEV:
                    return
                raise
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, code = self.answer(operation, node, request[40:]), 0
            except OSError as error:
                answer, code = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(FileNotFoundError):  # the one who asked was interrupted
                os.write(self.fd, struct.pack("<IiQ", 16 + len(answer), code, unique) + answer)

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        """Return the answer to one request; an `OSError` is one as well."""
        if operation == _INIT:
            major, minor, ahead, _ = struct.unpack_from("<IIII", body)
            flags = (major, min(minor, 31), ahead, _BIG_WRITES, 16, 12, _MOST, 1)
            return struct.pack("<IIIIHHII", *flags) + bytes(36)
        if operation == _LOOKUP:
            found = _NODES.get(body.rstrip(b"\0"))
            if found is None:
                raise OSError(errno.ENOENT, "no such file")
            return struct.pack("<QQQQII", found, 0, 3600, 3600, 0, 0) + self.attributes(found)
        if operation in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if operation == _OPEN:
            return struct.pack("<QII", node, _DIRECT_IO if node == _MARK else _KEEP_CACHE, 0)
        if operation == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self.disk[offset : offset + size]) if node == _DISK else b""
        if operation == _WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = body[40 : 40 + size]
            if node == _DISK:
                self.write(offset, data)
            else:
                self.append(MARK, 0, data)
            return struct.pack("<II", len(data), 0)
        if operation == _FALLOCATE and node == _DISK:
            _, offset, length = struct.unpack_from("<QQQ", body)
            for at in range(offset, offset + length, _MOST):  # holes and zeros; the disk is not longer for it
                self.write(at, bytes(min(_MOST, offset + length - at)))
            return b""
        if operation == _FSYNC:
            if node == _DISK:
                self.append(FLUSH)
            return b""
        if operation == _STATFS:
            return struct.pack("<QQQQQIIII", 0, 0, 0, 0, 0, 4096, 255, 4096, 0) + bytes(24)
        if operation == _OPENDIR:
            return bytes(16)
        if operation in (_RELEASE, _RELEASEDIR, _FLUSH, _ACCESS, _DESTROY, _READDIR):
            return b""
        raise OSError(errno.ENOSYS, "not needed")

    def write(self, offset: int, data: bytes) -> None:
        """Write to the disk."""
        self.disk[offset : offset + len(data)] = data
        self.append(WRITE, offset, data)

    def attributes(self, node: int) -> bytes:
        """Return what stat says of a file."""
        size = len(self.disk) if node == _DISK else 0
        mode = 0o40755 if node == _TOP else 0o100600
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, *(0,) * 6, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    Server(sys.argv[1], sys.argv[2], int(sys.argv[3])).serve()
