-- Who is looking, at what. Runs before the search_path is pinned, so it uses no operator.
SELECT pg_catalog.current_database() AS database,
    current_user AS who,
    pg_catalog.current_schemas(true) AS path,
    pg_catalog.current_setting('server_version_num') AS server,
    pg_catalog.pg_is_in_recovery() AS standby
