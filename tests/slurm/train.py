"""What the tests start on each rank: a tiny training whose last state the oracle knows.

Adam with parameters and moments in shares: the same bits on any number of owners. FOLDER gets
``progress`` (finished updates), ``pids-JOB-RESTART/RANK``, ``inside`` (while a save is slow), ``events``
(a line for each thing that happened), and at the end ``final.npz``.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import pathlib
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

#: A start that takes longer, in seconds, has the stacks of its ranks in the job's output.
START = 40.0
faulthandler.dump_traceback_later(START)

from mpi4py import MPI  # noqa: E402

import alpha_mpi as am  # noqa: E402
from alpha_mpi.learning import DataParallel  # noqa: E402

#: Longest silence of a rank, in seconds.
DEADLINE = 40.0
#: After this update a rank's memory grows, with --hog=training.
HOG = 25


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where the store and the marks of this run lie")
    parser.add_argument("--store", default="ckpt", help="name of the store in it")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--fan-out", type=int, default=0, help="of a tree; 0 is a star")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each update at restart 0")
    parser.add_argument(
        "--slow-save", type=int, help="the first save of this update takes --slow-for, or until FOLDER/go"
    )
    parser.add_argument("--slow-for", type=float, default=60.0)
    parser.add_argument(
        "--hog", choices=("training", "save"), help="at restart 0 a rank's memory grows there by 512 MiB"
    )
    parser.add_argument("--deadline", type=float, default=DEADLINE)
    parser.add_argument("--deaf", action="store_true", help="no signal stops it")
    parser.add_argument("--takeover", action="store_true")
    parser.add_argument("--reached", action="store_true", help="note how far each start came")
    parser.add_argument("--patient", action="store_true", help="a disk that says no is asked again later")
    parser.add_argument("--time-limit", default="slurm")
    parser.add_argument(
        "--by-nodes", action="store_true", help="order the ranks by their nodes, and the tree too"
    )
    return parser.parse_args()


def start() -> tuple[str, str]:
    """Return the number of this job, and how often it was requeued."""
    job = os.environ.get("AM_TEST_JOB") or os.environ.get("SLURM_JOB_ID", "0")
    return job, os.environ.get("SLURM_RESTART_COUNT", "0")


def replace(path: pathlib.Path, text: str) -> None:
    """Write a small file that is read meanwhile."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


class Events:
    """What happened, in order, from all jobs of this run: time, kind, and words. Rank 0 writes."""

    def __init__(self, path: pathlib.Path, rank: int) -> None:
        self.path, self.rank = path, rank

    def note(self, *words: object) -> None:
        """Append a line, in one write."""
        if self.rank == 0:
            line = " ".join(map(str, (f"{time.monotonic():.3f}", *words))) + "\n"
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode())


class Slow:
    """A document whose first reading for one update takes long."""

    def __init__(self, options: argparse.Namespace, learner: DataParallel, rank: int) -> None:
        self.options, self.learner, self.rank = options, learner, rank

    def read(self) -> dict[str, int]:
        mark = self.options.folder / "inside"
        slow = self.learner.update == self.options.slow_save and not mark.exists()
        if self.rank == 0 and slow:
            replace(mark, str(os.getpid()))
            if self.options.hog == "save":
                grow()
            end = time.monotonic() + self.options.slow_for
            while time.monotonic() < end and not (self.options.folder / "go").exists():
                time.sleep(0.01)
        return {"update": self.learner.update}

    def write(self, saved: dict[str, int]) -> None:
        pass


def grow() -> None:
    """Take more memory than the job may have, and wait to be killed for it."""
    more = b"\1" * (1 << 29)
    time.sleep(60)
    sys.exit(f"nobody minded {len(more)} bytes")


def main() -> int:
    options = arguments()
    comm = am.by_topology(MPI.COMM_WORLD) if options.by_nodes else MPI.COMM_WORLD
    folder = options.folder
    job, restart = start()
    pids = folder / f"pids-{job}-{restart}"
    pids.mkdir(parents=True, exist_ok=True)
    replace(pids / str(comm.rank), str(os.getpid()))
    signals = () if options.deaf else ("SIGUSR1", "SIGTERM")
    deadline = options.deadline
    with DataParallel("adam", "parameter-partitioned", comm, deadline=deadline) as learner:
        state, slow = learner.state(), Slow(options, learner, comm.rank)
        state.document("slow", slow.read, slow.write)
        who = {"learner": learner.identity, "contract": learner.contract}
        how = {"every": options.every, "keep": options.keep, "deadline": deadline, "signals": signals}
        hierarchy = am.Tree(options.fan_out) if options.fan_out else am.Star()
        if options.by_nodes:
            hierarchy = am.tree_by_nodes(comm)
        limit = None if options.time_limit == "none" else options.time_limit
        with am.Checkpointer(
            folder / options.store, state, comm, hierarchy=hierarchy, time_limit=limit, **who, **how
        ) as ckpt:
            moment = ckpt.resume(takeover=options.takeover)
            learner.stand_at(moment)
            faulthandler.cancel_dump_traceback_later()
            events = Events(folder / "events", comm.rank)
            events.note("start", job, restart, moment.epoch, comm.size, moment.update)
            if comm.rank == 0:
                print(
                    f"job {job} restart {restart}: {comm.size} owners, epoch {moment.epoch}, after", end=" "
                )
                print(f"update {moment.update}", flush=True)
            while learner.update < options.updates:
                learner.step()
                if options.reached or restart == "0":
                    time.sleep(options.pause)
                last = learner.update == options.updates
                if comm.rank == 0:
                    replace(folder / "progress", f"{learner.update} {job} {restart}")
                    if options.reached:
                        replace(folder / f"reached-{job}-{restart}", str(learner.update))
                hungry = options.hog == "training" and restart == "0" and learner.update == HOG
                if hungry and comm.rank == comm.size - 1:
                    grow()
                if ckpt.due(learner.update) or last:
                    events.note("saving", learner.update)
                    try:
                        generation = ckpt.save(learner.update, learner.cursor)
                    except am.CommitFailed as error:
                        if not (options.patient and error.retryable):
                            raise
                        events.note("refused", learner.update, error.code)
                    else:
                        events.note("saved", learner.update, generation.name)
                        if comm.rank == 0:
                            print(f"saved {generation.name} update {learner.update}", flush=True)
                if not last and ckpt.stop_requested():
                    if comm.rank == 0:
                        print(f"stopped after update {learner.update}: {ckpt.stop_reason}", flush=True)
                    return ckpt.exit_code
        write_final(folder / "final.npz", learner, comm)
    return am.Exit.FINISHED


def write_final(path: pathlib.Path, learner: DataParallel, comm: MPI.Intracomm) -> None:
    """Rank 0 writes the whole state."""
    mine = [learner.parameters, *learner.moments]
    everyone = comm.gather(mine)
    if everyone is not None:
        words = [np.concatenate(parts) for parts in zip(*everyone, strict=True)]
        names = ["parameters", *learner.rule.moments]
        found = dict(zip(names, words, strict=True))
        found |= {"powers": learner.powers, "loss": np.float64(learner.loss)}
        np.savez(path.with_name("new.npz"), moment=[learner.update, learner.cursor], **found)
        path.with_name("new.npz").replace(path)


def told() -> int:
    """Do the work of one rank; a rank that was superseded leaves a mark, where nobody reads its output."""
    try:
        return main()
    except am.Superseded as error:
        replace(arguments().folder / f"superseded-{'-'.join(start())}", str(error))
        raise


if __name__ == "__main__":
    am.run(told)
