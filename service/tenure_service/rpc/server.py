"""The gRPC server of one process: services, health, reflection, limits of connections."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tenure.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    registry_service_pb2,
    registry_service_pb2_grpc,
    task_service_pb2,
    task_service_pb2_grpc,
    work_stream_pb2,
    worker_service_pb2,
    worker_service_pb2_grpc,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)
from tenure_service.certificates import Files
from tenure_service.dispatch.hub import Hub
from tenure_service.engine import limits
from tenure_service.rpc import tls
from tenure_service.rpc.admin import AdminServicer
from tenure_service.rpc.call import Calls
from tenure_service.rpc.decoding import Decoding
from tenure_service.rpc.guard import Guard
from tenure_service.rpc.metering import Metering
from tenure_service.rpc.registry import RegistryServicer
from tenure_service.rpc.tasks import TaskServicer
from tenure_service.rpc.tracing import Tracing
from tenure_service.rpc.workers import WorkerServicer
from tenure_service.rpc.workflows import WorkflowServicer
from tenure_service.telemetry.spans import Spans

_log = logging.getLogger(__name__)

#: Room for the message around the largest payloads.
_HEADROOM_BYTES: Final = 64 * 1024
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX + _HEADROOM_BYTES),
    ("grpc.max_send_message_length", -1),
    # Half-open connections are found by pings in both directions; what stock clients of other
    # languages send (one each 10 s, also without calls) is no reason for too_many_pings.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC 1.85 waits this long for the answer to a ping whatever the line above says, by default a
    # minute: a silent peer was noticed after 77 s, with it after 27.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # Calls that have come and are not taken yet. gRPC ends some of them CANCELLED from 1,000 on and
    # all from 3,000 on: of 4,500 callers at once it lost 1,417. What is too much is for the
    # batchers to say, with OVERLOADED.
    ("grpc.server.max_pending_requests", 15_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
]
_CALL_THREADS: Final = 4
_SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (worker_service_pb2, "WorkerService"),
        (task_service_pb2, "TaskService"),
        (registry_service_pb2, "RegistryService"),
        (workflow_service_pb2, "WorkflowService"),
        (admin_service_pb2, "AdminService"),
    )
)


class RpcServer:
    """Listens on one address and serves all services over one dispatch."""

    def __init__(
        self,
        hub: Hub,
        address: str,
        *,
        share_port: bool = False,
        tls_files: Files | None = None,
        spans: Spans | None = None,
    ) -> None:
        """Prepares a server.

        Args:
            hub: The dispatch.
            address: Host and port; port 0 means any free one.
            share_port: Whether other processes may listen on the same port.
            tls_files: Certificate and key; None serves plain text.
            spans: Who makes spans of calls; None: nobody.
        """
        self._hub = hub
        self._calls = Calls(hub, _CALL_THREADS)
        options = [*_OPTIONS, ("grpc.so_reuseport", int(share_port))]
        guard = Guard(hub.keys, self._calls)
        traced = () if spans is None else (Tracing(spans),)
        self._server = grpc.aio.server(
            options=options, interceptors=(Metering(), *traced, guard, Decoding())
        )
        self._health = health.aio.HealthServicer()
        self._address = address
        self._tls_files = tls_files
        self.port = 0

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: the address is in use, or none of this machine; a TLS file cannot be read, or
                is not what it should be.
        """
        server = self._server
        worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(
            WorkerServicer(self._calls), server
        )
        task_service_pb2_grpc.add_TaskServiceServicer_to_server(TaskServicer(self._calls), server)
        workflow_service_pb2_grpc.add_WorkflowServiceServicer_to_server(
            WorkflowServicer(self._calls), server
        )
        registry_service_pb2_grpc.add_RegistryServiceServicer_to_server(
            RegistryServicer(self._calls), server
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self._calls), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            if self._tls_files is None:
                self.port = server.add_insecure_port(self._address)
            else:
                secure = tls.credentials(self._tls_files)
                self.port = server.add_secure_port(self._address, secure)
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {self._address}") from exc
        if self.port == 0:
            raise OSError(f"cannot listen on {self._address}")
        await server.start()
        await self.set_ready(ready=True)

    async def set_ready(self, *, ready: bool) -> None:
        """Tells health checks whether to send traffic here."""
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if ready
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *_SERVICES):
            await self._health.set(name, status)

    async def stop(self, grace: timedelta) -> None:
        """Stops: no new work, streams are told, what was reported is written, then the end."""
        hub = self._hub
        hub.draining = True
        await self.set_ready(ready=False)
        drain = work_stream_pb2.Drain()
        drain.deadline.FromTimedelta(grace)
        drain.reconnect_after.FromTimedelta(timedelta(milliseconds=100))
        sessions = list(hub.leaser.sessions.values())
        for session in sessions:
            session.paused = True
            session.send(worker_service_pb2.WorkResponse(drain=drain))
        if sessions:
            # A moment for the notice to leave and for results that are on their way.
            await asyncio.sleep(min(0.3, grace.total_seconds()))
        for session in sessions:
            hub.leaser.detach(session)
        await self._server.stop(min(grace.total_seconds(), 5))
        await hub.drain()

    def close(self) -> None:
        """Ends the threads."""
        self._calls.close()
