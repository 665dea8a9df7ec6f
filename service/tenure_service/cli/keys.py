"""`tenure key` and `tenure audit`: who may call, and what operators did."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
from typing import TYPE_CHECKING, Any

from tenure_service.cli import direct, exits, remote, server, show

if TYPE_CHECKING:
    import argparse

    from tenure import ApiKey
    from tenure_service.store import rows
    from tenure_service.store.database import Database

_NAMESPACE_DEFAULT = "default"


def create(values: argparse.Namespace) -> int:
    """Makes a key, and shows its secret this once."""
    if values.every_namespace and values.namespace is not None:
        raise exits.CommandFailed(
            "--namespace and --every-namespace exclude each other", exits.USAGE
        )
    lifetime = None if values.expires is None else datetime.timedelta(seconds=values.expires)
    if values.database is not None:
        key, secret = _create_in_database(values, lifetime)
    else:
        with remote.client(values) as client:
            made = client.create_api_key(
                values.name,
                values.scopes,
                queues=values.queues,
                every_namespace=values.every_namespace,
                lifetime=lifetime,
            )
        key, secret = _shown(made.key), made.secret
    if values.json:
        show.document({"key": key, "secret": secret})
        return exits.OK
    _print([key])
    show.note(
        "\nThe secret is shown this once. Callers send it as TENURE_API_KEY, or as\n"
        "`authorization: Bearer SECRET`:"
    )
    print(secret)
    return exits.OK


def list_(values: argparse.Namespace) -> int:
    """Lists keys."""
    if values.database is not None:
        with server.reported(), direct.opened(values, "tenure key") as database:
            from tenure_service.engine.access import ANYBODY
            from tenure_service.usecase.access import Keys

            known = Keys(database, required=True)
            found = known.list_(ANYBODY, include_ended=values.all)
            counts = known.worker_counts()
        keys = [_row(row, counts.get(row.key_id, 0)) for row in found]
    else:
        with remote.client(values) as client:
            keys = [_shown(key) for key in client.list_api_keys(include_ended=values.all)]
    if values.json:
        show.document(keys)
    else:
        _print(keys)
    return exits.OK


def revoke(values: argparse.Namespace) -> int:
    """Ends a key."""
    if values.database is not None:
        with server.reported(), direct.opened(values, "tenure key") as database:
            from tenure_service.engine.access import ANYBODY
            from tenure_service.usecase import access

            keys = access.Keys(database, required=True)
            key = _row(keys.revoke(ANYBODY, values.key_id))
            _record(database, "RevokeApiKey", None, {"key_id": values.key_id})
    else:
        with remote.client(values) as client:
            key = _shown(client.revoke_api_key(values.key_id))
    if values.json:
        show.document(key)
    else:
        print(f"{key['name']} ({key['id']}) is revoked since {show.instant(key['revoked_at'])}")
    return exits.OK


def audit(values: argparse.Namespace) -> int:
    """Lists what operators did, newest first."""
    _check_operation(values.operation)
    if values.since is not None and values.until is not None and values.since >= values.until:
        raise exits.CommandFailed(
            f"--since {show.instant(values.since)} is not before --until"
            f" {show.instant(values.until)}",
            exits.USAGE,
        )
    # Who asks for one operation, or for refusals, wants those of reads as well.
    changes_only = not (values.all or values.refused or values.operation)
    with remote.client(values) as client:
        events, more = remote.collect(
            lambda size, token: client.list_audit_events(
                actor=values.principal,
                action=values.operation,
                since=values.since,
                until=values.until,
                refused_only=values.refused,
                changes_only=changes_only,
                page_size=size,
                page_token=token,
            ),
            values.limit,
        )
    if values.json:
        show.document({"events": events, "more": more})
        return exits.OK
    show.table(
        ["at", "actor", "action", "namespace", "outcome", "from", "request"],
        [
            (
                show.instant(event.at),
                event.actor,
                event.action,
                event.namespace,
                event.outcome,
                event.peer,
                event.request,
            )
            for event in events
        ],
        empty="nothing was found" + ("; --all also lists what only reads" if changes_only else ""),
    )
    if more:
        show.note(f"these are the newest {len(events)}; --limit shows more")
    return exits.OK


def _check_operation(name: str) -> None:
    """Refuses a name that is in no record: nothing found would look like nothing done."""
    from tenure_service.rpc import guard

    known = sorted(guard.RECORDED)
    if not name or name in known:
        return
    folded = {each.lower(): each for each in known}
    close = [folded[each] for each in difflib.get_close_matches(name.lower(), folded)]
    raise exits.CommandFailed(
        f"there is no operation {name!r}; "
        + (f"is it {' or '.join(close)}?" if close else f"there are {', '.join(known)}"),
        exits.USAGE,
    )


def _create_in_database(
    values: argparse.Namespace, lifetime: datetime.timedelta | None
) -> tuple[dict[str, Any], str]:
    with server.reported(), direct.opened(values, "tenure key") as database:
        from tenure_service.engine.access import ANYBODY, Scope
        from tenure_service.usecase import access
        from tenure_service.usecase.catalogue import Catalogue

        name = None if values.every_namespace else values.namespace or _NAMESPACE_DEFAULT
        namespace_id = None if name is None else Catalogue(database).namespace_id(name)
        row, secret = access.Keys(database, required=True).create(
            dataclasses.replace(ANYBODY, actor=f"database:{direct.operator()}"),
            namespace_id=namespace_id,
            name=values.name,
            scopes=[Scope(scope) for scope in values.scopes],
            queue_globs=values.queues,
            lifetime=lifetime,
        )
        asked = {"name": values.name, "scopes": values.scopes, "queue_globs": values.queues}
        _record(database, "CreateApiKey", name, asked, access.key_made(row.key_id))
    return _row(row), secret


def _record(
    database: Database,
    action: str,
    namespace: str | None,
    asked: dict[str, Any],
    outcome: str = "OK",
) -> None:
    """Writes down what was done without a server."""
    from tenure_service.usecase import access

    deed = access.Deed(
        namespace=namespace,
        actor=f"database:{direct.operator()}",
        action=action,
        request=json.dumps(asked, ensure_ascii=False),
        outcome=outcome,
        peer="",
    )
    access.Keys(database, required=True).record(deed)


def _shown(key: ApiKey) -> dict[str, Any]:
    return {field.name: getattr(key, field.name) for field in dataclasses.fields(key)}


def _row(row: rows.ApiKeyRow, worker_count: int = 0) -> dict[str, Any]:
    return {
        "id": row.key_id,
        "name": row.name,
        "namespace": row.namespace or "",
        "scopes": row.scopes,
        "queues": row.queue_globs,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "used_at": row.used_at,
        "worker_count": worker_count,
        "created_by": row.created_by or "",
    }


def _print(keys: list[dict[str, Any]]) -> None:
    show.table(
        [
            *("id", "name", "namespace", "scopes", "queues"),
            *("created", "expires", "revoked", "used", "workers", "made by"),
        ],
        [
            (
                key["id"],
                key["name"],
                key["namespace"] or "(every one)",
                " ".join(key["scopes"]),
                " ".join(key["queues"]),
                show.instant(key["created_at"]),
                show.instant(key["expires_at"]),
                show.instant(key["revoked_at"]),
                show.instant(key["used_at"]),
                key["worker_count"],
                key["created_by"],
            )
            for key in keys
        ],
        empty="there are no keys; make the first with `tenure key create` and --database",
    )
