-- Rights that others than their owners have on schema fencing and what is in it.
SELECT g.kind, g.object, g.name, g.column_name, g.privilege,
    CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(pg_get_userbyid(g.grantee) AS text) END AS grantee
FROM (
    SELECT 'schema' AS kind, CAST(n.oid AS bigint) AS object, CAST(n.nspname AS text) AS name,
        NULL AS column_name,
        a.privilege_type AS privilege, a.grantee
    FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
    WHERE n.nspname = 'fencing' AND a.grantee <> n.nspowner
    UNION ALL
    SELECT 'table', CAST(c.oid AS bigint), c.relname, NULL, a.privilege_type, a.grantee
    FROM pg_class AS c, aclexplode(c.relacl) AS a
    WHERE c.relnamespace = to_regnamespace('fencing') AND a.grantee <> c.relowner
    UNION ALL
    SELECT 'table', CAST(c.oid AS bigint), c.relname, t.attname, a.privilege_type, a.grantee
    FROM pg_class AS c JOIN pg_attribute AS t ON t.attrelid = c.oid, aclexplode(t.attacl) AS a
    WHERE c.relnamespace = to_regnamespace('fencing') AND a.grantee <> c.relowner
    UNION ALL
    SELECT 'function', CAST(p.oid AS bigint),
        concat(p.proname, '(', oidvectortypes(p.proargtypes), ')'), NULL,
        a.privilege_type, a.grantee
    FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = to_regnamespace('fencing') AND a.grantee <> p.proowner
) AS g
ORDER BY 1, 3, 4, 5, 6
