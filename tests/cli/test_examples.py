"""The command that `tenure dev` shows to type next: it works, whatever the task takes."""

import datetime
import enum
import json
import shlex
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import pytest

from tenure import App, Context
from tenure_service.cli import examples


class Mail(pydantic.BaseModel):
    """A model with what JSON has no type for."""

    to: pydantic.UUID4
    sent_at: datetime.datetime
    lines: list[str]
    subject: str = "none"


class Size(enum.Enum):
    """Sizes."""

    SMALL = "small"


@dataclass
class Tree:
    """Contains itself."""

    children: list["Tree"]
    size: Size


def send(mail: Mail) -> None: ...
def grow(tree: Tree | None, at: datetime.date, owner: uuid.UUID) -> None: ...
def anything(value: Any, unnamed) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def greet(name: str = "world", tags: list[str] | None = None) -> None: ...


@pytest.mark.parametrize("function", [send, grow, anything, greet])
def test_arguments__types_of_any_kind__are_taken_by_the_task(function: Any) -> None:
    task = App("shop").task(function)
    text = examples.arguments(task)
    task.declaration.signature.decode_call(text.encode())
    if function is greet:
        assert json.loads(text) == {"name": "text"}


def test_arguments__type_that_refuses_every_guess__shows_names_alone() -> None:
    def pick(code: Annotated[str, pydantic.Field(pattern="^Z{9}$")], count: int) -> None: ...

    task = App("shop").task(pick)
    assert examples.arguments(task) == '{"code": ..., "count": ...}'


def test_command__task_of_another_queue__names_queue_and_address() -> None:
    task = App("shop").task(queue="mail")(send)
    words = shlex.split(examples.command(task, "127.0.0.1:9"))
    assert words[:4] == ["tenure", "task", "enqueue", "send"]
    assert words[-6:] == ["--wait", "10", "--queue", "mail", "--address", "127.0.0.1:9"]
    default = examples.command(App("shop").task(greet), "127.0.0.1:7711")
    assert default == 'tenure task enqueue greet --input \'{"name": "text"}\' --wait 10'


def test_command__workflow__starts_a_run_without_its_context() -> None:
    app = App("examples")

    @app.workflow(queue="orders")
    async def checkout(ctx: Context, order: int, note: str = "") -> str:
        return f"{ctx.run_id}{order}{note}"

    words = shlex.split(examples.command(checkout, "127.0.0.1:7711"))
    assert words[:4] == ["tenure", "run", "start", "checkout"]
    assert json.loads(words[5]) == {"order": 1, "note": "text"}
    assert words[6:] == ["--wait", "10", "--queue", "orders"]
