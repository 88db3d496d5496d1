"""The torture: processes that write under leases, everything that can go wrong, and who checks.

What is run, and who is believed:

- *Workers* (:mod:`~fencing.torture.worker`) are processes. Each does units of work under leases,
  as an application would: add one to a register, append to a set, move money between two accounts.
- *The database* keeps the history of what it accepted. Triggers write a row of it in the same
  transaction as each change (``torture.write``) and each admission (``torture.admission``), all
  numbered from one sequence. A row is changed under its lock, and a resource is admitted under its
  own; so the numbers of one row, and of one resource's writes and admissions, are the order in
  which they were accepted. Nothing rests on a clock, or on the order of transaction ids.
- *What a worker was told* it writes to a file of its own before it goes on
  (:mod:`~fencing.torture.recording`): what it was granted and for how long it believes in it, what
  it read, how each transaction ended as far as it can know.
- *Faults* (:mod:`fencing.torture.faults`) come from a seed: processes stop at named points and go
  on much later or never, servers crash and forget, packets are lost and delayed, clocks jump.
- *Checkers* (:mod:`fencing.torture.checking`) know nothing of all that but the history. Each is a
  pure function from a :class:`~fencing.torture.history.History` to violations, and carries the name
  of the invariant that it checks.

The same run without the guard loses updates, and each mutant of the protocol is caught by a
checker that is named beforehand; see ``docs/reliability.md``.
"""
