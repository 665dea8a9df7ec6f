"""How deep queues are, asked of the database when somebody scrapes, and not often.

The question reads what waits once, so it is asked at most every 15 seconds, however many scrape; a
sample that could not be renewed is dropped, since an old depth looks like a queue that stands still.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tenure_service.engine.errors import TenureError
from tenure_service.store.database import Database, DatabaseError
from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import LABEL_SETS_MAX, Observed
from tenure_service.usecase import operate

if TYPE_CHECKING:
    from datetime import timedelta

    from tenure_service.store.rows import QueueDepthRow

_log = logging.getLogger(__name__)

_AGE_SECONDS: Final = 15.0
#: A scrape waits no longer for the question than Prometheus does for the scrape, by default.
_WAIT_SECONDS: Final = 5.0


class Depth:
    """The last sample of one server; renewed on its event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asked_at: float | None = None
        self._question: asyncio.Task[None] | None = None
        self._rows: list[QueueDepthRow] = []
        self._ahead: timedelta | None = None

    async def renew(self) -> None:
        """Asks again if the sample is old; waits a few seconds for it."""
        now = time.monotonic()
        if self._question is None and (
            self._asked_at is None or now - self._asked_at >= _AGE_SECONDS
        ):
            self._asked_at = now
            self._question = asyncio.get_running_loop().create_task(self._ask())
        if self._question is not None:
            await asyncio.wait({self._question}, timeout=_WAIT_SECONDS)

    def observe(self) -> Iterator[Observed]:
        """Tells the sample."""
        for row in self._rows:
            place = row.namespace, row.queue, row.name
            yield metrics.QUEUE_READY, row.ready_count, place
            yield metrics.QUEUE_AGE, row.oldest_seconds, place
            yield metrics.QUEUE_DELAYED, row.delayed_count, place
            yield metrics.QUEUE_LEASED, row.leased_count, place
            yield metrics.QUEUE_DEAD, row.dead_count, place
            yield metrics.QUEUE_WORKERS, row.worker_count, place
        if self._ahead is not None:
            yield metrics.PARTITIONS_AHEAD, self._ahead.total_seconds(), ()

    def close(self) -> None:
        """Waits for no answer any more."""
        if self._question is not None:
            self._question.cancel()

    async def _ask(self) -> None:
        try:
            self._rows, self._ahead = await asyncio.to_thread(
                operate.queue_depths, self._database, row_count_max=LABEL_SETS_MAX
            )
        except (TenureError, DatabaseError) as exc:
            self._rows, self._ahead = [], None
            _log.warning("queues were not counted: %s", exc)
        finally:
            self._question = None
