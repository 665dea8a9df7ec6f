"""Apps: the set of tasks of one program, and the server they are sent to."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from tenure import (
    channel,
    check,
    connection,
    errors,
    isolation,
    lifespans,
    payload_codec,
    policy,
)
from tenure.remote import Remote
from tenure.task import AsyncTask, Declaration, SyncTask, Task, no_declaration
from tenure.workflow import calls, declaration

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Concatenate, Protocol

    from tenure import security
    from tenure.policy import Retry, Seconds, Timeouts
    from tenure.worker import Worker
    from tenure.workflow.calls import Step
    from tenure.workflow.context import Context
    from tenure.workflow.declaration import Versioning, Workflow
    from tenure.workflow.sync_context import SyncContext

    P = ParamSpec("P")
    R = TypeVar("R")
    Input = TypeVar("Input")
    Output = TypeVar("Output")

    class TaskDecorator(Protocol):
        """TaskDecorator turns a function into a task, typed by the kind of function."""

        # A coroutine function also is a function that returns a coroutine: the first one wins.
        @overload
        def __call__(  # type: ignore[overload-overlap] # pyright: ignore[reportOverlappingOverload]
            self, function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> AsyncTask[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...

    class WorkflowDecorator(Protocol):
        """WorkflowDecorator turns a function into a workflow, typed by its other parameters."""

        @overload
        def __call__(
            self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
        ) -> Workflow[P, R]: ...
        @overload
        def __call__(
            self, function: Callable[Concatenate[SyncContext, P], R], /
        ) -> Workflow[P, R]: ...

    class StepDecorator(Protocol):
        """StepDecorator turns a function into a step."""

        def __call__(self, function: Callable[P, R], /) -> Step[P, R]:
            """Makes a step of a function."""
            raise NotImplementedError


class App:
    """App holds the tasks and workflows of a program. Nothing connects before the first call needs it.

    Args:
        name: Name of the program, for people.
        address: `host:port` of the server; default TENURE_ADDRESS, then 127.0.0.1:7711, both read
            at the first call.
        namespace: Default TENURE_NAMESPACE, then `default`.
        api_key: Default TENURE_API_KEY, then none.
        version: Version of the program, shown with its workers, and of the code of all its
            workflows. Empty: each workflow has that of its function's source.
        tls: True for TLS with public authorities, the path of a CA file, or `tenure.TLS(...)`;
            default TENURE_TLS_CA, TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY, then plain text.
        codec: Encodes and decodes all payloads of the app; see `tenure.PayloadCodec`.

    Raises:
        WrongType, WrongValue: an argument that no server could be asked with.
    """

    def __init__(
        self,
        name: str,
        address: str | None = None,
        namespace: str | None = None,
        api_key: str | None = None,
        *,
        version: str = "",
        tls: security.Argument = None,
        codec: payload_codec.PayloadCodec | None = None,
    ) -> None:
        check.text(name, "the name of an app")
        check.text(version, "version", empty=True)
        channel.check_target(address, namespace, api_key, tls)
        self.name = name
        self.version = version
        self.codec = payload_codec.from_argument(codec)
        self._tls = tls
        self._address = address
        self._namespace = namespace
        self._api_key = api_key
        self._tasks: dict[str, Task[..., Any]] = {}
        self._workflows: dict[str, Workflow[..., Any]] = {}
        self._connection: connection.Connection | None = None

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self._tasks)} tasks, {len(self._workflows)} workflows>"

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Tasks by name, in the order of their declaration."""
        return types.MappingProxyType(self._tasks)

    @property
    def workflows(self) -> Mapping[str, Workflow[..., Any]]:
        """Workflows by name, in the order of their declaration."""
        return types.MappingProxyType(self._workflows)

    @property
    def connection(self) -> connection.Connection:
        """The connection to the server, made at the first use and kept."""
        if self._connection is None:
            self._connection = connection.connect(self.target)
        return self._connection

    @property
    def target(self) -> channel.Target:
        """Which namespace of which server the app speaks to."""
        return channel.target(self._address, self._namespace, self._api_key, self._tls)

    def lifespan(
        self, *, worker: bool | Worker = True, grace: float = 30.0
    ) -> Callable[[object], contextlib.AbstractAsyncContextManager[None]]:
        """Returns a lifespan for FastAPI, Starlette and whatever else takes one.

            api = FastAPI(lifespan=app.lifespan())

        A worker starts with the web program and stops with it; signals stay with the web server.
        It goes on trying while no server answers, so that the web program starts nevertheless.

        Args:
            worker: True for `Worker(app)`, False for none, or a worker made as you like.
            grace: Seconds for handlers at the stop; a web server's own limit may be shorter.

        Raises:
            WrongType, WrongValue: `worker` is something else, or of another app.
        """
        return lifespans.make(self, worker, grace)

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
        mode: isolation.Mode | None = None,
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
        mode: isolation.Mode | None = None,
        **others: Any,
    ) -> Any:
        """Makes a function a task: `@app.task` or `@app.task(queue=..., retry=...)`.

        `def` functions run in threads of a worker, `async def` functions on an event loop of it;
        with mode="process" each runs in a process of its own, which is killed if it does not obey
        a cancellation.

        Args:
            function: The function, where the decorator is used without parentheses.
            name: Name of the task; default the function's own. Other programs know it by this.
            queue: Queue of the task where a call says nothing else.
            retry: Retries that this code declares; an operator or a call may say otherwise.
            timeout: Limit of each attempt from the handler's start, or a set of limits.
            mode: "thread" or "process"; default what the worker says.
            others: Nothing: what other task queues take is refused with the way to say it here.

        Raises:
            HandlerRefused: the function cannot be a task, an annotation has no JSON form or refuses
                its default, or the app has a task of this name.
            WrongType, WrongValue: an option that no server would take.
        """
        if others:
            raise no_declaration(next(iter(others)))
        if function is not None and not callable(function):
            raise check.wrong_type("what app.task makes a task of", "a function", function)
        if name is not None:
            check.text(name, "name")
        check.text(queue, "queue")
        policy.check_policy(retry, timeout)
        isolation.check_mode(mode)

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            own_name = self._own_name(function, name, "task", self._tasks)
            if mode == "process":
                isolation.check_importable(function, own_name)
            is_async = inspect.iscoroutinefunction(function)
            declaration = Declaration(
                self,
                function,
                name=own_name,
                queue=queue,
                retry=retry,
                timeout=timeout,
                mode=mode,
                is_async=is_async,
            )
            declaration.signature.resolve_early()
            kind = AsyncTask if is_async else SyncTask
            made: Task[..., Any] = kind(declaration)
            self._tasks[own_name] = made
            return made

        return declare if function is None else declare(function)

    # A coroutine function also is a function that returns a coroutine: the first one wins.
    @overload
    def workflow(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Workflow[P, R]: ...
    @overload
    def workflow(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        timeout: Seconds | None = None,
        recovery_attempts: int | None = None,
        versioning: Versioning = "replay",
        compatible_with: Sequence[str] = (),
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        timeout: Seconds | None = None,
        recovery_attempts: int | None = None,
        versioning: Versioning = "replay",
        compatible_with: Sequence[str] = (),
    ) -> Any:
        """Makes a function a workflow: `@app.workflow` or `@app.workflow(queue=...)`.

            @app.workflow
            async def fulfil(ctx: tenure.Context, order: Order) -> str:
                stock = await ctx.step(reserve, order)
                return await ctx.task(ship, order, stock)

        An `async def` takes a `Context` first, a `def` a `SyncContext`. A worker runs the function
        from its start whenever the run goes on; what its context has recorded is not done again.

        Args:
            function: The function, where the decorator is used without parentheses.
            name: Name of the workflow; default the function's own. Other programs know it by this.
            queue: Queue of its runs where a start says nothing else.
            timeout: Time from the start of a run until it ends as TIMED_OUT. None: none.
            recovery_attempts: Times in a row that a run may lose its worker before it is BLOCKED;
                default 10.
            versioning: "replay": once nobody has the version that a run began with, the newest code
                tries to go on. "pinned": never.
            compatible_with: Versions whose runs this code goes on with as with its own.

        Raises:
            HandlerRefused: the function cannot be a workflow, an annotation has no JSON form or
                refuses its default, or the app has a workflow of this name.
            WrongType, WrongValue: an option that no server would take.
        """
        if function is not None and not callable(function):
            raise check.wrong_type("what app.workflow makes a workflow of", "a function", function)
        if name is not None:
            check.text(name, "name")
        compatible = declaration.check_options(
            queue=queue,
            timeout=timeout,
            recovery_attempts=recovery_attempts,
            versioning=versioning,
            compatible_with=compatible_with,
        )
        if self.version:
            declaration.check_version(self.version, "the version of an app with workflows")

        def declare(function: Callable[..., Any]) -> Workflow[..., Any]:
            own_name = self._own_name(function, name, "workflow", self._workflows)
            declared = declaration.WorkflowDeclaration(
                self,
                function,
                name=own_name,
                queue=queue,
                timeout=timeout,
                recovery_attempts=recovery_attempts,
                versioning=versioning,
                compatible_with=compatible,
                is_async=inspect.iscoroutinefunction(function),
            )
            declared.signature.resolve_early()
            made: Workflow[..., Any] = declaration.Workflow(declared)
            self._workflows[own_name] = made
            return made

        return declare if function is None else declare(function)

    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
    ) -> StepDecorator: ...
    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
    ) -> Any:
        """Gives a function options for `ctx.step`: `@app.step` or `@app.step(retry=Retry(3))`.

        Any function can be a step without it. With it, calling it inside a workflow by mistake,
        without `ctx.step`, is refused (NotCheckpointed).

        Args:
            function: The function, where the decorator is used without parentheses.
            name: Name of the step; default the function's own. It is recorded and compared.
            retry: Retries, in the memory of the worker; default none.
            timeout: Limit of each attempt.

        Raises:
            WrongType, WrongValue: an option that cannot be followed.
        """
        if function is not None and not callable(function):
            raise check.wrong_type("what app.step makes a step of", "a function", function)
        options = calls.StepOptions(name=name, retry=retry, timeout=timeout)

        def declare(function: Callable[..., Any]) -> Step[..., Any]:
            return calls.Step(function, options)

        return declare if function is None else declare(function)

    @overload
    def remote(
        self,
        name: str,
        /,
        *,
        input: type[Input],
        output: type[Output],
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Remote[[Input], Output]: ...
    @overload
    def remote(
        self,
        name: str,
        /,
        *,
        input: type[Input],
        output: object = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Remote[[Input], Any]: ...
    @overload
    def remote(
        self,
        name: str,
        /,
        *,
        input: None = None,
        output: type[Output],
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Remote[..., Output]: ...
    @overload
    def remote(
        self,
        name: str,
        /,
        *,
        input: None = None,
        output: object = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Remote[..., Any]: ...
    def remote(
        self,
        name: str,
        /,
        *,
        input: Any = None,  # noqa: A002 - the word of the API
        output: Any = None,
        queue: str = "default",
        retry: Retry | None = None,
        timeout: Seconds | Timeouts | None = None,
    ) -> Remote[..., Any]:
        """Returns a stub for a task whose handler is in another program, in whatever language.

            ship = app.remote("ship", input=Order, output=Label)
            ship.enqueue(Order(17, "lamp")).result()

        Nothing is registered: workers of this app do not serve it.

        Args:
            name: Name of the task, as its worker registers it.
            input: A pydantic model, a dataclass or a TypedDict, whose fields are the parameters:
                a call takes an instance, or the fields by name. None: any JSON values by name.
            output: Type of the result. None: any JSON value.
            queue: Queue of the task where a call says nothing else.
            retry: Retries that this code declares; default what the worker declares.
            timeout: Limit of each attempt, or a set of limits; default what the worker declares.

        Raises:
            WrongType, WrongValue: an option that no server would take.
            HandlerRefused: a type has no JSON form.
        """
        check.text(name, "name")
        check.text(queue, "queue")
        policy.check_policy(retry, timeout)
        return Remote(
            self,
            name,
            input_type=input,
            output_type=output,
            queue=queue,
            retry=retry,
            timeout=timeout,
        )

    def _own_name(
        self,
        function: Callable[..., Any],
        name: str | None,
        kind: str,
        known: Mapping[str, object],
    ) -> str:
        if isinstance(function, type):
            raise errors.HandlerRefused(
                f"{function.__qualname__} is a class, and a {kind} is a function"
            )
        own_name = name or getattr(function, "__name__", "")
        if not own_name or own_name == "<lambda>":
            raise errors.HandlerRefused(f"{function!r} has no name; pass name=...")
        if own_name in known:
            raise errors.HandlerRefused(
                f"the app {self.name!r} has a {kind} {own_name!r} already; pass name=..."
            )
        return own_name
