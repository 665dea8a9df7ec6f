import { Logger, makeWorkerUtils, run } from "graphile-worker";

import { main, numbers, settings, timed } from "./program.js";

// The default logger prints two lines a job.
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
const preset = { worker: { ...settings, logger } };

async function withUtils(use) {
  const utils = await makeWorkerUtils({ preset });
  try {
    await use(utils);
  } finally {
    await utils.release();
  }
}

await main({
  prepare: () => withUtils((utils) => utils.migrate()),
  enqueue: (count) =>
    withUtils((utils) =>
      timed(() =>
        utils.addJobs(
          numbers(count).map((number) => ({ identifier: "noop", payload: { number } })),
        ),
      ),
    ),
  work: async () => {
    const runner = await run({ preset, taskList: { noop: async () => {} } });
    await runner.promise;
  },
});
