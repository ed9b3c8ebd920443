"""Measure save and restore against the floor, in one interleaved run.

    python benchmarks/save_restore.py [--quick] [--repeats 5] [--root DIR]

The floor (floor.c) writes the same bytes per rank, digests them, syncs and renames, and on restore reads
and checks them; it knows no manifest and no agreement. "star" and "tree" are alpha_mpi's (on a star the words
of all ranks travel to rank 0 first). Per repeat and workload one after the other, backwards in every second
repeat, each on a fresh directory; first all saves, then all restores.
CPU seconds are user + system of all ranks around the calls: on a shared machine the steady number.
Wall seconds are those of the slowest rank. Waiting at the benchmark's own barriers sleeps and is not counted.
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
#: name -> (arrays per rank, float32 words per array and rank), full and quick
WORKLOADS = {"W1": ((4, 64 * MIB // 4), (4, 4 * MIB // 4)), "W2": ((2000, 4096), (200, 4096))}
ABOUT = {"W1": "few large arrays", "W2": "many arrays of 16 KiB"}


def measured(comm, call):
    """Return (wall seconds of the slowest rank, CPU seconds of all ranks) of `call`."""
    barrier(comm)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    barrier(comm)  # who is done sleeps here, and steals no core from who is not
    walls, cpus = zip(*comm.allgather((wall, cpu)), strict=True)
    return max(walls), sum(cpus)


def barrier(comm):
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


class Bench:
    """One rank: its arrays of one workload, and the two tools on them."""

    def __init__(self, comm, root, workload, count, words, library, hierarchies):
        import floor

        self.hierarchies = hierarchies
        self.comm, self.root, self.workload = comm, pathlib.Path(root), workload
        block = np.random.default_rng(comm.rank).standard_normal(min(words, MIB)).astype(np.float32)
        self.arrays = [np.resize(block, words) + np.float32(i) for i in range(count)]
        if library:
            self.floor = floor.CFloor(library, comm.rank, self.arrays)
        else:
            self.floor = floor.PythonFloor(comm.rank, self.arrays)

    def state(self):
        import alpha_mpi as am

        state, rule = am.State(), am.rows()
        for i, array in enumerate(self.arrays):
            state.partition(f"array-{i:04d}", array, shape=(array.size * self.comm.size,), layout=rule)
        return state

    def checkpointer(self, tool, store):
        import alpha_mpi as am

        hierarchy = am.Star() if tool == "star" else am.Tree()
        return am.Checkpointer(str(store), self.state(), comm=self.comm, hierarchy=hierarchy)

    def repeat(self, number):
        """Return {(tool, what): (wall, cpu)} of one repeat."""
        for array in self.arrays:
            array[number % array.size] += 1  # a state that never changes is not worth saving twice
        checks = [float(array[:: max(1, array.size // 64)].sum(dtype=np.float64)) for array in self.arrays]
        order = [self.floor.name, *self.hierarchies][:: 1 if number % 2 == 0 else -1]
        homes = {tool: self.root / f"{self.workload}{number}-{tool.split()[0]}" for tool in order}
        times = {}
        for tool in order:
            times[tool, "save"] = self.save(tool, homes[tool])
        for tool in order:
            for array in self.arrays:
                array.fill(0)
            times[tool, "restore"] = self.restore(tool, homes[tool])
            found = [float(array[:: max(1, array.size // 64)].sum(dtype=np.float64)) for array in self.arrays]
            if found != checks:
                raise SystemExit(f"{tool} restored other words than were saved")
        barrier(self.comm)
        if self.comm.rank == 0:
            for home in homes.values():
                shutil.rmtree(home)
        barrier(self.comm)
        return times

    def save(self, tool, home):
        if tool == self.floor.name:
            if self.comm.rank == 0:
                home.mkdir()
            return measured(self.comm, lambda: self.floor.save(home))  # its barrier follows the mkdir
        with self.checkpointer(tool, home) as ckpt:
            ckpt.resume()
            return measured(self.comm, lambda: ckpt.save(update=1, cursor=1))

    def restore(self, tool, home):
        if tool == self.floor.name:
            return measured(self.comm, lambda: self.floor.restore(home))
        with self.checkpointer(tool, home) as ckpt:
            return measured(self.comm, ckpt.resume)


def worker(args):
    """Run by every rank under the launcher."""
    from mpi4py import MPI

    comm, out, benches = MPI.COMM_WORLD.Dup(), [], {}
    for name in args.workloads:
        count, words = WORKLOADS[name][args.quick]
        benches[name] = Bench(comm, args.root, name, count, words, args.library, args.hierarchies)
    for number in range(
        -1, args.repeats
    ):  # the first, -1, is not counted: imports, pages never touched before
        for name, bench in benches.items():
            nbytes = comm.size * sum(array.nbytes for array in bench.arrays)
            for (tool, what), (wall, cpu) in bench.repeat(number).items():
                row = {
                    "workload": name,
                    "tool": tool,
                    "what": what,
                    "bytes": nbytes,
                    "wall": wall,
                    "cpu": cpu,
                }
                out += [row] if number >= 0 else []
    if comm.rank == 0:
        pathlib.Path(args.results).write_text(json.dumps(out))


def table(rows, ranks):
    """Return the lines of the report: min, median and max, and the ratio of the medians to the floor's."""
    lines = []
    for name in dict.fromkeys(r["workload"] for r in rows):
        mine = [r for r in rows if r["workload"] == name]
        lines.append(f"{name}: {ranks} ranks, {mine[0]['bytes'] / MIB:.0f} MiB in all, {ABOUT[name]}")
        heads = ("CPU s min/median/max", "x floor", "wall s min/median/max", "x floor")
        lines.append(f"  {'':<25}{heads[0]:>24}{heads[1]:>9}{heads[2]:>26}{heads[3]:>9}")
        for what in ("save", "restore"):
            tools = sorted({r["tool"] for r in mine}, key=lambda t: (not t.startswith("floor"), t))
            base = {}
            for tool in tools:
                line = f"  {what:<9}{tool:<16}"
                for key, width in (("cpu", 24), ("wall", 26)):
                    values = [r[key] for r in mine if r["tool"] == tool and r["what"] == what]
                    middle = statistics.median(values)
                    base.setdefault(key, middle)
                    spread = f"{min(values):.3f}/{middle:.3f}/{max(values):.3f}"
                    line += f"{spread:>{width}}{middle / base[key] if base[key] else float('nan'):>9.2f}"
                lines.append(line)
    return lines


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--root", help="directory to write below (default: /dev/shm, which has no disk)")
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--hierarchies", nargs="+", choices=("star", "tree"), default=["star", "tree"])
    options.add_argument("--out", type=pathlib.Path, default=HERE / "out" / "save_restore.json")
    options.add_argument("--library", help=argparse.SUPPRESS)
    options.add_argument("--results", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.results:
        worker(args)
        return

    import floor

    from alpha_mpi.testing import launch

    library, why = floor.build()
    if library is None:
        print(f"the floor runs in Python: {why}")
    base = args.root or ("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="alpha-mpi-bench-") as root:
        results = pathlib.Path(root) / "results.json"
        words = [sys.executable, __file__, *sys.argv[1:], "--root", root, "--results", str(results)]
        words += ["--library", str(library)] if library else []
        subprocess.run([*launch.mpiexec(args.ranks), *words], env=launch.environment(), check=True)
        rows = json.loads(results.read_text())
    about = {"machine": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg(), "root": base}
    about.update(quick=args.quick, repeats=args.repeats, rows=rows)
    args.out.write_text(json.dumps(about, indent=1))
    print(f"on {base}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {args.repeats} repeats")
    print("\n".join(table(rows, args.ranks)))


if __name__ == "__main__":
    main()
