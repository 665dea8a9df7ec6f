"""Rows of what `tenure doctor` looks at."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorUuid:
    """An id that PostgreSQL made."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSetting:
    """A setting of PostgreSQL, and where its value comes from."""

    name: str
    setting: str
    unit: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDatabase:
    """The database as a whole.

    Attributes:
        connection_count_max: What Tenure's connections can come to.
        connection_count_other: Connections of other programs, to any database.
        hidden_count: Connections to this database whose transactions the role may not see.
    """

    name: str
    now: datetime
    in_recovery: bool
    byte_count: int
    connection_count_max: int
    connection_count_other: int
    connection_count: int
    server_count: int
    hidden_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRight:
    """Something that the role may not do, and to what."""

    thing: str
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorTable:
    """A table's storage options, and what vacuum left in it."""

    name: str
    options: list[str]
    live_count: int
    dead_count: int
    unvacuumed_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPart:
    """An index, constraint or trigger, and whether it is in force."""

    kind: str
    table_name: str
    name: str
    sound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorColumn:
    """A column; `initial` is its default, as PostgreSQL writes it."""

    table_name: str
    name: str
    type: str
    required: bool
    initial: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFunction:
    """A function, and what stands between its quotes."""

    name: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorHolder:
    """What keeps vacuum from its work, and for how long."""

    kind: str
    name: str
    holder: str
    held_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRunning:
    """Tasks of one name that run without a limit; the id of the oldest."""

    namespace: str
    queue: str
    name: str
    task_count: int
    task_id: str
    run_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDeaf:
    """A worker that renews and has no stream."""

    namespace: str
    worker: str
    session_id: str
    held_count: int
    silent_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorUnserved:
    """A name that tasks wait for in vain: nobody serves it there, or ever `registered` it."""

    namespace: str
    queue: str
    name: str
    registered: bool
    paused: bool
    wait_duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDead:
    """Open dead letters of one name and reason."""

    namespace: str
    queue: str
    name: str
    reason: str
    task_count: int
