"""WorkerService: the Work stream and its unary twins."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure.v1 import worker_service_pb2_grpc as service_grpc
from tenure_service.dispatch import assign
from tenure_service.dispatch.lanes import LaneHint
from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError, shutting_down
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.rpc import errors, opening, steps, stream
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, unary
from tenure_service.rpc.check import Check
from tenure_service.usecase import poll
from tenure_service.usecase import session as sessions
from tenure_service.usecase.end import Ending

if TYPE_CHECKING:
    from tenure_service.dispatch.session import Held

#: How often a long poll looks by itself; wake-ups of other tasks are not followed one by one.
_LOOK_SECONDS = 0.25
#: What befalls the results of a call together.
_WHOLE_CALL = {Reason.CONTENTION, Reason.DATABASE_UNAVAILABLE, Reason.OVERLOADED}


class WorkerServicer(service_grpc.WorkerServiceServicer):
    """Hands tasks to workers and takes their results."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    async def Work(  # type: ignore[override]  # a coroutine that writes, not a generator
        self,
        request_iterator: AsyncIterator[service.WorkRequest],
        context: Context,
    ) -> None:
        """Serves one stream; see the protocol."""
        try:
            namespace_id = await self._calls.namespace_id(context)
            await stream.WorkStream(self._calls, namespace_id).run(request_iterator, context)
        except TenureError as exc:
            await errors.abort(context, exc)
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 - the worker gets an incident id
            await errors.abort(context, errors.bug(exc))

    @unary
    async def LeaseTasks(
        self, request: service.LeaseTasksRequest, context: Context
    ) -> service.LeaseTasksResponse:
        """Leases tasks by a long poll; see the protocol."""
        if self._hub.draining:
            raise shutting_down()
        check = Check()
        served = opening.tasks_only(check, request.handlers)
        said = opening.declared(check, request.handlers)
        who = opening.identity(check, request.worker)
        check.number("task_count_max", request.task_count_max, 1, limits.REPORT_COUNT_MAX)
        wait_ms = check.duration_ms(
            "wait_duration", request.wait_duration, high=limits.WAIT_DURATION_MAX
        )
        request_id = check.request_id("request_id", request.request_id)
        check.done()
        for queue, _ in served:
            PRINCIPAL.get().check_queue(queue)
        namespace_id = await self._calls.namespace_id(context)
        wanted = poll.Wanted(
            session=sessions.NewSession(
                namespace_id=namespace_id,
                worker=who.name,
                sdk=who.sdk,
                sdk_version=who.sdk_version,
                app_version=who.app_version,
                secret_hash=poll.POLLING_SECRET_HASH,
                handlers=[{"name": name, "queue": queue} for queue, name in served],
                slots={"total": request.task_count_max, "by_queue": {}},
                key_id=PRINCIPAL.get().key_id,
            ),
            declared=said,
            served=served,
            task_count_max=request.task_count_max,
            lease_ms=self._hub.durations.lease_ms,
            request_id=request_id,
            digest=hashlib.sha256(request.SerializeToString(deterministic=True)).digest(),
        )
        return await self._poll(wanted, wait_ms / 1000)

    async def _poll(self, wanted: poll.Wanted, wait_seconds: float) -> service.LeaseTasksResponse:
        deadline = time.monotonic() + wait_seconds
        while True:
            grants = await self._calls.run(
                poll.lease, self._hub.database, self._hub.catalogue, wanted
            )
            left = deadline - time.monotonic()
            if grants or left <= 0 or self._hub.draining:
                break
            await asyncio.sleep(min(_LOOK_SECONDS, left))
        response = service.LeaseTasksResponse()
        response.lease_duration.FromTimedelta(self._hub.durations.lease)
        held: list[Held] = []
        messages: list[bytes] = []
        for grant, lane in grants:
            some_held, some = assign.assignments(grant, LaneHint.of(lane))
            held += some_held
            messages += some
        count = assign.fitting(messages)
        for message in messages[:count]:
            response.assignments.add().MergeFromString(message)
        if held[count:]:
            # Their inputs are too large for one answer: back to their places, unspent.
            endings = [
                Ending(
                    lease_id=task.lease_id,
                    secret=None,
                    key=TaskKey(task.run_id, task.task_id),
                    outcome=Outcome.RELEASED,
                )
                for task in held[count:]
            ]
            await self._hub.reporter.end(wanted.session.namespace_id, endings)
        return response

    @unary
    async def RenewLeases(
        self, request: service.RenewLeasesRequest, context: Context
    ) -> service.RenewLeasesResponse:
        """Renews leases; see the protocol."""
        check = Check()
        check.count("lease_tokens", request.lease_tokens, limits.RENEW_COUNT_MAX)
        found = stream.read_tokens(check, "lease_tokens", request.lease_tokens)
        said = stream.read_progress(check, request.progress)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        alive = await self._hub.renew(
            namespace_id,
            [token for _, token in found],
            stream.read_started(request.started),
            said,
        )
        response = service.RenewLeasesResponse(
            lost_lease_tokens=[text for text, token in found if token not in alive]
        )
        response.lease_duration.FromTimedelta(self._hub.durations.lease)
        lease_ids = sorted({lease_id for lease_id, _ in alive})
        for notice in await self._calls.run(poll.cancels_of, self._hub.database, lease_ids):
            cancel = response.cancels.add(task_id=notice.task_id, reason=notice.reason)
            cancel.grace_duration.FromMilliseconds(notice.grace_ms)
        return response

    @unary
    async def ReportTasks(
        self, request: service.ReportTasksRequest, context: Context
    ) -> service.ReportTasksResponse:
        """Records results; see the protocol."""
        if not 0 < len(request.results) <= limits.REPORT_COUNT_MAX:
            raise FieldInvalid([("results", f"must have 1 to {limits.REPORT_COUNT_MAX} items")])
        namespace_id = await self._calls.namespace_id(context)
        with self._hub.memory.results(request.ByteSize()):
            answers = await self._hub.reporter.report(namespace_id, None, request.results)
        for answer in answers:
            # Not the fault of a result: the call as a whole is to be sent again.
            if isinstance(answer, TenureError) and answer.reason in _WHOLE_CALL:
                raise answer
        response = service.ReportTasksResponse()
        for answer in answers:
            if isinstance(answer, TenureError):
                response.results.add(
                    status=worker.REPORT_STATUS_REFUSED, error=errors.status(answer)
                )
            else:
                response.results.add(status=stream.STATUSES[answer])
        return response

    @unary
    async def RecordSteps(
        self, request: service.RecordStepsRequest, context: Context
    ) -> service.RecordStepsResponse:
        """Records steps of an activation; see the protocol."""
        namespace_id = await self._calls.namespace_id(context)
        records = await steps.record(self._hub, namespace_id, request)
        return service.RecordStepsResponse(records=records)

    @unary
    async def ListSteps(
        self, request: service.ListStepsRequest, context: Context
    ) -> service.ListStepsResponse:
        """Gives recorded steps of an activation; see the protocol."""
        namespace_id = await self._calls.namespace_id(context)
        return await steps.listed(self._calls, namespace_id, request)
