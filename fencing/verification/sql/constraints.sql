-- CHECK constraints and primary keys of schema fencing. NOT ENFORCED came with version 18.
SELECT c.relname AS table_name,
    o.conname AS name,
    pg_get_constraintdef(o.oid) AS definition,
    o.convalidated AS validated,
    coalesce(CAST(to_jsonb(o) ->> 'conenforced' AS boolean), true) AS enforced
FROM pg_constraint AS o JOIN pg_class AS c ON c.oid = o.conrelid
WHERE c.relnamespace = to_regnamespace('fencing') AND o.contype IN ('c', 'p')
