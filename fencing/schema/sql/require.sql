-- require(table_name, resources) -> void
--
--   What refuses. Called by the guard of a table with every distinct resource a statement has
--   touched: each must be in this transaction's claim, and the claim must be what the fence
--   says, read under a lock that holds until this transaction ends.
--   raises     ZF001 stale, ZF002 unfenced, ZF003 not admitted
CREATE FUNCTION fencing.require(p_table text, p_resources text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_claim     text := coalesce(current_setting('fencing.claim', true), '');
    v_resource  text;
    v_claimed   text;
    v_presented bigint;
    v_token     bigint;
    v_holder    text;
BEGIN
    IF NOT starts_with(v_claim, fencing.stamp() || ' ') THEN
        v_claim := '';
    END IF;
    FOREACH v_resource IN ARRAY p_resources LOOP
        IF v_resource IS NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF002',
                MESSAGE = concat('unfenced write: a row of ', p_table, ' names no resource, since '
                                 'a column of its template is NULL'),
                DETAIL = jsonb_build_object('table', p_table, 'resource', NULL),
                HINT = 'Make the columns that the resource template names NOT NULL.';
        END IF;
        -- '' when this transaction claims no such resource.
        v_claimed := split_part(split_part(
            v_claim, ' ' || encode(convert_to(v_resource, 'UTF8'), 'hex') || '=', 2), ' ', 1);
        IF v_claimed = '' THEN
            PERFORM fencing.refuse_unfenced(p_table, v_resource);
        END IF;
        -- One index probe a resource. FOR SHARE: no admission can commit between this check and
        -- the end of this transaction, and under an old snapshot the lock itself fails.
        SELECT f.token, f.holder INTO v_token, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_resource FOR SHARE;
        CONTINUE WHEN FOUND AND concat(v_token, '.', v_holder) = v_claimed;
        IF v_claimed !~ '^[0-9]{1,16}[.]' THEN -- no entry has written that
            PERFORM fencing.refuse_unfenced(p_table, v_resource);
        END IF;
        v_presented := CAST(split_part(v_claimed, '.', 1) AS bigint);
        IF v_token IS NULL OR v_token < v_presented THEN
            PERFORM fencing.refuse_unadmitted(v_resource, v_presented);
        END IF;
        PERFORM fencing.refuse_stale(v_resource, v_presented, v_token);
    END LOOP;
END
$fencing$
--;

