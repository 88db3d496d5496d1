"""metadata.create_all() and drop_all() make and remove the guards that are declared."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import CreateTableOp
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, create_mock_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import FencingUsageError, fenced_by
from fencing.migration import fence_table, install
from tests.support.databases import plain_url


@pytest.fixture
def engine(database):
    engine = create_engine(database, poolclass=NullPool)
    yield engine
    engine.dispose()


def things(metadata=None, *, name="things", schema=None, resource="thing:{id}", **declared):
    table = Table(
        name,
        metadata if metadata is not None else MetaData(),
        Column("id", Integer, primary_key=True),
        schema=schema,
    )
    return fenced_by(resource, **declared)(table)


def guards(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(plain_url(url)) as connection:
        return connection.execute(
            "SELECT table_schema, table_name, resource, operations, mode FROM fencing.guards "
            "WHERE covered_by IS NULL ORDER BY 1, 2"
        ).fetchall()


def has_schema(url: str) -> bool:
    with psycopg.connect(plain_url(url)) as connection:
        return connection.execute("SELECT to_regnamespace('fencing') IS NOT NULL").fetchone()[0]


def functions(url: str) -> list[str]:
    with psycopg.connect(plain_url(url)) as connection:
        return [
            name
            for (name,) in connection.execute(
                "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('fencing') "
                "AND proname LIKE 'guard\\_%' AND prorettype = 'trigger'::regtype"
            )
        ]


ALL = ["insert", "update", "delete"]


def test_an_empty_database_has_the_schema_and_the_guard_afterwards(engine, database):
    things().metadata.create_all(engine)
    assert guards(database) == [("public", "things", "thing:{id}", ALL, "enforce")]
    with (
        pytest.raises(psycopg.Error, match="unfenced"),
        psycopg.connect(plain_url(database)) as raw,
    ):
        raw.execute("INSERT INTO things VALUES (1)")


def test_a_schema_that_is_there_already_is_used(engine, database):
    install(database)
    things(operations=["update"], mode="observe").metadata.create_all(engine)
    assert guards(database) == [("public", "things", "thing:{id}", ["update"], "observe")]
    assert install(database) == ()


def test_what_is_not_declared_installs_nothing(engine, database):
    metadata = MetaData()
    Table("plain", metadata, Column("id", Integer))
    metadata.create_all(engine)
    assert not has_schema(database)
    metadata.drop_all(engine)


def test_tables_that_exist_are_left_as_they_are(engine, database):
    table = things()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE things (id integer)"))
    table.metadata.create_all(engine)
    assert not has_schema(database)
    more = things(table.metadata, name="more", resource="more:{id}")
    table.metadata.create_all(engine)
    table.metadata.create_all(engine)
    assert [guard[1] for guard in guards(database)] == [more.name]


def test_drop_all_leaves_no_function_behind(engine, database):
    metadata = things().metadata
    things(metadata, name="more")
    metadata.create_all(engine)
    assert len(functions(database)) == 2
    metadata.drop_all(engine)
    assert functions(database) == guards(database) == []
    metadata.drop_all(engine)
    metadata.create_all(engine)
    assert len(guards(database)) == 2


def test_a_table_that_could_not_be_dropped_is_guarded_as_before(engine, database):
    table = things()
    table.create(engine)
    with psycopg.connect(plain_url(database)) as raw:
        raw.execute("CREATE VIEW looks AS SELECT * FROM things")
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    for bind in (engine, alone):
        with pytest.raises(sa.exc.InternalError, match="looks"):
            table.drop(bind)
        assert len(guards(database)) == len(functions(database)) == 1


def test_a_table_whose_guard_was_taken_away_can_be_dropped(engine, database):
    table = things()
    table.metadata.create_all(engine)
    with psycopg.connect(plain_url(database)) as raw:
        raw.execute("SELECT fencing.unfence_table('things')")
    table.drop(engine)
    table.create(engine)
    with psycopg.connect(plain_url(database)) as raw:
        raw.execute("DROP SCHEMA fencing CASCADE")
    table.drop(engine)


def test_one_table_alone(engine, database):
    table = things()
    table.create(engine)
    table.create(engine, checkfirst=True)
    assert len(guards(database)) == 1
    table.drop(engine)
    assert functions(database) == []


def test_a_copy_of_a_table_in_other_metadata(engine, database):
    copy = things().to_metadata(MetaData(), schema="other")
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema("other"))
        copy.metadata.create_all(connection)
    assert [guard[:2] for guard in guards(database)] == [("other", "things")]


def test_a_schema_translate_map(engine, database):
    metadata = things(schema="tenant").metadata
    things(metadata, name="more")
    mapped = engine.execution_options(schema_translate_map={"tenant": "one", None: "two"})
    with mapped.begin() as connection:
        for name in ("one", "two"):
            connection.execute(sa.schema.CreateSchema(name))
        metadata.create_all(connection)
    assert [guard[:2] for guard in guards(database)] == [("one", "things"), ("two", "more")]
    metadata.drop_all(mapped)
    assert functions(database) == []


async def test_under_asyncio(database):
    engine = create_async_engine(database)
    metadata = things().metadata
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    assert len(guards(database)) == 1
    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
    await engine.dispose()
    assert functions(database) == []


def test_in_autocommit_the_schema_is_installed_in_one_piece(engine, database):
    things().metadata.create_all(engine.execution_options(isolation_level="AUTOCOMMIT"))
    assert len(guards(database)) == 1


def test_a_transaction_that_is_rolled_back_leaves_nothing(engine, database):
    with engine.connect() as connection:
        things().metadata.create_all(connection)
        connection.rollback()
    assert not has_schema(database)


def test_a_listener_can_fill_a_table_before_it_is_guarded(engine, database):
    table = things()

    @sa.event.listens_for(table, "after_create")
    def fill(table, connection, **_):
        connection.execute(table.insert(), {"id": 7})

    table.metadata.create_all(engine)
    assert len(guards(database)) == 1
    with engine.connect() as connection:
        assert connection.scalar(sa.select(table.c.id)) == 7


def test_a_listener_may_have_fenced_it_already(engine, database):
    table = things()
    install(database)

    @sa.event.listens_for(table, "after_create")
    def fence(table, connection, **_):
        fence_table(connection, table, resource="thing", mode="observe")

    table.metadata.create_all(engine)
    assert guards(database) == [("public", "things", "thing", ALL, "observe")]


def test_a_child_that_inherits_is_guarded_with_its_parent(engine, database):
    metadata = things().metadata
    child = Table(
        "children",
        metadata,
        Column("id", Integer),
        postgresql_inherits="things",
    )
    child.add_is_dependent_on(metadata.tables["things"])
    fenced_by("thing:{id}")(child)
    metadata.create_all(engine)
    assert [guard[1] for guard in guards(database)] == ["things"]
    with (
        pytest.raises(psycopg.Error, match="unfenced"),
        psycopg.connect(plain_url(database)) as raw,
    ):
        raw.execute("INSERT INTO children VALUES (1)")
    metadata.drop_all(engine)
    assert functions(database) == []


def test_a_partitioned_table(engine, database):
    table = Table(
        "things",
        MetaData(),
        Column("id", Integer, primary_key=True),
        postgresql_partition_by="RANGE (id)",
    )
    fenced_by("thing:{id}")(table)
    table.metadata.create_all(engine)
    assert [guard[1] for guard in guards(database)] == ["things"]


def test_odd_names(engine, database):
    odd = 'we%ird: "it\'s" \\ é'
    metadata = MetaData()
    table = Table(odd, metadata, Column("Key %:x", sa.String, primary_key=True))
    fenced_by("{{%}}:x'\\:{Key %:x}")(table)
    metadata.create_all(engine)
    assert guards(database)[0][1:3] == (odd, "{{%}}:x'\\:{Key %:x}")
    metadata.drop_all(engine)
    assert functions(database) == []


def test_a_dump_has_the_guards_too(database):
    statements: list[str] = []
    engine = create_mock_engine(
        "postgresql+psycopg://",
        lambda sql, *_: statements.append(str(sql.compile(dialect=engine.dialect))),
    )
    metadata = things(resource="100%:{id}", mode="observe").metadata
    metadata.create_all(engine)
    install(database)
    with psycopg.connect(plain_url(database)) as raw:
        for statement in statements:
            raw.execute(statement.encode(), {})  # with parameters: percent signs are doubled
    assert guards(database) == [("public", "things", "100%:{id}", ALL, "observe")]
    statements.clear()
    metadata.drop_all(engine)
    assert len(statements) == 2
    with psycopg.connect(plain_url(database)) as raw:
        for statement in statements:
            raw.execute(statement.encode(), {})
    assert functions(database) == []


def test_alembics_create_table_makes_no_guard_since_it_has_an_operation_for_that(engine, database):
    created = CreateTableOp.from_table(things())
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        op.invoke(created)
        op.invoke(created.reverse())
    assert not has_schema(database)


def test_on_another_database_nothing_happens(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/x")
    metadata = things().metadata
    metadata.create_all(engine)
    metadata.drop_all(engine)
    engine.dispose()


def test_a_schema_of_an_older_version_says_how_to_upgrade_it(engine, database):
    with psycopg.connect(plain_url(database)) as raw:
        raw.execute("CREATE SCHEMA fencing")
    with pytest.raises(FencingUsageError, match=r"version 1.*fencing install"):
        things().metadata.create_all(engine)


def test_a_template_that_does_not_fit_is_said_at_once(engine):
    table = things()
    table.append_column(Column("day", sa.Date))
    # Past what fenced_by would have said.
    object.__setattr__(table.info["fencing"].template, "source", "thing:{day}")
    with pytest.raises(ValueError, match='column "day" of type date'):
        table.metadata.create_all(engine)
