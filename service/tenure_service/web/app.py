"""The paths: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever keeps servers alive.

Health tells nothing of anybody and needs no key; measures name queues and tasks, and need one where
the server says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tenure_service.engine.errors import TenureError
from tenure_service.telemetry import metrics
from tenure_service.telemetry.prometheus import Text
from tenure_service.usecase.access import Keys

_log = logging.getLogger(__name__)

_BEARER: Final = "bearer "
_CACHE: Final = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from."""

    #: Says whether traffic should come here.
    ready: Callable[[], bool]
    #: Names the loops that hang.
    stuck: Callable[[], list[str]]
    #: Renews what is asked of the database before a scrape.
    renew: Callable[[], Awaitable[None]]
    #: Who may read measures; None: whoever reaches the port.
    keys: Keys | None


def make(sources: Sources) -> Starlette:
    """Makes the application."""
    text = Text(metrics.REGISTRY)

    async def measures(request: Request) -> Response:
        if sources.keys is not None:
            refused = await _refuse(sources.keys, request.headers.get("authorization"))
            if refused is not None:
                return refused
        await sources.renew()
        body, content_type = await asyncio.to_thread(text.write, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, **_CACHE})

    async def healthz(_request: Request) -> Response:
        stuck = sources.stuck()
        if stuck:
            _log.error("loops hang: %s", ", ".join(stuck))
            return _plain(f"loops hang: {', '.join(stuck)}", 503)
        return _plain("ok")

    async def readyz(_request: Request) -> Response:
        return _plain("ok") if sources.ready() else _plain("not ready", 503)

    return Starlette(
        routes=[
            Route("/metrics", measures),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )


def _plain(text: str, status: int = 200) -> Response:
    return PlainTextResponse(f"{text}\n", status, headers=_CACHE)


async def _refuse(keys: Keys, header: str | None) -> Response | None:
    """Gives the answer to who has no key that counts, of whatever scope."""
    secret = header
    if header is not None and header[: len(_BEARER)].lower() == _BEARER:
        secret = header[len(_BEARER) :].strip()
    try:
        if keys.known(secret) is None:
            await asyncio.to_thread(keys.identify, secret)
    except TenureError as exc:
        if exc.reason not in metrics.REFUSALS:
            return _plain(exc.message, 503)
        metrics.CALLS_REFUSED.add(1, exc.reason)
        challenge = {"www-authenticate": "Bearer", **_CACHE}
        return PlainTextResponse(f"{exc.message}\n", 401, headers=challenge)
    return None
