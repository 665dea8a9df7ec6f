"""What waits to be sent on the Work stream, and what was sent and not acknowledged.

There is no timer: what has gathered when the writer is free goes as one message. Reports are
clocked by their acknowledgements besides: while a few are on their way, further results gather, so
that messages grow with load instead of in number.

Used on the I/O loop only. Survives streams: after a reconnect the unacknowledged results go again.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2
from tenure.worker import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.v1 import worker_pb2
    from tenure.worker.held import HandOut
    from tenure.workflow.port_stream import Recorder

# Limits of one Report, under those of the protocol (1,000 results, 16 MiB).
RESULT_COUNT_MAX = 500
REPORT_BYTES_MAX = 4 * 1024 * 1024
# Reports on their way at once, unless they are full. One would leave the server idle while the
# answer travels; more than a few would be small ones.
REPORT_COUNT_MAX = 3


class Outbox:
    """Outbox gathers messages by kind and gives them out in order of urgency.

    Attributes:
        wake: Set when there may be something to write.
        empty: Set while no result waits to be sent or acknowledged.
        reports_acknowledged: Set while no Report waits for its acknowledgement.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self.wake = asyncio.Event()
        self.empty = asyncio.Event()
        self.empty.set()
        self.reports_acknowledged = asyncio.Event()
        self.reports_acknowledged.set()
        self._heartbeat: stream.Heartbeat | None = None
        self._slots: worker_pb2.Slots | None = None
        self._paused: bool | None = None
        self._accepts: dict[str, None] = {}
        self._started: list[stream.StartedTask] = []
        self._results: collections.deque[HandOut] = collections.deque()
        self._sent: dict[int, list[HandOut]] = {}
        self._report_id = 0

    def attach(self, recorder: Recorder) -> None:
        """Takes what activations send in between."""
        self._recorder = recorder

    def heartbeat(self, message: stream.Heartbeat) -> None:
        """Takes a heartbeat; one that was not sent yet gives way."""
        self._heartbeat = message
        self.wake.set()

    def slots(self, message: worker_pb2.Slots) -> None:
        """Takes new slots; they are sent before any result that is waiting."""
        self._slots = message
        self.wake.set()

    def pause(self, *, paused: bool) -> None:
        """Takes a stop or a resumption of hand-outs."""
        self._paused = paused
        self.wake.set()

    def accept(self, lease_tokens: Iterable[str]) -> None:
        """Takes tokens whose assignments have arrived."""
        self._accepts.update(dict.fromkeys(lease_tokens))
        self.wake.set()

    def started(self, tasks: Iterable[stream.StartedTask]) -> None:
        """Takes tasks whose handlers run."""
        self._started.extend(tasks)
        self.wake.set()

    def results(self, jobs: Iterable[HandOut]) -> None:
        """Takes hand-outs that have their results."""
        self._results.extend(jobs)
        self.empty.clear()
        self.wake.set()

    def next(self) -> worker_service_pb2.WorkRequest | bytes | None:
        """Returns the next message to write, as it travels if it is a Report.

        None if there is nothing to write now.
        """
        if self._slots is not None:
            request = worker_service_pb2.WorkRequest(set_slots=stream.SetSlots(slots=self._slots))
            self._slots = None
            return request
        if self._heartbeat is not None:
            request = worker_service_pb2.WorkRequest(heartbeat=self._heartbeat)
            self._heartbeat = None
            return request
        if self._paused is not None:
            request = worker_service_pb2.WorkRequest(pause=stream.Pause(paused=self._paused))
            self._paused = None
            return request
        if self._accepts:
            request = worker_service_pb2.WorkRequest(
                accept=stream.Accept(lease_tokens=self._accepts)
            )
            self._accepts = {}
            return request
        if self._started:
            request = worker_service_pb2.WorkRequest(started=stream.Started(tasks=self._started))
            self._started = []
            return request
        steps = self._recorder.next() if self._recorder is not None else None
        return steps if steps is not None else self._next_report()

    @property
    def unacknowledged_count(self) -> int:
        """Results that no server has acknowledged."""
        return len(self._results) + sum(map(len, self._sent.values()))

    def acknowledged(self, report_id: int) -> list[HandOut]:
        """Returns the hand-outs of a Report whose acknowledgement came; they are forgotten here."""
        jobs = self._sent.pop(report_id, [])
        if not self._sent:
            self.reports_acknowledged.set()
            if not self._results:
                self.empty.set()
        self.wake.set()
        return jobs

    def stream_broke(self) -> None:
        """Makes ready for the next stream: what was not acknowledged goes again, first."""
        again = [job for jobs in self._sent.values() for job in jobs]
        self._results.extendleft(reversed(again))
        self._sent.clear()
        self.reports_acknowledged.set()
        self._heartbeat = None
        self._slots = None
        self._paused = None
        self._accepts = {}
        self._started = []
        if self._recorder is not None:
            self._recorder.stream_broke()
        self.wake.set()

    def _next_report(self) -> bytes | None:
        if not self._results:
            return None
        if len(self._sent) >= REPORT_COUNT_MAX and len(self._results) < RESULT_COUNT_MAX:
            return None
        jobs: list[HandOut] = []
        results: list[bytes] = []
        size_bytes = 0
        while self._results and len(jobs) < RESULT_COUNT_MAX:
            job = self._results[0]
            if job.lost or job.result is None:
                self._results.popleft()
                continue
            size_bytes += len(job.result) + 8
            if jobs and size_bytes > REPORT_BYTES_MAX:
                break
            jobs.append(self._results.popleft())
            results.append(job.result)
        if not jobs:
            if not self._sent:
                self.empty.set()
            return None
        self._report_id += 1
        self.reports_acknowledged.clear()
        self._sent[self._report_id] = jobs
        return wire.report(self._report_id, results)
