"""The peers: what each is told, where its documentation says so, and how its waiting work counts.

A worker gets its settings from here as they stand, so that the table shows what was measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from bench.peers import install


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer with one set of settings.

    Attributes:
        program: file in `node/` or `python/`.
        package: its distribution, whose version is pinned.
        settings: what its worker is told.
        left: counts what is not finished.
        stored: what it keeps of a finished task.
        enqueued_by: its own way to enqueue many.
        pages: documentation of the settings.
        step: tasks are durable functions of one step; else they do nothing.
    """

    name: str
    program: str
    package: str
    settings: Mapping[str, object]
    left: bytes
    stored: str
    pages: tuple[str, ...]
    enqueued_by: str
    step: bool = False

    @property
    def in_node(self) -> bool:
        """It runs in Node.js."""
        return self.program.endswith(".js")

    @property
    def version(self) -> str:
        """The pinned version."""
        if self.in_node:
            file = install.FOLDER / "node" / "package.json"
            return str(json.loads(file.read_text())["dependencies"][self.package])
        pins = (install.FOLDER / "requirements.txt").read_text().split()
        return dict(pin.split("==") for pin in pins)[self.package]


_PGBOSS = {
    "batchSize": 500,
    "localConcurrency": 4,
    "pollingIntervalSeconds": 0.5,
    "burstWhenBatchFull": True,
}
_PGBOSS_LEFT = b"select count(*) from pgboss.job where name = 'noop' and state < 'completed'"
_PGBOSS_PAGES = (
    "https://pgboss.io/api/workers#work-name-options-handler",
    "https://pgboss.io/api/jobs#insert-name-jobs-options",
)
_DBOS = {"worker_concurrency": 500, "polling_interval_sec": 0.1}
_DBOS_LEFT = b"""
    select count(*) from dbos.workflow_status
    where queue_name = 'bench' and status in ('ENQUEUED', 'PENDING')
"""
_DBOS_PAGES = (
    "https://docs.dbos.dev/python/reference/queues",
    "https://docs.dbos.dev/python/reference/client",
)
_ABSURD = {"concurrency": 100, "batch_size": 500}
_ABSURD_LEFT = b"select count(*) from absurd.t_default where state <> 'completed'"
_ABSURD_PAGES = ("https://earendil-works.github.io/absurd/sdks/python/",)

PEERS = (
    Peer(
        name="graphile-worker",
        program="node/graphile.js",
        package="graphile-worker",
        settings={
            "concurrentJobs": 24,
            "maxPoolSize": 25,
            "localQueue": {"size": 500},
            "completeJobBatchDelay": 0,
            "failJobBatchDelay": 0,
        },
        left=b"select count(*) from graphile_worker._private_jobs",
        stored="nothing: deletes the job",
        pages=("https://worker.graphile.org/docs/performance",),
        enqueued_by="addJobs",
    ),
    Peer(
        name="pg-boss",
        program="node/pgboss.js",
        package="pg-boss",
        settings=_PGBOSS,
        left=_PGBOSS_LEFT,
        stored="the job, no output: a batch ends as one",
        pages=_PGBOSS_PAGES,
        enqueued_by="insert",
    ),
    Peer(
        name="pg-boss-results",
        program="node/pgboss.js",
        package="pg-boss",
        settings={**_PGBOSS, "perJobResults": True},
        left=_PGBOSS_LEFT,
        stored="the job and its output",
        pages=_PGBOSS_PAGES,
        enqueued_by="insert",
    ),
    Peer(
        name="pgqueuer",
        program="python/pgqueuer_program.py",
        package="pgqueuer",
        settings={"batch_size": 500},
        left=b"select count(*) from pgqueuer",
        stored="a log row: deletes the job",
        pages=("https://janbjorge.github.io/pgqueuer/guides/performance-tuning",),
        enqueued_by="enqueue with lists",
    ),
    Peer(
        name="procrastinate",
        program="python/procrastinate_program.py",
        package="procrastinate",
        settings={"concurrency": 30},
        left=b"select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        stored="the job, no output",
        pages=("https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html",),
        enqueued_by="batch_defer_async",
    ),
    Peer(
        name="dbos",
        program="python/dbos_program.py",
        package="dbos",
        settings=_DBOS,
        left=_DBOS_LEFT,
        stored="the workflow and its output",
        pages=_DBOS_PAGES,
        enqueued_by="enqueue_in_transaction, one transaction",
    ),
    Peer(
        name="dbos-step",
        program="python/dbos_program.py",
        package="dbos",
        settings=_DBOS,
        left=_DBOS_LEFT,
        stored="the workflow, its step, both outputs",
        pages=_DBOS_PAGES,
        enqueued_by="enqueue_in_transaction, one transaction",
        step=True,
    ),
    Peer(
        name="absurd",
        program="python/absurd_program.py",
        package="absurd-sdk",
        settings=_ABSURD,
        left=_ABSURD_LEFT,
        stored="the task and its output",
        pages=_ABSURD_PAGES,
        enqueued_by="spawn, one transaction",
    ),
    Peer(
        name="absurd-step",
        program="python/absurd_program.py",
        package="absurd-sdk",
        settings=_ABSURD,
        left=_ABSURD_LEFT,
        stored="the task, its step, both outputs",
        pages=_ABSURD_PAGES,
        enqueued_by="spawn, one transaction",
        step=True,
    ),
)
