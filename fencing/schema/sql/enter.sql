-- enter(leases, limit_ms, receipt) -> text
--
--   The first statement of a transaction that acts under leases: presents them.
--   leases     "<hex of resource>=<token>.<holder>", separated by single spaces
--   limit_ms   trust left in the shortest of them when this was sent; NULL: it has no end, and the
--              transaction ends only if its client does
--   receipt    leaves a row by which an unknown outcome of COMMIT is made certain later; NULL
--              leaves none, and then reading takes no transaction id and writes nothing
--   returns    what tells this transaction from every other
--   raises     ZF001 stale, ZF003 not admitted, 55P03 when the trust ran out while waiting for
--              an admission
--
--   Sets, for this transaction only and never longer than they are, the limits that end it when
--   its holder is paused, so that a successor need not wait for ever.
--
--   It runs once a transaction, and costs as much as it has statements, and they have calls. So what
--   is common is in few of them, and what is rare is in functions of its own.
CREATE OR REPLACE FUNCTION fencing.enter(p_leases text, p_limit_ms integer, p_receipt uuid)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_items    text[];
    v_item     text;
    v_resource text := convert_from(decode(split_part(p_leases, '=', 1), 'hex'), 'UTF8');
    v_claimed  text;
    v_found    text;
    v_claim    text; -- as the setting has it
    v_limited  text; -- the limits that were set; NULL if they have to be looked at
BEGIN
    -- One lease, which is free to enter and good. The locks are refused while an admission has one,
    -- and while one waits for it. The fence is looked at by a later statement, which sees what was
    -- committed before we had them.
    IF strpos(p_leases, ' ') = 0
        AND pg_try_advisory_xact_lock_shared(fencing.lock_key(v_resource))
        AND pg_try_advisory_xact_lock_shared(fencing.identity_key(v_resource))
    THEN
        SELECT set_config('fencing.claim', fencing.stamp() || ' ' || p_leases, true),
                fencing.limit_unlimited(p_limit_ms)
            INTO v_claim, v_limited
            FROM fencing.fence AS f
            WHERE f.resource = v_resource
                AND CAST(f.token AS text) || '.' || f.holder = split_part(p_leases, '=', 2);
    END IF;
    IF v_claim IS NULL THEN
        v_items := string_to_array(p_leases, ' ');
        -- In the order of their locks, everywhere: two transactions cannot wait for each other.
        IF cardinality(v_items) > 1 THEN
            v_items := ARRAY(
                SELECT i.item FROM unnest(v_items) AS i(item)
                ORDER BY fencing.lock_key(
                    convert_from(decode(split_part(i.item, '=', 1), 'hex'), 'UTF8')));
        END IF;
        FOREACH v_item IN ARRAY v_items LOOP
            v_resource := convert_from(decode(split_part(v_item, '=', 1), 'hex'), 'UTF8');
            v_claimed := split_part(v_item, '=', 2);
            IF NOT (pg_try_advisory_xact_lock_shared(fencing.lock_key(v_resource))
                AND pg_try_advisory_xact_lock_shared(fencing.identity_key(v_resource)))
            THEN
                PERFORM fencing.await_admission(v_resource, p_limit_ms);
            END IF;
            SELECT concat(f.token, '.', f.holder) INTO v_found
                FROM fencing.fence AS f WHERE f.resource = v_resource;
            IF v_found IS DISTINCT FROM v_claimed THEN
                PERFORM fencing.refuse_presented(
                    NULL, v_resource, CAST(split_part(v_claimed, '.', 1) AS bigint));
            END IF;
        END LOOP;
        v_claim := set_config('fencing.claim', fencing.stamp() || ' ' || p_leases, true);
        v_limited := fencing.limit_unlimited(CAST(fencing.limit_left(p_limit_ms) AS integer));
    END IF;
    IF v_limited IS NULL THEN
        PERFORM fencing.limit_transaction(fencing.limit_left(p_limit_ms));
    END IF;
    IF p_receipt IS NOT NULL THEN
        INSERT INTO fencing.receipt (id) VALUES (p_receipt);
    END IF;
    RETURN split_part(v_claim, ' ', 1);
END
$fencing$
--;
-- What is left of a limit that was told when this statement was sent, in milliseconds; 0 would
-- disable it. NULL where there is none.
CREATE OR REPLACE FUNCTION fencing.limit_left(p_limit_ms integer) RETURNS double precision
LANGUAGE sql VOLATILE
AS $fencing$
    SELECT CASE WHEN p_limit_ms IS NOT NULL THEN
        greatest(1, pg_catalog.floor(p_limit_ms - 1000 * pg_catalog.date_part(
            'epoch', pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp())))
        END
$fencing$
--;
-- Whether the server runs on Linux. It does so from its start to its end, so a plan may keep it.
CREATE OR REPLACE FUNCTION fencing.is_linux() RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $fencing$ SELECT pg_catalog.strpos(pg_catalog.version(), 'linux') > 0 $fencing$
--;
-- What limit_transaction() comes to over a Unix socket, from version 17 on, where nobody has set a
-- limit and nothing was waited for, not even the fence's table. -> NULL where it is otherwise, and
-- nothing was set
CREATE OR REPLACE FUNCTION fencing.limit_unlimited(p_limit_ms integer) RETURNS text
LANGUAGE sql VOLATILE
AS $fencing$
    SELECT CASE
        WHEN pg_catalog.current_setting('transaction_timeout', true) = '0'
            AND pg_catalog.current_setting('client_connection_check_interval') = '0'
            AND pg_catalog.inet_client_addr() IS NULL AND fencing.is_linux()
            AND (p_limit_ms > 0) IS NOT FALSE
            AND pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()
                < pg_catalog.make_interval(secs => 0.01)
        THEN pg_catalog.concat(
            pg_catalog.set_config(
                'transaction_timeout', CAST(coalesce(p_limit_ms, 0) AS text), true),
            pg_catalog.set_config(
                'client_connection_check_interval', CAST(least(p_limit_ms, 500) AS text), true))
        END
$fencing$
--;
-- Waits for an admission as long as trust lasts, and not longer than the transaction waits for
-- any lock; then the entry's locks are ours.
CREATE OR REPLACE FUNCTION fencing.await_admission(p_resource text, p_limit_ms integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before text := current_setting('lock_timeout');
    v_left   double precision := fencing.limit_left(p_limit_ms);
BEGIN
    IF p_limit_ms IS NOT NULL
        AND (v_before = '0' OR EXTRACT(epoch FROM CAST(v_before AS interval)) * 1000 > v_left)
    THEN
        PERFORM set_config('lock_timeout', CAST(v_left AS text), true);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(fencing.lock_key(p_resource)),
            pg_advisory_xact_lock_shared(fencing.identity_key(p_resource));
    PERFORM set_config('lock_timeout', v_before, true);
END
$fencing$
--;
-- The limits of this transaction: never longer than they are, nor than so many milliseconds. With
-- NULL there is none, but for those on a client that is gone.
CREATE OR REPLACE FUNCTION fencing.limit_transaction(p_left double precision) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_linux   boolean := strpos(version(), 'linux') > 0;
    -- From version 17 one limit is enough. Before, two that begin anew with each statement.
    v_names   text[] := CASE WHEN p_left IS NULL THEN CAST(ARRAY[] AS text[])
        WHEN current_setting('transaction_timeout', true) IS NULL
        THEN ARRAY['idle_in_transaction_session_timeout', 'statement_timeout']
        ELSE ARRAY['transaction_timeout'] END;
    v_setting text;
    v_text    text;
    v_limit   double precision;
    v_set_ms  double precision;
BEGIN
    -- Not a limit but how often the server looks whether the client is still there; needs a
    -- platform that can tell.
    IF v_linux OR version() !~ '(Visual C|windows|mingw)' THEN
        v_names := array_append(v_names, 'client_connection_check_interval');
    END IF;
    -- The only limit on a server that is sending rows to a client which does not read them: it
    -- looks at no other until they are sent. Needs TCP, and Linux.
    IF v_linux AND inet_client_addr() IS NOT NULL THEN
        v_names := array_append(v_names, 'tcp_user_timeout');
    END IF;
    FOREACH v_setting IN ARRAY v_names LOOP
        v_text := current_setting(v_setting);
        v_limit := CASE v_setting
            WHEN 'client_connection_check_interval' THEN least(p_left, 500)
            -- Not below a second: it would take a slow answer for a dead client. Where there is no
            -- limit, nobody who works needs five minutes until he reads on.
            WHEN 'tcp_user_timeout' THEN greatest(coalesce(p_left, 300000), 1000)
            ELSE p_left END;
        v_set_ms := CASE
            WHEN v_text = '0' THEN 0
            -- Shown as the socket has it, in milliseconds and without a unit.
            WHEN v_setting = 'tcp_user_timeout' THEN CAST(v_text AS double precision)
            ELSE EXTRACT(epoch FROM CAST(v_text AS interval)) * 1000 END;
        CONTINUE WHEN v_set_ms > 0 AND v_set_ms <= v_limit;
        IF v_setting = 'transaction_timeout' AND v_set_ms > 0 THEN
            -- A timer that is running is not shortened; it has to be stopped first.
            v_text := set_config(v_setting, '0', true);
        END IF;
        v_text := set_config(v_setting, CAST(v_limit AS text), true);
    END LOOP;
END
$fencing$
--;
-- As version 1 of the package calls it.
CREATE OR REPLACE FUNCTION fencing.enter(p_leases text, p_limit_ms integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    PERFORM fencing.enter(p_leases, p_limit_ms, NULL);
END
$fencing$
--;
