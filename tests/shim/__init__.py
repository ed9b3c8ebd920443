"""The preloaded shim: traces a program's file calls, and kills, fails, delays or shortens them.

`env(root, ...)` gives the variables to add to a command's environment. An injection that never
happened proves nothing: tests read the trace and look at `Call.note`.

Calls are known by one name for all their variants: ``openat``, ``mkdirat``, ``renameat2``,
``renameat``, ``linkat``, ``unlinkat``, ``write``, ``pwrite``, ``writev``, ``pwritev``,
``fallocate``, ``ftruncate``, ``fdatasync``, ``fsync``, ``close``. Only paths below `root` count.

A program that runs under the shim may change what is injected (`arm`, `disarm`) and write into the
trace (`note`), while none of its threads is in a call below `root`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess

_SOURCE = pathlib.Path(__file__).with_name("shim.c")
_BUILD = pathlib.Path(__file__).parents[2] / "build" / "shim"


@functools.cache
def build() -> str:
    """Compile the shim, once per content, and return its path."""
    name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = _BUILD / f"shim-{name}.so"
    if not library.exists():
        _BUILD.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
        # Built under a name of its own, since several test processes may do this at once.
        made = library.with_suffix(f".{os.getpid()}")
        command = [*compiler.split(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-nonnull-compare"]
        subprocess.run([*command, "-o", str(made), str(_SOURCE), "-ldl", "-lpthread"], check=True)
        os.replace(made, library)
    return str(library)


def env(
    root: str | os.PathLike[str],
    *,
    trace: str | os.PathLike[str] | None = None,
    bytes: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    arm: str | os.PathLike[str] | None = None,
    kill: int | None = None,
    kill_ops: str | None = None,
    fail: str | None = None,
    delay: str | None = None,
    short: int | None = None,
    room: int | None = None,
    mkdir_lies: float | None = None,
) -> dict[str, str]:
    """Return the variables that put the shim between a program and everything below `root`.

    Parameters
    ----------
    trace : path, optional
        One line per call, from all processes; read it with `read_trace`.
    bytes : path, optional
        With `trace`: what is written is kept, in a file ``PATH.PID`` of each process; get it with
        `written`.
    rank : int, optional
        Inject on this MPI rank alone; all are traced.
    arm : path, optional
        Nothing is injected or counted before this file exists.
    kill : int, optional
        SIGKILL before the N-th call (from 1), of those in `kill_ops` (comma-separated; all).
    fail : str, optional
        ``op:N:ERROR[:part of the path]``, several separated by ``;``. N = 0: every call. ``EIO``
        fails instead of the call, ``+EIO`` after it was done, ``OK`` pretends that it was done.
    delay : str, optional
        ``op:N:seconds[:part of the path]``, likewise.
    short : int, optional
        Each write moves between 1 and this many bytes; 0: none ever.
    room : int, optional
        Bytes that this process may still write; then ``ENOSPC``.
    mkdir_lies : float, optional
        Making a directory makes it and answers "exists"; it cannot be seen for so many seconds.
    """
    given = {
        "trace": trace,
        "bytes": bytes,
        "rank": rank,
        "arm": arm,
        "kill": kill,
        "kill_ops": kill_ops,
        "fail": fail,
        "delay": delay,
        "short": short,
        "room": room,
        "mkdir_lies": mkdir_lies,
    }
    found = {
        f"AM_SHIM_{name.upper()}": os.fspath(v) if isinstance(v, os.PathLike) else str(v)
        for name, v in given.items()
        if v is not None
    }
    return {"LD_PRELOAD": build(), "AM_SHIM_ROOT": os.path.realpath(root), **found}


def arm(**options: object) -> None:
    """Inject this from now on in the own process, and nothing else: options of `env`, or `kill_pid`.

    `kill_pid`: whom ``kill`` ends, another process.
    """
    disarm()
    for name, value in options.items():
        _loaded().am_shim_set(name.upper().encode(), str(value).encode())


def disarm() -> None:
    """Inject nothing any more in the own process."""
    _loaded().am_shim_clear()


def note(text: str) -> None:
    """Write a line into the trace: a call named ``note`` with `text` as its path."""
    _loaded().am_shim_note(text.encode())


@functools.cache
def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.am_shim_set.restype = library.am_shim_clear.restype = library.am_shim_note.restype = None
    return library


@dataclasses.dataclass(frozen=True)
class Call:
    """One traced call; `note` is ``-``, or what the shim did to it.

    `extra` is the flags of an open, rename, link or unlink, the bytes asked for by a write or a
    reservation, the mode of a mkdir. `caller` is the program or library that made the call. Where bytes
    are kept, `other` of a write says where it wrote and where its bytes lie.
    """

    rank: int
    pid: int
    thread: int
    begin: float
    end: float
    op: str
    path: str
    other: str
    result: int
    errno: int
    extra: int
    note: str
    caller: str


def read_trace(path: str | os.PathLike[str]) -> list[Call]:
    """Return the traced calls in the order in which they ended."""
    calls = []
    for line in pathlib.Path(path).read_text(errors="surrogateescape").splitlines():
        rank, pid, thread, begin, end, op, name, other, result, error, extra, note, caller = line.split("\t")
        calls.append(
            Call(
                *(int(rank), int(pid), int(thread), float(begin), float(end)),
                *(op, name, other, int(result), int(error), int(extra), note, caller),
            )
        )
    return calls


def written(call: Call, path: str | os.PathLike[str]) -> tuple[int, bytes]:
    """Return (offset in the file, bytes) of a traced write; `path` is what `env` got as `bytes`."""
    offset, position = (int(text) for text in call.other.split())
    with open(f"{os.fspath(path)}.{call.pid}", "rb") as file:
        file.seek(position)
        return offset, file.read(call.result)
