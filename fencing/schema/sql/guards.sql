-- The guards of tables: rendered here rather than by a client, so that an old migration, a newer
-- one and psql all make the guard that fits the schema which is installed.
--
-- A guard is one function, made for one root table and its template, and triggers that call it:
--
--   an ordinary table     AFTER INSERT, UPDATE, DELETE for each statement, with transition tables;
--                         its inheritance children the same, for writes that name them
--   a partitioned table   AFTER ... for each row, which PostgreSQL clones to every partition, those
--                         included that are created or attached later
--   both                  BEFORE TRUNCATE where deletes are guarded, and a pin
--
-- What a guard was made from is kept as JSON in the comments of the root's triggers:
-- {"version", "resource", "operations", "mode"}. It is dumped and restored with them.

-- A resource template as an SQL expression over a row. "account:{id}" names columns in braces;
-- doubled braces are meant literally. -> columns, expression
CREATE OR REPLACE FUNCTION fencing.parse_template(
    p_template text, p_row text, OUT columns text[], OUT expression text
)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_part    text;
    v_literal text := '';
    v_column  text;
    v_length  integer := 0;
    v_terms   text[] := '{}';
BEGIN
    columns := '{}';
    FOR v_part IN
        SELECT m[1] FROM regexp_matches(
            p_template, '([{][{]|[}][}]|[{][^{}]+[}]|[^{}]+)', 'g') AS m
        UNION ALL SELECT NULL -- the end
    LOOP
        v_length := v_length + coalesce(length(v_part), 0);
        IF v_part IN ('{{', '}}') THEN
            v_literal := v_literal || left(v_part, 1);
        ELSIF starts_with(v_part, '{') OR v_part IS NULL THEN
            -- A literal alone has no type, and array_agg would not know what to make of it.
            IF v_literal <> '' THEN
                v_terms := v_terms || concat('CAST(', quote_literal(v_literal), ' AS text)');
            END IF;
            v_literal := '';
            IF v_part IS NOT NULL THEN
                v_column := substr(v_part, 2, length(v_part) - 2);
                v_terms := v_terms || concat('CAST(', p_row, '.', quote_ident(v_column), ' AS text)');
                IF NOT v_column = ANY (columns) THEN
                    columns := columns || v_column;
                END IF;
            END IF;
        ELSE
            v_literal := v_literal || v_part;
        END IF;
    END LOOP;
    IF v_length IS DISTINCT FROM length(p_template) OR v_terms = '{}' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('"', p_template, '" is no resource template'),
            HINT = 'A template looks like account:{id}; double a brace to mean it literally.';
    END IF;
    expression := concat('(', array_to_string(v_terms, ' || '), ') COLLATE "C"');
END
$fencing$
--;

-- A table, and all its partitions or inheritance children.
CREATE OR REPLACE FUNCTION fencing.descendants(p_table oid) RETURNS SETOF oid
LANGUAGE sql STABLE STRICT
AS $fencing$
    WITH RECURSIVE tree AS (
        SELECT p_table AS relation
        UNION
        SELECT i.inhrelid FROM tree AS t JOIN pg_catalog.pg_inherits AS i ON i.inhparent = t.relation
    )
    SELECT t.relation FROM tree AS t
$fencing$
--;

-- check_template(table, columns) -> void
--
--   Whether a table can be guarded, and a resource template may name these columns of it. The text
--   of a date or a float depends on the session's settings, and that of char(n) on its padding:
--   two sessions would compute two names for one row.
--   raises     ZF008
CREATE OR REPLACE FUNCTION fencing.check_template(p_table regclass, p_columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_why       text;
    v_other     regclass;
    v_column    text;
    v_type      oid;
    v_generated "char";
    v_base      oid;
BEGIN
    SELECT CASE
        WHEN c.relkind NOT IN ('r', 'p') THEN
            'only a table can be guarded, not a view, a foreign table or the like'
        WHEN c.relnamespace IN (
            CAST('fencing' AS regnamespace), CAST('pg_catalog' AS regnamespace)) THEN
            'it belongs to fencing or to PostgreSQL itself'
        END INTO v_why
        FROM pg_class AS c WHERE c.oid = p_table;
    IF v_why IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008', MESSAGE = concat('cannot fence ', p_table, ': ', v_why);
    END IF;
    SELECT i.inhparent INTO v_other FROM pg_inherits AS i WHERE i.inhrelid = p_table LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('cannot fence ', p_table, ' alone: it is a part of ', v_other,
                             ', and writes to that would pass its guard by'),
            HINT = concat('Fence ', v_other, ': that guards all its parts.');
    END IF;
    SELECT d.relation INTO v_other FROM fencing.descendants(p_table) AS d(relation)
        JOIN pg_class AS c ON c.oid = d.relation WHERE c.relkind NOT IN ('r', 'p') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('cannot fence ', p_table, ': its part ', v_other,
                             ' is a foreign table, whose rows are written elsewhere');
    END IF;
    SELECT i.inhparent INTO v_other FROM fencing.descendants(p_table) AS d(relation)
        JOIN pg_inherits AS i ON i.inhrelid = d.relation
        WHERE i.inhparent NOT IN (SELECT e.relation FROM fencing.descendants(p_table) AS e(relation))
        LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('cannot fence ', p_table, ': a table that inherits from it inherits from ',
                             v_other, ' as well, and writes to that would pass the guard by');
    END IF;
    FOREACH v_column IN ARRAY p_columns LOOP
        SELECT a.atttypid, a.attgenerated INTO v_type, v_generated FROM pg_attribute AS a
            WHERE a.attrelid = p_table AND a.attname = v_column
                AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '", which the table does not have');
        END IF;
        IF v_generated = 'v' THEN -- from version 18; a trigger on many rows cannot read it
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '", which is generated and not stored'),
                HINT = 'Make it STORED, or name the columns it is made of.';
        END IF;
        v_base := v_type;
        LOOP -- a domain has the text form of what it is a domain of
            SELECT t.typbasetype INTO v_base FROM pg_type AS t
                WHERE t.oid = v_base AND t.typtype = 'd';
            EXIT WHEN NOT FOUND;
            v_type := v_base;
        END LOOP;
        IF v_type NOT IN (
            CAST('smallint' AS regtype), CAST('integer' AS regtype), CAST('bigint' AS regtype),
            CAST('text' AS regtype), CAST('character varying' AS regtype),
            CAST('uuid' AS regtype), CAST('boolean' AS regtype))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'ZF008',
                MESSAGE = concat('cannot fence ', p_table, ': its resource template names the column "',
                                 v_column, '" of type ', format_type(v_type, NULL),
                                 ', whose text is not always the same'),
                HINT = 'Use columns of an integer type, text, varchar, uuid or boolean.';
        END IF;
    END LOOP;
END
$fencing$
--;

-- Only one at a time renders or removes a table's guard: refreshing need not lock the table. After a
-- look at fencing.guards, which an upgrade locks first.
CREATE OR REPLACE FUNCTION fencing.lock_guard(p_table regclass) RETURNS void
LANGUAGE sql VOLATILE
AS $fencing$
    SELECT pg_catalog.pg_advisory_xact_lock(
        6073416, CAST(CAST(CAST(p_table AS oid) AS bigint) - 2147483648 AS integer))
$fencing$
--;

-- Locks a table and its parts, and says who is in the way where that takes too long: everybody who
-- wants to write would be queuing behind us.
CREATE OR REPLACE FUNCTION fencing.lock_table(p_table regclass, p_mode text, p_lock_ms integer)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_before text := current_setting('lock_timeout');
    v_set_ms double precision := EXTRACT(epoch FROM CAST(v_before AS interval)) * 1000;
BEGIN
    IF v_set_ms = 0 OR v_set_ms > p_lock_ms THEN
        PERFORM set_config('lock_timeout', CAST(greatest(p_lock_ms, 1) AS text), true);
    END IF;
    BEGIN
        PERFORM fencing.lock_guard(p_table);
        EXECUTE concat('LOCK TABLE ', p_table, ' IN ', p_mode, ' MODE');
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF012',
            MESSAGE = concat(p_table, ' is busy: its lock was not to be had within ',
                             current_setting('lock_timeout'), '; nothing was changed'),
            DETAIL = jsonb_build_object(
                'table', fencing.name_of(p_table),
                'blocked_by', (
                    SELECT coalesce(jsonb_agg(DISTINCT l.pid), '[]') FROM pg_locks AS l
                    WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
                        AND l.relation IN (
                            SELECT d.relation FROM fencing.descendants(p_table) AS d(relation)))),
            HINT = 'Run it again when these transactions have ended, or allow it a longer lock_timeout.';
    END;
    PERFORM set_config('lock_timeout', v_before, true);
END
$fencing$
--;

-- What the comment of a trigger says of its guard; NULL for any other comment.
CREATE OR REPLACE FUNCTION fencing.read_comment(p_comment text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF NOT starts_with(p_comment, '{') THEN
        RETURN NULL;
    END IF;
    RETURN CAST(p_comment AS jsonb);
EXCEPTION WHEN others THEN
    RETURN NULL;
END
$fencing$
--;

-- Every table that a guard covers.
CREATE OR REPLACE VIEW fencing.guards AS
    WITH ours AS (
        SELECT t.tgrelid AS relation, t.tgfoid AS function,
            (pg_catalog.array_agg(c.comment) FILTER (WHERE c.comment IS NOT NULL))[1] AS comment
        FROM pg_catalog.pg_trigger AS t
        JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
        JOIN pg_catalog.pg_class AS r ON r.oid = t.tgrelid
        CROSS JOIN LATERAL (
            SELECT fencing.read_comment(pg_catalog.obj_description(t.oid, 'pg_trigger')) AS comment
        ) AS c
        WHERE p.pronamespace = CAST('fencing' AS regnamespace)
            AND r.relnamespace <> CAST('fencing' AS regnamespace)
        GROUP BY t.tgrelid, t.tgfoid
    )
    SELECT o.relation AS table_oid,
        n.nspname AS table_schema,
        c.relname AS table_name,
        root.comment ->> 'resource' AS resource,
        ARRAY(SELECT pg_catalog.jsonb_array_elements_text(root.comment -> 'operations')) AS operations,
        coalesce(root.comment ->> 'mode', 'enforce') AS mode,
        CAST(root.comment ->> 'version' AS integer) AS version,
        nullif(root.relation, o.relation) AS covered_by
    FROM ours AS o
    JOIN ours AS root ON root.function = o.function AND root.comment IS NOT NULL
    JOIN pg_catalog.pg_class AS c ON c.oid = o.relation
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
--;
COMMENT ON VIEW fencing.guards IS
    'The tables that are guarded, what by, and for parts of a table the root that covers them'
--;

-- Takes off a table the triggers of a guard that it has left: a partition that was detached keeps
-- the one for TRUNCATE, an inheritance child all of them, and neither is a part of the root any
-- more. -> whether there were any
CREATE OR REPLACE FUNCTION fencing.drop_left_over(p_table regclass, p_lock_ms integer)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_trigger record;
BEGIN
    IF NOT EXISTS (
        SELECT FROM fencing.guards AS g
        WHERE g.table_oid = p_table AND g.covered_by IS NOT NULL
            AND p_table NOT IN (
                SELECT d.relation FROM fencing.descendants(g.covered_by) AS d(relation)))
    THEN
        RETURN false;
    END IF;
    PERFORM fencing.lock_table(p_table, 'ACCESS EXCLUSIVE', p_lock_ms);
    FOR v_trigger IN
        SELECT t.tgname AS name FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_table AND t.tgparentid = 0
            AND p.pronamespace = CAST('fencing' AS regnamespace)
    LOOP
        EXECUTE concat('DROP TRIGGER ', quote_ident(v_trigger.name), ' ON ', p_table);
    END LOOP;
    RETURN true;
END
$fencing$
--;

-- The function of a table's guard; raises where it has none, or one that covers more than it.
CREATE OR REPLACE FUNCTION fencing.find_guard(p_table regclass) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function oid;
    v_root     regclass;
BEGIN
    SELECT t.tgfoid INTO v_function FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_table AND p.pronamespace = CAST('fencing' AS regnamespace)
            AND p.proname NOT IN ('remember_previous', 'keep_fence', 'keep_floor', 'end_maintenance')
        ORDER BY t.oid LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009', MESSAGE = concat(p_table, ' is not fenced');
    END IF;
    SELECT g.covered_by INTO v_root FROM fencing.guards AS g WHERE g.table_oid = p_table;
    IF v_root IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF009',
            MESSAGE = concat(p_table, ' is not fenced by itself, but as a part of ', v_root),
            HINT = CASE
                WHEN p_table IN (SELECT d.relation FROM fencing.descendants(v_root) AS d(relation))
                    THEN concat('Name ', v_root, ' instead.')
                ELSE 'It is no part of that any more: fence it by itself, or unfence it.'
            END;
    END IF;
    RETURN v_function;
END
$fencing$
--;

-- The body of a guard's function.
CREATE OR REPLACE FUNCTION fencing.render_body(p_template text, p_mode text, p_each_row boolean)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_row   record;
    v_old   text;
    v_new   text;
    v_check text := concat(
        'PERFORM fencing.', CASE p_mode
            WHEN 'observe' THEN concat('observe(v_table, v_resources, ', CAST(p_each_row AS text), ');')
            ELSE 'require(v_table, v_resources);' END);
    v_truncate text;
BEGIN
    SELECT * INTO v_row FROM fencing.parse_template(p_template, 'r');
    SELECT t.expression INTO v_old FROM fencing.parse_template(p_template, 'OLD') AS t;
    SELECT t.expression INTO v_new FROM fencing.parse_template(p_template, 'NEW') AS t;
    v_truncate := CASE
        WHEN v_row.columns = '{}' THEN concat('v_resources := ARRAY[', v_row.expression, '];')
        ELSE concat('PERFORM fencing.refuse_truncate(v_table, ', quote_literal(p_mode), ');')
    END;
    RETURN concat('
DECLARE
    v_table     text := concat(quote_ident(TG_TABLE_SCHEMA), ''.'', quote_ident(TG_TABLE_NAME));
    v_resources text[];
BEGIN
    IF TG_OP = ''TRUNCATE'' THEN
        ', v_truncate, CASE WHEN p_each_row THEN concat('
    ELSIF TG_OP = ''INSERT'' THEN
        v_resources := ARRAY[', v_new, '];
    ELSIF TG_OP = ''DELETE'' THEN
        v_resources := ARRAY[', v_old, '];
    ELSIF ', v_new, ' = ', v_old, ' THEN
        v_resources := ARRAY[', v_new, '];
    ELSE
        v_resources := ARRAY[', v_old, ', ', v_new, '];')
    ELSE concat('
    ELSIF TG_OP = ''INSERT'' THEN
        SELECT array_agg(DISTINCT ', v_row.expression, ') INTO v_resources FROM new_rows AS r;
    ELSIF TG_OP = ''DELETE'' THEN
        SELECT array_agg(DISTINCT ', v_row.expression, ') INTO v_resources FROM old_rows AS r;
    ELSE
        SELECT array_agg(u.resource) INTO v_resources FROM (
            SELECT ', v_row.expression, ' AS resource FROM new_rows AS r
            UNION
            SELECT ', v_row.expression, ' FROM old_rows AS r) AS u;')
    END, '
    END IF;
    IF v_resources IS NOT NULL THEN
        ', v_check, '
    END IF;
    RETURN ', CASE WHEN p_each_row THEN 'NEW' ELSE 'NULL' END, ';
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

-- Operations in their canonical order, and the mode; both checked.
CREATE OR REPLACE FUNCTION fencing.check_guard(
    p_table regclass, p_operations text[], p_mode text
) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $fencing$
BEGIN
    IF p_operations <@ ARRAY['insert', 'update', 'delete'] AND p_operations <> '{}'
        AND p_mode IN ('enforce', 'observe')
    THEN
        RETURN ARRAY(
            SELECT o.name FROM unnest(ARRAY['insert', 'update', 'delete']) AS o(name)
            WHERE o.name = ANY (p_operations));
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'ZF008',
        MESSAGE = concat('cannot fence ', p_table, ': operations ', p_operations, ', mode ', p_mode),
        HINT = 'Operations are some of insert, update and delete; the mode is enforce or observe.';
END
$fencing$
--;

-- fence_table(table, resource, operations, mode, lock_ms) -> void
--
--   Guards a table and all its parts. Rewrites nothing.
--   resource   its template, such as account:{id}
--   operations what is guarded, of insert, update and delete; TRUNCATE goes with delete
--   mode       enforce, or observe: report what would be refused, and let it pass
--   lock_ms    longest wait for open transactions that have written the table
--   raises     ZF008 unfit, ZF011 fenced already, ZF012 busy
CREATE OR REPLACE FUNCTION fencing.fence_table(
    p_table      regclass,
    p_resource   text,
    p_operations text[] DEFAULT '{insert,update,delete}',
    p_mode       text DEFAULT 'enforce',
    p_lock_ms    integer DEFAULT 5000
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_operations text[] := fencing.check_guard(p_table, p_operations, p_mode);
    v_function   regprocedure;
BEGIN
    PERFORM fencing.check_template(
        p_table, (SELECT t.columns FROM fencing.parse_template(p_resource, 'r') AS t));
    PERFORM fencing.drop_left_over(p_table, p_lock_ms);
    PERFORM fencing.lock_table(p_table, 'SHARE ROW EXCLUSIVE', p_lock_ms);
    -- As it is now: somebody may have changed the table while we waited for it.
    PERFORM fencing.check_template(
        p_table, (SELECT t.columns FROM fencing.parse_template(p_resource, 'r') AS t));
    IF EXISTS (SELECT FROM fencing.guards AS g WHERE g.table_oid = p_table) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF011',
            MESSAGE = concat(p_table, ' is fenced already'),
            HINT = 'Change its guard with op.alter_fence, or remove it with op.unfence_table.';
    END IF;
    -- Functions of tables that were dropped since guard nothing.
    FOR v_function IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND starts_with(p.proname, 'guard_')
            AND p.prorettype = CAST('trigger' AS regtype)
            AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgfoid = p.oid)
    LOOP
        EXECUTE concat('DROP FUNCTION ', v_function);
    END LOOP;
    PERFORM fencing.render_guard(p_table, NULL, p_resource, v_operations, p_mode, false);
END
$fencing$
--;

-- alter_fence(table, resource, operations, mode, lock_ms) -> void
--
--   Changes a guard; NULL keeps what is there. The table is guarded all the while, and open
--   transactions that have written it under the old guard end before the new one is in force.
--   raises     ZF008 unfit, ZF009 not fenced, ZF012 busy
CREATE OR REPLACE FUNCTION fencing.alter_fence(
    p_table      regclass,
    p_resource   text DEFAULT NULL,
    p_operations text[] DEFAULT NULL,
    p_mode       text DEFAULT NULL,
    p_lock_ms    integer DEFAULT 5000
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function   oid;
    v_guard      record;
    v_resource   text;
    v_operations text[];
    v_mode       text;
    v_lighter    boolean;
BEGIN
    -- Again under the lock, if somebody else has changed the guard while we waited for it: what we
    -- are to keep is what he has made of it.
    LOOP
        v_function := fencing.find_guard(p_table);
        SELECT * INTO STRICT v_guard FROM fencing.guards AS g WHERE g.table_oid = p_table;
        v_resource := coalesce(p_resource, v_guard.resource);
        v_mode := coalesce(p_mode, v_guard.mode);
        v_operations := fencing.check_guard(
            p_table, coalesce(p_operations, v_guard.operations), v_mode);
        PERFORM fencing.check_template(
            p_table, (SELECT t.columns FROM fencing.parse_template(v_resource, 'r') AS t));
        -- Dropping a trigger keeps readers away as well.
        v_lighter := v_operations @> v_guard.operations AND v_resource = v_guard.resource;
        PERFORM fencing.lock_table(
            p_table, CASE WHEN v_lighter THEN 'SHARE ROW EXCLUSIVE' ELSE 'ACCESS EXCLUSIVE' END,
            p_lock_ms);
        EXIT WHEN EXISTS (
            SELECT FROM fencing.guards AS g WHERE g.table_oid = p_table AND g = v_guard);
    END LOOP;
    PERFORM fencing.render_guard(
        p_table, v_function, v_resource, v_operations, v_mode, v_resource <> v_guard.resource);
END
$fencing$
--;

-- unfence_table(table, lock_ms) -> void: removes a guard.
CREATE OR REPLACE FUNCTION fencing.unfence_table(p_table regclass, p_lock_ms integer DEFAULT 5000)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_function oid;
    v_trigger  record;
BEGIN
    IF fencing.drop_left_over(p_table, p_lock_ms) THEN
        RETURN;
    END IF;
    PERFORM fencing.find_guard(p_table);
    PERFORM fencing.lock_table(p_table, 'ACCESS EXCLUSIVE', p_lock_ms);
    v_function := fencing.find_guard(p_table);
    FOR v_trigger IN
        SELECT CAST(t.tgrelid AS regclass) AS relation, t.tgname AS name FROM pg_trigger AS t
        WHERE t.tgfoid = v_function AND t.tgparentid = 0
    LOOP
        EXECUTE concat('DROP TRIGGER ', quote_ident(v_trigger.name), ' ON ', v_trigger.relation);
    END LOOP;
    EXECUTE concat('DROP FUNCTION ', CAST(v_function AS regprocedure));
END
$fencing$
--;

-- refresh_guards() -> integer: brings every guard up to the version of this schema, and to the parts
-- that its table has got since. Only what is missing locks a table.
CREATE OR REPLACE FUNCTION fencing.refresh_guards() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_tables oid[] := ARRAY(
        SELECT g.table_oid FROM fencing.guards AS g WHERE g.covered_by IS NULL ORDER BY 1);
    v_guard  record;
    v_count  integer := 0;
BEGIN
    PERFORM fencing.lock_guard(t.relation) FROM unnest(v_tables) AS t(relation);
    -- As they are now: somebody may have changed or removed them since.
    FOR v_guard IN
        SELECT g.*, (
            SELECT t.tgfoid FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
            WHERE t.tgrelid = g.table_oid AND p.pronamespace = CAST('fencing' AS regnamespace)
            LIMIT 1) AS function
        FROM fencing.guards AS g
        WHERE g.covered_by IS NULL AND g.table_oid = ANY (v_tables) ORDER BY g.table_oid
    LOOP
        PERFORM fencing.render_guard(
            v_guard.table_oid, v_guard.function, v_guard.resource, v_guard.operations,
            v_guard.mode, false);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END
$fencing$
--;
