-- The tables that are worked on, and the history of what the database accepted.
--
-- Everything is numbered from one sequence without a cache. A number is drawn while the transaction
-- holds the lock of the row it changed, and, if it was let in, the resource's own; so the numbers
-- of one row's writes, and those of one resource's writes and admissions, are in the order in which
-- they were accepted.

CREATE SCHEMA torture
--;
CREATE SEQUENCE torture.seq CACHE 1
--;
CREATE TABLE torture.register (
    id int, part int, value bigint NOT NULL DEFAULT 0, PRIMARY KEY (id, part)
)
--;
-- No key on the number: two holders that append after the same element shall be able to.
CREATE TABLE torture.element (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    set_id int NOT NULL, n bigint NOT NULL
)
--;
CREATE INDEX ON torture.element (set_id, n)
--;
CREATE TABLE torture.account (
    id int PRIMARY KEY, balance bigint NOT NULL, version bigint NOT NULL DEFAULT 0
)
--;
CREATE TABLE torture.write (
    seq bigint NOT NULL, xid bigint NOT NULL, transaction text, resource text NOT NULL,
    "row" text NOT NULL, change text NOT NULL, old bigint, new bigint, gone bigint,
    amount bigint NOT NULL, token bigint, holder text
)
--;
CREATE TABLE torture.admission (
    seq bigint NOT NULL, xid bigint NOT NULL, resource text NOT NULL, token bigint NOT NULL,
    holder text NOT NULL, pruned boolean NOT NULL
)
--;
-- note(resource, row, change, old, new, gone, amount)
--
--   Writes a row of the history. What the transaction says of itself is in the setting
--   torture.transaction: {"name": …, "leases": {resource: [token, holder]}}.
CREATE FUNCTION torture.note(
    p_resource text, p_row text, p_change text, p_old bigint, p_new bigint, p_gone bigint,
    p_amount bigint
) RETURNS void
LANGUAGE plpgsql
AS $torture$
DECLARE
    v_said jsonb := nullif(current_setting('torture.transaction', true), '');
BEGIN
    INSERT INTO torture.write VALUES (
        nextval('torture.seq'), CAST(CAST(pg_current_xact_id() AS text) AS bigint),
        v_said->>'name', p_resource, p_row, lower(p_change), p_old, p_new, p_gone, p_amount,
        CAST(v_said->'leases'->p_resource->>0 AS bigint), v_said->'leases'->p_resource->>1);
END
$torture$
--;
CREATE FUNCTION torture.note_register() RETURNS trigger LANGUAGE plpgsql AS $torture$
BEGIN
    PERFORM torture.note(
        concat('register:', coalesce(NEW.id, OLD.id)),
        concat('register:', coalesce(NEW.id, OLD.id), '/', coalesce(NEW.part, OLD.part)), TG_OP,
        OLD.value, NEW.value, NULL, 0);
    RETURN NULL;
END
$torture$
--;
CREATE FUNCTION torture.note_element() RETURNS trigger LANGUAGE plpgsql AS $torture$
BEGIN
    IF TG_OP = 'UPDATE' THEN -- it is moved: gone from one set, new in another
        PERFORM torture.note(
            concat('set:', OLD.set_id), concat('set:', OLD.set_id), 'delete', NULL, NULL, OLD.n, 0);
        PERFORM torture.note(
            concat('set:', NEW.set_id), concat('set:', NEW.set_id), 'insert', NULL, NEW.n, NULL, 0);
        RETURN NULL;
    END IF;
    PERFORM torture.note(
        concat('set:', coalesce(NEW.set_id, OLD.set_id)),
        concat('set:', coalesce(NEW.set_id, OLD.set_id)), TG_OP, NULL, NEW.n, OLD.n, 0);
    RETURN NULL;
END
$torture$
--;
CREATE FUNCTION torture.note_account() RETURNS trigger LANGUAGE plpgsql AS $torture$
BEGIN
    PERFORM torture.note(
        concat('account:', coalesce(NEW.id, OLD.id)),
        concat('account:', coalesce(NEW.id, OLD.id)), TG_OP,
        OLD.version, NEW.version, NULL, coalesce(NEW.balance, 0) - coalesce(OLD.balance, 0));
    RETURN NULL;
END
$torture$
