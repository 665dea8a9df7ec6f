-- name: step_lease_lock :many StepLease
-- Gives the leases under which activations record steps, of those that name their run, with their
-- secret, in their namespace. What ends a whole lease waits for the caller.
-- Invariants: INV-04. Locks: leases by id, KEY SHARE. Index: leases_pkey.
select
    l.lease_id::text,
    i.run_id::text
from unnest(
    %(lease_ids)s::uuid [],
    %(secrets)s::bytea [],
    %(namespace_ids)s::integer [],
    %(run_ids)s::uuid []
) as i (lease_id, secret, namespace_id, run_id)
inner join leases as l on l.lease_id = i.lease_id
where
    l.secret = i.secret
    and l.namespace_id = i.namespace_id
    and i.run_id = any(l.task_ids)
order by l.lease_id
for key share of l;

-- name: step_run_lock :many StepRun
-- Locks the runs whose steps are recorded: a run has one recorder, and what ends an activation of a
-- lease of several runs waits here.
-- Invariants: INV-04. Locks: runs by id, NO KEY UPDATE. Index: runs_pkey.
select
    r.run_id::text,
    r.root_run_id::text
from unnest(%(run_ids)s::uuid []) as i (run_id)
inner join runs as r on r.run_id = i.run_id
order by r.run_id
for no key update of r;

-- name: step_fence :many StepFence
-- Says which activations still run, in a statement after the locks, so that it sees what they
-- waited for; and how many steps are recorded, where that is asked for.
-- Invariants: INV-04. Locks: held by the caller, or none for a read. Index: deliveries_pkey,
-- steps_pkey.
select
    i.lease_id::text,
    i.run_id::text,
    case when i.counted then (
        select count(*) from steps as s
        where s.run_id = i.run_id
    ) end as step_count
from unnest(%(lease_ids)s::uuid [], %(run_ids)s::uuid [], %(counteds)s::boolean [])
    as i (lease_id, run_id, counted)
where not exists (
    select 1
    from deliveries as d
    where d.run_id = i.run_id and d.task_id = i.run_id and d.lease_id = i.lease_id
);

-- name: step_held :many StepLease
-- Says whether an activation runs, for a read.
-- Invariants: INV-04. Locks: none. Index: leases_pkey, deliveries_pkey.
select
    l.lease_id::text,
    %(run_id)s::uuid::text as run_id
from leases as l
where
    l.lease_id = %(lease_id)s::uuid
    and l.secret = %(secret)s::bytea
    and l.namespace_id = %(namespace_id)s::integer
    and %(run_id)s::uuid = any(l.task_ids)
    and not exists (
        select 1
        from deliveries as d
        where
            d.run_id = %(run_id)s::uuid
            and d.task_id = %(run_id)s::uuid
            and d.lease_id = l.lease_id
    );

-- name: step_insert :many StepInserted
-- Records steps that are not recorded; whoever inserts does what the step asks for. The caller
-- decides that from what comes back.
-- Invariants: INV-02, INV-03, INV-06. Locks: held by the caller. Index: steps_pkey.
insert into steps (
    run_id, step_id, recorded_at, kind, name, child_id, wake_at,
    output, output_encoding, output_schema, failure
)
select
    i.run_id,
    i.step_id,
    coalesce(%(now)s::timestamptz, now()),
    i.kind,
    i.name,
    i.child_id,
    coalesce(%(now)s::timestamptz, now()) + i.sleep_ms * interval '1 millisecond',
    i.output,
    i.output_encoding,
    i.output_schema,
    i.failure
from unnest(
    %(run_ids)s::uuid [],
    %(step_ids)s::text [],
    %(kinds)s::step_kind [],
    %(names)s::text [],
    %(child_ids)s::uuid [],
    %(sleeps_ms)s::bigint [],
    %(outputs)s::bytea [],
    %(output_encodings)s::text [],
    %(output_schemas)s::text [],
    %(failures)s::jsonb []
) with ordinality as i (
    run_id, step_id, kind, name, child_id, sleep_ms, output, output_encoding, output_schema,
    failure, place
)
order by i.place
on conflict do nothing
returning run_id::text, step_id, seq, recorded_at, wake_at;

-- name: step_task_insert :exec
-- Enqueues the tasks of recorded steps: the task row under its run, and its one live row, ready or
-- timed, in the order of the arrays.
-- Invariants: INV-02, INV-07. Locks: none. Index: none.
with input as materialized (
    select
        i.*,
        coalesce(%(now)s::timestamptz, now()) as enqueued_at,
        coalesce(%(now)s::timestamptz, now()) + i.total_ms * interval '1 millisecond' as total_by
    from unnest(
        %(run_ids)s::uuid [],
        %(ids)s::uuid [],
        %(refs)s::text [],
        %(namespace_ids)s::integer [],
        %(lane_ids)s::integer [],
        %(policy_ids)s::integer [],
        %(priorities)s::smallint [],
        %(inputs)s::bytea [],
        %(input_encodings)s::text [],
        %(input_schemas)s::text [],
        %(traceparents)s::text [],
        %(delays_ms)s::bigint [],
        %(starts_ms)s::bigint [],
        %(totals_ms)s::bigint []
    ) as i (
        run_id, id, ref, namespace_id, lane_id, policy_id, priority, input, input_encoding,
        input_schema, traceparent, delay_ms, start_ms, total_ms
    )
),
stored as (
    insert into tasks (
        run_id, task_id, ref, namespace_id, lane_id, policy_id, priority,
        input, input_encoding, input_schema, traceparent
    )
    select
        run_id, id, ref, namespace_id, lane_id, policy_id, priority,
        input, input_encoding, input_schema, traceparent
    from input
),
ready as (
    insert into ready_tasks (lane_id, rank, run_id, task_id, total_by, deadline_at)
    select
        lane_id, -priority, run_id, id, total_by,
        least(total_by, enqueued_at + start_ms * interval '1 millisecond')
    from input
    where delay_ms is null
)
insert into timers (
    fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count, rank, kind,
    total_by, start_ms
)
select
    least(total_by, enqueued_at + delay_ms * interval '1 millisecond'),
    run_id, id, namespace_id, lane_id, 1, 1, 0, -priority, 'DELAY', total_by, start_ms
from input
where delay_ms is not null;

-- name: step_get :many StepRow
-- Reads recorded steps by their ids.
-- Invariants: none. Locks: none. Index: steps_pkey.
select
    s.run_id::text,
    s.step_id,
    s.seq,
    s.recorded_at,
    s.kind::text,
    s.name,
    s.child_id::text,
    s.wake_at,
    (extract(epoch from s.wake_at - coalesce(%(now)s::timestamptz, now())) * 1000)::bigint
        as remaining_ms,
    s.output,
    s.output_encoding,
    s.output_schema,
    s.failure,
    1::bigint as found_count
from unnest(%(run_ids)s::uuid [], %(step_ids)s::text []) as i (run_id, step_id)
inner join steps as s on s.run_id = i.run_id and s.step_id = i.step_id;

-- name: step_page :many StepRow
-- Reads the steps of runs after a place, in the order in which they were recorded: of each run as
-- many as fit, one at least. `found_count` is more than those if there are more.
-- Invariants: none. Locks: none. Index: steps_pkey; a run's steps are sorted, since an index in
-- their order would cost every step an entry.
with found as materialized (
    select
        s.run_id, s.step_id, s.seq, s.recorded_at, s.kind, s.name, s.child_id, s.wake_at,
        s.output, s.output_encoding, s.output_schema, s.failure,
        row_number() over (partition by s.run_id order by s.seq) as place,
        count(*) over (partition by s.run_id) as found_count,
        sum(coalesce(octet_length(s.output), 0) + coalesce(pg_column_size(s.failure), 0) + 200)
            over (partition by s.run_id order by s.seq) as bytes
    from unnest(%(run_ids)s::uuid [], %(after_seqs)s::bigint []) as i (run_id, after_seq)
    cross join lateral (
        select
            p.run_id, p.step_id, p.seq, p.recorded_at, p.kind, p.name, p.child_id, p.wake_at,
            p.output, p.output_encoding, p.output_schema, p.failure
        from steps as p
        where p.run_id = i.run_id and p.seq > i.after_seq
        order by p.seq
        limit %(step_count_max)s::integer + 1
    ) as s
)
select
    f.run_id::text,
    f.step_id,
    f.seq,
    f.recorded_at,
    f.kind::text,
    f.name,
    f.child_id::text,
    f.wake_at,
    (extract(epoch from f.wake_at - coalesce(%(now)s::timestamptz, now())) * 1000)::bigint
        as remaining_ms,
    f.output,
    f.output_encoding,
    f.output_schema,
    f.failure,
    f.found_count
from found as f
where
    f.place = 1
    or (f.place <= %(step_count_max)s::integer and f.bytes <= %(bytes_max)s::bigint)
order by f.run_id, f.seq;

-- name: child_result_list :many ChildResultRow
-- Reads how tasks and runs were over that runs have started; one that is not over has no
-- `outcome`, one that is not of the run no row. Of each run so many as fit are given, one at
-- least; the others are told to be over, without how.
-- Invariants: INV-07. Locks: none. Index: tasks_pkey, runs_pkey, deliveries_pkey,
-- dead_letters_pkey.
with found as materialized (
    select
        i.parent_id, i.task_id, i.place,
        g.task_id is not null as dead,
        d.outcome, d.ended_at, d.output, d.output_encoding, d.output_schema, d.failure,
        d.final and g.state is distinct from 'REPLAYED' as is_over,
        case when d.final and g.state is distinct from 'REPLAYED' then
            coalesce(octet_length(d.output), 0) + coalesce(pg_column_size(d.failure), 0) + 200
        end as bytes
    from unnest(%(parent_ids)s::uuid [], %(run_ids)s::uuid [], %(task_ids)s::uuid [])
        with ordinality as i (parent_id, run_id, task_id, place)
    inner join tasks as t on t.run_id = i.run_id and t.task_id = i.task_id
    left join lateral (
        select
            e.final, e.outcome, e.delivery, e.ended_at, e.output, e.output_encoding,
            e.output_schema, e.failure
        from deliveries as e
        where e.run_id = i.run_id and e.task_id = i.task_id
        order by e.delivery desc
        limit 1
    ) as d on d.final
    left join dead_letters as g
        on g.run_id = i.run_id and g.task_id = i.task_id and g.delivery = d.delivery
    where
        i.run_id = i.parent_id
        or exists (
            select 1 from runs as r
            where r.run_id = i.run_id and r.parent_run_id = i.parent_id
        )
),
measured as (
    select
        f.parent_id, f.task_id, f.place, f.dead, f.outcome, f.ended_at, f.output,
        f.output_encoding, f.output_schema, f.failure, f.is_over,
        sum(f.bytes) over w <= %(bytes_max)s::bigint or count(f.bytes) over w <= 1 as fits
    from found as f
    window w as (partition by f.parent_id order by f.place)
)
select
    m.parent_id::text,
    m.task_id::text as child_id,
    case when m.is_over then m.outcome::text end as outcome,
    m.dead,
    m.ended_at,
    case when m.fits then m.output end as output,
    m.output_encoding,
    m.output_schema,
    case when m.fits then m.failure end as failure,
    m.fits
from measured as m
order by m.place;
