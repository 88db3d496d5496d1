"""What is done to a run.

A fault is a generator: it does something, yields how long that shall last (seconds), and undoes it
or not; closed in between, it must leave servers that can be used. The run performs several at a
time without threads. What it needs of the servers it is given as a
:class:`~fencing.torture.stage.Stage`.
"""

from fencing.torture.faults.kinds import FaultKind, available, kinds

__all__ = ["FaultKind", "available", "kinds"]
