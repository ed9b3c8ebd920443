"""Qualification: whether a file system, and the ranks that use it, keep what a store promises.

A *check* is one property, tried for real; it *held*, *failed*, held *partly* (its time was over
before all was tried), or was *not tried*, which is never a pass. A *plan* says how much is tried. A
*team* are the ranks that take part. The *scratch* is the one directory in which all of it happens.
The *warden* is a process that starts short lives, each in a process of its own, and sees them die.
A *report* is what all checks found, for people and for programs.
"""

from __future__ import annotations

from .check import Check, Plan
from .report import Report

__all__ = ["Check", "Plan", "Report"]
