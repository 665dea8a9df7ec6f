"""DBOS: workflows on a queue, without a step or with one."""

import os
import threading
import time

import program
import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

QUEUE = "bench"
NAME = "one_step" if program.STEP else "noop"
# libpq reads the rest from the PG* variables.
URL = f"postgresql+psycopg:///{os.environ['PGDATABASE']}"
CONFIG: DBOSConfig = {"name": "bench", "system_database_url": URL, "log_level": "WARNING"}


@DBOS.workflow(name="noop")
def noop(number: int) -> None:
    """Does nothing."""


@DBOS.step(name="step")
def step(number: int) -> int:
    """Does nothing, durably."""
    return number


@DBOS.workflow(name="one_step")
def one_step(number: int) -> int:
    """Does one step."""
    return step(number)


def _prepare() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()
    DBOS.register_queue(QUEUE, **program.SETTINGS)
    DBOS.destroy()


def _enqueue(count: int) -> None:
    client = DBOSClient(system_database_url=URL, application_name="bench")
    options: EnqueueOptions = {"queue_name": QUEUE, "workflow_name": NAME}
    began = time.perf_counter()
    with sqlalchemy.create_engine(URL).begin() as connection:
        for number in range(count):
            client.enqueue_in_transaction(connection, options, number)
    program.took(began)
    client.destroy()


def _work() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()
    threading.Event().wait()


if __name__ == "__main__":
    program.main(prepare=_prepare, enqueue=_enqueue, work=_work)
