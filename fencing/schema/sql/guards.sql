-- check_template(table, columns) -> void
--
--   Whether a resource template may name these columns of this table; the guard of a table is
--   created only after it. The text of a date or a float depends on the session's settings, and
--   that of char(n) on its padding: two sessions would compute two names for one row.
--   raises     ZF008
CREATE FUNCTION fencing.check_template(p_table regclass, p_columns text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $fencing$
DECLARE
    v_column    text;
    v_type      oid;
    v_generated "char";
    v_base      oid;
BEGIN
    IF (SELECT c.relkind <> 'r' OR c.relispartition FROM pg_class AS c WHERE c.oid = p_table)
        OR EXISTS (SELECT FROM pg_inherits AS i WHERE p_table IN (i.inhparent, i.inhrelid))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'ZF008',
            MESSAGE = concat('cannot fence ', p_table, ': only an ordinary table can be guarded, '
                             'not a view, a foreign table, or one that is partitioned or inherits');
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

