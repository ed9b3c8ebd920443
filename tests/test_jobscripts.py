"""What the scripts of jobscripts/ do about each exit code: with commands of our own in place of Slurm's.

The scripts themselves are run under a real Slurm by tests/slurm/test_slurm_jobscripts.py.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

import alpha_mpi as am

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / "jobscripts"
#: Of `srun`: an exit code of ours, a signal's number as Hydra gives it, 128 and a signal's number.
AGAIN = (am.Exit.SAVED, am.Exit.NOT_SAVED, 9, 15, 128 + 9, 128 + 15)
ENDS = (am.Exit.FINISHED, am.Exit.FAILED, am.Exit.SUPERSEDED, am.Exit.HELD, 2)


@pytest.fixture
def commands(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of commands that note their words in ``heard`` and answer from variables."""
    folder = tmp_path / "bin"
    folder.mkdir()
    answers = {
        "srun": 'case "$*" in *" true") ;; *) exit "$CODE" ;; esac',
        "squeue": 'echo "$STATE"',
        "sbatch": "echo 42",
        "scontrol": "",
        "scancel": "",
        "sleep": "",
    }
    for name, answer in answers.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$HEARD"\n{answer}\n')
        path.chmod(0o755)
    return folder


def run(commands: pathlib.Path, script: str, code: int, **more: str) -> tuple[int, list[str]]:
    """Run a script whose `srun` ends with a code; return its own and what it asked Slurm for."""
    heard = commands.parent / "heard"
    heard.unlink(missing_ok=True)
    given = {"CODE": str(int(code)), "HEARD": str(heard), "SLURM_JOB_ID": "7", "STATE": "RUNNING"}
    given |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "PATH": f"{commands}:{os.defpath}"}
    words = ["bash", str(SCRIPTS / script)]
    done = subprocess.run(words, env=given | more, cwd=commands, capture_output=True, timeout=60, check=False)
    return done.returncode, heard.read_text().splitlines()


def requeued(heard: list[str]) -> bool:
    return "scontrol requeue 7" in heard


@pytest.mark.parametrize("script", ["preemptible.sbatch", "gpu.sbatch"])
def test_which_codes_put_a_job_back(commands: pathlib.Path, script: str) -> None:
    for code in (*AGAIN, *ENDS):
        told, heard = run(commands, script, code)
        assert told == code and requeued(heard) == (code in AGAIN), (code, heard)
    # Who is being preempted or cancelled stays away; so does who came back too often.
    for state in ("COMPLETING", "CANCELLED", "PREEMPTED", ""):
        assert not requeued(run(commands, script, am.Exit.SAVED, STATE=state)[1]), state
    for restarts, again in (("2", True), ("3", False), ("4", False)):
        told, heard = run(commands, script, am.Exit.SAVED, RESTARTS="3", SLURM_RESTART_COUNT=restarts)
        assert told == am.Exit.SAVED and requeued(heard) == again, restarts
        # Each restart takes another step number.
        assert sum(line.endswith(" true") for line in heard) == int(restarts)


@pytest.mark.parametrize("script", ["cpu.sbatch", "any-nodes.sbatch"])
def test_who_puts_nothing_back_ends_with_the_code(commands: pathlib.Path, script: str) -> None:
    for code in (*AGAIN, *ENDS):
        told, heard = run(commands, script, code, SLURM_RESTART_COUNT="1")
        assert told == code and not requeued(heard)
        assert sum(line.startswith("srun ") for line in heard) == 2


def test_which_codes_end_a_chain(commands: pathlib.Path) -> None:
    """A finished training ends it by the dependency; an error and a lost store drop the next link."""
    for code in (*AGAIN, *ENDS):
        told, heard = run(commands, "chain.sbatch", code)
        assert told == code and not requeued(heard)
        assert sum(line.startswith("sbatch ") and "afternotok:7" in line for line in heard) == 1, heard
        dropped = code in (am.Exit.FAILED, am.Exit.SUPERSEDED, am.Exit.HELD)
        assert ("scancel 42" in heard) == dropped, (code, heard)
    for code in (am.Exit.SAVED, am.Exit.FAILED):
        told, heard = run(commands, "chain.sbatch", code, LINK="3", LINKS="3")
        assert told == code and not any(line.startswith(("sbatch", "scancel")) for line in heard)
