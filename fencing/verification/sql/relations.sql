-- Every table, ours included. Names as SQL writes them.
SELECT CAST(c.oid AS bigint) AS oid,
    n.nspname AS schema,
    c.relname AS table_name,
    concat(quote_ident(n.nspname), '.', quote_ident(c.relname)) AS name,
    c.relkind AS kind,
    pg_get_userbyid(c.relowner) AS owner
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY 4
