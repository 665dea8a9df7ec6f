-- Why: runs of workflow functions. A run is live where tasks are: its row in tasks has task_id =
-- run_id, and each of its activations is a hand-out of that row. Lanes of runs have an app_version:
-- that of the function, or `*` until a worker has had the run; lanes of tasks have none.
-- Locks taken: none on existing tables.
-- Safe with versions: any. A server of 0006 starts no run and hands none out; one that sweeps the
-- lease of a run puts it back as a task, which is right until its fifth loss.

-- A suspended or blocked run stands in timers: until its time, or until the end of all times.
alter type timer_kind add value 'WAIT';

-- OPEN: queued, delayed or with a worker, which its live row tells. The others are as named.
create type run_status as enum (
    'OPEN', 'WAITING', 'PAUSED', 'BLOCKED',
    'COMPLETED', 'FAILED', 'CANCELLED', 'TIMED_OUT', 'TERMINATED', 'CONTINUED'
);
create type run_blocked as enum ('RECOVERIES_EXHAUSTED', 'HISTORY_MISMATCH');
create type step_kind as enum ('CALL', 'TASK', 'CHILD', 'SLEEP', 'CHOICE', 'PATCH');

-- One row a run. Input, priority, key and policy stand in its row in tasks, its output in the final
-- delivery of that. `version` is that of the code it began with. `failure` says why it is BLOCKED.
create table runs (
    run_id uuid not null,
    created_at timestamptz not null default now(),
    ended_at timestamptz,
    namespace_id integer not null,
    status run_status not null default 'OPEN',
    blocked run_blocked,
    recovery_attempts smallint not null,
    name text not null,
    version text,
    parent_run_id uuid,
    root_run_id uuid not null,
    forked_from uuid,
    attributes jsonb,
    failure jsonb,
    constraint runs_pkey primary key (run_id),
    constraint runs_recovery_attempts_range check (recovery_attempts between 1 and 1000),
    constraint runs_blocked_why check ((status = 'BLOCKED') = (blocked is not null))
) partition by range (run_id);
create index runs_listing_idx on runs (namespace_id, run_id);
create index runs_status_idx on runs (namespace_id, status, run_id);
create index runs_name_idx on runs (namespace_id, name, run_id);
create index runs_parent_idx on runs (parent_run_id, run_id) where parent_run_id is not null;
create index runs_attributes_idx on runs using gin (attributes jsonb_path_ops)
where attributes is not null;

create sequence step_seq as bigint cache 1;

-- One row a recorded step, never updated. What a TASK or CHILD came to is told by the final
-- delivery of its child, and a SLEEP is over at `wake_at`. `seq` is the order of recording within a
-- run, whose steps are recorded by one activation at a time.
create table steps (
    run_id uuid not null,
    step_id text not null,
    seq bigint not null default nextval('step_seq'),
    recorded_at timestamptz not null default now(),
    kind step_kind not null,
    name text not null,
    child_id uuid,
    wake_at timestamptz,
    output bytea,
    output_encoding text,
    output_schema text,
    failure jsonb,
    constraint steps_pkey primary key (run_id, step_id)
) partition by range (run_id);

-- Why a run may go on: a task or a run that it started is over. Inserted in the transaction that
-- makes it so, deleted by whoever has locked the run; never updated.
create table run_inbox (
    run_id uuid not null,
    inbox_id bigint generated always as identity,
    child_id uuid not null,
    constraint run_inbox_pkey primary key (run_id, inbox_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

-- What a suspended run waits for: it goes on when one of its sets needs no more. A row of run_waits
-- is deleted when its child is over, so that each child counts once.
create table run_wait_sets (
    run_id uuid not null,
    set_number smallint not null,
    needed_count integer not null,
    constraint run_wait_sets_pkey primary key (run_id, set_number)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01);
create table run_waits (
    run_id uuid not null,
    child_id uuid not null,
    set_number smallint not null,
    constraint run_waits_pkey primary key (run_id, child_id, set_number)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);

-- Versions of workflow functions that workers came with. `compatible_versions` are those whose runs
-- the code goes on with.
create table app_versions (
    namespace_id integer not null,
    queue text not null,
    name text not null,
    version text not null,
    compatible_versions text [] not null default '{}',
    pinned boolean not null default false,
    first_seen_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    constraint app_versions_pkey primary key (namespace_id, queue, name, version)
);
