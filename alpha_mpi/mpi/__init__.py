"""MPI: the one room that touches MPI, on a communicator of our own; loaded only when one is asked for.

A *world* is our duplicate of the user's communicator. A *channel* carries bytes to a peer, a *port*
messages to a role. A *family* is a parent with its children, with a sub-communicator of its own. A
*round* is one slice of a star's gathers. A *window* shows a parent's manifests to its family.
Every wait polls and ends within a deadline.
"""
