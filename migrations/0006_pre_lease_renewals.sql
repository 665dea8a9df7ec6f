-- Why: a renewal changes expires_at alone, and an index on it made each one rewrite every index of
-- its lease, the task ids of a block of 200 among them: 20 times the processor and 100 times the
-- log. Whoever sweeps reads the whole table instead: a row a batch, its arrays out of line.
-- Locks taken: leases for an instant, exclusively; not concurrently, which would wait for the
-- oldest snapshot of the database.
-- Safe with versions: any.

-- squawk-ignore require-concurrent-index-deletion
drop index leases_expires_idx;
