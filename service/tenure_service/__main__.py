"""The `tenure` command, also as `python -m tenure_service`."""

import os
import sys


def main() -> int:
    """Runs the command line and returns its exit code."""
    # gRPC's core writes lines of its own to standard error, one for each port scan of a TLS port,
    # in no format of ours; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tenure_service.cli import command

    return command.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
