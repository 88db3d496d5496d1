-- Settings that matter: of the connection that looks, and as defaults of roles and databases.
SELECT s.name, s.setting AS value, NULL AS role
FROM pg_settings AS s
WHERE s.name IN ('max_prepared_transactions', 'synchronous_commit', 'fsync', 'full_page_writes',
                 'default_transaction_isolation', 'session_replication_role')
UNION ALL
SELECT split_part(c.item, '=', 1), substr(c.item, strpos(c.item, '=') + 1),
    CASE d.setrole WHEN 0 THEN 'every role' ELSE CAST(pg_get_userbyid(d.setrole) AS text) END
FROM pg_db_role_setting AS d, unnest(d.setconfig) AS c(item)
WHERE d.setdatabase IN (0, (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database()))
    AND split_part(c.item, '=', 1) IN
        ('synchronous_commit', 'default_transaction_isolation', 'session_replication_role')
ORDER BY 1, 3 NULLS FIRST
