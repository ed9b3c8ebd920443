"""Restore: judging a generation, and giving its words back.

A *path* is the manifests from the root down to one role, each against the record above it. A *plan*
says which words of which shards go where; it is pure data. *Validation* reads and checks everything
a plan reads, and writes nothing; what it returns is all that can be *applied*. A *staging* is memory
where validated bytes wait. A *share* is words that one owner reads and others receive. *Verification*
judges every byte of a generation without MPI; a *report* is what it found.
"""
