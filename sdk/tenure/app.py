"""Apps: the set of tasks of one program, and the server they are sent to."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from tenure import channel, connection, errors
from tenure.task import AsyncTask, Declaration, SyncTask, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Protocol

    from tenure.policy import Retry, Seconds, Timeouts

    P = ParamSpec("P")
    R = TypeVar("R")

    class TaskDecorator(Protocol):
        """TaskDecorator turns a function into a task, typed by the kind of function."""

        # A coroutine function also is a function that returns a coroutine: the first one wins.
        @overload
        def __call__(  # type: ignore[overload-overlap] # pyright: ignore[reportOverlappingOverload]
            self, function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> AsyncTask[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class App:
    """App holds the tasks of a program. Nothing connects before the first call needs it.

    Args:
        name: Name of the program, for people.
        address: `host:port` of the server; default TENURE_ADDRESS, then 127.0.0.1:7711, both read
            at the first call.
        namespace: Default TENURE_NAMESPACE, then `default`.
        api_key: Default TENURE_API_KEY, then none.
        version: Version of the program, shown with its workers.
    """

    def __init__(
        self,
        name: str,
        address: str | None = None,
        namespace: str | None = None,
        api_key: str | None = None,
        *,
        version: str = "",
    ) -> None:
        if not name:
            raise errors.UsageError("an app needs a name")
        self.name = name
        self.version = version
        self._address = address
        self._namespace = namespace
        self._api_key = api_key
        self._tasks: dict[str, Task[..., Any]] = {}
        self._connection: connection.Connection | None = None

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self._tasks)} tasks>"

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Tasks by name, in the order of their declaration."""
        return types.MappingProxyType(self._tasks)

    @property
    def connection(self) -> connection.Connection:
        """The connection to the server, made at the first use and kept."""
        if self._connection is None:
            self._connection = connection.connect(self.target)
        return self._connection

    @property
    def target(self) -> channel.Target:
        """Which namespace of which server the app speaks to."""
        return channel.target(self._address, self._namespace, self._api_key)

    # A coroutine function also is a function that returns a coroutine: the first one wins.
    @overload
    def task(  # type: ignore[overload-overlap] # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Any:
        """Makes a function a task: `@app.task` or `@app.task(queue=..., retry=...)`.

        `def` functions run in threads of a worker, `async def` functions on an event loop of it.

        Args:
            function: The function, where the decorator is used without parentheses.
            name: Name of the task; default the function's own. Other programs know it by this.
            queue: Queue of the task where a call says nothing else.
            retry: Retries that this code declares; an operator or a call may say otherwise.
            timeout: Limit of each attempt from the handler's start, or a set of limits.

        Raises:
            HandlerRefused: the function cannot be a task, or the app has one of this name.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            own_name = name or getattr(function, "__name__", "")
            if not own_name or own_name == "<lambda>":
                raise errors.HandlerRefused(f"{function!r} has no name; pass name=...")
            if own_name in self._tasks:
                raise errors.HandlerRefused(
                    f"the app {self.name!r} has a task {own_name!r} already; pass name=..."
                )
            is_async = inspect.iscoroutinefunction(function)
            declaration = Declaration(
                self,
                function,
                name=own_name,
                queue=queue,
                retry=retry,
                timeout=timeout,
                is_async=is_async,
            )
            kind = AsyncTask if is_async else SyncTask
            made: Task[..., Any] = kind(declaration)
            self._tasks[own_name] = made
            return made

        return declare if function is None else declare(function)
