-- Tables and views of schema fencing.
SELECT c.relname AS name,
    c.relkind AS kind,
    c.relpersistence AS persistence,
    pg_get_userbyid(c.relowner) AS owner,
    c.relrowsecurity AS row_security,
    EXISTS (SELECT FROM pg_rewrite AS r
            WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN') AS has_rules,
    EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid) AS has_children,
    ARRAY(SELECT a.attname FROM pg_attribute AS a
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          ORDER BY a.attnum) AS columns,
    has_table_privilege(c.oid, 'SELECT') AS readable
FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace('fencing') AND c.relkind NOT IN ('i', 'I', 't', 'c')
ORDER BY c.relname
