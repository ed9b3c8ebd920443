"""alpha-mpi doctor and probe: what is there, and what is wrong."""

import json
import re
import subprocess
import sys

import pytest

from alpha_mpi.cli import doctor, ranks
from alpha_mpi.errors import Refused
from alpha_mpi.mpi.examine import Found
from alpha_mpi.store.probe import Probe
from alpha_mpi.testing import launch


def checks(answer, *words):
    code, found = answer("doctor", *words)
    return code, {row["what"]: (row["verdict"], row["found"]) for row in found["checks"]}


def test_all_is_well(store, answer):
    code, found = checks(answer, store)
    assert code == 0
    assert "numpy" in found["versions"][1] and found["store"][0] == "ok"
    assert "newest e000002-000001" in found["store"][1]
    assert found["MPI"][0] in ("ok", "note")


def test_a_store_a_job_would_be_refused_by(store, answer):
    (store / "published" / "e000002-000001.json").write_bytes(b"{}")
    code, found = checks(answer, store)
    assert code == 1 and found["store"][0] == "wrong" and "a job is refused" in found["store"][1]


def test_a_store_that_may_not_be_written_is_looked_at(store, answer, monkeypatch):
    def refuse(directory):
        raise Refused("the store cannot be written", code="read-only", file=directory.path)

    monkeypatch.setattr(doctor, "probe", refuse)
    code, found = checks(answer, store)
    assert code == 1 and found["file system"][0] == "wrong" and found["store"][0] == "ok"


def test_a_file_system_that_keeps_nothing_is_noted(store, answer, monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda directory: Probe("link", 1, 1, "tmpfs", ("in memory",)))
    assert checks(answer, store)[1]["file system"][0] == "note"


@pytest.mark.parametrize(
    ("variables", "verdict"),
    [
        ({}, "note"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, "ok"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "note"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "ok"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "1"}, "wrong"),
    ],
)
def test_what_slurm_says(answer, monkeypatch, variables, verdict):
    for name in (*ranks.SIZE_VARIABLES, "SLURM_JOB_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "examine", lambda: None)
    code, found = checks(answer)
    assert found["Slurm"][0] == verdict and code == (verdict == "wrong")


@pytest.mark.parametrize("answers", [True, False])
def test_what_the_commands_of_slurm_say(answer, monkeypatch, answers):
    monkeypatch.setattr(doctor, "examine", lambda: None)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    heard = []

    def ask(words):
        heard.append(words)
        return ("RUNNING\n" if "%T" in words else "30:00\n") if answers else None

    monkeypatch.setattr(doctor.slurm, "ask", ask)
    monkeypatch.setattr(doctor.slurm, "left", lambda: 1800.0 if answers else None)
    code, found = checks(answer)
    assert code == 0 and heard[0][:4] == ["squeue", "-h", "-j", "7"]
    assert found["squeue"][0] == found["time limit"][0] == ("ok" if answers else "note")
    assert ("RUNNING" in found["squeue"][1]) == ("30.0 min" in found["time limit"][1]) == answers


def test_threads_that_are_not_enough(answer, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: Found("MPI", "4.0", "SINGLE", 1, 0.0))
    code, found = checks(answer)
    assert code == 1 and found["threads"][0] == "wrong"


def test_one_sided_reads_that_are_not_used(answer, monkeypatch):
    found = Found("MPICH", "4.1", "MULTIPLE", 2, None, without="other words are read than were written")
    monkeypatch.setattr(doctor, "examine", lambda: found)
    code, rows = checks(answer)
    assert code == 0 and rows["one-sided reads"][0] == "note"
    assert "by messages instead: other words" in rows["one-sided reads"][1]


@pytest.mark.parametrize("devices", [None, [], ["A100, 1 bytes"], RuntimeError("driver too old")])
def test_gpus(answer, monkeypatch, devices):
    def gpus():
        if isinstance(devices, Exception):
            raise devices
        return devices

    monkeypatch.setattr(doctor, "gpus", gpus)
    verdict = checks(answer)[1]["GPU"][0]
    assert verdict == ("wrong" if isinstance(devices, Exception) else "ok" if devices else "note")


def test_on_three_ranks(store):
    job = [*launch.mpiexec(3), sys.executable, "-m", "alpha_mpi.cli", "doctor", str(store), "--json"]
    told = subprocess.run(job, capture_output=True, text=True, env=launch.environment(), timeout=120)
    assert told.returncode == 0, told.stderr
    rows = {row["what"]: row for row in json.loads(told.stdout)["checks"]}
    assert "3 ranks" in rows["MPI"]["found"] and rows["one-sided reads"]["verdict"] == "ok"


def test_probe(tmp_path, answer):
    code, found = answer("probe", tmp_path)
    assert code == 0 and found["no_replace"] in ("rename", "link")
    assert 0 < found["available_bytes"] <= found["free_bytes"]
    assert list(tmp_path.iterdir()) == []
    assert answer("probe", tmp_path / "missing")[1]["error"]["code"] == "io-error"


PMI2 = {"PMI_FD": "11", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2"}
OFI = PMI2 | {"MPIR_CVAR_CH4_NETMOD": "ofi"}


@pytest.mark.parametrize(
    ("device", "variables", "noted"),
    [
        ("ch4:ucx ofi", PMI2, "of UCX.*: MPIR_CVAR_CH4_NETMOD=ofi, .* FI_PROVIDER='tcp;ofi_rxm'"),
        ("ch4:ucx ofi", PMI2 | {"MPIR_CVAR_CH4_NETMOD": "ucx"}, "of UCX.*: MPIR_CVAR_CH4_NETMOD=ofi"),
        ("ch4:ucx", PMI2 | {"FI_PROVIDER": "tcp;ofi_rxm"}, "of UCX.*: its own mpiexec .*--mpi=pmix"),
        ("ch4:ucx ofi", OFI, "libfabric takes 'tcp'.*: FI_PROVIDER='tcp;ofi_rxm'"),
        ("ch4:ucx ofi", OFI | {"FI_PROVIDER": "tcp"}, "libfabric takes 'tcp'"),
        ("ch4:ofi", PMI2 | {"FI_PROVIDER": ""}, "libfabric takes 'tcp'"),
        ("ch4:ucx ofi", OFI | {"FI_PROVIDER": "tcp;ofi_rxm"}, None),
        ("ch4:ofi", PMI2 | {"FI_PROVIDER": "cxi"}, None),
        ("", PMI2, None),
        ("ch3:nemesis", PMI2, None),
        ("ch4:ucx", PMI2 | {"SLURM_STEP_NUM_NODES": "1"}, None),
        ("ch4:ucx", PMI2 | {"HYDI_CONTROL_FD": "9"}, None),
        ("ch4:ucx", {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2"}, None),
    ],
)
def test_a_start_by_slurm_that_may_hang_is_noted(answer, monkeypatch, device, variables, noted):
    for name in (*OFI, "FI_PROVIDER", "HYDI_CONTROL_FD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Found("MPICH Version: 5.0.2", "5.0", "MULTIPLE", 1, 1e-4, device=device)
    monkeypatch.setattr(doctor, "examine", lambda: found)
    _, rows = checks(answer)
    assert ("start" in rows) == (noted is not None)
    if noted:
        verdict, said = rows["start"]
        assert verdict == "note" and re.search(noted, said) and said.endswith("(docs/mpi.md)")
