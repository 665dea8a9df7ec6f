"""Messages that the server writes by hand equal what the generated classes write."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.v1 import payload_pb2, worker_pb2, worker_service_pb2
from tenure.v1 import work_stream_pb2 as stream
from tenure_service.dispatch import wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
counts = st.integers(0, 2**32 - 1)
payloads = st.builds(
    payload_pb2.Payload,
    data=st.binary(max_size=2_000),
    encoding=st.sampled_from(["", "json", "binary", "json+zlib"]),
    schema=st.sampled_from(["", "v1"]),
)
rests = st.builds(
    worker_pb2.Assignment,
    lease_token=texts,
    name=texts,
    queue=texts,
    max_attempts=counts,
    traceparent=texts,
)


def written(assignment: worker_pb2.Assignment) -> bytes:
    rest = worker_pb2.Assignment()
    rest.CopyFrom(assignment)
    for field in ("task_id", "attempt", "delivery", "input"):
        rest.ClearField(field)
    payload = assignment.input
    return wire.assignment(
        assignment.task_id,
        assignment.attempt,
        assignment.delivery,
        wire.payload(payload.data, payload.encoding or None, payload.schema or None),
        rest.SerializeToString(),
    )


@settings(deadline=None)
@given(rests, texts, counts, counts, payloads)
def test_assignment__any_values__reads_as_the_message(
    rest: worker_pb2.Assignment,
    task_id: str,
    attempt: int,
    delivery: int,
    payload: payload_pb2.Payload,
) -> None:
    expected = worker_pb2.Assignment()
    expected.CopyFrom(rest)
    expected.task_id, expected.attempt, expected.delivery = task_id, attempt, delivery
    expected.input.CopyFrom(payload)
    assert worker_pb2.Assignment.FromString(written(expected)) == expected


@settings(deadline=None)
@given(st.lists(st.builds(worker_pb2.Assignment, task_id=texts, attempt=counts), max_size=20))
def test_assign__any_assignments__reads_as_the_message(
    assignments: list[worker_pb2.Assignment],
) -> None:
    message = wire.assign([written(one) for one in assignments])
    for one in assignments:
        one.input.SetInParent()
    expected = worker_service_pb2.WorkResponse(assign=stream.Assign(assignments=assignments))
    expected.assign.SetInParent()
    assert worker_service_pb2.WorkResponse.FromString(message) == expected
    assert message.WhichOneof("message") == expected.WhichOneof("message")
