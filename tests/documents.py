"""Reads the code blocks of a document: files to write, and commands with what they print."""

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

# A block of a list is indented.
_BLOCK = re.compile(
    r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL
)


@dataclass(slots=True)
class File:
    """A file that the reader is told to write."""

    name: str
    text: str


@dataclass(slots=True)
class Command:
    """A command that the reader is told to run, and what is promised of its output."""

    line: str
    expected: list[str] = field(default_factory=list)


Step = File | Command


def blocks(document: Path) -> list[tuple[str, str, str]]:
    """Lists the code blocks of a document, as (language, title, text)."""
    text = document.read_text(encoding="utf-8")
    return [
        (language, title, textwrap.dedent(body))
        for _, language, title, body in _BLOCK.findall(text)
    ]


def steps(document: Path) -> list[Step]:
    """Lists what a document tells its reader to do, in order."""
    found: list[Step] = []
    for language, title, body in blocks(document):
        if language == "console":
            for line in body.splitlines():
                if line.startswith("$ "):
                    found.append(Command(line[2:]))
                elif isinstance(found[-1], Command):
                    found[-1].expected.append(line)
        elif title:
            found.append(File(title, body))
    return found


def matches(expected: list[str], printed: str) -> bool:
    """Compares output; a line `...` stands for any lines, `...` inside one for anything."""
    pattern = ""
    for line in expected:
        if line == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += r".*".join(re.escape(part) for part in line.split("...")) + r"\n"
    return re.fullmatch(pattern, printed if printed.endswith("\n") else printed + "\n") is not None
