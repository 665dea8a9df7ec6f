"""Runs one worker for a measurement, until SIGTERM: `python -m bench.work ADDRESS CONCURRENCY`."""

import sys

from bench import apps
from tenure import Worker

if __name__ == "__main__":
    Worker(apps.make(sys.argv[1]).app, concurrency=int(sys.argv[2])).run()
