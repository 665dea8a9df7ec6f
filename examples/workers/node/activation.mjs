// One activation of a workflow function while this worker holds it: its thread (workflows.mjs), and
// what the thread asks of the server. docs/protocol.md, "Workflow functions", has the rules.
import { Worker } from "node:worker_threads";
import grpc from "@grpc/grpc-js";

const suspend_after_ms = 1000; // a task that takes longer is waited for without this worker
const transient = [grpc.status.ABORTED, grpc.status.UNAVAILABLE, grpc.status.RESOURCE_EXHAUSTED];
let record_count = 0;

export class Activation {
  record = null; // RecordSteps without a StepAck
  child_id = ""; // task that the function waits for

  // `worker` has send(message), list_steps(request), finish(task, outcome), drop(task), failed(...).
  constructor(task, worker) {
    this.task = task;
    this.worker = worker;
    this.names = { run_id: task.task_id, lease_token: task.lease_token };
  }

  async start(queue) {
    const { task, worker } = this;
    const steps = [...task.activation.steps];
    try {
      for (let page_token = task.activation.next_page_token; page_token;) {
        const page = await worker.list_steps({ ...this.names, page_token });
        steps.push(...page.steps);
        page_token = page.next_page_token;
      }
    } catch {
      return worker.finish(task, { released: {} });
    }
    if (task.finished) return;
    const workerData = { name: task.name, input: task.input, steps, queue };
    task.thread = new Worker(new URL("workflows.mjs", import.meta.url), { workerData })
      .on("message", (message) => this.asked(message))
      .once("error", (error) =>
        worker.finish(task, worker.failed(error?.name, error?.message ?? error, error?.stack)))
      .once("exit", () =>
        worker.finish(task, worker.failed("HandlerExited", "the function ended without an output")));
  }

  asked({ record, child_id, outcome }) { // by the thread
    if (this.task.finished) return;
    if (outcome) return this.worker.finish(this.task, outcome);
    if (record) this.record = { record_id: ++record_count, ...this.names, steps: [record] };
    if (child_id) {
      this.child_id = child_id;
      const suspended = { waits: [{ child_ids: [child_id], needed_count: 1 }] };
      this.timer = setTimeout(() => this.worker.finish(this.task, { suspended }), suspend_after_ms);
    }
    this.send();
  }

  send() { // also on each new stream: what was not answered goes again
    if (this.task.finished) return;
    if (this.record) this.worker.send({ record_steps: this.record });
    if (this.child_id) this.worker.send({ wait: { ...this.names, child_ids: [this.child_id] } });
  }

  step_ack({ record_id, records, error }) {
    if (this.record?.record_id !== record_id || this.task.finished) return;
    if (error && transient.includes(error.code)) return setTimeout(() => this.send(), 500);
    this.record = null;
    if (error?.code === grpc.status.FAILED_PRECONDITION) return this.worker.drop(this.task); // LEASE_LOST
    if (error) return this.worker.finish(this.task, this.worker.failed("StepRefused", error.message));
    const [{ step, error: refused }] = records;
    if (refused?.code === grpc.status.FAILED_PRECONDITION) // HISTORY_MISMATCH
      return this.worker.finish(this.task,
        { blocked: { failure: { type: "HistoryMismatch", message: refused.message } } });
    this.task.thread.postMessage(step ?? { error: refused.message });
  }

  resolved({ children }) {
    const child = children.find((each) => each.child_id === this.child_id);
    if (!child || this.task.finished) return;
    clearTimeout(this.timer);
    this.child_id = "";
    this.task.thread.postMessage(child);
  }
}
