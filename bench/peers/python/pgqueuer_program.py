"""pgqueuer: its worker on one asyncpg connection, which drains faster than its pool of them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import program
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries


@asynccontextmanager
async def _driver() -> AsyncIterator[AsyncpgDriver]:
    connection = await asyncpg.connect()
    yield AsyncpgDriver(connection)
    await connection.close()


async def _prepare() -> None:
    async with _driver() as driver:
        await Queries(driver).install()


async def _enqueue(count: int) -> None:
    async with _driver() as driver:
        queries = Queries(driver)
        began = time.perf_counter()
        payloads = [b'{"number": %d}' % number for number in range(count)]
        await queries.enqueue(["noop"] * count, payloads, [0] * count)
        program.took(began)


async def _work() -> None:
    async with _driver() as driver:
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            pass

        await worker.run(**program.SETTINGS)


if __name__ == "__main__":
    program.main(
        prepare=lambda: uvloop.run(_prepare()),
        enqueue=lambda count: uvloop.run(_enqueue(count)),
        work=lambda: uvloop.run(_work()),
    )
