"""Names that do not show what they are, encodings that are none, and ids that are none."""

import pytest

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import task_service_pb2 as tasks
from tenure_service.engine import texts
from tests.protocol import refusals
from tests.protocol.caller import Caller

UNSEEN = {
    "nul": "pay\x00",
    "line": "pay\nroll",
    "delete": "pay\x7f",
    "next line": "pay\u0085roll",
    "right to left": "pay\u202eroll",
    "no width": "pay\u200broll",
    "byte order": "\ufeffpay",
    "soft hyphen": "pay\u00adroll",
    "line separator": "pay\u2028roll",
    "paragraph separator": "pay\u2029roll",
}
BLANK = [" ", "   ", "\u00a0", "\u3000 "]


@pytest.mark.parametrize("name", [*UNSEEN.values(), *BLANK], ids=ascii)
@pytest.mark.parametrize("field", ["name", "queue"])
async def test_enqueue__name_that_does_not_show_what_it_is__is_refused_by_its_path(
    client: Caller, field: str, name: str
) -> None:
    bad = tasks.NewTask(name="work")
    setattr(bad, field, name)
    answer = await client.task.EnqueueTasks(
        tasks.EnqueueTasksRequest(tasks=[tasks.NewTask(name="work"), bad])
    )
    good, refused = answer.results
    assert good.HasField("task")
    refusal = refusals.read(refused.error)
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", (f"tasks[1].{field}",))
    assert "must not be blank" in refusal.message or "U+" in refusal.message


@pytest.mark.parametrize("name", ["größe", "支払い", "a b", "x\U0001f600", "ns.task-1/é", "нет"])
async def test_enqueue__name_of_any_letters__is_accepted(client: Caller, name: str) -> None:
    (task_id,) = await client.enqueue(name, queue=name)
    task = (await client.get(task_id)).task
    assert (task.name, task.queue) == (name, name)


@pytest.mark.parametrize("name", [*UNSEEN.values(), *BLANK, "A b"], ids=ascii)
async def test_create__namespace_or_key_of_such_a_name__is_refused(
    client: Caller, name: str
) -> None:
    made = client.admin.CreateNamespace(admin.CreateNamespaceRequest(name=name))
    assert (await refusals.refused(made)).fields == ("name",)
    if name != "A b":
        request = admin.CreateApiKeyRequest(name=name, scopes=[admin.SCOPE_CLIENT])
        refusal = await refusals.refused(client.admin.CreateApiKey(request))
        assert refusal.fields == ("name",)


@pytest.mark.parametrize(
    ("encoding", "accepted"),
    [
        ("", True),
        ("json+aesgcm;kid=2026-01", True),
        ("a b~!", True),
        ("é", False),
        ("json\u200b", False),
        ("json\n", False),
        ("x" * 101, False),
    ],
    ids=ascii,
)
async def test_enqueue__encoding__must_be_printable_ascii(
    client: Caller,
    encoding: str,
    accepted: bool,  # noqa: FBT001 - a table
) -> None:
    task = tasks.NewTask(name="work", input=payload.Payload(data=b"1", encoding=encoding))
    (result,) = (await client.task.EnqueueTasks(tasks.EnqueueTasksRequest(tasks=[task]))).results
    assert result.HasField("task") is accepted
    if not accepted:
        assert refusals.read(result.error).fields == ("tasks[0].input.encoding",)


@pytest.mark.parametrize("namespace", [None, "nobody-made-it"])
async def test_get__what_is_no_id__is_refused_for_its_form(
    client: Caller, namespace: str | None
) -> None:
    if namespace is not None:
        client.metadata = (("tenure-namespace", namespace),)
    get = client.task.GetTask(tasks.GetTaskRequest(task_id="order-17"), metadata=client.metadata)
    explain = client.task.ExplainTask(
        tasks.ExplainTaskRequest(task_id="order-17"), metadata=client.metadata
    )
    for call in (get, explain):
        refusal = await refusals.refused(call)
        assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("task_id",))
        assert "is not an id of this server" in refusal.message


def test_flaw__every_letter_of_ascii__is_told_as_the_categories_do() -> None:
    refused = {chr(number) for number in range(128) if texts.name_flaw(f"a{chr(number)}")}
    assert refused == {chr(number) for number in [*range(32), 127]}
