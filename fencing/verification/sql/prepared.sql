-- Prepared transactions of this database, and whether they hold what admissions wait for.
SELECT x.gid, x.owner, x.prepared,
    EXISTS (
        -- Its locks are those of the virtual transaction that holds its own id.
        SELECT FROM pg_locks AS i JOIN pg_locks AS l ON l.virtualtransaction = i.virtualtransaction
        WHERE i.locktype = 'transactionid' AND i.transactionid = x.transaction
            AND i.granted AND i.pid IS NULL AND l.pid IS NULL
            AND ((l.locktype = 'advisory' AND l.objsubid = 1)
                 OR l.relation = to_regclass('fencing.fence'))
    ) AS holds
FROM pg_prepared_xacts AS x
WHERE x.database = current_database()
ORDER BY x.prepared
