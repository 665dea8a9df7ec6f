import { PgBoss } from "pg-boss";

import { main, numbers, settings, timed } from "./program.js";

const QUEUE = "noop";

async function opened() {
  const boss = new PgBoss({});
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function withBoss(use) {
  const boss = await opened();
  try {
    await use(boss);
  } finally {
    await boss.stop();
  }
}

// With perJobResults a handler answers for each job; without, for the whole batch.
const handler = settings.perJobResults
  ? async (jobs) => jobs.map(({ id }) => ({ id, status: "completed", output: {} }))
  : async () => {};

await main({
  prepare: () => withBoss((boss) => boss.createQueue(QUEUE)),
  enqueue: (count) =>
    withBoss((boss) =>
      timed(() => boss.insert(QUEUE, numbers(count).map((number) => ({ data: { number } })))),
    ),
  work: async () => {
    const boss = await opened();
    process.once("SIGTERM", () => boss.stop().then(() => process.exit(0)));
    await boss.work(QUEUE, settings, handler);
  },
});
