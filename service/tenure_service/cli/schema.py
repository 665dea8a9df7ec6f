"""`tenure migrate`: the schema of a database."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tenure_service.cli import exits, server, show

if TYPE_CHECKING:
    import argparse

    from tenure_service.store.migrate import Status


def run(values: argparse.Namespace) -> int:
    """Applies what is missing, or says what is."""
    dsn, schema = where(values)
    with server.reported():
        from tenure_service.store import migrate

        if values.status:
            return _print_status(migrate.status(dsn, schema), as_json=values.json)
        pending = migrate.status(dsn, schema).pending
        wanted = [each.name for each in pending if values.phase in {None, each.phase}]
        if wanted:
            show.note(f"to apply: {', '.join(wanted)}")
        applied = migrate.migrate(dsn, schema, phase=values.phase)
    if values.json:
        show.document({"applied": applied})
    elif applied:
        for row in applied:
            print(f"applied {row.name}")
    else:
        print("nothing to do: the schema is up to date")
    return exits.OK


def where(values: argparse.Namespace) -> tuple[str, str]:
    """Finds the database and the schema; other settings may be wrong, they do not matter here."""
    from tenure_service import config

    names = (config.variable("database"), config.variable("schema_name"))
    environment = {name: os.environ[name] for name in names if name in os.environ}
    try:
        found = config.load(
            {"database": values.database, "schema_name": values.schema_name}, environment
        )
    except config.ConfigInvalid as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc
    return found.database, found.schema_name


def _print_status(status: Status, *, as_json: bool) -> int:
    changed = {row.id for row in status.changed}
    unknown = {row.id for row in status.unknown}
    rows: list[dict[str, object]] = [
        {
            "name": row.name,
            "state": (
                "changed"
                if row.id in changed
                else "of a newer release"
                if row.id in unknown
                else "applied"
            ),
            "applied_at": row.applied_at,
        }
        for row in status.applied
    ]
    rows += [{"name": each.name, "state": "pending", "applied_at": None} for each in status.pending]
    if as_json:
        show.document(rows)
    else:
        show.table(
            ["migration", "state", "applied"],
            [(each["name"], each["state"], _instant(each["applied_at"])) for each in rows],
            empty="there are no migrations",
        )
    return exits.OK


def _instant(value: object) -> str:
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S %Z}"
