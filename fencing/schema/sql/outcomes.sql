-- Outcomes: what has become of a transaction whose COMMIT was sent and not answered.

-- One row a transaction that entered with a receipt; it is there for others exactly when that was
-- committed. An inquiry that finds none leaves its own, so that no later one finds otherwise.
CREATE TABLE IF NOT EXISTS fencing.receipt (
    id         uuid PRIMARY KEY,
    committed  boolean NOT NULL DEFAULT true,
    written_at timestamptz NOT NULL DEFAULT transaction_timestamp(),
    asked_at   timestamptz
) WITH (fillfactor = 80)
--;
COMMENT ON TABLE fencing.receipt IS
    'Transactions that were committed, by a number of their own; or asked about, and were not'
--;
-- Until when receipts have been forgotten: of older transactions, one without a receipt says nothing.
CREATE TABLE IF NOT EXISTS fencing.horizon (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    forgotten timestamptz NOT NULL
)
--;
COMMENT ON TABLE fencing.horizon IS 'Receipts of transactions that began before this may be gone'
--;
-- From the start: an inquiry locks it, so there has to be one.
INSERT INTO fencing.horizon (forgotten) VALUES ('-infinity') ON CONFLICT (one) DO NOTHING
--;
-- An incarnation of the server: between two crashes, or promotions, either of which empties it.
-- Within one, a transaction id is given to one transaction only.
CREATE UNLOGGED TABLE IF NOT EXISTS fencing.incarnation (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id  uuid NOT NULL DEFAULT gen_random_uuid()
)
--;
COMMENT ON TABLE fencing.incarnation IS 'Changes whenever the server has recovered from a crash'
--;

-- outcome(receipt, stamp, wait_ms) -> text
--
--   stamp      what its entry has returned
--   wait_ms    longest wait for the transaction, if it is still open
--   returns    committed; rolled back, and never to be committed any more; or unknown: it is still
--              open, or so old that its receipt may have been forgotten
CREATE OR REPLACE FUNCTION fencing.outcome(p_receipt uuid, p_stamp text, p_wait_ms integer)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_began     timestamptz := to_timestamp(
        CAST(split_part(p_stamp, '.', 2) AS double precision) / 1000000);
    v_forgotten timestamptz;
    v_committed boolean;
BEGIN
    PERFORM set_config('lock_timeout', CAST(greatest(p_wait_ms, 1) AS text), true);
    -- The answer is as durable as what it tells of: committing this flushes that as well.
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    BEGIN
        -- Locked, since the receipt may be being forgotten: ours, in its place, would say that it
        -- never was. Under an old snapshot the lock itself fails.
        SELECT h.forgotten INTO v_forgotten FROM fencing.horizon AS h FOR SHARE;
        IF v_began <= v_forgotten
            AND NOT EXISTS (SELECT FROM fencing.receipt AS r WHERE r.id = p_receipt)
        THEN
            RETURN 'unknown';
        END IF;
        -- Waits for the transaction if it is open: two cannot have the same key.
        INSERT INTO fencing.receipt AS r (id, committed, asked_at)
            VALUES (p_receipt, false, clock_timestamp())
            ON CONFLICT (id) DO UPDATE SET asked_at = excluded.asked_at
            RETURNING r.committed INTO v_committed;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'unknown';
    END;
    RETURN CASE WHEN v_committed THEN 'committed' ELSE 'rolled back' END;
END
$fencing$
--;
-- in_flight(stamp) -> xid, incarnation: the transaction id of one that is still open, and has one.
-- Runs with the rights of its caller, who sees the sessions of its own role.
CREATE OR REPLACE FUNCTION fencing.in_flight(p_stamp text, OUT xid text, OUT incarnation text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_short bigint;
    v_next  bigint := CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint);
BEGIN
    SELECT CAST(CAST(a.backend_xid AS text) AS bigint) INTO v_short FROM pg_stat_activity AS a
        WHERE a.pid = CAST(split_part(p_stamp, '.', 1) AS integer)
            AND CAST(EXTRACT(epoch FROM a.xact_start) * 1000000 AS bigint)
                = CAST(split_part(p_stamp, '.', 2) AS bigint);
    IF v_short IS NOT NULL THEN
        -- The other half of the id is the one that brings it nearest to the next one that ends:
        -- it may be above that, where an earlier transaction is open as well.
        xid := v_next + ((v_short - v_next + 2147483648) & 4294967295) - 2147483648;
        incarnation := fencing.incarnation();
    END IF;
END
$fencing$
--;
CREATE OR REPLACE FUNCTION fencing.incarnation() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_id uuid;
BEGIN
    LOOP
        SELECT i.id INTO v_id FROM fencing.incarnation AS i;
        EXIT WHEN FOUND;
        INSERT INTO fencing.incarnation DEFAULT VALUES ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN concat(v_id, ' ', pg_postmaster_start_time());
END
$fencing$
--;
-- outcome_of(xid, incarnation) -> text
--
--   Of a transaction that was in flight. pg_xact_status alone must not be believed: after a crash
--   an id that was never flushed is given to another transaction.
--   returns    committed, rolled back, in progress, or unknown
CREATE OR REPLACE FUNCTION fencing.outcome_of(p_xid text, p_incarnation text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_status text := pg_xact_status(CAST(p_xid AS xid8));
BEGIN
    -- Asked for after the status: an incarnation that is still the same has been it all along.
    IF fencing.incarnation() IS DISTINCT FROM p_incarnation THEN
        RETURN 'unknown';
    END IF;
    RETURN CASE v_status
        WHEN 'committed' THEN 'committed'
        WHEN 'aborted' THEN 'rolled back'
        WHEN 'in progress' THEN 'in progress'
        ELSE 'unknown'
    END;
END
$fencing$
--;
-- forget_receipts(older_than) -> bigint: deletes old receipts. The outcomes of their transactions
-- are unknown from then on. For the owner of schema fencing.
CREATE OR REPLACE FUNCTION fencing.forget_receipts(p_older_than interval) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before timestamptz := clock_timestamp() - p_older_than;
    v_count  bigint;
BEGIN
    IF p_older_than IS NULL OR p_older_than < interval '1 hour' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF013',
            MESSAGE = concat('cannot forget receipts younger than an hour (', p_older_than, ')'),
            HINT = 'Somebody may still ask what has become of their transactions.';
    END IF;
    INSERT INTO fencing.horizon AS h (forgotten) VALUES (v_before)
        ON CONFLICT (one) DO UPDATE SET forgotten = greatest(h.forgotten, excluded.forgotten);
    DELETE FROM fencing.receipt AS r WHERE r.written_at < v_before;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$fencing$
--;
