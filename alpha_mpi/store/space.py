"""Space: how many bytes may still be written, asked before a save begins.

The answer is an upper bound: others may write meanwhile. A full disk found later is the same
`CommitFailed` ``no-space``, only later.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

from ..errors import CommitFailed
from .durable import Directory

if TYPE_CHECKING:
    from .store import Store

#: quotactl_fd(2), the same number on all architectures that have it.
_QUOTACTL_FD = 443
_Q_GETQUOTA = 0x800007
_USER, _GROUP = 0, 1
#: struct if_dqblk: hard and soft limit (KiB), used (bytes), and what concerns files.
_DQBLK = struct.Struct("=8QI4x")
_KIB = 1024
#: What a root takes at most, where it lies on another file system than the data.
_ROOT = 1 << 20


def available(directory: Directory) -> int:
    """Return the bytes an unprivileged user may still write: free space, or what a quota leaves."""
    room = os.fstatvfs(directory.fd)
    left = [room.f_bavail * room.f_frsize]
    for kind, who in ((_USER, os.geteuid()), (_GROUP, os.getegid())):
        rest = quota(directory.fd, kind, who)
        if rest is not None:
            left.append(rest)
    return min(left)


def quota(fd: int, kind: int, who: int) -> int | None:
    """Return the bytes that the hard limit of a user's or group's quota leaves; None without one."""
    data = ctypes.create_string_buffer(_DQBLK.size)
    call = ctypes.CDLL(None, use_errno=True).syscall
    command = ctypes.c_uint((_Q_GETQUOTA << 8) | kind)
    # Without quota, without permission, or on an old kernel the call fails: then nothing is known.
    if call(ctypes.c_long(_QUOTACTL_FD), ctypes.c_uint(fd), command, ctypes.c_int(who), data) != 0:
        return None
    hard, _, used = _DQBLK.unpack(data.raw)[:3]
    return max(0, hard * _KIB - used) if hard else None


def demand_of(store: Store, nbytes: int) -> None:
    """Raise as `demand` where a generation of `nbytes` has no room in a store, on any file system of it.

    Called by the root owner before anything of a save is written.
    """
    demand(store.data, nbytes)
    if os.fstat(store.data.fd).st_dev != os.fstat(store.published.fd).st_dev:
        demand(store.published, _ROOT)


def demand(directory: Directory, nbytes: int) -> None:
    """Raise `CommitFailed` ``no-space``, with both numbers, unless `nbytes` may still be written."""
    left = available(directory)
    if nbytes > left:
        raise CommitFailed(
            "there is not enough space for this generation; nothing was written",
            code="no-space",
            file=directory.path,
            expected=f"{nbytes} bytes",
            found=f"{left} bytes left",
        )
