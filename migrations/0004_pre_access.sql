-- Why: keys that end by themselves and tell when they were used, and a record of what operators do.
-- Locks taken: api_keys for an instant, exclusively.
-- Safe with versions: any; a server of 0003 looks at none of it.

alter table api_keys add column created_by text;
alter table api_keys add column expires_at timestamptz;
alter table api_keys add column used_at timestamptz;

-- Written once and never changed. `request` is what was asked, without payloads and secrets.
create table audit_events (
    audit_event_id bigint generated always as identity,
    at timestamptz not null default now(),
    namespace text,
    actor text not null,
    action text not null,
    request text not null,
    outcome text not null,
    peer text not null,
    constraint audit_events_pkey primary key (audit_event_id)
);

create function audit_events_refuse() returns trigger
language plpgsql
as $$
begin
    raise exception 'audit events are only ever added'
    using errcode = 'restrict_violation';
end
$$;
create trigger audit_events_append_only
before update or delete or truncate on audit_events
for each statement execute function audit_events_refuse();
