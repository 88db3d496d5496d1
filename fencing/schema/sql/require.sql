-- What a claim says of each of some resources, in their order: "<token>.<holder>", or '' nothing.
CREATE OR REPLACE FUNCTION fencing.claims_of(p_claim text, p_resources text[]) RETURNS text[]
LANGUAGE sql STABLE
AS $fencing$
    SELECT ARRAY(
        SELECT coalesce(c.claimed, '')
        FROM unnest(p_resources) WITH ORDINALITY AS r(resource, number)
        LEFT JOIN (
            SELECT DISTINCT ON (1) split_part(i.item, '=', 1) AS name,
                split_part(i.item, '=', 2) AS claimed
            FROM unnest(string_to_array(p_claim, ' ')) AS i(item)
        ) AS c ON c.name = encode(convert_to(r.resource, 'UTF8'), 'hex')
        ORDER BY r.number)
$fencing$
--;
-- require(table_name, resources) -> void
--
--   What refuses. Called by the guard of a table with every distinct resource a statement has
--   touched: each must be in this transaction's claim, and the claim must be what the fence
--   says, read under a lock that holds until this transaction ends.
--   raises     ZF001 stale, ZF002 unfenced, ZF003 not admitted
CREATE OR REPLACE FUNCTION fencing.require(p_table text, p_resources text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_claim      text := coalesce(current_setting('fencing.claim', true), '');
    v_resource   text;
    v_claimed    text;
    v_token      bigint;
    v_holder     text;
    v_maintained boolean; -- asked once, and only for a write that would be refused
    v_raise      text[] := '{}';
    v_claims     text[];  -- where there are many: found all at once
BEGIN
    IF NOT starts_with(v_claim, fencing.stamp() || ' ') THEN
        v_claim := '';
    END IF;
    IF cardinality(p_resources) > 8 THEN
        v_claims := fencing.claims_of(v_claim, p_resources);
    END IF;
    FOR v_number IN 1..cardinality(p_resources) LOOP
        v_resource := p_resources[v_number];
        -- '' when this transaction claims no such resource.
        v_claimed := CASE WHEN v_claims IS NULL
            THEN coalesce(split_part(split_part(
                v_claim, ' ' || encode(convert_to(v_resource, 'UTF8'), 'hex') || '=', 2), ' ', 1), '')
            ELSE v_claims[v_number] END;
        IF v_claimed = '' THEN
            v_maintained := coalesce(v_maintained, fencing.is_maintained(p_table));
            IF NOT v_maintained THEN
                PERFORM fencing.refuse('ZF002', p_table, v_resource, NULL, NULL);
            END IF;
            v_raise := v_raise || v_resource;
            CONTINUE;
        END IF;
        -- One index probe a resource. FOR SHARE: no admission can commit between this check and
        -- the end of this transaction, and under an old snapshot the lock itself fails.
        SELECT f.token, f.holder INTO v_token, v_holder
            FROM fencing.fence AS f WHERE f.resource = v_resource FOR SHARE;
        CONTINUE WHEN FOUND AND concat(v_token, '.', v_holder) = v_claimed;
        IF v_claimed !~ '^[0-9]{1,16}[.]' THEN -- no entry has written that
            PERFORM fencing.refuse('ZF002', p_table, v_resource, NULL, NULL);
        END IF;
        PERFORM fencing.refuse_presented(
            p_table, v_resource, CAST(split_part(v_claimed, '.', 1) AS bigint));
    END LOOP;
    IF v_raise <> '{}' THEN
        PERFORM fencing.raise_maintained(v_raise);
    END IF;
END
$fencing$
--;

-- observe(table_name, resources, each_row) -> void
--
--   require, for a table whose guard only observes: what it would refuse is reported in a NOTICE
--   with the same code, text and detail. Locks nothing, waits for nothing, refuses nothing. At
--   most 100 notices a statement; the last one counts the others in "more".
--   each_row   called once for every row of a statement: of those beyond 100 a notice comes
--              whenever their number has doubled, and counts in "more" what came since the last
CREATE OR REPLACE FUNCTION fencing.observe(p_table text, p_resources text[], p_each_row boolean)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_claim     text := coalesce(current_setting('fencing.claim', true), '');
    v_resource  text;
    v_claimed   text;
    v_token     bigint;
    v_code      text;
    v_mark      bigint;
    v_said      record;
    v_last      record;
    v_last_code text;
    v_count     integer := 0;
    -- Rows share a count in a setting of this transaction; it is of one statement of the client's.
    v_statement text := concat(
        fencing.stamp(), ' ', EXTRACT(epoch FROM statement_timestamp()), ' ');
    v_counted   text := coalesce(current_setting('fencing.noticed', true), '');
    v_rows      integer;
BEGIN
    IF NOT starts_with(v_claim, fencing.stamp() || ' ') THEN
        v_claim := '';
    END IF;
    IF p_each_row AND starts_with(v_counted, v_statement) THEN
        v_rows := CAST(substr(v_counted, length(v_statement) + 1) AS integer);
    END IF;
    FOREACH v_resource IN ARRAY p_resources LOOP
        v_claimed := coalesce(split_part(split_part(
            v_claim, ' ' || encode(convert_to(v_resource, 'UTF8'), 'hex') || '=', 2), ' ', 1), '');
        v_code := 'ZF002';
        v_token := NULL;
        v_mark := NULL;
        IF v_claimed ~ '^[0-9]{1,16}[.]' THEN
            CONTINUE WHEN EXISTS (
                SELECT FROM fencing.fence AS f
                WHERE f.resource = v_resource AND concat(f.token, '.', f.holder) = v_claimed);
            v_token := CAST(split_part(v_claimed, '.', 1) AS bigint);
            SELECT j.code, j.mark INTO v_code, v_mark FROM fencing.judge(v_resource, v_token) AS j;
        END IF;
        IF v_count = 0 AND fencing.is_maintained(p_table) THEN
            RETURN;
        END IF;
        IF p_each_row THEN
            v_rows := coalesce(v_rows, 0) + 1;
            PERFORM set_config('fencing.noticed', concat(v_statement, v_rows), true);
            -- 100, 200, 400, ...
            CONTINUE WHEN v_rows > 100
                AND (mod(v_rows, 100) <> 0 OR (v_rows / 100) & (v_rows / 100 - 1) <> 0);
        END IF;
        SELECT * INTO v_said FROM fencing.explain(v_code, p_table, v_resource, v_token, v_mark);
        IF v_rows > 100 THEN
            v_said.detail := v_said.detail || jsonb_build_object('more', v_rows / 2 - 1);
        END IF;
        v_count := v_count + 1;
        IF v_count < 100 THEN
            RAISE NOTICE USING
                ERRCODE = v_code, MESSAGE = v_said.message, DETAIL = v_said.detail,
                HINT = v_said.hint;
        ELSE
            v_last := v_said;
            v_last_code := v_code;
        END IF;
    END LOOP;
    IF v_count >= 100 THEN
        RAISE NOTICE USING
            ERRCODE = v_last_code, MESSAGE = v_last.message,
            DETAIL = v_last.detail || jsonb_build_object('more', v_count - 100),
            HINT = v_last.hint;
    END IF;
END
$fencing$
--;

-- refuse_truncate(table_name, mode): TRUNCATE, where a template names columns
CREATE OR REPLACE FUNCTION fencing.refuse_truncate(p_table text, p_mode text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_message text := concat(
        'unfenced write: TRUNCATE of ', p_table,
        ' removes rows of every resource, and no lease covers them all');
    v_detail  jsonb := jsonb_build_object('table', p_table, 'resource', NULL);
    v_hint    text := 'DELETE the rows of the resources that are held; in a fenced_maintenance, all of them.';
BEGIN
    IF p_mode = 'observe' THEN
        RAISE NOTICE USING
            ERRCODE = 'ZF002', MESSAGE = v_message, DETAIL = v_detail, HINT = v_hint;
        RETURN;
    END IF;
    IF fencing.is_maintained(p_table) THEN
        -- Nobody knows whose rows they were; so every holder of any of them has to be overtaken.
        v_message := concat(v_message, ', not even in maintenance');
        v_hint := 'DELETE FROM the table instead: that raises the fence of each row.';
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ZF002', MESSAGE = v_message, DETAIL = v_detail, HINT = v_hint;
END
$fencing$
--;
