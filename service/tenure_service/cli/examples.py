"""Example arguments of a task or workflow, which `tenure dev` shows as a command to type."""

from __future__ import annotations

import inspect
import json
import shlex
import typing
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenure.task import Task
    from tenure.workflow.declaration import Workflow

# Values to type, by the words of JSON schema.
_BY_TYPE: Final[dict[str, Any]] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}
_BY_FORMAT: Final[dict[str, str]] = {
    "date": "2030-01-31",
    "date-time": "2030-01-31T12:00:00Z",
    "duration": "PT1M",
    "email": "ada@example.org",
    "time": "12:00:00",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uuid4": "00000000-0000-4000-8000-000000000000",
}
_PLAIN: Final = (str, int, float, bool)
# A type that contains itself ends here; its example is then refused, and none is shown.
_DEPTH_MAX: Final = 8


def command(target: Task[..., Any] | Workflow[..., Any], address: str) -> str:
    """Returns a command that enqueues the task, or starts a run, and waits for its result."""
    queue = target.declaration.queue
    verb = ["run", "start"] if _is_workflow(target) else ["task", "enqueue"]
    words = ["tenure", *verb, target.name, "--input", arguments(target), "--wait", "10"]
    words += ["--queue", queue] if queue != "default" else []
    words += ["--address", address] if address != "127.0.0.1:7711" else []
    return shlex.join(words)


def arguments(target: Task[..., Any] | Workflow[..., Any]) -> str:
    """Returns arguments that a call takes as JSON, or the names alone if no value is found."""
    from tenure import HandlerRefused, ValueRefused

    function = target.declaration.function
    try:
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
        target.declaration.signature.resolve()
    except (NameError, AttributeError, HandlerRefused):
        return "{...}"  # the worker is about to say what is wrong with them
    values: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.items())
    # The first one of a workflow is its context, which nobody gives.
    for name, parameter in parameters[1:] if _is_workflow(target) else parameters:
        hint = hints.get(name, Any)
        # One with a default is worth showing where its value is easily typed.
        if parameter.default is inspect.Parameter.empty or hint in _PLAIN:
            values[name] = _of_type(hint)
    text = json.dumps(values)
    try:
        target.declaration.signature.decode_call(text.encode())
    except ValueRefused:
        return "{" + ", ".join(f"{json.dumps(name)}: ..." for name in values) + "}"
    return text


def _is_workflow(target: Task[..., Any] | Workflow[..., Any]) -> bool:
    from tenure.workflow.declaration import Workflow

    return isinstance(target, Workflow)


def _of_type(hint: Any) -> Any:
    import pydantic

    try:
        schema = pydantic.TypeAdapter(hint).json_schema()
    except (pydantic.PydanticUserError, TypeError):
        return None
    return _of_schema(schema, schema.get("$defs", {}), _DEPTH_MAX)


def _of_schema(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> Any:
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    if depth == 0:
        return None
    if "$ref" in schema:
        found = definitions.get(schema["$ref"].rpartition("/")[2], {})
        return _of_schema(found, definitions, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return _of_schema(schema[word][0], definitions, depth - 1)
    if schema.get("format") in _BY_FORMAT:
        return _BY_FORMAT[schema["format"]]
    if schema.get("type") == "object":
        return {
            name: _of_schema(schema.get("properties", {}).get(name, {}), definitions, depth - 1)
            for name in schema.get("required", ())
        }
    return _BY_TYPE.get(schema.get("type", ""))
