// The workflow functions, by name, and the thread that runs one activation of one.
//
// A function gets a context and the run's input. It is run from its start each time its run goes on:
// what its context has recorded is not done again. So between two verbs it must come to the same
// decisions, and it awaits each verb before it calls the next: their count is their id.
import { isMainThread, parentPort, workerData } from "node:worker_threads";

const suspend_after_ms = 1000; // a shorter sleep is cheaper in memory than another activation

export const workflows = {
  raffle: {
    version: "1", // changes when the order or the names of the steps do
    async run(ctx, { names, seconds }) {
      const winner = await ctx.step("draw", () => {
        console.log("drawing");
        return names[Math.floor(Math.random() * names.length)];
      });
      const counted = await ctx.task("word_count", { text: names.join(" ") });
      await ctx.sleep(seconds);
      return { winner, of: counted.words };
    },
  },
};

const json = (value) => ({ data: Buffer.from(JSON.stringify(value ?? null)), encoding: "json" });
const read = (payload) => payload?.data?.length ? JSON.parse(Buffer.from(payload.data)) : null;
const milliseconds = ({ seconds, nanos }) => seconds * 1000 + nanos / 1e6;
const kinds = { call: "STEP_KIND_CALL", task: "STEP_KIND_TASK", sleep: "STEP_KIND_SLEEP" };

class Context {
  #steps; // recorded steps, by id
  #count = 0;
  #busy = false;

  constructor(steps) {
    this.#steps = new Map(steps.map((step) => [step.step_id, step]));
  }

  step(name, run) { // runs a function here
    return this.#verb("call", name, async () => {
      try {
        return { output: json(await run()) };
      } catch (error) {
        return { failure: { type: error?.name ?? "Error", message: `${error?.message ?? error}` } };
      }
    });
  }

  task(name, input) { // has any worker run a task
    return this.#verb("task", name, () => ({ name, queue: workerData.queue, input: json(input) }));
  }

  sleep(seconds) {
    const length = { seconds: Math.floor(seconds), nanos: Math.floor((seconds % 1) * 1e9) };
    return this.#verb("sleep", "sleep", () => length);
  }

  async #verb(kind, name, ask) {
    if (this.#busy) throw new Error("a verb is called before the one before was awaited");
    this.#busy = true;
    const step_id = `${++this.#count}`;
    let step = this.#steps.get(step_id);
    if (step && (step.kind !== kinds[kind] || step.name !== name))
      await end({ blocked: { failure: { type: "HistoryMismatch",
        message: `step ${step_id} is recorded as ${step.kind} ${step.name}, not ${kind} ${name}` } } });
    step ??= await request({ record: { step_id, name, [kind]: await ask() } });
    if (kind === "sleep" && step.remaining) await this.#pause(step.remaining);
    else if (kind === "task" && !step.outcome) step = await request({ child_id: step.child_id });
    this.#busy = false;
    if (step.failure) throw Object.assign(new Error(step.failure.message), { name: step.failure.type });
    return read(step.output);
  }

  async #pause(remaining) {
    const left_ms = milliseconds(remaining);
    if (left_ms > suspend_after_ms) await end({ suspended: { wake_after: remaining } });
    await new Promise((resolve) => setTimeout(resolve, left_ms));
  }
}

async function request(message) { // one at a time; an error is a step that was refused
  const answer = new Promise((resolve) => parentPort.once("message", resolve));
  parentPort.postMessage(message);
  const { error, ...step } = await answer;
  if (error) throw Object.assign(new Error(error), { name: "StepRefused" });
  return step;
}

function end(outcome) { // the worker ends this thread
  parentPort.postMessage({ outcome });
  return new Promise(() => {});
}

if (!isMainThread) {
  const { name, input, steps } = workerData;
  const output = await workflows[name].run(new Context(steps), read(input));
  await end({ completed: { output: json(output) } });
}
