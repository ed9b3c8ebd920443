"""What killed ranks leave in shared memory is removed, and nothing else."""

import mmap
import os
import time

from alpha_mpi.testing import launch


def test_only_old_segments_that_nobody_maps_are_removed(tmp_path):
    for name in ("mpich_shm_old", "mpich_shm_new", "mpich_shm_mapped", "another"):
        (tmp_path / name).write_bytes(bytes(mmap.PAGESIZE))
        if name != "mpich_shm_new":
            os.utime(tmp_path / name, (time.time() - 100,) * 2)
    with (tmp_path / "mpich_shm_mapped").open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert launch.clear_shared_memory(str(tmp_path)) == ["mpich_shm_old"]
        held.close()
    assert sorted(os.listdir(tmp_path)) == ["another", "mpich_shm_mapped", "mpich_shm_new"]
    assert launch.clear_shared_memory(str(tmp_path)) == ["mpich_shm_mapped"]
    assert launch.clear_shared_memory(str(tmp_path / "none")) == []
