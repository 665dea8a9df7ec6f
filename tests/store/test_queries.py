import pytest

from tenure_service.store import queries

TWO = """-- The story of the file.
-- name: task_get :one TaskRow
-- Reads one task.
select 1 -- a remark
where true;

-- name: task_forget :exec
-- Forgets one.
delete from tasks where task_id = %(task_id)s::uuid
"""


def test_parse__two_blocks__gives_both_without_headers() -> None:
    get, forget = queries.parse("task.sql", TWO)
    assert (get.name, get.arity, get.row_class_name) == ("task_get", "one", "TaskRow")
    assert get.text == b"select 1 -- a remark\nwhere true"
    assert (forget.name, forget.arity, forget.row_class_name) == ("task_forget", "exec", None)
    assert forget.text == b"delete from tasks where task_id = %(task_id)s::uuid"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: TaskGet :one TaskRow\nselect 1", "is not `name"),
        ("-- name: task_get :some TaskRow\nselect 1", "is not `name"),
        ("-- name: task_get\nselect 1", "is not `name"),
        ("-- name: task_get :one\nselect 1", "must name a row class"),
        ("-- name: task_get :exec TaskRow\nselect 1", "must not name a row class"),
        ("-- name: task_get :one TaskRow\n-- Only words.\n", "has no statement"),
        ("select 1;\n-- name: task_get :one TaskRow\nselect 1", "before the first"),
    ],
)
def test_parse__malformed__raises(text: str, complaint: str) -> None:
    with pytest.raises(queries.QueryError, match=complaint):
        queries.parse("task.sql", text)


def test_merge__one_name_twice__names_both_files() -> None:
    with pytest.raises(queries.QueryError, match=r"b\.sql: task_get is already in a\.sql"):
        queries.merge([("a.sql", TWO), ("b.sql", TWO)])


def test_get__unknown_name__raises() -> None:
    with pytest.raises(queries.QueryError, match="no_such_query"):
        queries.get("no_such_query")


def test_load__this_release__finds_every_file() -> None:
    assert queries.load()
    assert all(queries.get(name).name == name for name in queries.load())
