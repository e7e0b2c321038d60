// What a program in TypeScript may write, and what its compiler refuses (types_test.py).
import * as mycojobs from "../../clients/node/index.js";
import { Client, type Flow, type FlowResult, type Job, type JobResult, type JobState, type SubmitOptions } from "../../clients/node/index.js";

export async function story(stop: AbortSignal): Promise<string> {
  const client = new Client({ url: "http://h:1", token: "t", context: 1, retryFor: "10s" });
  const options: SubmitOptions = { type: "sal", env: { A: "b" }, timeout: 60, policy: { net: ["h:1"] }, notify: [{ job: 1 }] };
  const first: Job = await client.submit("x", options);
  const job = await client.submit("x", { depends: [first, 7], priority: 1, args: ["a"], stdin: "in", files: { b: new Uint8Array(1) } });
  const state: JobState = await job.wait({ timeout: 1, signal: stop });
  const size: number = (await job.result<{ size: number }>()).size;
  for await (const line of job.logs({ follow: true, after: 0, signal: stop })) void (line.text + line.seq.toFixed());
  const flow: Flow = await client.flowStart({ name: "n" }, { inputs: { a: [1, null] }, env: { A: "b" }, notify: true, idempotencyKey: "k" });
  const ended: FlowResult = await flow.wait();
  await flow.approve("ok", "read it");
  await flow.signal("go", { to: ["you"] });
  for await (const event of client.events({ flow: flow.id, job: job.key, after: "0", signal: stop })) void event.data.status;
  const pong = await client.call<string>("system.ping", {}, { repeat: true, signal: stop, answerWithin: 5 });
  try {
    await client.job(7).cancel();
  } catch (why) {
    if (why instanceof mycojobs.JobFailed) return ((state: JobResult) => state.error + why.errorInfo.traceback)(why.state);
    if (why instanceof mycojobs.Unavailable && !why.sent) return why.remedy + why.text;
    if (why instanceof mycojobs.MycojobsError) return why.field + why.code.toFixed();
  }
  return state.detail + ended.status + pong + size;
}

export async function mistakes(client: Client, job: Job, flow: Flow): Promise<void> {
  // @ts-expect-error
  await client.submit(7);
  // @ts-expect-error
  await client.submit("x", { tiemout: 3 });
  // @ts-expect-error
  await client.submit("x", { timeout: { seconds: 60 } });
  // @ts-expect-error
  await job.wait(60);
  // @ts-expect-error
  (await job.status()).statos;
  // @ts-expect-error
  await flow.approve();
  // @ts-expect-error
  job.key = "1:7";
  // @ts-expect-error
  new mycojobs.Job();
}
