"""Become the command that follows, with the output of ranks above 0 in a file of their own.

``mpiexec -n N python tools/rank_output.py FOLDER COMMAND...``: rank 0 keeps its output, rank k
writes into ``FOLDER/rank-k.txt``.
"""

import os
import sys


def main() -> None:
    """Redirect, then replace this process."""
    folder, *command = sys.argv[1:]
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
    rank = next((os.environ[name] for name in names if name in os.environ), "0")
    if rank != "0":
        fd = os.open(os.path.join(folder, f"rank-{rank}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
