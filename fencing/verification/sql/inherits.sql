-- Which table is a partition or an inheritance child of which.
SELECT CAST(i.inhrelid AS bigint) AS child, CAST(i.inhparent AS bigint) AS parent
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE c.relkind IN ('r', 'p', 'f')
ORDER BY 1, 2
