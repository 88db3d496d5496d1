-- The advisory lock of a resource. Two resources that hash alike only wait for each other.
CREATE FUNCTION fencing.lock_key(p_resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $fencing$ SELECT pg_catalog.hashtextextended(p_resource COLLATE "C", 6073413) $fencing$
--;
-- What tells this transaction from every other: a claim that leaked into another transaction
-- through a pool does not match there. Costs no transaction id, unlike txid_current().
CREATE FUNCTION fencing.stamp() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
AS $fencing$
    SELECT pg_catalog.concat(
        pg_catalog.pg_backend_pid(), '.',
        CAST(EXTRACT(epoch FROM pg_catalog.transaction_timestamp()) * 1000000 AS bigint))
$fencing$
--;
