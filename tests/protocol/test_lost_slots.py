"""Slots of leases that another server ended, and that their worker never speaks of again."""

from datetime import UTC, datetime, timedelta

from tenure_service.main import Server
from tenure_service.store.database import Database
from tenure_service.usecase import expire
from tenure_service.usecase.catalogue import Catalogue
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker


async def test_slots__lease_swept_elsewhere_and_never_named__are_free_again(database: str) -> None:
    running = Server(server_config(database, lease_seconds=1.5, first_lease_seconds=1.5))
    await running.start()
    client = Caller(running.address)
    other = Database(database, schema="tenure", connection_count=1, name="another server")
    other.open()
    try:
        (task_id,) = await client.enqueue()
        one = await RawWorker.open(client)
        (first,) = await one.tasks()
        await one.accept()
        # Another server's sweep; this one's worker beats on and has forgotten the lease.
        later = datetime.now(UTC) + timedelta(minutes=1)
        assert expire.expire(other, Catalogue(other), now=later) is not None
        beats = 0
        while len(one.assigned) == 1 and beats < 100:
            await one.beat()
            await eventually_async(lambda: len(one.assigned) > 1, seconds=0.3)
            beats += 1
        second = one.assigned[-1]
        assert (second.task_id, second.delivery) == (first.task_id, 2)
        assert await one.report(caller.completed(second)) == ["RECORDED"]
        assert await client.state(task_id) == "COMPLETED"
        await one.close()
    finally:
        other.close()
        await client.close()
        await running.stop()
