-- What concerns one resource or one transaction: keys of advisory locks, and the stamp.

-- The advisory lock of a resource, where admissions and entries meet. Two resources that hash alike
-- only wait for each other.
CREATE OR REPLACE FUNCTION fencing.lock_key(p_resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$ SELECT pg_catalog.hashtextextended(p_resource COLLATE "C", 6073413) $fencing$
--;
-- A second one that every entry takes, always shared, so that nobody ever waits for it: it tells
-- eviction that a holder of the first means this resource, not one that hashes alike.
CREATE OR REPLACE FUNCTION fencing.identity_key(p_resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$ SELECT pg_catalog.hashtextextended(p_resource COLLATE "C", 6073414) $fencing$
--;
-- Backends that hold an advisory lock of a bigint key.
CREATE OR REPLACE FUNCTION fencing.holders_of(p_key bigint) RETURNS TABLE (pid integer, mode text)
LANGUAGE sql STABLE STRICT
AS $fencing$
    SELECT l.pid, l.mode FROM pg_catalog.pg_locks AS l
    WHERE l.locktype = 'advisory'
        AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d
                          WHERE d.datname = pg_catalog.current_database())
        AND CAST(l.classid AS bigint) = ((p_key >> 32) & 4294967295)
        AND CAST(l.objid AS bigint) = (p_key & 4294967295)
        AND l.objsubid = 1
        AND l.granted
$fencing$
--;
-- What tells this transaction from every other: a claim that leaked into another transaction
-- through a pool does not match there. Costs no transaction id, unlike txid_current().
CREATE OR REPLACE FUNCTION fencing.stamp() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
AS $fencing$
    SELECT pg_catalog.concat(
        pg_catalog.pg_backend_pid(), '.',
        CAST(EXTRACT(epoch FROM pg_catalog.transaction_timestamp()) * 1000000 AS bigint))
$fencing$
--;
-- Whether this transaction has presented what a fence says. NULL where it has presented nothing.
-- Written for the planner: it becomes part of the statement that looks at the fence.
CREATE OR REPLACE FUNCTION fencing.is_claimed(p_resource text, p_token bigint, p_holder text)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL RESTRICTED
AS $fencing$
    SELECT pg_catalog.starts_with(
            pg_catalog.current_setting('fencing.claim', true), fencing.stamp() || ' ')
        AND pg_catalog.split_part(
            pg_catalog.split_part(
                pg_catalog.current_setting('fencing.claim', true),
                ' ' || pg_catalog.encode(pg_catalog.convert_to(p_resource, 'UTF8'), 'hex') || '=',
                2),
            ' ', 1) = CAST(p_token AS text) || '.' || p_holder
$fencing$
--;
