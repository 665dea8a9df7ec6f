"""The client of a server, for commands that ask one, and what its refusals mean to a command."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, TypeVar

from tenure_service.cli import exits, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from tenure import Client, Page
    from tenure.errors import ServiceError

T = TypeVar("T")
Outcome = TypeVar("Outcome")

_PROBE_SECONDS = 5.0
_PAGE_SIZE = 1_000
# Between two looks at the state of what is waited for.
_LOOK_SECONDS = 2.0


@contextlib.contextmanager
def client(values: argparse.Namespace) -> Iterator[Client]:
    """Yields a client of the server that the flags name, and translates what it raises.

    Raises:
        CommandFailed: nobody answers, or the server refused.
    """
    import tenure

    _show_warnings()
    try:
        made = tenure.Client(values.address, values.namespace)
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc
    _probe(made.target.address)
    try:
        yield made
    except tenure.ServiceError as exc:
        raise exits.CommandFailed(_told(exc, made.target.namespace), code(exc)) from exc
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc


def _told(error: ServiceError, namespace: str) -> str:
    """Gives the text of a refusal; where something was not found, with where it was looked for."""
    import tenure

    looked = isinstance(error, tenure.NotFound) and error.metadata.get("kind") != "namespace"
    return f"{error} (namespace {namespace!r})" if looked else str(error)


def code(error: ServiceError) -> int:
    """Gives the exit code of a refusal."""
    import tenure

    if isinstance(error, tenure.FieldInvalid | tenure.PayloadTooLarge):
        return exits.USAGE
    if isinstance(error, tenure.StateConflict | tenure.KeyTaken | tenure.RequestIdReused):
        return exits.CONFLICT
    return exits.FAILED


def collect(page: Callable[[int, str], Page[T]], limit: int) -> tuple[list[T], bool]:
    """Reads pages until there are `limit` items; `page` takes a size and a token.

    Returns:
        The items, and whether there are more.
    """
    items: list[T] = []
    token = ""
    while True:
        got = page(min(_PAGE_SIZE, limit - len(items)), token)
        items += got.items
        token = got.next_page_token
        if not token or len(items) >= limit:
            return items, bool(token)


def check_ids(ids: Sequence[str]) -> None:
    """Refuses what is no task id, before anything is done.

    Raises:
        CommandFailed: with all of them.
    """
    from tenure_service.engine import tokens

    _refuse([text for text in ids if tokens.task_id_parse(text) is None], "task")


def check_run_ids(ids: Sequence[str]) -> None:
    """Refuses what is no id of a run, before anything is done.

    Raises:
        CommandFailed: with all of them.
    """
    from tenure_service.engine import tokens

    _refuse([text for text in ids if not tokens.is_uuid(text)], "run")


def _refuse(wrong: Sequence[str], kind: str) -> None:
    if wrong:
        what = f"is no id of a {kind}" if len(wrong) == 1 else f"are no ids of {kind}s"
        raise exits.CommandFailed(f"{', '.join(map(repr, wrong))} {what}", exits.USAGE)


def settle(
    ids: Sequence[str], answers: Sequence[T | ServiceError], namespace: str
) -> tuple[list[T], int]:
    """Says which items of a batch were refused.

    Returns:
        The answers of the others, and the exit code of the worst refusal.
    """
    import tenure

    done: list[T] = []
    worst = exits.OK
    for task_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, tenure.ServiceError):
            named = "" if task_id in str(answer) else f"{task_id}: "
            show.note(f"tenure: {named}{_told(answer, namespace)}")
            worst = max(worst, code(answer))
        else:
            done.append(answer)
    return done, worst


def _probe(address: str) -> None:
    """Finds out at once that nobody listens: the client would try for half a minute."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    if "://" in host or not port.isdecimal():
        return  # TLS, or a form that only gRPC knows: the client finds out
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS):
            pass
    except (OSError, OverflowError) as exc:
        raise exits.CommandFailed(
            f"no server answers at {address} ({exc.__class__.__name__}: {exc}).\n"
            "Start one with `tenure dev`, or name it with --address or TENURE_ADDRESS."
        ) from exc


def _show_warnings() -> None:
    """Shows the SDK's warnings, such as that a server stopped answering, as remarks."""
    logging.basicConfig(format="tenure: %(message)s", level=logging.WARNING)


def until_over(
    name: str,
    seconds: float,
    ask: Callable[[float], Outcome | ServiceError | None],
    tell: Callable[[], str],
) -> Outcome | None:
    """Waits until something is over, and shows how it stands meanwhile; None when the time is.

    Args:
        name: What is waited for, for people.
        seconds: Time to wait.
        ask: Waits for so many seconds and gives how it was over; None: it is not.
        tell: Says how it stands.

    Raises:
        ServiceError: it cannot be told.
    """
    import tenure

    give_up_at = time.monotonic() + seconds
    with show.progress(f"waiting for {name}") as say:
        while True:
            left = max(0.0, give_up_at - time.monotonic())
            answer = ask(min(left, _LOOK_SECONDS))
            if isinstance(answer, tenure.ServiceError):
                raise answer
            if answer is not None or left <= _LOOK_SECONDS:
                return answer
            say(tell())
