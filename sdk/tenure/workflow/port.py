"""What an activation asks of the worker that runs it, and what it needs to know of its workflow.

A worker makes an `activation.Activation` of an assignment, awaits its `run()` on the loop of its
handlers, and tells it on that loop what comes: `resolve`, `cancel`, `release`, `drop`. In the other
direction the activation calls its `Port`, on that loop, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tenure.payload_codec import PayloadCodec
    from tenure.v1 import payload_pb2, run_pb2, work_stream_pb2, worker_service_pb2

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ActivationLost(Exception):
    """The lease of the activation is gone: it is dropped, and nothing of it is reported."""


class Port(Protocol):
    """Port is the way of one activation to the server."""

    async def record(
        self, steps: Sequence[run_pb2.NewStep]
    ) -> Sequence[work_stream_pb2.StepRecord]:
        """Records steps, 1 to 1,000, and gives the answer to each.

        It is tried again until the server has answered. An error other than ActivationLost gives
        the activation back: nothing that it has not recorded counts.

        Raises:
            ActivationLost: the server refused it, because the lease is gone.
        """
        raise NotImplementedError

    def wait(self, child_ids: Sequence[str]) -> None:
        """Asks for `Activation.resolve` once each of these tasks and runs is over.

        It holds until the activation ends, over any number of streams. What is over already is
        told, too. No child is named twice.
        """
        raise NotImplementedError

    async def more_steps(self, page_token: str) -> worker_service_pb2.ListStepsResponse:
        """Gives a further page of recorded steps.

        Raises:
            ActivationLost: the server refused it, because the lease is gone.
        """
        raise NotImplementedError


class Shape(Protocol):
    """Shape reads the arguments of a workflow, without the context, and writes its result."""

    def decode_call(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Reads a JSON object into positional and named arguments, the context left out."""
        raise NotImplementedError

    def encode_result(self, value: Any) -> bytes:
        """Returns what the function returned as JSON."""
        raise NotImplementedError


class Workflow(Protocol):
    """Workflow is what an activation needs to know of a declared workflow."""

    @property
    def name(self) -> str:
        """Name of the workflow."""
        raise NotImplementedError

    @property
    def function(self) -> Callable[..., Any]:
        """The function; its first parameter is the context."""
        raise NotImplementedError

    @property
    def is_async(self) -> bool:
        """True for an `async def`, which takes a Context; False for a `def` and SyncContext."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """Reads its arguments and writes its result."""
        raise NotImplementedError

    @property
    def codec(self) -> PayloadCodec | None:
        """Codec of the app."""
        raise NotImplementedError


class Startable(Protocol[P, R_co]):
    """Startable is a workflow, or one with options, that `ctx.child` and `ctx.start` can start."""

    @property
    def name(self) -> str:
        """Name of the workflow."""
        raise NotImplementedError

    def new_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> run_pb2.NewRun:
        """Returns the run to start with these arguments, the context left out.

        Raises:
            WrongType, ValueRefused, CodecFailed, PayloadTooLarge: as of starting it from outside.
        """
        raise NotImplementedError

    def decode_result(self, output: payload_pb2.Payload, where: str) -> R_co:
        """Reads what its function returned."""
        raise NotImplementedError

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Starts a run from outside; its parameters are those of `ctx.child` and `ctx.start`."""
        raise NotImplementedError
