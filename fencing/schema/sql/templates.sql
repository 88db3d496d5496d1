-- Resource templates: what names the resource of a row, and which tables and columns are fit for one.

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
