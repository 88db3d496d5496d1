-- Every function of schema fencing.
SELECT CAST(p.oid AS bigint) AS oid,
    p.proname AS name,
    pg_get_function_identity_arguments(p.oid) AS arguments,
    coalesce(pg_get_function_result(p.oid), '') AS result,
    l.lanname AS language,
    coalesce(p.prosrc, '') AS body,
    p.prosecdef AS definer,
    coalesce(p.proconfig, '{}') AS settings,
    p.provolatile AS volatility,
    p.proisstrict AS strict,
    pg_get_userbyid(p.proowner) AS owner,
    has_function_privilege(p.oid, 'EXECUTE') AS callable
FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
WHERE p.pronamespace = to_regnamespace('fencing')
ORDER BY p.proname, 3
