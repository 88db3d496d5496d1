-- Tables that logical replication writes.
SELECT s.subname AS name, CAST(r.srrelid AS bigint) AS relation
FROM pg_subscription_rel AS r JOIN pg_subscription AS s ON s.oid = r.srsubid
ORDER BY 1, 2
