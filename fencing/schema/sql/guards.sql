-- The guards of tables: rendered here rather than by a client, so that an old migration, a newer
-- one and psql all make the guard that fits the schema which is installed.
--
-- A guard is one function, made for one root table and its template, and triggers that call it:
--
--   an ordinary table     AFTER INSERT, UPDATE, DELETE for each statement, with transition tables;
--                         its inheritance children the same, for writes that name them
--   a partitioned table   AFTER ... for each row, which PostgreSQL clones to every partition, those
--                         included that are created or attached later
--   both                  BEFORE TRUNCATE where deletes are guarded, and a pin
--
-- What a guard was made from is kept as JSON in the comments of the root's triggers:
-- {"version", "resource", "operations", "mode"}. It is dumped and restored with them.

-- Only one at a time renders or removes a table's guard: refreshing need not lock the table. After a
-- look at fencing.guards, which an upgrade locks first.
CREATE OR REPLACE FUNCTION fencing.lock_guard(p_table regclass) RETURNS void
LANGUAGE sql VOLATILE
AS $fencing$
    SELECT pg_catalog.pg_advisory_xact_lock(
        6073416, CAST(CAST(CAST(p_table AS oid) AS bigint) - 2147483648 AS integer))
$fencing$
--;

-- Locks a table and its parts, and says who is in the way where that takes too long: everybody who
-- wants to write would be queuing behind us.
CREATE OR REPLACE FUNCTION fencing.lock_table(p_table regclass, p_mode text, p_lock_ms integer)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before text := current_setting('lock_timeout');
    v_set_ms double precision := EXTRACT(epoch FROM CAST(v_before AS interval)) * 1000;
BEGIN
    IF v_set_ms = 0 OR v_set_ms > p_lock_ms THEN
        PERFORM set_config('lock_timeout', CAST(greatest(p_lock_ms, 1) AS text), true);
    END IF;
    BEGIN
        PERFORM fencing.lock_guard(p_table);
        EXECUTE concat('LOCK TABLE ', p_table, ' IN ', p_mode, ' MODE');
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF012',
            MESSAGE = concat(p_table, ' is busy: its lock was not to be had within ',
                             current_setting('lock_timeout'), '; nothing was changed'),
            DETAIL = jsonb_build_object(
                'table', fencing.name_of(p_table),
                'blocked_by', (
                    SELECT coalesce(jsonb_agg(DISTINCT l.pid), '[]') FROM pg_locks AS l
                    WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
                        AND l.relation IN (
                            SELECT d.relation FROM fencing.descendants(p_table) AS d(relation)))),
            HINT = 'Run it again when these transactions have ended, or allow it a longer lock_timeout.';
    END;
    PERFORM set_config('lock_timeout', v_before, true);
END
$fencing$
--;

-- What the comment of a trigger says of its guard; NULL for any other comment.
CREATE OR REPLACE FUNCTION fencing.read_comment(p_comment text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF NOT starts_with(p_comment, '{') THEN
        RETURN NULL;
    END IF;
    RETURN CAST(p_comment AS jsonb);
EXCEPTION WHEN others THEN
    RETURN NULL;
END
$fencing$
--;

-- Every table that a guard covers.
CREATE OR REPLACE VIEW fencing.guards AS
    WITH ours AS (
        SELECT t.tgrelid AS relation, t.tgfoid AS function,
            (pg_catalog.array_agg(c.comment) FILTER (WHERE c.comment IS NOT NULL))[1] AS comment
        FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        JOIN pg_catalog.pg_class AS r ON r.oid = t.tgrelid
        CROSS JOIN LATERAL (
            SELECT fencing.read_comment(pg_catalog.obj_description(t.oid, 'pg_trigger')) AS comment
        ) AS c
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND r.relnamespace <> CAST('fencing' AS regnamespace)
        GROUP BY t.tgrelid, t.tgfoid
    )
    SELECT o.relation AS table_oid,
        n.nspname AS table_schema,
        c.relname AS table_name,
        root.comment ->> 'resource' AS resource,
        ARRAY(SELECT pg_catalog.jsonb_array_elements_text(root.comment -> 'operations')) AS operations,
        coalesce(root.comment ->> 'mode', 'enforce') AS mode,
        CAST(root.comment ->> 'version' AS integer) AS version,
        nullif(root.relation, o.relation) AS covered_by
    FROM ours AS o
    JOIN ours AS root ON root.function = o.function AND root.comment IS NOT NULL
    JOIN pg_catalog.pg_class AS c ON c.oid = o.relation
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
--;
COMMENT ON VIEW fencing.guards IS
    'The tables that are guarded, what by, and for parts of a table the root that covers them'
--;

-- Takes off a table the triggers of a guard that it has left: a partition that was detached keeps
-- the one for TRUNCATE, an inheritance child all of them, and neither is a part of the root any
-- more. -> whether there were any
CREATE OR REPLACE FUNCTION fencing.drop_left_over(p_table regclass, p_lock_ms integer)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_trigger record;
BEGIN
    IF NOT EXISTS (
        SELECT FROM fencing.guards AS g
        WHERE g.table_oid = p_table AND g.covered_by IS NOT NULL
            AND p_table NOT IN (
                SELECT d.relation FROM fencing.descendants(g.covered_by) AS d(relation)))
    THEN
        RETURN false;
    END IF;
    PERFORM fencing.lock_table(p_table, 'ACCESS EXCLUSIVE', p_lock_ms);
    FOR v_trigger IN
        SELECT t.tgname AS name FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_table AND t.tgparentid = 0
            AND p.pronamespace = CAST('fencing' AS regnamespace)
    LOOP
        EXECUTE concat('DROP TRIGGER ', quote_ident(v_trigger.name), ' ON ', p_table);
    END LOOP;
    RETURN true;
END
$fencing$
--;

-- The function of a table's guard; raises where it has none, or one that covers more than it.
CREATE OR REPLACE FUNCTION fencing.find_guard(p_table regclass) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function oid;
    v_root     regclass;
BEGIN
    SELECT t.tgfoid INTO v_function FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_table AND p.pronamespace = CAST('fencing' AS regnamespace)
            AND p.proname NOT IN ('remember_previous', 'keep_fence', 'keep_floor', 'end_maintenance')
        ORDER BY t.oid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009', MESSAGE = concat(p_table, ' is not fenced');
    END IF;
    SELECT g.covered_by INTO v_root FROM fencing.guards AS g WHERE g.table_oid = p_table;
    IF v_root IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF009',
            MESSAGE = concat(p_table, ' is not fenced by itself, but as a part of ', v_root),
            HINT = CASE
                WHEN p_table IN (SELECT d.relation FROM fencing.descendants(v_root) AS d(relation))
                    THEN concat('Name ', v_root, ' instead.')
                ELSE 'It is no part of that any more: fence it by itself, or unfence it.'
            END;
    END IF;
    RETURN v_function;
END
$fencing$
--;

-- Operations in their canonical order, and the mode; both checked.
CREATE OR REPLACE FUNCTION fencing.check_guard(
    p_table regclass, p_operations text[], p_mode text
) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF p_operations <@ ARRAY['insert', 'update', 'delete'] AND p_operations <> '{}'
        AND p_mode IN ('enforce', 'observe')
    THEN
        RETURN ARRAY(
            SELECT o.name FROM unnest(ARRAY['insert', 'update', 'delete']) AS o(name)
            WHERE o.name = ANY (p_operations));
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ZF008',
        MESSAGE = concat('cannot fence ', p_table, ': operations ', p_operations, ', mode ', p_mode),
        HINT = 'Operations are some of insert, update and delete; the mode is enforce or observe.';
END
$fencing$
--;

-- Drops the functions of guards whose tables were dropped: they guard nothing.
CREATE OR REPLACE FUNCTION fencing.drop_unused() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function regprocedure;
BEGIN
    FOR v_function IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND starts_with(p.proname, 'guard_')
            AND p.prorettype = CAST('trigger' AS regtype)
            AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgfoid = p.oid)
    LOOP
        EXECUTE concat('DROP FUNCTION ', v_function);
    END LOOP;
END
$fencing$
--;

-- fence_table(table, resource, operations, mode, lock_ms) -> void
--
--   Guards a table and all its parts. Rewrites nothing.
--   resource   its template, such as account:{id}
--   operations what is guarded, of insert, update and delete; TRUNCATE goes with delete
--   mode       enforce, or observe: report what would be refused, and let it pass
--   lock_ms    longest wait for open transactions that have written the table
--   raises     ZF008 unfit, ZF011 fenced already, ZF012 busy
CREATE OR REPLACE FUNCTION fencing.fence_table(
    p_table      regclass,
    p_resource   text,
    p_operations text[] DEFAULT '{insert,update,delete}',
    p_mode       text DEFAULT 'enforce',
    p_lock_ms    integer DEFAULT 5000
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_operations text[] := fencing.check_guard(p_table, p_operations, p_mode);
BEGIN
    PERFORM fencing.check_template(
        p_table, (SELECT t.columns FROM fencing.parse_template(p_resource, 'r') AS t));
    PERFORM fencing.drop_left_over(p_table, p_lock_ms);
    PERFORM fencing.lock_table(p_table, 'SHARE ROW EXCLUSIVE', p_lock_ms);
    -- As it is now: somebody may have changed the table while we waited for it.
    PERFORM fencing.check_template(
        p_table, (SELECT t.columns FROM fencing.parse_template(p_resource, 'r') AS t));
    IF EXISTS (SELECT FROM fencing.guards AS g WHERE g.table_oid = p_table) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF011',
            MESSAGE = concat(p_table, ' is fenced already'),
            HINT = 'Change its guard with op.alter_fence, or remove it with op.unfence_table.';
    END IF;
    PERFORM fencing.drop_unused();
    PERFORM fencing.render_guard(p_table, NULL, p_resource, v_operations, p_mode, false);
END
$fencing$
--;

-- alter_fence(table, resource, operations, mode, lock_ms) -> void
--
--   Changes a guard; NULL keeps what is there. The table is guarded all the while, and open
--   transactions that have written it under the old guard end before the new one is in force.
--   raises     ZF008 unfit, ZF009 not fenced, ZF012 busy
CREATE OR REPLACE FUNCTION fencing.alter_fence(
    p_table      regclass,
    p_resource   text DEFAULT NULL,
    p_operations text[] DEFAULT NULL,
    p_mode       text DEFAULT NULL,
    p_lock_ms    integer DEFAULT 5000
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function   oid;
    v_guard      record;
    v_resource   text;
    v_operations text[];
    v_mode       text;
    v_lighter    boolean;
BEGIN
    -- Again under the lock, if somebody else has changed the guard while we waited for it: what we
    -- are to keep is what he has made of it.
    LOOP
        v_function := fencing.find_guard(p_table);
        SELECT * INTO STRICT v_guard FROM fencing.guards AS g WHERE g.table_oid = p_table;
        v_resource := coalesce(p_resource, v_guard.resource);
        v_mode := coalesce(p_mode, v_guard.mode);
        v_operations := fencing.check_guard(
            p_table, coalesce(p_operations, v_guard.operations), v_mode);
        PERFORM fencing.check_template(
            p_table, (SELECT t.columns FROM fencing.parse_template(v_resource, 'r') AS t));
        -- Dropping a trigger keeps readers away as well.
        v_lighter := v_operations @> v_guard.operations AND v_resource = v_guard.resource;
        PERFORM fencing.lock_table(
            p_table, CASE WHEN v_lighter THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END,
            p_lock_ms);
        EXIT WHEN EXISTS (
            SELECT FROM fencing.guards AS g WHERE g.table_oid = p_table AND g = v_guard);
    END LOOP;
    PERFORM fencing.render_guard(
        p_table, v_function, v_resource, v_operations, v_mode, v_resource <> v_guard.resource);
END
$fencing$
--;

-- unfence_table(table, lock_ms) -> void: removes a guard.
CREATE OR REPLACE FUNCTION fencing.unfence_table(p_table regclass, p_lock_ms integer DEFAULT 5000)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function oid;
    v_trigger  record;
BEGIN
    IF fencing.drop_left_over(p_table, p_lock_ms) THEN
        RETURN;
    END IF;
    PERFORM fencing.find_guard(p_table);
    PERFORM fencing.lock_table(p_table, 'ACCESS EXCLUSIVE', p_lock_ms);
    v_function := fencing.find_guard(p_table);
    FOR v_trigger IN
        SELECT CAST(t.tgrelid AS regclass) AS relation, t.tgname AS name FROM pg_trigger AS t
        WHERE t.tgfoid = v_function AND t.tgparentid = 0
    LOOP
        EXECUTE concat('DROP TRIGGER ', quote_ident(v_trigger.name), ' ON ', v_trigger.relation);
    END LOOP;
    EXECUTE concat('DROP FUNCTION ', CAST(v_function AS regprocedure));
END
$fencing$
--;

-- refresh_guards() -> integer: brings every guard up to the version of this schema, and to the parts
-- that its table has got since. Only what is missing locks a table.
CREATE OR REPLACE FUNCTION fencing.refresh_guards() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_tables oid[] := ARRAY(
        SELECT g.table_oid FROM fencing.guards AS g WHERE g.covered_by IS NULL ORDER BY 1);
    v_guard  record;
    v_count  integer := 0;
BEGIN
    PERFORM fencing.lock_guard(t.relation) FROM unnest(v_tables) AS t(relation);
    -- As they are now: somebody may have changed or removed them since.
    FOR v_guard IN
        SELECT g.*, (
            SELECT t.tgfoid FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
            WHERE t.tgrelid = g.table_oid AND p.pronamespace = CAST('fencing' AS regnamespace)
            LIMIT 1) AS function
        FROM fencing.guards AS g
        WHERE g.covered_by IS NULL AND g.table_oid = ANY (v_tables) ORDER BY g.table_oid
    LOOP
        PERFORM fencing.render_guard(
            v_guard.table_oid, v_guard.function, v_guard.resource, v_guard.operations,
            v_guard.mode, false);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END
$fencing$
--;
