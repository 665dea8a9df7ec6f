"""Records a history of this release for each workflow that has none of it.

python -m tests.runs.record_histories

What is recorded stays as it is: a file that is there is not written again.
"""

import asyncio
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

from tenure import Worker, connection, methods
from tenure.io_thread import io_thread
from tenure.v1 import workflow_service_pb2 as workflows
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.main import Server
from tenure_service.store import migrate
from tests.fix_server import server_config
from tests.runs.histories import flows
from tests.runs.history import FOLDER, History

RESULT_SECONDS = 60.0


def main() -> None:
    release = importlib.metadata.version("tenure")
    wanted = {name: FOLDER / f"{release}-{name}.json" for name in flows.app.workflows}
    wanted = {name: path for name, path in wanted.items() if not path.exists()}
    with tempfile.TemporaryDirectory(prefix="tenure-histories-") as folder:
        Path(folder).chmod(0o711)  # root's server is another account
        postgres = EmbeddedPostgres.start(Path(folder) / "postgres", durable=False)
        try:
            migrate.migrate(postgres.dsn("tenure"))
            asyncio.run(_record(postgres.dsn("tenure"), wanted))
        finally:
            postgres.remove()


async def _record(dsn: str, wanted: dict[str, Path]) -> None:
    server = Server(server_config(dsn))
    await server.start()
    os.environ["TENURE_ADDRESS"] = server.address
    try:
        async with Worker(flows.app):
            for name, path in wanted.items():
                handle = await flows.app.workflows[name].astart(*flows.ARGUMENTS[name])
                await handle.aresult(RESULT_SECONDS)
                history = await _read(handle.id)
                history.write(path)
                sys.stdout.write(f"{path.name}: {len(history.steps)} steps\n")
    finally:
        await server.stop()


async def _read(run_id: str) -> History:
    link = connection.connect(flows.app.target)
    asked = workflows.GetRunRequest(run_id=run_id, include_payloads=True)
    run = (await io_thread.arun(link.call(methods.GET_RUN, asked))).run
    listed = workflows.ListRunStepsRequest(run_id=run_id)
    page = await io_thread.arun(link.call(methods.LIST_RUN_STEPS, listed))
    return History(run, page.steps)


if __name__ == "__main__":
    main()
