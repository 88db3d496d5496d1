CREATE FUNCTION fencing.refuse_stale(p_resource text, p_token bigint, p_mark bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF001',
        MESSAGE = concat('stale fence: "', p_resource, '" was presented with token ', p_token,
                         ', but token ', p_mark, ' has been admitted'),
        DETAIL = jsonb_build_object(
            'resource', p_resource, 'token', p_token, 'current_token', p_mark),
        HINT = 'Another holder has taken over. Acquire again and repeat the work from its first read.';
END
$fencing$
--;
CREATE FUNCTION fencing.refuse_unadmitted(p_resource text, p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF003',
        MESSAGE = concat('token ', p_token, ' on "', p_resource,
                         '" was presented before this database had admitted it'),
        DETAIL = jsonb_build_object('resource', p_resource, 'token', p_token),
        HINT = 'Acquire through a Guard, or call Guard.admit(lease) before the first transaction.';
END
$fencing$
--;
CREATE FUNCTION fencing.refuse_unfenced(p_table text, p_resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'ZF002',
        MESSAGE = concat('unfenced write: ', p_table, ' is guarded, and this transaction '
                         'has presented no lease on "', p_resource, '"'),
        DETAIL = jsonb_build_object('table', p_table, 'resource', p_resource),
        HINT = 'Begin the transaction under the lease, through an engine that a Guard was made for.';
END
$fencing$
--;

