import psycopg

from tools import schema_dump


def test_dump__migrated_database__equals_the_golden_file(database: str) -> None:
    assert schema_dump.difference(schema_dump.dump(database)) == "", "run `make gen`"


def test_dump__partition_made_at_run_time__is_left_out(database: str) -> None:
    before = schema_dump.dump(database)
    with psycopg.connect(database) as conn:
        conn.execute("create table tenure.tasks_p20300107_000000 (like tenure.tasks)")
    assert schema_dump.dump(database) == before


def test_normalised__noise__only_statements_remain() -> None:
    text = "--\n-- Name: x\n--\n\n\\restrict abc\nSET a = 1;\n\n\nCREATE TABLE x (\n    y text\n);\n\n\n"
    assert schema_dump.normalised(text) == "CREATE TABLE x (\n    y text\n);\n"
