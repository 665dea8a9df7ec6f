"""The version of a workflow's code, read from the source of its function.

A run goes on with the version that it began with while a worker has it. What decides is what the
function does: comments, the docstring, the layout, its name and its decorators do not count, nor do
the functions that it calls, whose results are recorded.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

DIGEST_CHARS = 16
# What a parser notes besides, and what one Python writes and another does not.
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_params", "decorator_list"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def of(function: Callable[..., Any]) -> str:
    """Returns the version of a function; the same on every Python and machine for the same source.

    Where there is no source to read, as of what was typed into a prompt, the compiled code decides,
    which another Python compiles otherwise.
    """
    plain = inspect.unwrap(function)
    tree = _tree(plain)
    text = "".join(_code(plain.__code__) if tree is None else _nodes(tree))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_CHARS]


def _tree(function: Callable[..., Any]) -> _Function | None:
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = parsed.body[0] if parsed.body else None
    if not isinstance(found, _Function):
        return None
    found.name = ""
    for node in ast.walk(found):
        if isinstance(node, _Function | ast.ClassDef) and ast.get_docstring(node, clean=False):
            del node.body[0]
    return found


def _nodes(value: object) -> Iterator[str]:
    """Yields a tree as text; fields that are empty are left out, as newer parsers have more."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, part in ast.iter_fields(value):
            if name not in _LEFT_OUT and part is not None and part != []:
                yield f" {name}="
                yield from _nodes(part)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for part in value:
            yield from _nodes(part)
            yield ","
        yield "]"
    else:
        yield repr(value)


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            # Another process has it in another order.
            yield f" {sorted(map(repr, constant))}"
        else:
            yield f" {constant!r}"
