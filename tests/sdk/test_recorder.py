"""What activations send over a worker's streams: sent again until it is answered, in order."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tenure import App, FieldInvalid
from tenure.v1 import run_pb2
from tenure.v1 import work_stream_pb2 as stream
from tenure.workflow.port import ActivationLost
from tenure.workflow.port_stream import WAIT_COUNT_MAX, Recorder
from tests.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(App("x", "nowhere.invalid:1").target, asyncio.Event().set)


def refusal(reason: str) -> status_pb2.Status:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(domain="tenure", reason=f"ERROR_REASON_{reason}"))
    return status_pb2.Status(code=code_pb2.UNAVAILABLE, message=reason, details=[detail])


def begin(
    recorder: Recorder, step_id: str, run: str = "run"
) -> "asyncio.Task[Sequence[stream.StepRecord]]":
    steps = [run_pb2.NewStep(step_id=step_id, name="x", call=run_pb2.StepResult())]
    return asyncio.create_task(recorder.record(run, "token", steps))


def written(recorder: Recorder) -> list[stream.RecordSteps]:
    """Takes all that is to be written now."""
    found = []
    while (request := recorder.next()) is not None:
        found.append(request.record_steps)
    return found


async def sent(recorder: Recorder) -> stream.RecordSteps:
    """Waits for the one message that is to be written."""
    (message,) = await eventually_async(lambda: written(recorder))
    return message


@pytest.mark.parametrize("reason", ["DATABASE_UNAVAILABLE", "OVERLOADED", "CONTENTION"])
async def test_record__refused_for_now__is_sent_again_until_it_is_recorded(
    recorder: Recorder, reason: str
) -> None:
    recording = begin(recorder, "1")
    message = await sent(recorder)
    recorder.acknowledged(stream.StepAck(record_id=message.record_id, error=refusal(reason)))
    again = await sent(recorder)
    assert again == message
    records = [stream.StepRecord(step=run_pb2.Step(step_id="1"))]
    recorder.acknowledged(stream.StepAck(record_id=again.record_id, records=records))
    assert list(await recording) == records
    recorder.stream_broke()
    assert written(recorder) == []


async def test_record__lease_is_lost__says_so(recorder: Recorder) -> None:
    recording = begin(recorder, "1")
    record_id = (await sent(recorder)).record_id
    recorder.acknowledged(stream.StepAck(record_id=record_id, error=refusal("LEASE_LOST")))
    with pytest.raises(ActivationLost):
        await recording


async def test_record__refused_for_good__raises_it(recorder: Recorder) -> None:
    recording = begin(recorder, "1")
    record_id = (await sent(recorder)).record_id
    recorder.acknowledged(stream.StepAck(record_id=record_id, error=refusal("FIELD_INVALID")))
    with pytest.raises(FieldInvalid):
        await recording


async def test_stream_broke__some_sent_and_some_not__all_go_again_in_order(
    recorder: Recorder,
) -> None:
    recordings = [begin(recorder, str(number)) for number in range(2)]
    assert await eventually_async(lambda: len(written(recorder)) == 2)
    recordings += [begin(recorder, str(number)) for number in range(2, 4)]
    # Both are handed in before anything is written.
    await asyncio.wait(recordings, timeout=0.01)
    recorder.stream_broke()
    assert [each.steps[0].step_id for each in written(recorder)] == ["0", "1", "2", "3"]
    recordings[1].cancel()
    await asyncio.gather(recordings[1], return_exceptions=True)
    recorder.stream_broke()
    assert [each.steps[0].step_id for each in written(recorder)] == ["0", "2", "3"]
    for each in recordings:
        each.cancel()


async def test_forget__activation_that_records__ends_it_and_no_other(recorder: Recorder) -> None:
    lost, other = begin(recorder, "1", "lost"), begin(recorder, "1", "other")
    await asyncio.wait([lost, other], timeout=0.01)
    recorder.wait("lost", "token", ["child"])
    assert recorder.next() is not None
    recorder.forget("lost", "token")
    with pytest.raises(ActivationLost):
        await lost
    recorder.stream_broke()
    assert [each.run_id for each in written(recorder)] == ["other"]
    other.cancel()


async def test_wait__many_children__are_asked_for_in_parts_and_again_until_they_are_over(
    recorder: Recorder,
) -> None:
    every = [f"child-{number}" for number in range(WAIT_COUNT_MAX + 5)]

    def asked() -> list[list[str]]:
        found = []
        while (request := recorder.next()) is not None:
            found.append(list(request.wait.child_ids))
        return found

    recorder.wait("run", "token", every)
    assert asked() == [every[:WAIT_COUNT_MAX], every[WAIT_COUNT_MAX:]]
    assert asked() == []
    over = [stream.ResolvedChild(child_id=each) for each in every[:-2]]
    recorder.resolved(stream.Resolved(run_id="run", children=over))
    recorder.stream_broke()
    assert asked() == [every[-2:]]
