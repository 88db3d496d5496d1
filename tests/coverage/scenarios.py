"""The tables that the write paths write."""

from __future__ import annotations

from tests.coverage.model import Scenario

BANK = Scenario(
    "bank",
    """
    CREATE TABLE accounts (id bigint PRIMARY KEY, balance int NOT NULL);
    CREATE TABLE transfers (id bigserial PRIMARY KEY, account_id bigint NOT NULL, amount int);
    CREATE TABLE inbox (account_id bigint, done boolean NOT NULL DEFAULT false);
    CREATE TABLE orders (id bigserial PRIMARY KEY, account_id bigint);
    INSERT INTO accounts SELECT n, 100 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO transfers (account_id, amount) SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO inbox SELECT n FROM generate_series(1, {accounts}) AS n;

    CREATE VIEW simple_view AS SELECT id, balance FROM accounts;
    CREATE VIEW checked_view AS SELECT id, balance FROM accounts WHERE balance < 1000
        WITH CASCADED CHECK OPTION;
    CREATE VIEW view_of_view AS SELECT * FROM checked_view;
    CREATE VIEW view_with_trigger AS SELECT account_id, amount, 'x' AS more FROM transfers;
    CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN
            DELETE FROM transfers WHERE account_id = OLD.account_id;
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO transfers (account_id, amount) VALUES (NEW.account_id, NEW.amount);
            RETURN NEW;
        END IF;
        RETURN OLD;
    END $$;
    CREATE TRIGGER instead INSTEAD OF INSERT OR UPDATE OR DELETE ON view_with_trigger
        FOR EACH ROW EXECUTE FUNCTION instead();
    CREATE VIEW view_with_rules AS
        SELECT account_id, sum(amount) AS total FROM transfers GROUP BY account_id;
    CREATE RULE put AS ON INSERT TO view_with_rules DO INSTEAD
        INSERT INTO transfers (account_id, amount) VALUES (NEW.account_id, NEW.total);
    CREATE RULE change AS ON UPDATE TO view_with_rules DO INSTEAD
        UPDATE transfers SET amount = NEW.total WHERE account_id = OLD.account_id;
    CREATE RULE remove AS ON DELETE TO view_with_rules DO INSTEAD
        DELETE FROM transfers WHERE account_id = OLD.account_id;
    CREATE RULE also AS ON UPDATE TO inbox DO ALSO
        INSERT INTO transfers (account_id, amount) VALUES (NEW.account_id, 1);

    CREATE FUNCTION debit_sql(bigint) RETURNS void LANGUAGE sql
        AS 'UPDATE accounts SET balance = balance - 1 WHERE id = $1';
    CREATE FUNCTION debit_plpgsql(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = $1;
    END $$;
    CREATE FUNCTION debit_definer(bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = $1;
    END $$ SET search_path = "{schema}", pg_temp;
    CREATE FUNCTION debit_dynamic(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        EXECUTE 'UPDATE accounts SET balance = balance - 1 WHERE id = $1' USING $1;
    END $$;
    CREATE FUNCTION debit_cursor(bigint) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE one CURSOR FOR SELECT * FROM accounts WHERE id = $1 FOR UPDATE; r record;
    BEGIN
        OPEN one; FETCH one INTO r;
        UPDATE accounts SET balance = balance - 1 WHERE CURRENT OF one;
    END $$;
    CREATE FUNCTION debit_swallowing(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = $1;
    EXCEPTION WHEN others THEN NULL;
    END $$;
    CREATE PROCEDURE debit_procedure(bigint) LANGUAGE plpgsql AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = $1;
    END $$;
    CREATE PROCEDURE debit_after_commit(account bigint, claim text) LANGUAGE plpgsql AS $$ BEGIN
        PERFORM fencing.enter(claim, NULL);
        COMMIT;
        UPDATE accounts SET balance = balance - 1 WHERE id = account;
    END $$;
    CREATE PROCEDURE debit_entering_again(account bigint, claim text) LANGUAGE plpgsql AS $$ BEGIN
        PERFORM fencing.enter(claim, NULL);
        COMMIT;
        PERFORM fencing.enter(claim, NULL);
        UPDATE accounts SET balance = balance - 1 WHERE id = account;
    END $$;

    -- An order debits its account when it is committed.
    CREATE FUNCTION debit_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE accounts SET balance = balance - 1 WHERE id = NEW.account_id; RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER debit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION debit_later();

    -- A trigger of the user's decides whose row it is.
    CREATE TABLE routed (account_id bigint, wanted bigint);
    INSERT INTO routed SELECT n, n FROM generate_series(1, {accounts}) AS n;
    CREATE FUNCTION route() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        NEW.account_id := NEW.wanted; RETURN NEW;
    END $$;
    CREATE TRIGGER zz_route BEFORE INSERT OR UPDATE ON routed
        FOR EACH ROW EXECUTE FUNCTION route();

    CREATE TABLE owners (id bigint PRIMARY KEY);
    CREATE TABLE pets (owner_id bigint REFERENCES owners);
    INSERT INTO owners SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO pets SELECT n FROM generate_series(1, {accounts}) AS n;

    SELECT public.fence('accounts', 'account:{id}');
    SELECT public.fence('transfers', 'account:{account_id}');
    SELECT public.fence('routed', 'account:{account_id}');
    SELECT public.fence('pets', 'account:{owner_id}');
    """,
)

# Each child names an unguarded parent; what becomes of the parent comes to the child.
CASCADES = Scenario(
    "cascades",
    """
    CREATE TABLE parents (id bigint PRIMARY KEY);
    CREATE TABLE children (parent_id bigint REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE);
    CREATE TABLE loose_parents (id bigint PRIMARY KEY);
    CREATE TABLE loose (account_id bigint, parent_id bigint
        REFERENCES loose_parents ON DELETE SET NULL ON UPDATE SET NULL);
    CREATE TABLE fallback_parents (id bigint PRIMARY KEY);
    CREATE TABLE fallback (account_id bigint, parent_id bigint DEFAULT 0
        REFERENCES fallback_parents ON DELETE SET DEFAULT ON UPDATE SET DEFAULT);
    CREATE TABLE named_parents (id bigint PRIMARY KEY);
    CREATE TABLE named (account_id bigint REFERENCES named_parents ON DELETE SET NULL);
    CREATE TABLE split_parents (id bigint PRIMARY KEY);
    CREATE TABLE split (parent_id bigint
        REFERENCES split_parents ON DELETE CASCADE ON UPDATE CASCADE) PARTITION BY HASH (parent_id);
    CREATE TABLE split_0 PARTITION OF split FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE split_1 PARTITION OF split FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    INSERT INTO fallback_parents VALUES (0);
    INSERT INTO parents SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO children SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO loose_parents SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO loose SELECT n, n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO fallback_parents SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO fallback SELECT n, n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO named_parents SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO named SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO split_parents SELECT n FROM generate_series(1, {accounts}) AS n;
    INSERT INTO split SELECT n FROM generate_series(1, {accounts}) AS n;

    SELECT public.fence('children', 'account:{parent_id}');
    SELECT public.fence('loose', 'account:{account_id}');
    SELECT public.fence('fallback', 'account:{account_id}');
    SELECT public.fence('named', 'account:{account_id}');
    SELECT public.fence('split', 'account:{parent_id}');
    """,
)


# The number in column "part" of the rows in each partition. A hash of one is found with
# satisfies_hash_partition().
PARTS = {"first": 0, "second": 10, "later": 20, "attached": 30}
HASH_PARTS = {"first": 0, "second": 3, "later": 2, "attached": 4}


def _partitioned(
    name: str,
    by: str,
    leaves: tuple[str, ...],
    middle: str = "",
    parts: dict[str, int] = PARTS,
) -> Scenario:
    """A table whose partitions "first" and "second" were there when it was fenced.

    "later" was made afterwards, "attached" was attached afterwards, with its rows. An account has
    one row in each.
    """
    first, second, later, attached = leaves
    parent = "middle" if middle else "entries"
    return Scenario(
        name,
        f"""
        CREATE TABLE entries (account_id bigint, part int, amount int,
            PRIMARY KEY (account_id, part)) PARTITION BY {by};
        {middle}
        CREATE TABLE first PARTITION OF {parent} {first};
        CREATE TABLE second PARTITION OF {parent} {second};
        SELECT public.fence('entries', 'account:{{account_id}}');
        CREATE TABLE later PARTITION OF {parent} {later};
        CREATE TABLE attached (amount int, part int NOT NULL, account_id bigint NOT NULL);
        INSERT INTO attached SELECT 5, {parts["attached"]}, n
            FROM generate_series(1, {{accounts}}) AS n;
        ALTER TABLE entries ATTACH PARTITION attached {attached};
        SELECT fencing.maintain('entries');
        INSERT INTO entries SELECT n, p.part, 5
            FROM generate_series(1, {{accounts}}) AS n,
                (VALUES ({parts["first"]}), ({parts["second"]}), ({parts["later"]})) AS p (part);
        """,
        accounts=150,
    )


RANGE = _partitioned(
    "range",
    "RANGE (part)",
    tuple(f"FOR VALUES FROM ({n}) TO ({n + 10})" for n in (0, 10, 20, 30)),
)
LIST = _partitioned("list", "LIST (part)", tuple(f"FOR VALUES IN ({n})" for n in (0, 10, 20, 30)))
HASH = _partitioned(
    "hash",
    "HASH (part)",
    tuple(f"FOR VALUES WITH (MODULUS 4, REMAINDER {n})" for n in (0, 1, 2, 3)),
    parts=HASH_PARTS,
)
TWO_LEVELS = _partitioned(
    "two levels",
    "RANGE (part)",
    (*(f"FOR VALUES IN ({n})" for n in (0, 10, 20)), "FOR VALUES FROM (30) TO (40)"),
    middle="CREATE TABLE middle PARTITION OF entries FOR VALUES FROM (0) TO (30) "
    "PARTITION BY LIST (part);",
)
PARTITIONED = (RANGE, LIST, HASH, TWO_LEVELS)

INHERITANCE = Scenario(
    "inheritance",
    """
    CREATE TABLE entries (account_id bigint, amount int);
    CREATE TABLE child (more text) INHERITS (entries);
    CREATE TABLE grandchild () INHERITS (child);
    INSERT INTO entries SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO child SELECT n, 6, 'x' FROM generate_series(1, {accounts}) AS n;
    INSERT INTO grandchild SELECT n, 7, 'x' FROM generate_series(1, {accounts}) AS n;
    SELECT public.fence('entries', 'account:{account_id}');
    CREATE TABLE later () INHERITS (entries);
    INSERT INTO later SELECT n, 8 FROM generate_series(1, {accounts}) AS n;
    """,
    accounts=150,
)

TEMPLATES = Scenario(
    "templates",
    """
    CREATE TABLE tenant_orders (tenant_id int, order_id bigint, state text,
        PRIMARY KEY (tenant_id, order_id));
    CREATE TABLE order_lines (id bigserial, tenant_id int, order_id bigint, item text);
    CREATE TABLE ledger (id bigserial, entry text);
    CREATE TABLE by_text (name text, amount int);
    CREATE TABLE by_varchar (name varchar(20), amount int);
    CREATE TABLE by_uuid (id uuid, amount int);
    CREATE TABLE by_bool (flag boolean, account_id bigint, amount int);
    CREATE TABLE by_smallint (id smallint, amount int);
    CREATE DOMAIN account_number AS bigint CHECK (VALUE > 0);
    CREATE TABLE by_domain (id account_number, amount int);
    CREATE TABLE by_generated (base bigint, account_id bigint GENERATED ALWAYS AS (base) STORED,
        amount int);
    CREATE TABLE "Odd ""Names"" of" ("It's a column; --" bigint, amount int);
    CREATE TABLE nullable (account_id bigint, amount int);
    CREATE TABLE keyed (id bigserial PRIMARY KEY, amount int);
    CREATE TABLE append_guarded (account_id bigint, amount int);
    CREATE TABLE delete_guarded (account_id bigint, amount int);
    INSERT INTO tenant_orders SELECT n, n, 'new' FROM generate_series(1, {accounts}) AS n;
    INSERT INTO order_lines (tenant_id, order_id, item)
        SELECT n, n, 'x' FROM generate_series(1, {accounts}) AS n;
    INSERT INTO ledger (entry) SELECT 'x' FROM generate_series(1, {accounts});
    INSERT INTO by_text SELECT 'name ' || n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_varchar SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_uuid SELECT CAST(lpad(CAST(n AS text), 32, '0') AS uuid), 5
        FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_bool SELECT true, n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_smallint SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_domain SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO by_generated (base, amount) SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO "Odd ""Names"" of" SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO nullable SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO nullable VALUES (NULL, 5);
    INSERT INTO keyed (amount) SELECT 5 FROM generate_series(1, {accounts});
    INSERT INTO append_guarded SELECT n, 5 FROM generate_series(1, {accounts}) AS n;
    INSERT INTO delete_guarded SELECT n, 5 FROM generate_series(1, {accounts}) AS n;

    SELECT public.fence('tenant_orders', 'tenant:{tenant_id}/order:{order_id}');
    SELECT public.fence('order_lines', 'tenant:{tenant_id}/order:{order_id}');
    SELECT public.fence('ledger', 'ledger');
    SELECT public.fence('by_text', 'text:{name}');
    SELECT public.fence('by_varchar', 'varchar:{name}');
    SELECT public.fence('by_uuid', 'uuid:{id}');
    SELECT public.fence('by_bool', 'bool:{flag}/{account_id}');
    SELECT public.fence('by_smallint', 'small:{id}');
    SELECT public.fence('by_domain', 'domain:{id}');
    SELECT public.fence('by_generated', 'generated:{account_id}');
    SELECT public.fence('"Odd ""Names"" of"', 'odd:{It''s a column; --}');
    SELECT public.fence('nullable', 'account:{account_id}');
    SELECT public.fence('keyed', 'keyed:{id}', 'update,delete');
    SELECT public.fence('append_guarded', 'account:{account_id}', 'insert');
    SELECT public.fence('delete_guarded', 'account:{account_id}', 'delete');
    """,
    accounts=150,
)

SCENARIOS = (BANK, CASCADES, *PARTITIONED, INHERITANCE, TEMPLATES)
