"""The pipe between a worker and one of its handler processes: kinds and bytes, in order.

No pickles: what crosses is messages of the protocol and JSON.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from typing import Final

_HEADER: Final = struct.Struct("!BI")


class Kind(enum.IntEnum):
    """Kind is what a message is."""

    # To the process.
    BOOT = 1  # JSON of `isolation.Boot`; the first message
    JOB = 2  # an Assignment
    CANCEL = 3  # JSON: reason, stopped
    # From the process.
    READY = 4  # the app is imported
    UNABLE = 5  # a Failure: the app cannot be imported; the process ends
    STARTED = 6  # the job has arrived
    PROGRESS = 7  # a Payload: details of a heartbeat
    RESULT = 8  # a Result: the job is over
    LOG = 9  # JSON: attributes of a log record


class Pipe:
    """Pipe sends and receives over one end of a socket pair; any thread may send.

    Args:
        end: The end; it belongs to the pipe from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Sends one message, waiting for room.

        Raises:
            EOFError: the other side is gone.
        """
        try:
            with self._sending:
                self._end.sendall(_HEADER.pack(kind, len(data)) + data)
        except OSError as exc:
            raise EOFError from exc

    def receive(self) -> tuple[Kind, bytes]:
        """Waits for the next message; one thread only.

        Raises:
            EOFError: the other side is gone.
        """
        kind, size = _HEADER.unpack(self._exactly(_HEADER.size))
        return Kind(kind), self._exactly(size)

    def hang_up(self) -> None:
        """Ends the pipe for both sides, from any thread: who waits in `receive` gets EOFError."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It was hung up before, or the other side is gone.
            return

    def close(self) -> None:
        """Gives up this side's end; another holder of it, such as a fork's parent, keeps its own."""
        self._end.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._end.recv_into(view)
            except OSError as exc:
                raise EOFError from exc
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(data)
