"""Wake-ups between servers: one NOTIFY for many changes, one LISTEN a process.

A notification is a hint (INV-10): with every one of them lost, `due` and the look-up of waiters
once a second make the same progress. What happens within some milliseconds of a NOTIFY is collected
for the next one, on a connection of its own, never in the hot transaction.
"""

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tenure_service.dispatch.waiters import BUCKETS, bucket
from tenure_service.store.listen import Channel
from tenure_service.telemetry import metrics

_log = logging.getLogger(__name__)

_COLLECT_SECONDS = 0.02
_LANES_MAX = 300
#: Above this many buckets a notification says "all".
_BUCKETS_MAX = 700
#: NOTIFY takes fewer than 8,000 bytes.
_TEXT_BYTES_MAX = 7_999


@dataclass(slots=True)
class News:
    """What servers tell each other: lanes with their best rank, ended tasks, cancellations."""

    ready: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    cancels: bool = False

    def __bool__(self) -> bool:
        return bool(self.ready or self.over or self.cancels)

    def add_ready(self, ranks: Mapping[int, int]) -> None:
        """Adds lanes that have something new."""
        for lane_id, rank in ranks.items():
            self.ready[lane_id] = min(rank, self.ready.get(lane_id, rank))

    def text(self, server: str) -> str:
        """Gives the payload of a notification; what does not fit is found by polling."""
        over: list[int] | bool = len(self.over) > _BUCKETS_MAX or sorted(self.over)
        ready = list(self.ready.items())[:_LANES_MAX]
        text = self._text(server, ready, over=over)
        return text if len(text) <= _TEXT_BYTES_MAX else self._text(server, ready, over=True)

    def _text(self, server: str, ready: list[tuple[int, int]], *, over: list[int] | bool) -> str:
        return json.dumps(
            {"s": server, "r": ready, "o": over, "c": self.cancels}, separators=(",", ":")
        )


def read(text: str) -> tuple[str, News] | None:
    """Reads the payload of a notification; None if it is none of ours."""
    try:
        body = json.loads(text)
        over = set(range(BUCKETS)) if body["o"] is True else set(body["o"])
        return body["s"], News(dict(body["r"]), over, bool(body["c"]))
    except (ValueError, KeyError, TypeError):
        return None


class Wake:
    """Tells other servers what this one did, and hears what they did."""

    def __init__(self, dsn: str, schema: str, *, heard: Callable[[News], Awaitable[None]]) -> None:
        self._channel = Channel(dsn, f"tenure_wake_{schema}")
        self._heard = heard
        self._server = uuid.uuid4().hex[:12]
        self._news = News()
        self._some = asyncio.Event()

    def ready(self, ranks: Mapping[int, int]) -> None:
        """Tells of lanes that have something new."""
        self._news.add_ready(ranks)
        self._some.set()

    def over(self, task_ids: Iterable[str]) -> None:
        """Tells of tasks that are over."""
        self._news.over.update(map(bucket, task_ids))
        self._some.set()

    def cancels(self) -> None:
        """Tells of requests to cancel."""
        self._news.cancels = True
        self._some.set()

    async def tell(self) -> None:
        """Sends notifications until it is cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            news, self._news = self._news, News()
            if news:
                await asyncio.to_thread(self._channel.notify, news.text(self._server))
                metrics.NOTIFICATIONS_SENT.add()
                # What comes now is collected; the first after a silence is told at once.
                await asyncio.sleep(_COLLECT_SECONDS)

    async def hear(self) -> None:
        """Hears notifications until it is cancelled; a lost connection raises."""
        async with contextlib.aclosing(self._channel.listen()) as notifications:
            async for text in notifications:
                parsed = read(text)
                if parsed is None:
                    _log.warning("a notification was not understood: %.100s", text)
                elif parsed[0] != self._server:
                    metrics.NOTIFICATIONS_HEARD.add()
                    await self._heard(parsed[1])

    def close(self) -> None:
        """Closes the connection that notifies."""
        self._channel.close()
