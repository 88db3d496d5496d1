-- The first statements of the script: what was here before, and a search_path that finds nothing of
-- anybody else's. The last one, in finish.sql, restores what they have set.

DO $fencing$
DECLARE
    v_ours integer := 2;
    v_here integer := 0;
BEGIN
    -- Two upgrades at a time would replace the same functions.
    PERFORM pg_catalog.pg_advisory_xact_lock(6073413, 1);
    IF pg_catalog.to_regprocedure('fencing.versions()') IS NOT NULL THEN
        EXECUTE 'SELECT v.schema_version FROM fencing.versions() AS v' INTO v_here;
    ELSIF pg_catalog.to_regclass('fencing.fence') IS NOT NULL THEN
        v_here := 1; -- which did not tell
    END IF;
    IF v_here > v_ours THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF014',
            MESSAGE = pg_catalog.concat('schema fencing is of version ', v_here,
                                        ', and this package knows versions up to ', v_ours),
            HINT = 'Use the package that installed it, or a newer one; nothing was changed.';
    END IF;
    PERFORM pg_catalog.set_config('fencing.version_before', CAST(v_here AS text), true);
    PERFORM pg_catalog.set_config('fencing.known', CAST(ARRAY(
        SELECT p.oid FROM pg_catalog.pg_proc AS p
            WHERE v_here > 0 AND p.pronamespace = pg_catalog.to_regnamespace('fencing')
        UNION ALL
        SELECT c.oid FROM pg_catalog.pg_class AS c
            WHERE v_here > 0 AND c.relnamespace = pg_catalog.to_regnamespace('fencing')) AS text), true);
    PERFORM pg_catalog.set_config(
        'fencing.path_before', pg_catalog.current_setting('search_path'), true);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- Of what is there already there is nothing to be said.
    PERFORM pg_catalog.set_config(
        'fencing.messages_before', pg_catalog.current_setting('client_min_messages'), true);
    PERFORM pg_catalog.set_config('client_min_messages', 'warning', true);
END
$fencing$
--;
DO $fencing$
BEGIN
    IF coalesce(pg_catalog.current_setting('fencing.known', true), '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF013',
            MESSAGE = 'this script must run in one transaction',
            HINT = 'With psql: psql -1 -v ON_ERROR_STOP=1';
    END IF;
END
$fencing$
--;
