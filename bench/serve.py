"""Runs one server for a measurement, `DSN LISTEN`: prints its address, stops on SIGTERM."""

import asyncio
import sys

from tenure_service.config import ServerConfig
from tenure_service.main import Server, serve


def _started(server: Server) -> None:
    print(server.address, flush=True)


if __name__ == "__main__":
    config = ServerConfig.model_validate({"database": sys.argv[1], "listen": sys.argv[2]})
    asyncio.run(serve(config, started=_started))
