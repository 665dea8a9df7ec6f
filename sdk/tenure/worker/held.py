"""The jobs that a worker holds, by lease: what its heartbeats and its resumes name.

A lease is held until the server has acknowledged the result of its last job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.worker.job import Job


class Held:
    """Held is the table of leases; used on the I/O loop only."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[str, Job]] = {}

    def __bool__(self) -> bool:
        return bool(self._leases)

    @property
    def tokens(self) -> list[str]:
        """Tokens of all leases of which a job is held, oldest first."""
        return list(self._leases)

    @property
    def jobs(self) -> list[Job]:
        """All jobs held."""
        return [job for lease in self._leases.values() for job in lease.values()]

    def add(self, job: Job) -> bool:
        """Adds a job; returns False if it is held already (an assignment that came twice)."""
        lease = self._leases.setdefault(job.lease_token, {})
        if job.task_id in lease:
            return False
        lease[job.task_id] = job
        return True

    def remove(self, job: Job) -> None:
        """Removes a job whose result is acknowledged, if it is still held."""
        lease = self._leases.get(job.lease_token)
        if lease is None or lease.get(job.task_id) is not job:
            return
        del lease[job.task_id]
        if not lease:
            del self._leases[job.lease_token]

    def lose(self, lease_token: str) -> list[Job]:
        """Removes a lease that the server says is lost; returns its jobs."""
        return list(self._leases.pop(lease_token, {}).values())

    def find(self, task_id: str) -> list[Job]:
        """Returns the jobs of a task; more than one only if it was lost and given again."""
        return [lease[task_id] for lease in self._leases.values() if task_id in lease]
