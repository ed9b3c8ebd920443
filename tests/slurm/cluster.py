"""A private Slurm of several nodes on one Linux machine: real daemons, started and stopped here.

No root, no systemd, no cgroups, nothing under /etc: everything lies in one folder and on ports of
its own, and is found through SLURM_CONF. Each node is one slurmd with its own name. Needs the
programs of Debian's packages slurm-wlm and munge; tried with Slurm 22.05.

    with Cluster(folder) as cluster:
        job = cluster.submit("jobscripts/cpu.sbatch", "--nodes=2", STORE=store)
        cluster.wait(job, "COMPLETED")

Stopped is exactly what was started: daemons by the process ids that Popen gave, slurmstepds by the
files of this cluster that they hold open, tasks by the variables that they carry.
"""

from __future__ import annotations

import getpass
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")
#: Where system programs lie that a user's path leaves out.
SYSTEM = ("/usr/sbin", "/sbin", "/usr/local/sbin")
#: Slurm's own times, in seconds: the shortest it takes. A requeued job waits 5 s more than CRED_EXPIRE.
CRED_EXPIRE, KILL_WAIT, NODE_TIMEOUT = 5, 4, 5
#: What a job has if it asks for nothing, in MiB: no node has it, no job is meant to need it.
MEMORY_PER_CPU = 4000
#: Of each node; they can be counted and given out, and are not there.
GPUS = 4
#: With these MPICH starts by Slurm's pmi2 on several nodes (docs/mpi.md).
MPICH = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp;ofi_rxm"}

ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")

CONF = """\
ClusterName=alpha
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/socket/munge,cred_expire={cred_expire}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# No cgroups: a step whose memory grows past --mem is killed by what counts it, every second.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
# Nodes may claim more than this machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={memory_per_cpu}
GresTypes=gpu
TopologyPlugin=topology/tree
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillOnBadExit=0
KillWait={kill_wait}
SlurmdTimeout={node_timeout}
SlurmctldTimeout=10
MessageTimeout=10
InactiveLimit=0
MinJobAge=1800
# MPICH names its shared memory by the job: those of two clusters on one machine must differ.
FirstJobId={first}
"""


class Unavailable(Exception):
    """Slurm cannot be had on this machine; the text says why."""


def program(name: str) -> str:
    """Return the path of one of Slurm's programs. Raises `Unavailable`."""
    path = os.pathsep.join([*os.environ.get("PATH", os.defpath).split(os.pathsep), *SYSTEM])
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(f"{name} is not installed (Debian and Ubuntu: slurm-wlm and munge)")
    return found


def missing() -> list[str]:
    """Return which of Slurm's programs this machine lacks."""
    lacking = []
    for name in PROGRAMS:
        try:
            program(name)
        except Unavailable:
            lacking.append(name)
    return lacking


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until something is true. Raises TimeoutError, saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def environ(pid: str | int) -> dict[str, str]:
    """Return the variables that a process was started with; none where it cannot be asked."""
    try:
        raw = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


class Cluster:
    """The cluster. `nodes` are its nodes' names; `log(name)` is what a daemon wrote.

    Parameters
    ----------
    folder : path
        Where everything lies; made. Short: a socket's path has a limit.
    nodes, cpus : int
        How many nodes, and how many processors each claims to have.
    """

    def __init__(self, folder: str | os.PathLike[str], nodes: int = 4, cpus: int = 4) -> None:
        self.folder = pathlib.Path(folder).absolute()
        self.nodes = [f"node{i}" for i in range(1, nodes + 1)]
        self.cpus = cpus
        self.conf = self.folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # ------------------------------------------------ up and down

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all daemons; return when every node is idle. Raises `Unavailable`, TimeoutError."""
        if lacking := missing():
            program(lacking[0])
        self._write()
        munge = self.folder / "munge"
        self._daemon(
            "munged",
            # --force: it would refuse a socket below /tmp, which everybody may write to.
            [
                *("--foreground", "--force", f"--socket={self.folder / 'socket' / 'munge'}"),
                *(f"--{what}-file={munge / what}" for what in ("key", "seed", "pid", "log")),
            ],
        )
        until((self.folder / "socket" / "munge").exists, 10, "munged is up")
        self._daemon("slurmctld", ["-D", "-c", "-f", str(self.conf)])
        for node in self.nodes:
            self.start_node(node)
        try:
            until(lambda: self.states() == ["idle"] * len(self.nodes), 30, "all nodes are idle")
        except TimeoutError as error:
            tails = [self.log(name)[-600:] for name in ("slurmctld", self.nodes[0])]
            raise TimeoutError("\n".join([str(error), *tails])) from None

    def stop(self) -> None:
        """End every process of this cluster."""
        controller = self._daemons.get("slurmctld")
        if controller is not None and controller.poll() is None and self.queued():
            self.run(["scancel", "--full", "--signal=KILL", f"--user={getpass.getuser()}"])
            self.run(["scancel", f"--user={getpass.getuser()}"])
            try:
                until(lambda: not self.queued(), 5, "all jobs have ended")
            except TimeoutError:
                pass  # killed below
        for process in self._daemons.values():
            process.terminate()
        for process in self._daemons.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._daemons.clear()
        for node in self.nodes:
            self._kill_all(node)

    def start_node(self, node: str) -> None:
        """Start a node's slurmd, for the first time or again."""
        self._daemon(node, ["-D", "-N", node, "-f", str(self.conf)], "slurmd")

    def kill_node(self, node: str) -> None:
        """Take a node away as a loss of power would: slurmd, its slurmstepds, and their tasks."""
        # Everything stands still first: nobody may find time to report that another has died.
        self.freeze_node(node)
        self._daemons[node].kill()
        self._daemons[node].wait()
        self._kill_all(node)

    def freeze_node(self, node: str) -> None:
        """Make a node fall silent, while the tasks on it go on: as behind a broken network."""
        for pid in (self._daemons[node].pid, *self._stepds(node)):
            os.kill(pid, signal.SIGSTOP)

    def thaw_node(self, node: str) -> None:
        """Let a frozen node speak again."""
        for pid in (*self._stepds(node), self._daemons[node].pid):
            os.kill(pid, signal.SIGCONT)

    def _stepds(self, node: str) -> list[int]:
        """Return a node's slurmstepds, told by their open files: their variables are lost to their title."""
        mine = (f"{self.folder}/{node}.log", f"{self.folder}/spool/{node}/")
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "comm").read_text().strip() == "slurmstepd":
                    files = [os.readlink(file) for file in (entry / "fd").iterdir()]
                    if any(file.startswith(mine) for file in files):
                        found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
        return found

    def _daemon(self, name: str, words: list[str], which: str | None = None) -> None:
        """Start one daemon in the foreground of a session of its own."""
        with (self.folder / f"{name}.out").open("ab") as sink:
            self._daemons[name] = subprocess.Popen(
                [program(which or name), *words],
                env=self._plain(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def _write(self) -> None:
        """Make the folder, the key and slurm.conf."""
        for name in ("state", "spool", "munge", "socket"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(random.SystemRandom().randbytes(256))
        key.chmod(0o600)
        host, port = socket.gethostname().partition(".")[0], free_ports(len(self.nodes) + 1)
        lines = CONF.format(
            host=host,
            port=port,
            user=getpass.getuser(),
            folder=self.folder,
            cred_expire=CRED_EXPIRE,
            kill_wait=KILL_WAIT,
            node_timeout=NODE_TIMEOUT,
            memory_per_cpu=MEMORY_PER_CPU,
            first=random.SystemRandom().randrange(1000, 60_000_000),
        )
        for i, node in enumerate(self.nodes, 1):
            lines += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + i} "
            lines += (
                f"CPUs={self.cpus} RealMemory={self.cpus * MEMORY_PER_CPU} Gres=gpu:{GPUS} State=UNKNOWN\n"
            )
        every = ",".join(self.nodes)
        shared = f"Nodes={every} MaxTime=INFINITE State=UP"
        lines += f"PartitionName=main {shared} Default=YES PriorityTier=1\n"
        # A job of this partition takes nodes from jobs of the other one.
        lines += f"PartitionName=urgent {shared} PriorityTier=10\n"
        self.conf.write_text(lines)
        for i in range(GPUS):
            (self.folder / f"gpu{i}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        # Nodes hang on their switches in turn: neighbours in number are on different ones.
        leaves = {f"leaf{i}": self.nodes[i::2] for i in (0, 1) if self.nodes[i::2]}
        wires = [f"SwitchName={leaf} Nodes={','.join(nodes)}\n" for leaf, nodes in leaves.items()]
        wires.append(f"SwitchName=top Switches={','.join(leaves)}\n")
        (self.folder / "topology.conf").write_text("".join(wires))

    def _tasks(self, node: str) -> Iterator[int]:
        """Yield the processes of jobs on a node."""
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                values = environ(entry)
                if values.get("SLURM_CONF") == str(self.conf) and values.get("SLURMD_NODENAME") == node:
                    yield int(entry)

    def _kill_all(self, node: str) -> None:
        """End what runs on a node whose slurmd is gone."""
        self._kill(self._stepds(node))
        for _ in range(2):  # a process that is being started may be missed once
            self._kill(self._tasks(node))

    @staticmethod
    def _kill(pids: Iterable[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    # ------------------------------------------------ what a user does

    def _plain(self) -> dict[str, str]:
        """Return an environment that knows nothing of another Slurm or launcher."""
        return {
            k: v for k, v in launch.environment().items() if not k.startswith(("SLURM", "SRUN", "SBATCH"))
        }

    def environment(self, **more: object) -> dict[str, str]:
        """Return the environment of a user of this cluster, plus `more`."""
        own = {"SLURM_CONF": str(self.conf), **MPICH}
        return self._plain() | own | {k: str(v) for k, v in more.items()}

    def run(
        self, words: Sequence[str], seconds: float = 60, **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, or a program under it; return how it ended and what it printed."""
        return subprocess.run(
            [program(words[0]), *map(str, words[1:])],
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=ROOT,
        )

    def ask(self, *words: str) -> str:
        """Run a command that must succeed; return what it printed."""
        told = self.run(words)
        assert told.returncode == 0, (words, told.stdout, told.stderr)
        return told.stdout.strip()

    def submit(
        self, script: str | os.PathLike[str], *options: str, words: Sequence[str] = (), **more: object
    ) -> int:
        """Submit a job script, which is given `words`; return the job's number."""
        told = self.run(["sbatch", "--parsable", *options, str(script), *words], **more)
        assert told.returncode == 0, (script, options, told.stdout, told.stderr)
        return int(told.stdout.split(";")[0])

    def job(self, job: int | str) -> dict[str, str]:
        """Return what Slurm knows of a job: JobState, Restarts, ExitCode, NodeList and more."""
        pairs = (word.partition("=") for word in self.ask("scontrol", "-o", "show", "job", str(job)).split())
        return {name: value for name, found, value in pairs if found}

    def state(self, job: int | str) -> str:
        """Return a job's state."""
        return self.job(job)["JobState"]

    def nodes_of(self, job: int | str) -> list[str]:
        """Return the nodes of a job that runs or ran."""
        return self.ask("scontrol", "show", "hostnames", self.job(job)["NodeList"]).split()

    def wait(self, job: int | str, state: str | None = None, seconds: float = 180) -> dict[str, str]:
        """Wait until a job is in this state, or has ended; return what Slurm knows of it.

        A job that ended otherwise is an error at once.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = self.job(job)
            now = found["JobState"]
            if now == state or (state is None and now in ENDED):
                return found
            assert now not in ENDED, (job, state, found)
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job} is {now}, not {state or 'ended'}, after {seconds:.0f} s")
            time.sleep(0.2)

    def queued(self) -> list[str]:
        """Return the jobs that have not ended."""
        return self.run(["squeue", "-h", "-o", "%i %T"]).stdout.splitlines()

    def queued_job(self, job: int | str) -> bool:
        """Return whether a job waits, runs, or is ending."""
        return bool(self.run(["squeue", "-h", "-j", str(job), "-o", "%i"]).stdout.strip())

    def states(self) -> list[str]:
        """Return the state of each node."""
        return self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]).stdout.split()

    def state_of(self, node: str) -> str:
        """Return a node's state."""
        return self.ask("sinfo", "-h", "-N", "-p", "main", "-n", node, "-o", "%T")

    def log(self, name: str) -> str:
        """Return what a daemon wrote: ``slurmctld``, or a node's slurmd."""
        try:
            return (self.folder / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""


def free_ports(count: int) -> int:
    """Return the first of `count` ports in a row on which nobody listens."""
    for _ in range(100):
        first = random.SystemRandom().randrange(15000, 30000)
        taken = False
        for port in range(first, first + count):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError:
                    taken = True
                    break
        if not taken:
            return first
    raise Unavailable("no ports are free")
