-- name: dead_letter_list :many DeadLetterRow
-- Lists dead letters of one state, the latest death first, from before an entry.
-- Invariants: INV-13. Locks: none. Index: dead_letters_listing_idx.
select
    g.run_id::text,
    g.task_id::text,
    l.name,
    l.queue,
    g.reason::text,
    g.state::text,
    g.attempt,
    g.died_at,
    d.failure,
    case when %(include_payloads)s::boolean then t.input end as input,
    t.input_encoding,
    t.input_schema
from dead_letters as g
inner join lanes as l
    on l.lane_id = g.lane_id
    and (%(queue)s::text is null or l.queue = %(queue)s::text)
    and (%(name)s::text is null or l.name = %(name)s::text)
inner join tasks as t on t.run_id = g.run_id and t.task_id = g.task_id
left join deliveries as d
    on d.run_id = g.run_id and d.task_id = g.task_id and d.delivery = g.delivery
where
    g.namespace_id = %(namespace_id)s::integer
    and g.state = %(state)s::dead_letter_state
    and (g.died_at, g.task_id) < (
        coalesce(%(before_at)s::timestamptz, 'infinity'), %(before)s::uuid
    )
order by g.died_at desc, g.task_id desc
limit %(row_count_max)s::integer;

-- name: dead_letter_lock :many DeadLetterHeld
-- Locks dead letters that an operator acts on.
-- Invariants: INV-13. Locks: the rows by id, FOR UPDATE. Index: dead_letters_pkey.
select
    g.run_id::text,
    g.task_id::text,
    g.lane_id,
    g.delivery,
    g.state::text,
    t.priority
from dead_letters as g
inner join tasks as t on t.run_id = g.run_id and t.task_id = g.task_id
where
    g.namespace_id = %(namespace_id)s::integer
    and (g.run_id, g.task_id) in (
        select
            i.run_id,
            i.task_id
        from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
    )
order by g.run_id, g.task_id
for update of g;

-- name: dead_letter_mark :exec
-- Notes what an operator did with dead letters that are locked.
-- Invariants: INV-13. Locks: held by the caller. Index: dead_letters_pkey.
update dead_letters as g
set state = %(state)s::dead_letter_state
from unnest(%(run_ids)s::uuid [], %(task_ids)s::uuid []) as i (run_id, task_id)
where g.run_id = i.run_id and g.task_id = i.task_id;
