"""The files that `tenure new` writes; NAME stands for the app's name."""

from __future__ import annotations

from typing import Final

_APP: Final = '''\
"""Two tasks: one that works at once, and one that fails, is tried again, and then works."""

from tenure import App, Retry, current_task

app = App("NAME")


@app.task
def greet(name: str = "world") -> str:
    return f"Hello, {name}!"


@app.task(retry=Retry(3, initial_delay=1))
def flaky(fail_count: int = 2) -> str:
    """Fails `fail_count` times; with 3 or more it ends in the dead letters."""
    attempt = current_task().attempt
    if attempt <= fail_count:
        raise ConnectionError(f"attempt {attempt} failed on purpose")
    return f"worked at attempt {attempt}"
'''

_TEST: Final = '''\
"""Run with `pytest`. With TENURE_ADDRESS set, one test goes through a server as well."""

import os

import pytest
from tenure import Worker, testing

from app import app, flaky, greet


def test_greet_says_hello():
    assert greet("Ada") == "Hello, Ada!"  # a task is a function like any other


def test_flaky_fails_at_first():
    with testing.task_context(attempt=1), pytest.raises(ConnectionError):
        flaky(fail_count=1)


def test_flaky_works_in_the_end():
    with testing.task_context(attempt=2):
        assert flaky(fail_count=1) == "worked at attempt 2"


@pytest.mark.skipif("TENURE_ADDRESS" not in os.environ, reason="set TENURE_ADDRESS to run it")
def test_greet_through_a_server():
    with Worker(app):
        assert greet.enqueue("Ada").result(timeout=30) == "Hello, Ada!"
'''

_README: Final = """\
# NAME

Tasks that survive crashes, with [Tenure](https://pypi.org/project/tenure/): `app.py` has two.

    pip install -r requirements.txt

Start PostgreSQL, a server and a worker, all in one terminal (the worker starts again when you
change a file):

    tenure dev app:app

In a second terminal, have a task done, and see one fail and be tried again:

    tenure task enqueue greet --input '{"name": "Ada"}' --wait 10
    tenure task enqueue flaky --wait 30

Test. The functions are plain functions; with an address one test goes through the server too:

    pytest
    TENURE_ADDRESS=127.0.0.1:7711 pytest

From your own program, with TENURE_ADDRESS set where the server is not 127.0.0.1:7711:

    from app import greet
    print(greet.enqueue("Ada").result(timeout=30))

What else there is: `tenure task why ID` says why a task has not run, `tenure dead-letter list`
shows what failed for good, `tenure --help` the rest.
"""

_REQUIREMENTS: Final = """\
tenure[dev]
pytest
"""

FILES: Final = {
    "app.py": _APP,
    "test_app.py": _TEST,
    "README.md": _README,
    "requirements.txt": _REQUIREMENTS,
}
