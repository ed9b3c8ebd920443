"""kvikio as far as `alpha_mpi.devices.gds` uses it: files are real, device memory is the fake's.

Written from kvikio's source (25.02 to 26.10). A file is opened by its path, and only where the store
can while `compat_mode` is OFF. A write is done when somebody waits for it and not before, so memory
that is used again too soon is seen; what GPUDirect Storage wants of offsets and lengths is checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import sys
import types
from collections.abc import Iterator
from typing import Any


class CompatMode(enum.IntEnum):
    OFF = 0
    ON = 1
    AUTO = 2


class Kvikio:
    """One installation. `refuses` is why no file can be opened; `fail` makes writes fail or come short."""

    def __init__(self) -> None:
        self.refuses = ""
        self.failing: dict[int, Any] = {}  # number of the write -> an exception, or bytes that arrive
        self.at_once: set[int] = set()  # those that fail as they begin
        self.writes: list[tuple[int, int]] = []  # offset, bytes
        self.pending = self.most = self.open = 0
        self.mode = CompatMode.AUTO
        kvikio = self

        class Future:
            def __init__(self, fd: int, pointer: int, nbytes: int, offset: int) -> None:
                self.fd, self.pointer, self.nbytes, self.offset = fd, pointer, nbytes, offset
                self.number = len(kvikio.writes)
                self.before = ctypes.string_at(pointer, nbytes)
                kvikio.writes.append((offset, nbytes))
                kvikio.pending += 1
                kvikio.most = max(kvikio.most, kvikio.pending)

            def get(self) -> int:
                kvikio.pending -= 1
                data = ctypes.string_at(self.pointer, self.nbytes)
                assert data == self.before, "the memory was written to before the write had ended"
                arrives = kvikio.failing.get(self.number, self.nbytes)
                if isinstance(arrives, Exception):
                    raise arrives
                return os.pwrite(self.fd, data[:arrives], self.offset)

        class CuFile:
            def __init__(self, file: str, flags: str = "r") -> None:
                assert flags == "r+" and kvikio.mode == CompatMode.OFF
                if kvikio.refuses:
                    raise RuntimeError(kvikio.refuses)
                self.fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
                kvikio.open += 1

            def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0) -> Future:
                interface = buf.__cuda_array_interface__
                assert interface["typestr"] == "|u1" and interface["strides"] is None
                assert interface["shape"] == (size,) and size is not None
                assert file_offset % 4096 == 0 and size % 4096 == 0, "not aligned"
                number = len(kvikio.writes)
                if number in kvikio.at_once:
                    kvikio.writes.append((file_offset, size))
                    raise kvikio.failing[number]
                return Future(self.fd, interface["data"][0], size, file_offset)

            def close(self) -> None:
                assert self.fd >= 0 and kvikio.pending == 0, "closed while it is written to"
                os.close(self.fd)
                self.fd = -1
                kvikio.open -= 1

        @contextlib.contextmanager
        def set_(name: str, value: Any) -> Iterator[None]:
            assert name == "compat_mode"
            before, kvikio.mode = kvikio.mode, value
            yield
            kvikio.mode = before

        self.module = types.ModuleType("kvikio")
        self.defaults = types.ModuleType("kvikio.defaults")
        self.defaults.__dict__.update(set=set_)
        self.module.__dict__.update(CuFile=CuFile, CompatMode=CompatMode, defaults=self.defaults)
        self.module.__spec__ = types.SimpleNamespace(name="kvikio")  # type: ignore[assignment]

    def install(self, monkeypatch: Any) -> None:
        """Let `import kvikio` find this one."""
        monkeypatch.setitem(sys.modules, "kvikio", self.module)
        monkeypatch.setitem(sys.modules, "kvikio.defaults", self.defaults)
