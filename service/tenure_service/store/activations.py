"""Activations of runs: what a run is handed to a worker with."""

from collections.abc import Sequence
from typing import NamedTuple

from tenure_service.engine import limits
from tenure_service.store import arrays, rows, statements, steps
from tenure_service.store.database import Conn


class Activation(NamedTuple):
    """What a worker is to know of a run, and the first of its steps."""

    row: rows.ActivationRow
    steps: steps.Page


def read(conn: Conn, runs: Sequence[tuple[str, str]]) -> dict[str, Activation]:
    """Reads what runs are handed with, by their ids; `runs` are (lease, run)."""
    run_ids = [run_id for _, run_id in runs]
    parameters = {
        "lease_ids": arrays.uuids(lease_id for lease_id, _ in runs),
        "run_ids": arrays.uuids(run_ids),
    }
    found = statements.many(conn, "activation_get", rows.ActivationRow, parameters)
    pages = steps.pages(conn, run_ids, limits.ACTIVATION_STEPS_BYTES)
    return {row.run_id: Activation(row, pages[row.run_id]) for row in found}
