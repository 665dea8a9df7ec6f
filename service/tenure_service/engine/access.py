"""Who a caller is, and what that caller may do."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure_service.engine.errors import Reason, TenureError


class Scope(StrEnum):
    """What a key may be used for."""

    WORKER = "worker"
    CLIENT = "client"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a caller is.

    Attributes:
        key_id: The key that was sent; None where no keys are asked for.
        actor: How the record of what operators do names the caller.
        namespace_id: The only namespace that it may name; None for every one.
        queue_globs: Queues that it may use; none are all.
    """

    key_id: str | None
    actor: str
    namespace_id: int | None
    namespace: str | None
    scopes: frozenset[Scope]
    queue_globs: tuple[str, ...] = ()

    @property
    def restricted(self) -> bool:
        """True if it may not use every queue."""
        return bool(self.queue_globs) and "*" not in self.queue_globs

    def may_use(self, queue: str) -> bool:
        """Says whether it may use a queue."""
        return not self.restricted or any(
            _pattern(glob).fullmatch(queue) for glob in self.queue_globs
        )

    def check_queue(self, queue: str) -> None:
        """Lets it use a queue.

        Raises:
            TenureError: SCOPE_MISSING.
        """
        if not self.may_use(queue):
            named = f"the queue {queue!r}" if queue else "all queues at once: name one"
            raise scope_missing(f"queue {queue}".strip(), f"this key may not use {named}")

    def check_every_queue(self, what: str) -> None:
        """Lets it do what is not of one queue; `what` names that.

        Raises:
            TenureError: SCOPE_MISSING.
        """
        if self.restricted:
            raise scope_missing(
                "every queue",
                f"this key is for some queues ({', '.join(self.queue_globs)}), and {what} concern"
                " every one",
            )

    def check_scope(self, scope: Scope) -> None:
        """Lets it do what needs a scope.

        Raises:
            TenureError: SCOPE_MISSING.
        """
        if scope not in self.scopes:
            raise scope_missing(scope, f"this key lacks the scope {scope}")

    def check_grant(
        self, *, every_namespace: bool, scopes: Iterable[Scope], queue_globs: Iterable[str]
    ) -> None:
        """Lets it make a key, which may do no more than itself.

        Raises:
            TenureError: SCOPE_MISSING.
        """
        if every_namespace and self.namespace_id is not None:
            raise scope_missing("every namespace", "a key of one namespace makes its likes only")
        for scope in scopes:
            self.check_scope(scope)
        globs = tuple(queue_globs)
        if self.restricted and (not globs or not set(globs) <= set(self.queue_globs)):
            raise scope_missing("queues", f"this key may use {', '.join(self.queue_globs)} only")


#: Whoever calls where no keys are asked for.
ANYBODY: Final = Principal(
    key_id=None,
    actor="anonymous",
    namespace_id=None,
    namespace=None,
    scopes=frozenset(Scope),
)


def scope_missing(scope: str, text: str) -> TenureError:
    """Says that a caller may not do this."""
    return TenureError(Reason.SCOPE_MISSING, text, metadata={"scope": scope})


@functools.lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(letter, re.escape(letter)) for letter in glob), re.DOTALL)
