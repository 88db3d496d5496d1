"""What is done to a run.

A fault is a generator: it does something, yields how long that shall last (seconds), and undoes it
or not; closed in between, it must leave servers that can be used. The run performs several at a
time without threads. What it needs of the servers it is given as a
:class:`~fencing.torture.stage.Stage`. A fault whose server another fault has taken away raises
:class:`~fencing.torture.faults.kinds.MissedError`, and is not counted.
"""

from fencing.torture.faults.kinds import FaultKind, MissedError, available, kinds

__all__ = ["FaultKind", "MissedError", "available", "kinds"]
