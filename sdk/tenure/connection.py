"""Unary calls to one namespace of one server, with retries inside a bounded time.

Everything here runs on the I/O loop. A call is repeated after UNAVAILABLE, after RESOURCE_EXHAUSTED
with RetryInfo, and after CONTENTION: every RPC of the protocol is safe to repeat, those that write
because of their request_id. Pauses grow, are jittered, and are never shorter than the server asks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from tenure import diagnosis, errors, status
from tenure.awaiter import Awaiter, RunAwaiter
from tenure.enqueuer import Enqueuer, Starter
from tenure.io_thread import io_thread

if TYPE_CHECKING:
    from tenure.channel import Target
    from tenure.methods import Method

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_log = logging.getLogger("tenure.client")
# Of our own: a program that seeds the shared one must not make its clients retry in step.
_jitter = random.Random()  # noqa: S311 - nothing secret

# Time within which a call must have succeeded, tries and pauses together.
TOTAL_SECONDS = 30.0
# Time for one try. A call that hangs longer is more likely on a dead connection than slow.
TRY_SECONDS = 12.0
PAUSE_SECONDS_FIRST = 0.05
# A call that was broken off after so long had been taken by a server.
STOOD_SECONDS = 1.0
# Time without another warning that nobody answers.
QUIET_SECONDS = 10.0
PAUSE_SECONDS_MAX = 3.0
# Failures in a row after which the channel is replaced.
FAILURES_BEFORE_NEW_CHANNEL = 3
# Statuses that no Tenure server answers without a reason.
_FOREIGN = frozenset({"UNIMPLEMENTED", "UNKNOWN", "INTERNAL", "NOT_FOUND", "FAILED_PRECONDITION"})
START_HINT = "start a server with `tenure dev`, or set TENURE_ADDRESS"
KEY_HINT = "pass api_key=..., or set TENURE_API_KEY"


class Connection:
    """Connection makes calls to one target; it connects at the first one."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.enqueuer = Enqueuer(self)
        self.starter = Starter(self)
        self.awaiter = Awaiter(self)
        self.run_awaiter = RunAwaiter(self)
        self._channel: grpc.aio.Channel | None = None
        self._callables: dict[str, grpc.aio.UnaryUnaryMultiCallable[Any, Any]] = {}
        self._failure_count = 0
        self._quiet_until = 0.0

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        extra_seconds: float = 0.0,
        total_seconds: float = TOTAL_SECONDS,
    ) -> Response:
        """Calls and retries.

        Args:
            method: What to call.
            request: Sent unchanged at each try.
            extra_seconds: Time the server was asked to hold its answer back.
            total_seconds: Bound for tries and pauses, `extra_seconds` apart. It counts anew where
                a call stood for a while before its connection broke.

        Raises:
            ServiceError: the answer of the last try, as the class of its reason.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + total_seconds
        pause = PAUSE_SECONDS_FIRST
        looked = False
        told: errors.ServiceError | None = None
        while True:
            began_at = loop.time()
            seconds = min(give_up_at - began_at, TRY_SECONDS) + extra_seconds
            try:
                return await self._try(method, request, seconds)
            except errors.ServiceError as error:
                unreachable = error.status == "UNAVAILABLE" and not error.reason
                if extra_seconds and unreachable and loop.time() - began_at > STOOD_SECONDS:
                    give_up_at = loop.time() + total_seconds
                if unreachable and not looked:
                    # Before anything is repeated: no time cures these.
                    looked = True
                    if (cause := await diagnosis.mismatch(self.target)) is not None:
                        raise _mismatch(cause, self.target.address) from error
                    self._warn(error, total_seconds)
                wait = max(pause * _jitter.uniform(0.5, 1.0), error.retry_after or 0.0)
                if not _may_retry(error) or loop.time() + wait >= give_up_at:
                    if told is not None and error.status == "DEADLINE_EXCEEDED":
                        # Why it could not answer is more than that it did not.
                        error.args = (
                            f"{str(told).rstrip('.')}. At the last try it did not answer in time.",
                        )
                    raise
                if error.reason:
                    told = error
            await asyncio.sleep(wait)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _warn(self, error: errors.ServiceError, total_seconds: float) -> None:
        """Says that nobody answers: once for all calls that meet the same outage."""
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            _log.warning("%s Trying for %.0f s.", error, total_seconds)
        self._quiet_until = max(self._quiet_until, now + QUIET_SECONDS)

    async def close(self) -> None:
        """Closes the channel; the next call opens another."""
        channel, self._channel = self._channel, None
        self._callables.clear()
        if channel is not None:
            await channel.close()

    async def _try(
        self, method: Method[Request, Response], request: Request, seconds: float
    ) -> Response:
        channel = self._channel
        if channel is None:
            channel = self._channel = self.target.open_channel()
        function = self._callables.get(method.path)
        if function is None:
            function = self._callables[method.path] = channel.unary_unary(
                method.path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=method.read,
            )
        try:
            response: Response = await function(
                request, timeout=max(seconds, 0.001), metadata=self.target.metadata
            )
        except grpc.aio.AioRpcError as exc:
            error = status.from_rpc(exc)
            await self._failed(channel, error)
            raise self._explained(error) from exc
        except asyncio.CancelledError as exc:
            # gRPC raises it for a status CANCELLED of the peer as well; only a cancellation of
            # this task is one.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = errors.Unavailable("the server cancelled the call", status="CANCELLED")
            await self._failed(channel, error)
            raise self._explained(error) from exc
        except grpc.aio.UsageError as exc:
            # The channel was closed under this call by another one that failed.
            raise errors.Unavailable("the channel was replaced", status="UNAVAILABLE") from exc
        self._failure_count = 0
        return response

    async def _failed(self, channel: grpc.aio.Channel, error: errors.ServiceError) -> None:
        if error.reason or not isinstance(error, errors.Unavailable):
            self._failure_count = 0
            return
        self._failure_count += 1
        if self._failure_count >= FAILURES_BEFORE_NEW_CHANNEL and self._channel is channel:
            self._failure_count = 0
            await self.close()

    def _explained(self, error: errors.ServiceError) -> errors.ServiceError:
        """Adds the address, and the way out, to an error that no Tenure server sent."""
        address = self.target.address
        if isinstance(error, errors.Unauthenticated) and not self.target.api_key:
            # The server speaks of the header, which no program writes by hand.
            error.args = (f"the server at {address}: no key was sent; {KEY_HINT}",)
            return error
        if not isinstance(error, errors.Unavailable):
            if not error.reason and error.status in _FOREIGN:
                error.args = (f"{error}; {foreign_hint(address)}",)
            return error
        if error.status == "DEADLINE_EXCEEDED":
            text = f"The server at {address} did not answer in time."
        elif error.reason:
            text = f"The server at {address}: {error}"
        else:
            text = f"No Tenure server answers at {address} ({error}); {START_HINT}."
        explained = errors.Unavailable(
            text,
            reason=error.reason,
            status=error.status,
            metadata=error.metadata,
            retry_after=error.retry_after,
        )
        explained.address = address
        return explained


def foreign_hint(address: str) -> str:
    """Says what an answer without a reason means."""
    return f"what answers at {address} is no Tenure server of this version, or a proxy before it"


def _mismatch(cause: str, address: str) -> errors.TransportMismatch:
    error = errors.TransportMismatch(cause, status="UNAVAILABLE")
    error.address = address
    return error


def _may_retry(error: errors.ServiceError) -> bool:
    if isinstance(error, errors.TransportMismatch):
        return False
    if isinstance(error, errors.Unavailable | errors.Contention):
        return True
    return isinstance(error, errors.Overloaded) and error.retry_after is not None


_connections: dict[Target, Connection] = {}
_lock = threading.Lock()


def connect(target: Target) -> Connection:
    """Returns the process's connection to a target; nothing is sent yet.

    Raises:
        UsedAfterFork: this process was forked after its parent had connected.
        WrongValue: a file that `tls` names is missing or holds something else.
    """
    _ = io_thread.loop
    with _lock:
        if target not in _connections:
            if target.tls is not None:
                # A call would meet it as well, on the I/O loop and for all that share the call.
                target.tls.context()
            connection = _connections[target] = Connection(target)
            io_thread.at_exit(connection.close)
        return _connections[target]
