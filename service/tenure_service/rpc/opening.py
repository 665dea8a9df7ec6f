"""What a worker says of itself when it comes: who it is, what it runs, and how much of it."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tenure.v1 import worker_pb2 as worker
from tenure_service.dispatch.session import Slots
from tenure_service.engine import limits
from tenure_service.rpc import policies
from tenure_service.rpc.check import Check
from tenure_service.store.registry import ANY_VERSION
from tenure_service.store.versions import WorkflowHandler

_KINDS: Final = {
    worker.HANDLER_KIND_UNSPECIFIED,
    worker.HANDLER_KIND_TASK,
    worker.HANDLER_KIND_WORKFLOW,
}


class Handlers(NamedTuple):
    """What a worker can run."""

    #: As (queue, name).
    tasks: list[tuple[str, str]]
    workflows: list[WorkflowHandler]

    @property
    def queues(self) -> Iterator[str]:
        """The queue of each."""
        yield from (queue for queue, _ in self.tasks)
        yield from (one.queue for one in self.workflows)

    def to_json(self) -> list[dict[str, object]]:
        """Gives what a session remembers of them."""
        found: list[dict[str, object]] = [
            {"name": name, "queue": queue} for queue, name in self.tasks
        ]
        return found + [one.to_json() for one in self.workflows]


def handlers(check: Check, found: Sequence[worker.Handler]) -> Handlers:
    """Reads what a worker can run."""
    check.count("handlers", found, limits.HANDLER_COUNT_MAX)
    served = Handlers([], [])
    workflows: set[tuple[str, str]] = set()
    for place, handler in enumerate(found):
        path = f"handlers[{place}]"
        name = check.name(f"{path}.name", handler.name, required=True)
        queue = check.name(f"{path}.queue", handler.queue) or "default"
        if handler.kind not in _KINDS:
            check.wrong(f"{path}.kind", "is no kind that this server knows")
        if handler.kind != worker.HANDLER_KIND_WORKFLOW:
            _check_task(check, path, handler)
            served.tasks.append((queue, name))
            continue
        if (queue, name) in workflows:
            # One worker has one version of a function; which of two a run ran with is a question.
            check.wrong(f"{path}.name", "is a workflow of this queue that was named before")
        workflows.add((queue, name))
        served.workflows.append(_workflow(check, path, queue, handler))
    return served


def tasks_only(check: Check, found: Sequence[worker.Handler]) -> list[tuple[str, str]]:
    """Reads what a worker that polls can run: tasks."""
    served = handlers(check, found)
    for place, handler in enumerate(found):
        if handler.kind == worker.HANDLER_KIND_WORKFLOW:
            check.wrong(f"handlers[{place}].kind", "runs are handed out on the Work stream alone")
    return served.tasks


def _check_task(check: Check, path: str, handler: worker.Handler) -> None:
    for field in ("version", "compatible_versions", "pinned"):
        if getattr(handler, field):
            check.wrong(f"{path}.{field}", "is for workflows")


def _workflow(check: Check, path: str, queue: str, handler: worker.Handler) -> WorkflowHandler:
    version = _version(check, f"{path}.version", handler.version)
    field = f"{path}.compatible_versions"
    check.count(field, handler.compatible_versions, limits.COMPATIBLE_VERSION_COUNT_MAX, low=0)
    compatible = dict.fromkeys(
        _version(check, f"{field}[{number}]", one)
        for number, one in enumerate(handler.compatible_versions)
    )
    compatible.pop(version, None)
    if handler.HasField("policy"):
        check.wrong(f"{path}.policy", "is for tasks")
    return WorkflowHandler(
        queue=queue,
        name=handler.name,
        version=version,
        compatible_versions=tuple(compatible),
        pinned=handler.pinned,
    )


def _version(check: Check, field: str, value: str) -> str:
    check.text(field, value, limits.APP_VERSION_BYTES_MAX, required=True)
    if value == ANY_VERSION:
        check.wrong(field, f"must not be {ANY_VERSION!r}")
    return value


def declared(check: Check, found: Sequence[worker.Handler]) -> list[tuple[str, dict[str, object]]]:
    """Reads what a worker's code declares of tasks, as (name, partial policy); one entry a name."""
    by_name: dict[str, dict[str, object]] = {}
    for place, handler in enumerate(found):
        if handler.kind != worker.HANDLER_KIND_WORKFLOW:
            partial = policies.read(check, f"handlers[{place}].policy", handler.policy)
            by_name[handler.name] = {} if partial is None else partial.to_json()
    return list(by_name.items())


def identity(check: Check, found: worker.WorkerIdentity) -> worker.WorkerIdentity:
    """Checks who a worker is."""
    check.text("worker.name", found.name, limits.NAME_BYTES_MAX, required=True)
    check.text("worker.sdk", found.sdk, 100)
    check.text("worker.sdk_version", found.sdk_version, 100)
    check.text("worker.app_version", found.app_version, limits.NAME_BYTES_MAX)
    return found


def slots(check: Check, found: worker.Slots) -> Slots:
    """Reads credits, and grants what this server allows."""
    check.number("slots.total", found.total, 0, limits.SLOT_COUNT_MAX)
    check.number("slots.activations", found.activations, 0, limits.SLOT_COUNT_MAX)
    if len(found.by_queue) > limits.HANDLER_COUNT_MAX:
        check.wrong("slots.by_queue", f"has more than {limits.HANDLER_COUNT_MAX} entries")
    for queue, count in found.by_queue.items():
        field = f"slots.by_queue[{queue[:50]}]"
        check.text(field, queue, limits.NAME_BYTES_MAX)
        check.number(field, count, 0, limits.SLOT_COUNT_MAX)
    return Slots(found.total, dict(found.by_queue), found.activations)
