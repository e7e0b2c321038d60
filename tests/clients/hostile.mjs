// The Node client with the servers of stranger.py: hostile.mjs URL. Standard input has the cases with their time-outs.
// Standard output is JSON with the end of each call, wait and stream. An error that is not of the client's classes ends
// the program.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Client, Invalid, MycojobsError } from "../../clients/node/index.js";

const [, , url] = process.argv;
const [answers, streams] = JSON.parse(readFileSync(0, "utf8"));

async function answer(doing) {
  try {
    await doing();
    return null;
  } catch (why) {
    if (!(why instanceof MycojobsError)) throw why;
    assert.doesNotMatch(why.message, /[\p{Cc}\p{Cf}\p{Cs}]/u);
    return why.constructor === MycojobsError ? "Error" : why.constructor.name;
  }
}

const shown = { calls: {}, waits: {}, flows: {}, events: {} };
for (const [name, timeout] of answers) {
  const client = new Client({ url: `${url}/${name}`, token: "t", context: 1, retryFor: 0 });
  shown.calls[name] = await answer(() => client.call("job.get", { id: "1:7" }));
  shown.waits[name] = await answer(() => client.job("1:7").wait({ timeout }));
  shown.flows[name] = await answer(() => client.flow(7).wait({ timeout }));
}
for (const name of streams) {
  const client = new Client({ url: `${url}/${name}`, token: "t", context: 1, retryFor: 0 });
  const texts = [];
  const end = await answer(async () => {
    for await (const event of client.events({ job: "1:7", after: "3\r\nX-Evil: yes" })) texts.push(event.data.text ?? null);
  });
  shown.events[name] = [texts, end];
}

for (const wrong of ["http://h:99999", "http://[", "ftp://h", "h"]) assert.throws(() => new Client({ url: wrong }), Invalid);
assert.throws(() => new Client({ token: "a\r\nb" }), Invalid);
const circular = {};
circular.self = circular;
await assert.rejects(new Client({ url, retryFor: 0 }).call("job.get", { circular }), Invalid);
for (const timeout of [-1, NaN, "5", "soon", "1.5s", {}, true]) {
  await assert.rejects(new Client(url).job("1:7").wait({ timeout }), { name: "Invalid", message: /timeout.*time span.*"5m"/ });
}

// Time-outs longer than a timer supports. They must not expire at once.
const patient = new Client({ url: "http://127.0.0.1:1", retryFor: Infinity });
for (const timeout of [Infinity, 30 * 24 * 3600, "30d", null]) {
  await assert.rejects(patient.job("1:7").wait({ timeout, signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
}
await assert.rejects(patient.call("job.get", {}, { answerWithin: Infinity, signal: AbortSignal.timeout(300) }), { name: /TimeoutError|AbortError/ });

// A proxy may send 502 after the change was made, so only a 503 of the server itself is repeated.
for (const [status, repeated] of [[502, false], [500, false], [504, false], [503, true]]) {
  let requests = 0;
  const server = createServer((request, response) => {
    requests++;
    request.resume();
    response.writeHead(status).end("no");
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const change = new Client({ url: `http://127.0.0.1:${server.address().port}`, retryFor: "2s" }).call("job.create", { script: "x" });
  await assert.rejects(change, { name: "Unavailable", sent: !repeated });
  assert.equal(requests > 1, repeated, `HTTP ${status}: ${requests} requests`);
  server.closeAllConnections();
  server.close();
}

// Times are sent in seconds, whatever their unit. A follower that receives no lines asks again.
{
  const asked = [];
  const pages = [{ lines: [], after_seq: 0, ended: false }, { lines: [{ seq: 1, text: "a" }], after_seq: 1, ended: false }, { lines: [], after_seq: 1, ended: true }];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    const { id, method, params } = JSON.parse(body);
    asked.push(params);
    response.end(JSON.stringify({ jsonrpc: "2.0", id, result: method === "job.start" ? { key: "job:1:7" } : pages.shift() }));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const client = new Client(`http://127.0.0.1:${server.address().port}`);
  for (const [timeout, seconds] of [["1500ms", 1.5], ["30s", 30], ["5m", 300], ["2h", 7200], ["1d", 86400], [3, 3]]) {
    await client.submit("x", { timeout });
    assert.equal(asked.pop().timeout, seconds, timeout);
  }
  const texts = [];
  for await (const line of client.job("1:7").logs({ follow: true })) texts.push(line.text);
  assert.deepEqual(texts, ["a"]);
  server.closeAllConnections();
  server.close();
}

// A long-lived signal is passed to many calls and must not keep references to them.
const lives = new AbortController();
let [added, removed] = [0, 0];
for (const [name, count] of [["addEventListener", () => added++], ["removeEventListener", () => removed++]]) {
  const was = lives.signal[name].bind(lives.signal);
  lives.signal[name] = (...words) => (count(), was(...words));
}
const client = new Client({ url: `${url}/lossy`, retryFor: "1s" });
for (let i = 0; i < 5; i++) await client.call("job.get", { i }, { signal: lives.signal });
assert.ok(added >= 10 && added === removed, `${added} ${removed}`);
console.log(JSON.stringify(shown));
