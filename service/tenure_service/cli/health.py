"""`tenure health`: whether a server takes traffic, for the health checks of containers and units."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits

if TYPE_CHECKING:
    import argparse

    from tenure.channel import Target

_SERVING: Final = "SERVING"


def run(values: argparse.Namespace) -> None:
    """Prints one line; it fails unless the server says SERVING."""
    import tenure
    from tenure import channel

    try:
        target = channel.target(values.address, None, None)
        said = asyncio.run(_ask(target, values.timeout))
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc
    if said != _SERVING:
        raise exits.CommandFailed(
            f"{target.address} says {said}: its database takes no writes, or it is stopping"
        )
    print(f"{target.address} {said}")


async def _ask(target: Target, seconds: float) -> str:
    from tenure import diagnosis
    from tenure_service.rpc import probe

    asked = target.open_channel()
    try:
        return await probe.ask(asked, seconds=seconds)
    except probe.NoAnswer as exc:
        cause = await diagnosis.mismatch(target)
        text = " ".join((cause or f"{target.address} does not answer: {exc}").split())
        raise exits.CommandFailed(text) from exc
    finally:
        await asked.close()
