-- What is said of a write or a lease that does not pass. The same words refuse and report.

-- explain(code, table, resource, token, mark) -> message, detail, hint
--
--   code       ZF001 stale, ZF002 unfenced, ZF003 not admitted
--   table      the guarded table, NULL where no table is concerned
--   token      what was presented
--   mark       what the fence says
CREATE OR REPLACE FUNCTION fencing.explain(
    p_code text, p_table text, p_resource text, p_token bigint, p_mark bigint,
    OUT message text, OUT detail jsonb, OUT hint text
)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    CASE p_code
    WHEN 'ZF001' THEN
        message := concat('stale fence: "', p_resource, '" was presented with token ', p_token,
                          ', but token ', p_mark, ' has been admitted');
        detail := jsonb_build_object(
            'resource', p_resource, 'token', p_token, 'current_token', p_mark);
        hint := 'Another holder has taken over. Acquire again and repeat the work from its first read.';
    WHEN 'ZF003' THEN
        message := concat('token ', p_token, ' on "', p_resource,
                          '" was presented before this database had admitted it');
        detail := jsonb_build_object('resource', p_resource, 'token', p_token);
        hint := 'Acquire through a Guard, or call Guard.admit(lease) before the first transaction.';
    ELSE
        detail := jsonb_build_object('table', p_table, 'resource', p_resource);
        IF p_resource IS NULL THEN
            message := concat('unfenced write: a row of ', p_table, ' names no resource, since a '
                              'column of its template is NULL');
            hint := 'Make the columns that the resource template names NOT NULL.';
        ELSE
            message := concat('unfenced write: ', p_table, ' is guarded, and this transaction '
                              'has presented no lease on "', p_resource, '"');
            hint := 'Begin the transaction under the lease, through an engine that a Guard was made for.';
        END IF;
    END CASE;
    IF p_table IS NOT NULL THEN
        detail := detail || jsonb_build_object('table', p_table);
    END IF;
END
$fencing$
--;
CREATE OR REPLACE FUNCTION fencing.refuse(
    p_code text, p_table text, p_resource text, p_token bigint, p_mark bigint
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_said record;
BEGIN
    SELECT * INTO v_said FROM fencing.explain(p_code, p_table, p_resource, p_token, p_mark);
    RAISE EXCEPTION USING
        ERRCODE = p_code, MESSAGE = v_said.message, DETAIL = v_said.detail, HINT = v_said.hint;
END
$fencing$
--;
-- What is wrong with a token that was presented and is not what the fence says: it has been
-- overtaken, or this database never admitted it. -> code, mark
CREATE OR REPLACE FUNCTION fencing.judge(
    p_resource text, p_token bigint, OUT code text, OUT mark bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    -- Of a fence that was pruned, the floor is what is left.
    mark := coalesce(
        (SELECT f.token FROM fencing.fence AS f WHERE f.resource = p_resource),
        fencing.floor_of(p_resource));
    code := CASE WHEN mark >= p_token THEN 'ZF001' ELSE 'ZF003' END;
END
$fencing$
--;
CREATE OR REPLACE FUNCTION fencing.refuse_presented(
    p_table text, p_resource text, p_token bigint
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_judgement record;
BEGIN
    SELECT * INTO v_judgement FROM fencing.judge(p_resource, p_token);
    PERFORM fencing.refuse(v_judgement.code, p_table, p_resource, p_token, v_judgement.mark);
END
$fencing$
--;
-- Version 1 had one function for each. One of its functions may be waiting for a lock while the
-- schema is brought forward, and will call them when it goes on.
CREATE OR REPLACE FUNCTION fencing.refuse_stale(p_resource text, p_token bigint, p_mark bigint)
RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $fencing$ SELECT fencing.refuse('ZF001', NULL, p_resource, p_token, p_mark) $fencing$
--;
CREATE OR REPLACE FUNCTION fencing.refuse_unadmitted(p_resource text, p_token bigint) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $fencing$ SELECT fencing.refuse('ZF003', NULL, p_resource, p_token, NULL) $fencing$
--;
CREATE OR REPLACE FUNCTION fencing.refuse_unfenced(p_table text, p_resource text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $fencing$ SELECT fencing.refuse('ZF002', p_table, p_resource, NULL, NULL) $fencing$
--;
