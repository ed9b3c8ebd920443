"""The floor: the least that a durable and verified save or restore can cost (see floor.c).

Compiled on first use where a C compiler finds xxhash.h; otherwise the same steps in Python.
"""

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import xxhash

STEP = 1 << 20
SOURCE = pathlib.Path(__file__).with_name("floor.c")


def build():
    """Compile floor.c; return the path of the library, or None and why not.

    Called by one process before the others start.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None, "no C compiler"
    out = pathlib.Path(__file__).with_name("out")
    out.mkdir(exist_ok=True)
    library = out / f"floor-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if library.exists():
        return library, ""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        made = pathlib.Path(folder) / "floor.so"
        words = [*compiler.split(), "-O3", "-march=native", "-shared", "-fPIC", str(SOURCE), "-o", str(made)]
        told = subprocess.run(words, capture_output=True, text=True)
        if told.returncode:
            missing = "xxhash.h" in told.stderr
            return None, "no xxhash.h (package libxxhash-dev)" if missing else told.stderr.strip()
        made.rename(library)
    return library, ""


class CFloor:
    """The floor in C, on one owner's arrays (contiguous; kept alive by the caller)."""

    name = "floor (C)"

    def __init__(self, library, owner, arrays):
        self.library, self.owner = ctypes.CDLL(str(library), use_errno=True), owner
        self.count = len(arrays)
        self.data = (ctypes.c_void_p * self.count)(*(a.ctypes.data for a in arrays))
        self.size = (ctypes.c_size_t * self.count)(*(a.nbytes for a in arrays))

    def save(self, directory):
        self._call(self.library.floor_save, directory)

    def restore(self, directory):
        self._call(self.library.floor_restore, directory)

    def _call(self, function, directory):
        failed = function(os.fsencode(directory), self.owner, self.count, self.data, self.size)
        if failed:
            raise OSError(ctypes.get_errno(), f"floor failed at step {failed}", str(directory))


class PythonFloor:
    """The same steps in Python."""

    name = "floor (Python)"

    def __init__(self, owner, arrays):
        self.owner, self.views = owner, [memoryview(a).cast("B") for a in arrays]

    def _names(self, directory):
        return [os.path.join(directory, f"{self.owner}.{kind}") for kind in ("data", "sums")]

    def _batches(self):
        """Yield lists of small arrays, 1 MiB together and at most 1024, and large ones alone."""
        small, total = [], 0
        for view in self.views:
            if view.nbytes >= STEP or total + view.nbytes > STEP or len(small) == 1024:
                if small:
                    yield small
                small, total = [], 0
            if view.nbytes >= STEP:
                yield [view]
            else:
                small.append(view)
                total += view.nbytes
        if small:
            yield small

    def save(self, directory):
        names = self._names(directory)
        hidden = [os.path.join(directory, f".{os.path.basename(n)}") for n in names]
        data, sums = (os.open(n, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644) for n in hidden)
        digests, at = [], 0
        for batch in self._batches():
            if batch[0].nbytes < STEP:
                digests += [xxhash.xxh3_128_digest(view) for view in batch]
                if os.pwritev(data, batch, at) != sum(view.nbytes for view in batch):
                    raise OSError("short write")
                at += sum(view.nbytes for view in batch)
                continue
            state = xxhash.xxh3_128()
            for start in range(0, batch[0].nbytes, STEP):
                step = batch[0][start : start + STEP]
                state.update(step)
                if os.pwrite(data, step, at) != step.nbytes:
                    raise OSError("short write")
                at += step.nbytes
            digests.append(state.digest())
        os.write(sums, b"".join(digests))
        for fd, old, new in zip((data, sums), hidden, names, strict=True):
            os.fdatasync(fd)
            os.close(fd)
            os.rename(old, new)
        here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(here)
        os.close(here)

    def restore(self, directory):
        name, sums = self._names(directory)
        digests = pathlib.Path(sums).read_bytes()
        data = os.open(name, os.O_RDONLY)
        found, at = [], 0
        for batch in self._batches():
            if batch[0].nbytes < STEP:
                if os.preadv(data, batch, at) != sum(view.nbytes for view in batch):
                    raise OSError("short read")
                at += sum(view.nbytes for view in batch)
                found += [xxhash.xxh3_128_digest(view) for view in batch]
                continue
            state = xxhash.xxh3_128()
            for start in range(0, batch[0].nbytes, STEP):
                step = batch[0][start : start + STEP]
                if os.preadv(data, [step], at) != step.nbytes:
                    raise OSError("short read")
                state.update(step)
                at += step.nbytes
            found.append(state.digest())
        os.close(data)
        if b"".join(found) != digests:
            raise OSError("digests differ")
