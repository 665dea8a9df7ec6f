-- Why: operators see which key a worker came with, and whether workers still use a key.
-- Locks taken: sessions for an instant, exclusively.
-- Safe with versions: any; a server of 0004 leaves the column empty.

-- Keys are never deleted, so nothing refers to one that is gone.
alter table sessions add column api_key_id uuid;
