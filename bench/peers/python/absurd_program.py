"""absurd: tasks without a step or with one, on its asynchronous client."""

import asyncio
import os
import time

import absurdctl
import program
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd, AsyncTaskContext

NAME = "one-step" if program.STEP else "noop"


def _prepare() -> None:
    with psycopg.connect(autocommit=True) as connection:
        # What `absurdctl init` gives to psql.
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL.encode())
        Absurd(connection).create_queue()


def _enqueue(count: int) -> None:
    with psycopg.connect() as connection:
        app = Absurd(connection)
        began = time.perf_counter()
        for number in range(count):
            app.spawn(NAME, {"number": number}, queue="default")
        connection.commit()
        program.took(began)


async def _work() -> None:
    app = AsyncAbsurd(f"dbname={os.environ['PGDATABASE']}")

    @app.register_task(name="noop")
    async def noop(params: dict[str, int], context: AsyncTaskContext) -> None:
        pass

    @app.register_task(name="one-step")
    async def one_step(params: dict[str, int], context: AsyncTaskContext) -> int:
        async def step() -> int:
            return params["number"]

        return await context.step("step", step)

    await app.start_worker(**program.SETTINGS)


if __name__ == "__main__":
    program.main(prepare=_prepare, enqueue=_enqueue, work=lambda: asyncio.run(_work()))
