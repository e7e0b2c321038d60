// The Node client with the servers of node_test.py, which executes commands from descriptor 3 and answers on descriptor
// 4.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createReadStream, writeSync } from "node:fs";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import test, { after } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import * as mycojobs from "../../clients/node/index.js";

const { Client } = mycojobs;
const LIMIT = { timeout: "60s" }; // reached only by a hang
const HOSTILE = "\u001b[31mred\u001b[0m \u202e<b>&\"'\u0000\u0007 \u2028 end";
const SLEEP = "import time\ntime.sleep(60)";
const client = new Client();

const answers = createInterface({ input: createReadStream(null, { fd: 4 }) })[Symbol.asyncIterator]();
async function world(what) {
  writeSync(3, `${what}\n`);
  return JSON.parse((await answers.next()).value);
}
after(() => world("end"));

const texts = async (lines) => {
  let all = "";
  for await (const line of lines) all += line.text;
  return all;
};
const named = (name) => client.call("job.list", { name });
async function eventually(what) {
  for (const until = Date.now() + 60_000; !(await what()); await pause(20)) assert.ok(Date.now() < until, String(what));
}

test("a job brings arguments, input and files along", async () => {
  const script = "import sys\nresult['all'] = [sys.argv[1:], sys.stdin.read(), open('/job/files/b', 'rb').read().hex()]";
  const job = await client.submit(script, { args: ["-x"], stdin: "typed", files: { b: new Uint8Array([255]) } });
  assert.deepEqual(await job.result(LIMIT), { all: [["-x"], "typed", "ff"] });
});

test("a script hands back its result and its log", async () => {
  const job = await client.submit("print('one')\nprint('two')\nresult['n'] = 42", { name: "first", timeout: "1m" });
  assert.deepEqual(await job.result(LIMIT), { n: 42 });
  assert.equal(await texts(job.logs()), "one\ntwo\n");
  assert.equal((await job.status()).status, "finished");
  assert.deepEqual(await client.job(`job:${job.key}`).result(), { n: 42 });
  assert.deepEqual(await client.job(job.id).result(), { n: 42 });
  assert.equal((await job.explain()).cause, "finished");
});

test("a log is followed until the end", async () => {
  const job = await client.submit("import time\nfor i in range(4):\n  print(i, flush=True)\n  time.sleep(0.3)");
  assert.equal(await texts(job.logs({ follow: true })), "0\n1\n2\n3\n");
  assert.equal((await job.status()).ended, true);
});

test("a job that fails throws what its script said, safe for a terminal", async () => {
  const job = await client.submit(`raise ValueError(${JSON.stringify(HOSTILE).replace(/\u202e|\u2028/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`)})`);
  await assert.rejects(job.result(LIMIT), (why) => {
    assert.ok(why instanceof mycojobs.JobFailed && why instanceof mycojobs.MycojobsError);
    assert.deepEqual([why.name, why.detail, why.errorInfo.type, why.errorInfo.message], ["JobFailed", "exception", "ValueError", HOSTILE]);
    assert.doesNotMatch(why.message, /[\p{Cc}\p{Cf}]/u);
    return true;
  });
  const echo = await client.submit(`import os\nresult['x'] = os.environ['X']`, { env: { X: HOSTILE.replaceAll("\0", "") } });
  assert.deepEqual(await echo.result(LIMIT), { x: HOSTILE.replaceAll("\0", "") });
});

test("a cancelled job is told as such", async () => {
  const job = await client.submit(SLEEP);
  await eventually(async () => (await job.status()).status === "started");
  await job.cancel();
  await assert.rejects(job.result(LIMIT), mycojobs.JobCancelled);
  await assert.rejects(job.retry(), mycojobs.Conflict);
});

test("a job that has ended is run once more as a new one", async () => {
  const job = await client.submit("result['x'] = 1");
  assert.deepEqual(await job.result(LIMIT), { x: 1 });
  const again = await job.restart();
  assert.notEqual(again.key, job.key);
  assert.deepEqual(await again.result(LIMIT), { x: 1 });
});

test("a wait that is over says so, one that is given up leaves nothing behind", async () => {
  const job = await client.submit("import time\ntime.sleep(2)\nresult['late'] = True");
  await assert.rejects(job.wait({ timeout: "200ms" }), mycojobs.WaitTimeout);
  const stop = new AbortController();
  const given_up = assert.rejects(job.wait({ signal: stop.signal }), { name: "AbortError" });
  const stays = job.result(LIMIT);
  setTimeout(() => stop.abort(), 200);
  await given_up;
  await assert.rejects(job.wait({ signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.deepEqual(await stays, { late: true });
});

test("large results arrive, and what is too large is told", async () => {
  const job = await client.submit("result['x'] = 'ü' * 450_000");
  assert.equal((await job.result(LIMIT)).x.length, 450_000);
  const larger = await client.submit("result['x'] = 'x' * 3_000_000");
  await assert.rejects(larger.result(LIMIT), { detail: "result_too_large" });
  await assert.rejects(client.submit("#".repeat(20_000_000)), mycojobs.TooLarge);
});

test("integers beyond 2^53 keep their digits both ways", async () => {
  const script = "result['id'] = 9007199254740993\nresult['list'] = [2**64 - 1, -2**63, 7]\nresult['text'] = '9007199254740993'";
  const result = await (await client.submit(script)).result(LIMIT);
  assert.deepEqual(result, { id: 9007199254740993n, list: [18446744073709551615n, -9223372036854775808n, 7], text: "9007199254740993" });
  const flow = await client.flowStart({ name: "n", inputs: { n: { type: "integer" } }, jobs: {
    a: { type: "python", script: "import mycojobs\nresult['n'] = mycojobs.flow.inputs['n']" } } }, { inputs: { n: 9007199254740993n } });
  assert.equal((await flow.result(LIMIT))["a.n"], 9007199254740993n);
});

test("a server's address alone makes a client", async () => {
  const { COORDINATOR_URL } = process.env;
  for (const address of [COORDINATOR_URL, new URL(COORDINATOR_URL)]) assert.equal(await new Client(address).call("system.ping"), "pong");
  await assert.rejects(new Client("http://127.0.0.1:1/").call("system.ping", {}, { signal: AbortSignal.timeout(300) }), { name: /TimeoutError|AbortError/ });
});

test("an idempotency key makes one job", async () => {
  const request = { idempotency_key: "same" };
  const [one, two] = [await client.submit("x = 1", request), await client.submit("x = 1", request)];
  assert.equal(one.key, two.key);
  await assert.rejects(client.submit("x = 2", request), { name: "Conflict", code: -32002, word: "conflict" });
  await assert.rejects(client.submit("x", { timeout: 0 }), { name: "Invalid", field: "timeout" });
});

test("a token that is unknown is denied", async () => {
  const stranger = new Client({ token: "mj_wrong" });
  await assert.rejects(stranger.submit("x"), (why) => why instanceof mycojobs.Denied && why.remedy.includes("mycojobs key token"));
  await assert.rejects(stranger.events({ flow: 1 }).next(), mycojobs.Denied);
});

test("a job that is not there fails its own wait alone", async () => {
  const good = await client.submit("import time\ntime.sleep(1)\nresult['n'] = 1");
  const bad = Array.from({ length: 5 }, (_, i) => assert.rejects(client.job(`1:${900_000 + i}`).wait(LIMIT), mycojobs.NotFound));
  assert.deepEqual(await good.result(LIMIT), { n: 1 });
  await Promise.all(bad);
});

test("a flow is approved, signalled and hands back its results", async () => {
  const flow = await client.flowStart(
    { name: "story", inputs: { n: { type: "number" } }, jobs: {
      make: { type: "python", script: "import mycojobs\nresult['n'] = mycojobs.flow.inputs['n']" },
      ok: { needs: "make", approval: {} },
      ship: { needs: "ok", prerequisites: ["signal:go"], type: "python", script: "import mycojobs\nresult['go'] = mycojobs.flow.signals['go']" },
    } },
    { inputs: { n: 7 } },
  );
  await eventually(async () => (await flow.explain())[0].cause === "approval");
  await assert.rejects(flow.wait({ timeout: 0.1 }), mycojobs.WaitTimeout);
  await flow.approve("ok", "read it");
  await flow.signal("go", { to: "you" });
  const result = await flow.result(LIMIT);
  assert.deepEqual([result["make.n"], result["ship.go"]], [7, { to: "you" }]);
  assert.equal((await flow.dag()).nodes.length, 3);
  const kinds = [];
  for await (const event of client.events({ flow: flow.id, after: "0" })) kinds.push(event.data.kind ?? event.data.status);
  assert.ok(kinds.includes("node_completed") && kinds.at(-1) === "finished", String(kinds));
});

test("a flow that is cancelled or rejected throws", async () => {
  const definition = { name: "n", jobs: { ok: { approval: {} } } };
  const [one, other] = [await client.flowStart(definition), await client.flowStart(definition)];
  await one.pause();
  await one.resume();
  await one.cancel("enough");
  await other.reject("ok");
  await assert.rejects(one.result(LIMIT), { name: "FlowFailed", detail: "cancelled" });
  await assert.rejects(other.result(LIMIT), mycojobs.FlowFailed);
});

test("a call may take as long as it says", async () => {
  const request = { script: SLEEP, script_type: "python", wait_ms: 3000, name: "slow" };
  await assert.rejects(client.call("job.run", request, { answerWithin: 0.5 }), mycojobs.Unavailable);
  assert.equal((await client.call("job.run", request)).ended, false);
  for (const each of await named("slow")) await client.job(each.key).cancel();
});

test("a hundred submit and wait over few connections", async () => {
  await world("begin_count");
  const one = async (i) => (await (await client.submit(`result['n'] = ${i}`)).result(LIMIT)).n;
  const all = await Promise.all(Array.from({ length: 100 }, (_, i) => one(i)));
  assert.deepEqual(all, Array.from({ length: 100 }, (_, i) => i));
  const { most_open } = await world("count");
  // Eight calls at a time; fetch opens another connection if a response has just been read.
  assert.ok(most_open <= 24, `${most_open} connections`);
});

test("events go on behind the last one", async () => {
  const job = await client.submit("import time\nfor i in range(30):\n  print(i, flush=True)\n  time.sleep(0.05)");
  let [seen, lines, state] = ["", 0, ""];
  for await (const event of client.events({ job: job.key })) {
    if (event.kind === "job") state = event.data.status;
    else seen += event.data.text;
    if (event.kind === "log" && [3, 12].includes(++lines)) await world("cut");
  }
  assert.equal(seen, Array.from({ length: 30 }, (_, i) => `${i}\n`).join(""));
  assert.equal(state, "finished");
});

test("waits outlive the server, and who calls meanwhile is served when it is back", async () => {
  const job = await client.submit("import time\ntime.sleep(4)\nresult['n'] = 1");
  const flow = await client.flowStart({ name: "n", jobs: { a: { wait: "3s" } } });
  const output = Promise.all([job.result(LIMIT), flow.result(LIMIT), texts(job.logs({ follow: true }))]);
  await pause(300);
  await world("stop");
  const patient = client.submit("result['n'] = 2", { name: "patient" });
  await pause(700);
  await world("start");
  assert.deepEqual((await output)[0], { n: 1 });
  assert.deepEqual(await (await patient).result(LIMIT), { n: 2 });
  assert.equal((await named("patient")).length, 1);
});

test("an answer that was lost makes no second job, and what is not harmless is not repeated", async () => {
  await world("lose");
  const job = await client.submit("result['n'] = 3", { name: "only once" });
  assert.deepEqual(await job.result(LIMIT), { n: 3 });
  assert.equal((await named("only once")).length, 1);
  await world("lose");
  await assert.rejects(client.call("job.create", { script: "x", script_type: "python", name: "unsafe" }), mycojobs.Unavailable);
  await eventually(async () => (await named("unsafe")).length === 1);
  for (const verb of ["approve", "reject", "cancel", "remove"]) {
    await world("begin_count");
    await world("lose");
    await assert.rejects(client.call(`workflow.${verb}`, { workflow: "acme/order@1", key: "7" }), mycojobs.Unavailable);
    assert.equal((await world("count")).requests, 1, verb);
  }
});

test("nobody there is told after a while", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${server.address().port}`;
  server.close();
  const nobody = new Client({ url, retryFor: 0.3 });
  const began = Date.now();
  await assert.rejects(nobody.call("job.create"), (why) => why instanceof mycojobs.Unavailable && !why.sent && why.remedy.includes("mycojobs coordinator"));
  assert.ok(Date.now() - began > 100, "it was tried again: nothing can have happened");
});
