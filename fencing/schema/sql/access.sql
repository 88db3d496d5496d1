-- Callers reach three functions and nothing else; the guards run as their owner.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencing FROM PUBLIC
--;
-- ALTER DEFAULT PRIVILEGES may have granted more to some roles, usually the very role that the
-- application runs as.
DO $fencing$
DECLARE
    v_grantee text;
BEGIN
    FOR v_grantee IN
        SELECT DISTINCT
            CASE a.grantee WHEN 0 THEN 'PUBLIC'
            ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END
        FROM (
            SELECT n.nspowner AS owner, n.nspacl AS acl FROM pg_catalog.pg_namespace AS n
                WHERE n.nspname = 'fencing'
            UNION ALL
            SELECT c.relowner, c.relacl FROM pg_catalog.pg_class AS c
                WHERE c.relnamespace = CAST('fencing' AS regnamespace)
            UNION ALL
            SELECT p.proowner, p.proacl FROM pg_catalog.pg_proc AS p
                WHERE p.pronamespace = CAST('fencing' AS regnamespace)
        ) AS o, pg_catalog.aclexplode(o.acl) AS a
        WHERE a.grantee <> o.owner
    LOOP
        EXECUTE pg_catalog.concat('REVOKE ALL ON SCHEMA fencing FROM ', v_grantee, ' CASCADE');
        EXECUTE pg_catalog.concat(
            'REVOKE ALL ON ALL TABLES IN SCHEMA fencing FROM ', v_grantee, ' CASCADE');
        EXECUTE pg_catalog.concat(
            'REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencing FROM ', v_grantee, ' CASCADE');
    END LOOP;
END
$fencing$
--;
GRANT USAGE ON SCHEMA fencing TO PUBLIC
--;
GRANT EXECUTE ON FUNCTION
    fencing.admit(text, bigint, text, text, integer),
    fencing.enter(text, integer),
    fencing.mark(text)
TO PUBLIC
--;
