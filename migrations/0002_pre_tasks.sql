-- Why: tasks and everything that moves them. A task is live in exactly one place (ready_tasks,
-- timers or leases) or its latest delivery is final (INV-07); rows are inserted and deleted, and
-- only lease rows are updated, once a batch.
-- Locks taken: none on existing tables.
-- Safe with versions: any.

-- One row a task, never updated. A stand-alone task has run_id = task_id.
create table tasks (
    run_id uuid not null,
    task_id uuid not null,
    enqueued_at timestamptz not null default now(),
    namespace_id integer not null,
    lane_id integer not null,
    policy_id integer not null,
    priority smallint not null default 0,
    iteration integer,
    input bytea not null,
    input_encoding text,
    input_schema text,
    ref text,
    key text,
    traceparent text,
    constraint tasks_pkey primary key (run_id, task_id),
    constraint tasks_priority_range check (priority between -100 and 100)
) partition by range (run_id);

-- One row a hand-out that ended, never updated. Whoever inserts it wins.
create table deliveries (
    run_id uuid not null,
    task_id uuid not null,
    lease_id uuid,
    session_id uuid,
    started_at timestamptz,
    ended_at timestamptz not null default now(),
    delivery integer not null,
    attempt integer not null,
    outcome delivery_outcome not null,
    final boolean not null,
    output bytea,
    output_encoding text,
    output_schema text,
    failure jsonb,
    constraint deliveries_pkey primary key (run_id, task_id, delivery),
    constraint deliveries_delivery_positive check (delivery >= 1),
    constraint deliveries_done_is_final check (outcome <> 'DONE' or final)
) partition by range (run_id);
create index deliveries_ended_otherwise_idx on deliveries (run_id, task_id)
where final and outcome in ('CANCELLED', 'TIMED_OUT');

create sequence ready_seq as bigint cache 1;

-- Only tasks that can run now: inserted when ready, deleted when leased, never updated. `rank` is
-- the negated priority, so that one ascending index gives the order of hand-out. `attempt` and
-- `delivery` are the numbers that the next hand-out will have. A task with a total timeout carries
-- its end, `total_by`, wherever it is live; `deadline_at` is when this row itself is due: at the
-- earlier of that and its schedule_to_start timeout.
create table ready_tasks (
    lane_id integer not null,
    seq bigint not null default nextval('ready_seq'),
    run_id uuid not null,
    task_id uuid not null,
    ready_at timestamptz not null default now(),
    attempt integer not null default 1,
    delivery integer not null default 1,
    lost_count smallint not null default 0,
    rank smallint not null default 0,
    total_by timestamptz,
    deadline_at timestamptz,
    constraint ready_tasks_pkey primary key (lane_id, rank, seq)
) partition by hash (lane_id);
create index ready_tasks_task_idx on ready_tasks (task_id);
create index ready_tasks_deadline_idx on ready_tasks (deadline_at) where deadline_at is not null;

do $$
begin
    for i in 0..7 loop
        execute format(
            'create table ready_tasks_p%s partition of ready_tasks
                 for values with (modulus 8, remainder %s)
                 with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01,
                       autovacuum_vacuum_cost_limit = 2000)', i, i);
    end loop;
end
$$;

-- One row a batch of tasks, all of one lane, handed to one session. The arrays never change and
-- are stored out of line, so that a renewal or a decrement rewrites a narrow row. `deadline_at` is
-- when the first timeout of a task in it may be due; `alerted` names those that were only told of.
create table leases (
    lease_id uuid primary key default uuidv7(),
    session_id uuid not null,
    granted_at timestamptz not null default now(),
    expires_at timestamptz not null,
    namespace_id integer not null,
    lane_id integer not null,
    remaining integer not null,
    secret bytea not null,
    run_ids uuid [] not null,
    task_ids uuid [] not null,
    seqs bigint [] not null,
    attempts integer [] not null,
    deliveries integer [] not null,
    ranks smallint [] not null,
    lost_counts smallint [] not null,
    total_bys timestamptz [],
    started_task_ids uuid [],
    started_at timestamptz [],
    details jsonb,
    deadline_at timestamptz,
    alerted text [],
    constraint leases_remaining_positive check (remaining > 0)
) with (
    toast_tuple_target = 256, fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000
);
alter table leases
    alter column run_ids set storage external,
    alter column task_ids set storage external,
    alter column seqs set storage external,
    alter column attempts set storage external,
    alter column deliveries set storage external,
    alter column ranks set storage external,
    alter column lost_counts set storage external;
create index leases_task_idx on leases using gin (task_ids);
create index leases_expires_idx on leases (expires_at);
create index leases_session_idx on leases (session_id);
create index leases_deadline_idx on leases (deadline_at) where deadline_at is not null;

-- What is due when. Rows are deleted in the transaction that acts on them. A timer never outlasts
-- the total timeout of its task; `start_ms` is the schedule_to_start timeout that begins when it
-- fires.
create table timers (
    fire_at timestamptz not null,
    timer_id bigint generated always as identity,
    run_id uuid not null,
    task_id uuid not null,
    namespace_id integer not null,
    lane_id integer not null,
    attempt integer not null,
    delivery integer not null,
    lost_count smallint not null,
    rank smallint not null,
    kind timer_kind not null,
    total_by timestamptz,
    start_ms bigint,
    constraint timers_pkey primary key (fire_at, timer_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_limit = 2000);
create index timers_task_idx on timers (task_id);

-- Requests to cancel, until the final delivery.
create table cancel_requests (
    run_id uuid not null,
    task_id uuid not null,
    namespace_id integer not null,
    requested_at timestamptz not null default now(),
    deadline_at timestamptz not null,
    reason text not null default '',
    constraint cancel_requests_pkey primary key (run_id, task_id)
);
create index cancel_requests_deadline_idx on cancel_requests (deadline_at);

-- Tasks that ended without success, until somebody deals with them. `delivery` is the hand-out
-- with which the task died: a replayed task is live while that one is still its latest.
create table dead_letters (
    run_id uuid not null,
    task_id uuid not null,
    died_at timestamptz not null default now(),
    namespace_id integer not null,
    lane_id integer not null,
    delivery integer not null,
    attempt integer not null,
    reason dead_letter_reason not null,
    state dead_letter_state not null default 'OPEN',
    constraint dead_letters_pkey primary key (run_id, task_id)
);
create index dead_letters_listing_idx
on dead_letters (namespace_id, state, died_at desc, task_id desc);

-- Keys that callers gave, while they are in force. Not partitioned: the key alone is unique.
create table idempotency_keys (
    namespace_id integer not null,
    kind text not null,
    key text not null,
    run_id uuid not null,
    task_id uuid not null,
    name text not null,
    input_hash bytea not null,
    expires_at timestamptz not null,
    constraint idempotency_keys_pkey primary key (namespace_id, kind, key)
);
create index idempotency_keys_expires_idx on idempotency_keys (expires_at);

-- What a batched call answered, for 24 hours.
create table requests (
    namespace_id integer not null,
    request_id uuid not null,
    kind text not null,
    digest bytea not null,
    answer bytea not null,
    requested_at timestamptz not null default now(),
    constraint requests_pkey primary key (namespace_id, request_id)
);
create index requests_requested_idx on requests (requested_at);
