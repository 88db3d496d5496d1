"""What every kind of guard needs, whichever way it talks to its database.

::

    plan, performing      how an admitted lease comes about: decided, and performed twice
    held, slots           who would be waiting for himself; waiting for a connection in turn
    presented, whereabouts   what a transaction has presented, and where it was begun
    outcome, wire         what has become of a COMMIT; what has arrived and was not read

No driver and no lock service is imported here.
"""
