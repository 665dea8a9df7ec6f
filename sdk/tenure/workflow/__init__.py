"""Workflow functions: how one activation of a run goes from its first line to an outcome.

An activation runs the function from the top. A verb of its context whose step is recorded answers
from the record; a new one does its work, records it, and only then goes on. So a worker may die at
any instant: the next activation comes to the same place.

    context, sync_context   the verbs as `async def` and `def` workflows call them
    verbs                   what a verb does: compare with the record, do, record, wait
    branches                the place of each verb: a path of numbers that is the same on each replay
    journal                 what is recorded, and the way to record more
    calls                   a function that a step calls: threads, retries, limits, failures
    parking                 verbs that only wait: for tasks, runs and times
    idleness                whether a function waits for nothing but its parked verbs
    flow                    whether it goes on, is to be cancelled, or is being unwound
    activation              all of it together: what a worker starts, and what comes of it
    port                    what all of this asks of the worker
    rehearsal               a recorded run against the code at hand, without doing anything

Everything of an activation happens on the loop of the worker's handlers, except `def` functions: a
`def` workflow has a thread for each of its branches, and a `def` step one of a small pool.

A function that waits for long is unwound: each verb raises `Suspended`, `finally` blocks run, and
nothing stays in memory. When what it waits for has happened, it is activated again.

This package starts with no import of its own parts: `tenure.task` needs `branches`.
"""
