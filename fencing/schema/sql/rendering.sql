-- Rendering: the function and the triggers of a guard, made from its template, operations and mode.
-- What calls it is in guards.sql, and what a guard is made of.

-- The body of a guard's function.
--
-- Nearly every statement touches rows of one resource, which its transaction has claimed. One query
-- tells that: it finds the resource, if there is only one, and locks and compares its fence. It
-- accepts nothing that fencing.require would refuse, and what it does not accept require decides.
CREATE OR REPLACE FUNCTION fencing.render_body(p_template text, p_mode text, p_each_row boolean)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_row    record;
    v_old    text;
    v_new    text;
    v_return text := CASE WHEN p_each_row THEN 'RETURN NEW;' ELSE 'RETURN NULL;' END;
    v_held   text := '(
                SELECT true FROM fencing.fence AS f
                WHERE f.resource = a.resource
                    AND fencing.is_claimed(f.resource, f.token, f.holder)
                FOR SHARE)';
    v_body   text := '
DECLARE
    v_table     text;
    v_resources text[];
    v_held      boolean;
BEGIN';
    v_op     text;
    v_rows   text[]; -- the transition tables of an operation
    v_each   text[]; -- what they say of resources
BEGIN
    SELECT * INTO v_row FROM fencing.parse_template(p_template, 'r');
    SELECT t.expression INTO v_old FROM fencing.parse_template(p_template, 'OLD') AS t;
    SELECT t.expression INTO v_new FROM fencing.parse_template(p_template, 'NEW') AS t;
    FOREACH v_op IN ARRAY ARRAY['UPDATE', 'INSERT', 'DELETE'] LOOP
        v_body := concat(v_body, '
    ', CASE v_op WHEN 'UPDATE' THEN 'IF' ELSE 'ELSIF' END, ' TG_OP = ', quote_literal(v_op), ' THEN');
        IF p_each_row THEN
            v_each := CASE v_op
                WHEN 'UPDATE' THEN ARRAY[v_old, v_new]
                WHEN 'INSERT' THEN ARRAY[v_new]
                ELSE ARRAY[v_old] END;
            IF p_mode <> 'observe' THEN
                v_body := concat(v_body, '
        SELECT ', v_held, ' INTO v_held
            FROM (SELECT ', CASE v_op
                WHEN 'UPDATE' THEN concat('CASE WHEN ', v_old, ' = ', v_new, ' THEN ', v_new, ' END')
                ELSE v_each[1] END, ' AS resource) AS a;
        IF v_held THEN
            ', v_return, '
        END IF;');
            END IF;
            v_body := concat(v_body, '
        v_resources := ', CASE v_op WHEN 'UPDATE' THEN concat(
                'CASE WHEN ', v_old, ' = ', v_new, ' THEN ARRAY[', v_new, '] ELSE ') END,
                'ARRAY[', array_to_string(v_each, ', '), ']',
                CASE v_op WHEN 'UPDATE' THEN ' END' END, ';');
        ELSE
            v_rows := CASE v_op
                WHEN 'UPDATE' THEN ARRAY['new_rows', 'old_rows']
                WHEN 'INSERT' THEN ARRAY['new_rows']
                ELSE ARRAY['old_rows'] END;
            IF p_mode <> 'observe' THEN
                -- Where there are several resources, this ends at the second.
                v_body := concat(v_body, '
        SELECT CASE WHEN ', (
                    SELECT string_agg(concat('NOT EXISTS (
                    SELECT FROM ', t.name, ' AS r
                    WHERE ', v_row.expression, ' IS DISTINCT FROM a.resource)'), ' AND ')
                    FROM unnest(v_rows) AS t(name)), '
            THEN ', v_held, '
            END INTO v_held
            FROM (SELECT ', v_row.expression, ' AS resource FROM ', v_rows[1], ' AS r LIMIT 1) AS a;
        IF v_held', CASE WHEN v_op <> 'UPDATE' THEN ' OR NOT FOUND' END, ' THEN
            ', v_return, '
        END IF;');
            END IF;
            -- They are locked in this order, as a maintenance does it: such a statement and one of a
            -- maintenance cannot wait for each other.
            v_body := concat(v_body, '
        SELECT array_agg(u.resource ORDER BY u.resource) INTO v_resources FROM (', (
                SELECT string_agg(
                    concat('
            SELECT ', CASE WHEN v_op <> 'UPDATE' THEN 'DISTINCT ' END, v_row.expression,
                        ' AS resource FROM ', t.name, ' AS r'), ' UNION')
                FROM unnest(v_rows) AS t(name)), ') AS u;');
        END IF;
    END LOOP;
    RETURN concat(v_body, '
    ELSE', CASE
        WHEN v_row.columns = '{}' THEN concat('
        v_resources := ARRAY[', v_row.expression, '];')
        ELSE concat('
        PERFORM fencing.refuse_truncate(
            concat(quote_ident(TG_TABLE_SCHEMA), ''.'', quote_ident(TG_TABLE_NAME)), ',
            quote_literal(p_mode), ');') END, '
    END IF;
    IF v_resources IS NOT NULL THEN
        v_table := concat(quote_ident(TG_TABLE_SCHEMA), ''.'', quote_ident(TG_TABLE_NAME));
        PERFORM fencing.', CASE p_mode
            WHEN 'observe' THEN concat('observe(v_table, v_resources, ', CAST(p_each_row AS text), ');')
            ELSE 'require(v_table, v_resources);' END, '
    END IF;
    ', v_return, '
END
');
END
$fencing$
--;

-- The triggers that a guard needs, on its root and on the root's parts. Clones that PostgreSQL makes
-- of row triggers are not listed.
--
-- The pin never fires. A row trigger with a transition table keeps a table from becoming a
-- partition or an inheritance child, whose parent's writes would pass the guard by; the condition
-- keeps the columns of the template from being dropped or given a type whose text is not always
-- the same.
--
-- The move: PostgreSQL turns an UPDATE that moves a row to another partition into a DELETE and an
-- INSERT, and fires the triggers of those. Where not all three are guarded, a BEFORE trigger sees
-- it; its name sorts behind others, which may change the row.
CREATE OR REPLACE FUNCTION fencing.wanted_triggers(
    p_table oid, p_columns text[], p_operations text[]
) RETURNS TABLE (relation oid, name text, definition text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_by_row  boolean := (SELECT c.relkind = 'p' FROM pg_class AS c WHERE c.oid = p_table);
    v_pinned  text := 'false';
    v_column  text;
    v_op      text;
    v_deletes boolean := 'delete' = ANY (p_operations);
BEGIN
    FOREACH v_column IN ARRAY p_columns LOOP
        v_pinned := concat(v_pinned, ' AND NEW.', quote_ident(v_column), ' IS NULL');
    END LOOP;
    FOR relation IN
        -- A foreign table that has become a partition since cannot have triggers on statements.
        SELECT d.d FROM fencing.descendants(p_table) AS d
        JOIN pg_class AS c ON c.oid = d.d AND c.relkind IN ('r', 'p')
    LOOP
        IF v_deletes THEN
            name := 'fencing_truncate';
            definition := 'BEFORE TRUNCATE ON ... FOR EACH STATEMENT';
            RETURN NEXT;
        END IF;
        CONTINUE WHEN v_by_row AND relation <> p_table;
        FOREACH v_op IN ARRAY p_operations LOOP
            name := concat('fencing_', v_op);
            definition := CASE
                WHEN v_by_row THEN concat('AFTER ', upper(v_op), ' ON ... FOR EACH ROW')
                ELSE concat('AFTER ', upper(v_op), ' ON ... REFERENCING ', CASE v_op
                    WHEN 'insert' THEN 'NEW TABLE AS new_rows'
                    WHEN 'update' THEN 'OLD TABLE AS old_rows NEW TABLE AS new_rows'
                    ELSE 'OLD TABLE AS old_rows' END, ' FOR EACH STATEMENT')
            END;
            RETURN NEXT;
        END LOOP;
        name := 'fencing_pin';
        definition := concat('AFTER INSERT ON ... ',
            CASE WHEN NOT v_by_row AND relation = p_table
                THEN 'REFERENCING NEW TABLE AS new_rows ' ELSE '' END,
            'FOR EACH ROW WHEN (', v_pinned, ')');
        RETURN NEXT;
        IF v_by_row AND 'update' = ANY (p_operations) AND cardinality(p_operations) < 3 THEN
            name := '~fencing_move';
            definition := 'BEFORE UPDATE ON ... FOR EACH ROW';
            RETURN NEXT;
        END IF;
    END LOOP;
END
$fencing$
--;

-- Makes, or brings up to date, the guard of a table that is locked already. The old one guards
-- until this transaction commits, the new one from then on.
CREATE OR REPLACE FUNCTION fencing.render_guard(
    p_table regclass, p_function oid, p_resource text, p_operations text[], p_mode text,
    p_pin_anew boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_columns  text[] := (SELECT t.columns FROM fencing.parse_template(p_resource, 'r') AS t);
    v_by_row   boolean := (SELECT c.relkind = 'p' FROM pg_class AS c WHERE c.oid = p_table);
    v_column   text;
    v_owner    text := (SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace AS n
                        WHERE n.nspname = 'fencing');
    v_function text;
    v_oid      oid;
    v_base     text;
    v_suffix   text := '';
    v_trigger  record;
    v_comment  text := jsonb_build_object(
        'version', (SELECT v.schema_version FROM fencing.versions() AS v),
        'resource', p_resource, 'operations', to_jsonb(p_operations), 'mode', p_mode);
BEGIN
    -- The move is seen before the row is written, when what is generated is not known yet.
    IF v_by_row AND 'update' = ANY (p_operations) AND cardinality(p_operations) < 3 THEN
        SELECT a.attname INTO v_column FROM pg_attribute AS a
            WHERE a.attrelid = p_table AND a.attname = ANY (v_columns) AND a.attgenerated <> '';
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ' for ',
                                 array_to_string(p_operations, ' and '),
                                 ' alone: it is partitioned, and its resource template names ',
                                 'the column "', v_column, '", which is generated'),
                HINT = 'Guard insert, update and delete, or name the columns it is made of.';
        END IF;
    END IF;
    IF p_function IS NULL THEN
        -- A name of its own: guards move with their tables when those are renamed. Not longer than
        -- a name may be, in bytes.
        v_base := (SELECT c.relname FROM pg_class AS c WHERE c.oid = p_table);
        WHILE octet_length(v_base) > 50 LOOP
            v_base := left(v_base, -1);
        END LOOP;
        FOR v_number IN 2..1000000 LOOP
            v_function := concat('guard_', v_base, v_suffix);
            EXIT WHEN NOT EXISTS (
                SELECT FROM pg_proc AS p WHERE p.proname = v_function
                    AND p.pronamespace = CAST('fencing' AS regnamespace));
            v_suffix := concat('_', v_number);
        END LOOP;
        v_function := concat('fencing.', quote_ident(v_function));
    ELSE
        v_function := (SELECT concat('fencing.', quote_ident(p.proname)) FROM pg_proc AS p
                       WHERE p.oid = p_function);
    END IF;

    EXECUTE concat(
        'CREATE OR REPLACE FUNCTION ', v_function, '() RETURNS trigger LANGUAGE plpgsql ',
        'SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS ',
        quote_literal(fencing.render_body(p_resource, p_mode, v_by_row)));
    v_oid := CAST(concat(v_function, '()') AS regprocedure);
    IF p_function IS NULL THEN
        PERFORM fencing.close_access(v_oid);
        IF current_user <> v_owner THEN -- a member of the owning role
            EXECUTE concat('ALTER FUNCTION ', v_function, '() OWNER TO ', quote_ident(v_owner));
        END IF;
    END IF;

    -- What is there and not wanted, or made for other columns.
    FOR v_trigger IN
        SELECT CAST(t.tgrelid AS regclass) AS relation, t.tgname AS name
        FROM pg_trigger AS t
        LEFT JOIN fencing.wanted_triggers(p_table, v_columns, p_operations) AS w
            ON w.relation = t.tgrelid AND w.name = t.tgname
        WHERE t.tgfoid = p_function AND t.tgparentid = 0
            -- What is no part any more is not left without what guards it.
            AND t.tgrelid IN (SELECT d.relation FROM fencing.descendants(p_table) AS d(relation))
            AND (w.name IS NULL OR (p_pin_anew AND t.tgname = 'fencing_pin'))
    LOOP
        EXECUTE concat('DROP TRIGGER ', quote_ident(v_trigger.name), ' ON ', v_trigger.relation);
    END LOOP;
    FOR v_trigger IN
        SELECT CAST(w.relation AS regclass) AS relation, w.name,
            concat('CREATE TRIGGER ', quote_ident(w.name), ' ',
                   overlay(w.definition PLACING CAST(CAST(w.relation AS regclass) AS text)
                           FROM strpos(w.definition, '...') FOR 3), -- a column may have dots as well
                   ' EXECUTE FUNCTION ', v_function, '()') AS command,
            NOT EXISTS (
                SELECT FROM pg_trigger AS t
                WHERE t.tgrelid = w.relation AND t.tgname = w.name
                    AND t.tgfoid = v_oid) AS is_new
        FROM fencing.wanted_triggers(p_table, v_columns, p_operations) AS w
    LOOP
        IF v_trigger.is_new THEN
            EXECUTE v_trigger.command;
            -- ALWAYS: session_replication_role must not switch it off. The clones follow.
            IF v_trigger.name <> 'fencing_pin' THEN
                EXECUTE concat('ALTER TABLE ', v_trigger.relation, ' ENABLE ALWAYS TRIGGER ',
                               quote_ident(v_trigger.name));
            END IF;
        END IF;
        IF v_trigger.name = 'fencing_pin' THEN
            EXECUTE concat('COMMENT ON TRIGGER fencing_pin ON ', v_trigger.relation, ' IS ',
                           quote_literal('Never fires; keeps the guard from being undone by a change '
                                         'of the table'));
        ELSIF v_trigger.relation = p_table THEN
            EXECUTE concat('COMMENT ON TRIGGER ', quote_ident(v_trigger.name), ' ON ', p_table,
                           ' IS ', quote_literal(v_comment));
        END IF;
    END LOOP;
END
$fencing$
--;
