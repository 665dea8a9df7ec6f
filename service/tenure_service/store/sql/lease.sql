-- name: lease_take :many LeasedTask
-- Hands up to `task_count_max` tasks of one lane to a session: deletes them from ready_tasks and
-- writes one lease row for all of them. Nothing is handed to a session of another epoch, to a
-- closed one, or out of a paused queue; nothing below the priority that `rank_max` stands for.
-- `low_rank` and `low_seq` are a hint: rows at or below them are known dead, and stepping over
-- dead index entries is what makes a pick slow (300,000 took it from 1.7 to 67 ms).
-- Rows are found and deleted by ctid inside one partition.
-- Invariants: INV-07, INV-10. Locks: session FOR SHARE, then ready rows, skipping locked ones.
-- Index: ready_tasks_pkey, tasks_pkey, sessions_pkey, lanes_pkey, queues_pkey.
with allowed as materialized (
    -- tidy: one statement, since a second round trip would be a tenth of the hand-out
    select s.session_id
    from sessions as s
    where
        s.session_id = %(session_id)s::uuid
        and s.epoch = %(epoch)s::integer
        and s.closed_at is null
        and not exists (
            select 1
            from lanes as l
            inner join queues as q on q.namespace_id = l.namespace_id and q.name = l.queue
            where l.lane_id = %(lane_id)s::integer and q.paused_at is not null
        )
    for share of s
),
picked as materialized (
    select r.ctid as place
    from ready_tasks as r
    where
        r.lane_id = %(lane_id)s::integer
        and (r.rank, r.seq) > (%(low_rank)s::smallint, %(low_seq)s::bigint)
        and r.rank <= %(rank_max)s::smallint
        and exists (select 1 from allowed)
    order by r.rank, r.seq
    limit %(task_count_max)s::integer
    for update of r skip locked
),
taken as materialized (
    delete from ready_tasks as r
    where r.lane_id = %(lane_id)s::integer and r.ctid = any(array(select place from picked))
    returning
        r.run_id, r.task_id, r.rank, r.seq, r.attempt, r.delivery, r.lost_count, r.total_by,
        r.ready_at
),
lease as (
    insert into leases (
        session_id, expires_at, namespace_id, lane_id, remaining, secret,
        run_ids, task_ids, seqs, attempts, deliveries, ranks, lost_counts, total_bys, deadline_at
    )
    select
        %(session_id)s::uuid,
        coalesce(%(now)s::timestamptz, now()) + %(lease_ms)s::bigint * interval '1 millisecond',
        %(namespace_id)s::integer,
        %(lane_id)s::integer,
        count(*),
        %(secret)s::bytea,
        array_agg(run_id order by rank, seq),
        array_agg(task_id order by rank, seq),
        array_agg(seq order by rank, seq),
        array_agg(attempt order by rank, seq),
        array_agg(delivery order by rank, seq),
        array_agg(rank order by rank, seq),
        array_agg(lost_count order by rank, seq),
        case when count(total_by) > 0 then array_agg(total_by order by rank, seq) end,
        min(total_by)
    from taken
    having count(*) > 0
    returning lease_id
)
select
    (select lease_id from lease)::text as lease_id,
    x.run_id::text, x.task_id::text,
    x.rank,
    x.seq,
    x.attempt,
    x.delivery,
    t.policy_id,
    t.input,
    t.input_encoding,
    t.input_schema,
    t.traceparent,
    extract(epoch from coalesce(%(now)s::timestamptz, now()) - x.ready_at)::double precision
        as wait_seconds
from taken as x
inner join tasks as t on t.run_id = x.run_id and t.task_id = x.task_id
order by x.rank, x.seq;

-- name: lane_head :many LaneHead
-- Finds, for each of the lanes, the first waiting task: what to take from first.
-- Invariants: INV-10. Locks: none. Index: ready_tasks_pkey, one probe a lane.
select
    l.lane_id,
    h.rank,
    h.seq
from unnest(%(lane_ids)s::integer []) as l (lane_id)
cross join lateral (
    select
        r.rank,
        r.seq
    from ready_tasks as r
    where r.lane_id = l.lane_id
    order by r.rank, r.seq
    limit 1
) as h
order by h.rank, h.seq;

-- name: lease_outstanding :many OutstandingTask
-- Reads again what leases hold that has not ended: for a call that is repeated, and for a server
-- that takes a session over.
-- Invariants: INV-07. Locks: none. Index: leases_pkey, tasks_pkey, deliveries_pkey.
select
    l.lease_id::text,
    l.secret,
    l.lane_id,
    m.run_id::text,
    m.task_id::text,
    m.rank,
    m.seq,
    m.attempt,
    m.delivery,
    t.policy_id,
    t.input,
    t.input_encoding,
    t.input_schema,
    t.traceparent
from leases as l
cross join lateral unnest(l.run_ids, l.task_ids, l.ranks, l.seqs, l.attempts, l.deliveries)
    as m (run_id, task_id, rank, seq, attempt, delivery)
inner join tasks as t on t.run_id = m.run_id and t.task_id = m.task_id
where
    l.lease_id = any(%(lease_ids)s::uuid [])
    and not exists (
        select 1
        from deliveries as d
        where d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
    )
order by l.lease_id, m.rank, m.seq;

-- name: lease_live :many LeaseLive
-- Says which of these leases are still there.
-- Invariants: none. Locks: none. Index: leases_pkey.
select l.lease_id::text
from leases as l
where l.lease_id = any(%(lease_ids)s::uuid []);

-- name: lane_ready :many LaneHead
-- Finds, among the lanes of tasks that handlers serve, those that hold one, the most urgent first;
-- at equal rank the longest waiting first.
-- Invariants: INV-10. Locks: none. Index: lanes_identity_unique, ready_tasks_pkey.
select
    l.lane_id,
    h.rank,
    h.seq
from unnest(%(namespace_ids)s::integer [], %(queues)s::text [], %(names)s::text [])
    as i (namespace_id, queue, name)
inner join lanes as l
    on l.namespace_id = i.namespace_id and l.queue = i.queue and l.name = i.name
    and l.app_version = ''
cross join lateral (
    select
        r.rank,
        r.seq
    from ready_tasks as r
    where r.lane_id = l.lane_id
    order by r.rank, r.seq
    limit 1
) as h
order by h.rank, h.seq;
