"""Lines of the log: words and ids, for people and for machines, and never a secret."""

import contextvars
import io
import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Iterator

import grpc
import psycopg
import pytest

from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.main import Server
from tenure_service.telemetry import logs
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

PAYLOAD = b'{"card": "4111-1111-1111-1111"}'
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Lines:
    """A logger whose lines are kept."""

    def __init__(self, form: str) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(logs.formatter(form))

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def last(self) -> str:
        return self.text.splitlines()[-1]


def listening(form: str, level: int) -> Iterator[Lines]:
    lines = Lines(form)
    root = logging.getLogger()
    before = root.level
    root.addHandler(lines.handler)
    root.setLevel(level)
    yield lines
    root.removeHandler(lines.handler)
    root.setLevel(before)


@pytest.fixture
def text() -> Iterator[Lines]:
    yield from listening("text", logging.DEBUG)


@pytest.fixture
def objects() -> Iterator[Lines]:
    yield from listening("json", logging.DEBUG)


def test_log__text__words_then_ids(text: Lines) -> None:
    logging.getLogger("some.module").warning(
        "worker %r is away", "w 1", extra={"worker": "w 1", "session": "s-1"}
    )
    _, _, rest = text.last.partition(" WARNING ")
    assert rest == "some.module: worker 'w 1' is away session=s-1 worker='w 1'"


def test_log__json__one_object_a_line(objects: Lines) -> None:
    try:
        int("broken")
    except ValueError:
        logging.getLogger("some.module").exception(
            "incident %s", "ab12", extra={"incident": "ab12"}
        )
    found = json.loads(objects.last)
    assert {key: found[key] for key in ("event", "level", "logger", "incident")} == {
        "event": "incident ab12",
        "level": "error",
        "logger": "some.module",
        "incident": "ab12",
    }
    assert found["timestamp"].endswith("Z")
    assert "ValueError: invalid literal" in found["exception"]


def test_log__inside_a_call__has_its_ids(objects: Lines) -> None:
    metadata = (("tenure-namespace", "shop"), ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"))

    def serve() -> None:
        logs.entered("/tenure.v1.TaskService/EnqueueTasks", metadata)
        logs.bound(session="s-1")
        logging.getLogger("x").info("inside")

    contextvars.Context().run(serve)
    found = json.loads(objects.last)
    assert found["method"] == "EnqueueTasks"
    assert (found["namespace"], found["trace_id"], found["session"]) == ("shop", TRACE, "s-1")
    logging.getLogger("x").info("outside")
    assert "method" not in json.loads(objects.last)


def test_log__secrets_in_words__do_not_leave(text: Lines) -> None:
    key = "tenure_" + "A" * 43
    log = logging.getLogger("x")
    log.info("no database at postgresql://tenure:hunter2@db/tenure")
    log.info("connecting with host=db password='hunter2 x' user=t password=hunter2")
    log.info("metadata authorization: Bearer %s", key, extra={"sent": f"Bearer {key}"})
    log.info("key %s", key)
    try:
        int(f"refused {key} for password=hunter2")
    except ValueError:
        log.exception("failed")
    assert "hunter2" not in text.text
    assert key not in text.text
    assert "postgresql://tenure:***@db/tenure" in text.text


def test_log__text_that_steers_a_terminal__is_shown_and_not_obeyed(text: Lines) -> None:
    hostile = "\x1b[2J\x9b31m\u202e"
    raised = RuntimeError(f"first\n\tsecond {hostile}")
    logging.getLogger("x").error("task %s", hostile, exc_info=raised, extra={"reason": hostile})
    assert "\n    \tsecond \\x1b[2J\\x9b31m\\u202e" in text.text
    assert not {letter for letter in text.text if not letter.isprintable()} - {"\n", "\t"}


def test_log__text_with_lines_of_its_own__only_the_event_begins_at_the_margin(
    text: Lines,
) -> None:
    forged = "x\n2026-11-30 23:00:00 ERROR tenure.worker: fake line"
    raised = ValueError(forged)
    raised.add_note(f"a note\r\n{forged}")
    logging.getLogger("x").error("task failed: %s", forged, exc_info=raised, extra={"a": forged})
    first, *more = text.text.splitlines()
    assert first.endswith(" ERROR x: task failed: x")
    assert len(more) >= 5
    assert all(line.startswith("    ") for line in more)


def test_formatter__fields_of_the_process__stand_beside_the_words() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "words", (), None)
    fields = {"process_id": 7}
    assert logs.formatter("text", fields=fields).format(record).endswith("x: words process_id=7")
    found = json.loads(logs.formatter("json", fields=fields).format(record))
    assert found["process_id"] == 7


def test_log__advice_on_keys__stays_whole(text: Lines) -> None:
    logging.getLogger("x").warning("no key: `authorization: Bearer KEY`; set TENURE_API_KEY")
    assert text.last.endswith("no key: `authorization: Bearer KEY`; set TENURE_API_KEY")
    logging.getLogger("x").warning("sent `authorization: Bearer KEYabc`; then")
    assert text.last.endswith("sent `authorization: Bearer ***`; then")


def test_configure__program_has_set_up_logging__leaves_it(text: Lines) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    logs.configure("DEBUG", "json")
    assert root.handlers == before


async def test_log__a_server_in_every_trouble__tells_no_payload_and_no_secret(
    database: str, objects: Lines, conn: psycopg.Connection
) -> None:
    password = psycopg.conninfo.conninfo_to_dict(database)["password"]
    running = Server(server_config(database, require_keys=True, accept_seconds=0.5))
    await running.start()
    assert running._hub is not None
    _, secret = running._hub.keys.create(
        ANYBODY,
        namespace_id=None,
        name="all",
        scopes=list(Scope),
        queue_globs=(),
        lifetime=None,
    )
    client = Caller(running.address)
    client.metadata = (("authorization", f"Bearer {secret}"),)
    stranger = Caller(running.address)
    stranger.metadata = (("authorization", f"Bearer {secret[:-1]}!"),)
    with pytest.raises(grpc.aio.AioRpcError):
        await stranger.enqueue("work")
    await client.enqueue("work", 2, input={"data": PAYLOAD, "encoding": "json"})
    raw = await RawWorker.open(client, "work", slots=2)
    task = (await raw.tasks())[0]
    await raw.report(caller.failed(task, message="told by the handler"))
    assert await eventually_async(lambda: "did not accept" in objects.text)
    # A table that is gone is a bug to the server: it logs the exception, with its query.
    conn.execute("alter table tenure.requests rename to requests_gone")
    with pytest.raises(grpc.aio.AioRpcError):
        await client.enqueue(
            "work", request_id=str(uuid.uuid4()), input={"data": PAYLOAD, "encoding": "json"}
        )
    conn.execute("alter table tenure.requests_gone rename to requests")
    await raw.close()
    for each in (client, stranger):
        await each.close()
    await running.stop()

    lines = [json.loads(line) for line in objects.text.splitlines()]
    assert any("incident" in line for line in lines)
    (unaccepted,) = [line for line in lines if "did not accept" in line["event"]][:1]
    assert unaccepted["session"] == raw.opened.session_id
    for hidden in (b"4111", PAYLOAD.hex().encode(), secret.encode(), str(password).encode()):
        assert hidden not in objects.text.encode()


def test_calm__same_line_again_and_again__one_passes_each_pause_with_a_count() -> None:
    now = [0.0]
    calm = logs.Calm("psycopg.pool", pause_seconds=10, clock=lambda: now[0])
    passed: list[str] = []

    def say(at: float, name: str, text: str, *words: str) -> None:
        now[0] = at
        record = logging.LogRecord(name, logging.WARNING, "", 0, text, words, None)
        if calm.filter(record):
            passed.append(record.getMessage())

    for at in range(25):
        say(at, "psycopg.pool", "error connecting in %r: %s", "main", f"refused at {at}")
    say(25, "psycopg.pool", "discarding broken connection: %s", "x")
    for at in (25, 26):
        say(at, "some.module", "error connecting in %r: %s", "main", "no")
    say(40, "psycopg.pool", "error connecting in %r: %s", "main", "100% no")
    assert passed == [
        "error connecting in 'main': refused at 0",
        "error connecting in 'main': refused at 10 (9 more like it in the last 10 s)",
        "error connecting in 'main': refused at 20 (9 more like it in the last 10 s)",
        "discarding broken connection: x",
        "error connecting in 'main': no",
        "error connecting in 'main': no",
        "error connecting in 'main': 100% no (4 more like it in the last 20 s)",
    ]


_AWAY = """
import logging, sys, threading
import psycopg_pool
from tenure_service.telemetry import logs

class Count(logging.Handler):
    count = 0
    enough = threading.Event()
    def emit(self, record):
        Count.count += 1
        if Count.count >= 30:
            self.enough.set()

logs.configure("INFO", "text")
logging.getLogger("psycopg.pool").addHandler(Count())
pool = psycopg_pool.ConnectionPool("host=/no/such/folder", min_size=8, num_workers=8, open=True)
assert Count.enough.wait(30)
pool.close()
print(Count.count)
"""


def test_configure__database_is_away__the_pool_fills_no_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AWAY], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 30
    lines = [line for line in done.stderr.splitlines() if "error connecting" in line]
    assert len(lines) == 1, done.stderr


_WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"structlog", "prometheus_client", "starlette", "uvicorn"}:
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import logging
import subprocess
import sys
from tenure_service.cli import parser, worker
from tenure_service.telemetry import logs
logs.configure("INFO", "json")
logging.getLogger("x").warning("plain\\n2026 forged", extra={"task_id": "t"})
"""


def test_configure__install_for_workers_alone__writes_plain_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(" WARNING x: plain\n    2026 forged\n")
