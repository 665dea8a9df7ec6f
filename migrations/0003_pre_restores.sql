-- Why: a database that was restored to an earlier moment has its timers held until an operator lets
-- them go, and what was voided in it is written down.
-- Locks taken: none on existing tables.
-- Safe with versions: any; a server of 0002 runs on it, and does not hold timers.

-- One row a restore that was checked. `data_until` is the moment that the data stood at; leases
-- granted and sessions opened up to `void_until` are void. Timers are held while `released_at` is
-- null.
create table restores (
    restore_id bigint generated always as identity,
    checked_at timestamptz not null default now(),
    checked_by text not null,
    data_until timestamptz,
    void_until timestamptz not null,
    session_count bigint not null default 0,
    lease_count bigint not null default 0,
    task_count bigint not null default 0,
    released_at timestamptz,
    released_by text,
    constraint restores_pkey primary key (restore_id),
    constraint restores_released_by_whom check ((released_at is null) = (released_by is null))
);
-- At most one is held. Each statement that fires timers looks here first.
create unique index restores_held_unique
on restores ((released_at is null)) where released_at is null;
