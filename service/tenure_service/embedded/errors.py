"""What can go wrong with the embedded server."""

# EmbeddedError
# ├── EmbeddedUnavailable   nothing to run: the extra is not installed, or no account for the server
# ├── EmbeddedDataMissing   the recorded data is gone; starting empty would hide the loss
# ├── EmbeddedStartFailed   the server did not come up; carries the end of its log
# └── EmbeddedStopFailed    the server did not go down


class EmbeddedError(Exception):
    """The embedded server cannot do what was asked; the message says what to do."""


class EmbeddedUnavailable(EmbeddedError):
    """There is no server to run here."""


class EmbeddedDataMissing(EmbeddedError):
    """The data that this home points to is gone."""


class EmbeddedStartFailed(EmbeddedError):
    """The server exited or stayed silent; the end of its log is in the message."""


class EmbeddedStopFailed(EmbeddedError):
    """The server outlived every signal."""
