-- enter(leases, limit_ms, receipt) -> text
--
--   The first statement of a transaction that acts under leases: presents them.
--   leases     "<hex of resource>=<token>.<holder>", separated by single spaces
--   limit_ms   trust left in the shortest of them when this was sent; NULL sets no limits
--   receipt    leaves a row by which an unknown outcome of COMMIT is made certain later; NULL
--              leaves none, and then reading takes no transaction id and writes nothing
--   returns    what tells this transaction from every other
--   raises     ZF001 stale, ZF003 not admitted, 55P03 when the trust ran out while waiting for
--              an admission
--
--   Sets, for this transaction only and never longer than they are, the limits that end it when
--   its holder is paused, so that a successor need not wait for ever. It runs once a transaction:
--   where a query could say it shorter, expressions that need no plan are used.
CREATE OR REPLACE FUNCTION fencing.enter(p_leases text, p_limit_ms integer, p_receipt uuid)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_stamp        text := fencing.stamp();
    v_items        text[] := string_to_array(p_leases, ' ');
    v_item         text;
    v_resource     text;
    v_claimed      text;
    v_found        text;
    v_lock_timeout text := current_setting('lock_timeout');
    v_lock_ms      double precision := 0;
    v_left         double precision;
    v_linux        boolean;
    v_setting      text;
    v_text         text;
    v_limit        double precision;
    v_set_ms       double precision;
BEGIN
    IF v_lock_timeout <> '0' THEN
        v_lock_ms := EXTRACT(epoch FROM CAST(v_lock_timeout AS interval)) * 1000;
    END IF;
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
        -- What is left of the trust; it is one for all the locks. 0 would disable a limit.
        v_left := greatest(1, floor(
            p_limit_ms - EXTRACT(epoch FROM clock_timestamp() - statement_timestamp()) * 1000));
        IF p_limit_ms IS NOT NULL AND (v_lock_ms = 0 OR v_lock_ms > v_left) THEN
            v_text := set_config('lock_timeout', CAST(v_left AS text), true);
        END IF;
        PERFORM pg_advisory_xact_lock_shared(fencing.lock_key(v_resource)),
                pg_advisory_xact_lock_shared(fencing.identity_key(v_resource));
        SELECT concat(f.token, '.', f.holder) INTO v_found
            FROM fencing.fence AS f WHERE f.resource = v_resource;
        IF v_found IS DISTINCT FROM v_claimed THEN
            PERFORM fencing.refuse_presented(
                NULL, v_resource, CAST(split_part(v_claimed, '.', 1) AS bigint));
        END IF;
    END LOOP;
    v_text := set_config('lock_timeout', v_lock_timeout, true);
    v_text := set_config('fencing.claim', concat(v_stamp, ' ', array_to_string(v_items, ' ')), true);

    IF p_limit_ms IS NOT NULL THEN
        v_left := greatest(1, floor(
            p_limit_ms - EXTRACT(epoch FROM clock_timestamp() - statement_timestamp()) * 1000));
        v_linux := strpos(version(), 'linux') > 0;
        FOREACH v_setting IN ARRAY ARRAY[
            'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout',
            'tcp_user_timeout', 'client_connection_check_interval']
        LOOP
            v_text := current_setting(v_setting, true);
            v_limit := v_left;
            v_set_ms := 0;
            IF v_setting = 'tcp_user_timeout' THEN
                -- The only limit on a server that is sending rows to a client which does not read
                -- them: it looks at no other until they are sent. Needs TCP, and Linux. Not below
                -- a second: it would take a slow answer for a dead client.
                CONTINUE WHEN NOT v_linux;
                v_limit := greatest(v_left, 1000);
                -- Shown as the socket has it, in milliseconds and without a unit.
                v_set_ms := CAST(v_text AS double precision);
            ELSE
                -- NULL where this server does not have it: transaction_timeout came with 17.
                CONTINUE WHEN v_text IS NULL;
                IF v_setting = 'client_connection_check_interval' THEN
                    -- Not a limit but how often the server looks whether the client is still
                    -- there; needs a platform that can tell.
                    CONTINUE WHEN NOT v_linux AND version() ~ '(Visual C|windows|mingw)';
                    v_limit := least(v_left, 500);
                END IF;
                IF v_text <> '0' THEN
                    v_set_ms := EXTRACT(epoch FROM CAST(v_text AS interval)) * 1000;
                END IF;
            END IF;
            CONTINUE WHEN v_set_ms > 0 AND v_set_ms <= v_limit;
            IF v_setting = 'transaction_timeout' AND v_set_ms > 0 THEN
                -- A timer that is running is not shortened; it has to be stopped first.
                v_text := set_config(v_setting, '0', true);
            END IF;
            v_text := set_config(v_setting, CAST(v_limit AS text), true);
        END LOOP;
    END IF;
    IF p_receipt IS NOT NULL THEN
        INSERT INTO fencing.receipt (id) VALUES (p_receipt);
    END IF;
    RETURN v_stamp;
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
