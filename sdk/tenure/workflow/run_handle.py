"""Handles of runs: what starting gives, and the way to a result.

A handle is an id, or a key, with a way to read the answer; it owns nothing, and the run goes on
without it. Results are decoded where the caller runs, never on the I/O loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tenure import awaiter, check, errors, failure, methods, payload_codec, policy, runs, status
from tenure.handle import may_pass, warn_in_handler
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import run_pb2
from tenure.v1 import workflow_service_pb2 as workflows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tenure.connection import Connection
    from tenure.v1 import payload_pb2

R = TypeVar("R")
Record = TypeVar("Record", runs.RunSnapshot, runs.RunStep)


class RunHandle(Generic[R]):
    """RunHandle names one run and reads its result, typed as its function returns it."""

    __slots__ = ("_codec", "_connection", "_decode", "_id", "_key", "_outcome", "existing")

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        decode: Callable[[payload_pb2.Payload, str], R],
        *,
        key: str = "",
        existing: bool = False,
        codec: payload_codec.PayloadCodec | None = None,
    ) -> None:
        self._connection = connection
        self._id = run_id
        self._key = key
        self._decode = decode
        self._codec = codec
        self._outcome: awaiter.RunOutcome | None = None
        self.existing = existing
        """True if the run stood under its key before it was started this time."""

    def __repr__(self) -> str:
        return f"<RunHandle {self._id or f'key={self._key!r}'}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    @property
    def id(self) -> str:
        """Id of the run.

        Raises:
            UsageError: the handle was made of a key, and nobody has asked for its run so far.
        """
        if not self._id:
            raise errors.UsageError(
                f"the id of the run under the key {self._key!r} is not known before a call, such as"
                " status(), has looked it up"
            )
        return self._id

    def result(self, timeout: float | None = None) -> R:
        """Waits until the run is over and returns what its function returned.

        Args:
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            RunFailed: its function raised; `failure` says what.
            RunCancelled: it was cancelled.
            RunTimedOut: its own time limit ended it.
            ResultTimeout: it is not over within `timeout`; it goes on.
            ValueRefused, CodecFailed: the result is not what the annotation or the codec says.
            NotFound: the namespace has no such run.
            Unavailable: without a `timeout`, the server did not answer for 30 s.
            BlockingCallInLoop: inside a running event loop; use `aresult`.
        """
        refuse_in_loop("result", "aresult")
        check.wait(timeout)
        warn_in_handler()
        return self._read(io_thread.run(self._wait(timeout)))

    async def aresult(self, timeout: float | None = None) -> R:
        """Awaitable form of `result`; `await handle` is the same without a timeout."""
        check.wait(timeout)
        warn_in_handler()
        return self._read(await io_thread.arun(self._wait(timeout)))

    def wait(self, timeout: float | None = None) -> runs.RunState:
        """Waits until the run is over, in whatever way, and returns its state.

        Raises:
            ResultTimeout: it is not over within `timeout` seconds.
        """
        refuse_in_loop("wait", "await_")
        check.wait(timeout)
        warn_in_handler()
        return runs.state(_known(io_thread.run(self._wait(timeout))).state)

    async def await_(self, timeout: float | None = None) -> runs.RunState:
        """Awaitable form of `wait`; the underscore because `await` is a keyword."""
        check.wait(timeout)
        warn_in_handler()
        return runs.state(_known(await io_thread.arun(self._wait(timeout))).state)

    def status(self, *, payloads: bool = False) -> runs.RunSnapshot:
        """Reads where the run stands now; with input and output if `payloads`.

        Raises:
            NotFound: the namespace has no such run.
            Unavailable: the server did not answer for 30 s.
        """
        refuse_in_loop("status", "astatus")
        return self._plain(io_thread.run(self._ask(payloads=payloads)))

    async def astatus(self, *, payloads: bool = False) -> runs.RunSnapshot:
        """Awaitable form of `status`."""
        return self._plain(await io_thread.arun(self._ask(payloads=payloads)))

    def steps(self) -> list[runs.RunStep]:
        """Lists what is recorded of the run, in the order in which it was recorded.

        Raises:
            NotFound: the namespace has no such run.
            Unavailable: the server did not answer for 30 s.
        """
        refuse_in_loop("steps", "asteps")
        return [self._plain(each) for each in io_thread.run(self._list_steps())]

    async def asteps(self) -> list[runs.RunStep]:
        """Awaitable form of `steps`."""
        return [self._plain(each) for each in await io_thread.arun(self._list_steps())]

    def cancel(self, reason: str = "", *, grace: policy.Seconds | None = None) -> runs.RunState:
        """Asks for the end of the run; its function gets `grace` (30 s) to end.

        Args:
            reason: For people, and for the function.
            grace: Seconds or a timedelta, up to a day.

        Returns:
            The state after the call; a run that was over stays as it is.

        Raises:
            NotFound: the namespace has no such run.
            Unavailable: the server did not answer for 30 s.
        """
        refuse_in_loop("cancel", "acancel")
        return io_thread.run(self._cancel(reason, grace))

    async def acancel(
        self, reason: str = "", *, grace: policy.Seconds | None = None
    ) -> runs.RunState:
        """Awaitable form of `cancel`."""
        return await io_thread.arun(self._cancel(reason, grace))

    # On the I/O loop.

    async def _run_id(self) -> str:
        return self._id or (await self._ask()).id

    async def _wait(self, timeout: float | None) -> awaiter.RunOutcome:
        if self._outcome is not None:
            return self._outcome
        try:
            if timeout is not None and timeout <= 0:
                run_id = await self._run_id()
                outcomes = await awaiter.fetch_runs(self._connection, [run_id], 0)
                if run_id not in outcomes:
                    raise TimeoutError  # noqa: TRY301 - one place says it in words
                outcome = outcomes[run_id]
            else:
                async with asyncio.timeout(timeout):
                    outcome = await self._told(goes_on=timeout is not None)
        except TimeoutError:
            raise errors.ResultTimeout(
                f"run {self._id or f'under key {self._key!r}'} is not over after {timeout} s;"
                " it goes on"
            ) from None
        self._outcome = outcome
        return outcome

    async def _told(self, *, goes_on: bool) -> awaiter.RunOutcome:
        """Waits until the run is over; through outages of any length if it `goes_on`."""
        while True:
            try:
                return await self._connection.run_awaiter.outcome(await self._run_id())
            except errors.ServiceError as error:
                if not goes_on or not may_pass(error):
                    raise

    async def _ask(self, *, payloads: bool = False) -> runs.RunSnapshot:
        request = workflows.GetRunRequest(
            run_id=self._id, key="" if self._id else self._key, include_payloads=payloads
        )
        response = await self._connection.call(methods.GET_RUN, request)
        self._id = response.run.run_id
        return runs.run(response.run)

    async def _list_steps(self) -> list[runs.RunStep]:
        request = workflows.ListRunStepsRequest(run_id=await self._run_id())
        found: list[runs.RunStep] = []
        while True:
            page = await self._connection.call(methods.LIST_RUN_STEPS, request)
            found += map(runs.step, page.steps)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def _cancel(self, reason: str, grace: policy.Seconds | None) -> runs.RunState:
        request = workflows.CancelRunsRequest(run_ids=[await self._run_id()], reason=reason)
        if grace is not None:
            request.grace_duration.CopyFrom(policy.duration(grace, "grace"))
        (answer,) = (await self._connection.call(methods.CANCEL_RUNS, request)).results
        if answer.HasField("error"):
            raise status.from_status(answer.error)
        return runs.state(answer.state)

    # Where the caller runs.

    def _plain(self, record: Record) -> Record:
        if self._codec is None:
            return record
        changes: dict[str, Any] = {}
        for field in ("input", "output"):
            payload = getattr(record, field, None)
            if payload is not None:
                where = f"{field} of run {self._id}"
                changes[field] = payload_codec.decode(payload, where, self._codec)
        return dataclasses.replace(record, **changes)

    def _read(self, outcome: awaiter.RunOutcome) -> R:
        result = _known(outcome)
        if result.state == run_pb2.RUN_STATE_COMPLETED:
            return self._decode(result.output, f"result of run {self._id}")
        raise not_completed(
            self._id,
            result.state,
            failure.from_proto(result.failure) if result.HasField("failure") else None,
        )


def not_completed(
    run_id: str, state: run_pb2.RunState.ValueType, cause: failure.Failure | None
) -> errors.RunNotCompleted:
    """Returns the error that says how a run was over that has no output."""
    if state == run_pb2.RUN_STATE_CANCELLED:
        return errors.RunCancelled(f"run {run_id} was cancelled", run_id=run_id, failure=cause)
    if state == run_pb2.RUN_STATE_TIMED_OUT:
        return errors.RunTimedOut(f"run {run_id} ran out of time", run_id=run_id, failure=cause)
    return errors.RunFailed(run_id=run_id, failure=cause or failure.Failure(type="Unknown"))


def _known(outcome: awaiter.RunOutcome) -> run_pb2.RunResult:
    if isinstance(outcome, errors.ServiceError):
        raise outcome
    return outcome
