"""Every constant that bounds or times something, each with its reason.

docs/defaults.md is generated from this module, and a test compares the bounds with the words of
the protocol.
"""

from datetime import timedelta
from typing import Final

# Sizes. A payload is kept in one row, and a row that is read with a batch of others must not hold
# the batch up; larger data belongs into an object store with its address in the payload.
PAYLOAD_BYTES_MAX: Final = 2 * 1024 * 1024
PAYLOAD_BYTES_WARN: Final = 256 * 1024
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
DETAILS_BYTES_MAX: Final = 64 * 1024
#: HTTP/2 stacks refuse larger trailers: 20 kB turned FAILED_PRECONDITION into RESOURCE_EXHAUSTED.
ERROR_DETAILS_BYTES_MAX: Final = 4 * 1024

# Texts.
NAME_BYTES_MAX: Final = 200
KEY_BYTES_MAX: Final = 500
LANE_BYTES_MAX: Final = 200
ENCODING_BYTES_MAX: Final = 100
SCHEMA_BYTES_MAX: Final = 200
APP_VERSION_BYTES_MAX: Final = 100
TRACEPARENT_BYTES_MAX: Final = 200
REASON_BYTES_MAX: Final = 1024
#: `key:NAME:ID`, or who is at the database.
ACTOR_BYTES_MAX: Final = 300
FAILURE_TYPE_BYTES_MAX: Final = 200
FAILURE_MESSAGE_BYTES_MAX: Final = 8 * 1024
FAILURE_STACK_BYTES_MAX: Final = 32 * 1024
FAILURE_CAUSE_COUNT_MAX: Final = 8

# Counts.
ENQUEUE_COUNT_MAX: Final = 10_000
REPORT_COUNT_MAX: Final = 1_000
RENEW_COUNT_MAX: Final = 10_000
AWAIT_COUNT_MAX: Final = 10_000
#: Tasks and runs that one suspended run waits for: a row each, written and looked up at once.
SUSPENDED_WAIT_COUNT_MAX: Final = 100_000
CANCEL_COUNT_MAX: Final = 1_000
HANDLER_COUNT_MAX: Final = 1_000
SLOT_COUNT_MAX: Final = 10_000
COMPATIBLE_VERSION_COUNT_MAX: Final = 100
#: Steps of one call, and the things one message asks to be told of.
RECORD_COUNT_MAX: Final = 1_000
WAIT_COUNT_MAX: Final = 10_000
#: Steps of a run: each activation replays all that are recorded. A run that needs more starts
#: others for parts of its work.
#: Activations in a row that may lose their workers before a run is BLOCKED.
RECOVERY_ATTEMPTS: Final = 10
RECOVERY_ATTEMPTS_MAX: Final = 1_000
ATTRIBUTE_COUNT_MAX: Final = 20
ATTRIBUTE_KEY_BYTES_MAX: Final = 100
ATTRIBUTE_BYTES_MAX: Final = 500
RUN_TIMEOUT_MAX: Final = timedelta(days=3650)
STEP_COUNT_WARN: Final = 10_000
STEP_COUNT_MAX: Final = 50_000
#: Steps that are read at once, whatever they weigh: a page of them is sorted out of all.
STEP_PAGE_COUNT: Final = 5_000
#: Steps of one page of a reader.
STEP_LIST_COUNT_DEFAULT: Final = 1_000
STEP_LIST_COUNT_MAX: Final = 10_000
STEP_ID_BYTES_MAX: Final = 200
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000
NON_RETRYABLE_COUNT_MAX: Final = 50
KEY_GLOB_COUNT_MAX: Final = 50
#: One batch of one store operation: large enough to share a commit, small enough to be quick.
BATCH_COUNT_MAX: Final = 500
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
#: What waits for one store operation before callers are refused.
QUEUED_COUNT_MAX: Final = 100_000
#: Payloads that one server process holds at once; producers are refused at half of it.
PAYLOAD_MEMORY_BYTES: Final = 512 * 1024 * 1024
#: How long a caller that was refused for overload should wait.
OVERLOAD_PAUSE: Final = timedelta(milliseconds=500)
#: Inputs that are under way to one worker: what a slow link carries before a hand-out must have
#: been accepted.
ASSIGN_BYTES_MAX: Final = 16 * 1024 * 1024
#: Tasks of a lane whose inputs nobody has seen yet: as many as the largest inputs allow.
ASSIGN_FIRST_COUNT: Final = ASSIGN_BYTES_MAX // PAYLOAD_BYTES_MAX
#: One lease row: what a worker that has earned its prefetch frees in the time of a pick or two.
LEASE_TASK_COUNT_MAX: Final = 500
#: Recorded steps that an activation is handed with; it asks for the others while it replays these.
ACTIVATION_STEPS_BYTES: Final = 1024 * 1024
#: Runs that one pass gives to another version: each transaction is short.
ADOPT_COUNT_MAX: Final = 1_000

#: How long a worker that gave everything back is handed nothing; doubled each time.
RELEASE_PAUSE: Final = timedelta(milliseconds=100)
RELEASE_PAUSE_MAX: Final = timedelta(seconds=5)

PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100

# Retries.
MAX_ATTEMPTS_DEFAULT: Final = 3
MAX_ATTEMPTS_MAX: Final = 1_000
INITIAL_DELAY_DEFAULT: Final = timedelta(seconds=1)
MULTIPLIER_DEFAULT: Final = 2.0
MULTIPLIER_MAX: Final = 100.0
#: No less than an initial delay that is given without a cap.
MAX_DELAY_DEFAULT: Final = timedelta(seconds=60)
JITTER_DEFAULT: Final = 0.2
RETRY_DELAY_MAX: Final = timedelta(days=365)
ENQUEUE_DELAY_MAX: Final = timedelta(days=3_650)
#: A lost delivery is not the task's fault, until it happens again and again.
MAX_LOST: Final = 5
#: From this loss on a task is suspected of killing its worker, and handed out alone.
SUSPECT_LOST: Final = 2
LOST_DELAY_FIRST: Final = timedelta(seconds=0)
LOST_DELAY_NEXT: Final = timedelta(seconds=1)
LOST_DELAY_MAX: Final = timedelta(seconds=30)

# Leases. The first lease is short because nothing is known yet of the worker's end; a heartbeat
# every third of the shorter one survives the loss of one message.
LEASE_DURATION: Final = timedelta(seconds=30)
FIRST_LEASE_DURATION: Final = timedelta(seconds=15)
HEARTBEAT_INTERVAL: Final = timedelta(seconds=5)
ACCEPT_TIMEOUT: Final = timedelta(seconds=4)

#: How long runs wait for workers of their version after the last one: a deployment, or a crash loop
#: that somebody repairs, before code of another version tries them.
VERSION_GRACE: Final = timedelta(minutes=10)

KEY_DURATION_DEFAULT: Final = timedelta(hours=24)
KEY_DURATION_MAX: Final = timedelta(days=3_650)
CANCEL_GRACE_DEFAULT: Final = timedelta(seconds=30)
CANCEL_GRACE_MAX: Final = timedelta(days=1)
WAIT_DURATION_MAX: Final = timedelta(seconds=60)
STOP_GRACE: Final = timedelta(seconds=30)

#: All tables that a run owns share it, so that a run's data leaves by dropping partitions.
PARTITION_WIDTH: Final = timedelta(days=7)
PARTITIONS_AHEAD: Final = 3
