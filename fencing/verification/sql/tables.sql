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
    ARRAY(SELECT concat(a.attname, ' ', pg_get_expr(d.adbin, d.adrelid))
          FROM pg_attrdef AS d JOIN pg_attribute AS a
              ON a.attrelid = d.adrelid AND a.attnum = d.adnum
          WHERE d.adrelid = c.oid ORDER BY d.adnum) AS defaults,
    ARRAY(SELECT pg_get_indexdef(i.indexrelid) FROM pg_index AS i
          WHERE i.indrelid = c.oid AND i.indisvalid ORDER BY 1) AS indexes,
    has_table_privilege(c.oid, 'SELECT') AS readable
FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace('fencing') AND c.relkind NOT IN ('i', 'I', 't', 'c')
ORDER BY c.relname
