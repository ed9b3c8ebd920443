"""Testing: starting and killing MPI jobs, for tests and demonstrations.

A *launcher* is the `mpiexec` that belongs to the MPI library of this interpreter. A *job* is a
launcher started here in a session of its own, together with every process below it.
"""
