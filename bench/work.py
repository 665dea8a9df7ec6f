"""Runs workers of one process until SIGTERM.

python -m bench.work ADDRESS CONCURRENCY [COUNT [QUEUE ...]]
"""

import sys

from bench import apps
from tenure import Worker

if __name__ == "__main__":
    app = apps.make(sys.argv[1]).app
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    queues = sys.argv[4:] or None
    workers = [Worker(app, concurrency=int(sys.argv[2]), queues=queues) for _ in range(count)]
    for worker in workers[1:]:
        worker.start()
    workers[0].run()
