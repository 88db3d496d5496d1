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
-- Every function that an application reaches is SECURITY DEFINER with a pinned search_path, or
-- needs no right at all: callers need none on the fence, and no operator or function of theirs is
-- ever looked up.
--
-- Settings:   fencing.claim   what this transaction has presented, transaction-local:
--                             "<stamp> <hex of resource>=<token>.<holder> ..."
--             fencing.noticed how many rows a statement on a partitioned, observed table has
--                             reported, transaction-local: "<stamp> <epoch of the statement> <n>"
-- SQLSTATEs:  see names.py; class ZF is outside the range that the SQL standard reserves.
-- Units:      every argument named *_ms is in milliseconds.
--
-- A line "--;" ends a statement. Every statement may run on an older version of the schema, and
-- brings it to this one: installing and upgrading are one script, so they cannot differ. Neither a
-- percent sign nor a colon before a name may appear: migration tools read them.

COMMENT ON SCHEMA fencing IS
    'Fencing tokens: refuses writes of overtaken lock holders. Do not change by hand.'
--;

-- fillfactor leaves room for HOT updates: an admission changes no indexed column.
CREATE TABLE IF NOT EXISTS fencing.fence (
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

-- What remains of fences that were pruned: no token at or below the floor of its bucket is ever
-- admitted again. In buckets, so that one outlier does not raise the floor of every resource.
CREATE TABLE IF NOT EXISTS fencing.floor (
    bucket smallint PRIMARY KEY,
    token  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50)
--;
COMMENT ON TABLE fencing.floor IS
    'The largest token among the fences that were pruned, by a hash of the resource'
--;
-- All of them from the start: a new fence locks its bucket's row, so there has to be one.
INSERT INTO fencing.floor (bucket) SELECT n FROM generate_series(0, 1023) AS n
    ON CONFLICT (bucket) DO NOTHING
--;

-- The resource's row of fencing.floor.
CREATE OR REPLACE FUNCTION fencing.bucket(p_resource text) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$
    SELECT CAST(pg_catalog.hashtextextended(p_resource COLLATE "C", 6073415) & 1023 AS smallint)
$fencing$
--;
-- The largest token that must not be admitted for a resource without a fence.
CREATE OR REPLACE FUNCTION fencing.floor_of(p_resource text) RETURNS bigint
LANGUAGE sql STABLE STRICT
AS $fencing$
    SELECT f.token FROM fencing.floor AS f WHERE f.bucket = fencing.bucket(p_resource)
$fencing$
--;

-- A CHECK cannot see the old row, so this trigger copies it into the new one; whatever was written
-- into previous_* by hand is overwritten. The old row of a new fence is the floor.
CREATE OR REPLACE FUNCTION fencing.remember_previous() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF TG_OP = 'INSERT' THEN
        -- Locked, since a fence of that name may be being pruned: until that is committed, the
        -- floor does not tell of it. Under an old snapshot the lock itself fails.
        SELECT f.token INTO NEW.previous_token FROM fencing.floor AS f
            WHERE f.bucket = fencing.bucket(NEW.resource) FOR SHARE;
        NEW.previous_holder := '';
        RETURN NEW;
    END IF;
    IF NEW.resource IS DISTINCT FROM OLD.resource THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF007',
            MESSAGE = concat('the fence of "', OLD.resource, '" cannot be renamed'),
            HINT = 'Renaming a fence would let older tokens in again.';
    END IF;
    NEW.previous_token := OLD.token;
    NEW.previous_holder := OLD.holder;
    RETURN NEW;
END
$fencing$
--;
-- A fence goes only when its floor keeps what it kept, and nobody acts under it.
CREATE OR REPLACE FUNCTION fencing.keep_fence() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF fencing.floor_of(OLD.resource) >= OLD.token
            AND pg_try_advisory_xact_lock(fencing.lock_key(OLD.resource))
        THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ZF007',
        MESSAGE = concat('a fence cannot be removed (', TG_OP, ' on fencing.fence)'),
        HINT = 'Removing a fence would let older tokens in again. Fences that nobody has used for '
               'long are pruned with fencing.prune().';
END
$fencing$
--;
CREATE OR REPLACE FUNCTION fencing.keep_floor() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.bucket = OLD.bucket AND NEW.token >= OLD.token THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ZF007',
        MESSAGE = concat('a floor is only ever raised (', TG_OP, ' on fencing.floor)'),
        HINT = 'Lowering it would let tokens in again that are older than a pruned fence.';
END
$fencing$
--;
-- ALWAYS: session_replication_role must not switch them off. Only what is not so already is made:
-- that locks the table, and no admission would get by while it waits for a maintenance or a pruning.
DO $fencing$
DECLARE
    v_trigger    record;
    v_definition text; -- as pg_get_triggerdef writes it
BEGIN
    FOR v_trigger IN
        SELECT * FROM (VALUES
            ('fence_remember_previous', 'BEFORE INSERT OR UPDATE', 'fence', 'ROW', 'remember_previous'),
            ('fence_keep_rows', 'BEFORE DELETE', 'fence', 'ROW', 'keep_fence'),
            ('fence_keep_table', 'BEFORE TRUNCATE', 'fence', 'STATEMENT', 'keep_fence'),
            ('floor_keep_rows', 'BEFORE DELETE OR UPDATE', 'floor', 'ROW', 'keep_floor'),
            ('floor_keep_table', 'BEFORE TRUNCATE', 'floor', 'STATEMENT', 'keep_floor')
        ) AS t(name, event, on_table, level, function)
    LOOP
        v_definition := pg_catalog.concat(
            'TRIGGER ', v_trigger.name, ' ', v_trigger.event, ' ON fencing.', v_trigger.on_table,
            ' FOR EACH ', v_trigger.level, ' EXECUTE FUNCTION fencing.', v_trigger.function, '()');
        CONTINUE WHEN EXISTS (
            SELECT FROM pg_catalog.pg_trigger AS t
            WHERE t.tgname = v_trigger.name AND t.tgenabled = 'A'
                AND pg_catalog.pg_get_triggerdef(t.oid)
                    = pg_catalog.concat('CREATE ', v_definition));
        EXECUTE pg_catalog.concat('CREATE OR REPLACE ', v_definition);
        EXECUTE pg_catalog.concat(
            'ALTER TABLE fencing.', v_trigger.on_table, ' ENABLE ALWAYS TRIGGER ', v_trigger.name);
    END LOOP;
END
$fencing$
--;
