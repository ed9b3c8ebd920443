"""Speed: what a save and a resume reach beside plain files of the same bytes, in one interleaved run.

Plain: every rank writes its bytes into one new file in the same directory, in steps of 1 MiB, and
syncs it; and reads it back into the same memory. Pages are dropped from the cache before each read,
as far as the file system lets an unprivileged process ask for that, for both alike.
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..checkpointer import Checkpointer
from ..model.layout import rows
from ..state import State
from ..store import space
from ..store.durable import Directory
from .check import FAILED, HELD, PARTLY, Check, Clock, Plan, Plot, Table, ended, many, shorten
from .team import Team

STEP = 1 << 20
#: Bytes of one rank below which a bandwidth is that of the syncs.
TELLING = 16 << 20
#: Bytes of a state that is as good as none: what a save costs that has nothing to write.
SMALL = 4096
#: The runs, and what people call them.
RUNS = {"write": "plain write", "save": "save", "read": "plain read", "resume": "resume"}


class Bench:
    """One rank's words, and the two ways to keep them."""

    def __init__(self, team: Team, folder: str, size: int) -> None:
        self.team, self.folder = team, folder
        count = max(1024, size // 4 // 1024 * 1024)
        block = np.random.default_rng(team.rank).standard_normal(min(count, STEP)).astype(np.float32)
        self.words = np.resize(block, count)
        self.file = os.path.join(folder, f"plain-{team.rank:06d}")
        self.nbytes = self.words.nbytes * team.size

    def timed(self, work: Callable[[], object]) -> float:
        """Return the seconds of the slowest rank; raises on all ranks alike."""
        self.team.barrier()

        def clocked() -> float:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin

        return float(max(self.team.allgather(self.team.together(clocked))))

    def write(self) -> None:
        """Write the words as they lie in memory, and sync them."""
        with open(self.file, "wb", buffering=0) as file:
            view = memoryview(self.words.data).cast("B")
            at = 0
            while at < len(view):
                at += file.write(view[at : at + STEP]) or 0
            os.fsync(file.fileno())

    def read(self) -> None:
        """Read them back into the same memory."""
        with open(self.file, "rb", buffering=0) as file:
            view = memoryview(self.words.data).cast("B")
            at = 0
            while at < len(view):
                count = file.readinto(view[at : at + STEP])
                if not count:
                    raise OSError(errno.EIO, "short read", self.file)
                at += count

    def checkpointer(self, store: str, words: np.ndarray[Any, Any]) -> Checkpointer:
        """Open a store for the words, or for a few of them."""
        state = State()
        state.partition("words", words, shape=(words.size * self.team.size,), layout=rows())
        limit = max(30.0, self.team.limit - 10)
        return Checkpointer(store, state, self.team.comm, deadline=limit, time_limit=None)

    def drop(self) -> None:
        """Ask the kernel to forget what was written and read below the folder."""
        for path in pathlib.Path(self.folder).rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)

    def round(self, number: int) -> dict[str, float]:
        """Return the seconds of one round; of two rounds the plain files come first in one."""
        store = os.path.join(self.folder, f"store-{number}")
        self.words[number % self.words.size] += 1
        expected = self.words[:: max(1, self.words.size // 997)].copy()
        found: dict[str, float] = {}

        def save() -> None:
            with self.checkpointer(store, self.words) as ckpt:
                ckpt.resume()
                found["save"] = self.timed(lambda: ckpt.save(1))

        def resume() -> None:
            with self.checkpointer(store, self.words) as ckpt:
                found["resume"] = self.timed(ckpt.resume)

        def plain(name: str, work: Callable[[], None]) -> Callable[[], None]:
            return lambda: found.__setitem__(name, self.timed(work))

        writing = [plain("write", self.write), save]
        reading = [plain("read", self.read), resume]
        for steps in (writing, reading):
            for step in steps[:: 1 if number % 2 == 0 else -1]:
                if steps is reading:
                    self.team.together(self.drop)
                    self.words.fill(0)
                step()
                if steps is reading:
                    self.team.together(lambda: self._same(expected))
        self.team.together(lambda: self._clear(store))
        return found

    def small(self, repeats: int) -> list[float]:
        """Return the seconds of saves of a state of 4 KiB on each rank."""
        words = np.zeros(SMALL // 4, np.float32)
        seconds = []
        with self.checkpointer(os.path.join(self.folder, "small"), words) as ckpt:
            ckpt.resume()
            for update in range(1, repeats + 1):
                words += 1
                seconds.append(self.timed(lambda u=update: ckpt.save(u)))  # type: ignore[misc]
        return seconds

    def _same(self, expected: np.ndarray[Any, Any]) -> None:
        found = self.words[:: max(1, self.words.size // 997)]
        if found.tobytes() != expected.tobytes():
            raise ValueError("other words came back than were written")

    def _clear(self, store: str) -> None:
        os.unlink(self.file)
        if self.team.rank == 0:
            shutil.rmtree(store)


def speed(team: Team, folder: str, plan: Plan) -> Check:
    """Measure. Called by every rank."""
    clock = Clock(plan.share("speed"))
    want = "as many bytes come back as were saved; how fast is measured, and yours to judge"
    bench = Bench(team, folder, plan.size)
    with Directory.open(folder) as directory:
        room = int(team.from_first(space.available(directory)))
    if room < 3 * bench.nbytes:
        said = (
            f"room for {3 * bench.nbytes:,} bytes is needed, {room:,} are free; a smaller --size needs less"
        )
        return ended("speed", FAILED, want, said, seconds=clock.taken)
    small = bench.small(3 if plan.quick else 9)
    bench.round(0)  # not counted: pages never touched before, modules never loaded
    rounds: list[dict[str, float]] = []
    for number in range(1, plan.repeats + 1):
        if team.from_first(clock.over and bool(rounds)):
            break
        rounds.append(bench.round(number))
    return _conclude(bench, plan, clock, rounds, small, want)


def _conclude(
    bench: Bench, plan: Plan, clock: Clock, rounds: list[dict[str, float]], small: list[float], want: str
) -> Check:
    middle = {run: statistics.median(one[run] for one in rounds) for run in RUNS}
    rate = {run: bench.nbytes / seconds for run, seconds in middle.items()}
    ratios = {"save": rate["save"] / rate["write"], "resume": rate["resume"] / rate["read"]}
    lines = []
    for run, told in RUNS.items():
        seconds = [one[run] for one in rounds]
        times = (shorten(min(seconds)), shorten(middle[run]), shorten(max(seconds)))
        ratio = f"{ratios[run]:.2f}" if run in ratios else ""
        lines.append((told, *times, f"{rate[run] / 1e9:.3f}", ratio))
    size = f"{bench.nbytes / (1 << 20):.4g} MiB by {many(bench.team.size, 'rank')}"
    said = (
        f"{size}: save {rate['save'] / 1e9:.2f} GB/s ({ratios['save']:.2f} of plain), resume "
        f"{rate['resume'] / 1e9:.2f} GB/s ({ratios['resume']:.2f} of plain), a save takes "
        f"{shorten(middle['save'])}; of 4 KiB {shorten(statistics.median(small))}"
    )
    notes = ["each node was asked to drop its cache before a read; a cache of the server, or memory, stays"]
    if bench.nbytes < TELLING * bench.team.size:
        notes.append("so few bytes say nothing of a bandwidth: the time of a save is that of its syncs")
    dots = tuple((told, tuple(bench.nbytes / one[run] / 1e9 for one in rounds)) for run, told in RUNS.items())
    return ended(
        "speed",
        HELD if len(rounds) == plan.repeats else PARTLY,
        want,
        said
        if len(rounds) == plan.repeats
        else f"{said}; {len(rounds)} of {plan.repeats} rounds in the time",
        notes=notes,
        tables=(
            Table(
                f"{size}, {len(rounds)} rounds",
                ("run", "shortest", "median", "longest", "GB/s", "of plain"),
                tuple(lines),
            ),
            Table(
                "a save of 4 KiB on each rank",
                ("shortest", "median", "longest"),
                ((shorten(min(small)), shorten(statistics.median(small)), shorten(max(small))),),
            ),
        ),
        plots=(Plot("dots", "each round, from the slowest rank's time", "GB/s", dots),),
        figures={
            "bytes": bench.nbytes,
            **{f"{run}_bytes_per_second": value for run, value in rate.items()},
            "save_ratio": ratios["save"],
            "resume_ratio": ratios["resume"],
            "save_seconds": middle["save"],
            "small_save_seconds": statistics.median(small),
        },
        seconds=clock.taken,
    )
