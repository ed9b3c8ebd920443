"""Durable files: four stages in order, nothing replaced, every failure named."""

import errno
import json
import multiprocessing
import os
import pathlib
import socket
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import shim
from alpha_mpi.errors import Refused, cause_of
from alpha_mpi.store import durable
from alpha_mpi.store.durable import Directory, Target, commit_bytes


@pytest.fixture
def directory(tmp_path):
    with Directory.open(tmp_path) as opened:
        yield opened


def python(code, root, *arguments, check=True, **shim_options):
    """Run a program of one argument or more with the shim below `root`; return the completed process."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(root), *arguments],
        env={**os.environ, **shim.env(root, **shim_options)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


# ---- one file ----


def test_a_commit_makes_the_file_visible(directory):
    with Target(directory, "a") as target:
        assert target.write([b"one ", b"", memoryview(b"two")]) == 7
        assert not directory.exists("a")
        target.commit()
    assert directory.read("a", 100) == b"one two"
    assert directory.names() == ["a"]
    assert target.manner == "rename"


def test_what_can_be_written(directory):
    array = np.arange(6, dtype="<f8")
    with Target(directory, "a", size=48 + 3 + 2) as target:
        target.pwrite(array, 3)
        target.pwrite(bytearray(b"abc"), 0)
        target.pwrite((b"x", b"y"), 51)
        target.commit()
    assert directory.read("a", 100) == b"abc" + array.tobytes() + b"xy"


def test_a_generator_of_buffers(directory):
    with Target(directory, "a") as target:
        assert target.write(bytes([65 + i % 26]) for i in range(2000)) == 2000
        target.commit()
    assert directory.read("a", 2000)[:3] == b"ABC"


def test_a_buffer_that_is_not_contiguous_is_refused(directory):
    with Target(directory, "a") as target, pytest.raises((BufferError, ValueError)):
        target.write(np.arange(10, dtype=np.uint8)[::2])
    assert directory.names() == []


def test_an_abandoned_target_leaves_nothing(directory):
    target = Target(directory, "a", size=1 << 30)
    target.write(b"x")
    assert len(directory.names()) == 1
    target.abandon()
    target.abandon()
    assert directory.names() == []


def test_an_exception_abandons(directory):
    with pytest.raises(KeyboardInterrupt), Target(directory, "a") as target:
        target.write(b"x")
        raise KeyboardInterrupt
    assert directory.names() == []


def test_a_wrong_number_of_bytes_is_not_committed(directory):
    with (
        Target(directory, "a", size=5) as target,
        pytest.raises(ValueError, match="4 bytes written, 5 declared"),
    ):
        target.write(b"four")
        target.commit()
    assert directory.names() == []


@pytest.mark.parametrize("by_link", [False, True])
def test_a_taken_name_stays(directory, by_link):
    commit_bytes(directory, "a", b"first")
    directory.by_link = by_link
    with pytest.raises(FileExistsError) as caught:
        commit_bytes(directory, "a", b"second")
    assert caught.value.stage == "rename"
    assert caught.value.filename == os.path.join(directory.path, "a")
    assert cause_of(caught.value).stage == "rename"
    assert directory.read("a", 100) == b"first"
    assert directory.names() == ["a"]


@pytest.mark.parametrize("kind", ["directory", "dangling link", "link to a file", "FIFO"])
def test_a_name_taken_by_anything_stays(directory, kind):
    path = pathlib.Path(directory.path, "a")
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("other")
        if kind == "link to a file":
            path.with_name("other").write_text("untouched")
    for by_link in (False, True):
        directory.by_link = by_link
        with pytest.raises(FileExistsError):
            commit_bytes(directory, "a", b"second")
    if kind == "link to a file":
        assert path.read_text() == "untouched"
    if kind == "dangling link":
        assert directory.names() == ["a"]


def test_descriptors_are_not_inherited_and_do_not_leak(directory):
    before = os.listdir("/proc/self/fd")
    target = Target(directory, "a")
    inside = directory.sub("d", create=True)
    commit_bytes(directory, "b", b"x")
    file = directory.open_file("b")
    for fd in (target._fd, inside.fd, file.fd, directory.fd):
        assert not os.get_inheritable(fd)
    target.commit()
    inside.close()
    inside.close()
    file.close()
    file.close()
    with pytest.raises(FileExistsError):
        commit_bytes(directory, "b", b"x")
    assert os.listdir("/proc/self/fd") == before


def test_files_get_the_users_permissions(directory):
    old = os.umask(0o027)
    try:
        commit_bytes(directory, "a", b"x")
        directory.sub("d", create=True).close()
    finally:
        os.umask(old)
    mode = {name: stat.S_IMODE(os.stat(name, dir_fd=directory.fd).st_mode) for name in "ad"}
    assert mode == {"a": 0o640, "d": 0o750}


def test_the_interpreter_runs_during_a_system_call(tmp_path):
    code = """
import sys, threading, time
from alpha_mpi.store.durable import Directory, commit_bytes
d = Directory.open(sys.argv[1])
thread = threading.Thread(target=commit_bytes, args=(d, "a", b"x"))
thread.start()
ticks, begin = 0, time.monotonic()
while thread.is_alive():
    time.sleep(0.01)
    ticks += 1
assert time.monotonic() - begin > 0.9 and ticks > 10, ticks
"""
    python(code, tmp_path, delay="fdatasync:1:1.0")


def test_an_error_of_the_disk_has_path_and_stage(directory):
    with pytest.raises(OSError, match="Bad file") as caught:
        durable._durable.write(-1, [b"x"], 0, "somewhere")
    assert (caught.value.errno, caught.value.stage, caught.value.filename) == (
        errno.EBADF,
        "write",
        "somewhere",
    )
    with pytest.raises(FileNotFoundError) as missing:
        directory.read("missing", 10)
    assert missing.value.filename == os.path.join(directory.path, "missing")


# ---- reading ----


def test_reading_is_bounded_and_whole(directory):
    commit_bytes(directory, "a", b"0123456789")
    with pytest.raises(Refused) as caught:
        directory.read("a", 9)
    assert caught.value.code == "too-large"
    with directory.open_file("a") as file:
        buffer = np.zeros(4, np.uint8)
        file.pread_into(buffer, 6)
        assert bytes(buffer) == b"6789"
        with pytest.raises(Refused) as caught:
            file.pread_into(buffer, 7)
        assert caught.value.code == "truncated"
        assert (caught.value.expected, caught.value.found) == ("11 bytes", "10 bytes")


def test_only_regular_files_are_read(directory):
    path = pathlib.Path(directory.path)
    os.mkfifo(path / "fifo")  # opening it would wait for a writer
    (path / "dir").mkdir()
    (path / "link").symlink_to("/etc/hostname")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path / "socket"))
        for name, found in [
            *(("fifo", "FIFO"), ("dir", "directory"), ("link", "symbolic link"), ("socket", "socket")),
        ]:
            with pytest.raises(Refused) as caught:
                directory.open_file(name)
            assert (caught.value.code, caught.value.found) == ("not-a-file", found)


# ---- directories ----


def test_a_directory_is_made_or_found(directory):
    with directory.sub("d", create=True) as one, directory.sub("d", create=True) as two:
        commit_bytes(one, "a", b"x")
        assert two.names() == ["a"]
        assert two.path == os.path.join(directory.path, "d")
        with pytest.raises(OSError, match="not empty"):
            directory.rmdir("d")
        two.unlink("a")
        two.unlink("a")
        with pytest.raises(FileNotFoundError):
            two.unlink("a", missing_ok=False)
        directory.rmdir("d")
        directory.rmdir("d")
    with pytest.raises(FileNotFoundError):
        directory.sub("d")


@pytest.mark.parametrize("kind", ["file", "symbolic link"])
@pytest.mark.parametrize("create", [False, True])
def test_anything_else_where_a_directory_should_be_is_refused(directory, tmp_path, kind, create):
    if kind == "file":
        (tmp_path / "d").write_text("")
    else:
        (tmp_path / "real").mkdir()
        (tmp_path / "d").symlink_to("real")
    with pytest.raises(Refused) as caught:
        directory.sub("d", create=create)
    assert (caught.value.code, caught.value.found) == ("not-a-directory", kind)
    assert caught.value.file == str(tmp_path / "d")


def test_the_users_own_path_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Directory.open(tmp_path / "link") as opened:
        commit_bytes(opened, "a", b"x")
    assert (tmp_path / "real" / "a").read_bytes() == b"x"


def test_a_directory_that_exists_but_cannot_be_seen_yet(tmp_path):
    code = """
import sys, time
from alpha_mpi.store.durable import Directory, commit_bytes
d = Directory.open(sys.argv[1])
begin = time.monotonic()
with d.sub("late", create=True) as late:
    commit_bytes(late, "a", b"x")
print(time.monotonic() - begin)
"""
    done = python(code, tmp_path, trace=tmp_path.with_suffix(".trace"), mkdir_lies=0.7)
    assert 0.6 < float(done.stdout) < 4
    assert (tmp_path / "late" / "a").read_bytes() == b"x"
    calls = shim.read_trace(tmp_path.with_suffix(".trace"))
    assert calls[1].note == "lied" and calls[1].errno == errno.EEXIST


def test_the_list_of_names_can_be_read_by_several_threads(directory):
    wanted = sorted(f"f{i}" for i in range(300))
    for name in wanted:
        pathlib.Path(directory.path, name).touch()
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(directory.names())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [wanted] * 8


# ---- system calls ----

PUBLISH = """
import json, sys
from alpha_mpi.store.durable import Directory, Target
d = Directory.open(sys.argv[1])
by_link = len(sys.argv) > 2
with d.sub("inner", create=True) as inner:
    inner.by_link = by_link
    try:
        with Target(inner, "file", size=3 << 20) as target:
            for i in range(3):
                target.write([bytes([i]) * (1 << 20)])
            target.commit()
    except OSError as error:
        print(json.dumps([error.errno, getattr(error, "stage", None), error.filename]))
    else:
        print(json.dumps(target.manner))
"""


def calls_of(trace, root):
    """Return (op, first path below the root) of each call after the directory was made."""
    return [(c.op, os.path.relpath(c.path, root), c) for c in shim.read_trace(trace)]


def test_the_trace_of_a_commit(tmp_path):
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    python(PUBLISH, root, trace=trace)
    calls = calls_of(trace, root)
    ops = [op for op, _, _ in calls]
    assert ops == [
        *("openat", "mkdirat", "openat", "fsync"),  # the root; made, opened, made durable
        *("openat", "pwritev", "pwritev", "pwritev"),
        *("fdatasync", "close", "renameat2", "fsync"),
        *("close", "close"),
    ]
    temporary = calls[4][1]
    assert temporary.startswith("inner/.file.") and temporary.endswith(".tmp")
    assert {path for _, path, _ in calls[4:11]} == {temporary}
    wanted = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    assert calls[4][2].extra & wanted == wanted
    assert [c.extra for _, _, c in calls[5:8]] == [1 << 20] * 3
    renamed = calls[10][2]
    assert renamed.other == str(root / "inner" / "file") and renamed.extra == 1
    assert (calls[3][1], calls[11][1]) == (".", "inner")


def test_the_trace_of_a_commit_by_link(tmp_path):
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    python(PUBLISH, root, trace=trace, fail="renameat2:0:EINVAL")
    ops = [op for op, _, _ in calls_of(trace, root)]
    assert ops[8:-2] == ["fdatasync", "close", "renameat2", "linkat", "fsync", "unlinkat"]
    assert os.listdir(root / "inner") == ["file"]


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize(
    ("op", "nth", "stage"),
    [
        ("pwritev", 2, "write"),
        ("fdatasync", 1, "sync-data"),
        ("close", 1, "close"),
        ("renameat2", 1, "rename"),
        ("fsync", 1, "sync-directory"),
    ],
)
def test_each_failure_is_named_once(tmp_path, op, nth, stage, error):
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    done = python(
        PUBLISH,
        root,
        trace=trace,
        fail=f"{op}:{nth}:{error}:inner/" if op != "fsync" else f"{op}:{nth}:{error}:inner",
    )
    assert json.loads(done.stdout) == [getattr(errno, error), stage, str(root / "inner" / "file")]
    calls = shim.read_trace(trace)
    assert sum(c.note == "injected" for c in calls) == 1
    # A failed sync is never tried again, and what is not known durable is never renamed.
    assert sum(c.op == op for c in calls if "/inner" in c.path) <= nth + (op == "close") * 9
    assert os.listdir(root / "inner") == (["file"] if stage == "sync-directory" else [])


def test_making_a_directory_fails_by_name(tmp_path):
    done = python(PUBLISH, tmp_path, check=False, fail="mkdirat:1:EDQUOT")
    assert f"OSError: [Errno {errno.EDQUOT}]" in done.stderr and f"{tmp_path}/inner" in done.stderr


@pytest.mark.parametrize("first", ["rename", "link"])
def test_a_lost_answer_is_no_loss(tmp_path, first):
    """A network file system may carry a request out, lose the answer, and say "exists" to the retry."""
    fail = "renameat2:1:+EEXIST" if first == "rename" else "linkat:1:+EEXIST"
    done = python(PUBLISH, tmp_path, *([] if first == "rename" else ["link"]), fail=fail)
    assert json.loads(done.stdout) == first
    assert os.listdir(tmp_path / "inner") == ["file"]


@pytest.mark.parametrize("limit", [1, 4095])
def test_short_writes(tmp_path, limit):
    code = (
        PUBLISH.replace("size=3 << 20", "size=30_000 if int(sys.argv[2]) == 1 else 3 << 20")
        .replace("bytes([i]) * (1 << 20)", "bytes([i]) * (10_000 if int(sys.argv[2]) == 1 else 1 << 20)")
        .replace("by_link = len(sys.argv) > 2", "by_link = False")
    )
    trace = tmp_path.with_suffix(".trace")
    python(code, tmp_path, str(limit), trace=trace, short=limit)
    each = 10_000 if limit == 1 else 1 << 20
    assert (tmp_path / "inner" / "file").read_bytes() == b"".join(bytes([i]) * each for i in range(3))
    moved = [c.result for c in shim.read_trace(trace) if c.op == "pwritev"]
    assert len(moved) > 500 and min(moved) >= 1 and max(moved) <= limit


def test_a_write_that_never_moves_ends_in_an_error(tmp_path):
    done = python(PUBLISH, tmp_path, short=0)
    assert json.loads(done.stdout)[:2] == [errno.EIO, "write"]
    assert os.listdir(tmp_path / "inner") == []


def test_a_process_killed_at_any_call_leaves_all_or_nothing(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    python(PUBLISH, first, trace=tmp_path / "trace")
    for n in range(1, len(shim.read_trace(tmp_path / "trace")) + 1):
        root = tmp_path / f"root{n}"
        root.mkdir()
        done = python(PUBLISH, root, check=False, kill=n, trace=tmp_path / f"trace{n}")
        assert done.returncode == -9
        assert shim.read_trace(tmp_path / f"trace{n}")[-1].note == "killed"
        file = root / "inner" / "file"
        assert not file.exists() or file.stat().st_size == 3 << 20
        if done.stdout:  # success was reported
            assert file.exists()


# ---- a race ----


def _race(path, start, count, by_link, won):
    with Directory.open(path) as directory:
        directory.by_link = by_link
        start.wait()
        mine = 0
        for i in range(count):
            try:
                commit_bytes(directory, f"n{i}", str(os.getpid()).encode(), sync_directory=False)
                mine += 1
            except FileExistsError:
                pass
        won.put(mine)


@pytest.mark.parametrize("others_link", [False, True])
def test_two_processes_race_for_each_name(tmp_path, others_link):
    """Also where one of them takes names by rename and the other by link."""
    count = 150
    context = multiprocessing.get_context("spawn")
    start, won = context.Barrier(2), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), start, count, by_link, won))
        for by_link in (False, others_link)
    ]
    for racer in racers:
        racer.start()
    wins = [won.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    won.close()
    won.join_thread()
    assert sum(wins) == count
    assert sorted(os.listdir(tmp_path)) == sorted(f"n{i}" for i in range(count))
    writers = [(tmp_path / f"n{i}").read_bytes() for i in range(count)]
    assert sorted(writers.count(str(racer.pid).encode()) for racer in racers) == sorted(wins)


@pytest.mark.slow
def test_more_than_one_call_can_move(tmp_path):
    """One write call moves at most 2,147,479,552 bytes."""
    data = np.zeros(2_200_000_000, np.uint8)
    data[::1_000_003] = 7
    with Directory.open(tmp_path) as directory:
        with Target(directory, "a", size=data.nbytes) as target:
            assert target.write([data]) == data.nbytes
            target.commit()
        back = np.empty_like(data)
        with directory.open_file("a") as file:
            file.pread_into(back, 0)
        assert np.array_equal(data, back)
        directory.unlink("a")


def test_the_waiting_time_for_a_directory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "APPEAR", 0.1)
    with Directory.open(tmp_path) as directory:
        inside = directory.sub("gone", create=True)
        directory.rmdir("gone")
        begin = time.monotonic()
        with pytest.raises(FileNotFoundError):
            inside.sub("d", create=True)
        assert time.monotonic() - begin < 2
        inside.close()
