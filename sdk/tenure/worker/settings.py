"""What a worker says of itself, and how it runs what it is given."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenure.isolation import Boot
    from tenure.task import Declaration
    from tenure.v1 import worker_pb2
    from tenure.workflow.declaration import WorkflowDeclaration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings is what a worker says of itself.

    Attributes:
        identity: Who it is.
        declarations: Handlers by task name.
        handlers: What it registers: names and queues.
        concurrency: Handlers that run at once.
        queue_slots: Limits by queue; empty: none.
        workflows: Workflows by name.
        activations: Activations of runs that it holds at once.
        prefetch_max: Most tasks taken at a time, once short handlers have earned it.
        isolated: Names of the tasks whose handlers run in processes of their own.
        boot: How such a process finds them; None if there are none.
        ends_refused: True if a refusal before the first connection ends it; see `endings`.
    """

    identity: worker_pb2.WorkerIdentity
    declarations: Mapping[str, Declaration]
    handlers: Sequence[worker_pb2.Handler]
    concurrency: int
    queue_slots: Mapping[str, int]
    prefetch_max: int
    workflows: Mapping[str, WorkflowDeclaration] = dataclasses.field(default_factory=dict)
    activations: int = 0
    isolated: frozenset[str] = frozenset()
    boot: Boot | None = None
    ends_refused: bool = False
