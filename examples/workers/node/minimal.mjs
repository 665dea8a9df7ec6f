// The smallest honest Tenure worker: one stream, leases kept by heartbeats, results kept until they
// are acknowledged, reconnects. Handlers run on this loop, so none may block; worker.mjs beside it
// runs them in threads, cancels them, and notices half-open connections. See docs/protocol.md.
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const handlers = {
  async word_count({ text }) { return { words: text.split(/\s+/).filter(Boolean).length }; },
};
const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const { tenure } = grpc.loadPackageDefinition(loadSync("tenure/v1/worker_service.proto", {
  includeDirs: [path("../../../proto"), path("../../../third_party/googleapis")],
  keepCase: true, defaults: true, oneofs: true, enums: String, longs: Number }));
const held = new Map(); // assignments, by token and task, until their results are acknowledged
const key = (task) => task.lease_token + task.task_id;
const tokens = () => [...new Set([...held.values()].map((task) => task.lease_token))];
let session, call, stopping = false;

async function run(task) {
  const input = `${task.input?.data ?? ""}`;
  try {
    const output = JSON.stringify((await handlers[task.name](JSON.parse(input || "null"))) ?? null);
    task.outcome = { completed: { output: { data: Buffer.from(output) } } };
  } catch (error) {
    task.outcome = { failed: { failure: { type: error.name, message: `${error.message}` } } };
  }
  report([task]);
}
function report(tasks, report_id = Math.floor(Math.random() * 2 ** 50)) {
  if (!call || tasks.length === 0) return; // the next stream reports it
  call.write({ report: { report_id, results: tasks.map(({ task_id, lease_token, outcome }) => ({ task_id, lease_token, ...outcome })) } });
  call.reports.set(report_id, tasks);
}
function connect() {
  const client = new tenure.v1.WorkerService(process.env.TENURE_ADDRESS || "127.0.0.1:7711", grpc.credentials.createInsecure());
  const stream = Object.assign(client.Work(), { reports: new Map() });
  const beat = () => stream.write({ heartbeat: { lease_tokens: tokens() } });
  let timer;
  stream.on("data", (message) => {
    const body = message[message.message];
    if (message.message === "opened") {
      [session, call, timer] = [body, stream, setInterval(beat, body.heartbeat_interval.seconds * 1000 || 1000)];
      beat();
      report([...held.values()].filter((task) => task.outcome));
    } else if (message.message === "assign") {
      for (const task of body.assignments) held.set(key(task), task);
      stream.write({ accept: { lease_tokens: tokens() } });
      body.assignments.forEach(run);
    } else if (message.message === "report_ack") {
      for (const task of stream.reports.get(body.report_id) ?? []) held.delete(key(task));
    } else if (message.message === "heartbeat_ack") {
      for (const task of held.values()) if (body.lost_lease_tokens.includes(task.lease_token)) held.delete(key(task));
    } else if (message.message === "drain") setTimeout(() => stream.cancel(), 200);
  }).on("error", () => {}).on("status", () => { // whatever the status: only we end this worker
    clearInterval(timer);
    client.close();
    if (stopping) process.exit(0);
    setTimeout(connect, Math.random() * 3000);
    if (call === stream) call = undefined;
  });
  stream.write({ open: { worker: { name: `node-${process.pid}` }, slots: { total: 10 },
    handlers: Object.keys(handlers).map((name) => ({ name })),
    resume: session && { session_id: session.session_id, session_secret: session.session_secret, lease_tokens: tokens() } } });
}
process.on("SIGTERM", () => { stopping = true; call ? (call.write({ close: {} }), call.end()) : process.exit(0); });
connect();
