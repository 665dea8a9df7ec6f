"""Checks of PostgreSQL itself: version, settings, rights, connections, what holds vacuum back."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tenure_service.store import doctor, migrate, rows
from tenure_service.usecase.doctor.findings import (
    Case,
    Finding,
    counted,
    failed,
    fine,
    listed,
    span,
    warned,
)

#: A transaction ends a migration or a batch in seconds; what is open for longer is somebody's dump,
#: report or forgotten prompt, and dead rows pile up behind it at the rate of the work.
_HELD: Final = timedelta(minutes=10)
#: What a server gives its own statements; a shorter transaction_timeout ends its connections.
_TRANSACTION_TIMEOUT: Final = timedelta(seconds=60)
#: A server process has up to 16 connections in its pool, unless set otherwise, one that listens and
#: one that notifies.
SERVER_CONNECTION_COUNT: Final = 18
#: What PostgreSQL is delivered with. It is plenty until the database is several times as large.
_SHARED_BYTES_DEFAULT: Final = 128 * 1024 * 1024
_SHARED_RATIO: Final = 8
_KIBIBYTE: Final = 1024


def version(case: Case) -> list[Finding]:
    """PostgreSQL 18, which makes ids that grow with time."""
    number, text = doctor.version(case.conn)
    if number < migrate.SERVER_VERSION_MIN:
        advice = "move the database to PostgreSQL 18 or newer"
        return [failed("version", f"PostgreSQL {text}", advice)]
    try:
        doctor.make_uuid(case.conn)
    except doctor.NotChecked as exc:
        advice = "use a PostgreSQL with uuidv7(), and let the role execute it"
        return [failed("version", f"PostgreSQL {text} makes no ids: {exc}", advice)]
    return [fine("version", f"PostgreSQL {text}")]


def writable(case: Case) -> list[Finding]:
    """A primary, on which transactions may write."""
    if doctor.database(case.conn).in_recovery:
        advice = "connect to the primary, or promote this server"
        return [failed("writable", "this server is a standby", advice)]
    name = "default_transaction_read_only"
    setting = doctor.settings(case.conn, [name])[name]
    if setting.setting == "on":
        advice = "alter role or database ... set default_transaction_read_only = off"
        return [failed("writable", f"{name} is on ({setting.source})", advice)]
    return [fine("writable", "it takes writes")]


def rights(case: Case) -> list[Finding]:
    """All that a server does with this role."""
    missing = doctor.rights(case.conn, case.schema)
    if not missing:
        return [fine("rights", "the role may do all that a server does")]
    things = sorted({right.thing for right in missing})
    wanted = sorted({right.missing for right in missing})
    return [
        failed(
            "rights",
            f"no right to {', '.join(wanted)} on {listed(things)}",
            f"use the role that migrated, or: {'; '.join(_grants(case, missing))}",
        )
    ]


def _grants(case: Case, missing: Sequence[rows.DoctorRight]) -> list[str]:
    """Gives the statements that let the role do what it may not."""
    role = case.conn.info.user
    kinds: dict[str, set[str]] = {}
    owned: set[str] = set()
    for right in missing:
        kind, _, name = right.thing.partition(" ")
        if right.missing == "ownership":
            owned.add(name)
        else:
            kinds.setdefault(kind, set()).add(right.missing)
    places = {
        "database": f'database "{case.conn.info.dbname}"',
        "schema": f"schema {case.schema}",
        "table": f"all tables in schema {case.schema}",
        "sequence": f"all sequences in schema {case.schema}",
    }
    grants = [
        f'grant {", ".join(sorted(kinds[kind]))} on {place} to "{role}"'
        for kind, place in places.items()
        if kind in kinds
    ]
    return grants + [
        f'alter table {case.schema}.{name} owner to "{role}"' for name in sorted(owned)
    ]


def schema(case: Case) -> list[Finding]:
    """The migrations of this release, and no others."""
    try:
        state = doctor.migrations(case.dsn, case.schema)
    except doctor.NotChecked as exc:
        return [failed("schema", f"it cannot be read: {exc}", "use the role that migrated")]
    missing = [each.name for each in state.pending if each.phase == "pre"]
    later = [each.name for each in state.pending if each.phase == "post"]
    breaking = [row.name for row in state.unknown if row.breaking]
    harmless = [row.name for row in state.unknown if not row.breaking]
    found = []
    if missing:
        text = f"{listed(missing)} not applied; tables are not checked"
        found.append(failed("schema", text, "run `tenure migrate`"))
    if state.changed:
        text = f"edited after being applied: {listed([row.name for row in state.changed])}"
        advice = "install the release that migrated, unedited; a change is another migration"
        found.append(failed("schema", text, advice))
    if breaking:
        text = f"a newer release migrated, and this one must not run: {listed(breaking)}"
        found.append(failed("schema", text, "install the newer release"))
    if later:
        advice = "run `tenure migrate` once no server of the release before runs"
        found.append(warned("schema", f"{listed(later)} not applied yet", advice))
    if harmless:
        text = f"of a newer release, harmless here: {listed(harmless)}"
        found.append(warned("schema", text, "install the newer release everywhere"))
    return found or [fine("schema", f"{counted(len(state.applied), 'migration')} applied")]


def durability(case: Case) -> list[Finding]:
    """What was committed is on disk."""
    found = doctor.settings(case.conn, ["fsync", "full_page_writes", "synchronous_commit"])
    off = [name for name, setting in found.items() if setting.setting == "off"]
    text = ", ".join(_said(found[name]) for name in sorted(off))
    if {"fsync", "full_page_writes"} & set(off):
        advice = "set it to on: a crash of the machine spoils the database"
        return [failed("durability", text, advice)]
    if off:
        advice = "set it to on: a crash loses tasks that were accepted"
        return [warned("durability", text, advice)]
    return [fine("durability", "commits reach the disk")]


def autovacuum(case: Case) -> list[Finding]:
    """Dead rows are removed."""
    names = ["autovacuum", "track_counts"]
    found = doctor.settings(case.conn, names)
    off = [_said(found[name]) for name in names if found[name].setting == "off"]
    if off:
        advice = "set it to on: without vacuum each hand-out reads ever more dead rows"
        return [warned("autovacuum", ", ".join(off), advice)]
    return [fine("autovacuum", "it runs")]


def timeouts(case: Case) -> list[Finding]:
    """No limit of the role or the database ends what servers and migrations do.

    statement_timeout, lock_timeout and the idle timeouts do not count: servers and migrations set
    their own.
    """
    found = doctor.settings(case.conn, ["transaction_timeout"])["transaction_timeout"]
    limit = timedelta(milliseconds=int(found.setting))
    if timedelta(0) < limit < _TRANSACTION_TIMEOUT:
        text = f"transaction_timeout is {limit.total_seconds():g} s ({found.source})"
        advice = "alter role ... set transaction_timeout = 0: it cuts connections in the middle"
        return [warned("timeouts", text, advice)]
    return [fine("timeouts", "none that would end a server's or a migration's transactions")]


def connections(case: Case) -> list[Finding]:
    """Enough for the servers that run, or for one."""
    row = doctor.database(case.conn)
    wanted = max(max(row.server_count, 1) * SERVER_CONNECTION_COUNT, row.connection_count)
    text = (
        f"{counted(row.server_count, 'server process', 'server processes')} may want {wanted}; "
        f"{row.connection_count_max} can be had, {row.connection_count} are in use, "
        f"{row.connection_count_other} more by others"
    )
    if row.connection_count_max < wanted:
        advice = "raise max_connections (or the limit of the role or database), or run fewer"
        return [warned("connections", text, advice)]
    return [fine("connections", text)]


def memory(case: Case) -> list[Finding]:
    """Buffers and reads that fit a database of some size."""
    found = doctor.settings(case.conn, ["shared_buffers", "io_method"])
    shared = int(found["shared_buffers"].setting) * _block_bytes(found["shared_buffers"])
    size = doctor.database(case.conn).byte_count
    text = f"shared_buffers is {_bytes(shared)}, the database {_bytes(size)}"
    if size <= _SHARED_RATIO * shared:
        return [fine("memory", text)]
    notes = []
    if shared <= _SHARED_BYTES_DEFAULT:
        advice = "set shared_buffers to a quarter of the machine's memory"
        notes.append(warned("memory", text, advice))
    if found["io_method"].setting == "sync":
        advice = "set io_method to worker or io_uring: vacuum then reads ahead"
        notes.append(warned("memory", f"io_method is sync, the database {_bytes(size)}", advice))
    return notes or [fine("memory", text)]


def clock(case: Case) -> list[Finding]:
    """How far this machine's clock is off: for whoever compares logs, as it decides nothing."""
    before = time.monotonic()
    database = doctor.database(case.conn).now
    here = datetime.now(UTC) - timedelta(seconds=time.monotonic() - before) / 2
    ahead = (database - here).total_seconds()
    direction = "ahead of" if ahead > 0 else "behind"
    text = f"the database is {abs(ahead):.1f} s {direction} this machine; only its clock decides"
    return [fine("clock", text)]


def snapshots(case: Case) -> list[Finding]:
    """Nothing old that keeps dead rows, or the log, from being removed."""
    found = doctor.holders(case.conn, _HELD, now=case.now)
    if not found:
        hidden = doctor.database(case.conn).hidden_count
        unseen = f"; {counted(hidden, 'session')} of other roles not seen" if hidden else ""
        return [fine("snapshots", f"no transaction is older than {span(_HELD)}{unseen}")]
    return [
        warned(
            "snapshots",
            f"{row.kind} {row.name} ({row.holder}), {span(row.held_duration)} old, {_effect(row)}",
            _ending(row),
        )
        for row in found
    ]


def _effect(row: rows.DoctorHolder) -> str:
    if row.kind == "replication slot":
        return "keeps the log and may hold back vacuum"
    return "holds back vacuum and migrations"


def _ending(row: rows.DoctorHolder) -> str:
    if row.kind == "transaction":
        return f"end it, or: select pg_terminate_backend({row.name})"
    name = row.name.replace("'", "''")
    if row.kind == "prepared transaction":
        return f"commit prepared '{name}', or: rollback prepared '{name}'"
    return f"start its reader, or: select pg_drop_replication_slot('{name}')"


def _said(setting: rows.DoctorSetting) -> str:
    return f"{setting.name} is {setting.setting} ({setting.source})"


def _block_bytes(setting: rows.DoctorSetting) -> int:
    """Reads a unit such as 8kB."""
    return int((setting.unit or "8kB").removesuffix("kB")) * _KIBIBYTE


def _bytes(count: int) -> str:
    for unit in ("kB", "MB"):
        count //= _KIBIBYTE
        if count < 10 * _KIBIBYTE:
            return f"{count:,} {unit}"
    return f"{count // _KIBIBYTE:,} GB"
