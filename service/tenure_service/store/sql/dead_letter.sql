-- name: dead_letter_list :many DeadLetterRow
-- Lists dead letters of one state, the latest death first, from before an entry: a page, or its
-- beginning that holds so many bytes, but never less than one. `page_count`: entries of the page.
-- Invariants: INV-13. Locks: none. Index: dead_letters_listing_idx.
with page as (
    select
        g.run_id,
        g.task_id,
        l.name,
        l.queue,
        g.reason,
        g.state,
        g.attempt,
        g.died_at,
        d.failure,
        t.input_encoding,
        t.input_schema,
        case when %(include_payloads)s::boolean then t.input end as input
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
    limit %(row_count_max)s::integer
),
sized as (
    -- The sizes of what is stored aside are known without reading it.
    select
        p.task_id,
        count(*) over () as page_count,
        sum(coalesce(octet_length(p.input), 0) + coalesce(pg_column_size(p.failure), 0)) over (
            order by p.died_at desc, p.task_id desc
            rows between unbounded preceding and 1 preceding
        ) as bytes_before
    from page as p
)
select
    p.run_id::text,
    p.task_id::text,
    p.name,
    p.queue,
    p.reason::text,
    p.state::text,
    p.attempt,
    p.died_at,
    p.failure,
    p.input,
    p.input_encoding,
    p.input_schema,
    s.page_count
from page as p
inner join sized as s on s.task_id = p.task_id
where coalesce(s.bytes_before, 0) < %(bytes_max)s::bigint
order by p.died_at desc, p.task_id desc;

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
