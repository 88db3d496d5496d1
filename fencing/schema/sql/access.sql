-- Who may call what. Only objects that this script has just created are touched: what an
-- administrator has granted or revoked since an earlier version stays.

-- Takes every right on a function from everybody but its owner. ALTER DEFAULT PRIVILEGES may have
-- granted some, usually to the very role that the application runs as.
CREATE OR REPLACE FUNCTION fencing.close_access(p_function oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_grantee text;
BEGIN
    FOR v_grantee IN
        SELECT DISTINCT
            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
        WHERE p.oid = p_function AND a.grantee <> p.proowner
    LOOP
        EXECUTE concat('REVOKE ALL ON FUNCTION ', CAST(p_function AS regprocedure), ' FROM ',
                       v_grantee, ' CASCADE');
    END LOOP;
END
$fencing$
--;
DO $fencing$
DECLARE
    -- Written by the script's first statement.
    v_known  oid[] := CAST(current_setting('fencing.known') AS oid[]);
    v_before integer := CAST(current_setting('fencing.version_before') AS integer);
    v_object record;
    v_owner  text;
BEGIN
    -- What is there already runs with the rights of the schema's owner; whoever brings the schema
    -- forward, a superuser or a member of the owner, what is new has to be the owner's as well.
    SELECT quote_ident(pg_get_userbyid(n.nspowner)) INTO v_owner
        FROM pg_namespace AS n WHERE n.nspname = 'fencing';
    FOR v_object IN
        SELECT concat('FUNCTION ', CAST(p.oid AS regprocedure)) AS name
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'fencing' AND p.oid <> ALL (v_known) AND p.proowner <> n.nspowner
        UNION ALL
        SELECT concat('TABLE ', CAST(c.oid AS regclass))
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'fencing' AND c.relkind IN ('r', 'v')
            AND c.oid <> ALL (v_known) AND c.relowner <> n.nspowner
    LOOP
        EXECUTE concat('ALTER ', v_object.name, ' OWNER TO ', v_owner);
    END LOOP;
    FOR v_object IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND p.oid <> ALL (v_known)
    LOOP
        PERFORM fencing.close_access(v_object.oid);
    END LOOP;
    FOR v_object IN
        SELECT DISTINCT c.oid,
            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
                AS grantee
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.relnamespace = CAST('fencing' AS regnamespace) AND c.relkind IN ('r', 'v')
            AND c.oid <> ALL (v_known) AND a.grantee <> c.relowner
    LOOP
        EXECUTE concat('REVOKE ALL ON ', CAST(v_object.oid AS regclass), ' FROM ',
                       v_object.grantee, ' CASCADE');
    END LOOP;
    IF v_before = 0 THEN
        FOR v_object IN
            SELECT DISTINCT
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
                    AS grantee
            FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
            WHERE n.nspname = 'fencing' AND a.grantee <> n.nspowner
        LOOP
            EXECUTE concat('REVOKE ALL ON SCHEMA fencing FROM ', v_object.grantee, ' CASCADE');
        END LOOP;
    END IF;
    -- What applications call, and what these functions need of their caller; with the version in
    -- which it became theirs.
    FOR v_object IN
        SELECT * FROM (VALUES
            (1, 'USAGE ON SCHEMA fencing'),
            (1, 'EXECUTE ON FUNCTION fencing.admit(text, bigint, text, text, integer)'),
            (1, 'EXECUTE ON FUNCTION fencing.enter(text, integer)'),
            (1, 'EXECUTE ON FUNCTION fencing.mark(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.acquire(text, text, text, bigint, bigint, integer, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.acquire_all(text, text, bigint, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.renew(text, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.release(text, text, integer, boolean)'),
            (2, 'EXECUTE ON FUNCTION fencing.raise_token(text, text, bigint, boolean, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.look(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.scan(text, text, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.force_release(text, text, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.identity()'),
            (2, 'EXECUTE ON FUNCTION fencing.versions()'),
            (2, 'EXECUTE ON FUNCTION fencing.enter(text, integer, uuid)'),
            (2, 'EXECUTE ON FUNCTION fencing.outcome(uuid, text, integer)'),
            (2, 'EXECUTE ON FUNCTION fencing.in_flight(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.incarnation()'),
            (2, 'EXECUTE ON FUNCTION fencing.outcome_of(text, text)'),
            (2, 'EXECUTE ON FUNCTION fencing.evict(text, bigint, timestamptz)'),
            (2, 'EXECUTE ON FUNCTION fencing.refuse(text, text, text, bigint, bigint)'),
            (2, 'EXECUTE ON FUNCTION fencing.explain(text, text, text, bigint, bigint)'),
            (2, 'EXECUTE ON FUNCTION fencing.holders_of(bigint)'),
            (2, 'EXECUTE ON FUNCTION fencing.lock_key(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.identity_key(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.read_comment(text)'),
            (2, 'EXECUTE ON FUNCTION fencing.parse_template(text, text)'),
            (2, 'EXECUTE ON FUNCTION fencing.render_body(text, text, boolean)'),
            (2, 'SELECT ON fencing.guards')
        ) AS g(since, privilege)
        WHERE g.since > v_before
    LOOP
        EXECUTE concat('GRANT ', v_object.privilege, ' TO PUBLIC');
    END LOOP;
END
$fencing$
--;
