-- A database as version 1 of the schema left it: what `fencing install` created, and two guards.
-- Kept as it was; the tests bring it forward.

CREATE TABLE accounts (id bigint PRIMARY KEY, balance int NOT NULL);

CREATE TABLE ledger (id bigint PRIMARY KEY);

-- Schema "fencing": the fence, and the functions that admit, enter and guard.
--
-- The model. The fence holds, for every resource, the largest token ever admitted (the high-water
-- mark) and the holder it was admitted for. Three functions touch it:
--
--   admit    a new holder commits its token, in a transaction of its own; from then on every
--            older holder is refused. It waits for the open transactions of older holders.
--   enter    the first statement of a transaction that acts under a lease: it waits for an
--            admission in progress, compares, and notes the claim for this transaction.
--   require  called by the triggers of every guarded table: it locks the fence row and compares
--            it with the claim. This is what refuses; the other two decide only who waits.
--
-- admit and enter meet in one advisory lock per resource: exclusive for admit, shared for enter.
-- require trusts neither: it locks the fence row itself, so that under an old snapshot
-- (REPEATABLE READ, SERIALIZABLE) an overtaken holder fails as well.
--
-- Every function that a caller reaches is SECURITY DEFINER with a pinned search_path: callers
-- need no right on the fence, and no operator or function of theirs is ever looked up.
--
-- Settings:   fencing.claim   what this transaction has presented, transaction-local:
--                             "<stamp> <hex of resource>=<token>.<holder> ..."
-- SQLSTATEs:  see names.py; class ZF is outside the range that the SQL standard reserves.
-- Units:      every argument named *_ms is in milliseconds.
--
-- A line "--;" ends a statement. Neither a percent sign nor a colon before a name may appear in
-- this file: migration tools read them.

CREATE SCHEMA fencing;

COMMENT ON SCHEMA fencing IS
    'Fencing tokens: refuses writes of overtaken lock holders. Do not change by hand.';

-- fillfactor leaves room for HOT updates: an admission changes no indexed column.
CREATE TABLE fencing.fence (
    resource        text COLLATE "C" PRIMARY KEY,
    token           bigint NOT NULL,
    holder          text NOT NULL,
    owner           text NOT NULL,
    previous_token  bigint NOT NULL DEFAULT 0,
    previous_holder text NOT NULL DEFAULT '',
    admitted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT fence_resource_length
        CHECK (octet_length(resource) BETWEEN 1 AND 512),
    CONSTRAINT fence_token_range
        CHECK (token BETWEEN 1 AND 9007199254740991),
    CONSTRAINT fence_token_never_decreases
        CHECK (token > previous_token OR (token = previous_token AND holder = previous_holder))
) WITH (fillfactor = 80);

COMMENT ON TABLE fencing.fence IS
    'One row a resource: the largest fencing token admitted, and the holder it was admitted for';

-- A CHECK cannot see the old row, so this trigger copies it into the new one; whatever an UPDATE
-- wrote into previous_* by hand is overwritten.
CREATE FUNCTION fencing.remember_previous() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF NEW.resource IS DISTINCT FROM OLD.resource THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF007',
            MESSAGE = 'the fence of "' || OLD.resource || '" cannot be renamed',
            HINT = 'Renaming a fence would let older tokens in again.';
    END IF;
    NEW.previous_token := OLD.token;
    NEW.previous_holder := OLD.holder;
    RETURN NEW;
END
$fencing$;

CREATE FUNCTION fencing.keep_fence() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF007',
        MESSAGE = 'a fence cannot be removed (' || TG_OP || ' on fencing.fence)',
        HINT = 'Removing a fence would let older tokens in again.';
END
$fencing$;

CREATE TRIGGER fence_remember_previous BEFORE UPDATE ON fencing.fence
    FOR EACH ROW EXECUTE FUNCTION fencing.remember_previous();

CREATE TRIGGER fence_keep_rows BEFORE DELETE ON fencing.fence
    FOR EACH ROW EXECUTE FUNCTION fencing.keep_fence();

CREATE TRIGGER fence_keep_table BEFORE TRUNCATE ON fencing.fence
    FOR EACH STATEMENT EXECUTE FUNCTION fencing.keep_fence();

-- ALWAYS: session_replication_role must not switch them off.
ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_remember_previous;

ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_keep_rows;

ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_keep_table;

-- The advisory lock of a resource. Two resources that hash alike only wait for each other.
CREATE FUNCTION fencing.lock_key(p_resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$ SELECT pg_catalog.hashtextextended(p_resource COLLATE "C", 6073413) $fencing$;

-- What tells this transaction from every other: a claim that leaked into another transaction
-- through a pool does not match there. Costs no transaction id, unlike txid_current().
CREATE FUNCTION fencing.stamp() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
AS $fencing$
    SELECT pg_catalog.concat(
        pg_catalog.pg_backend_pid(), '.',
        CAST(EXTRACT(epoch FROM pg_catalog.transaction_timestamp()) * 1000000 AS bigint))
$fencing$;

CREATE FUNCTION fencing.refuse_stale(p_resource text, p_token bigint, p_mark bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF001',
        MESSAGE = concat('stale fence: "', p_resource, '" was presented with token ', p_token,
                         ', but token ', p_mark, ' has been admitted'),
        DETAIL = jsonb_build_object(
            'resource', p_resource, 'token', p_token, 'current_token', p_mark),
        HINT = 'Another holder has taken over. Acquire again and repeat the work from its first read.';
END
$fencing$;

CREATE FUNCTION fencing.refuse_unadmitted(p_resource text, p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF003',
        MESSAGE = concat('token ', p_token, ' on "', p_resource,
                         '" was presented before this database had admitted it'),
        DETAIL = jsonb_build_object('resource', p_resource, 'token', p_token),
        HINT = 'Acquire through a Guard, or call Guard.admit(lease) before the first transaction.';
END
$fencing$;

CREATE FUNCTION fencing.refuse_unfenced(p_table text, p_resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF002',
        MESSAGE = concat('unfenced write: ', p_table, ' is guarded, and this transaction '
                         'has presented no lease on "', p_resource, '"'),
        DETAIL = jsonb_build_object('table', p_table, 'resource', p_resource),
        HINT = 'Begin the transaction under the lease, through an engine that a Guard was made for.';
END
$fencing$;

-- admit(resource, token, holder, owner, wait_ms) -> boolean
--
--   Commits a lease's token as the resource's high-water mark. Must be a READ COMMITTED
--   transaction of its own: inside another one the mark would roll back with it.
--   wait_ms    longest wait for open transactions of other holders; 0 does not wait
--   returns    true when admitted now, false when this very pair had been admitted before
--   raises     ZF001 stale (the mark is in DETAIL), ZF004 implausible token, ZF005 blocked (the
--              pids are in DETAIL), ZF006 wrong isolation level
CREATE FUNCTION fencing.admit(
    p_resource text, p_token bigint, p_holder text, p_owner text, p_wait_ms integer
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_key     bigint := fencing.lock_key(p_resource);
    v_mark    bigint;
    v_holder  text;
    v_blocked boolean := false;
BEGIN
    -- Under an older snapshot the reads below would not see what they waited for.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF006',
            MESSAGE = 'an admission must run at READ COMMITTED, not '
                      || upper(current_setting('transaction_isolation'));
    END IF;

    -- Also for the first look: somebody may have locked the whole table. 0 would disable it.
    PERFORM set_config('lock_timeout', CAST(greatest(p_wait_ms, 1) AS text), true);

    -- Without a lock first: an overtaken holder that queued for it would stall the living one.
    SELECT f.token, f.holder INTO v_mark, v_holder
        FROM fencing.fence AS f WHERE f.resource = p_resource;
    IF v_mark = p_token AND v_holder = p_holder THEN
        RETURN false;
    END IF;
    IF v_mark >= p_token THEN
        PERFORM fencing.refuse_stale(p_resource, p_token, v_mark);
    END IF;

    IF NOT pg_try_advisory_xact_lock(v_key) THEN
        IF p_wait_ms > 0 THEN
            BEGIN
                PERFORM pg_advisory_xact_lock(v_key);
            EXCEPTION WHEN lock_not_available THEN
                v_blocked := true;
            END;
        ELSE
            v_blocked := true;
        END IF;
    END IF;
    IF v_blocked THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF005',
            MESSAGE = concat('the admission of token ', p_token, ' on "', p_resource,
                             '" is blocked by open transactions'),
            DETAIL = jsonb_build_object(
                'resource', p_resource,
                'blocked_by', (
                    SELECT coalesce(jsonb_agg(DISTINCT l.pid), '[]')
                    FROM pg_locks AS l
                    WHERE l.locktype = 'advisory'
                        AND l.database = (SELECT d.oid FROM pg_database AS d
                                          WHERE d.datname = current_database())
                        AND CAST(l.classid AS bigint) = ((v_key >> 32) & 4294967295)
                        AND CAST(l.objid AS bigint) = (v_key & 4294967295)
                        AND l.objsubid = 1
                        AND l.granted
                        AND l.pid <> pg_backend_pid()));
    END IF;

    -- A new statement, hence a new snapshot: what was admitted while we waited is seen here.
    SELECT f.token, f.holder INTO v_mark, v_holder
        FROM fencing.fence AS f WHERE f.resource = p_resource;
    IF v_mark = p_token AND v_holder = p_holder THEN
        RETURN false;
    END IF;
    IF v_mark >= p_token THEN
        PERFORM fencing.refuse_stale(p_resource, p_token, v_mark);
    END IF;
    -- One nonsensical token must not make every later one stale. 2^40; a resource without a row
    -- is free to start anywhere, since some lock services start high.
    IF p_token - v_mark > 1099511627776 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF004',
            MESSAGE = concat('token ', p_token, ' on "', p_resource, '" is implausible: the mark is ',
                             v_mark, ', and a mark rises by at most 2^40 at a time'),
            DETAIL = jsonb_build_object(
                'resource', p_resource, 'token', p_token, 'current_token', v_mark);
    END IF;

    -- An admission that was acknowledged must survive a crash, whatever the role's default is.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO fencing.fence AS f (resource, token, holder, owner)
        VALUES (p_resource, p_token, p_holder, p_owner)
        ON CONFLICT (resource) DO UPDATE
        SET token = excluded.token, holder = excluded.holder, owner = excluded.owner,
            admitted_at = clock_timestamp();
    RETURN true;
END
$fencing$;

-- enter(leases, limit_ms) -> void
--
--   The first statement of a transaction that acts under leases: presents them.
--   leases     "<hex of resource>=<token>.<holder>", separated by single spaces
--   limit_ms   trust left in the shortest of them when this was sent; NULL sets no limits
--   raises     ZF001 stale, ZF003 not admitted, 55P03 when the trust ran out while waiting for
--              an admission
--
--   Sets, for this transaction only and never longer than they are, the limits that end it when
--   its holder is paused, so that a successor need not wait for ever.
CREATE FUNCTION fencing.enter(p_leases text, p_limit_ms integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_claim        text := fencing.stamp();
    v_lock_timeout text := current_setting('lock_timeout');
    v_lock_ms      double precision;
    v_lease        record;
    v_mark         bigint;
    v_holder       text;
    v_left         double precision;
    v_limit        double precision;
    v_setting      text;
    v_set_ms       double precision;
BEGIN
    v_lock_ms := EXTRACT(epoch FROM CAST(v_lock_timeout AS interval)) * 1000;
    -- In the order of their locks, everywhere: two transactions cannot wait for each other.
    FOR v_lease IN
        SELECT fencing.lock_key(p.resource) AS key, p.resource, p.token, p.holder
        FROM (
            SELECT convert_from(decode(split_part(i.item, '=', 1), 'hex'), 'UTF8') AS resource,
                   CAST(split_part(split_part(i.item, '=', 2), '.', 1) AS bigint) AS token,
                   split_part(split_part(i.item, '=', 2), '.', 2) AS holder
            FROM unnest(string_to_array(p_leases, ' ')) AS i(item)
        ) AS p
        ORDER BY 1
    LOOP
        -- What is left of the trust; it is one for all the locks. 0 would disable a limit.
        v_limit := greatest(1, floor(
            p_limit_ms - EXTRACT(epoch FROM clock_timestamp() - statement_timestamp()) * 1000));
        IF p_limit_ms IS NOT NULL AND (v_lock_ms = 0 OR v_lock_ms > v_limit) THEN
            PERFORM set_config('lock_timeout', CAST(v_limit AS text), true);
        END IF;
        PERFORM pg_advisory_xact_lock_shared(v_lease.key);
        SELECT f.token, f.holder INTO v_mark, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_lease.resource;
        IF v_mark IS NULL OR v_mark < v_lease.token THEN
            PERFORM fencing.refuse_unadmitted(v_lease.resource, v_lease.token);
        ELSIF v_mark > v_lease.token OR v_holder IS DISTINCT FROM v_lease.holder THEN
            PERFORM fencing.refuse_stale(v_lease.resource, v_lease.token, v_mark);
        END IF;
        v_claim := concat(v_claim, ' ', encode(convert_to(v_lease.resource, 'UTF8'), 'hex'),
                          '=', v_lease.token, '.', v_lease.holder);
    END LOOP;
    PERFORM set_config('lock_timeout', v_lock_timeout, true);
    PERFORM set_config('fencing.claim', v_claim, true);

    IF p_limit_ms IS NULL THEN
        RETURN;
    END IF;
    v_left := greatest(1, floor(
        p_limit_ms - EXTRACT(epoch FROM clock_timestamp() - statement_timestamp()) * 1000));
    FOREACH v_setting IN ARRAY ARRAY[
        'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout',
        'tcp_user_timeout', 'client_connection_check_interval']
    LOOP
        -- NULL where this server does not have it: transaction_timeout came with version 17.
        v_set_ms := EXTRACT(epoch FROM CAST(current_setting(v_setting, true) AS interval)) * 1000;
        v_limit := v_left;
        IF v_setting = 'tcp_user_timeout' THEN
            -- The only limit on a server that is sending rows to a client which does not read
            -- them: it looks at no other until they are sent. Needs TCP, and Linux. Not below a
            -- second: it would take a slow answer for a dead client.
            CONTINUE WHEN version() !~ 'linux';
            v_limit := greatest(v_left, 1000);
            -- Shown as the socket has it, in milliseconds and without a unit.
            v_set_ms := CAST(current_setting(v_setting) AS double precision);
        ELSIF v_setting = 'client_connection_check_interval' THEN
            -- Not a limit but how often the server looks whether the client is still there;
            -- needs a platform that can tell.
            CONTINUE WHEN version() ~ '(Visual C|windows|mingw)';
            v_limit := least(v_left, 500);
        END IF;
        CONTINUE WHEN v_set_ms IS NULL OR (v_set_ms > 0 AND v_set_ms <= v_limit);
        IF v_setting = 'transaction_timeout' AND v_set_ms > 0 THEN
            -- A timer that is running is not shortened; it has to be stopped first.
            PERFORM set_config(v_setting, '0', true);
        END IF;
        PERFORM set_config(v_setting, CAST(v_limit AS text), true);
    END LOOP;
END
$fencing$;

-- require(table_name, resources) -> void
--
--   What refuses. Called by the guard of a table with every distinct resource a statement has
--   touched: each must be in this transaction's claim, and the claim must be what the fence
--   says, read under a lock that holds until this transaction ends.
--   raises     ZF001 stale, ZF002 unfenced, ZF003 not admitted
CREATE FUNCTION fencing.require(p_table text, p_resources text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_claim     text := coalesce(current_setting('fencing.claim', true), '');
    v_resource  text;
    v_claimed   text;
    v_presented bigint;
    v_token     bigint;
    v_holder    text;
BEGIN
    IF NOT starts_with(v_claim, fencing.stamp() || ' ') THEN
        v_claim := '';
    END IF;
    FOREACH v_resource IN ARRAY p_resources LOOP
        IF v_resource IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF002',
                MESSAGE = concat('unfenced write: a row of ', p_table, ' names no resource, since '
                                 'a column of its template is NULL'),
                DETAIL = jsonb_build_object('table', p_table, 'resource', NULL),
                HINT = 'Make the columns that the resource template names NOT NULL.';
        END IF;
        -- '' when this transaction claims no such resource.
        v_claimed := split_part(split_part(
            v_claim, ' ' || encode(convert_to(v_resource, 'UTF8'), 'hex') || '=', 2), ' ', 1);
        IF v_claimed = '' THEN
            PERFORM fencing.refuse_unfenced(p_table, v_resource);
        END IF;
        -- One index probe a resource. FOR SHARE: no admission can commit between this check and
        -- the end of this transaction, and under an old snapshot the lock itself fails.
        SELECT f.token, f.holder INTO v_token, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_resource FOR SHARE;
        CONTINUE WHEN FOUND AND concat(v_token, '.', v_holder) = v_claimed;
        IF v_claimed !~ '^[0-9]{1,16}[.]' THEN -- no entry has written that
            PERFORM fencing.refuse_unfenced(p_table, v_resource);
        END IF;
        v_presented := CAST(split_part(v_claimed, '.', 1) AS bigint);
        IF v_token IS NULL OR v_token < v_presented THEN
            PERFORM fencing.refuse_unadmitted(v_resource, v_presented);
        END IF;
        PERFORM fencing.refuse_stale(v_resource, v_presented, v_token);
    END LOOP;
END
$fencing$;

-- mark(resource) -> bigint: the high-water mark, or NULL. Tells tokens, never holders.
CREATE FUNCTION fencing.mark(p_resource text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$ SELECT f.token FROM fencing.fence AS f WHERE f.resource = p_resource $fencing$;

-- check_template(table, columns) -> void
--
--   Whether a resource template may name these columns of this table; the guard of a table is
--   created only after it. The text of a date or a float depends on the session's settings, and
--   that of char(n) on its padding: two sessions would compute two names for one row.
--   raises     ZF008
CREATE FUNCTION fencing.check_template(p_table regclass, p_columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_column    text;
    v_type      oid;
    v_generated "char";
    v_base      oid;
BEGIN
    IF (SELECT c.relkind <> 'r' OR c.relispartition FROM pg_class AS c WHERE c.oid = p_table)
        OR EXISTS (SELECT FROM pg_inherits AS i WHERE p_table IN (i.inhparent, i.inhrelid))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('cannot fence ', p_table, ': only an ordinary table can be guarded, '
                             'not a view, a foreign table, or one that is partitioned or inherits');
    END IF;
    FOREACH v_column IN ARRAY p_columns LOOP
        SELECT a.atttypid, a.attgenerated INTO v_type, v_generated FROM pg_attribute AS a
            WHERE a.attrelid = p_table AND a.attname = v_column
                AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '", which the table does not have');
        END IF;
        IF v_generated = 'v' THEN -- from version 18; a trigger on many rows cannot read it
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '", which is generated and not stored'),
                HINT = 'Make it STORED, or name the columns it is made of.';
        END IF;
        v_base := v_type;
        LOOP -- a domain has the text form of what it is a domain of
            SELECT t.typbasetype INTO v_base FROM pg_type AS t
                WHERE t.oid = v_base AND t.typtype = 'd';
            EXIT WHEN NOT FOUND;
            v_type := v_base;
        END LOOP;
        IF v_type NOT IN (
            CAST('smallint' AS regtype), CAST('integer' AS regtype), CAST('bigint' AS regtype),
            CAST('text' AS regtype), CAST('character varying' AS regtype),
            CAST('uuid' AS regtype), CAST('boolean' AS regtype))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '" of type ', format_type(v_type, NULL),
                                 ', whose text is not always the same'),
                HINT = 'Use columns of an integer type, text, varchar, uuid or boolean.';
        END IF;
    END LOOP;
END
$fencing$;

-- Callers reach three functions and nothing else; the guards run as their owner.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fencing FROM PUBLIC;

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
$fencing$;

GRANT USAGE ON SCHEMA fencing TO PUBLIC;

GRANT EXECUTE ON FUNCTION
    fencing.admit(text, bigint, text, text, integer),
    fencing.enter(text, integer),
    fencing.mark(text)
TO PUBLIC;


SELECT fencing.check_template(CAST('"accounts"' AS regclass), CAST(ARRAY['id'] AS text[]));

DO $fencing$
DECLARE
    v_table    regclass := CAST('"accounts"' AS regclass);
    v_function oid;
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = v_table AND t.tgname IN ('fencing_insert', 'fencing_update', 'fencing_delete', 'fencing_truncate')
            AND p.pronamespace = CAST('fencing' AS regnamespace))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF011',
            MESSAGE = pg_catalog.concat(v_table, ' is fenced already'),
            HINT = 'Unfence it first (op.unfence_table); both can be done in one transaction.';
    END IF;
    SELECT p.oid INTO v_function FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND p.proname = 'guard_accounts_221f64c7' AND p.pronargs = 0;
    IF EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = v_function) THEN
        EXECUTE pg_catalog.concat(
            'ALTER FUNCTION ', CAST(v_function AS regprocedure),
            ' RENAME TO ', pg_catalog.concat('guard_', v_function));
    ELSIF v_function IS NOT NULL THEN
        EXECUTE pg_catalog.concat('DROP FUNCTION ', CAST(v_function AS regprocedure));
    END IF;
END
$fencing$;

CREATE FUNCTION fencing."guard_accounts_221f64c7"() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_table     text := concat(TG_TABLE_SCHEMA, '.', TG_TABLE_NAME);
    v_resources text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(DISTINCT (CAST('account:' AS text) || CAST(r."id" AS text)) COLLATE "C") INTO v_resources FROM new_rows AS r;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(DISTINCT (CAST('account:' AS text) || CAST(r."id" AS text)) COLLATE "C") INTO v_resources FROM old_rows AS r;
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT array_agg(u.resource) INTO v_resources FROM (
            SELECT (CAST('account:' AS text) || CAST(r."id" AS text)) COLLATE "C" AS resource FROM new_rows AS r
            UNION
            SELECT (CAST('account:' AS text) || CAST(r."id" AS text)) COLLATE "C" FROM old_rows AS r) AS u;
    ELSE
        RAISE EXCEPTION USING
            ERRCODE = 'ZF002',
            MESSAGE = concat('unfenced write: TRUNCATE of ', v_table, ' removes rows of every '
                             'resource, and no lease covers them all'),
            DETAIL = jsonb_build_object('table', v_table, 'resource', NULL),
            HINT = 'DELETE the rows of the resources that are held.';
    END IF;
    IF v_resources IS NOT NULL THEN
        PERFORM fencing.require(v_table, v_resources);
    END IF;
    RETURN NULL;
END
$fencing$;

REVOKE ALL ON FUNCTION fencing."guard_accounts_221f64c7"() FROM PUBLIC;

CREATE TRIGGER "fencing_insert" AFTER INSERT ON "accounts" REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_accounts_221f64c7"();

ALTER TABLE "accounts" ENABLE ALWAYS TRIGGER "fencing_insert";

COMMENT ON TRIGGER "fencing_insert" ON "accounts" IS '{"version": 1, "resource": "account:{id}", "operations": ["insert", "update", "delete"]}';

CREATE TRIGGER "fencing_update" AFTER UPDATE ON "accounts" REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_accounts_221f64c7"();

ALTER TABLE "accounts" ENABLE ALWAYS TRIGGER "fencing_update";

COMMENT ON TRIGGER "fencing_update" ON "accounts" IS '{"version": 1, "resource": "account:{id}", "operations": ["insert", "update", "delete"]}';

CREATE TRIGGER "fencing_delete" AFTER DELETE ON "accounts" REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_accounts_221f64c7"();

ALTER TABLE "accounts" ENABLE ALWAYS TRIGGER "fencing_delete";

COMMENT ON TRIGGER "fencing_delete" ON "accounts" IS '{"version": 1, "resource": "account:{id}", "operations": ["insert", "update", "delete"]}';

CREATE TRIGGER "fencing_truncate" BEFORE TRUNCATE ON "accounts" FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_accounts_221f64c7"();

ALTER TABLE "accounts" ENABLE ALWAYS TRIGGER "fencing_truncate";

COMMENT ON TRIGGER "fencing_truncate" ON "accounts" IS '{"version": 1, "resource": "account:{id}", "operations": ["insert", "update", "delete"]}';

CREATE TRIGGER "fencing_pin" AFTER INSERT ON "accounts" REFERENCING NEW TABLE AS new_rows FOR EACH ROW WHEN (false AND NEW."id" IS NULL) EXECUTE FUNCTION fencing."guard_accounts_221f64c7"();

COMMENT ON TRIGGER "fencing_pin" ON "accounts" IS 'Never fires; keeps the guard from being undone by a change of the table';


SELECT fencing.check_template(CAST('"ledger"' AS regclass), CAST(ARRAY[] AS text[]));

DO $fencing$
DECLARE
    v_table    regclass := CAST('"ledger"' AS regclass);
    v_function oid;
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = v_table AND t.tgname IN ('fencing_insert', 'fencing_update', 'fencing_delete', 'fencing_truncate')
            AND p.pronamespace = CAST('fencing' AS regnamespace))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF011',
            MESSAGE = pg_catalog.concat(v_table, ' is fenced already'),
            HINT = 'Unfence it first (op.unfence_table); both can be done in one transaction.';
    END IF;
    SELECT p.oid INTO v_function FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND p.proname = 'guard_ledger_bccca523' AND p.pronargs = 0;
    IF EXISTS (SELECT FROM pg_catalog.pg_trigger AS t WHERE t.tgfoid = v_function) THEN
        EXECUTE pg_catalog.concat(
            'ALTER FUNCTION ', CAST(v_function AS regprocedure),
            ' RENAME TO ', pg_catalog.concat('guard_', v_function));
    ELSIF v_function IS NOT NULL THEN
        EXECUTE pg_catalog.concat('DROP FUNCTION ', CAST(v_function AS regprocedure));
    END IF;
END
$fencing$;

CREATE FUNCTION fencing."guard_ledger_bccca523"() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_table     text := concat(TG_TABLE_SCHEMA, '.', TG_TABLE_NAME);
    v_resources text[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT array_agg(DISTINCT (CAST('ledger' AS text)) COLLATE "C") INTO v_resources FROM new_rows AS r;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT array_agg(DISTINCT (CAST('ledger' AS text)) COLLATE "C") INTO v_resources FROM old_rows AS r;
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT array_agg(u.resource) INTO v_resources FROM (
            SELECT (CAST('ledger' AS text)) COLLATE "C" AS resource FROM new_rows AS r
            UNION
            SELECT (CAST('ledger' AS text)) COLLATE "C" FROM old_rows AS r) AS u;
    ELSE
        v_resources := ARRAY[(CAST('ledger' AS text)) COLLATE "C"];
    END IF;
    IF v_resources IS NOT NULL THEN
        PERFORM fencing.require(v_table, v_resources);
    END IF;
    RETURN NULL;
END
$fencing$;

REVOKE ALL ON FUNCTION fencing."guard_ledger_bccca523"() FROM PUBLIC;

CREATE TRIGGER "fencing_update" AFTER UPDATE ON "ledger" REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_ledger_bccca523"();

ALTER TABLE "ledger" ENABLE ALWAYS TRIGGER "fencing_update";

COMMENT ON TRIGGER "fencing_update" ON "ledger" IS '{"version": 1, "resource": "ledger", "operations": ["update", "delete"]}';

CREATE TRIGGER "fencing_delete" AFTER DELETE ON "ledger" REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_ledger_bccca523"();

ALTER TABLE "ledger" ENABLE ALWAYS TRIGGER "fencing_delete";

COMMENT ON TRIGGER "fencing_delete" ON "ledger" IS '{"version": 1, "resource": "ledger", "operations": ["update", "delete"]}';

CREATE TRIGGER "fencing_truncate" BEFORE TRUNCATE ON "ledger" FOR EACH STATEMENT EXECUTE FUNCTION fencing."guard_ledger_bccca523"();

ALTER TABLE "ledger" ENABLE ALWAYS TRIGGER "fencing_truncate";

COMMENT ON TRIGGER "fencing_truncate" ON "ledger" IS '{"version": 1, "resource": "ledger", "operations": ["update", "delete"]}';

CREATE TRIGGER "fencing_pin" AFTER INSERT ON "ledger" REFERENCING NEW TABLE AS new_rows FOR EACH ROW WHEN (false) EXECUTE FUNCTION fencing."guard_ledger_bccca523"();

COMMENT ON TRIGGER "fencing_pin" ON "ledger" IS 'Never fires; keeps the guard from being undone by a change of the table';

