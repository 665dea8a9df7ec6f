"""What a worker holds, by lease: what its heartbeats and its resumes name.

A lease is held until the server has acknowledged the result of the last job or activation under it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tenure.worker.activations import Hosted
    from tenure.worker.job import Job

# One hand-out: an attempt at a task, or an activation of a run.
HandOut: TypeAlias = "Job | Hosted"


class Held:
    """Held is the table of leases; used on the I/O loop only."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[str, HandOut]] = {}

    def __bool__(self) -> bool:
        return bool(self._leases)

    @property
    def tokens(self) -> list[str]:
        """Tokens of all leases of which something is held, oldest first."""
        return list(self._leases)

    def add(self, job: HandOut) -> bool:
        """Adds a hand-out; returns False if it is held already (an assignment that came twice)."""
        lease = self._leases.setdefault(job.lease_token, {})
        if job.task_id in lease:
            return False
        lease[job.task_id] = job
        return True

    def remove(self, job: HandOut) -> None:
        """Removes a hand-out whose result is acknowledged, if it is still held."""
        lease = self._leases.get(job.lease_token)
        if lease is None or lease.get(job.task_id) is not job:
            return
        del lease[job.task_id]
        if not lease:
            del self._leases[job.lease_token]

    def lose(self, lease_token: str) -> list[HandOut]:
        """Removes a lease that the server says is lost; returns what it was for."""
        return list(self._leases.pop(lease_token, {}).values())

    def find(self, task_id: str) -> list[HandOut]:
        """Returns the hand-outs of a task or run; more than one only if it was lost and given again."""
        return [lease[task_id] for lease in self._leases.values() if task_id in lease]
