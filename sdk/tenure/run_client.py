"""What clients can do with runs, by the names of their workflows: the halves of both clients.

Each method of `RunCalls` is the blocking form of the one of `AsyncRunCalls` with the same name and
signature (a test compares them); arguments, answers and errors are described there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from tenure import (
    awaiter,
    connection,
    errors,
    methods,
    payload_codec,
    policy,
    records,
    runs,
    status,
    tracing,
)
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import workflow_service_pb2 as workflows

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from tenure.channel import Target
    from tenure.methods import Method
    from tenure.v1 import run_pb2

T = TypeVar("T")
Record = TypeVar("Record")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_log = logging.getLogger("tenure.client")

# The longest wait of one call; longer ones are several calls.
WAIT_SECONDS_MAX = 60.0


class AsyncRunCalls:
    """AsyncRunCalls is the half of `AsyncClient` that starts runs and looks after them."""

    target: Target
    _codec: payload_codec.PayloadCodec | None

    async def start(self, new_run: runs.NewRun) -> runs.StartedRun:
        """Starts one run by the name of its workflow; concurrent calls share commits.

        Raises:
            KeyTaken: another name or input stands under the key.
            ValueRefused: JSON cannot carry an argument.
        """
        with tracing.enqueueing(new_run.name, new_run.queue, verb="start") as span:
            (run,) = await self._written_runs([new_run])
            stored = await self._on_loop(connection.connect(self.target).starter.start(run))
            tracing.enqueued(span, stored.run_id)
        return runs.StartedRun(id=stored.run_id, existing=stored.existing)

    async def start_many(
        self, new_runs: Sequence[runs.NewRun]
    ) -> list[runs.StartedRun | errors.ServiceError]:
        """Starts 1 to 1,000 runs in one call and answers each, in order."""
        name, queue = (new_runs[0].name, new_runs[0].queue) if new_runs else ("", "")
        with tracing.enqueueing(name, queue, len(new_runs), verb="start"):
            batch = await self._written_runs(new_runs)
            answers = await self._on_loop(
                connection.connect(self.target).starter.start_batch(batch)
            )
        return [
            answer
            if isinstance(answer, errors.ServiceError)
            else runs.StartedRun(id=answer.run_id, existing=answer.existing)
            for answer in answers
        ]

    async def get_run(
        self, run_id: str = "", *, key: str = "", payloads: bool = False
    ) -> runs.RunSnapshot:
        """Reads a run by its id, or by the key it was started with.

        Raises:
            NotFound: no such run in the namespace.
            FieldInvalid: neither or both are given.
        """
        request = workflows.GetRunRequest(run_id=run_id, key=key, include_payloads=payloads)
        response = await self._call(methods.GET_RUN, request)
        return await self._plain(runs.run(response.run))

    async def await_runs(
        self, run_ids: Sequence[str], timeout: float = 0.0
    ) -> dict[str, runs.RunOutcome | errors.ServiceError]:
        """Waits until at least one of 1 to 10,000 runs is over, for `timeout` seconds.

        Returns:
            All that are over or unknown by then, by id; empty if none is.
        """
        link = connection.connect(self.target)
        seconds = min(timeout, WAIT_SECONDS_MAX)
        outcomes = await self._on_loop(awaiter.fetch_runs(link, run_ids, seconds))
        if not outcomes and timeout > seconds:
            return await self.await_runs(run_ids, timeout - seconds)
        return {
            run_id: outcome
            if isinstance(outcome, errors.ServiceError)
            else await self._plain(runs.outcome(outcome))
            for run_id, outcome in outcomes.items()
        }

    async def list_runs(
        self,
        states: Iterable[runs.RunState] = (),
        *,
        name: str = "",
        attributes: Mapping[str, str] | None = None,
        parent_run_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[runs.RunSnapshot]:
        """Lists runs, newest first; 100 a page unless said otherwise.

        Args:
            states: Only these; none: all.
            name: Only of this workflow.
            attributes: Only with all of these.
            parent_run_id: Only those that this run started.
            page_size: Entries wanted at most; 0: 100.
            page_token: Token of the previous page.
        """
        request = workflows.ListRunsRequest(
            states=runs.state_numbers(states),
            name=name,
            attributes=attributes,
            parent_run_id=parent_run_id,
            page_size=page_size,
            page_token=page_token,
        )
        response = await self._call(methods.LIST_RUNS, request)
        return records.Page([runs.run(each) for each in response.runs], response.next_page_token)

    async def list_run_steps(
        self, run_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[runs.RunStep]:
        """Lists what is recorded of a run, in the order of recording.

        Raises:
            NotFound: no such run in the namespace.
        """
        request = workflows.ListRunStepsRequest(
            run_id=run_id, page_size=page_size, page_token=page_token
        )
        response = await self._call(methods.LIST_RUN_STEPS, request)
        return records.Page(
            [await self._plain(runs.step(each)) for each in response.steps],
            response.next_page_token,
        )

    async def cancel_runs(
        self,
        run_ids: Sequence[str],
        *,
        reason: str = "",
        grace: policy.Seconds | None = None,
    ) -> list[runs.RunState | errors.ServiceError]:
        """Asks for the end of 1 to 1,000 runs; their functions get `grace` (30 s) to end.

        Returns:
            The state after the call, or why nothing was done, for each in order.
        """
        request = workflows.CancelRunsRequest(run_ids=run_ids, reason=reason)
        if grace is not None:
            request.grace_duration.CopyFrom(policy.duration(grace, "grace"))
        return _states((await self._call(methods.CANCEL_RUNS, request)).results)

    async def resume_runs(
        self, run_ids: Sequence[str]
    ) -> list[runs.RunState | errors.ServiceError]:
        """Lets 1 to 1,000 BLOCKED runs go on.

        Returns:
            The state after the call, or why nothing was done, for each in order.
        """
        request = workflows.ResumeRunsRequest(run_ids=run_ids)
        return _states((await self._call(methods.RESUME_RUNS, request)).results)

    async def fork_run(self, run_id: str, *, before_step_id: str = "") -> str:
        """Starts a new run with the steps of another one; returns its id.

        Args:
            run_id: Run whose steps are taken; it is not touched.
            before_step_id: Step from which on the new run runs itself; empty: from the start.

        Raises:
            NotFound: no such run, or no such step of it.
        """
        request = workflows.ForkRunRequest(
            request_id=str(uuid.uuid4()), run_id=run_id, before_step_id=before_step_id
        )
        return (await self._call(methods.FORK_RUN, request)).run_id

    async def _written_runs(self, new_runs: Sequence[runs.NewRun]) -> list[run_pb2.NewRun]:
        if self._codec is None:
            written = [runs.new_run(each) for each in new_runs]
        else:
            # The program's code, which may block, and this may be the I/O loop.
            written = await asyncio.to_thread(
                lambda: [runs.new_run(each, self._codec) for each in new_runs]
            )
        own = tracing.traceparent()
        for run in written if own else ():
            # What the program says of the run goes before what runs around the call.
            run.traceparent = run.traceparent or own
        return written

    async def _plain(self, record: Record) -> Record:
        """Decodes the payloads of a record; what cannot be decoded stays as it travelled."""
        hook = self._codec
        if hook is None:
            return record
        changes: dict[str, Any] = {}
        for field in ("input", "output", "details"):
            payload = getattr(record, field, None)
            if payload is not None:
                try:
                    changes[field] = await asyncio.to_thread(
                        payload_codec.decode, payload, f"{field} of a task or run", hook
                    )
                except errors.CodecFailed as exc:
                    _log.warning("%s; it is given as it travelled", exc)
        changed: Any = record
        made: Record = dataclasses.replace(changed, **changes)
        return made

    async def _call(self, method: Method[Request, Response], request: Request) -> Response:
        return await self._on_loop(connection.connect(self.target).call(method, request))

    @staticmethod
    async def _on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
        # The blocking client runs these methods on the I/O loop itself.
        if asyncio.get_running_loop() is io_thread.loop:
            return await coroutine
        return await io_thread.arun(coroutine)


class RunCalls:
    """RunCalls is the half of `Client` that starts runs and looks after them."""

    @property
    def _runs(self) -> AsyncRunCalls:
        raise NotImplementedError

    def start(self, new_run: runs.NewRun) -> runs.StartedRun:
        """Starts one run by the name of its workflow; concurrent calls share commits."""
        return blocking("start", self._runs.start(new_run))

    def start_many(
        self, new_runs: Sequence[runs.NewRun]
    ) -> list[runs.StartedRun | errors.ServiceError]:
        """Starts 1 to 1,000 runs in one call and answers each, in order."""
        return blocking("start_many", self._runs.start_many(new_runs))

    def get_run(
        self, run_id: str = "", *, key: str = "", payloads: bool = False
    ) -> runs.RunSnapshot:
        """Reads a run by its id, or by the key it was started with."""
        return blocking("get_run", self._runs.get_run(run_id, key=key, payloads=payloads))

    def await_runs(
        self, run_ids: Sequence[str], timeout: float = 0.0
    ) -> dict[str, runs.RunOutcome | errors.ServiceError]:
        """Waits until at least one of 1 to 10,000 runs is over, for `timeout` seconds."""
        return blocking("await_runs", self._runs.await_runs(run_ids, timeout))

    def list_runs(
        self,
        states: Iterable[runs.RunState] = (),
        *,
        name: str = "",
        attributes: Mapping[str, str] | None = None,
        parent_run_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[runs.RunSnapshot]:
        """Lists runs, newest first; 100 a page unless said otherwise."""
        return blocking(
            "list_runs",
            self._runs.list_runs(
                states,
                name=name,
                attributes=attributes,
                parent_run_id=parent_run_id,
                page_size=page_size,
                page_token=page_token,
            ),
        )

    def list_run_steps(
        self, run_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[runs.RunStep]:
        """Lists what is recorded of a run, in the order of recording."""
        return blocking(
            "list_run_steps",
            self._runs.list_run_steps(run_id, page_size=page_size, page_token=page_token),
        )

    def cancel_runs(
        self,
        run_ids: Sequence[str],
        *,
        reason: str = "",
        grace: policy.Seconds | None = None,
    ) -> list[runs.RunState | errors.ServiceError]:
        """Asks for the end of 1 to 1,000 runs; their functions get `grace` (30 s) to end."""
        return blocking("cancel_runs", self._runs.cancel_runs(run_ids, reason=reason, grace=grace))

    def resume_runs(self, run_ids: Sequence[str]) -> list[runs.RunState | errors.ServiceError]:
        """Lets 1 to 1,000 BLOCKED runs go on."""
        return blocking("resume_runs", self._runs.resume_runs(run_ids))

    def fork_run(self, run_id: str, *, before_step_id: str = "") -> str:
        """Starts a new run with the steps of another one; returns its id."""
        return blocking("fork_run", self._runs.fork_run(run_id, before_step_id=before_step_id))


def blocking(name: str, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a method of the async client to its end.

    Raises:
        BlockingCallInLoop: an event loop runs here.
    """
    try:
        refuse_in_loop(f"Client.{name}", f"AsyncClient.{name}")
    except BaseException:
        coroutine.close()
        raise
    return io_thread.run(coroutine)


def _states(
    results: Iterable[workflows.RunStateResult],
) -> list[runs.RunState | errors.ServiceError]:
    return [
        status.from_status(each.error) if each.HasField("error") else runs.state(each.state)
        for each in results
    ]
