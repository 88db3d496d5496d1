-- Maintenance: one transaction writes a guarded table without leases, alone, and overtakes every
-- holder of what it has written. For data migrations over all resources.

-- Which tables a transaction maintains. Its rows never outlive their transaction: a transaction id
-- that a dump brings to another server may be anybody's there.
CREATE UNLOGGED TABLE IF NOT EXISTS fencing.maintenance (
    transaction xid8 NOT NULL,
    guarded     text NOT NULL,
    ending      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (transaction, guarded, ending)
)
--;
COMMENT ON TABLE fencing.maintenance IS
    'Tables that transactions in progress maintain; empty to everybody else'
--;
-- Fires at commit, and once more behind the other deferred triggers, which may write as well.
CREATE OR REPLACE FUNCTION fencing.end_maintenance() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF NEW.ending THEN
        DELETE FROM fencing.maintenance AS m
            WHERE m.transaction = NEW.transaction AND m.guarded = NEW.guarded;
    ELSE
        INSERT INTO fencing.maintenance VALUES (NEW.transaction, NEW.guarded, true)
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$fencing$
--;
DO $fencing$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger AS t
        WHERE t.tgrelid = CAST('fencing.maintenance' AS regclass) AND t.tgname = 'maintenance_ends')
    THEN
        CREATE CONSTRAINT TRIGGER maintenance_ends AFTER INSERT ON fencing.maintenance
            DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION fencing.end_maintenance();
        ALTER TABLE fencing.maintenance ENABLE ALWAYS TRIGGER maintenance_ends;
    END IF;
END
$fencing$
--;
-- A table as guards name it.
CREATE OR REPLACE FUNCTION fencing.name_of(p_table oid) RETURNS text
LANGUAGE sql STABLE STRICT
AS $fencing$
    SELECT pg_catalog.concat(pg_catalog.quote_ident(n.nspname), '.', pg_catalog.quote_ident(c.relname))
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = p_table
$fencing$
--;
-- Whether this transaction maintains a table.
CREATE OR REPLACE FUNCTION fencing.is_maintained(p_table text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
    SELECT EXISTS (
        SELECT FROM fencing.maintenance AS m
        WHERE m.transaction = pg_current_xact_id_if_assigned() AND m.guarded = p_table)
$fencing$
--;
-- Overtakes every holder of these resources, those included that are admitted in this moment: their
-- admission waits for our row, and then finds the mark above its token. Once a transaction.
CREATE OR REPLACE FUNCTION fencing.raise_maintained(p_resources text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_holder text := concat('maintenance.', pg_current_xact_id());
BEGIN
    -- Rows without a resource, or with one that no fence can be of, are nobody's.
    p_resources := ARRAY(
        SELECT r.resource FROM unnest(p_resources) AS r(resource)
        WHERE octet_length(r.resource) BETWEEN 1 AND 512);
    -- Locked, since fences may be being pruned: until that is committed, the floors do not tell of
    -- them. Pruning waits for nobody, so there is no deadlock.
    PERFORM FROM fencing.floor AS f
        WHERE f.bucket = ANY (ARRAY(
            SELECT fencing.bucket(r.resource) FROM unnest(p_resources) AS r(resource)))
        FOR SHARE;
    INSERT INTO fencing.fence AS f (resource, token, holder, owner)
        SELECT r.resource, fencing.floor_of(r.resource) + 1, v_holder, session_user
        FROM unnest(p_resources) AS r(resource) ORDER BY r.resource COLLATE "C" -- as guards do
        ON CONFLICT (resource) DO UPDATE
        SET token = f.token + 1, holder = excluded.holder, owner = excluded.owner,
            admitted_at = clock_timestamp()
        WHERE f.holder <> excluded.holder;
END
$fencing$
--;

-- maintain(table, lock_ms) -> void
--
--   Locks a guarded table against other writers and lets this transaction write it without leases,
--   until it ends. Every fence whose rows it writes is raised, so no lease that is held meanwhile
--   is any good afterwards. For the owner of schema fencing.
--   lock_ms    longest wait for open transactions that have written the table, or locked rows of it:
--              whoever has read FOR UPDATE and is about to write would wait for us, and we for him
--   raises     ZF009 not fenced, ZF012 busy
CREATE OR REPLACE FUNCTION fencing.maintain(p_table regclass, p_lock_ms integer DEFAULT 5000)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    -- Raises where there is none. Before we lock the table as well: an upgrade locks fencing.guards
    -- before it locks tables.
    PERFORM fencing.find_guard(p_table);
    PERFORM fencing.lock_table(p_table, 'EXCLUSIVE', p_lock_ms);
    PERFORM fencing.find_guard(p_table);
    INSERT INTO fencing.maintenance (transaction, guarded)
        SELECT pg_current_xact_id(), fencing.name_of(d.relation)
        FROM fencing.descendants(p_table) AS d(relation)
        ON CONFLICT DO NOTHING;
END
$fencing$
--;
