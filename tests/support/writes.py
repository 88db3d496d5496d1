"""Every way to write to the bank's guarded tables, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as pg_insert

from tests.support.bank import BareAccount, BareTransfer

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from sqlalchemy.orm import Session

    Write = Callable[[Session, int], object]
    RawWrite = Callable[[psycopg.Connection, int], object]

accounts: Any = BareAccount.__table__
transfers: Any = BareTransfer.__table__


def orm_update(session: Session, account: int) -> None:
    row = session.get(BareAccount, account)
    assert row is not None
    row.balance -= 10
    session.flush()


def orm_insert(session: Session, account: int) -> None:
    session.add(BareTransfer(account_id=account, amount=1))
    session.flush()


def orm_delete(session: Session, account: int) -> None:
    session.delete(session.get(BareAccount, account))
    session.flush()


def orm_many(session: Session, account: int) -> None:
    session.add_all(BareTransfer(account_id=account, amount=n) for n in range(5))
    session.flush()


def core_cte(session: Session, account: int) -> None:
    gone = delete(transfers).where(transfers.c.account_id == account).returning(transfers.c.id)
    session.execute(select(gone.cte("gone"))).all()


def core_executemany(session: Session, account: int) -> None:
    session.connection().execute(insert(transfers), [{"account_id": account, "amount": 1}] * 3)


def upsert(session: Session, account: int) -> None:
    row = pg_insert(accounts).values(id=account, balance=0)
    session.execute(row.on_conflict_do_update(index_elements=["id"], set_={"balance": 7}))


def driver_sql(session: Session, account: int) -> None:
    connection = session.connection()
    statement = "UPDATE accounts SET balance = 0 WHERE id = "
    if connection.dialect.driver == "asyncpg":
        connection.exec_driver_sql(f"{statement}$1", (account,))
    else:
        connection.exec_driver_sql(f"{statement}%(id)s", {"id": account})


def through_the_cursor(write: RawWrite) -> Write:
    """A raw write on the session's own connection."""

    def run(session: Session, account: int) -> None:
        driver: Any = session.connection().connection.driver_connection
        write(driver, account)

    return run


def sql(statement: str) -> Write:
    """A statement as text()."""
    return lambda session, account: session.execute(text(statement), {"id": account})


UPDATE = "UPDATE accounts SET balance = balance - 10 WHERE id = :id"
CTE = "WITH gone AS (DELETE FROM transfers WHERE account_id = :id RETURNING 1) SELECT * FROM gone"
MERGE = (
    "MERGE INTO accounts AS a USING (VALUES (CAST(:id AS bigint))) AS v (id) ON a.id = v.id "
    "WHEN MATCHED THEN UPDATE SET balance = 1 "
    "WHEN NOT MATCHED THEN INSERT (id, balance) VALUES (v.id, 1)"
)
MERGE_DELETE = (
    "MERGE INTO accounts AS a USING (VALUES (CAST(:id AS bigint))) AS v (id) ON a.id = v.id "
    "WHEN MATCHED THEN DELETE"
)
UPSERT = (
    "INSERT INTO accounts VALUES (:id, 3) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance"
)
FUNCTION = "DO $$ BEGIN EXECUTE 'UPDATE accounts SET balance = 0 WHERE id = ' || {id}; END $$"

# What SQLAlchemy sees: errors are typed.
WRITES: dict[str, Write] = {
    "ORM flush of an update": orm_update,
    "ORM flush of an insert": orm_insert,
    "ORM flush of many inserts": orm_many,
    "ORM flush of a delete": orm_delete,
    "session.execute(update)": lambda s, a: s.execute(
        update(BareAccount).where(BareAccount.id == a).values(balance=0)
    ),
    "session.execute(delete)": lambda s, a: s.execute(
        delete(BareTransfer).where(BareTransfer.account_id == a)
    ),
    "session.execute(insert)": lambda s, a: s.execute(
        insert(BareTransfer).values(account_id=a, amount=1)
    ),
    "session.execute(insert, many)": lambda s, a: s.execute(
        insert(BareTransfer), [{"account_id": a, "amount": n} for n in range(3)]
    ),
    "session.execute(update, many)": lambda s, a: s.execute(
        update(BareAccount), [{"id": a, "balance": 0}]
    ),
    "bulk_insert_mappings": lambda s, a: s.bulk_insert_mappings(
        BareTransfer, [{"account_id": a, "amount": 1}]
    ),
    "bulk_save_objects": lambda s, a: s.bulk_save_objects([BareTransfer(account_id=a, amount=1)]),
    "bulk_update_mappings": lambda s, a: s.bulk_update_mappings(
        BareAccount, [{"id": a, "balance": 0}]
    ),
    "query.update": lambda s, a: s.query(BareAccount).filter_by(id=a).update({"balance": 0}),
    "Core update": lambda s, a: s.connection().execute(
        update(accounts).where(accounts.c.id == a).values(balance=0)
    ),
    "Core executemany": core_executemany,
    "Core data-modifying CTE": core_cte,
    "Core INSERT ON CONFLICT": upsert,
    "text() UPDATE": sql(UPDATE),
    "text() data-modifying CTE": sql(CTE),
    "text() MERGE": sql(MERGE),
    "text() MERGE that deletes": sql(MERGE_DELETE),
    "text() ON CONFLICT": sql(UPSERT),
    "exec_driver_sql": driver_sql,
    "a DO block": lambda s, a: s.execute(text(FUNCTION.replace("{id}", str(a)))),
}


def copy(connection: psycopg.Connection, account: int) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY transfers (account_id, amount) FROM STDIN") as rows,
    ):
        for amount in range(3):
            rows.write_row((account, amount))


def raw(statement: str) -> RawWrite:
    """A statement on psycopg itself."""
    psycopg_style = statement.replace(":id", "%(id)s")
    return lambda connection, account: connection.execute(psycopg_style.encode(), {"id": account})


def raw_many(connection: psycopg.Connection, account: int) -> None:
    with connection.cursor() as cursor:
        cursor.executemany("UPDATE accounts SET balance = %s WHERE id = %s", [(1, account)] * 3)


def raw_pipeline(connection: psycopg.Connection, account: int) -> None:
    with connection.pipeline():
        connection.execute("UPDATE accounts SET balance = 0 WHERE id = %s", (account,))
        connection.execute("SELECT 1")


# What only the driver sees: its own errors, with our SQLSTATEs.
RAW_WRITES: dict[str, RawWrite] = {
    "execute": raw(UPDATE),
    "executemany": raw_many,
    "COPY": copy,
    "DELETE": raw("DELETE FROM accounts WHERE id = :id"),
    "data-modifying CTE": raw(CTE),
    "MERGE": raw(MERGE),
    "ON CONFLICT": raw(UPSERT),
    "pipeline": raw_pipeline,
}

# Raw writes on a session's own connection; SQLAlchemy does not see them.
BEHIND_WRITES: dict[str, Write] = {
    "COPY through session.connection()": through_the_cursor(copy),
    "driver cursor": through_the_cursor(raw(UPDATE)),
}
