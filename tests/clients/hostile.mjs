// The Node client against the strangers of stranger.py: hostile.mjs URL. Standard input: the cases, with the time to wait; standard output: how each call,
// wait and stream ended, as JSON. Any error that is not the client's own ends the program.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
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
await assert.rejects(new Client({ url, retryFor: 0 }).call("job.get", { id: 1n }), Invalid);

// Times that no timer has: none of them is over at once.
const patient = new Client({ url: "http://127.0.0.1:1", retryFor: Infinity });
for (const timeout of [Infinity, 30 * 24 * 3600_000, null]) {
  await assert.rejects(patient.job("1:7").wait({ timeout, signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
}
await assert.rejects(patient.call("job.get", {}, { answerWithin: Infinity, signal: AbortSignal.timeout(300) }), { name: /TimeoutError|AbortError/ });

// A signal that lives long is given to many calls, and keeps none of them.
const lives = new AbortController();
let [added, removed] = [0, 0];
for (const [name, count] of [["addEventListener", () => added++], ["removeEventListener", () => removed++]]) {
  const was = lives.signal[name].bind(lives.signal);
  lives.signal[name] = (...words) => (count(), was(...words));
}
const client = new Client({ url: `${url}/lossy`, retryFor: 1000 });
for (let i = 0; i < 5; i++) await client.call("job.get", { i }, { signal: lives.signal });
assert.ok(added >= 10 && added === removed, `${added} ${removed}`);
console.log(JSON.stringify(shown));
