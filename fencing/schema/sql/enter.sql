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
CREATE OR REPLACE FUNCTION fencing.enter(p_leases text, p_limit_ms integer) RETURNS void
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
        PERFORM pg_advisory_xact_lock_shared(v_lease.key),
                pg_advisory_xact_lock_shared(fencing.identity_key(v_lease.resource));
        SELECT f.token, f.holder INTO v_mark, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_lease.resource;
        IF v_mark = v_lease.token AND v_holder = v_lease.holder THEN
            NULL;
        ELSE
            PERFORM fencing.refuse_presented(NULL, v_lease.resource, v_lease.token);
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
$fencing$
--;

