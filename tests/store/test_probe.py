"""Probe: ask the file system, believe nothing, leave nothing behind."""

import json
import os
import subprocess
import sys

import pytest

import shim
from alpha_mpi.errors import Refused
from alpha_mpi.store import probe as module
from alpha_mpi.store.durable import Directory, commit_bytes
from alpha_mpi.store.probe import probe

PROBE = """
import json, sys
from alpha_mpi.errors import Refused
from alpha_mpi.store.durable import Directory
from alpha_mpi.store.probe import probe
d = Directory.open(sys.argv[1])
try:
    found = probe(d)
except Refused as refused:
    print(json.dumps([refused.code, refused.found]))
except OSError as error:
    print(json.dumps(["OSError", error.errno]))
else:
    print(json.dumps([found.no_replace, d.by_link]))
"""


def probe_with(root, fail):
    """Return what a probe below `root` says when calls fail; and how often the shim did something."""
    trace = root.with_suffix(".trace")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(root)],
        env={**os.environ, **shim.env(root, fail=fail, trace=trace)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    injected = sum(call.note not in ("-", "short") for call in shim.read_trace(trace))
    return json.loads(done.stdout), injected


def test_a_good_file_system(tmp_path):
    with Directory.open(tmp_path) as directory:
        found = probe(directory)
        assert found.no_replace == "rename" and not directory.by_link
        assert found.free_bytes > 0 and found.file_system != "unknown"
        assert directory.names() == []


def test_what_the_probe_found_is_inherited(tmp_path):
    with Directory.open(tmp_path) as directory:
        directory.by_link = True
        with directory.sub("d", create=True) as inside:
            assert inside.by_link


@pytest.mark.parametrize("error", ["EINVAL", "ENOSYS", "EOPNOTSUPP"])
def test_without_the_flag_a_link_is_used(tmp_path, error):
    found, injected = probe_with(tmp_path, f"renameat2:0:{error}")
    assert found == ["link", True]
    assert injected > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", ["EPERM", "EOPNOTSUPP", "ENOSYS"])
def test_with_neither_the_store_is_refused(tmp_path, error):
    found, _ = probe_with(tmp_path, f"renameat2:0:EINVAL;linkat:0:{error}")
    assert found[0] == "unsupported-file-system"
    assert "link" in found[1]
    assert os.listdir(tmp_path) == []


def test_a_rename_that_only_says_it_was_done(tmp_path):
    found, _ = probe_with(tmp_path, "renameat2:0:OK")
    assert found == ["link", True]
    found, _ = probe_with(tmp_path, "renameat2:0:OK;linkat:0:OK")
    assert found[0] == "unsupported-file-system" and "missing" in found[1]


def test_a_rename_that_ignores_the_flag(tmp_path, monkeypatch):
    """Some FUSE file systems accept the flag and replace the file all the same."""
    take = module._take

    def replacing(scratch, name, data):
        if scratch.by_link:
            return take(scratch, name, data)
        scratch.unlink(name)
        commit_bytes(scratch, name, data)
        return "rename"

    monkeypatch.setattr(module, "_take", replacing)
    with Directory.open(tmp_path) as directory:
        assert probe(directory).no_replace == "link"
        assert directory.by_link


def test_a_directory_that_cannot_be_synced(tmp_path):
    found, injected = probe_with(tmp_path, "fsync:0:EINVAL")
    assert found[0] == "unsupported-file-system" and injected > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        ("mkdirat:0:EROFS", "read-only"),
        ("mkdirat:0:EACCES", "no-permission"),
        ("mkdirat:0:EPERM", "no-permission"),
        ("openat:2:EACCES:.tmp", "no-permission"),
    ],
)
def test_a_store_that_cannot_be_written(tmp_path, fail, code):
    found, injected = probe_with(tmp_path, fail)
    assert found[0] == code and injected == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("fail", "errno"), [("pwritev:1:ENOSPC", 28), ("fdatasync:1:EIO", 5), ("fsync:1:EIO", 5)]
)
def test_any_other_failure_is_itself(tmp_path, fail, errno):
    found, injected = probe_with(tmp_path, fail)
    assert found == ["OSError", errno] and injected == 1
    assert os.listdir(tmp_path) == []


MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
{id} 21 0:40 / /work rw,relatime shared:7 master:3 - {kind} none {options}
99 21 0:41 / /x rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("kind", "options", "refused"),
    [
        ("overlay", "rw,lowerdir=/a,upperdir=/b,workdir=/c,volatile", True),
        ("overlay", "rw,lowerdir=/a,upperdir=/volatile,workdir=/c", False),
        ("ext4", "rw,volatile", False),
    ],
)
def test_an_overlay_that_syncs_nothing_is_refused(tmp_path, monkeypatch, kind, options, refused):
    with Directory.open(tmp_path) as directory:
        with open(f"/proc/self/fdinfo/{directory.fd}") as file:
            mount = next(line.split()[1] for line in file if line.startswith("mnt_id"))
        table = tmp_path / "mountinfo"
        table.write_text(MOUNTS.format(id=mount, kind=kind, options=options))
        monkeypatch.setattr(module, "_MOUNTS", str(table))
        if refused:
            with pytest.raises(Refused) as caught:
                probe(directory)
            assert caught.value.code == "unsupported-file-system"
            assert "volatile" in caught.value.found
        else:
            assert probe(directory).file_system == kind


def test_a_store_in_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_mount", lambda fd: ("tmpfs", frozenset()))
    with Directory.open(tmp_path) as directory:
        (warning,) = probe(directory).warnings
        assert "power cut" in warning


def test_without_proc_the_type_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOUNTS", str(tmp_path / "missing"))
    with Directory.open(tmp_path) as directory:
        assert probe(directory).file_system == "unknown"
