"""A program like those that exist: written without a thought of checkpoints, by steps in one loop.

tests/test_existing_code.py puts the lines of docs/howto-existing-code.md where the marks stand.
Run it with a file name and a number of steps; rank 0 writes the field to the file and `.npy`.
"""

import sys

import numpy as np
from mpi4py import MPI

# imports

comm = MPI.COMM_WORLD
a, dt, image_interval = 0.5, 0.1, 4000
timesteps = int(sys.argv[2])  # timesteps


def iterate(field, local_field, local_field0, timesteps, image_interval, ckpt, done):
    up = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    down = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    for m in range(done + 1, timesteps + 1):
        comm.Sendrecv(local_field0[-2], down, recvbuf=local_field0[0], source=up)
        comm.Sendrecv(local_field0[1], up, recvbuf=local_field0[-1], source=down)
        c = local_field0[1:-1]
        local_field[1:-1] = c + a * dt * (local_field0[2:] + local_field0[:-2] - 2 * c)
        local_field0[1:-1] = local_field[1:-1]
        if m % image_interval == 0 and comm.rank == 0:
            print(f"step {m}")
        # a step


def main():
    shape = (40, 6)
    field = np.random.default_rng(1).random(shape)
    n = shape[0] // comm.size
    local_field = np.zeros((n + 2, shape[1]))
    local_field[1:-1] = field[n * comm.rank : n * (comm.rank + 1)]
    local_field0 = local_field.copy()
    ckpt, done = None, 0
    # the call
    iterate(field, local_field, local_field0, timesteps, image_interval, ckpt, done)
    comm.Gather(local_field[1:-1], field)
    if comm.rank == 0:
        np.save(sys.argv[1] + ".npy", field)


main()
