"""Wrong declarations fail where they are written, in one sentence that names what was given."""

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import App, AsyncClient, Client, NewTask, Retry, Timeout, Timeouts, Worker

app = App("declarations", "127.0.0.1:1")


@app.task
def noop() -> None: ...


def declare(**options: Any) -> Callable[[], object]:
    return lambda: App("other").task(**options)


def use(**options: Any) -> Callable[[], object]:
    return lambda: noop.using(**options)


def call(function: Callable[..., object], *args: Any, **options: Any) -> Callable[[], object]:
    return lambda: function(*args, **options)


WRONG_TYPES: list[tuple[Callable[[], object], str]] = [
    (call(Retry, 3.5), "Retry: max_attempts is a whole number from 1 to 1,000, not 3.5 of"),
    (call(Retry, "3"), "Retry: max_attempts is a whole number from 1 to 1,000, not '3' of"),
    (call(Retry, True), "Retry: max_attempts is a whole number .* not True of type bool"),
    (call(Retry, initial_delay="1"), "Retry: initial_delay is a time in seconds .* not '1' of"),
    (call(Retry, max_delay=True), "Retry: max_delay is a time in seconds .* not True of"),
    (call(Retry, multiplier="2"), "Retry: multiplier is a number from 1 to 100, not '2' of"),
    (call(Retry, jitter=[]), "Retry: jitter is a number from 0 to 1, not"),
    (call(Retry, unless=[3]), "Retry: unless is a list of exception classes .* not 3 of type int"),
    (
        call(Retry, unless=ValueError),
        r"Retry: unless is .*\[ValueError\], not <class 'ValueError'>",
    ),
    (call(Retry, unless="ValueError"), "Retry: unless is a list .* not 'ValueError' of type str"),
    (
        call(Retry, unless=[int]),
        "Retry: unless is a list of exception classes .* not <class 'int'>",
    ),
    (call(Timeout, "5"), "Timeout: after is a time in seconds or a timedelta, .* not '5' of"),
    (call(Timeouts, total="5"), "Timeouts: total is a time in seconds or a timedelta, .* not '5'"),
    (declare(retry=3), r"retry is a tenure.Retry, such as Retry\(3\), not 3 of type int"),
    (declare(timeout="30"), "timeout is a time in seconds or a timedelta, .* not '30' of type str"),
    (declare(timeout=Timeout(3)), r"timeout is a time or Timeouts\(start_to_close=...\), not"),
    (declare(name=5), "name is a text of 1 to 200 bytes, not 5 of type int"),
    (declare(queue=None), "queue is a text of 1 to 200 bytes, not None of type NoneType"),
    (call(app.task, "resize"), "makes a task of is a function, not 'resize' of type str"),
    (use(delay="5"), "delay is a time in seconds or a timedelta, .* not '5' of type str"),
    (use(key=5), "key is a text of 1 to 500 bytes, not 5 of type int"),
    (use(key_duration="1 h"), "key_duration is a time in seconds .* not '1 h' of type str"),
    (use(priority="high"), "priority is a whole number from -100 to 100, not 'high' of type str"),
    (use(priority=1.0), "priority is a whole number from -100 to 100, not 1.0 of type float"),
    (use(lane=7), "lane is a text of 1 to 200 bytes, not 7 of type int"),
    (use(retry=3), "retry is a tenure.Retry"),
    (call(App, 5), "the name of an app is a text of 1 to 200 bytes, not 5 of type int"),
    (call(App, "x", 7711), "address is `host:port`, such as 127.0.0.1:7711, not 7711 of type int"),
    (call(App, "x", namespace=5), "namespace is a text of 1 to 200 bytes, not 5"),
    (call(App, "x", version=2), "version is a text of 0 to 200 bytes, not 2 of type int"),
    (call(App, "x", tls=5), r"tls is True, the path of a CA file, or tenure.TLS\(...\), not 5 of"),
    (call(App, "x", codec="zlib"), "codec is an object with the methods encode and decode, not"),
    (call(Client, 5), "address is `host:port`, such as 127.0.0.1:7711, not 5 of type int"),
    (call(AsyncClient, api_key=5), "api_key is a text, not of type int"),
    (call(tenure.TLS, ca=5), "TLS: ca is the path of a PEM file, not 5 of type int"),
    (call(Worker, "app:app"), r"what a worker serves is a tenure.App, such as .* not 'app:app' of"),
    (call(Worker, app, "mail"), r"queues is a list of names such as \['mail'\], .* not 'mail' of"),
    (call(Worker, app, [3]), "a name in queues is a text of 1 to 200 bytes, not 3"),
    (call(Worker, app, {"mail": "3"}), r"queues\['mail'\] is a whole number .* not '3'"),
    (call(Worker, app, concurrency="4"), "concurrency is a whole number from 1 to 10,000, not '4'"),
    (call(Worker, app, prefetch_max=1.5), "prefetch_max is a whole number .* not 1.5"),
    (call(NewTask, name=5), "NewTask: name is a text, not 5 of type int"),
    (call(NewTask, name="x", arguments=[1]), "NewTask: arguments is a dict of parameters by name"),
    (call(NewTask, name="x", priority="1"), "NewTask: priority is a whole number, not '1'"),
    (call(NewTask, name="x", policy=Retry(3)), "NewTask: policy is a tenure.Policy, such as"),
    (call(noop.handle("1").result, "5"), "timeout is a number of seconds or None, not '5' of"),
    (call(tenure.RetryAfter, "5"), "RetryAfter: seconds is a time in seconds .* not '5' of"),
    (call(tenure.Reschedule, None), "Reschedule: seconds is a time in seconds .* not None of"),
]

WRONG_VALUES: list[tuple[Callable[[], object], str]] = [
    (call(Retry, 0), "Retry: max_attempts is a whole number from 1 to 1,000, not 0$"),
    (call(Retry, 1_001), "Retry: max_attempts is .* not 1001$"),
    (call(Retry, initial_delay=-1), "Retry: initial_delay is .*, 0 s to 365 days, not -1$"),
    (call(Retry, max_delay=math.nan), "Retry: max_delay is .*, not nan$"),
    (call(Retry, max_delay=10**400), "Retry: max_delay is .*, 0 s to 365 days, not 1000"),
    (call(Retry, jitter=2), "Retry: jitter is a number from 0 to 1, not 2$"),
    (call(Retry, multiplier=0.5), "Retry: multiplier is a number from 1 to 100, not 0.5$"),
    (call(Retry, backoff="sometimes"), "backoff is one of 'exponential', 'linear', 'fixed', not"),
    (call(Timeout, 3, "explode"), "Timeout: then is one of 'retry', 'time_out', 'alert', not"),
    (
        call(Retry, initial_delay=5, max_delay=0.1),
        "Retry: initial_delay of 5 s is above max_delay of 0.1 s$",
    ),
    (
        call(Timeouts, total=5, start_to_close=10),
        "Timeouts: start_to_close of 10 s is above total of 5 s, which ends the task first$",
    ),
    (
        call(Timeouts, total=Timeout(5, "retry"), heartbeat=datetime.timedelta(seconds=6)),
        "Timeouts: heartbeat of 6 s is above total of 5 s",
    ),
    (call(Timeout, 0), "Timeout: after is .*, 0.001 s to 3,650 days, not 0$"),
    (call(Timeouts, heartbeat=0), "Timeouts: heartbeat is .*, 0.001 s to 3,650 days, not 0$"),
    (declare(timeout=-1), "timeout is .*, 0.001 s to 3,650 days, not -1$"),
    (declare(timeout=datetime.timedelta(0)), "timeout is .*, 0.001 s to 3,650 days, not"),
    (declare(name=""), "name is a text of 1 to 200 bytes, not ''$"),
    (declare(name="a" * 201), "name is a text of 1 to 200 bytes, not 'aaa"),
    (declare(queue="a\nb"), r"queue is a text of 1 to 200 bytes without control characters, not"),
    (use(priority=1_000), "priority is a whole number from -100 to 100, not 1000$"),
    (use(key=""), "key is a text of 1 to 500 bytes, not ''$"),
    (use(delay=-0.1), "delay is .*, 0 s to 3,650 days, not -0.1$"),
    (use(timeout=0), "timeout is .*, 0.001 s to 3,650 days, not 0$"),
    (call(App, ""), "the name of an app is a text of 1 to 200 bytes, not ''$"),
    (call(Client, "nohost"), "address is `host:port`, such as 127.0.0.1:7711, not 'nohost'$"),
    (call(Client, "host:"), "address is `host:port`, .*, the port 1 to 65535, not 'host:'$"),
    (call(Client, "host:seventy"), "address is `host:port`, .* not 'host:seventy'$"),
    (call(Client, "::1:7711"), "address is `host:port`, .* not '::1:7711'$"),
    (call(Client, "ftp://host:1"), "address is .*, after http:// or https:// or not, not 'ftp:"),
    (call(Client, "http://host:1", tls=True), "address says http, and a setting for TLS is there"),
    (call(Client, "https://host:1", tls=False), "address says https, and tls=False says plain"),
    (call(Client, namespace=""), "namespace is a text of 1 to 200 bytes, not ''$"),
    (call(App, "x", api_key=""), "api_key is empty: give a key, or None for the environment's$"),
    (call(App, "x", api_key="secret word"), "api_key is a text of printable ASCII characters wi"),
    (call(App, "x", api_key="secr\u00e9t"), "api_key is a text of printable ASCII characters wi"),
    (call(Client, api_key="secret\n"), "api_key is a text of printable ASCII characters without"),
    (call(tenure.TLS, cert="a.pem"), "TLS: cert and key are given together or not at all$"),
    (
        call(Worker, app, []),
        r"queues is a list of names .*, or None for those of the tasks, not \[\]",
    ),
    (call(Worker, app, concurrency=0), "concurrency is a whole number from 1 to 10,000, not 0$"),
    (call(NewTask, name="x", delay=-1), "NewTask: delay is .*, 0 s to 3,650 days, not -1$"),
]


def number(case: Any) -> str:
    return "" if callable(case) else case[:40]


@pytest.mark.parametrize(("make", "message"), WRONG_TYPES, ids=number)
def test_declare__wrong_type__says_what_is_taken_and_what_was_given(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(tenure.WrongType, match=message) as caught:
        make()
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make", "message"), WRONG_VALUES, ids=number)
def test_declare__wrong_value__says_what_is_taken_and_what_was_given(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(tenure.WrongValue, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TENURE_ADDRESS", "nohost", "TENURE_ADDRESS is `host:port`, .* not 'nohost'$"),
        ("TENURE_ADDRESS", "host:0", "TENURE_ADDRESS is `host:port`, .* not 'host:0'$"),
        ("TENURE_NAMESPACE", "a\nb", "TENURE_NAMESPACE is a text of 1 to 200 bytes without"),
        ("TENURE_API_KEY", "two words", "TENURE_API_KEY is a text of printable ASCII"),
        ("TENURE_API_KEY", "secret\n", "TENURE_API_KEY is a text of printable ASCII"),
        (
            "TENURE_TLS_CLIENT_CERT",
            "a.pem",
            "TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY are set together",
        ),
    ],
)
def test_connect__wrong_variable__is_named(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(tenure.WrongValue, match=message):
        Client()
    with pytest.raises(tenure.WrongValue, match=message):
        _ = App("x").connection


def test_use__file_of_a_certificate_missing__is_refused_before_anything_is_sent() -> None:
    lost = App("lost", "127.0.0.1:1", tls="/nowhere/ca.pem")

    @lost.task
    def resize() -> None: ...

    message = r"^TLS: the file of ca, /nowhere/ca.pem, cannot be read: No such file"
    for use_it in (resize.enqueue, call(resize.handle, "1"), call(resize.enqueue_many, [()])):
        with pytest.raises(tenure.WrongValue, match=message):
            use_it()


@pytest.mark.parametrize(
    ("address", "place", "secured"),
    [
        ("localhost:7711", "localhost:7711", False),
        ("[::1]:7711", "[::1]:7711", False),
        ("http://db-1.example:80/", "db-1.example:80", False),
        ("https://tenure.example:443", "tenure.example:443", True),
    ],
)
def test_connect__right_address__is_taken(address: str, place: str, secured: bool) -> None:  # noqa: FBT001
    target = Client(address).target
    assert target.address == place
    assert (target.tls is not None) is secured


def test_connect__settings_in_the_environment__are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENURE_ADDRESS", "elsewhere:1")
    monkeypatch.setenv("TENURE_API_KEY", "secret")
    monkeypatch.setenv("TENURE_TLS_CA", str(tmp_path / "ca.pem"))
    target = App("x").target
    assert target.address == "elsewhere:1"
    assert ("authorization", "Bearer secret") in target.metadata
    assert target.tls == tenure.TLS(ca=tmp_path / "ca.pem")
    assert "secret" not in repr(target)
    assert Client(tls=False).target.tls is None


def test_connect__empty_variable_of_a_key__is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_API_KEY", "")
    assert [key for key, _ in Client().target.metadata] == ["tenure-namespace"]


def test_using__right_options__are_taken() -> None:
    noop.using(
        key="k",
        key_duration=datetime.timedelta(days=1),
        delay=0,
        priority=-100,
        lane="l",
        queue="q",
        retry=Retry(1_000, unless=(ValueError, "Other")),
        timeout=Timeouts(total=Timeout(0.001, "alert"), start_to_close=1),
    )


def test_start__app_without_tasks__says_how_they_get_there() -> None:
    with pytest.raises(tenure.HandlerRefused, match=r"'shop' has no tasks to serve.*Import those"):
        Worker(App("shop", "127.0.0.1:1")).start()
