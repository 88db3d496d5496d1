-- Retention: forgetting fences that nobody uses, without letting an older token in again.

-- prune(older_than, after, examine) -> pruned, busy, next
--
--   Examines a number of fences in the order of their names, and removes those that were admitted
--   long ago; what they kept is kept by the floor of their bucket. A transaction should call it
--   once: it locks what it removes. Fences in use are skipped, and so are those whose token is far
--   above their floor, which it would raise for every resource of the bucket.
--   older_than how long ago the last admission was, at least; more than any lease lives, and at
--              least an hour
--   after      examine from here on: the last call's "next", or '' to begin
--   examine    how many
--   returns    how many were pruned, how many were skipped since they are in use, and the last
--              name that was examined, NULL at the end
CREATE OR REPLACE FUNCTION fencing.prune(
    p_older_than interval, p_after text DEFAULT '', p_examine integer DEFAULT 1000,
    OUT pruned integer, OUT busy integer, OUT next text
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before timestamptz := clock_timestamp() - p_older_than;
    v_fence  record;
    v_floor  bigint;
    v_seen   integer := 0;
BEGIN
    IF p_older_than IS NULL OR p_older_than < interval '1 hour' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF013',
            MESSAGE = concat('cannot prune fences older than ', p_older_than,
                             ': a lease may live that long'),
            HINT = 'Pass an hour or more, and more than any lease of yours lives.';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF006',
            MESSAGE = concat('pruning must run at READ COMMITTED, not ',
                             upper(current_setting('transaction_isolation')));
    END IF;
    pruned := 0;
    busy := 0;
    FOR v_fence IN
        SELECT f.resource, f.admitted_at FROM fencing.fence AS f
        WHERE f.resource > p_after ORDER BY f.resource LIMIT p_examine
    LOOP
        next := v_fence.resource;
        v_seen := v_seen + 1;
        CONTINUE WHEN v_fence.admitted_at >= v_before;
        -- A lease of ours that has been kept alive for so long.
        IF EXISTS (SELECT FROM fencing.lease AS l
                   WHERE l.resource = v_fence.resource AND l.expires_at > clock_timestamp())
        THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        -- Waits for nobody: who uses the fence, or is adding another one to the bucket, goes first.
        IF NOT pg_try_advisory_xact_lock(fencing.lock_key(v_fence.resource)) THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        SELECT f.token INTO v_floor FROM fencing.floor AS f
            WHERE f.bucket = fencing.bucket(v_fence.resource) FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            busy := busy + 1;
            CONTINUE;
        END IF;
        -- Under both locks, and as it is now.
        SELECT f.resource, f.token INTO v_fence FROM fencing.fence AS f
            WHERE f.resource = next AND f.admitted_at < v_before
            FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND OR v_fence.token - v_floor > 1099511627776;
        UPDATE fencing.floor AS f SET token = v_fence.token
            WHERE f.bucket = fencing.bucket(v_fence.resource) AND f.token < v_fence.token;
        DELETE FROM fencing.fence AS f WHERE f.resource = v_fence.resource;
        pruned := pruned + 1;
    END LOOP;
    IF v_seen < p_examine THEN
        next := NULL;
    END IF;
END
$fencing$
--;

-- raise_fence(resource, token) -> void
--
--   Sets a resource's high-water mark forward by hand, without the bound that admissions have:
--   after a restore, say, or to shut a holder out. Whoever holds the resource is overtaken.
--   raises     ZF001 the mark is at or above the token already
CREATE OR REPLACE FUNCTION fencing.raise_fence(p_resource text, p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_holder text := concat('administrator.', gen_random_uuid());
BEGIN
    -- Who has only read is not waited for. But where a holder has written, his next transactions have
    -- to wait, as for an admission: they overlap, and would keep the fence locked for ever.
    PERFORM FROM fencing.fence AS f WHERE f.resource = p_resource FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM pg_advisory_xact_lock(fencing.lock_key(p_resource))
            FROM fencing.fence AS f WHERE f.resource = p_resource;
    END IF;
    -- Locked, since the fence may be being pruned: until that is committed, the floor does not tell
    -- of it.
    PERFORM FROM fencing.floor AS f WHERE f.bucket = fencing.bucket(p_resource) FOR SHARE;
    IF coalesce(p_token > fencing.mark(p_resource), true) THEN
        INSERT INTO fencing.fence AS f (resource, token, holder, owner)
            VALUES (p_resource, p_token, v_holder, session_user)
            ON CONFLICT (resource) DO UPDATE
            SET token = excluded.token, holder = excluded.holder, owner = excluded.owner,
                admitted_at = clock_timestamp()
            -- Somebody else may have raised it while we waited for its row.
            WHERE f.token < excluded.token;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM fencing.refuse('ZF001', NULL, p_resource, p_token, fencing.mark(p_resource));
END
$fencing$
--;

-- What a monitor may see: marks and owners, never holders.
CREATE OR REPLACE VIEW fencing.fences AS
    SELECT f.resource, f.token, f.owner, f.admitted_at FROM fencing.fence AS f
--;
COMMENT ON VIEW fencing.fences IS
    'The high-water mark of every resource, and a label of who was admitted last'
--;
