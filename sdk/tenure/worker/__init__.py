"""The worker: how tasks get from the Work stream into handlers, and results back.

Threads, and what runs on each:

    tenure-io            one for the process: the stream, heartbeats, reconnects (`session`)
    tenure-handler-N     up to `concurrency`: `def` handlers (`pool`)
    tenure-async         the event loop of `async def` handlers (`pool`), and of all activations of
                         runs (`activations`)

A task's way: `session` reads an Assign, makes a `job.Job` of each assignment, and puts all of them
into the `pool` at once. A handler thread takes one, decodes, calls, encodes, and leaves the result
in a deque; it wakes the I/O loop only if nobody has since the loop last looked. The loop moves
results into the `outbox`, whose writer sends what has gathered as one Report, and keeps each until
its ReportAck. So the number of hops between threads, and of messages, falls as load rises.

How much is taken at a time is decided by `slots`: as many tasks as handlers may run, and more only
once short handlers have earned it.

An activation's way: `session` reads an Assign with one, `activations` starts it on the loop of
handlers, and its steps go out by the recorder of `workflow.port_stream`, which like the outbox keeps
each message until it is answered, over any number of streams. It takes no slot of tasks, so that
what it waits for may run here.

Nothing here decides about retries, timeouts or states: the server does, in one transaction.
"""

from tenure.worker.worker import Worker

__all__ = ["Worker"]
