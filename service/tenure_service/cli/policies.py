"""`tenure policy`: what operators say of retries and timeouts, over what code declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits, remote, show

if TYPE_CHECKING:
    import argparse

    from tenure import Policy, TaskDefinition

_COUNT_MAX: Final = 10_000
_LIMITS: Final = ("schedule_to_start", "start_to_close", "heartbeat", "total")


def list_(values: argparse.Namespace) -> int:
    """Lists what is known of task names."""
    with remote.client(values) as client:
        found, _ = remote.collect(
            lambda size, token: client.list_task_definitions(page_size=size, page_token=token),
            _COUNT_MAX,
        )
    if values.json:
        show.document(found)
        return exits.OK
    show.table(
        ["task", "in force", "declared", "override", "version", "changed"],
        [
            (
                each.name,
                _text(each.effective),
                _text(each.declared),
                _text(each.override),
                each.app_version,
                show.instant(each.updated_at),
            )
            for each in found
        ],
        empty="nothing is known of any task name: no worker has registered one",
    )
    return exits.OK


def set_(values: argparse.Namespace) -> int:
    """Says what holds for tasks of a name that are enqueued from now on."""
    policy = given(values)
    if policy is None:
        raise exits.CommandFailed(
            "nothing to set: give a limit, or `tenure policy clear` to clear the override",
            exits.USAGE,
        )
    return _store(values, policy)


def given(values: argparse.Namespace) -> Policy | None:
    """Reads the flags of `flags.policy`; None where none is given.

    Raises:
        CommandFailed: a value is out of its bounds.
    """
    import tenure

    limits = {name: getattr(values, name) for name in _LIMITS if getattr(values, name) is not None}
    retry = (values.max_attempts, values.initial_delay, values.max_delay)
    if not limits and retry == (None, None, None):
        return None
    try:
        return tenure.Policy(
            retry=None
            if retry == (None, None, None)
            else tenure.Retry(
                values.max_attempts, initial_delay=values.initial_delay, max_delay=values.max_delay
            ),
            timeouts=tenure.Timeouts(**limits) if limits else None,
        )
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc


def clear(values: argparse.Namespace) -> int:
    """Clears what was said: what code declares holds again."""
    return _store(values, None)


def _store(values: argparse.Namespace, policy: Policy | None) -> int:
    with remote.client(values) as client:
        stored: TaskDefinition = client.set_task_definition(values.name, policy)
    if values.json:
        show.document(stored)
    else:
        show.facts(
            [
                ("task", stored.name),
                ("in force", _text(stored.effective)),
                ("declared", _text(stored.declared)),
                ("override", _text(stored.override)),
            ]
        )
    if policy is not None and not stored.registered:
        show.note(f"no worker has registered a task named {stored.name!r} yet: is it spelt right?")
    return exits.OK


def _text(policy: Policy | None) -> str:
    if policy is None:
        return "-"
    words = []
    if policy.retry is not None:
        for name, unit in (("max_attempts", ""), ("initial_delay", " s"), ("max_delay", " s")):
            value = getattr(policy.retry, name)
            if value is not None:
                words.append(f"{name} {_number(value)}{unit}")
        unless = [str(getattr(entry, "__name__", entry)) for entry in policy.retry.unless]
        if unless:
            words.append(f"unless {' '.join(unless)}")
    if policy.timeouts is not None:
        for name in _LIMITS:
            limit = getattr(policy.timeouts, name)
            if limit is not None:
                then = getattr(limit, "then", "retry")
                words.append(f"{name} {_number(getattr(limit, 'after', limit))} s ({then})")
    return ", ".join(words) or "-"


def _number(value: object) -> str:
    seconds = getattr(value, "total_seconds", None)
    number = seconds() if seconds is not None else value
    return f"{number:g}" if isinstance(number, float) else str(number)
