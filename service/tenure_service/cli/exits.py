"""Exit codes, and the exception that carries one. `tenure --help` prints the list."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CONFLICT: Final = 3
INTERRUPTED: Final = 130

HELP: Final = """\
exit codes:
  0    done
  1    failed, or not found
  2    wrong usage or configuration
  3    somebody else holds it, or it is in a state that does not allow this
  130  interrupted
"""


class CommandFailed(Exception):
    """A command cannot do what was asked.

    The message is for people and says what to do; it goes to stderr as it is.
    """

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code
