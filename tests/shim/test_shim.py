"""The shim itself: what it claims to do to a program, it does, and says so in the trace."""

import errno
import itertools
import os
import subprocess
import sys

import pytest

import shim

CODE = """
import errno, os, sys
root = sys.argv[1]
made = []
for i in range(3):
    try:
        fd = os.open(f"{root}/f{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, b"0123456789")
        os.fsync(fd)
        os.close(fd)
        os.rename(f"{root}/f{i}", f"{root}/g{i}")
        made.append("ok")
    except OSError as error:
        made.append(errno.errorcode[error.errno])
with open("/dev/null", "w") as outside:
    outside.write("not below the root")
os.unlink(f"{root}/g2") if os.path.exists(f"{root}/g2") else None
print(*made)
"""


def run(root, process_rank=None, **options):
    """Return (exit status, what was printed, the trace)."""
    trace = root.parent / f"{root.name}.trace"
    environment = {k: v for k, v in os.environ.items() if k not in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")}
    if process_rank is not None:
        environment["PMI_RANK"] = str(process_rank)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(root)],
        env={**environment, **shim.env(root, trace=trace, **options)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.split(), shim.read_trace(trace) if trace.exists() else []


def test_everything_below_the_root_is_traced_and_nothing_else(tmp_path):
    status, printed, calls = run(tmp_path, process_rank=5)
    assert (status, printed) == (0, ["ok"] * 3)
    each = ["openat", "write", "fsync", "close", "renameat"]
    assert [c.op for c in calls] == [*each, *each, *each, "unlinkat"]
    assert {c.rank for c in calls} == {5} and {c.note for c in calls} == {"-"}
    assert calls[1].path == str(tmp_path / "f0") and calls[1].result == calls[1].extra == 10
    assert (calls[4].path, calls[4].other) == (str(tmp_path / "f0"), str(tmp_path / "g0"))
    assert all(a.end <= b.begin for a, b in itertools.pairwise(calls))


EVERY_WRITE = """
import os, sys
fd = os.open(f"{sys.argv[1]}/f", os.O_RDWR | os.O_CREAT)
os.write(fd, b"0123")
os.pwrite(fd, b"ab", 7)
os.writev(fd, [b"45", b"", b"6"])
print(os.pread(fd, 99, 0))
"""


@pytest.mark.parametrize("more", [{}, {"short": 2}])
def test_what_is_written_is_kept(tmp_path, more):
    trace, kept = tmp_path.with_suffix(".trace"), tmp_path.with_suffix(".bytes")
    for run_number in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", EVERY_WRITE, str(tmp_path)],
            env=os.environ | shim.env(tmp_path, trace=trace, bytes=kept, **more),
            capture_output=True,
            timeout=60,
            check=True,
        )
        calls = [c for c in shim.read_trace(trace) if "write" in c.op]
        assert len(calls) == 3 * run_number
        if not more:
            assert b"0123456ab" in done.stdout
    content = bytearray(9)
    for call in calls[-3:]:
        offset, data = shim.written(call, kept)
        assert len(data) == call.result
        content[offset : offset + len(data)] = data
    there = (tmp_path / "f").read_bytes()
    assert there == bytes(content[: len(there)])


def test_a_failure_at_one_call_or_at_all(tmp_path):
    _, printed, calls = run(tmp_path, fail="fsync:2:ENOSPC")
    assert printed == ["ok", "ENOSPC", "ok"]
    assert [(c.op, c.errno) for c in calls if c.note == "injected"] == [("fsync", errno.ENOSPC)]


def test_several_rules_and_parts_of_paths(tmp_path):
    _, printed, _ = run(tmp_path, fail="openat:0:EACCES:/f1;renameat:0:+EIO:/f2")
    assert printed == ["ok", "EACCES", "EIO"]
    assert not (tmp_path / "f2").exists()  # done, and then answered with an error


def test_a_call_that_is_only_pretended(tmp_path):
    _, printed, calls = run(tmp_path, fail="renameat:1:OK")
    assert printed == ["ok"] * 3
    assert (tmp_path / "f0").exists() and not (tmp_path / "g0").exists()
    assert sum(c.note == "pretended" for c in calls) == 1


def test_a_kill_before_the_nth_call(tmp_path):
    status, printed, calls = run(tmp_path, kill=7)
    assert (status, printed) == (-9, [])
    assert [c.note for c in calls] == ["-"] * 6 + ["killed"]
    assert (tmp_path / "f1").stat().st_size == 0


def test_a_kill_counted_among_some_calls(tmp_path):
    status, _, calls = run(tmp_path, kill=3, kill_ops="fsync,renameat")
    assert status == -9
    assert (calls[-1].op, calls[-1].path) == ("fsync", str(tmp_path / "f1"))


@pytest.mark.parametrize(("rank", "status"), [(1, -9), (0, 0), (None, 0)])
def test_one_rank_alone(tmp_path, rank, status):
    assert run(tmp_path, process_rank=rank, kill=1, rank=1)[0] == status


def test_nothing_happens_before_it_is_armed(tmp_path):
    arm = tmp_path.parent / f"{tmp_path.name}.arm"
    status, printed, _ = run(tmp_path, kill=1, arm=arm)
    assert (status, printed) == (0, ["ok"] * 3)


def test_delays(tmp_path):
    _, _, calls = run(tmp_path, delay="fsync:2:0.3")
    waits = [c.end - c.begin > 0.29 for c in calls if c.op == "fsync"]
    assert waits == [False, True, False]


def test_a_rule_that_cannot_be_read_stops_the_program(tmp_path):
    assert run(tmp_path, fail="fsync:1:ENOTHING")[0] == 119
    assert run(tmp_path, fail="fsync")[0] == 119


def test_room_for_so_many_bytes(tmp_path):
    _, printed, calls = run(tmp_path, room=15)
    assert printed == ["ok", "ok", "ENOSPC"]
    assert [(c.result, c.note) for c in calls if c.op == "write"] == [(10, "-"), (5, "-"), (-1, "injected")]


AT_RUN_TIME = """
import os, sys, shim
def outcome(name):
    try:
        os.mkdir(f"{sys.argv[1]}/{name}")
        return "ok"
    except OSError as error:
        return os.strerror(error.errno)
before = outcome("a")
shim.arm(fail="mkdirat:2:EDQUOT")
shim.note("armed")
armed = [outcome("b"), outcome("c")]
shim.disarm()
print(before, *armed, outcome("d"), sep=";")
shim.arm(kill=1, kill_pid=os.getppid()) if len(sys.argv) > 2 else shim.arm(kill=2)
print(outcome("e"), outcome("f"), sep=";", flush=True)
"""


def test_the_program_itself_changes_what_is_injected(tmp_path):
    trace = tmp_path.with_suffix(".trace")
    done = subprocess.run(
        [sys.executable, "-c", AT_RUN_TIME, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(shim.__file__))}
        | shim.env(tmp_path, trace=trace),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9
    calls = shim.read_trace(trace)
    assert [(c.op, os.path.basename(c.path), c.note) for c in calls] == [
        ("mkdirat", "a", "-"),
        ("note", "armed", "-"),
        ("mkdirat", "b", "-"),
        ("mkdirat", "c", "injected"),
        ("mkdirat", "d", "-"),
        ("mkdirat", "e", "-"),
        ("mkdirat", "f", "killed"),
    ]
    assert "python" in calls[0].caller


def test_another_process_is_killed(tmp_path):
    victim = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    trace = tmp_path.with_suffix(".trace")
    done = subprocess.run(
        [sys.executable, "-c", victim, sys.executable, "-c", AT_RUN_TIME, str(tmp_path), "parent"],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(shim.__file__))}
        | shim.env(tmp_path, trace=trace),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9
    assert any(c.note == "killed-other" for c in shim.read_trace(trace))
