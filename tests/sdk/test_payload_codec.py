"""The program's codec: what it sees, what travels, and what is said where it fails."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio

from examples.encryption import Encryption
from tenure import (
    App,
    AsyncClient,
    CodecFailed,
    KeyTaken,
    NewTask,
    Payload,
    PayloadCodec,
    Reschedule,
    Retry,
    TaskFailed,
    TaskOutcome,
    TaskState,
    ValueRefused,
    Worker,
    current_task,
)
from tests.eventually import eventually
from tests.fix_server import RunningServer

OLD, NEW = b"o" * 64, b"n" * 64


class Zipped:
    """Compresses, and leaves alone what it did not."""

    def encode(self, payload: Payload) -> Payload:
        return Payload(data=zlib.compress(payload.data), encoding="json+zlib", schema="s1")

    def decode(self, payload: Payload) -> Payload:
        if payload.encoding != "json+zlib":
            return payload
        assert payload.schema == "s1"
        return Payload(data=zlib.decompress(payload.data))


class Broken:
    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def encode(self, payload: Payload) -> Payload:
        assert payload.encoding == "json"
        if isinstance(self.wrong, Exception):
            raise self.wrong
        return self.wrong  # type: ignore[no-any-return]

    decode = encode


class ClosedBook(Zipped):
    """Can write and not read, as after a key was lost."""

    def decode(self, payload: Payload) -> Payload:
        raise LookupError(f"the key of {payload.encoding} is not here")


def make_app(address: str, codec: PayloadCodec | None) -> App:
    app = App("codec", address, codec=codec)

    @app.task(retry=Retry(2, initial_delay=0.05, jitter=0))
    def join(words: list[str]) -> str:
        return " ".join(words)

    @app.task
    def steer() -> Any:
        task = current_task()
        if task.delivery == 1:
            raise Reschedule(0.05, details={"secret": "details"})
        return task.details

    @app.task
    def beat() -> None:
        current_task().heartbeat({"secret": "progress"})
        while not current_task().cancelled:
            current_task().heartbeat({"secret": "progress"})

    return app


@pytest.fixture
def encryption() -> Encryption:
    return Encryption({"new": NEW, "old": OLD})


@pytest_asyncio.fixture
async def encrypted(server: RunningServer, encryption: Encryption) -> AsyncIterator[App]:
    app = make_app(server.address, encryption)
    async with Worker(app):
        yield app


async def test_call__app_encrypts__works_and_nothing_readable_is_stored(
    encrypted: App, server: RunningServer, conn: psycopg.Connection
) -> None:
    join, steer = encrypted.tasks["join"], encrypted.tasks["steer"]
    handle = await join.aenqueue(["very", "secret"])
    assert await handle.aresult(30) == "very secret"
    assert await (await steer.aenqueue()).aresult(30) == {"secret": "details"}
    (many,) = await join.aenqueue_many([(["secret", "too"],)])
    assert await many.aresult(30) == "secret too"
    travelled = (await AsyncClient(server.address).get_task(handle.id, payloads=True)).task
    for payload in (travelled.input, travelled.output):
        assert payload is not None
        assert payload.encoding == "json+aessiv;kid=new"
        assert b"secret" not in payload.data
    queries: list[LiteralString] = [
        "select * from tenure.tasks",
        "select * from tenure.deliveries",
        "select * from tenure.leases",
    ]
    text = repr([conn.execute(query).fetchall() for query in queries])
    assert "aessiv" in text
    assert "secret" not in text


async def test_heartbeat__app_encrypts__details_do_too(
    encrypted: App, conn: psycopg.Connection
) -> None:
    handle = await encrypted.tasks["beat"].aenqueue()

    def stored() -> bool:
        text = repr(conn.execute("select * from tenure.leases").fetchall())
        text += repr(conn.execute("select * from tenure.tasks").fetchall())
        assert "progress" not in text
        return "aessiv" in text

    try:
        assert await asyncio.to_thread(eventually, stored, seconds=15)
    finally:
        await handle.acancel(grace=1)
        await handle.await_(20)


async def test_client__with_the_codec__reads_and_writes_plain_values(
    encrypted: App, server: RunningServer, encryption: Encryption
) -> None:
    client = AsyncClient(server.address, codec=encryption)
    task = await client.enqueue(NewTask(name="join", arguments={"words": ["a", "b"]}))
    outcome = (await client.await_tasks([task.id], 30))[task.id]
    assert isinstance(outcome, TaskOutcome)
    assert outcome.output == Payload(data=b'"a b"')
    read = (await client.get_task(task.id, payloads=True)).task
    assert read.input == Payload(data=b'{"words":["a","b"]}')
    # A payload to the byte is the caller's own affair, and stays as it is where it cannot be read.
    raw = Payload(data=b"\0", encoding="binary")
    task = await client.enqueue(NewTask(name="nobody", arguments=raw))
    assert (await client.get_task(task.id, payloads=True)).task.input == raw


async def test_key__codec_gives_the_same_bytes__recognises_its_task(encrypted: App) -> None:
    join = encrypted.tasks["join"].using(key="k")
    first, again = await join.aenqueue(["a"]), await join.aenqueue(["a"])
    assert (again.id, again.existing) == (first.id, True)
    with pytest.raises(KeyTaken):
        await join.aenqueue(["b"])


async def test_rotate__key_changes__both_are_read(server: RunningServer) -> None:
    old = make_app(server.address, Encryption({"old": OLD}))
    handle = await old.tasks["join"].aenqueue(["a", "b"])
    async with Worker(make_app(server.address, Encryption({"new": NEW, "old": OLD}))):
        # The result is written with the new key, which this producer does not have.
        with pytest.raises(CodecFailed, match="there is no key 'new' here"):
            await handle.aresult(30)
    assert await handle.astate() is TaskState.COMPLETED


async def test_run__worker_without_the_codec__fails_retryably_and_another_does_it(
    server: RunningServer,
) -> None:
    handle = await make_app(server.address, Zipped()).tasks["join"].aenqueue(["a", "b"])
    client = AsyncClient(server.address)

    def failed() -> bool:
        return bool(asyncio.run(client.get_task(handle.id)).deliveries)

    async with Worker(make_app(server.address, None)):
        assert await asyncio.to_thread(eventually, failed)
    failure = (await client.get_task(handle.id)).deliveries[0].failure
    assert failure is not None
    assert failure.type == "ArgumentsRefused"
    assert "the encoding 'json+zlib' is not 'json'" in failure.message
    assert not failure.non_retryable


async def test_run__plain_task_and_worker_with_a_lenient_codec__is_read(
    server: RunningServer,
) -> None:
    handle = await make_app(server.address, None).tasks["join"].aenqueue(["a", "b"])
    async with Worker(make_app(server.address, Zipped())):
        assert await handle.await_(30) is TaskState.COMPLETED
    with pytest.raises(ValueRefused, match=r"'json\+zlib' is not 'json'; give the app or client"):
        await handle.aresult(1)


async def test_run__codec_cannot_read__fails_with_its_reason(server: RunningServer) -> None:
    app = make_app(server.address, ClosedBook())
    async with Worker(app):
        handle = await app.tasks["join"].aenqueue(["a"])
        with pytest.raises(TaskFailed) as caught:
            await handle.aresult(30)
    failure = caught.value.failure
    assert (failure.type, caught.value.attempt) == ("CodecFailed", 2)
    assert failure.message == (
        "arguments of task 'join': the codec could not decode encoding 'json+zlib':"
        " LookupError: the key of json+zlib is not here"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ValueError("no key"), "codec could not encode them: ValueError: no key"),
        (None, "returned no tenure.Payload of bytes: None"),
        (b"bytes", "returned no tenure.Payload of bytes: b'bytes'"),
        (Payload(data="text"), "returned no tenure.Payload of bytes"),  # type: ignore[arg-type]
    ],
)
async def test_enqueue__codec_fails__nothing_is_sent(wrong: Any, message: str) -> None:
    app = make_app("127.0.0.1:1", Broken(wrong))
    client = AsyncClient("127.0.0.1:1", codec=Broken(wrong))
    calls: list[Callable[[], Any]] = [
        lambda: app.tasks["join"].aenqueue(["a"]),
        lambda: client.enqueue(NewTask(name="join")),
    ]
    for call in calls:
        with pytest.raises(CodecFailed, match=message) as caught:
            await call()
        assert "arguments of task 'join'" in str(caught.value)


def test_encryption__changed_or_plain__is_refused(encryption: Encryption) -> None:
    assert isinstance(encryption, PayloadCodec)
    written = encryption.encode(Payload(data=b"1"))
    assert encryption.decode(written) == Payload(data=b"1")
    changed = Payload(data=written.data[:-1] + b"\0", encoding=written.encoding)
    renamed = Payload(data=written.data, encoding=written.encoding.replace("json", "text"))
    for payload in (changed, renamed, Payload(data=b"1")):
        with pytest.raises(ValueError, match="not"):
            encryption.decode(payload)
    text = f"new:{NEW.hex()}, old:{OLD.hex()}"
    assert Encryption.from_text(text).decode(written) == Payload(data=b"1")
