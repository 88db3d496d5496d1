"""Who may do what: the roles of docs/how-to/roles.md, with the grants that it tells."""

from __future__ import annotations

import re
import threading

import psycopg
import pytest
import sqlalchemy as sa

from fencing import Guard, StaleFenceError
from fencing.embedded.asking import until
from fencing.schema import ddl
from fencing.schema.names import FENCE_KEPT, IMPLAUSIBLE_TOKEN, UNFENCED
from fencing.verification import expected
from tests.schema.sql import ACCOUNT, ALICE, BOB, admit, enter, refused, run, wait_until_blocked
from tests.support.scripted import ScriptedLocks
from tests.verify.conftest import EVICTION, HARDENING, PAGE

RESOURCE = "accounts:42"
DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = 42"


@pytest.fixture(params=["as documented", "kept to the application"])
def hardened(request, admin, site):
    """A superuser, in a transaction that is rolled back; with and without the optional part."""
    if request.param != "as documented":
        admin.execute(site.documented(HARDENING))
    return admin


@pytest.fixture
def app(hardened, site):
    """The application; what it does is rolled back."""
    hardened.execute("INSERT INTO fencing.fence (resource, token, holder, owner) "
                     f"VALUES ('held', 7, '{ALICE}', 'alice')")  # fmt: skip
    hardened.execute(f"SET LOCAL SESSION AUTHORIZATION {site.app}".encode())
    return hardened


@pytest.fixture
def sessions(own_site):
    """Opens sessions of a role, in autocommit mode."""
    opened = []

    def connect(role: str, **options) -> psycopg.Connection:
        connection = psycopg.connect(own_site.url_of(role), autocommit=True, **options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def test_the_application_has_all_that_it_needs(app):
    assert admit(app, 1, resource=RESOURCE)
    enter(app, (RESOURCE, 1, ALICE), limit_ms=60_000)
    app.execute(DEBIT)
    assert app.execute("SELECT fencing.mark(%s)", (RESOURCE,)).fetchone() == (1,)
    assert app.execute("SELECT count(*) FROM fencing.guards").fetchone() == (7,)
    assert app.execute("SELECT fencing.evict(%s, 2, now())", (RESOURCE,)).fetchone() == ([],)


def test_and_nothing_that_it_does_without_a_lease_passes(app):
    with refused(UNFENCED):
        app.execute(DEBIT)


WRITES = [
    "UPDATE fencing.fence SET token = token + 1",
    "UPDATE fencing.fence SET holder = 'mine'",
    "UPDATE fencing.fence SET resource = 'elsewhere'",
    "UPDATE fencing.fence SET previous_token = 0",
    "INSERT INTO fencing.fence (resource, token, holder, owner) VALUES ('x', 1, 'x', 'x')",
    "DELETE FROM fencing.fence",
    "TRUNCATE fencing.fence",
    "COPY fencing.fence TO STDOUT",
    "UPDATE fencing.floor SET token = 9",
    "DELETE FROM fencing.floor",
    "TRUNCATE fencing.floor",
    "INSERT INTO fencing.maintenance VALUES (pg_current_xact_id(), 'public.accounts')",
    "UPDATE fencing.maintenance SET guarded = 'public.accounts'",
    "SELECT * FROM fencing.fence FOR SHARE",
    "LOCK fencing.fence",
]
GUARDS = [
    "ALTER TABLE accounts DISABLE TRIGGER fencing_update",
    "ALTER TABLE accounts DISABLE TRIGGER ALL",
    "ALTER TABLE accounts ENABLE REPLICA TRIGGER fencing_update",
    "ALTER TABLE orders_1 DISABLE TRIGGER fencing_update",
    "DROP TRIGGER fencing_update ON accounts",
    "DROP TABLE accounts",
    "ALTER TABLE accounts RENAME TO mine",
    "ALTER TABLE accounts ALTER COLUMN id TYPE text",
    "ALTER TABLE orders DETACH PARTITION orders_1",
    "TRUNCATE accounts",
    "COMMENT ON TRIGGER fencing_update ON accounts IS NULL",
    "CREATE TRIGGER mine AFTER UPDATE ON accounts EXECUTE FUNCTION fencing.guard_accounts()",
    "CREATE RULE mine AS ON UPDATE TO accounts DO INSTEAD NOTHING",
    ("CREATE OR REPLACE FUNCTION fencing.require(p_table text, p_resources text[]) RETURNS void "
    "LANGUAGE sql AS 'SELECT NULL'"),
    "ALTER FUNCTION fencing.guard_accounts() SECURITY INVOKER",
    "ALTER FUNCTION fencing.require(text, text[]) OWNER TO CURRENT_USER",
    "DROP FUNCTION fencing.guard_accounts() CASCADE",
    "DROP SCHEMA fencing CASCADE",
    "GRANT SELECT ON fencing.fence TO PUBLIC",
    "CREATE FUNCTION fencing.mark(name) RETURNS bigint LANGUAGE sql AS 'SELECT 0'",
    "SET session_replication_role = replica",
    "SET ROLE {owner}",
]  # fmt: skip
OF_THE_OWNER = [
    function
    for function in expected.functions().values()
    if function.result != "trigger"
    and not any(name.startswith(f"{function.name}(") for _, name in expected.granted_to_public())
]


@pytest.mark.parametrize("statement", [*WRITES, *GUARDS])
def test_the_application_cannot(app, site, statement):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute(statement.format(owner=site.owner).encode())


@pytest.mark.parametrize("function", OF_THE_OWNER, ids=lambda f: f.name)
def test_the_application_cannot_call_what_is_the_owner_s(app, function):
    """A call without arguments is refused for another reason, so it has as many as it takes."""
    arguments = [
        text.split(" ", 1)[1] for text in function.arguments.split(", ")
        if text and not text.startswith("OUT ")
    ]  # fmt: skip
    # A strict function of a constant NULL would not be called at all.
    some = {"text": "'x'", "oid": "0"}
    passed = ", ".join(f"CAST({some.get(each, 'NULL')} AS {each})" for each in arguments)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for"):
        app.execute(f"SELECT fencing.{function.name}({passed})".encode())


def test_everybody_who_has_no_right_at_all_is_refused_all_the_same(admin, site):
    """The functions of a guard run with the rights of their owner."""
    admin.execute(site.documented(HARDENING))
    admin.execute(f"CREATE ROLE other_{site.suffix}; GRANT UPDATE, SELECT ON accounts TO other_"
                  f"{site.suffix}; GRANT USAGE ON SCHEMA public TO other_{site.suffix}; "
                  f"SET ROLE other_{site.suffix}".encode())  # fmt: skip
    with refused(UNFENCED):
        admin.execute(DEBIT)


def test_the_page_grants_exactly_what_the_package_grants_to_everybody():
    block = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[HARDENING]
    listed = {
        (privilege, name.replace("timestamptz", "timestamp with time zone"))
        for privilege, name in re.findall(
            r"GRANT (\w+) ON (?:FUNCTION |SCHEMA |)(?:fencing\.)?(.*?) TO", block
        )
    }
    assert listed == expected.granted_to_public()


def test_a_restriction_outlives_an_upgrade(admin, site):
    admin.execute(site.documented(HARDENING))
    run(admin, ddl.upgrade())
    (rights,) = admin.execute(
        "SELECT count(*) FROM pg_proc AS p, aclexplode(p.proacl) AS a "
        "WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND a.grantee = 0"
    ).fetchone()
    assert rights == 0


def test_the_monitor_sees_marks_and_owners_and_no_holder(hardened, site):
    admit(hardened, 7, ALICE, resource=RESOURCE)
    hardened.execute(f"SET LOCAL SESSION AUTHORIZATION {site.monitor}".encode())
    cursor = hardened.execute("SELECT * FROM fencing.fences WHERE resource = %s", (RESOURCE,))
    assert [column.name for column in cursor.description] == [
        "resource", "token", "owner", "admitted_at",
    ]  # fmt: skip
    assert cursor.fetchone()[:3] == (RESOURCE, 7, "test")


@pytest.mark.parametrize("statement", [*WRITES, *GUARDS, DEBIT, "SELECT * FROM fencing.fence"])
def test_the_monitor_cannot(hardened, site, statement):
    hardened.execute(f"SET LOCAL SESSION AUTHORIZATION {site.monitor}".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        hardened.execute(statement.format(owner=site.owner).encode())


@pytest.mark.parametrize("who", ["app", "monitor"])
def test_no_relation_that_they_can_read_has_a_holder_in_it(hardened, site, who):
    admit(hardened, 7, ALICE, resource=RESOURCE)
    names = hardened.execute(
        "SELECT CAST(c.oid AS regclass) FROM pg_class AS c "
        "WHERE c.relkind IN ('r', 'v', 'm', 'p') AND c.relpersistence <> 't'"
    ).fetchall()
    hardened.execute(f"SET LOCAL SESSION AUTHORIZATION {getattr(site, who)}".encode())
    read = 0
    for (name,) in names:
        try:
            with hardened.transaction():
                rows = hardened.execute(f"SELECT CAST(t AS text) FROM {name} AS t".encode())
                assert not [row for row in rows if ALICE in str(row)], name
                read += 1
        except psycopg.Error:
            continue
    assert read > 50


def everything_said(error: psycopg.Error) -> str:
    fields = (getattr(error.diag, name) for name in dir(error.diag) if not name.startswith("_"))
    return " ".join(str(field) for field in fields)


def test_no_error_tells_a_holder(app):
    """What a late or a wrong holder is told is about the token."""
    attempts = [
        (lambda: admit(app, 7, BOB, resource="held"), "ZF001"),
        (lambda: admit(app, 6, BOB, resource="held"), "ZF001"),
        (lambda: admit(app, 2**50, BOB, resource="held"), IMPLAUSIBLE_TOKEN),
        (lambda: enter(app, ("held", 7, BOB)), "ZF001"),
        (lambda: enter(app, ("held", 8, BOB)), "ZF003"),
        (lambda: app.execute("SELECT fencing.evict('held', 7, now())"), "ZF001"),
        (lambda: app.execute(DEBIT), UNFENCED),
    ]
    for attempt, state in attempts:
        with pytest.raises(psycopg.Error) as caught, app.transaction():
            attempt()
        assert caught.value.sqlstate == state
        assert ALICE not in everything_said(caught.value)


def test_no_notice_tells_a_holder(app, site):
    said = []
    app.add_notice_handler(lambda diag: said.append(str(diag.message_detail)))
    app.execute("RESET SESSION AUTHORIZATION")
    run(app, ddl.alter_fence("accounts", mode="observe"))
    admit(app, 7, ALICE, resource=RESOURCE)
    app.execute(f"SET LOCAL SESSION AUTHORIZATION {site.app}".encode())
    app.execute("SELECT set_config('fencing.claim', concat(%s::text), true)", ("x",))
    app.execute(DEBIT)
    assert len(said) == 1
    assert ALICE not in said[0]


def test_nobody_reads_a_holder_off_what_a_session_is_doing(own_site, sessions):
    """Statements are shown to superusers and to members of pg_monitor; their parameters are not."""
    engine = sa.create_engine(sa.make_url(own_site.url_of(own_site.app)).set(
        drivername="postgresql+psycopg"))  # fmt: skip
    with (
        Guard(ScriptedLocks(), engine) as guard,
        guard.acquire(RESOURCE) as lease,
        engine.begin() as connection,
        psycopg.connect(own_site.url, autocommit=True) as admin,
    ):
        seen: list[tuple[str]] = []

        def entered() -> bool:
            seen.extend(admin.execute("SELECT query FROM pg_stat_activity").fetchall())
            return any("fencing.enter" in query for (query,) in seen)

        until(entered, "the entry was not seen")  # it is sent, and nobody awaits its answer
        connection.execute(sa.text(DEBIT))
        entered()
        assert not [query for (query,) in seen if lease.holder in query]
    engine.dispose()


FENCE_AT_5 = (
    "INSERT INTO fencing.fence (resource, token, holder, owner) "
    f"VALUES ('{ACCOUNT}', 5, '{ALICE}', 'alice')"
)
BACKWARDS = [
    "UPDATE fencing.fence SET token = 4",
    "UPDATE fencing.fence SET token = 4, previous_token = 0, previous_holder = ''",
    f"UPDATE fencing.fence SET holder = '{BOB}'",
    f"UPDATE fencing.fence SET holder = '{BOB}', previous_token = 1, previous_holder = '{BOB}'",
    "UPDATE fencing.fence SET previous_token = 9",
    "UPDATE fencing.fence SET resource = 'elsewhere'",
    "DELETE FROM fencing.fence",
    "TRUNCATE fencing.fence",
    "TRUNCATE fencing.fence, fencing.floor, fencing.maintenance",
    "UPDATE fencing.floor SET token = token - 1",
    "UPDATE fencing.floor SET bucket = bucket + 2000",
    "DELETE FROM fencing.floor",
    "TRUNCATE fencing.floor",
    f"INSERT INTO fencing.fence (resource, token, holder, owner) VALUES ('pruned', 3, '{BOB}', '')",
    (
        "INSERT INTO fencing.fence (resource, token, holder, owner, previous_token) "
        f"VALUES ('pruned', 3, '{BOB}', '', -1)"
    ),
    (
        "MERGE INTO fencing.fence AS f USING (SELECT 1) AS s ON true "
        "WHEN MATCHED THEN UPDATE SET token = 1"
    ),
    "MERGE INTO fencing.fence AS f USING (SELECT 1) AS s ON true WHEN MATCHED THEN DELETE",
]


@pytest.mark.parametrize("who", ["owner", "migrator", "superuser", "superuser as a replica"])
@pytest.mark.parametrize("statement", BACKWARDS)
def test_nobody_moves_anything_backwards(admin, site, who, statement):
    admin.execute("UPDATE fencing.floor SET token = 3")
    admin.execute(FENCE_AT_5)
    if who == "superuser as a replica":
        admin.execute("SET LOCAL session_replication_role = replica")
    elif who != "superuser":
        admin.execute(f"SET LOCAL SESSION AUTHORIZATION {getattr(site, who)}".encode())
    state = None
    try:
        with admin.transaction():
            admin.execute(statement.encode())
    except psycopg.Error as error:
        state = error.sqlstate
    # previous_token alone is overwritten by the trigger, and that is all.
    allowed = (None,) if statement.endswith("SET previous_token = 9") else (FENCE_KEPT, "23514")
    assert state in allowed
    assert admin.execute(
        "SELECT resource, token, holder, (SELECT sum(token) FROM fencing.floor) FROM fencing.fence"
    ).fetchall() == [(ACCOUNT, 5, ALICE, 3 * 1024)]


def test_a_token_beyond_the_bound_is_refused_and_an_administrator_can_go_there(admin, site):
    admin.execute(FENCE_AT_5)
    far = 5 + 2**40 + 1
    admin.execute(f"SET LOCAL SESSION AUTHORIZATION {site.app}".encode())
    with refused(IMPLAUSIBLE_TOKEN), admin.transaction():
        admit(admin, far, BOB)
    with pytest.raises(psycopg.errors.InsufficientPrivilege), admin.transaction():
        admin.execute("SELECT fencing.raise_fence(%s, %s)", (ACCOUNT, far))
    admin.execute(f"SET LOCAL SESSION AUTHORIZATION {site.migrator}".encode())
    admin.execute("SELECT fencing.raise_fence(%s, %s)", (ACCOUNT, far))
    admin.execute(f"SET LOCAL SESSION AUTHORIZATION {site.app}".encode())
    with refused("ZF001"), admin.transaction():
        enter(admin, (ACCOUNT, 5, ALICE))
    assert admit(admin, far + 1, BOB)


def test_a_member_of_the_owner_fences_tables_and_the_functions_are_the_owner_s(admin, site):
    admin.execute(f"SET LOCAL SESSION AUTHORIZATION {site.migrator}".encode())
    admin.execute("CREATE TABLE mine (id int)")
    run(admin, ddl.fence_table("mine", "mine:{id}"))
    run(admin, ddl.fence_table("notes", "note:{id}"))
    run(admin, ddl.alter_fence("notes", mode="observe"))
    run(admin, ddl.unfence_table("things"))
    run(admin, ddl.upgrade())
    owners = admin.execute(
        "SELECT DISTINCT pg_get_userbyid(p.proowner) FROM pg_proc AS p "
        "WHERE p.pronamespace = CAST('fencing' AS regnamespace)"
    ).fetchall()
    assert owners == [(site.owner,)]


def test_a_member_of_the_owner_maintains_a_table(admin, site):
    admin.execute(f"SET LOCAL SESSION AUTHORIZATION {site.migrator}".encode())
    run(admin, ddl.maintain("accounts"))
    admin.execute("UPDATE accounts SET balance = 0")


def test_a_guarded_write_through_the_engine_of_the_application(own_site):
    url = sa.make_url(own_site.url_of(own_site.app)).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url)
    with psycopg.connect(own_site.url) as admin:
        admin.execute(own_site.documented(HARDENING))
    with Guard(ScriptedLocks(), engine) as guard:
        with guard.acquire(RESOURCE), engine.begin() as connection:
            connection.execute(sa.text(DEBIT))
        with guard.acquire(RESOURCE), engine.connect() as connection:
            connection.execute(sa.text(DEBIT))
            with psycopg.connect(own_site.url_of(own_site.migrator)) as admin:
                # Its row is locked by what was written; its successor waits for that as well.
                connection.rollback()
                admin.execute("SELECT fencing.raise_fence(%s, 1000)", (RESOURCE,))
                admin.commit()
            with pytest.raises(StaleFenceError):
                connection.execute(sa.text(DEBIT))
    engine.dispose()


def successor(session: psycopg.Connection, states: list[str | None]) -> None:
    try:
        admit(session, 2, BOB, resource=RESOURCE, wait_ms=20_000)
        states.append(None)
    except psycopg.Error as error:
        states.append(error.sqlstate)


@pytest.mark.parametrize("with_rights", [False, True])
def test_a_session_of_another_role_is_evicted_with_two_rights_more(own_site, sessions, with_rights):
    zombie = sessions(own_site.migrator)
    admit(zombie, 1, resource=RESOURCE)
    zombie.execute("BEGIN")
    enter(zombie, (RESOURCE, 1, ALICE))
    if with_rights:
        with psycopg.connect(own_site.url) as admin:
            admin.execute(own_site.documented(EVICTION))
    waiting, evicting = sessions(own_site.app), sessions(own_site.app)
    states: list[str | None] = []
    thread = threading.Thread(target=successor, args=(waiting, states))
    thread.start()
    wait_until_blocked(evicting, waiting.info.backend_pid)
    try:
        (ended,) = evicting.execute(
            "SELECT fencing.evict(%s, 2, clock_timestamp())", (RESOURCE,)
        ).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        ended = []
    assert ended == ([zombie.info.backend_pid] if with_rights else [])
    if not with_rights:
        zombie.execute("ROLLBACK")
    thread.join()
    assert states == [None]
