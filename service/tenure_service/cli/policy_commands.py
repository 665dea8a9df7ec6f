"""The commands of policies, with their flags."""

from __future__ import annotations

from typing import Any

from tenure_service.cli import flags
from tenure_service.cli.building import add, group


def build(commands: Any) -> None:
    """Adds them."""
    policy = group(commands, "policy", "retries and timeouts: see and override them")
    add(
        policy,
        "list",
        "policies:list_",
        "list what holds for each task name, and who said it",
        "tenure policy list --json",
        parents=[flags.remote()],
    )
    made = add(
        policy,
        "set",
        "policies:set_",
        "override what code declares, for tasks enqueued from now on\n\n"
        "It is sticky: it goes before what code declares until it is cleared. Each call says the\n"
        "whole override; what it leaves out is left to the code.",
        "tenure policy set charge --max-attempts 8 --start-to-close 30s\n"
        "tenure policy clear charge",
        parents=[flags.remote()],
    )
    made.add_argument("name", metavar="TASK")
    flags.policy(made)
    cleared = add(
        policy,
        "clear",
        "policies:clear",
        "clear an override: what code declares holds again",
        "tenure policy clear charge",
        parents=[flags.remote()],
    )
    cleared.add_argument("name", metavar="TASK")
