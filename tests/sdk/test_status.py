"""Errors of the protocol to exceptions: decided on the reason, never on the text."""

import grpc
import grpc.aio
import pytest
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tenure import FieldInvalid, KeyTaken, Overloaded, ServiceError, Unavailable, errors, status
from tenure.v1 import errors_pb2


def make(code: int, *details: Message, message: str = "text") -> status_pb2.Status:
    made = status_pb2.Status(code=code, message=message)
    for each in details:
        made.details.add().Pack(each)
    return made


def info(reason: str, **metadata: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(
        domain="tenure", reason=f"ERROR_REASON_{reason}", metadata=metadata
    )


def test_by_reason__every_reason_of_the_protocol__has_a_class() -> None:
    reasons = {
        name.removeprefix("ERROR_REASON_")
        for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    }
    assert set(status.BY_REASON) == reasons - {"UNSPECIFIED"}


@pytest.mark.parametrize(("reason", "kind"), status.BY_REASON.items())
def test_from_status__reason__decides_the_class(reason: str, kind: type[ServiceError]) -> None:
    error = status.from_status(make(code_pb2.UNKNOWN, info(reason)))
    assert type(error) is kind
    assert error.reason == reason


def test_from_status__key_taken__carries_metadata() -> None:
    error = status.from_status(
        make(code_pb2.ALREADY_EXISTS, info("KEY_TAKEN", existing_task_id="t1", key="k"))
    )
    assert isinstance(error, KeyTaken)
    assert error.existing_task_id == "t1"
    assert error.status == "ALREADY_EXISTS"


def test_from_status__field_invalid__names_fields() -> None:
    bad = error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field="priority", description="too large")
        ]
    )
    error = status.from_status(make(code_pb2.INVALID_ARGUMENT, info("FIELD_INVALID"), bad))
    assert isinstance(error, FieldInvalid)
    assert error.fields == {"priority": "too large"}


def test_from_status__retry_info__gives_seconds() -> None:
    retry = error_details_pb2.RetryInfo(
        retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)
    )
    error = status.from_status(make(code_pb2.RESOURCE_EXHAUSTED, info("OVERLOADED"), retry))
    assert isinstance(error, Overloaded)
    assert error.retry_after == 1.5


def test_from_status__reason_of_a_newer_or_another_server__falls_back_to_the_status() -> None:
    newer = status.from_status(make(code_pb2.UNAVAILABLE, info("NOT_YET_INVENTED")))
    assert type(newer) is Unavailable
    foreign = error_details_pb2.ErrorInfo(domain="proxy", reason="ERROR_REASON_KEY_TAKEN")
    assert type(status.from_status(make(code_pb2.INTERNAL, foreign))) is ServiceError
    assert type(status.from_status(make(99))) is ServiceError


def test_from_rpc__details_that_are_garbage__leave_the_status() -> None:
    error = status.from_rpc(
        grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff")),
            "no route",
        )
    )
    assert type(error) is errors.Unavailable
    assert not error.reason
    assert "no route" in str(error)
