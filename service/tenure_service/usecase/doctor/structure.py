"""Whether the tables have the columns, indexes, constraints and triggers that the migrations gave them."""

import re
from collections.abc import Sequence
from typing import Final

from tenure_service.store import doctor, parts, rows
from tenure_service.store.parts import Column, Function, Kind, Part
from tenure_service.usecase.doctor.findings import (
    Case,
    Finding,
    counted,
    failed,
    fine,
    warned,
)

#: What a `reindex concurrently` that was cut short calls its own.
_LEFT_BEHIND: Final = re.compile(r"_cc(new|old)\d*$")


def whole(case: Case) -> list[Finding]:
    """Nothing is missing, and nothing is out of force."""
    state = doctor.migrations(case.dsn, case.schema)
    if state.pending or state.unknown:
        # What another release adds or drops is not known here.
        return [fine("structure", "not compared: the migrations are not those of this release")]
    there = {(part.kind, part.table_name, part.name): part for part in _there(case)}
    wanted = {(str(part.kind), part.table, part.name): part for part in parts.expected(case.schema)}
    missing = [part for place, part in wanted.items() if place not in there]
    unsound = [part for part in there.values() if not part.sound]
    found = [_missing(part) for part in missing]
    found += [_unsound(case, part, wanted) for part in unsound]
    columns, functions = parts.columns(case.schema), parts.functions(case.schema)
    found = _columns(case, columns) + _functions(case, functions) + found
    count = len(wanted) + len(columns) + len(functions)
    return found or [fine("structure", f"{counted(count, 'part')} as the migrations made them")]


def _columns(case: Case, wanted: Sequence[Column]) -> list[Finding]:
    there = {(one.table_name, one.name): one for one in doctor.columns(case.conn, case.schema)}
    found: list[Finding] = []
    for column in wanted:
        row = there.get((column.table, column.name))
        where = f"column {column.name} of {column.table}"
        table = f"alter table {case.schema}.{column.table}"
        initial = f" default {column.initial}" if column.initial else ""
        if row is None:
            required = " not null" if column.required else ""
            advice = f"{table} add column {column.name} {column.type}{initial}{required}"
            found.append(failed("structure", f"missing: {where}", advice))
            continue
        changed = []
        if parts.plain(row.type, case.schema) != column.type:
            changed.append((f"is {row.type}, not {column.type}", f"type {column.type}"))
        if row.required != column.required:
            text = "takes no null" if row.required else "takes null"
            changed.append((text, f"{'set' if column.required else 'drop'} not null"))
        if (parts.plain(row.initial or "", case.schema) or None) != column.initial:
            text = f"has the default {row.initial}" if row.initial else "has no default"
            changed.append((text, f"set{initial}" if initial else "drop default"))
        if changed:
            text = f"changed: {where} {', '.join(said for said, _ in changed)}"
            mends = ", ".join(f"alter column {column.name} {mend}" for _, mend in changed)
            found.append(failed("structure", text, f"{table} {mends}"))
    return found


def _functions(case: Case, wanted: Sequence[Function]) -> list[Finding]:
    there = {one.name: one.body for one in doctor.functions(case.conn, case.schema)}
    return [
        failed(
            "structure",
            f"{'changed' if function.name in there else 'missing'}: function {function.name}",
            function.statement,
        )
        for function in wanted
        if parts.plain(there.get(function.name, ""), case.schema) != function.body
    ]


def _there(case: Case) -> list[rows.DoctorPart]:
    """Gives what there is; an index that stands for a constraint is told as that alone."""
    found = doctor.parts(case.conn, case.schema)
    constraints = {part.name for part in found if part.kind == Kind.CONSTRAINT}
    return [part for part in found if part.kind != Kind.INDEX or part.name not in constraints]


def _missing(part: Part) -> Finding:
    say = failed if part.guards else warned
    return say("structure", f"missing: {part.kind} {part.name} of {part.table}", part.statement)


def _unsound(
    case: Case, part: rows.DoctorPart, wanted: dict[tuple[str, str, str], Part]
) -> Finding:
    known = wanted.get((part.kind, part.table_name, part.name))
    say = failed if known is not None and known.guards else warned
    table = f"{case.schema}.{part.table_name}"
    if part.kind == Kind.TRIGGER:
        text, advice = "disabled", f"alter table {table} enable trigger {part.name}"
    elif part.kind == Kind.CONSTRAINT:
        text, advice = "not validated", f"alter table {table} validate constraint {part.name}"
    elif _LEFT_BEHIND.search(part.name):
        text, advice = "invalid", f"drop index {case.schema}.{part.name}"
    else:
        text, advice = "invalid", f"reindex index concurrently {case.schema}.{part.name}"
    return say("structure", f"{text}: {part.kind} {part.name} of {part.table_name}", advice)
