"""The `tenure` command, also as `python -m tenure_service`."""

import sys


def main() -> int:
    """Runs the command line and returns its exit code."""
    from tenure_service.cli import command

    return command.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
