-- name: task_place_broken :many Breach
-- Tasks that are live nowhere and not over, live in several places, or live although over; and
-- what is live without a task. A hand-out is live under its lease until its delivery row is there.
-- Invariants: INV-07. Locks: none. Index: none, it reads whole tables.
with live as (
    select r.run_id, r.task_id, 'ready_tasks' as place
    from ready_tasks as r
    union all
    select w.run_id, w.task_id, 'timers' as place
    from timers as w
    union all
    select m.run_id, m.task_id, 'lease ' || l.lease_id as place
    from leases as l
    cross join lateral unnest(l.run_ids, l.task_ids, l.deliveries) as m (run_id, task_id, delivery)
    left join deliveries as d
        on d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
    where d.task_id is null
),
placed as (
    select
        run_id,
        task_id,
        count(*) as place_count,
        string_agg(place, ', ' order by place) as places
    from live
    group by run_id, task_id
),
latest as (
    select distinct on (d.run_id, d.task_id) d.run_id, d.task_id, d.delivery, d.outcome, d.final
    from deliveries as d
    order by d.run_id, d.task_id, d.delivery desc
)
select
    coalesce(t.run_id, p.run_id)::text as run_id,
    coalesce(t.task_id, p.task_id)::text as task_id,
    concat_ws(
        '; ', case when t.task_id is null then 'no such task' end,
        'live in ' || coalesce(p.places, 'no place'),
        'delivery ' || d.delivery || ' is ' || d.outcome || case when d.final then ', final' end,
        case when g.task_id is not null then 'replayed' end
    ) as detail
from tasks as t
full join placed as p on p.run_id = t.run_id and p.task_id = t.task_id
left join latest as d on d.run_id = t.run_id and d.task_id = t.task_id
left join dead_letters as g
    on g.run_id = t.run_id and g.task_id = t.task_id
    and g.state = 'REPLAYED' and g.delivery = d.delivery
where
    t.task_id is null
    or coalesce(p.place_count, 0)
    <> case when coalesce(d.final, false) and g.task_id is null then 0 else 1 end
limit 100;

-- name: delivery_number_broken :many Breach
-- Tasks whose hand-outs are not numbered 1, 2, 3 and so on, each ended by one row, with the live
-- one after the latest; and deliveries of tasks that do not exist.
-- Invariants: INV-06, INV-07. Locks: none. Index: none, it reads whole tables.
with numbered as (
    select
        d.run_id,
        d.task_id,
        min(d.delivery) as first,
        max(d.delivery) as last,
        count(*) as ended
    from deliveries as d
    group by d.run_id, d.task_id
),
live as (
    select r.run_id, r.task_id, r.delivery
    from ready_tasks as r
    union all
    select w.run_id, w.task_id, w.delivery
    from timers as w
    union all
    select m.run_id, m.task_id, m.delivery
    from leases as l
    cross join lateral unnest(l.run_ids, l.task_ids, l.deliveries) as m (run_id, task_id, delivery)
    left join deliveries as d
        on d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
    where d.task_id is null
)
select
    coalesce(n.run_id, v.run_id)::text as run_id,
    coalesce(n.task_id, v.task_id)::text as task_id,
    concat_ws(
        '; ', case when n.task_id is not null and t.task_id is null then 'no such task' end,
        'rows ' || n.ended || ', from ' || n.first || ' to ' || n.last,
        'live as ' || v.delivery
    ) as detail
from numbered as n
full join live as v on v.run_id = n.run_id and v.task_id = n.task_id
left join tasks as t on t.run_id = n.run_id and t.task_id = n.task_id
where
    n.first <> 1
    or n.last <> n.ended
    or v.delivery <> coalesce(n.last, 0) + 1
    or (n.task_id is not null and t.task_id is null)
limit 100;

-- name: delivery_final_broken :many Breach
-- Tasks that went on after they were over: only death is followed by another delivery, that of a
-- replay. And outcomes that are final or not although they cannot be, as two DONE rows of one task.
-- Invariants: INV-07. Locks: none. Index: none, it reads the whole table.
with ordered as (
    select
        d.run_id, d.task_id, d.delivery, d.outcome, d.final,
        lead(d.delivery) over w as next_delivery,
        count(*) filter (where d.outcome = 'DONE') over (partition by d.run_id, d.task_id) as done
    from deliveries as d
    window w as (partition by d.run_id, d.task_id order by d.delivery)
)
select
    o.run_id::text,
    o.task_id::text,
    concat_ws(
        '; ', 'delivery ' || o.delivery || ' is ' || o.outcome,
        case when o.final then 'final' end,
        'followed by ' || o.next_delivery, 'DONE rows: ' || o.done
    ) as detail
from ordered as o
where
    (o.final and o.next_delivery is not null and o.outcome not in ('FAILED', 'LOST', 'TIMED_OUT'))
    or (o.final and o.outcome in ('RELEASED', 'RESCHEDULED', 'SUSPENDED'))
    or (not o.final and o.outcome in ('DONE', 'CANCELLED'))
    or o.done > 1
limit 100;

-- name: lease_remaining_broken :many Breach
-- Leases that do not count what they hold: `remaining` differs from the hand-outs without a
-- delivery row, nothing is left, or the arrays do not run in parallel. The row names the lease.
-- Invariants: INV-07. Locks: none. Index: deliveries_pkey.
select
    l.lease_id::text as run_id,
    l.lease_id::text as task_id,
    'lease: remaining ' || l.remaining || ', of ' || cardinality(l.task_ids) || ' not ended '
    || o.open_count as detail
from leases as l
cross join lateral (
    select count(*) filter (where d.task_id is null) as open_count
    from unnest(l.run_ids, l.task_ids, l.deliveries) as m (run_id, task_id, delivery)
    left join deliveries as d
        on d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
) as o
where
    l.remaining <> o.open_count
    or o.open_count = 0
    or array[
        cardinality(l.run_ids), cardinality(l.seqs), cardinality(l.attempts),
        cardinality(l.deliveries), cardinality(l.ranks), cardinality(l.lost_counts)
    ] <> array_fill(cardinality(l.task_ids), array[6])
limit 100;

-- name: lease_delivery_broken :many Breach
-- Hand-outs of a lease that were ended in the name of another one.
-- Invariants: INV-07. Locks: none. Index: deliveries_pkey.
select
    m.run_id::text,
    m.task_id::text,
    'delivery ' || m.delivery || ' is of lease ' || l.lease_id || ', its row names '
    || coalesce(d.lease_id::text, 'none') as detail
from leases as l
cross join lateral unnest(l.run_ids, l.task_ids, l.deliveries) as m (run_id, task_id, delivery)
inner join deliveries as d
    on d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
where d.lease_id is distinct from l.lease_id
limit 100;

-- name: dead_letter_broken :many Breach
-- Dead tasks without a dead letter, and dead letters that do not name a death: open and discarded
-- ones name the latest delivery, replayed ones any final one. Runs fail without one.
-- Invariants: INV-13. Locks: none. Index: none, it reads whole tables.
with latest as (
    select distinct on (d.run_id, d.task_id) d.run_id, d.task_id, d.delivery, d.outcome, d.final
    from deliveries as d
    order by d.run_id, d.task_id, d.delivery desc
),
dead as (
    select n.run_id, n.task_id, n.delivery, n.outcome
    from latest as n
    where
        n.final
        and not exists (select 1 from runs as u where u.run_id = n.run_id and u.run_id = n.task_id)
        and (
            n.outcome in ('FAILED', 'LOST')
            -- A timeout is a death if it spent the last attempt; else the task is TIMED_OUT.
            or n.outcome = 'TIMED_OUT'
            and exists (
                select 1
                from dead_letters as x
                where
                    x.run_id = n.run_id and x.task_id = n.task_id and x.delivery = n.delivery
            )
        )
)
select
    coalesce(n.run_id, g.run_id)::text as run_id,
    coalesce(n.task_id, g.task_id)::text as task_id,
    concat_ws(
        '; ', 'dead with delivery ' || n.delivery || ' as ' || n.outcome,
        'dead letter ' || g.state || ' names ' || g.delivery, g.reason::text
    ) as detail
from dead as n
full join dead_letters as g on g.run_id = n.run_id and g.task_id = n.task_id
left join deliveries as d
    on d.run_id = g.run_id and d.task_id = g.task_id and d.delivery = g.delivery
where
    g.task_id is null
    or g.delivery > n.delivery
    or (g.state <> 'REPLAYED' and n.delivery is distinct from g.delivery)
    or (g.state = 'REPLAYED' and n.delivery is distinct from g.delivery and n.task_id is not null)
    or not coalesce(d.final, false)
    or (d.outcome = 'LOST') <> (g.reason = 'LEASE_LOST')
limit 100;

-- name: cancel_request_broken :many Breach
-- Requests to cancel tasks that are over, that do not exist, or that wait: who cancels takes a task
-- from where it waits, and who puts one back looks for the request first. A run with a request may
-- be ready; what a run has started that was cancelled or timed out is seen to after that.
-- Invariants: INV-02, INV-12. Locks: none. Index: deliveries_pkey, tasks_pkey; requests are few.
select
    c.run_id::text,
    c.task_id::text,
    case
        when t.task_id is null then 'no such task'
        when d.final and g.task_id is null then 'over with delivery ' || d.delivery
        else 'waits in ' || w.place
    end as detail
from cancel_requests as c
left join tasks as t on t.run_id = c.run_id and t.task_id = c.task_id
left join lateral (
    select e.delivery, e.outcome, e.final
    from deliveries as e
    where e.run_id = c.run_id and e.task_id = c.task_id
    order by e.delivery desc
    limit 1
) as d on true
left join dead_letters as g
    on g.run_id = c.run_id and g.task_id = c.task_id
    and g.state = 'REPLAYED' and g.delivery = d.delivery
left join runs as u on u.run_id = c.run_id and c.task_id = c.run_id
left join runs as p on p.run_id = case when u.run_id is null then c.run_id else u.parent_run_id end
left join lateral (
    select 'ready_tasks' as place from ready_tasks as r
    where r.task_id = c.task_id and (u.run_id is null or r.delivery = 1)
    union all
    select 'timers' from timers as f where f.task_id = c.task_id
    limit 1
) as w on true
where
    t.task_id is null
    or p.status is distinct from 'CANCELLED' and p.status is distinct from 'TIMED_OUT'
    and ((d.final and g.task_id is null) or w.place is not null)
limit 100;

-- name: attempt_broken :many Breach
-- Hand-outs, ended or live, that break the counts: a failure spends an attempt, a lost, released or
-- rescheduled hand-out does not, a replay starts from 1, no attempt exceeds the policy's
-- `max_attempts`, and the live row counts the losses since the last death. A task that was
-- cancelled while it waited has a row without a lease, for an attempt that never began. A run
-- counts its losses since it was suspended, and an operator lets it count anew.
-- Invariants: INV-07. Locks: none. Index: none, it reads whole tables.
with handed as (
    select
        d.run_id,
        d.task_id,
        d.delivery,
        d.attempt,
        d.outcome,
        d.final,
        null::integer as lost_count
    from deliveries as d
    where d.lease_id is not null
    union all
    select r.run_id, r.task_id, r.delivery, r.attempt, null, false, r.lost_count
    from ready_tasks as r
    union all
    select w.run_id, w.task_id, w.delivery, w.attempt, null, false, w.lost_count
    from timers as w
    union all
    select m.run_id, m.task_id, m.delivery, m.attempt, null, false, m.lost_count
    from leases as l
    cross join lateral unnest(l.run_ids, l.task_ids, l.deliveries, l.attempts, l.lost_counts)
        as m (run_id, task_id, delivery, attempt, lost_count)
    left join deliveries as d
        on d.run_id = m.run_id and d.task_id = m.task_id and d.delivery = m.delivery
    where d.task_id is null
),
ordered as (
    select
        h.*,
        lag(h.attempt) over w as last_attempt,
        lag(h.outcome) over w as last_outcome,
        count(*) filter (where h.final or h.outcome = 'SUSPENDED') over v as deaths
    from handed as h
    window
        w as (partition by h.run_id, h.task_id order by h.delivery),
        v as (w rows between unbounded preceding and 1 preceding)
),
counted as (
    select
        o.*,
        lag(o.final) over (partition by o.run_id, o.task_id order by o.delivery) as died,
        count(*) filter (where o.outcome = 'LOST')
            over (partition by o.run_id, o.task_id, o.deaths) as losses
    from ordered as o
)
select
    c.run_id::text,
    c.task_id::text,
    concat_ws(
        '; ', 'delivery ' || c.delivery || ' is attempt ' || c.attempt || ' of '
        || (p.body ->> 'max_attempts'),
        'after attempt ' || c.last_attempt || ', ' || c.last_outcome,
        'lost count ' || c.lost_count || ', losses ' || c.losses
    ) as detail
from counted as c
inner join tasks as t on t.run_id = c.run_id and t.task_id = c.task_id
inner join task_policies as p on p.policy_id = t.policy_id
where
    c.attempt > (p.body ->> 'max_attempts')::integer
    or c.attempt <> case
        when c.last_attempt is null or c.died then 1
        when c.last_outcome in ('FAILED', 'TIMED_OUT') then c.last_attempt + 1
        else c.last_attempt
    end
    or c.lost_count > c.losses
    or c.lost_count < c.losses
    and not exists (select 1 from runs as u where u.run_id = c.run_id and u.run_id = c.task_id)
limit 100;

-- name: live_lane_broken :many Breach
-- Tasks that wait in or were handed out from a lane of another name, queue or namespace.
-- Invariants: INV-14. Locks: none. Index: tasks_pkey, lanes_pkey.
with live as (
    select r.run_id, r.task_id, r.lane_id
    from ready_tasks as r
    union all
    select w.run_id, w.task_id, w.lane_id
    from timers as w
    union all
    select m.run_id, m.task_id, l.lane_id
    from leases as l
    cross join lateral unnest(l.run_ids, l.task_ids) as m (run_id, task_id)
)
select
    v.run_id::text,
    v.task_id::text,
    'lane ' || v.lane_id || ' instead of ' || t.lane_id as detail
from live as v
inner join tasks as t on t.run_id = v.run_id and t.task_id = v.task_id
inner join lanes as h on h.lane_id = t.lane_id
left join lanes as l on l.lane_id = v.lane_id
where
    (l.namespace_id, l.queue, l.name, l.lane_key)
    is distinct from (t.namespace_id, h.queue, h.name, h.lane_key)
limit 100;

-- name: key_broken :many Breach
-- Idempotency keys in force that answer with a task that does not exist, or that is another's.
-- Invariants: INV-06, INV-09. Locks: none. Index: tasks_pkey.
select
    k.run_id::text,
    k.task_id::text,
    'key ' || k.key || ' of ' || k.name || ', the task has ' || coalesce(t.key, 'none') as detail
from idempotency_keys as k
left join tasks as t
    on t.run_id = k.run_id and t.task_id = k.task_id and t.namespace_id = k.namespace_id
where
    k.kind = 'TASK'
    and k.expires_at > now()
    and (t.task_id is null or t.key is distinct from k.key)
limit 100;

-- name: run_state_broken :many Breach
-- Runs whose rows contradict where they are: a WAITING run stands on the clock until its time
-- comes and it is ready or with a worker, a BLOCKED one stands there alone, no other run does; one
-- that is over has an end, a final delivery of the same outcome, and waits for nothing.
-- Invariants: INV-02, INV-07. Locks: none. Index: none, it reads whole tables.
select
    coalesce(u.run_id, w.run_id)::text as run_id,
    coalesce(u.run_id, w.run_id)::text as task_id,
    concat_ws(
        '; ', case when u.run_id is null then 'no such run' end,
        case when u.run_id is not null and t.task_id is null then 'no row in tasks' end,
        u.status, case when u.ended_at is not null then 'has an end' end,
        'on the clock as ' || w.kind,
        'delivery ' || d.delivery || ' is ' || d.outcome || case when d.final then ', final' end,
        case when s.waits then 'waits for something' end
    ) as detail
from runs as u
full join (
    select f.run_id, f.kind
    from timers as f
    left join runs as o on o.run_id = f.run_id
    where f.run_id = f.task_id and (f.kind = 'WAIT' or o.run_id is not null)
) as w on w.run_id = u.run_id
left join tasks as t on t.run_id = u.run_id and t.task_id = u.run_id
left join lateral (
    select e.delivery, e.outcome, e.final
    from deliveries as e
    where e.run_id = u.run_id and e.task_id = u.run_id
    order by e.delivery desc
    limit 1
) as d on true
left join lateral (
    select
        exists (select 1 from run_waits as x where x.run_id = u.run_id)
        or exists (select 1 from run_wait_sets as x where x.run_id = u.run_id) as waits
) as s on true
where
    u.run_id is null
    or t.task_id is null
    or (u.status = 'BLOCKED' and w.kind is distinct from 'WAIT')
    or (w.kind = 'WAIT' and u.status not in ('WAITING', 'BLOCKED'))
    or (w.kind <> 'WAIT' and u.status <> 'OPEN')
    or (u.status in ('OPEN', 'WAITING', 'PAUSED', 'BLOCKED')) <> (u.ended_at is null)
    or coalesce(d.final, false) <> (u.ended_at is not null)
    or d.final
    and u.status::text <> case d.outcome when 'DONE' then 'COMPLETED' else d.outcome::text end
    or (s.waits and u.status <> 'WAITING')
limit 100;

-- name: run_wait_broken :many Breach
-- Suspended runs that nothing will wake although it should: a set that is complete, that needs more
-- than it waits for, or that waits for what is over without a word of it in the inbox.
-- Invariants: INV-01, INV-02. Locks: none. Index: none, it reads whole tables.
with waiting as (
    select w.run_id
    from timers as w
    where w.kind = 'WAIT'
),
counted as (
    select s.run_id, s.set_number, s.needed_count, count(x.child_id) as child_count
    from waiting as w
    inner join run_wait_sets as s on s.run_id = w.run_id
    left join run_waits as x on x.run_id = s.run_id and x.set_number = s.set_number
    group by s.run_id, s.set_number, s.needed_count
)
select
    c.run_id::text,
    c.run_id::text as task_id,
    'set ' || c.set_number || ' needs ' || c.needed_count || ' of ' || c.child_count as detail
from counted as c
where c.needed_count <= 0 or c.needed_count > c.child_count
union all
select
    x.run_id::text,
    x.child_id::text as task_id,
    'it is over, and the run waits for it without a word of it' as detail
from waiting as w
inner join run_waits as x on x.run_id = w.run_id
left join runs as c on c.run_id = x.child_id
left join lateral (
    select e.delivery, e.final
    from deliveries as e
    where e.run_id = x.run_id and e.task_id = x.child_id
    order by e.delivery desc
    limit 1
) as d on true
where
    (
        c.ended_at is not null
        or d.final
        and not exists (
            select 1
            from dead_letters as g
            where
                g.run_id = x.run_id and g.task_id = x.child_id and g.delivery = d.delivery
                and g.state = 'REPLAYED'
        )
    )
    and not exists (
        select 1
        from run_inbox as n
        where n.run_id = x.run_id and n.child_id = x.child_id
    )
limit 100;
