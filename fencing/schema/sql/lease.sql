-- Leases: PostgreSQL as the lock service itself, by the server's own clock.
--
-- A resource's row of fencing.lease says who holds it until when. Granting draws a token above the
-- resource's mark and, in the same transaction, commits it as the mark: there is no moment at which
-- a lease is held and its predecessor not overtaken. Only where a transaction of a predecessor is
-- still open is the lease granted first and admitted later, by fencing.admit, which waits for it.
--
-- What a holder is known by never leaves the database: who looks is told a hash of it.

-- fillfactor leaves room for HOT updates: granting, renewing and releasing change no indexed column.
CREATE TABLE IF NOT EXISTS fencing.lease (
    resource   text COLLATE "C" PRIMARY KEY,
    token      bigint NOT NULL DEFAULT 0,
    holder     text NOT NULL DEFAULT '',
    owner      text NOT NULL DEFAULT '',
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT lease_resource_length CHECK (octet_length(resource) BETWEEN 1 AND 512),
    CONSTRAINT lease_token_range CHECK (token BETWEEN 0 AND 9007199254740991)
) WITH (fillfactor = 70)
--;
COMMENT ON TABLE fencing.lease IS
    'One row a resource: who holds it, under which token, and until when; holders are secret'
--;
-- Who waits for which resource, the longest first. A waiter asks again within its row's time, or it
-- counts as dead. UNLOGGED, since after a crash nobody waits any more.
CREATE UNLOGGED TABLE IF NOT EXISTS fencing.waiter (
    holder   text PRIMARY KEY,
    resource text COLLATE "C" NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_at  timestamptz NOT NULL,
    given_up boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50)
--;
COMMENT ON TABLE fencing.waiter IS
    'Who waits for a resource; or has given up, and is not to be granted it by a late request'
--;
CREATE INDEX IF NOT EXISTS waiter_in_turn ON fencing.waiter (resource, asked_at)
--;

-- What a holder is called by others: enough to recognise one's own, of no use to anybody else.
CREATE OR REPLACE FUNCTION fencing.name_of_holder(p_holder text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$
    SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p_holder, 'UTF8')), 'hex')
$fencing$
--;
-- identity() -> text: which database of which cluster this is. A copy made by dump and restore, or
-- from a template, has another one; a physical copy has the same.
CREATE OR REPLACE FUNCTION fencing.identity() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
    SELECT concat((SELECT c.system_identifier FROM pg_control_system() AS c), '.', d.oid)
    FROM pg_database AS d WHERE d.datname = current_database()
$fencing$
--;
-- The first in turn of those who wait for a resource and are alive; NULL if nobody does.
CREATE OR REPLACE FUNCTION fencing.first_waiter(p_resource text) RETURNS text
LANGUAGE sql STABLE
AS $fencing$
    SELECT w.holder FROM fencing.waiter AS w
    WHERE w.resource = p_resource AND NOT w.given_up
        AND w.gone_at > pg_catalog.clock_timestamp()
    ORDER BY w.asked_at, w.holder LIMIT 1
$fencing$
--;
-- Tells the first in turn that the resource is free. Nobody else is told anything: a notification is
-- only sent where somebody waits, since it makes transactions commit one after the other.
CREATE OR REPLACE FUNCTION fencing.call_next(p_resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_next text := fencing.first_waiter(p_resource);
BEGIN
    IF v_next IS NOT NULL THEN
        PERFORM pg_notify('fencing', fencing.name_of_holder(v_next));
    END IF;
END
$fencing$
--;
-- The resource's row, locked; made if it is not there.
CREATE OR REPLACE FUNCTION fencing.lock_lease(p_resource text) RETURNS fencing.lease
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_lease fencing.lease;
BEGIN
    LOOP
        SELECT * INTO v_lease FROM fencing.lease AS l WHERE l.resource = p_resource FOR UPDATE;
        IF FOUND THEN
            RETURN v_lease;
        END IF;
        INSERT INTO fencing.lease (resource) VALUES (p_resource) ON CONFLICT (resource) DO NOTHING;
    END LOOP;
END
$fencing$
--;
-- Grants a resource whose row the caller has locked and found free, or the holder's own.
--
--   answers    granted; or unadmitted, where open transactions of a predecessor keep the token from
--              being committed as the mark: fencing.admit waits for them; or exhausted
--   raises     ZF004 implausible token
CREATE OR REPLACE FUNCTION fencing.grant_lease(
    p_lease fencing.lease, p_holder text, p_owner text, p_ttl_ms bigint, p_floor bigint,
    OUT state text, OUT token bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_resource text := p_lease.resource;
    v_ours     boolean := p_lease.holder = p_holder AND p_lease.expires_at > clock_timestamp();
    -- Tried only, so that nobody who could go on waits behind us. Who holds it: transactions of a
    -- predecessor, or an admission.
    v_free     boolean := pg_try_advisory_xact_lock(fencing.lock_key(v_resource));
    v_mark     bigint;
    v_holder   text;
    v_exists   boolean;
BEGIN
    LOOP
        SELECT f.token, f.holder INTO v_mark, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_resource;
        v_exists := FOUND;
        IF NOT v_exists THEN
            -- Locked, so that pruning another fence of the bucket cannot raise it before we are in.
            SELECT f.token INTO v_mark FROM fencing.floor AS f
                WHERE f.bucket = fencing.bucket(v_resource) FOR SHARE;
        END IF;
        IF v_ours AND p_lease.token >= v_mark AND p_lease.token > p_floor
            AND (v_holder = p_holder OR p_lease.token > v_mark)
        THEN
            token := p_lease.token; -- what it was given before, and has perhaps not heard of
        ELSE
            token := greatest(v_mark, p_lease.token, p_floor) + 1;
        END IF;
        IF token > 9007199254740991 THEN
            state := 'exhausted';
            RETURN;
        END IF;
        -- A lease that was acknowledged must survive a crash, whatever the role's default is.
        IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        state := CASE WHEN v_exists AND v_mark = token AND v_holder = p_holder THEN 'granted'
            WHEN v_free THEN 'admitting' ELSE 'unadmitted' END;
        IF state <> 'granted' THEN
            -- Also of one that is admitted later: kept here, it would be the least for all to come.
            PERFORM fencing.check_jump(v_resource, token, v_mark);
        END IF;
        IF state = 'admitting' THEN
            IF v_exists THEN
                UPDATE fencing.fence AS f
                    SET token = grant_lease.token, holder = p_holder, owner = p_owner,
                        admitted_at = clock_timestamp()
                    WHERE f.resource = v_resource AND f.token < grant_lease.token;
            ELSE
                INSERT INTO fencing.fence (resource, token, holder, owner)
                    VALUES (v_resource, grant_lease.token, p_holder, p_owner)
                    ON CONFLICT (resource) DO NOTHING;
            END IF;
            -- The lock keeps other admissions away, not a maintenance, which may have raised the
            -- fence while we waited for its row.
            CONTINUE WHEN NOT FOUND;
            state := 'granted';
        END IF;
        UPDATE fencing.lease AS l
            SET token = grant_lease.token, holder = p_holder, owner = p_owner,
                expires_at = greatest(
                    CASE WHEN v_ours THEN l.expires_at ELSE '-infinity' END,
                    clock_timestamp() + make_interval(secs => p_ttl_ms / 1000.0))
            WHERE l.resource = v_resource;
        RETURN;
    END LOOP;
END
$fencing$
--;
-- Under an older snapshot, what a lock was waited for would not be seen.
CREATE OR REPLACE FUNCTION fencing.begin_lease(p_wait_ms integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF006',
            MESSAGE = concat('a lease must be acquired at READ COMMITTED, not ',
                             upper(current_setting('transaction_isolation')));
    END IF;
    -- Rows are locked for moments only; but somebody may have locked a whole table.
    PERFORM set_config('lock_timeout', CAST(greatest(p_wait_ms, 1) AS text), true);
END
$fencing$
--;

-- acquire(resource, holder, owner, ttl_ms, floor, wait_ms, queue) -> state, token, left_ms, owner
--
--   Grants a lease, and admits it. Must be a READ COMMITTED transaction of its own. Asked again by
--   the holder it was granted to, it answers the same token and begins its time anew.
--   floor      the token will be greater than this
--   wait_ms    longest wait for locks that others hold for moments
--   queue      how long to stand in the queue of those who wait, in milliseconds, if it is not
--              granted; 0: not (any more); NULL: neither stand there nor leave it
--   answers    granted, token
--              unadmitted, token    ours, and to be admitted: transactions of a predecessor are open
--              held, token, left_ms, owner: another's
--              queued               free, but others have waited longer; left_ms: look again then
--              gone                 this holder has given up
--              exhausted            the mark is the largest token there is
CREATE OR REPLACE FUNCTION fencing.acquire(
    p_resource text, p_holder text, p_owner text, p_ttl_ms bigint, p_floor bigint,
    p_wait_ms integer, p_queue_ms integer,
    OUT state text, OUT token bigint, OUT left_ms double precision, OUT owner text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_lease fencing.lease;
    v_now   timestamptz;
    v_crowd boolean;
    v_first text;
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    IF p_queue_ms IS NULL THEN
        -- Without a lock first: who only looks keeps nobody waiting, and writes nothing.
        SELECT * INTO v_lease FROM fencing.lease AS l WHERE l.resource = p_resource;
        v_now := clock_timestamp();
        IF v_lease.expires_at > v_now AND v_lease.holder <> p_holder THEN
            state := 'held';
            token := v_lease.token;
            left_ms := EXTRACT(epoch FROM v_lease.expires_at - v_now) * 1000;
            owner := v_lease.owner;
            RETURN;
        END IF;
    END IF;
    v_lease := fencing.lock_lease(p_resource);
    v_now := clock_timestamp();
    v_crowd := EXISTS (SELECT FROM fencing.waiter AS w WHERE w.resource = p_resource);
    IF v_crowd THEN
        IF EXISTS (SELECT FROM fencing.waiter AS w WHERE w.holder = p_holder AND w.given_up) THEN
            state := 'gone';
            RETURN;
        END IF;
        v_first := fencing.first_waiter(p_resource);
    END IF;
    IF v_lease.expires_at > v_now AND v_lease.holder <> p_holder THEN
        state := 'held';
        token := v_lease.token;
        left_ms := EXTRACT(epoch FROM v_lease.expires_at - v_now) * 1000;
        owner := v_lease.owner;
    ELSIF v_first <> p_holder AND NOT (v_lease.holder = p_holder AND v_lease.expires_at > v_now)
    THEN
        state := 'queued';
        SELECT EXTRACT(epoch FROM w.gone_at - v_now) * 1000 INTO left_ms
            FROM fencing.waiter AS w WHERE w.holder = v_first;
    ELSE
        SELECT g.state, g.token INTO state, token
            FROM fencing.grant_lease(v_lease, p_holder, p_owner, p_ttl_ms, p_floor) AS g;
        IF v_crowd THEN
            DELETE FROM fencing.waiter AS w
                WHERE w.resource = p_resource AND (w.holder = p_holder OR w.gone_at < v_now);
        END IF;
        RETURN;
    END IF;
    IF p_queue_ms > 0 THEN
        INSERT INTO fencing.waiter AS w (holder, resource, gone_at)
            VALUES (p_holder, p_resource, v_now + make_interval(secs => p_queue_ms / 1000.0))
            ON CONFLICT (holder) DO UPDATE SET gone_at = excluded.gone_at;
    ELSIF p_queue_ms = 0 THEN
        DELETE FROM fencing.waiter AS w WHERE w.holder = p_holder;
    END IF;
END
$fencing$
--;
-- acquire_all(wanted, owner, ttl_ms, wait_ms) -> resource, state, token, left_ms, owner, pids
--
--   Grants and admits several leases, all or none, without waiting for those that are held.
--   wanted     a JSON array of objects with resource, holder and floor
--   answers    a row for each, granted; or one for the one that was not to be had: held, queued,
--              gone or exhausted as above, or blocked, by open transactions of backends pids
CREATE OR REPLACE FUNCTION fencing.acquire_all(
    p_wanted text, p_owner text, p_ttl_ms bigint, p_wait_ms integer
) RETURNS TABLE (
    resource text, state text, token bigint, left_ms double precision, owner text, pids text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_wanted record;
    v_lease  fencing.lease;
    v_first  text;
    v_now    timestamptz;
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    -- In one order, so that two who want the same do not wait for each other.
    FOR v_wanted IN
        SELECT w.resource COLLATE "C" AS name, w.holder
        FROM jsonb_to_recordset(CAST(p_wanted AS jsonb)) AS w(resource text, holder text)
        ORDER BY 1
    LOOP
        v_lease := fencing.lock_lease(v_wanted.name);
        v_first := fencing.first_waiter(v_wanted.name);
        v_now := clock_timestamp();
        resource := v_wanted.name;
        IF EXISTS (SELECT FROM fencing.waiter AS w
                   WHERE w.holder = v_wanted.holder AND w.given_up)
        THEN
            state := 'gone';
            RETURN NEXT;
            RETURN;
        END IF;
        CONTINUE WHEN v_lease.expires_at > v_now AND v_lease.holder = v_wanted.holder;
        IF v_lease.expires_at > v_now THEN
            state := 'held';
            token := v_lease.token;
            left_ms := EXTRACT(epoch FROM v_lease.expires_at - v_now) * 1000;
            owner := v_lease.owner;
            RETURN NEXT;
            RETURN;
        END IF;
        IF v_first IS NOT NULL THEN
            state := 'queued';
            SELECT EXTRACT(epoch FROM w.gone_at - v_now) * 1000 INTO left_ms
                FROM fencing.waiter AS w WHERE w.holder = v_first;
            RETURN NEXT;
            RETURN;
        END IF;
        IF NOT pg_try_advisory_xact_lock(fencing.lock_key(v_wanted.name)) THEN
            state := 'blocked';
            SELECT string_agg(DISTINCT CAST(h.pid AS text), ' ') INTO pids
                FROM fencing.holders_of(fencing.lock_key(v_wanted.name)) AS h
                WHERE h.pid <> pg_backend_pid();
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    FOR v_wanted IN
        SELECT w.resource COLLATE "C" AS name, w.holder, w.floor
        FROM jsonb_to_recordset(CAST(p_wanted AS jsonb))
            AS w(resource text, holder text, floor bigint)
        ORDER BY 1
    LOOP
        v_lease := fencing.lock_lease(v_wanted.name);
        resource := v_wanted.name;
        SELECT g.state, g.token INTO state, token
            FROM fencing.grant_lease(
                v_lease, v_wanted.holder, p_owner, p_ttl_ms, v_wanted.floor) AS g;
        IF state = 'exhausted' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF004',
                MESSAGE = concat('no token is left on "', v_wanted.name,
                                 '": its mark is 2^53 - 1'),
                DETAIL = jsonb_build_object('resource', v_wanted.name);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$fencing$
--;
-- renew(wanted, wait_ms) -> place, state
--
--   Extends leases to so long from now, and never shortens one.
--   wanted     a JSON array of objects with resource, holder, token and ttl_ms
--   answers    for each, by its place in the array from 1: renewed, absent, or other
CREATE OR REPLACE FUNCTION fencing.renew(p_wanted text, p_wait_ms integer)
RETURNS TABLE (place bigint, state text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_wanted record;
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    -- In one order, as in acquire_all.
    FOR v_wanted IN
        SELECT CAST(w.each ->> 'resource' AS text) COLLATE "C" AS name, w.each ->> 'holder' AS holder,
            CAST(w.each ->> 'token' AS bigint) AS token,
            CAST(w.each ->> 'ttl_ms' AS bigint) AS ttl_ms, w.ordinality
        FROM jsonb_array_elements(CAST(p_wanted AS jsonb)) WITH ORDINALITY AS w(each)
        ORDER BY 1
    LOOP
        place := v_wanted.ordinality;
        -- Evaluated again, by the clock as well, if another has just changed the row.
        UPDATE fencing.lease AS l
            SET expires_at = greatest(
                l.expires_at, clock_timestamp() + make_interval(secs => v_wanted.ttl_ms / 1000.0))
            WHERE l.resource = v_wanted.name AND l.holder = v_wanted.holder
                AND l.token = v_wanted.token AND l.expires_at > clock_timestamp();
        IF FOUND THEN
            state := 'renewed';
        ELSE
            SELECT CASE WHEN l.expires_at > clock_timestamp() THEN 'other' ELSE 'absent' END
                INTO state FROM fencing.lease AS l WHERE l.resource = v_wanted.name;
            state := coalesce(state, 'absent');
        END IF;
        RETURN NEXT;
    END LOOP;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
END
$fencing$
--;
-- release(resource, holder, wait_ms, give_up) -> state
--
--   Gives a lease back, by its holder, whatever its token is, and calls who waits longest.
--   give_up    whether this holder may still be asking somewhere, and must never be granted it
--   answers    released, absent, or other
CREATE OR REPLACE FUNCTION fencing.release(
    p_resource text, p_holder text, p_wait_ms integer, p_give_up boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_lease fencing.lease;
    v_state text := 'absent';
    v_first text;
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    IF p_give_up THEN
        -- Locked, and made if need be: a request that is under way is waited for, or finds our note.
        v_lease := fencing.lock_lease(p_resource);
        v_first := fencing.first_waiter(p_resource);
        INSERT INTO fencing.waiter AS w (holder, resource, gone_at, given_up)
            VALUES (p_holder, p_resource, clock_timestamp() + interval '1 hour', true)
            ON CONFLICT (holder) DO UPDATE SET given_up = true, gone_at = excluded.gone_at;
    ELSE
        SELECT * INTO v_lease FROM fencing.lease AS l WHERE l.resource = p_resource FOR UPDATE;
    END IF;
    IF v_lease.expires_at > clock_timestamp() THEN
        v_state := CASE WHEN v_lease.holder = p_holder THEN 'released' ELSE 'other' END;
    END IF;
    IF v_state = 'released' THEN
        UPDATE fencing.lease AS l SET expires_at = '-infinity', holder = ''
            WHERE l.resource = p_resource;
    END IF;
    IF v_state = 'released' OR (v_state = 'absent' AND v_first = p_holder) THEN
        PERFORM fencing.call_next(p_resource);
    END IF;
    -- A release that a crash undoes costs the next holder a wait, and nothing else.
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN v_state;
END
$fencing$
--;
-- raise_token(resource, holder, floor, admitted, wait_ms) -> state, token
--
--   Gives a lease a token above floor. That the old one was the mark does no harm as long as it
--   still is: nobody has been admitted in between. If it is no longer, what was read under the old
--   token may be out of date, and the lease is lost, whoever holds the lock.
--   admitted   whether the lease was admitted as it was granted
--   answers    raised, token; absent; other; busy: a transaction of a predecessor, or its own, is
--              open; exhausted
--   raises     ZF004 implausible token
CREATE OR REPLACE FUNCTION fencing.raise_token(
    p_resource text, p_holder text, p_floor bigint, p_admitted boolean, p_wait_ms integer,
    OUT state text, OUT token bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_lease   fencing.lease;
    v_mark    bigint;
    v_is_ours boolean;
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    SELECT * INTO v_lease FROM fencing.lease AS l WHERE l.resource = p_resource FOR UPDATE;
    state := 'absent';
    IF v_lease.expires_at > clock_timestamp() THEN
        state := CASE WHEN v_lease.holder = p_holder THEN 'raised' ELSE 'other' END;
    END IF;
    IF state <> 'raised' THEN
        RETURN;
    END IF;
    token := v_lease.token;
    v_is_ours := EXISTS (
        SELECT FROM fencing.fence AS f
        WHERE f.resource = p_resource AND f.token = v_lease.token AND f.holder = p_holder);
    -- An admitted lease's new token has to be admitted as well, alone with it.
    IF v_is_ours AND token <= p_floor THEN
        IF NOT pg_try_advisory_xact_lock(fencing.lock_key(p_resource)) THEN
            state := 'busy';
            RETURN;
        END IF;
        -- Once more, now that nobody else can be admitted; and locked, as a maintenance raises
        -- fences without the other lock.
        PERFORM FROM fencing.fence AS f
            WHERE f.resource = p_resource AND f.token = v_lease.token AND f.holder = p_holder
            FOR UPDATE;
        v_is_ours := FOUND;
        p_admitted := true;
    END IF;
    IF p_admitted AND NOT v_is_ours THEN
        state := 'other';
        token := NULL;
        RETURN;
    END IF;
    IF token > p_floor THEN
        RETURN;
    END IF;
    IF v_is_ours THEN
        SELECT g.state, g.token INTO state, token
            FROM fencing.grant_lease(v_lease, p_holder, v_lease.owner, 0, p_floor) AS g;
        state := CASE state WHEN 'exhausted' THEN state ELSE 'raised' END;
        RETURN;
    END IF;
    v_mark := fencing.mark(p_resource);
    token := greatest(v_mark, p_floor) + 1;
    IF token > 9007199254740991 THEN
        state := 'exhausted';
        RETURN;
    END IF;
    PERFORM fencing.check_jump(p_resource, token, v_mark);
    UPDATE fencing.lease AS l SET token = raise_token.token WHERE l.resource = p_resource;
END
$fencing$
--;
-- look(resource) -> held, owner, token, holder, left_ms, counter, waiters: who holds a resource
--
--   holder     what fencing.name_of_holder makes of it
--   counter    the last token that was drawn, 0 if none was
CREATE OR REPLACE FUNCTION fencing.look(
    p_resource text,
    OUT held boolean, OUT owner text, OUT token bigint, OUT holder text,
    OUT left_ms double precision, OUT counter bigint, OUT waiters bigint
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
    SELECT coalesce(l.held, false), l.owner, l.token, fencing.name_of_holder(l.holder),
        CASE WHEN l.held
            THEN EXTRACT(epoch FROM l.expires_at - clock_timestamp()) * 1000 ELSE 0 END,
        greatest(l.token, fencing.mark(p_resource), 0),
        (SELECT count(*) FROM fencing.waiter AS w
         WHERE w.resource = p_resource AND NOT w.given_up AND w.gone_at > clock_timestamp())
    FROM (VALUES (1)) AS one
    LEFT JOIN (
        SELECT *, e.expires_at > clock_timestamp() AS held
        FROM fencing.lease AS e WHERE e.resource = p_resource) AS l ON true
$fencing$
--;
-- scan(prefix, after, examine) -> resource: those that are held, by name, so many at a time
CREATE OR REPLACE FUNCTION fencing.scan(p_prefix text, p_after text, p_limit integer)
RETURNS TABLE (resource text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
    SELECT l.resource FROM fencing.lease AS l
    WHERE l.resource > p_after AND starts_with(l.resource, p_prefix)
        AND l.expires_at > clock_timestamp()
    ORDER BY l.resource LIMIT p_limit
$fencing$
--;
-- force_release(resource, named, wait_ms) -> boolean: takes a lease from a holder, as look() has told
-- him; a request that is repeated, or late, takes nothing from his successor
CREATE OR REPLACE FUNCTION fencing.force_release(
    p_resource text, p_named text, p_wait_ms integer
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    PERFORM fencing.begin_lease(p_wait_ms);
    UPDATE fencing.lease AS l SET expires_at = '-infinity', holder = ''
        WHERE l.resource = p_resource AND l.expires_at > clock_timestamp()
            AND fencing.name_of_holder(l.holder) = p_named;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM fencing.call_next(p_resource);
    RETURN true;
END
$fencing$
--;
-- forget_leases(older_than) -> bigint: deletes rows of leases that ended long ago. Their tokens are
-- kept by the fences, or floors. For the owner of schema fencing.
CREATE OR REPLACE FUNCTION fencing.forget_leases(p_older_than interval) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before timestamptz := clock_timestamp() - p_older_than;
    v_count  bigint;
BEGIN
    IF p_older_than IS NULL OR p_older_than < interval '1 hour' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF013',
            MESSAGE = concat('cannot forget leases younger than an hour (', p_older_than, ')'),
            HINT = 'A row that is used again soon is cheaper kept than made anew.';
    END IF;
    -- An acquisition deletes those of its resource, in an order of its own; it is not waited for.
    DELETE FROM fencing.waiter AS w
        WHERE w.holder IN (
            SELECT g.holder FROM fencing.waiter AS g
            WHERE g.gone_at < clock_timestamp() FOR UPDATE SKIP LOCKED);
    -- Whoever has one locked is about to use it. Of those that were released the fence tells when
    -- they were granted; a token that no fence or floor tells of is kept.
    DELETE FROM fencing.lease AS l
        WHERE l.resource IN (
            SELECT d.resource FROM fencing.lease AS d
            WHERE d.expires_at < v_before
                AND d.token <= coalesce(fencing.mark(d.resource), 0)
                AND NOT EXISTS (
                    SELECT FROM fencing.fence AS f
                    WHERE f.resource = d.resource AND f.admitted_at >= v_before)
            FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$fencing$
--;
