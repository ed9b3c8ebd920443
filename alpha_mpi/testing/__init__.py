"""Testing: starting and killing MPI jobs, and whether a training code resumes exactly.

A *launcher* is the `mpiexec` that belongs to the MPI library of this interpreter. A *job* is a
launcher started here in a session of its own, together with every process below it. A *program* is
a training code under test: it trains up to an update it is told, and saves into a store it is told.
A program is *resume equivalent* when an interrupted run publishes the words of one that ran through.
"""

from .equivalence import Equivalence, Finding, NotEquivalent, resume_equivalence

__all__ = ["Equivalence", "Finding", "NotEquivalent", "resume_equivalence"]
