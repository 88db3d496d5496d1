"""The demonstration: an expired lock holder overwrites its successor's work, or cannot.

Two real processes, A and B, withdraw from one account. A takes the lease, reads the balance in a
transaction that it closes, and is stopped (SIGSTOP) for longer than its lease lasts. B takes the
lease, reads, withdraws, commits. Then A is continued and writes what it has computed. Three acts::

    unguarded   the lock alone                   A writes, and B's update is lost
    expired     A's own deadline check speaks    LeaseExpiredError, nothing is sent
    guarded     A is stopped between that check  StaleFenceError, from the database
                and the sending

The third act is the one that no client can exclude: there is always a moment between looking at a
clock and sending, and a process can be paused in it.

Nothing depends on how fast the machine is. A stops *itself* at the place in question, its parent
waits until the kernel says that it is stopped, and that the lease is over is known from B, whose
acquisition waits for it. Should A's lease run out before A gets to that place, the act is played
again with a longer lease.

Modules::

    bank       the table, and how much A and B withdraw
    worker     the program of both processes; ordinary code, and the places where A stops
    process    one such process, as its parent sees it
    stage      a database and Redis keys of the demonstration's own, which leave no trace
    acts       the three acts
    verdict    what came of an act, and whether it is what was promised
    timeline   the acts as a table in 80 columns
    show       all of it, from the first process to the last clean-up
"""
