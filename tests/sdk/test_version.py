"""The version of a workflow's code: what counts as a change of it, and what does not."""

import hashlib
import linecache
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tenure import App, HandlerRefused, WrongValue
from tenure.workflow import version

_numbers = iter(range(1_000))

BASE = '''
async def flow(ctx, order: int) -> int:
    """Does it."""
    stock = await ctx.step(reserve, order)  # first
    return stock + 1
'''
SAME = {
    "comments": BASE.replace("  # first", "").replace("    stock", "    # now\n    stock"),
    "docstring": BASE.replace('    """Does it."""\n', ""),
    "layout": BASE.replace(
        "ctx.step(reserve, order)", "(\n        ctx.step(reserve,\n order)\n    )"
    ),
    "quotes": BASE.replace('"""Does it."""', "'Does it.'"),
    "name": BASE.replace("def flow", "def fulfil"),
    "decorator": f"import functools\n@functools.lru_cache\n{BASE.strip()}",
    "indent": "if True:\n" + "\n".join(f"    {line}" for line in BASE.strip().splitlines()),
}
OTHER = {
    "constant": BASE.replace("+ 1", "+ 2"),
    "step": BASE.replace("reserve", "release"),
    "order": BASE.replace("stock + 1", "1 + stock"),
    "def": BASE.replace("async def", "def").replace("await ", ""),
    "parameter": BASE.replace("order: int", "order: str"),
}


def made(source: str, *, readable: bool = True) -> Callable[..., Any]:
    """Makes the function of a source."""
    name = f"<flow {next(_numbers)}>"
    if readable:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)  # noqa: S102 - sources of this file
    found = [each for each in scope.values() if hasattr(each, "__code__")]
    found += [each for each in scope.values() if hasattr(each, "__wrapped__")]
    function: Callable[..., Any] = found[-1]
    return function


@pytest.mark.parametrize("name", SAME)
def test_of__what_the_function_does_is_the_same__is_the_same(name: str) -> None:
    assert version.of(made(SAME[name])) == version.of(made(BASE))


@pytest.mark.parametrize("name", OTHER)
def test_of__something_else_is_done__is_another(name: str) -> None:
    assert version.of(made(OTHER[name])) != version.of(made(BASE))


def test_of__no_source__is_read_from_the_code_the_same_in_each_process() -> None:
    source = "def flow(ctx, name):\n    return name in {'a', 'b', 'c', 'd'}, [lambda: 1]\n"
    code = (
        "from tests.sdk.test_version import made\n"
        "from tenure.workflow import version\n"
        f"print(version.of(made({source!r}, readable=False)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    changed = source.replace("lambda: 1", "lambda: 2")
    assert version.of(made(changed, readable=False)) not in "".join(found)


def test_of__a_function__stays_as_it_is_over_releases() -> None:
    # Changing it would leave every run of every program to the newest code.
    assert version.of(made(BASE)) == "b7d4e4f1b712d875"
    assert len(version.of(made(BASE))) == version.DIGEST_CHARS <= len(hashlib.sha256().hexdigest())


def test_workflow__app_with_a_version__goes_before_the_source() -> None:
    def flow(ctx: object) -> None: ...

    assert App("a", version="7").workflow(flow).declaration.version == "7"
    assert App("a").workflow(flow).declaration.version == version.of(flow)
    with pytest.raises(WrongValue):
        App("a", version="*").workflow(flow)
    with pytest.raises(WrongValue):
        App("a", version="v" * 101).workflow(flow)


def test_workflow__function_that_cannot_be_one__is_refused_with_what_to_do() -> None:
    app = App("a")

    def nothing() -> None: ...
    def many(ctx: object, *orders: int) -> None: ...
    def good(ctx: object) -> None: ...

    for function, words in ((nothing, "takes no context"), (many, "takes *orders")):
        with pytest.raises(HandlerRefused) as caught:
            app.workflow(function)  # type: ignore[arg-type]
        assert words in str(caught.value)
    app.workflow(good)
    with pytest.raises(HandlerRefused, match="has a workflow 'good' already"):
        app.workflow(good)
    # A task may have the name of a workflow: they are handed out apart.
    app.task(name="good")(lambda: None)
