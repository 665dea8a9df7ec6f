-- Why: a renewal changes expires_at alone, and an index on it made each one rewrite every index of
-- its lease, the task ids of a block of 200 among them: 20 times the processor and 100 times the log.
-- Whoever sweeps reads the whole table instead, which has a row a batch and no arrays in it.
-- Locks taken: leases for an instant, exclusively.
-- Safe with versions: any.

drop index leases_expires_idx;
