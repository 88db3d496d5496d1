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
$fencing$
--;

-- mark(resource) -> bigint: the high-water mark, or NULL. Tells tokens, never holders.
CREATE FUNCTION fencing.mark(p_resource text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$ SELECT f.token FROM fencing.fence AS f WHERE f.resource = p_resource $fencing$
--;

