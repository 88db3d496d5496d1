-- Triggers that are ours: on our tables, or calling a function of ours.
SELECT CAST(t.tgrelid AS bigint) AS relation,
    t.tgname AS name,
    CAST(t.tgfoid AS bigint) AS function,
    p.pronamespace = to_regnamespace('fencing') AS calls_ours,
    t.tgenabled AS enabled,
    t.tgtype AS type,
    t.tgparentid <> 0 AS is_clone,
    t.tgqual IS NOT NULL OR CAST(t.tgattr AS text) <> '' AS is_narrowed,
    coalesce(t.tgnewtable, '') AS new_table,
    coalesce(t.tgoldtable, '') AS old_table,
    pg_get_triggerdef(t.oid) AS definition,
    ARRAY(
        SELECT a.attname FROM pg_depend AS d
        JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = CAST('pg_trigger' AS regclass) AND d.objid = t.oid
            AND d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = t.tgrelid
            AND d.refobjsubid > 0
        ORDER BY a.attname
    ) AS columns,
    obj_description(t.oid, 'pg_trigger') AS comment
FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal
    AND (c.relnamespace = to_regnamespace('fencing') OR p.pronamespace = to_regnamespace('fencing'))
ORDER BY t.tgrelid, t.tgname
