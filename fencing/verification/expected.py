"""What schema ``fencing`` looks like when nobody has touched it.

Functions and grants are read off the ``.sql`` files that install them; the rest is told here as
PostgreSQL shows it.
"""

from __future__ import annotations

import re
from functools import cache

from fencing.schema import ddl
from fencing.verification.facts import Function

__all__ = [
    "CONSTRAINTS",
    "DEFAULTS",
    "FLOORS",
    "INDEXES",
    "PERSISTENCE",
    "RENDERER",
    "TRIGGERS",
    "VIEWS",
    "functions",
    "granted_to_public",
]

PERSISTENCE = {
    "fence": "p",
    "floor": "p",
    "receipt": "p",
    "horizon": "p",
    "lease": "p",
    "maintenance": "u",
    "incarnation": "u",
    "waiter": "u",
}
"""Our tables; ``p``: their rows survive a crash, ``u``: they must not."""

DEFAULTS = {
    "fence": (
        "previous_token 0", "previous_holder ''::text", "admitted_at clock_timestamp()",
    ),
    "floor": ("token 0",),
    "receipt": ("committed true", "written_at transaction_timestamp()"),
    "horizon": ("one true",),
    "lease": (
        "token 0", "holder ''::text", "owner ''::text",
        "expires_at '-infinity'::timestamp with time zone",
    ),
    "maintenance": ("ending false",),
    "incarnation": ("one true", "id gen_random_uuid()"),
    "waiter": ("asked_at clock_timestamp()", "given_up false"),
}  # fmt: skip
"""By table: a column, and its default as ``pg_get_expr`` shows it, in the order of the columns."""

INDEXES = {
    "waiter": ("CREATE INDEX waiter_in_turn ON fencing.waiter USING btree (resource, asked_at)",),
}
"""By table, as ``pg_get_indexdef`` shows them; those of constraints apart."""

VIEWS = {
    "fences": ("resource", "token", "owner", "admitted_at"),
    "guards": (
        "table_oid", "table_schema", "table_name", "resource", "operations", "mode", "version",
        "covered_by",
    ),
}  # fmt: skip
"""Our views, with their columns."""

FLOORS = 1024
"""Rows of ``fencing.floor``."""

RENDERER = ("parse_template", "render_body")
"""The functions that tell what the function of a guard should be."""

CONSTRAINTS = {
    ("fence", "fence_pkey"): "PRIMARY KEY (resource)",
    ("fence", "fence_resource_length"): (
        "CHECK (((octet_length(resource) >= 1) AND (octet_length(resource) <= 512)))"
    ),
    ("fence", "fence_token_range"): (
        "CHECK (((token >= 1) AND (token <= '9007199254740991'::bigint)))"
    ),
    ("fence", "fence_token_never_decreases"): (
        "CHECK (((token > previous_token) OR "
        "((token = previous_token) AND (holder = previous_holder))))"
    ),
    ("floor", "floor_pkey"): "PRIMARY KEY (bucket)",
    ("lease", "lease_pkey"): "PRIMARY KEY (resource)",
    ("lease", "lease_resource_length"): (
        "CHECK (((octet_length(resource) >= 1) AND (octet_length(resource) <= 512)))"
    ),
    ("lease", "lease_token_range"): (
        "CHECK (((token >= 0) AND (token <= '9007199254740991'::bigint)))"
    ),
    ("waiter", "waiter_pkey"): "PRIMARY KEY (holder)",
    ("maintenance", "maintenance_pkey"): "PRIMARY KEY (transaction, guarded, ending)",
    ("receipt", "receipt_pkey"): "PRIMARY KEY (id)",
    ("horizon", "horizon_pkey"): "PRIMARY KEY (one)",
    ("horizon", "horizon_one_check"): "CHECK (one)",
    ("incarnation", "incarnation_pkey"): "PRIMARY KEY (one)",
    ("incarnation", "incarnation_one_check"): "CHECK (one)",
}
"""By table and name, as ``pg_get_constraintdef`` shows them."""

TRIGGERS = {
    ("fence", "fence_remember_previous"): (
        "BEFORE INSERT OR UPDATE ON fencing.fence FOR EACH ROW", "remember_previous",
    ),
    ("fence", "fence_keep_rows"): ("BEFORE DELETE ON fencing.fence FOR EACH ROW", "keep_fence"),
    ("fence", "fence_keep_table"): (
        "BEFORE TRUNCATE ON fencing.fence FOR EACH STATEMENT", "keep_fence",
    ),
    ("floor", "floor_keep_rows"): (
        "BEFORE DELETE OR UPDATE ON fencing.floor FOR EACH ROW", "keep_floor",
    ),
    ("floor", "floor_keep_table"): (
        "BEFORE TRUNCATE ON fencing.floor FOR EACH STATEMENT", "keep_floor",
    ),
    ("maintenance", "maintenance_ends"): (
        "AFTER INSERT ON fencing.maintenance DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
        "end_maintenance",
    ),
}  # fmt: skip
"""By table and name: what ``pg_get_triggerdef`` shows of it, and the function it calls."""

_FUNCTION = re.compile(
    r"CREATE OR REPLACE FUNCTION fencing\.(?P<name>\w+)\((?P<arguments>.*?)\)\s+"
    r"(?:RETURNS (?P<result>.*?)\s+)?LANGUAGE (?P<language>\w+)(?P<flags>.*?)"
    r"AS \$fencing\$(?P<body>.*?)\$fencing\$",
    re.DOTALL,
)
_VOLATILITY = {"IMMUTABLE": "i", "STABLE": "s"}
_ALIASES = {"timestamptz": "timestamp with time zone"}


@cache
def functions() -> dict[str, Function]:
    """The functions that this package installs, by name and arguments."""
    found = (
        _function(match)
        for statement in ddl.install()
        if (match := _FUNCTION.match(_without_comments(statement)))
    )
    return {function.signature: function for function in found}


@cache
def granted_to_public() -> frozenset[tuple[str, str]]:
    """What everybody may do: pairs of a privilege and an object."""
    (statement,) = (each for each in ddl.install() if "' TO PUBLIC'" in each)
    return frozenset(
        (privilege, name)
        for privilege, _, name in re.findall(
            r"\(\d+, '(\w+) ON (FUNCTION |SCHEMA |)(?:fencing\.)?([^']+)'\)",
            statement.replace("timestamptz", _ALIASES["timestamptz"]),
        )
    )


def _without_comments(statement: str) -> str:
    """Without the lines above it; those of a body belong to it."""
    return re.sub(r"\A(?:--[^\n]*\n|\s)*", "", statement)


def _function(match: re.Match[str]) -> Function:
    flags = match["flags"]
    return Function(
        name=match["name"],
        arguments=_arguments(match["arguments"]),
        result=match["result"] or "",
        language=match["language"],
        body=match["body"],
        definer="SECURITY DEFINER" in flags,
        settings=(
            ("search_path=pg_catalog, pg_temp",)
            if "SET search_path = pg_catalog, pg_temp" in flags
            else ()
        ),
        volatility=next((_VOLATILITY[word] for word in flags.split() if word in _VOLATILITY), "v"),
        strict="STRICT" in flags.split(),
    )


def _arguments(text: str) -> str:
    """As ``pg_get_function_identity_arguments`` shows them."""
    without_defaults = re.sub(r"\s+DEFAULT\s+('[^']*'|\w+)", "", text)
    words = " ".join(without_defaults.split())
    return re.sub(r"\w+", lambda word: _ALIASES.get(word[0], word[0]), words)
