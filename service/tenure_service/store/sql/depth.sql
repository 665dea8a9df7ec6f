-- name: queue_depth :many QueueDepthRow
-- Counts, by namespace, queue and task name, what waits and for how long, what is timed, leased and
-- dead, and who takes such tasks; also where there is nothing, if a worker takes such tasks. Of
-- more than `row_count_max` combinations the last are one row.
-- Invariants: none. Locks: none. Index: one pass over ready_tasks, timers and leases each;
-- dead_letters_listing_idx.
with takers as materialized (
    select s.namespace_id, h.queue, h.name, count(*) as worker_count
    from sessions as s
    cross join lateral jsonb_to_recordset(s.handlers) as h (queue text, name text)
    where s.closed_at is null and s.receiving and s.seen_at > now() - interval '15 seconds'
    group by s.namespace_id, h.queue, h.name
),
counted as (
    select r.lane_id, count(*) as ready_count, min(r.ready_at) as oldest_ready_at,
        0::bigint as delayed_count, 0::bigint as leased_count, 0::bigint as dead_count
    from ready_tasks as r
    group by r.lane_id
    union all
    select w.lane_id, 0, null, count(*), 0, 0
    from timers as w
    group by w.lane_id
    union all
    select h.lane_id, 0, null, 0, sum(h.remaining), 0
    from leases as h
    group by h.lane_id
    union all
    select g.lane_id, 0, null, 0, 0, count(*)
    from namespaces as o
    inner join dead_letters as g on g.namespace_id = o.namespace_id and g.state = 'OPEN'
    group by g.lane_id
),
placed as (
    select
        n.name as namespace,
        c.namespace_id,
        c.queue,
        c.name,
        sum(c.ready_count) as ready_count,
        sum(c.delayed_count) as delayed_count,
        sum(c.leased_count) as leased_count,
        sum(c.dead_count) as dead_count,
        min(c.oldest_ready_at) as oldest_ready_at,
        row_number() over (order by sum(c.ready_count) desc, sum(c.leased_count) desc) as place
    from (
        select l.namespace_id, l.queue, l.name,
            o.ready_count, o.oldest_ready_at, o.delayed_count, o.leased_count, o.dead_count
        from counted as o
        inner join lanes as l on l.lane_id = o.lane_id
        union all
        -- What is served and empty is told as well: a series that ends looks like one that is lost.
        select t.namespace_id, t.queue, t.name, 0, null, 0, 0, 0
        from takers as t
    ) as c
    inner join namespaces as n on n.namespace_id = c.namespace_id
    group by n.name, c.namespace_id, c.queue, c.name
)
select
    case when p.place < %(row_count_max)s::integer then p.namespace else 'other' end as namespace,
    case when p.place < %(row_count_max)s::integer then p.queue else 'other' end as queue,
    case when p.place < %(row_count_max)s::integer then p.name else 'other' end as name,
    sum(p.ready_count)::bigint as ready_count,
    sum(p.delayed_count)::bigint as delayed_count,
    sum(p.leased_count)::bigint as leased_count,
    sum(p.dead_count)::bigint as dead_count,
    coalesce(max(extract(epoch from now() - p.oldest_ready_at)), 0)::double precision
        as oldest_seconds,
    coalesce(sum(t.worker_count), 0)::bigint as worker_count
from placed as p
left join takers as t
    on t.namespace_id = p.namespace_id and t.queue = p.queue and t.name = p.name
group by 1, 2, 3
order by 1, 2, 3;
