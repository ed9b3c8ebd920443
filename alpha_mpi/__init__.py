"""alpha_mpi."""
