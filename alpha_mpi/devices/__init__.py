"""Devices: the one room that knows that a GPU exists. Today it says which ones are there."""
