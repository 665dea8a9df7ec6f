"""Messages written by hand equal what the generated classes write."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.v1 import payload_pb2, worker_pb2, worker_service_pb2
from tenure.v1 import work_stream_pb2 as stream
from tenure.worker import wire

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
nanos = st.integers(0, 10**15)


@settings(deadline=None)
@given(ids, ids, nanos, st.binary(max_size=2_000))
def test_completed__any_values__read_as_the_message(
    task_id: str, token: str, run_nanos: int, data: bytes
) -> None:
    run_seconds = run_nanos / 1e9
    read = worker_pb2.Result.FromString(wire.completed(task_id, token, run_seconds, data))
    whole = int(run_seconds * 1_000_000_000)
    expected = worker_pb2.Result(
        task_id=task_id,
        lease_token=token,
        completed=worker_pb2.Completed(output=payload_pb2.Payload(data=data, encoding="json")),
    )
    expected.run_duration.seconds, expected.run_duration.nanos = divmod(whole, 1_000_000_000)
    assert read == expected


@settings(deadline=None)
@given(st.integers(1, 2**64 - 1), st.lists(ids, max_size=20))
def test_report__any_results__reads_as_the_message(report_id: int, task_ids: list[str]) -> None:
    results = [worker_pb2.Result(task_id=each, released=worker_pb2.Released()) for each in task_ids]
    written = wire.report(report_id, [each.SerializeToString() for each in results])
    read = worker_service_pb2.WorkRequest.FromString(written)
    assert read == worker_service_pb2.WorkRequest(
        report=stream.Report(report_id=report_id, results=results)
    )
