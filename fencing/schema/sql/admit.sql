-- Refuses a token that is nonsense, lest it make every later one stale: 2^40 above the mark. A
-- resource of which nothing is known is free to start anywhere, since some lock services start high.
CREATE OR REPLACE FUNCTION fencing.check_jump(p_resource text, p_token bigint, p_mark bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF p_mark > 0 AND p_token - p_mark > 1099511627776 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF004',
            MESSAGE = concat('token ', p_token, ' on "', p_resource,
                             '" is implausible: the mark is ', p_mark,
                             ', and a mark rises by at most 2^40 at a time'),
            DETAIL = jsonb_build_object(
                'resource', p_resource, 'token', p_token, 'current_token', p_mark);
    END IF;
END
$fencing$
--;
-- admit(resource, token, holder, owner, wait_ms) -> boolean
--
--   Commits a lease's token as the resource's high-water mark. Must be a READ COMMITTED
--   transaction of its own: inside another one the mark would roll back with it.
--   wait_ms    longest wait for open transactions of other holders; 0 does not wait
--   returns    true when admitted now, false when this very pair had been admitted before
--   raises     ZF001 stale (the mark is in DETAIL), ZF004 implausible token, ZF005 blocked (the
--              pids, and since when it waited, are in DETAIL), ZF006 wrong isolation level
CREATE OR REPLACE FUNCTION fencing.admit(
    p_resource text, p_token bigint, p_holder text, p_owner text, p_wait_ms integer
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_key     bigint := fencing.lock_key(p_resource);
    v_mark    bigint;
    v_holder  text;
    v_exists  boolean;
    v_blocked boolean := false;
BEGIN
    -- Under an older snapshot the reads below would not see what they waited for.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF006',
            MESSAGE = concat('an admission must run at READ COMMITTED, not ',
                             upper(current_setting('transaction_isolation')));
    END IF;

    -- Also for the first look: somebody may have locked the whole table. Whoever may not wait waits
    -- a little all the same: an autovacuum that shortens a table, or a catalog, goes away when
    -- somebody waits for it, but looks only every 20 ms.
    PERFORM set_config('lock_timeout', CAST(greatest(p_wait_ms, 100) AS text), true);

    -- Without a lock first: an overtaken holder that queued for it would stall the living one.
    SELECT f.token, f.holder INTO v_mark, v_holder
        FROM fencing.fence AS f WHERE f.resource = p_resource;
    IF v_mark = p_token AND v_holder = p_holder THEN
        RETURN false;
    END IF;
    IF v_mark >= p_token THEN
        PERFORM fencing.refuse('ZF001', NULL, p_resource, p_token, v_mark);
    END IF;

    IF NOT pg_try_advisory_xact_lock(v_key) THEN
        IF p_wait_ms > 0 THEN
            BEGIN
                PERFORM set_config('lock_timeout', CAST(p_wait_ms AS text), true);
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
                'waiting_since', EXTRACT(epoch FROM statement_timestamp()),
                'blocked_by', (
                    SELECT coalesce(jsonb_agg(DISTINCT h.pid), '[]')
                    FROM fencing.holders_of(v_key) AS h WHERE h.pid <> pg_backend_pid()));
    END IF;

    -- A new statement, hence a new snapshot: what was admitted, or pruned, while we waited is seen
    -- here. (Only under the lock: a floor that was read before it may miss a fence pruned since.)
    LOOP
        SELECT f.token, f.holder INTO v_mark, v_holder
            FROM fencing.fence AS f WHERE f.resource = p_resource;
        v_exists := FOUND;
        IF v_mark = p_token AND v_holder = p_holder THEN
            RETURN false;
        END IF;
        IF NOT v_exists THEN
            -- Locked, so that pruning another fence of the bucket cannot raise it before we are in.
            SELECT nullif(f.token, 0) INTO v_mark FROM fencing.floor AS f
                WHERE f.bucket = fencing.bucket(p_resource) FOR SHARE;
        END IF;
        IF v_mark >= p_token THEN
            PERFORM fencing.refuse('ZF001', NULL, p_resource, p_token, v_mark);
        END IF;
        PERFORM fencing.check_jump(p_resource, p_token, v_mark);

        -- An admission that was acknowledged must survive a crash, whatever the role's default is.
        IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        -- The lock keeps other admissions away, not a maintenance: it may have raised the fence
        -- while we waited for its row, and then the new mark decides.
        IF v_exists THEN
            UPDATE fencing.fence AS f
                SET token = p_token, holder = p_holder, owner = p_owner,
                    admitted_at = clock_timestamp()
                WHERE f.resource = p_resource AND f.token < p_token;
        ELSE
            INSERT INTO fencing.fence (resource, token, holder, owner)
                VALUES (p_resource, p_token, p_holder, p_owner)
                ON CONFLICT (resource) DO NOTHING;
        END IF;
        IF FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
END
$fencing$
--;

-- mark(resource) -> bigint
--
--   The high-water mark; of a resource without a fence the floor, that is the largest token that
--   will not be admitted; NULL when there is none. Tells tokens, never holders.
CREATE OR REPLACE FUNCTION fencing.mark(p_resource text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
    SELECT coalesce(
        (SELECT f.token FROM fencing.fence AS f WHERE f.resource = p_resource),
        nullif(fencing.floor_of(p_resource), 0))
$fencing$
--;

-- evict(resource, token, since) -> integer[]
--
--   Ends the backends whose open transactions keep the admission of a token waiting: those which
--   hold the resource under an older token, and no others. Runs with the rights of its caller, who
--   may end sessions of the same role, or, as a member of pg_signal_backend, of others.
--   since      when the admission began to wait. A transaction that began later is a newer
--              holder's, or will be refused by itself.
--   returns    the pids of those that were told to end
--   raises     ZF001 stale: the mark is at or above the token, so the holder is living
CREATE OR REPLACE FUNCTION fencing.evict(p_resource text, p_token bigint, p_since timestamptz)
RETURNS integer[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_mark  bigint := fencing.mark(p_resource);
    v_pid   integer;
    v_ended integer[] := '{}';
BEGIN
    IF v_mark >= p_token THEN
        PERFORM fencing.refuse('ZF001', NULL, p_resource, p_token, v_mark);
    END IF;
    -- A loop, not one query: a planner is free to terminate first and to ask afterwards.
    FOR v_pid IN
        SELECT DISTINCT h.pid
        FROM fencing.holders_of(fencing.lock_key(p_resource)) AS h
        JOIN fencing.holders_of(fencing.identity_key(p_resource)) AS i ON i.pid = h.pid
        JOIN pg_stat_activity AS a ON a.pid = h.pid
        WHERE h.mode = 'ShareLock' AND i.mode = 'ShareLock'
            AND a.xact_start < p_since AND h.pid <> pg_backend_pid()
    LOOP
        IF pg_terminate_backend(v_pid) THEN
            v_ended := v_ended || v_pid;
        END IF;
    END LOOP;
    RETURN v_ended;
END
$fencing$
--;
