"""What the programs here share: `prepare`, `enqueue COUNT` and `work`, as bench/peers/drain.py calls them.

The database is in the PG* variables, the worker's settings in BENCH_SETTINGS.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SETTINGS: dict[str, Any] = json.loads(os.environ["BENCH_SETTINGS"])
STEP = "BENCH_STEP" in os.environ


def main(
    *, prepare: Callable[[], None], enqueue: Callable[[int], None], work: Callable[[], None]
) -> None:
    """Runs the action that the command line asks for."""
    if sys.argv[1] == "enqueue":
        enqueue(int(sys.argv[2]))
    else:
        {"prepare": prepare, "work": work}[sys.argv[1]]()


def took(began: float) -> None:
    """Prints how long the call of a peer's bulk function took."""
    print(time.perf_counter() - began, flush=True)
