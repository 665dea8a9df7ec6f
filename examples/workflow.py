"""An order, from its stock to its delivery, as a workflow: steps, tasks, a wait and a map.

    tenure dev                                  # in one terminal
    python examples/workflow.py                 # in another; stop it in the middle, start it again

The worker may be killed at any line: the next one goes on where this one stood, and what is recorded
is not done again.
"""

import asyncio
import dataclasses
import datetime
import sys

from tenure import App, Context, Retry, StepFailed, Worker

app = App("shop")


@dataclasses.dataclass
class Order:
    """What a customer wants."""

    id: str
    customer: str
    items: list[str]


@dataclasses.dataclass
class Receipt:
    """What a customer gets told."""

    order_id: str
    state: str
    labels: list[str]


def say(text: str) -> None:
    """Writes a line as one piece: steps and tasks run in threads."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# Steps run inside the workflow, and are remembered.


@app.step(retry=Retry(3, initial_delay=0.2))
def reserve(order: Order) -> int:
    """Reserves the items of an order."""
    say(f"reserve {len(order.items)} item(s) of {order.id}")
    if "unicorn" in order.items:
        raise ValueError("we have no unicorns")
    return len(order.items)


async def release(order: Order) -> None:
    """Gives the items back."""
    say(f"release the items of {order.id}")


# Tasks run from a queue, on any worker.


@app.task(queue="payments", retry=Retry(8, max_delay=60))
def charge(order: Order, count: int) -> float:
    """Charges the customer."""
    say(f"charge {order.customer} for {count} item(s)")
    return 9.5 * count


@app.task
def pack(item: str) -> str:
    """Packs one item."""
    say(f"pack {item}")
    return f"label of {item}"


@app.workflow
async def fulfil(ctx: Context, order: Order) -> Receipt:
    """Sells an order: what it waits for costs no worker anything."""
    try:
        count = await ctx.step(reserve, order)
    except StepFailed as exc:
        return Receipt(order.id, f"refused: {exc.message}", [])
    try:
        paid = await ctx.task(charge, order, count)
        ctx.logger.info("%s has paid %.2f", order.customer, paid)
        # A day in a shop, some seconds here. A run that waits is no process and no thread.
        await ctx.sleep(datetime.timedelta(seconds=3))
        labels = await ctx.map(pack, order.items, limit=2)
    except (Exception, asyncio.CancelledError):
        # The second one is how a cancelled run is told.
        await ctx.step(release, order)
        raise
    return Receipt(order.id, "shipped", labels)


def main() -> None:
    """Starts an order under its key, or finds the one that runs, and works until it is over."""
    items = sys.argv[2:] or ["lamp", "chair", "table"]
    order = Order(sys.argv[1] if len(sys.argv) > 1 else "o-1", "c-7", items)
    handle = fulfil.using(key=order.id, attributes={"customer": order.customer}).start(order)
    print(f"run {handle.id} {'goes on' if handle.existing else 'is started'}")
    with Worker(app):
        print(handle.result(timeout=60))
    for step in handle.steps():
        print(f"  {step.id:<4} {step.kind:<6} {step.name}")


if __name__ == "__main__":
    main()
