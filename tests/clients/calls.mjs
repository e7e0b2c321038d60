// Prints the calls of the Node client as JSON: every method with every option, without a server, and the exported
// names.
import * as client from "../../clients/node/index.js";

const { Client, CODES } = client;
const calls = [];
const answers = {
  "job.start": { key: "job:1:7" }, "flow.create": { id: 7 }, "job.status": { key: "job:1:7" }, "job.restart": { key: "job:1:8" }, "job.logs": { lines: [], ended: true, after_seq: 0 },
  "job.result": { status: "finished", result: {} }, "artifact.list": [],
  "jobs.wait": [{ key: "job:1:7", status: "finished" }], "flows.wait": [{ id: 7, status: "finished", result: {} }],
};
class Recorder extends Client {
  async call(method, params = {}) {
    calls.push([method, Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined))]);
    return answers[method] ?? {};
  }
}

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const c = new Recorder({ url: "http://127.0.0.1:1", context: 1 });
const job = await c.submit("x", {
  type: "python", env: { A: "b" }, depends: [1, c.job("1:2")], id: 3, caller_id: 1, name: "n", timeout: 1, retries: 1, prerequisites: ["wait:1s"],
  run_at_ms: 1, priority: 1, queue_timeout_ms: 1, idempotency_key: "k", concurrency_key: "k", concurrency_limit: 1, inputs: ["a"], notify: [],
  args: ["a"], stdin: Buffer.from([0]), files: { n: "text", b: new Uint8Array([255]) }, policy: {}, traceparent,
});
for (const each of ["status", "wait", "result", "cancel", "retry", "restart", "explain", "artifacts"]) await job[each]();
for await (const line of job.logs({ follow: true, after: 1 })) void line;
await c.job(7).wait();
await c.upload(process.argv[1], { callerId: 1 }).catch(() => {});  // the recorder answers without a link
const flow = await c.flowStart({ name: "n" }, { inputs: { a: 1 }, env: { A: "b" }, notify: [], idempotencyKey: "k", traceparent });
for (const each of ["status", "dag", "explain", "wait", "result"]) await flow[each]();
await flow.approve("a", "c");
await flow.reject("a", "c");
await flow.signal("a", { p: 1 });
await flow.cancel("c");
await flow.pause("c");
await flow.resume("n");
await flow.retry("n", { allowIrreversible: true });

const parameters = (type) =>
  Object.fromEntries(methods(type).map((name) => {
    const { value } = Object.getOwnPropertyDescriptor(type.prototype, name);
    return [name, value ? /^(?:async )?\*?\s*\w+\((.*?)\) \{\n/s.exec(String(value))[1] : ""];
  }));
const methods = (type) => Object.getOwnPropertyNames(type.prototype).filter((name) => name !== "constructor");
// Returns the options that each function accepts, taken from its error for an unknown option.
const optionsOf = async (call) => {
  const error = await (async () => call({ unknown: 1 }))().catch((why) => why);
  return error.remedy.replace("the options are ", "").split(", ").sort();
};
const real = new Client("http://127.0.0.1:1");
const options = {
  Client: await optionsOf((given) => new Client(given)),
  call: await optionsOf((given) => real.call("system.ping", {}, given)),
  submit: await optionsOf((given) => real.submit("x", given)),
  flowStart: await optionsOf((given) => real.flowStart({}, given)),
  events: await optionsOf((given) => real.events(given).next()),
  logs: await optionsOf((given) => real.job("1:7").logs(given).next()),
  "Job.wait": await optionsOf((given) => real.job("1:7").wait(given)),
  "Job.result": await optionsOf((given) => real.job("1:7").result(given)),
  "Flow.wait": await optionsOf((given) => real.flow(7).wait(given)),
  "Flow.result": await optionsOf((given) => real.flow(7).result(given)),
};
console.log(JSON.stringify({
  calls,
  options,
  codes: Object.fromEntries(Object.entries(CODES).map(([code, type]) => [code, type.name])),
  names: Object.keys(client),
  methods: { Client: methods(Client), Artifact: methods(client.Artifact), Job: methods(client.Job), Flow: methods(client.Flow) },
  parameters: { Client: parameters(Client), Artifact: parameters(client.Artifact), Job: parameters(client.Job), Flow: parameters(client.Flow) },
}));
