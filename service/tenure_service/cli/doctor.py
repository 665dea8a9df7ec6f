"""`tenure doctor`: whether a database is in good order, and what to do where it is not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tenure_service.cli import exits, schema, show

if TYPE_CHECKING:
    import argparse


def run(values: argparse.Namespace) -> int:
    """Makes all checks and prints what they found."""
    from tenure_service.usecase import doctor

    dsn, schema_name = schema.where(values)
    limit = timedelta(seconds=values.timeout)
    found = doctor.examine(dsn, schema_name, limit=limit)
    if values.json:
        show.document(found)
    else:
        show.table(
            ["level", "check", "found", "do"],
            [(each.level, each.name, each.found, each.advice) for each in found],
            empty="",
        )
    worst = {each.level for each in found}
    if doctor.Level.FAIL in worst or (values.strict and doctor.Level.WARN in worst):
        return exits.FAILED
    return exits.OK
