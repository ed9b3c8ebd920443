"""Interop: generations in the words of other libraries, one library per folder.

A *view* is a file of another format whose data are the packs of a store; a *copy* is a file that
needs no store.
"""
