"""What all commands look like in help: a line, examples, exit codes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tenure_service.cli import exits

if TYPE_CHECKING:
    from collections.abc import Sequence


def add(
    commands: Any,
    name: str,
    call: str,
    about: str,
    examples: str,
    *,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> argparse.ArgumentParser:
    """Adds one command; `about` is its line in the list, and the start of its own help."""
    shown = "\n".join(f"  {line}" for line in examples.splitlines())
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about.partition("\n")[0],
        description=about,
        epilog=f"examples:\n{shown}\n\n{exits.HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=parents,
        allow_abbrev=False,
    )
    made.set_defaults(call=call)
    return made


def group(commands: Any, name: str, about: str) -> Any:
    """Adds a command that has commands of its own; gives the place for them."""
    made = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"`tenure {name} COMMAND --help` has an example.\n\n{exits.HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made.add_subparsers(title="commands", metavar="COMMAND", required=True)
