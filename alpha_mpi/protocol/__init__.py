"""Protocol: what roles say to each other, and who takes the next entry, without any I/O.

A *machine* is one role's part in one attempt: it is told *events* and answers with *effects*.
A *commitment* is what a child tells its parent: its capture prefix and one record.
A *sign* says that a role lives; *silence* is the time without one.
An attempt ends by *release* (published), *abort* (not published) or *doubt* (nobody can say).
A *continuation* takes the next entry of the newest epoch with its claim; that claim is the *seal*.
"""
