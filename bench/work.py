"""Runs one worker for a measurement."""

import sys

from bench.apps import app
from tenure import Worker

if __name__ == "__main__":
    Worker(app, concurrency=int(sys.argv[1])).run()
