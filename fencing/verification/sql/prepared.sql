-- Prepared transactions of this database, and whether they hold what admissions wait for.
SELECT x.gid, x.owner, x.prepared,
    EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.pid IS NULL
            AND l.virtualtransaction = concat('-1/', x.transaction)
            AND ((l.locktype = 'advisory' AND l.objsubid = 1)
                 OR l.relation = to_regclass('fencing.fence'))
    ) AS holds
FROM pg_prepared_xacts AS x
WHERE x.database = current_database()
ORDER BY x.prepared
