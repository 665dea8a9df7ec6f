"""docs/operating.md is true: its commands and queries run, its figures and settings are counted."""

import asyncio
import re
import threading
import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from tenure_service.embedded import binaries
from tenure_service.main import Server
from tenure_service.store import connections
from tests import documents
from tests.eventually import eventually
from tests.fix_server import server_config
from tests.test_documents import ROOT, Reader

PAGE = ROOT / "docs" / "operating.md"
URL = "postgresql://tenure@db/tenure"
SUPERUSER = "postgresql://postgres@db/postgres"
RESTORED = "tenure_restored"


class Operator(Reader):
    """Follows the page on a database of the test's own, and restores into another."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder, database)
        self.restored = f"tenure_test_{uuid.uuid4().hex[:12]}"
        self._dsns = {
            f"{URL}_restored": conninfo.make_conninfo(database, dbname=self.restored),
            URL: database,
            SUPERUSER: conninfo.make_conninfo(database, dbname="postgres"),
        }

    def follow(self, step: documents.Step) -> None:
        if isinstance(step, documents.Command):
            line = step.line
            for url, dsn in self._dsns.items():
                line = line.replace(url, f"'{dsn}'")
            step = documents.Command(line.replace(RESTORED, self.restored), step.expected)
        super().follow(step)

    def _environment(self) -> dict[str, str]:
        found = super()._environment()
        return found | {"PATH": f"{binaries.installed() / 'bin'}:{found['PATH']}"}


def statements() -> list[str]:
    """Lists the SQL of the page."""
    texts = [body for language, _, body in documents.blocks(PAGE) if language == "sql"]
    return [one.strip() for text in texts for one in re.split(r";\n", text) if one.strip()]


def test_follow__page__does_what_it_says(tmp_path: Path, durable: str) -> None:
    operator = Operator(tmp_path, durable)
    try:
        steps = documents.steps(PAGE)
        assert len(steps) >= 10
        for step in steps:
            operator.follow(step)
    finally:
        operator.stop()


@pytest.mark.parametrize(
    "statement", [x for x in statements() if not x.startswith(("alter", "create"))]
)
def test_query__of_the_page__runs(read_only_conn: psycopg.Connection, statement: str) -> None:
    assert read_only_conn.execute(statement.encode()).description is not None


def test_create__role_and_database_as_the_page_says__may_migrate(postgres: str) -> None:
    name = f"tenure_test_{uuid.uuid4().hex[:12]}"
    made = [x for x in statements() if x.startswith("create")]
    assert len(made) == 2
    with psycopg.connect(postgres, autocommit=True) as admin:
        try:
            for statement in made:
                admin.execute(re.sub(r"\btenure\b", name, statement).encode())
            asked = "select has_database_privilege(%s, %s, 'create'), rolsuper from pg_roles where rolname = %s"
            assert admin.execute(asked, [name] * 3).fetchone() == (True, False)
        finally:
            for kind in ("database", "role"):
                drop = sql.SQL("drop {} if exists {}")
                admin.execute(drop.format(sql.SQL(kind), sql.Identifier(name)))


def test_alter__role_as_the_page_says__gives_the_settings_without_options(database: str) -> None:
    parts = conninfo.conninfo_to_dict(database)
    where = sql.SQL("alter role {} in database {} set ").format(
        sql.Identifier(str(parts["user"])), sql.Identifier(str(parts["dbname"]))
    )
    with psycopg.connect(database, autocommit=True) as conn:
        for statement in statements():
            head, found, rest = statement.partition("alter role tenure in database tenure set ")
            if found:
                assert head == ""
                conn.execute(where + sql.SQL(rest))
    ours = connections.for_statements("tenure", "test")
    names = re.findall(r"-c (\w+)=", ours["options"])
    with (
        psycopg.connect(database) as plain,
        psycopg.connect(database, options=ours["options"]) as wanted,
    ):
        for name in names:
            show = "select current_setting(%s)"
            assert plain.execute(show, [name]).fetchone() == wanted.execute(show, [name]).fetchone()


async def test_connect__server_is_busy__takes_as_many_connections_as_the_page_says(
    database: str,
) -> None:
    assert "server processes x (--connections + 2)" in PAGE.read_text()
    config = server_config(database)
    running = Server(config)
    await running.start()
    gate = threading.Event()

    def hold() -> None:
        running._database.read(lambda _: gate.wait(20))

    # One holds a connection of the pool; more than there are wait for theirs.
    holders = [threading.Thread(target=hold) for _ in range(config.connections + 2)]
    try:
        assert running._hub is not None
        running._hub.wake.over([str(uuid.uuid4())])  # something to notify others of
        for holder in holders:
            holder.start()
        with psycopg.connect(database, autocommit=True) as conn:

            def counted() -> dict[str, int]:
                found = conn.execute(
                    "select application_name, count(*) from pg_stat_activity"
                    " where datname = current_database() and application_name like 'tenure%'"
                    " group by 1"
                ).fetchall()
                return {str(name): int(count) for name, count in found}

            full = {"tenure server": config.connections, "tenure listen": 1, "tenure notify": 1}
            assert await asyncio.to_thread(eventually, lambda: counted() == full), counted()
    finally:
        gate.set()
        for holder in holders:
            holder.join()
        await running.stop()


def test_log__lines_of_the_page__are_in_the_source() -> None:
    source = "\n".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for path in (ROOT / "service" / "tenure_service").rglob("*.py")
    )
    table = PAGE.read_text(encoding="utf-8").partition("## The log")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `(.+?)` \| ", table, re.MULTILINE)
    assert len(lines) > 10
    readiness = '"the database takes %s", "writes again" if ready else "no writes"'
    missing = [line for line in lines if line not in source]
    assert missing == ["the database takes no writes"]
    assert readiness in source
