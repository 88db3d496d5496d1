"""fenced_by and resource_of: declarations, and the names they make."""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase

from fencing import fenced_by, resource_of
from fencing.hooks.declare import declaration_of


class Level(sa.TypeDecorator):
    """An integer by another name."""

    impl = sa.Integer
    cache_ok = True


def table(**columns: object) -> sa.Table:
    return sa.Table("things", sa.MetaData(), *(sa.Column(n, t) for n, t in columns.items()))


FIT = [
    sa.Integer(), sa.BigInteger(), sa.SmallInteger(), sa.String(9), sa.Text(), sa.Uuid(),
    sa.Boolean(), Level(), postgresql.DOMAIN("number", sa.Integer()),
]  # fmt: skip
UNFIT = [
    sa.Date(), sa.DateTime(), sa.Float(), sa.Numeric(), sa.CHAR(3), sa.LargeBinary(), sa.JSON(),
    sa.Enum("a", "b", name="e"), postgresql.CITEXT(), postgresql.ARRAY(sa.Integer()),
    postgresql.DOMAIN("day", sa.Date()),
]  # fmt: skip


class TestFencedBy:
    def test_it_returns_what_it_is_given(self):
        class Base(DeclarativeBase):
            pass

        class Thing(Base):
            __tablename__ = "things"
            id = sa.Column(sa.Integer, primary_key=True)

        assert fenced_by("thing:{id}", operations=["delete", "update"])(Thing) is Thing
        found = declaration_of(Thing.__table__)
        assert found.template.source == "thing:{id}"
        assert found.operations == ("update", "delete")
        assert found.mode == "enforce"

    def test_it_can_declare_that_a_table_is_only_observed(self):
        observed = fenced_by("thing:{id}", mode="observe")(table(id=sa.Integer()))
        assert declaration_of(observed).mode == "observe"

    @pytest.mark.parametrize("kind", FIT, ids=repr)
    def test_a_type_with_one_text_form_is_accepted(self, kind):
        assert declaration_of(fenced_by("thing:{id}")(table(id=kind)))

    @pytest.mark.parametrize("kind", UNFIT, ids=repr)
    def test_a_type_whose_text_depends_on_the_session_is_refused(self, kind):
        with pytest.raises(
            ValueError, match=r"names the column 'id' of type .* not always the same"
        ):
            fenced_by("thing:{id}")(table(id=kind))

    def test_a_column_that_the_table_has_not_is_refused(self):
        with pytest.raises(ValueError, match=r"names the column 'nope'.*its columns are id, name"):
            fenced_by("thing:{nope}")(table(id=sa.Integer(), name=sa.Text()))

    def test_fields_are_columns_of_the_database(self):
        class Base(DeclarativeBase):
            pass

        class Thing(Base):
            __tablename__ = "things"
            key = sa.Column("Key %", sa.Integer, primary_key=True)

        assert resource_of(fenced_by("thing:{Key %}")(Thing), **{"Key %": 7}) == "thing:7"
        with pytest.raises(ValueError, match="'key'"):
            fenced_by("thing:{key}")(Thing)

    @pytest.mark.parametrize("target", [None, 7, object(), int, "things"])
    def test_what_is_neither_mapped_nor_a_table_is_refused(self, target):
        with pytest.raises(TypeError, match="expected a mapped class or a Table"):
            fenced_by("thing:{id}")(target)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"template": ""}, ValueError),
            ({"template": "thing:{id"}, ValueError),
            ({"template": 7}, TypeError),
            ({"template": "x", "operations": "insert"}, TypeError),
            ({"template": "x", "operations": ["truncate"]}, ValueError),
            ({"template": "x", "operations": []}, ValueError),
            ({"template": "x", "mode": "warn"}, ValueError),
            ({"template": "x", "mode": None}, ValueError),
        ],
    )
    def test_bad_arguments_are_refused_at_once(self, arguments, error):
        with pytest.raises(error):
            fenced_by(**arguments)


class TestResourceOf:
    KEY = uuid.UUID("6F9619FF-8B86-D011-B42D-00CF4FC964FF")

    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            (sa.Integer(), 42, "42"),
            (sa.Integer(), -1, "-1"),
            (sa.Text(), "01", "01"),
            (sa.Text(), " {x} ", " {x} "),
            (sa.Boolean(), True, "true"),
            (sa.Boolean(), False, "false"),
            (sa.Uuid(), KEY, str(KEY)),
            (sa.Uuid(as_uuid=False), str(KEY).upper(), str(KEY)),
        ],
    )
    def test_it_is_the_name_that_the_database_computes(self, kind, value, text, own_bank):
        thing = fenced_by("thing:{id}")(table(id=kind))
        assert resource_of(thing, id=value) == f"thing:{text}"
        kind_in_sql = kind.compile(dialect=postgresql.dialect())
        stored = own_bank.value(f"SELECT CAST(CAST(%s AS {kind_in_sql}) AS text)", value)
        assert stored == text

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (sa.Integer(), "42"),
            (sa.Integer(), "01"),
            (sa.Integer(), True),
            (sa.Integer(), 1.0),
            (sa.Text(), 42),
            (sa.Boolean(), 1),
            (sa.Uuid(), 42),
        ],
    )
    def test_a_value_of_another_type_is_refused(self, kind, value):
        with pytest.raises(TypeError, match=r"id is of type .*, so its value must be of type"):
            resource_of(fenced_by("thing:{id}")(table(id=kind)), id=value)

    @pytest.mark.parametrize("value", [None, "a\0b", "x" * 513])
    def test_a_value_that_makes_no_resource_is_refused(self, value):
        with pytest.raises(ValueError, match=r"None|NUL|512"):
            resource_of(fenced_by("{id}")(table(id=sa.Text())), id=value)

    def test_every_column_of_the_template_is_needed_and_no_other(self):
        thing = fenced_by("thing:{a}:{b}")(table(a=sa.Integer(), b=sa.Integer(), c=sa.Integer()))
        assert resource_of(thing, a=1, b=2) == "thing:1:2"
        with pytest.raises(TypeError, match=r"missing \['b'\]"):
            resource_of(thing, a=1)
        with pytest.raises(TypeError, match=r"unknown \['c'\]"):
            resource_of(thing, a=1, b=2, c=3)

    def test_a_table_that_is_not_declared_has_none(self):
        with pytest.raises(TypeError, match="not declared with fenced_by"):
            resource_of(table(id=sa.Integer()), id=1)
