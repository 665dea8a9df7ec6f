"""How large tables and indexes are, and how many dead rows they have."""

import time
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

#: Whose rows come and go, and whose only come.
_CHURNED = ("ready_tasks", "leases", "timers", "sessions")
_KEPT = ("tasks", "deliveries")
_MIB = 1024 * 1024
_QUERY = b"""
    select
        coalesce(p.relname, c.relname)::text,
        sum(pg_table_size(c.oid))::bigint,
        sum(pg_indexes_size(c.oid))::bigint,
        sum(s.n_dead_tup)::bigint,
        sum(s.n_tup_ins)::bigint,
        sum(s.autovacuum_count)::bigint
    from pg_class as c
    inner join pg_stat_all_tables as s on s.relid = c.oid
    left join pg_inherits as i on i.inhrelid = c.oid
    left join pg_class as p on p.oid = i.inhparent
    where
        c.relnamespace = 'tenure'::regnamespace
        and c.relkind = 'r'
        and coalesce(p.relname, c.relname) = any(%s::text [])
    group by 1
"""
_CHURNED_HEAD = " | ".join(f"{name}: MiB, indexes, dead, vacuums" for name in _CHURNED)
HEAD = (
    f"| minutes | completed/s | {_CHURNED_HEAD} | {', '.join(_KEPT)}: MiB, indexes |",
    f"|{'---|' * (len(_CHURNED) + 3)}",
)


class _Size(NamedTuple):
    table: int
    indexes: int
    dead: int
    inserted: int
    vacuums: int

    def __str__(self) -> str:
        table, indexes = self.table / _MIB, self.indexes / _MIB
        return f"{table:.1f}, {indexes:.1f}, {self.dead:,}, {self.vacuums}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The tables at one moment, each with its partitions."""

    at: float
    tables: dict[str, _Size]

    def row(self, title: str, before: "Sizes | None") -> str:
        """Writes a row of the table that HEAD begins."""
        kept = [self.tables[name] for name in _KEPT]
        table = sum(each.table for each in kept) / _MIB
        indexes = sum(each.indexes for each in kept) / _MIB
        rate = f"{self._rate(before):,.0f}" if before else ""
        cells = [str(self.tables[name]) for name in _CHURNED]
        return f"| {title} | {rate} | {' | '.join(cells)} | {table:,.0f}, {indexes:,.0f} |"

    def dead(self) -> str:
        """Writes how many dead rows stand where they are in the way."""
        return ", ".join(f"{name} {self.tables[name].dead:,}" for name in _CHURNED[:2])

    def _rate(self, before: "Sizes") -> float:
        now, then = self.tables["deliveries"].inserted, before.tables["deliveries"].inserted
        return (now - then) / (self.at - before.at)


def take(conn: psycopg.Connection) -> Sizes:
    """Looks at the tables now."""
    at = time.monotonic()
    rows = conn.execute(_QUERY, [[*_CHURNED, *_KEPT]]).fetchall()
    return Sizes(at, {row[0]: _Size(*(int(value) for value in row[1:])) for row in rows})
