// The handlers, by task name, and the thread that runs one of them.
//
// A handler gets the task's input and `{ attempt }` and returns its output, both plain JSON values
// (integers beyond 2^53 lose digits in JavaScript: send those as strings). What it throws is
// reported as a failure whose type is the error's name.
import { isMainThread, parentPort, workerData } from "node:worker_threads";

export const handlers = {
  word_count({ text }) {
    const words = text.split(/\s+/).filter(Boolean);
    return { words: words.length, distinct: new Set(words).size };
  },

  fail_once(input, { attempt }) {
    if (attempt === 1) throw new RangeError("the first attempt fails on purpose");
    return { attempt, input };
  },

  async sleep({ seconds }) {
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    return { slept: seconds };
  },
};

if (!isMainThread) {
  const { name, input, attempt } = workerData;
  const output = await handlers[name](input ? JSON.parse(input) : null, { attempt });
  parentPort.postMessage(JSON.stringify(output ?? null));
}
