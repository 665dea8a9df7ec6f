-- name: lease_lock :many LeaseRow
-- Locks leases that results speak of, in the first statement of the careful form: what the next
-- statements see of their deliveries is then final.
-- Invariants: INV-07. Locks: leases by id, NO KEY UPDATE. Index: leases_pkey.
select
    l.lease_id::text,
    l.secret,
    l.session_id::text,
    l.namespace_id,
    l.lane_id,
    l.run_ids::text [],
    l.task_ids::text [],
    l.seqs,
    l.attempts,
    l.deliveries,
    l.ranks,
    l.lost_counts,
    l.total_bys,
    l.started_task_ids::text [],
    l.started_at,
    l.details,
    l.alerted,
    coalesce(%(now)s::timestamptz, now()) as read_at
from leases as l
where l.lease_id = any(%(lease_ids)s::uuid [])
order by l.lease_id
for no key update of l;

-- name: lease_lock_expired :many LeaseRow
-- Locks leases that have run out, and skips those that somebody is acting on.
-- Invariants: INV-07, INV-08, INV-12. Locks: leases FOR UPDATE SKIP LOCKED. Index:
-- none: one on expires_at would make every renewal dear.
select
    l.lease_id::text,
    l.secret,
    l.session_id::text,
    l.namespace_id,
    l.lane_id,
    l.run_ids::text [],
    l.task_ids::text [],
    l.seqs,
    l.attempts,
    l.deliveries,
    l.ranks,
    l.lost_counts,
    l.total_bys,
    l.started_task_ids::text [],
    l.started_at,
    l.details,
    l.alerted,
    coalesce(%(now)s::timestamptz, now()) as read_at
from leases as l
where l.expires_at < coalesce(%(now)s::timestamptz, now())
order by l.expires_at
limit %(lease_count_max)s::integer
for update of l skip locked;

-- name: lease_lock_overdue :many LeaseRow
-- Locks leases in which a timeout may be due, and skips those that somebody is acting on. None
-- while timers are held after a restore.
-- Invariants: INV-07, INV-08, INV-12. Locks: leases FOR UPDATE SKIP LOCKED. Index:
-- leases_deadline_idx, restores_held_unique.
select
    l.lease_id::text,
    l.secret,
    l.session_id::text,
    l.namespace_id,
    l.lane_id,
    l.run_ids::text [],
    l.task_ids::text [],
    l.seqs,
    l.attempts,
    l.deliveries,
    l.ranks,
    l.lost_counts,
    l.total_bys,
    l.started_task_ids::text [],
    l.started_at,
    l.details,
    l.alerted,
    coalesce(%(now)s::timestamptz, now()) as read_at
from leases as l
where
    l.deadline_at <= coalesce(%(now)s::timestamptz, now())
    and not exists (select 1 from restores as h where h.released_at is null)
order by l.deadline_at
limit %(lease_count_max)s::integer
for update of l skip locked;

-- name: lease_lock_session :many LeaseRow
-- Locks the leases of a session that ends, or those that a resumed worker no longer holds.
-- Invariants: INV-07. Locks: leases by id, FOR UPDATE. Index: leases_session_idx.
select
    l.lease_id::text,
    l.secret,
    l.session_id::text,
    l.namespace_id,
    l.lane_id,
    l.run_ids::text [],
    l.task_ids::text [],
    l.seqs,
    l.attempts,
    l.deliveries,
    l.ranks,
    l.lost_counts,
    l.total_bys,
    l.started_task_ids::text [],
    l.started_at,
    l.details,
    l.alerted,
    coalesce(%(now)s::timestamptz, now()) as read_at
from leases as l
where
    l.session_id = %(session_id)s::uuid
    and l.lease_id <> all(%(kept_lease_ids)s::uuid [])
order by l.lease_id
for update of l;

-- name: delivery_insert :many DeliveryInserted
-- Ends hand-outs; whoever inserts wins. The caller holds the lease rows, and decides everything
-- that follows from the rows that come back. The run whose task is over is told in its inbox.
-- Invariants: INV-02, INV-07. Locks: none beyond the caller's. Index: deliveries_pkey.
with ended as (
    insert into deliveries (
        run_id, task_id, lease_id, session_id, started_at, ended_at, delivery, attempt,
        outcome, final, output, output_encoding, output_schema, failure
    )
    select
        i.run_id,
        i.task_id,
        i.lease_id,
        i.session_id,
        coalesce(%(now)s::timestamptz, now()) - i.run_ms * interval '1 millisecond',
        coalesce(%(now)s::timestamptz, now()),
        i.delivery,
        i.attempt,
        i.outcome,
        i.final,
        i.output,
        i.output_encoding,
        i.output_schema,
        i.failure
    from unnest(
        %(run_ids)s::uuid [],
        %(task_ids)s::uuid [],
        %(lease_ids)s::uuid [],
        %(session_ids)s::uuid [],
        %(run_ms)s::float8 [],
        %(deliveries)s::integer [],
        %(attempts)s::integer [],
        %(outcomes)s::delivery_outcome [],
        %(finals)s::boolean [],
        %(outputs)s::bytea [],
        %(output_encodings)s::text [],
        %(output_schemas)s::text [],
        %(failures)s::jsonb []
    ) as i (
        run_id, task_id, lease_id, session_id, run_ms, delivery, attempt, outcome, final,
        output, output_encoding, output_schema, failure
    )
    order by i.run_id, i.task_id, i.delivery
    on conflict do nothing
    returning run_id, task_id, delivery, final
),
told as (
    insert into run_inbox (run_id, child_id)
    select e.run_id, e.task_id
    from ended as e
    where e.final and e.run_id <> e.task_id
)
select e.task_id::text, e.delivery
from ended as e;

-- name: delivery_classify :many DeliveryEnded
-- Says how hand-outs that could not be ended now had ended, for the lease that a result names.
-- Invariants: INV-07. Locks: none. Index: deliveries_pkey.
select
    d.task_id::text,
    d.lease_id::text,
    d.delivery,
    d.outcome
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid [], %(lease_ids)s::uuid [])
    as i (run_id, task_id, lease_id)
inner join deliveries as d
    on d.run_id = i.run_id and d.task_id = i.task_id and d.lease_id = i.lease_id;

-- name: lease_spend :exec
-- Subtracts ended hand-outs from their leases.
-- Invariants: INV-07. Locks: held by the caller. Index: leases_pkey.
update leases as l
set remaining = l.remaining - i.delivery_count
from unnest(%(lease_ids)s::uuid [], %(delivery_counts)s::integer []) as i (lease_id, delivery_count)
where l.lease_id = i.lease_id and l.remaining > i.delivery_count;

-- name: lease_delete :exec
-- Deletes leases of which nothing is left. It runs before lease_spend.
-- Invariants: INV-07. Locks: held by the caller. Index: leases_pkey.
delete from leases as l
using
    unnest(%(lease_ids)s::uuid [], %(delivery_counts)s::integer []) as i (lease_id, delivery_count)
where l.lease_id = i.lease_id and l.remaining <= i.delivery_count;

-- name: ready_insert :exec
-- Makes tasks ready. One that was released unstarted keeps its `seq` and so its place; a null
-- `seq` means the end of the lane.
-- Invariants: INV-07. Locks: none beyond the caller's. Index: none.
insert into ready_tasks (
    lane_id, rank, seq, run_id, task_id, attempt, delivery, lost_count, total_by, deadline_at
)
select
    i.lane_id,
    i.rank,
    coalesce(i.seq, nextval('ready_seq')),
    i.run_id,
    i.task_id,
    i.attempt,
    i.delivery,
    i.lost_count,
    i.total_by,
    least(
        i.total_by,
        coalesce(%(now)s::timestamptz, now()) + i.start_ms * interval '1 millisecond'
    )
from unnest(
    %(lane_ids)s::integer [],
    %(ranks)s::smallint [],
    %(seqs)s::bigint [],
    %(run_ids)s::uuid [],
    %(task_ids)s::uuid [],
    %(attempts)s::integer [],
    %(deliveries)s::integer [],
    %(lost_counts)s::smallint [],
    %(total_bys)s::timestamptz [],
    %(starts_ms)s::bigint []
) as i (
    lane_id, rank, seq, run_id, task_id, attempt, delivery, lost_count, total_by, start_ms
);

-- name: timer_insert :exec
-- Makes tasks wait for their next attempt, and suspended runs for their time: one without a time
-- waits until something wakes it, or until its total timeout.
-- Invariants: INV-07, INV-08. Locks: none beyond the caller's. Index: none.
insert into timers (
    fire_at, kind, namespace_id, lane_id, rank, run_id, task_id, attempt, delivery, lost_count,
    total_by, start_ms
)
select
    coalesce(
        least(
            i.total_by,
            coalesce(%(now)s::timestamptz, now()) + i.delay_ms * interval '1 millisecond'
        ),
        '9999-01-01 00:00:00+00'
    ),
    i.kind,
    i.namespace_id,
    i.lane_id,
    i.rank,
    i.run_id,
    i.task_id,
    i.attempt,
    i.delivery,
    i.lost_count,
    i.total_by,
    i.start_ms
from unnest(
    %(delays_ms)s::bigint [],
    %(kinds)s::timer_kind [],
    %(namespace_ids)s::integer [],
    %(lane_ids)s::integer [],
    %(ranks)s::smallint [],
    %(run_ids)s::uuid [],
    %(task_ids)s::uuid [],
    %(attempts)s::integer [],
    %(deliveries)s::integer [],
    %(lost_counts)s::smallint [],
    %(total_bys)s::timestamptz [],
    %(starts_ms)s::bigint []
) as i (
    delay_ms, kind, namespace_id, lane_id, rank, run_id, task_id, attempt, delivery, lost_count,
    total_by, start_ms
);

-- name: dead_letter_insert :exec
-- Puts tasks into the dead letters; one that was there before, and was replayed, is open again.
-- Invariants: INV-13. Locks: the row. Index: dead_letters_pkey.
insert into dead_letters (
    run_id, task_id, namespace_id, lane_id, delivery, attempt, reason, died_at
)
select
    i.run_id,
    i.task_id,
    i.namespace_id,
    t.lane_id,
    i.delivery,
    i.attempt,
    i.reason,
    coalesce(%(now)s::timestamptz, now())
from unnest(
    %(run_ids)s::uuid [],
    %(task_ids)s::uuid [],
    %(namespace_ids)s::integer [],
    %(deliveries)s::integer [],
    %(attempts)s::integer [],
    %(reasons)s::dead_letter_reason []
) as i (run_id, task_id, namespace_id, delivery, attempt, reason)
inner join tasks as t on t.run_id = i.run_id and t.task_id = i.task_id
on conflict (run_id, task_id) do update
    set
        delivery = excluded.delivery,
        attempt = excluded.attempt,
        reason = excluded.reason,
        died_at = excluded.died_at,
        state = 'OPEN';

-- name: task_policy_list :many TaskPolicyId
-- Reads which policies the tasks were enqueued with.
-- Invariants: none. Locks: none. Index: tasks_pkey.
select
    t.task_id::text,
    t.policy_id
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
inner join tasks as t on t.run_id = i.run_id and t.task_id = i.task_id;
