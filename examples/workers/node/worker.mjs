// A Tenure worker on one Work stream. docs/protocol.md explains the rules it keeps.
//
// Each task runs in a thread of its own (handlers.mjs): no handler can hold up a heartbeat, and
// one that was cancelled or has lost its lease can be ended in the middle of a loop. So does each
// activation of a workflow function (activation.mjs, workflows.mjs).
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { Activation } from "./activation.mjs";
import { handlers } from "./handlers.mjs";
import { workflows } from "./workflows.mjs";

const address = process.env.TENURE_ADDRESS || "127.0.0.1:7711";
const queue = process.env.TENURE_QUEUE || "default";
const grace_ms = 1000 * (process.env.TENURE_GRACE || 30); // for handlers, after SIGTERM
const slots = 4; // four outputs of 2 MiB still fit one message of 16 MiB
const activations = 3; // apart from tasks
const metadata = new grpc.Metadata();
metadata.set("tenure-namespace", process.env.TENURE_NAMESPACE || "default");
if (process.env.TENURE_API_KEY) metadata.set("authorization", `Bearer ${process.env.TENURE_API_KEY}`);

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const { tenure } = grpc.loadPackageDefinition(loadSync("tenure/v1/worker_service.proto", {
  includeDirs: [path("../../../proto"), path("../../../third_party/googleapis")],
  keepCase: true, defaults: true, oneofs: true, enums: String, longs: Number,
}));
const milliseconds = ({ seconds, nanos }) => seconds * 1000 + nanos / 1e6;
const duration = (ms) => ({ seconds: Math.floor(ms / 1000), nanos: Math.floor((ms % 1000) * 1e6) });
// A text that protobuf refuses, or that is larger than a message, would break every new stream too.
const text = (value, max) => String(value ?? "").slice(0, max).toWellFormed();
const failed = (type, message, stack, non_retryable = false) => ({ failed: { failure: {
  type: text(type, 200) || "Error", message: text(message, 8000), stack: text(stack, 30_000),
  non_retryable } } });
const keyOf = ({ lease_token, task_id }) => `${lease_token} ${task_id}`; // tasks may share a token
const tokensOf = (tasks) => [...new Set([...tasks].map((task) => task.lease_token))];

const held = new Map(); // tasks from their Assign until the ReportAck
let session = null; // the latest Opened
let stream = null; // set from Opened until the stream ends
let stopping = false;

function start(task) {
  task.started_at = performance.now();
  if (!["", "json"].includes(task.input?.encoding ?? ""))
    return finish(task, failed("UnsupportedEncoding", task.input.encoding, "", false));
  if (task.activation) {
    task.flow = new Activation(task, { finish, drop, failed,
      send: (message) => stream?.call.write(message),
      list_steps: (request) => stream.list_steps(request) });
    return task.flow.start(queue);
  }
  const workerData = { name: task.name, input: `${task.input?.data ?? ""}`, attempt: task.attempt };
  task.thread = new Worker(path("handlers.mjs"), { workerData })
    .once("message", (json) =>
      finish(task, { completed: { output: { data: Buffer.from(json), encoding: "json" } } }))
    .once("error", (error) =>
      finish(task, failed(error?.name, error?.message ?? error, error?.stack)))
    .once("exit", () => finish(task, failed("HandlerExited", "the handler ended without an output")));
}

async function finish(task, outcome) {
  if (task.finished) return; // the first outcome counts
  task.finished = true;
  await task.thread?.terminate(); // before the report: another worker may be next at once
  const size = outcome.completed?.output.data.length;
  task.outcome = size > session.payload_bytes_max
    ? failed("OutputTooLarge", `${size} bytes`, "", true) : outcome;
  setImmediate(() => stream?.report()); // results of the same moment share a message
}

function drop(task) {
  task.finished = true;
  task.thread?.terminate();
  held.delete(keyOf(task));
}

async function connect() { // returns when the stream has ended: true if it had been opened
  // A new client on each connect: after a silent failure the old connection is the problem.
  const client = new tenure.v1.WorkerService(address, grpc.credentials.createInsecure(), {
    "grpc.use_local_subchannel_pool": 1, "grpc.max_receive_message_length": 20 * 2 ** 20 });
  const call = client.Work(metadata);
  const reports = new Map(); // tasks by report_id, until the ReportAck
  let sent = 0, quiet = 0, timer = setInterval(beat, 3000);

  function beat() {
    if (++quiet > 3) return call.cancel(); // nothing heard for three beats: a half-open connection
    if (!stream) return;
    call.write({ heartbeat: { heartbeat_id: ++sent, lease_tokens: tokensOf(held.values()) } });
    report();
  }
  function report() { // what this stream has not carried: on a new one, all that is unacknowledged
    const tasks = [...held.values()].filter((task) => task.outcome && task.sent_on !== call);
    if (tasks.length === 0) return;
    for (const task of tasks) task.sent_on = call;
    reports.set(++sent, tasks);
    call.write({ report: { report_id: sent, results: tasks.map((task) => ({
      task_id: task.task_id, lease_token: task.lease_token,
      run_duration: task.started_at && duration(performance.now() - task.started_at), ...task.outcome,
    })) } });
  }
  const list_steps = (request) => new Promise((resolve, reject) =>
    client.ListSteps(request, metadata, (error, page) => error ? reject(error) : resolve(page)));
  const on = {
    opened(opened) {
      session = opened;
      stream = { call, report, list_steps };
      clearInterval(timer);
      timer = setInterval(beat, milliseconds(opened.heartbeat_interval));
      console.log(`session ${opened.session_id} ${opened.resumed ? "resumed" : "opened"}`);
      beat();
      for (const task of held.values()) task.flow?.send();
    },
    assign({ assignments }) {
      const fresh = assignments.filter((task) => !held.has(keyOf(task)));
      for (const task of fresh) held.set(keyOf(task), task);
      if (stopping) return fresh.forEach((task) => finish(task, { released: {} }));
      call.write({ accept: { lease_tokens: tokensOf(assignments) } });
      const tasks = fresh.map(({ task_id, lease_token }) => ({ task_id, lease_token }));
      call.write({ started: { tasks } });
      fresh.forEach(start);
    },
    report_ack({ report_id, statuses, errors }) {
      reports.get(report_id)?.forEach((task, index) => {
        if (statuses[index] !== "REPORT_STATUS_REFUSED") return drop(task);
        const { code, message } = errors.find((item) => item.index === index)?.error ?? {};
        if (![grpc.status.ABORTED, grpc.status.UNAVAILABLE].includes(code))
          task.outcome = failed("ReportRefused", message);
        task.sent_on = null; // goes out again with the next beat
      });
      reports.delete(report_id);
    },
    heartbeat_ack({ lost_lease_tokens, cancels }) {
      for (const task of held.values()) if (lost_lease_tokens.includes(task.lease_token)) drop(task);
      cancels.forEach(on.cancel);
    },
    step_ack(ack) {
      for (const task of held.values()) task.flow?.step_ack(ack);
    },
    resolved(message) {
      for (const task of held.values()) if (task.task_id === message.run_id) task.flow?.resolved(message);
    },
    cancel({ task_id, reason }) {
      for (const task of held.values())
        if (task.task_id === task_id)
          finish(task, { cancelled: { failure: { type: "Cancelled", message: text(reason, 8000) } } });
    },
    drain({ reconnect_after }) {
      setTimeout(() => call.cancel(), milliseconds(reconnect_after));
    },
  };
  call.on("data", (response) => { quiet = 0; on[response.message]?.(response[response.message]); });
  call.on("error", () => {}); // the status, which comes last, tells it too
  call.write({ open: {
    worker: { name: `${hostname()}-${process.pid}`, sdk: "example-node", sdk_version: "0.1.0" },
    handlers: [
      ...Object.keys(handlers).map((name) => ({ name, queue })),
      ...Object.entries(workflows).map(([name, { version }]) =>
        ({ name, queue, version, kind: "HANDLER_KIND_WORKFLOW" })),
    ],
    slots: { total: stopping ? 0 : slots, activations: stopping ? 0 : activations },
    resume: session && { session_id: session.session_id, session_secret: session.session_secret,
      lease_tokens: tokensOf(held.values()) },
    protocol_version: "1.0",
  } });
  const { code, details } = await new Promise((resolve) => call.on("status", resolve));
  const opened = stream?.call === call;
  stream = null;
  clearInterval(timer);
  client.close();
  console.log(`stream ended: ${grpc.status[code]} ${details}`);
  return opened;
}

async function stop(signal) {
  if (stopping) return;
  stopping = true; // from here on, what still arrives is given back
  stream?.call.write({ pause: { paused: true } });
  const settled = async (ms) => {
    for (const end = performance.now() + ms; held.size > 0 && performance.now() < end;) await sleep(20);
  };
  await settled(grace_ms);
  const aborted = failed("WorkerStopped", "the handler outlived its grace");
  for (const task of held.values()) finish(task, task.activation ? { released: {} } : aborted);
  await settled(5000);
  if (!stream) process.exit(0);
  stream.call.once("status", () => process.exit(0)).end({ close: { reason: signal } });
  stream = null;
  setTimeout(() => process.exit(0), 3000);
}
process.on("SIGTERM", stop).on("SIGINT", stop);

for (let failures = 1; ; failures++) { // no status of the peer ends this loop
  if (await connect()) failures = 1;
  await sleep(Math.random() * Math.min(10_000, 1000 * 2 ** failures));
}
