"""`python -m alpha_mpi.cli` is `alpha-mpi`."""

from . import main

main()
