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

CREATE SCHEMA fencing
--;
COMMENT ON SCHEMA fencing IS
    'Fencing tokens: refuses writes of overtaken lock holders. Do not change by hand.'
--;

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
) WITH (fillfactor = 80)
--;
COMMENT ON TABLE fencing.fence IS
    'One row a resource: the largest fencing token admitted, and the holder it was admitted for'
--;

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
$fencing$
--;
CREATE FUNCTION fencing.keep_fence() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF007',
        MESSAGE = 'a fence cannot be removed (' || TG_OP || ' on fencing.fence)',
        HINT = 'Removing a fence would let older tokens in again.';
END
$fencing$
--;
CREATE TRIGGER fence_remember_previous BEFORE UPDATE ON fencing.fence
    FOR EACH ROW EXECUTE FUNCTION fencing.remember_previous()
--;
CREATE TRIGGER fence_keep_rows BEFORE DELETE ON fencing.fence
    FOR EACH ROW EXECUTE FUNCTION fencing.keep_fence()
--;
CREATE TRIGGER fence_keep_table BEFORE TRUNCATE ON fencing.fence
    FOR EACH STATEMENT EXECUTE FUNCTION fencing.keep_fence()
--;
-- ALWAYS: session_replication_role must not switch them off.
ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_remember_previous
--;
ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_keep_rows
--;
ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER fence_keep_table
--;

