"""What every call has in common: its namespace, and how its work reaches the database."""

import asyncio
import contextvars
import functools
import urllib.parse
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from tenure_service.dispatch.hub import Hub
from tenure_service.engine.access import Principal
from tenure_service.engine.errors import FieldInvalid, TenureError, shutting_down
from tenure_service.rpc import decoding, errors
from tenure_service.rpc.pacing import Recording
from tenure_service.usecase.catalogue import unknown_namespace

R = TypeVar("R")
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Any, Context], Awaitable[Any]]

#: Who makes the call that runs in this context; the guard sets it, and nothing has a default.
PRINCIPAL: contextvars.ContextVar[Principal] = contextvars.ContextVar("principal")

NAMESPACE_KEY = "tenure-namespace"
NAMESPACE_DEFAULT = "default"


class Calls:
    """What servicers need of a server: its dispatch, and threads for reads and operations."""

    def __init__(self, hub: Hub, threads: int) -> None:
        self.hub = hub
        #: By method: what clients may do as often as they like is recorded so often.
        self.recordings = {
            "CancelTasks": Recording("cancels"),
            "CancelRuns": Recording("cancels runs"),
            "ResumeRuns": Recording("resumes runs"),
            "ForkRun": Recording("forks runs"),
        }
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tenure-call")

    async def run(self, work: Callable[..., R], *args: object, **keywords: object) -> R:
        """Runs a use case on a store thread."""
        context = contextvars.copy_context()
        bound = functools.partial(context.run, work, *args, **keywords)
        return await asyncio.get_running_loop().run_in_executor(self._executor, bound)

    async def namespace_id(self, context: Context) -> int:
        """Gives the namespace of a call.

        Raises:
            TenureError: NOT_REGISTERED.
        """
        name = namespace(context)
        principal = PRINCIPAL.get()
        if principal.namespace_id is None:
            known = self.hub.catalogue.known_namespace_id(name)
            if known is not None:
                # No thread for what nearly every call asks.
                return known
            found: int = await self.run(self.hub.catalogue.namespace_id, name)
            return found
        if principal.namespace != name:
            # Not looked up: whether it exists is not told.
            raise unknown_namespace(name, of_key=True)
        return principal.namespace_id

    def close(self) -> None:
        """Ends the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def namespace(context: Context) -> str:
    """Reads the namespace of a call from its metadata."""
    for key, value in context.invocation_metadata() or ():
        if key == NAMESPACE_KEY:
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if not text:
                raise FieldInvalid([(NAMESPACE_KEY, "must not be empty")])
            return text
    return NAMESPACE_DEFAULT


def address(peer: str | None) -> str:
    """Gives the peer of a call as people write it: `[::1]:53154`, `10.0.0.7:53154`."""
    # gRPC writes a URI, in which the brackets of IPv6 are escaped.
    text = urllib.parse.unquote(peer or "")
    scheme, found, rest = text.partition(":")
    return rest if found and scheme in {"ipv4", "ipv6"} else text


def unary(handler: Handler) -> Handler:
    """Makes a unary handler answer with documented errors, whatever it raises."""

    @functools.wraps(handler)
    async def answered(
        self: Any,
        request: Any,
        context: Context,
    ) -> Any:
        try:
            return await handler(self, decoding.checked(request), context)
        except TenureError as exc:
            await errors.abort(context, exc)
        except asyncio.CancelledError:
            raise
        except RuntimeError as exc:
            # Executors refuse work once they are shut down: the last moments of a server.
            if "shutdown" in str(exc):
                await errors.abort(context, shutting_down())
            await errors.abort(context, errors.bug(exc))
        except Exception as exc:  # noqa: BLE001 - the caller gets an incident id
            await errors.abort(context, errors.bug(exc))

    return answered
