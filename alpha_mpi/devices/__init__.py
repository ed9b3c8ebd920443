"""Devices: the one room that knows that a GPU exists.

A *device* is one GPU as this process numbers it; its *identity* says which card or slice it is,
however the process was told to see it. The *runtime* is the seam to it: streams, events, pinned
memory, copies, identities. *Device words* are an array that lies on a device; they are *staged*
through the *ring*, pinned buffers of bounded size. A *producer* is whoever wrote the array last,
on a stream of its own.
"""
