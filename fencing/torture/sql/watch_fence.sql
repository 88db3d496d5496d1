-- What becomes of the fence is recorded, too.

CREATE FUNCTION torture.note_admission() RETURNS trigger LANGUAGE plpgsql AS $torture$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO torture.admission VALUES (
            nextval('torture.seq'), CAST(CAST(pg_current_xact_id() AS text) AS bigint),
            OLD.resource, OLD.token, OLD.holder, true);
    ELSE
        INSERT INTO torture.admission VALUES (
            nextval('torture.seq'), CAST(CAST(pg_current_xact_id() AS text) AS bigint),
            NEW.resource, NEW.token, NEW.holder, false);
    END IF;
    RETURN NULL;
END
$torture$
--;
CREATE TRIGGER torture_note AFTER INSERT OR UPDATE OR DELETE ON fencing.fence
    FOR EACH ROW EXECUTE FUNCTION torture.note_admission()
--;
ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER torture_note
