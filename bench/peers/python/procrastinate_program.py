"""procrastinate: asynchronous jobs on its psycopg pool."""

import asyncio
import time

import procrastinate
import program

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task
async def noop(number: int) -> None:
    """Does nothing."""


async def _prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _enqueue(count: int) -> None:
    async with app.open_async():
        began = time.perf_counter()
        await noop.batch_defer_async(*({"number": number} for number in range(count)))
        program.took(began)


async def _work() -> None:
    async with app.open_async():
        await app.run_worker_async(**program.SETTINGS)


if __name__ == "__main__":
    program.main(
        prepare=lambda: asyncio.run(_prepare()),
        enqueue=lambda count: asyncio.run(_enqueue(count)),
        work=lambda: asyncio.run(_work()),
    )
