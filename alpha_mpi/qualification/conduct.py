"""Conduct: one qualification from its beginning to its end, however it was started.

Under a launcher the ranks that it started are the team. Alone, a team is started: by the mpiexec that
belongs to this interpreter, or, where there is none, as processes joined by pipes. Whatever happens
the scratch is removed, and a step that hangs is a check that failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO

from .. import __version__
from ..errors import CheckpointError
from ..testing import launch
from ..testing.equivalence import resume_equivalence
from . import report as reports
from . import steps
from .check import FAILED, HELD, PARTLY, TITLES, Check, Plan, Table, ended, not_tried
from .interrupts import Interrupts, outlive
from .report import Report
from .scratch import Scratch
from .team import MpiTeam
from .warden import environment

#: Ranks that are started where the command is alone.
RANKS = 4
#: Seconds that a step of the first rank may take beyond its limit, within which it ends by itself.
GRACE = 30.0


class Conductor:
    """Does all checks on one path. `checks` holds what is known so far, by key.

    `say` gives out a report when this process hangs and nothing else can; after it all ranks are ended.
    """

    def __init__(
        self,
        path: str,
        plan: Plan,
        command: str,
        ranks: int | None = None,
        say: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.scratch = Scratch(path)
        self.plan, self.command = plan, command
        self.ranks = ranks or RANKS
        self.watch = Watch(self._hung)
        self._say = say
        self._team: MpiTeam | None = None
        self.checks: dict[str, Check] = {}
        self.left: list[str] = []
        self.started = ""
        self.load = os.getloadavg()[0]
        self.interrupts = Interrupts()

    def report(self, why: str = "it did not come to that") -> Report:
        """Return the report; what is not known was not tried."""
        checks = tuple(self.checks.get(key) or not_tried(key, why) for key in TITLES)
        figures = {**self.checks["shared"].figures} if "shared" in self.checks else {}
        kind = self.checks["probe"].figures.get("file_system", "?") if "probe" in self.checks else "?"
        host = ", ".join(figures.get("hosts", [platform.node()])[:4])
        facts = [
            ("date", reports.today()),
            ("file system", kind),
            ("started", self.started),
            ("MPI", str(figures.get("mpi", "none"))),
            ("versions", f"alpha-mpi {__version__}, Python {platform.python_version()}"),
            ("machine", f"{host}; Linux {platform.release()}, {os.cpu_count()} processors"),
            ("load", f"{self.load:.1f} at the beginning"),
        ]
        if self.plan.quick:
            facts.append(("extent", "quick: a first look, with few names and kills and small files"))
            return Report(
                *(self.scratch.path, tuple(facts), checks, self.command, reports.today()),
                left=tuple(self.left),
                quick=True,
            )
        where = f"{host}, {kind}, {os.cpu_count()} processors"
        line = reports.row(where, checks, self.command, reports.today())
        return Report(
            self.scratch.path, tuple(facts), checks, self.command, reports.today(), (line,), tuple(self.left)
        )

    def clean(self) -> None:
        """Remove the scratch; what stays is named in the report."""
        self.interrupts.quiet.set()
        self.watch.step("probe", self.plan.limit("probe"))
        self.left = self.scratch.remove()
        self.watch.stop()

    @property
    def by_link(self) -> bool:
        """How a name is taken here, as the probe found it."""
        return bool(self.checks["probe"].figures.get("no_replace") == "link")

    def done(self, check: Check) -> None:
        """Take a check down."""
        self.checks[check.key] = check

    def _probe(self) -> bool:
        """Make the scratch, and say whether the file system is fit."""
        self.watch.step("probe", self.plan.limit("probe"))
        self.done(steps.probe(self.scratch, self.plan))
        self.watch.stop()
        return self.checks["probe"].verdict != FAILED

    def locally(self) -> None:
        """Do the checks that need no team."""
        for key, store in (("kills", self.scratch.part("store")), ("damage", self.scratch.part("specimen"))):
            self.watch.step(key, self.plan.limit(key) + GRACE)
            self.done(steps.by_warden(key, store, self.plan))
        self.watch.stop()

    # ------------------------------------------------ alone

    def alone(self) -> Report:
        """Do everything; this process is the only one, and starts the others."""
        with self.interrupts:
            try:
                if not self._probe():
                    return self.report("the file system was not found fit")
                self._teams()
                self.locally()
            finally:
                self.clean()
        return self.report()

    def _teams(self) -> None:
        try:
            launch.launcher()
            import importlib.util

            if importlib.util.find_spec("mpi4py") is None:
                raise FileNotFoundError("mpi4py is not installed")
        except FileNotFoundError as error:
            self.started = f"alone; no MPI: {error}"
            self._pipes(("race", "visibility"))
            self._run(["one"], 1, ("shared", "equivalence", "speed"), None)
            return
        self.started = f"alone; {self.ranks} ranks by {os.path.basename(launch.launcher())}"
        words = launch.mpiexec(self.ranks)
        env = launch.environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self._run(words, self.ranks, steps.TOGETHER, env)
        self._fresh()

    def _member(self, how: str, keys: tuple[str, ...]) -> list[str]:
        options = {"plan": vars(self.plan), "by_link": self.by_link, "keys": keys}
        program = [sys.executable, "-m", "alpha_mpi.qualification.member"]
        return [*program, how, self.scratch.home, json.dumps(options)]

    def _run(self, words: list[str], ranks: int, keys: tuple[str, ...], env: dict[str, str] | None) -> None:
        """Run a team of MPI, or of one, to its end, and take down what it found."""
        command = [*words, *self._member("mpi", keys)] if env is not None else self._member("one", keys)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                env=env or environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )
            job = launch.Job(process)  # type: ignore[arg-type]
            said = "the ranks ended without an answer"
            try:
                process.wait(sum(self.plan.limit(key) for key in (*keys, "damage")))
                if process.returncode:
                    said = f"the ranks ended with code {process.returncode}"
            except subprocess.TimeoutExpired:
                said = "the ranks hung, and were killed"
            finally:
                if process.poll() is None:
                    job.kill()
            end = " ".join(_lines(errors)[-3:])
            self._told(keys, _lines(out), f"{said}{': ' * bool(end)}{end}")

    def _told(self, keys: tuple[str, ...], lines: list[str], said: str) -> None:
        """Take down the checks of a team; the one that it had begun and not ended has failed."""
        begun = None
        for line in lines:
            try:
                told = json.loads(line)
                if "check" in told:
                    self.done(Check.from_data(told["check"]))
                begun = told.get("begun")
            except (ValueError, TypeError, AttributeError):
                continue  # a line that somebody else wrote
        first = begun or next((key for key in keys if key not in self.checks), None)
        if first is not None and first not in self.checks:
            self.done(ended(first, FAILED, "every rank does its part", said))
        for key in keys:
            self.checks.setdefault(key, not_tried(key, "the ranks had ended before"))

    def _pipes(self, keys: tuple[str, ...]) -> None:
        """Run a team of processes that this one joins, and take down what it found."""
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(tempfile.TemporaryFile())
            processes: list[subprocess.Popen[bytes]] = []
            stack.callback(_end_all, processes)
            for rank in range(self.ranks):
                processes.append(
                    subprocess.Popen(
                        self._member(f"pipe:{rank}:{self.ranks}", keys),
                        env=environment(),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        start_new_session=True,
                    )
                )
            said = _join(processes, sum(self.plan.limit(key) for key in keys))
            self._told(keys, _lines(errors), said)

    def _fresh(self) -> None:
        """Resume the reference learner in fresh processes too, on two numbers of owners and across."""
        before = self.checks["equivalence"]
        if before.verdict not in (HELD, PARTLY):
            return
        owners = (self.ranks,) if self.plan.quick else (self.ranks, max(1, self.ranks - 1))
        begin = time.monotonic()
        try:
            found = resume_equivalence(
                "alpha_mpi.qualification.learners:program",
                owners=owners,
                across=len(set(owners)) > 1,
                timeout=self.plan.limit("equivalence"),
                directory=self.scratch.part("learners"),
            )
            lines, good = list(found.lines), found.same
        except CheckpointError as error:
            lines, good = [str(error)], False
        table = Table("in fresh processes", ("training",), tuple((line,) for line in lines))
        told = before.found if good else "; ".join(lines)
        self.done(
            ended(
                "equivalence",
                before.verdict if good else FAILED,
                before.expected,
                f"{told}; {len(lines)} more in fresh processes" if good else told,
                notes=[*before.notes, *([] if good else lines)],
                tables=(*before.tables, table),
                figures={
                    **before.figures,
                    "trainings": before.figures.get("trainings", 0) + len(lines),
                    "different": before.figures.get("different", 0) + (not good),
                },
                seconds=before.seconds + time.monotonic() - begin,
            )
        )

    # ------------------------------------------------ under a launcher

    def under_launcher(self) -> Report | None:
        """Do everything with the ranks that a launcher started; called by each, answered on rank 0."""
        team = self._team = MpiTeam(max(60.0, self.plan.limit("shared")))
        first = team.rank == 0
        if not first:
            outlive()
        self.started = f"by {launcher_name()}"
        self.interrupts.again = True
        with self.interrupts if first else contextlib.nullcontext():
            try:
                return self._together(team)
            except BaseException:
                if first:
                    self.clean()
                    sys.stderr.write("".join(f"could not be removed: {path}\n" for path in self.left))
                    sys.stderr.write("alpha-mpi: qualify was ended before its end\n")
                    sys.stderr.flush()
                    team.abort()
                raise

    def _together(self, team: MpiTeam) -> Report | None:
        plan, first = self.plan, team.rank == 0
        fit = first and self._probe()
        home, by_link, fine = team.from_first([self.scratch.home, self.by_link, fit] if first else None)
        if not fine:
            return self._end(team, "the file system was not found fit")

        def begun(key: str) -> None:
            if first:
                self.watch.step(key, plan.limit(key) + GRACE)

        steps.together(team, home, plan, by_link, steps.TOGETHER, begun, self.done)
        if first:
            self.locally()
        return self._end(team)

    def _end(self, team: MpiTeam, why: str = "it did not come to that") -> Report | None:
        if team.rank == 0:
            self.clean()
        if team.lost:
            # MPI's own end would wait for the rank that is lost.
            import atexit

            atexit.register(team.abort, self.plan.all_limits)
        else:
            team.limit = self.plan.all_limits
            team.barrier()
            team.close()
        return self.report(why) if team.rank == 0 else None

    def _hung(self, key: str, seconds: float) -> None:
        """Called in a thread where this process hangs, perhaps in the kernel: say so, and end all."""
        said = f"the first rank hangs: this had not ended after {seconds:.0f} s"
        if key in self.checks:
            said = f"{self.checks[key].found}; and then {said}"
        self.done(ended(key, FAILED, "it ends", said))
        self.left = [f"{self.scratch.home} (the first rank hangs there)"]
        self._say(self.report(f"the first rank hangs: {TITLES[key].lower()}"))
        if self._team is not None:
            self._team.abort()
        os._exit(1)


class Watch:
    """A thread that says so when a step has not ended in time."""

    def __init__(self, hung: Callable[[str, float], None]) -> None:
        self._hung = hung
        self._timer: threading.Timer | None = None

    def step(self, key: str, seconds: float) -> None:
        """Begin a step; the one before has ended."""
        self.stop()
        self._timer = threading.Timer(seconds, self._hung, [key, seconds])
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """The last step has ended."""
        if self._timer is not None:
            self._timer.cancel()


def launcher_name() -> str:
    """Return what started the ranks, as far as the environment tells."""
    hydra = "PMI_SIZE" in os.environ and "HYDI_CONTROL_FD" in os.environ
    foreign = hydra or "OMPI_COMM_WORLD_SIZE" in os.environ
    return "srun" if "SLURM_STEP_ID" in os.environ and not foreign else "mpiexec"


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip().splitlines()


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _join(processes: list[subprocess.Popen[bytes]], limit: float) -> str:
    """Give every process what all of them say, line by line, until they end; return what went wrong."""
    end = time.monotonic() + limit
    waiting = [b""] * len(processes)
    while True:
        for i, process in enumerate(processes):
            assert process.stdout is not None
            while not waiting[i].endswith(b"\n"):
                ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    return f"process {i} hung, and was killed"
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    code = process.wait()
                    return "" if code == 0 and i == 0 else f"process {i} ended by {code}"
                waiting[i] += piece
        answer = json.dumps([line.decode().strip() for line in waiting]).encode() + b"\n"
        waiting = [b""] * len(processes)
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(answer)
                process.stdin.flush()
