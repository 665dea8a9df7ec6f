"""Every measure of a server: its name, kind, unit, meaning and labels, once.

Names are those that Prometheus shows and that OTLP carries; verbs are those of the state machine,
one for one transition. Labels are of bounded sets: never an id, a key or a payload. docs/metrics.md
is written from here by `make gen`.
"""

from typing import Final

from tenure_service.telemetry.instruments import Registry

REGISTRY: Final = Registry()

_counter = REGISTRY.counter
_gauge = REGISTRY.gauge
_histogram = REGISTRY.histogram

TIMEOUT_KINDS: Final = ("schedule_to_start", "start_to_close", "heartbeat", "total")
DEATHS: Final = ("ATTEMPTS_EXHAUSTED", "NON_RETRYABLE", "LEASE_LOST")
#: Outcomes of hand-outs that tell how long they ran.
OUTCOMES: Final = ("DONE", "FAILED", "CANCELLED", "RELEASED", "RESCHEDULED")
STATUSES: Final = ("RECORDED", "ALREADY_RECORDED", "LEASE_LOST", "REFUSED")
BATCHES: Final = (
    "enqueue",
    "enqueue-keyed",
    "lease",
    "report",
    "renew",
    "results",
    "steps",
    "waits",
)
RECEIVED: Final = (
    "open",
    "accept",
    "started",
    "report",
    "heartbeat",
    "set_slots",
    "pause",
    "close",
    "record_steps",
    "wait",
)
SENT: Final = (
    "opened",
    "assign",
    "report_ack",
    "heartbeat_ack",
    "cancel",
    "drain",
    "step_ack",
    "resolved",
)
REFUSALS: Final = ("UNAUTHENTICATED", "SCOPE_MISSING")
RETRIES: Final = ("serialization", "deadlock", "connection", "commit")
FATES: Final = ("committed", "aborted", "unknown")

_SHORT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG_SECONDS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
_ITEMS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500)
_PLACE: Final = {"namespace": None, "queue": None, "name": None}

# Tasks. In the order of their life, counted by the server that committed the transition. One that is
# cancelled is counted when it is over, not when it is asked for.
TASKS_ENQUEUED: Final = _counter("tenure_tasks_enqueued_total", "Tasks stored.")
TASKS_EXISTING: Final = _counter(
    "tenure_tasks_existing_total", "Items answered with the task that stands under their key."
)
TIMERS_FIRED: Final = _counter(
    "tenure_timers_fired_total", "Delayed tasks and retries whose time came."
)
TASKS_LEASED: Final = _counter("tenure_tasks_leased_total", "Tasks handed out.")
TASKS_COMPLETED: Final = _counter("tenure_tasks_completed_total", "Tasks that ended with success.")
TASKS_FAILED: Final = _counter(
    "tenure_tasks_failed_total", "Attempts that a handler failed, whatever followed."
)
TASKS_RETRIED: Final = _counter(
    "tenure_tasks_retried_total", "Attempts put back after a failure or a timeout."
)
TASKS_RELEASED: Final = _counter(
    "tenure_tasks_released_total", "Hand-outs given back, no attempt spent."
)
TASKS_RESCHEDULED: Final = _counter(
    "tenure_tasks_rescheduled_total", "Hand-outs that asked to be run again later."
)
TASKS_CANCELLED: Final = _counter("tenure_tasks_cancelled_total", "Tasks that ended cancelled.")
TASKS_TIMED_OUT: Final = _counter(
    "tenure_tasks_timed_out_total",
    "Attempts and tasks that ran out of time, by the limit.",
    labels={"kind": TIMEOUT_KINDS},
)
TASKS_LOST: Final = _counter(
    "tenure_tasks_lost_total", "Hand-outs whose worker was lost, no attempt spent."
)
TASKS_DEAD_LETTERED: Final = _counter(
    "tenure_tasks_dead_lettered_total",
    "Tasks that ended without success, by the reason.",
    labels={"reason": DEATHS},
)
TASKS_REPLAYED: Final = _counter("tenure_tasks_replayed_total", "Dead letters made ready again.")
TASKS_DISCARDED: Final = _counter(
    "tenure_tasks_discarded_total", "Dead letters marked as dealt with."
)
TASK_WAIT: Final = _histogram(
    "tenure_task_wait_seconds",
    "From ready to handed out, of first deliveries and later ones.",
    unit="s",
    bounds=_LONG_SECONDS,
)
TASK_RUN: Final = _histogram(
    "tenure_task_run_seconds",
    "How long handlers ran, as workers reported it, by the outcome.",
    unit="s",
    bounds=_LONG_SECONDS,
    labels={"outcome": OUTCOMES},
)

# Workers. What this process has to do with them.
SESSIONS_OPENED: Final = _counter("tenure_sessions_opened_total", "Sessions of workers opened.")
SESSIONS_RESUMED: Final = _counter(
    "tenure_sessions_resumed_total", "Sessions taken over by a new stream."
)
SESSIONS_CLOSED: Final = _counter(
    "tenure_sessions_closed_total", "Sessions that their worker closed."
)
STREAMS: Final = _gauge("tenure_streams", "Work streams that are open.")
SLOTS_GRANTED: Final = _gauge("tenure_slots_granted", "Tasks that workers may hold at once.")
SLOTS_FREE: Final = _gauge("tenure_slots_free", "Those of them that can be filled now.")
MESSAGES_RECEIVED: Final = _counter(
    "tenure_messages_received_total",
    "Messages that workers sent on streams.",
    labels={"kind": RECEIVED},
)
MESSAGES_SENT: Final = _counter(
    "tenure_messages_sent_total",
    "Messages sent to workers on streams.",
    labels={"kind": SENT},
)
LEASES_RENEWED: Final = _counter("tenure_leases_renewed_total", "Leases renewed.")
LEASES_UNACCEPTED: Final = _counter(
    "tenure_leases_unaccepted_total", "Leases taken back because nobody accepted them in time."
)
REPORTS: Final = _counter(
    "tenure_reports_total",
    "Results that workers reported, by what became of them.",
    labels={"status": STATUSES},
)

# Batches and memory. Single items where a process is idle, hundreds where it is busy.
BATCH_SECONDS: Final = _histogram(
    "tenure_batch_seconds",
    "How long a batch took to be written or read.",
    unit="s",
    bounds=_SHORT_SECONDS,
    labels={"batch": BATCHES},
)
BATCH_ITEMS: Final = _histogram(
    "tenure_batch_items",
    "Items of a batch.",
    unit="1",
    bounds=_ITEMS,
    labels={"batch": BATCHES},
)
BATCH_WAITING: Final = _gauge(
    "tenure_batch_waiting", "Items that wait for a batch.", labels={"batch": BATCHES}
)
PAYLOAD_MEMORY: Final = _gauge(
    "tenure_payload_memory_bytes",
    "Payloads held; from half of the bound producers are refused.",
    unit="By",
)
PAYLOAD_MEMORY_MAX: Final = _gauge(
    "tenure_payload_memory_max_bytes", "Their bound (--payload-memory-mib).", unit="By"
)

# Calls. Of producers and operators, and of workers that poll.
RPC_SECONDS: Final = _histogram(
    "tenure_rpc_seconds",
    "Unary calls by method and status; waiting calls take as long as they were asked to wait.",
    unit="s",
    bounds=_SHORT_SECONDS,
    labels={"method": None, "status": None},
)
CALLS_REFUSED: Final = _counter(
    "tenure_calls_refused_total",
    "Calls refused for their key, over gRPC and HTTP.",
    labels={"reason": REFUSALS},
)
WAITERS: Final = _gauge("tenure_waiters", "Tasks whose end somebody waits for.")
NOTIFICATIONS_SENT: Final = _counter(
    "tenure_notifications_sent_total", "Notifications sent to other servers."
)
NOTIFICATIONS_HEARD: Final = _counter(
    "tenure_notifications_heard_total", "Notifications of other servers heard."
)

# PostgreSQL. As this process meets it.
POOL_CONNECTIONS: Final = _gauge("tenure_pool_connections", "Connections that are open.")
POOL_USED: Final = _gauge("tenure_pool_used", "Those of them that are in use.")
POOL_MAX: Final = _gauge("tenure_pool_max", "Their bound (--connections).")
POOL_WAITING: Final = _gauge("tenure_pool_waiting", "Transactions that wait for a connection.")
POOL_REQUESTS: Final = _counter("tenure_pool_requests_total", "Connections asked for.")
POOL_WAIT: Final = _counter(
    "tenure_pool_wait_seconds_total", "Time that was waited for connections.", unit="s"
)
TRANSACTIONS_RETRIED: Final = _counter(
    "tenure_transactions_retried_total",
    "Transactions run again, by the cause.",
    labels={"cause": RETRIES},
)
COMMITS_UNANSWERED: Final = _counter(
    "tenure_commits_unanswered_total",
    "Commits whose answer was lost, by what had become of them.",
    labels={"fate": FATES},
)

# The process.
READY: Final = _gauge("tenure_ready", "1 if it can do its work, as health checks are told.")
LOOP_AGE: Final = _gauge(
    "tenure_loop_age_seconds",
    "Time since a loop last did its work; loops that wait for something to do are left out.",
    unit="s",
    labels={"loop": None},
)
LOOP_FAILURES: Final = _counter(
    "tenure_loop_failures_total",
    "Times that a loop failed and was started again.",
    labels={"loop": None},
)
BUILD: Final = _gauge("tenure_build_info", "1, with the release.", labels={"version": None})

# Queues. Asked of the database at a scrape, at most every 15 s, by the first process of a server. Every
# server tells the same: take `max by (...)`, not `sum by (...)`, over servers. What a worker serves is told also
# while nothing is in it. Of more than 500 combinations of labels the last are one, `other`.
QUEUE_READY: Final = _gauge("tenure_queue_ready", "Tasks that can be handed out.", labels=_PLACE)
QUEUE_AGE: Final = _gauge(
    "tenure_queue_oldest_seconds",
    "How long the first of them has waited.",
    unit="s",
    labels=_PLACE,
)
QUEUE_DELAYED: Final = _gauge(
    "tenure_queue_delayed", "Tasks with a delay, and retries that wait.", labels=_PLACE
)
QUEUE_LEASED: Final = _gauge("tenure_queue_leased", "Tasks that are handed out.", labels=_PLACE)
QUEUE_DEAD: Final = _gauge("tenure_queue_dead", "Open dead letters.", labels=_PLACE)
QUEUE_WORKERS: Final = _gauge(
    "tenure_queue_workers", "Workers that take such tasks now.", labels=_PLACE
)
PARTITIONS_AHEAD: Final = _gauge(
    "tenure_partitions_ahead_seconds",
    "For how long from now every table has partitions.",
    unit="s",
)
