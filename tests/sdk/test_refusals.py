"""Refusals that no time cures: said at once to whoever runs the worker, loudly ever after."""

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import tenure
from tenure import App, AsyncClient, NewTask, Retry, TaskOutcome, TaskState, Worker
from tenure.worker import session
from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.main import Server
from tests.eventually import eventually
from tests.fix_server import RunningServer, server_config
from tests.sdk.relay import Relay


def make_app(address: str, namespace: str = "default", **options: Any) -> App:
    app = App("refusals", address, namespace)

    @app.task(**options)
    def noop() -> None: ...

    return app


async def end_of(worker: Worker) -> None:
    """Starts a worker as `run` does, and waits for its end."""
    try:
        async with asyncio.timeout(10):
            await asyncio.wrap_future(worker._start(ends_refused=True))
    finally:
        await worker.aclose(0)


async def test_run__unknown_namespace__ends_with_what_to_do(server: RunningServer) -> None:
    with pytest.raises(tenure.NotFound, match="refuses this worker: ") as caught:
        await end_of(Worker(make_app(server.address, "nobody")))
    assert str(caught.value).count("tenure namespace create") == 1
    assert str(caught.value).endswith("or set TENURE_NAMESPACE to one that there is")


async def test_run__declaration_that_the_server_refuses__ends_and_names_it(
    server: RunningServer,
) -> None:
    # The client leaves the length of these to the server.
    app = make_app(server.address, retry=Retry(unless=["x" * 300]))
    with pytest.raises(tenure.FieldInvalid, match=r"non_retryable_types.*change what the worker"):
        await end_of(Worker(app))


async def test_run__key_of_other_queues__ends_and_names_queue_and_flags(database: str) -> None:
    running = Server(server_config(database, require_keys=True))
    await running.start()
    assert running._hub is not None
    _, secret = running._hub.keys.create(
        ANYBODY,
        namespace_id=None,
        name="mailer",
        scopes=[Scope.WORKER],
        queue_globs=("mail*",),
        lifetime=None,
    )
    try:
        app = App("refusals", running.address, api_key=secret)
        app.task(name="noop", queue="bills")(lambda: None)
        with pytest.raises(
            tenure.ScopeMissing,
            match=r"may not use the queue 'bills'; .*key create NAME --queue bills.*worker .*--queue Q",
        ):
            await end_of(Worker(app))
    finally:
        await running.stop()


async def test_run__version_that_the_server_does_not_speak__ends(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PROTOCOL_VERSION", "99.0")
    with pytest.raises(tenure.VersionUnsupported, match="upgrade the older one"):
        await end_of(Worker(make_app(server.address)))


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"])
async def test_run__proxy_refuses_the_first_stream__ends(
    status: str, server: RunningServer
) -> None:
    relay = Relay(server.address)
    relay.refuse(grpc.StatusCode[status])
    await relay.start()
    try:
        with pytest.raises(tenure.ServiceError, match=r"no Tenure server of this version"):
            await end_of(Worker(make_app(relay.address)))
    finally:
        await relay.stop()


@pytest.mark.parametrize("status", ["UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"])
async def test_stream__refused_after_it_was_connected__goes_on_loudly(
    status: str, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Relay(server.address)
    await relay.start()
    worker = Worker(make_app(relay.address))
    done = worker._start(ends_refused=True)
    try:
        assert await asyncio.to_thread(eventually, lambda: relay.opened_count == 1)
        client = AsyncClient(server.address)
        await taken(client)
        relay.refuse(grpc.StatusCode[status])
        relay.break_streams(grpc.StatusCode[status])
        # Each time, not once. A refusal that meets the first write is lost in gRPC.
        assert await asyncio.to_thread(eventually, lambda: len(loud(caplog)) >= 2, seconds=20)
        assert not done.done()
        relay.refuse(None)
        await taken(client)
    finally:
        await worker.aclose(0)
        await relay.stop()
    assert {each.levelno for each in loud(caplog)} == {logging.ERROR}


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Lists what the worker has said of refusals."""
    return [each for each in caplog.records if "no time cures this" in each.getMessage()]


async def taken(client: AsyncClient) -> None:
    """Waits until the worker has run a new task."""
    task = await client.enqueue(NewTask(name="noop"))
    outcome = (await client.await_tasks([task.id], 40))[task.id]
    assert isinstance(outcome, TaskOutcome)
    assert outcome.state is TaskState.COMPLETED


async def test_start__refused__goes_on_and_serves_once_it_may(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(make_app(server.address, "later")):
        assert await asyncio.to_thread(
            eventually, lambda: caplog.text.count("no time cures this") >= 2, seconds=20
        )
        await AsyncClient(server.address).create_namespace("later")
        await taken(AsyncClient(server.address, "later"))


async def test_command__refused_at_its_first_connection__exits_with_the_reason(
    server: RunningServer,
) -> None:
    command = [sys.executable, "-m", "tenure_service", "worker", "tests.sdk.process_app:app"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, "--address", server.address, "--namespace", "nobody"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "tenure namespace create" in done.stderr.splitlines()[-1]


async def test_run__refused__restores_signals_and_may_run_again(server: RunningServer) -> None:
    code = f"""
import signal, tenure
app = tenure.App("refusals", {server.address!r}, "nobody")
app.task(name="noop")(lambda: None)
worker = tenure.Worker(app)
for _ in range(2):
    try:
        worker.run()
    except tenure.NotFound:
        print("refused", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["refused True"] * 2, done.stderr
