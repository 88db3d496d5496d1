-- From here on everything is recorded; run when the first rows are there.

CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON torture.register
    FOR EACH ROW EXECUTE FUNCTION torture.note_register()
--;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON torture.element
    FOR EACH ROW EXECUTE FUNCTION torture.note_element()
--;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON torture.account
    FOR EACH ROW EXECUTE FUNCTION torture.note_account()
--;
ALTER TABLE torture.register ENABLE ALWAYS TRIGGER note
--;
ALTER TABLE torture.element ENABLE ALWAYS TRIGGER note
--;
ALTER TABLE torture.account ENABLE ALWAYS TRIGGER note
