// The client: reads orders as JSON lines, answers each with a JSON line. Argument: socket.
'use strict';
const readline = require('readline');
const {Queue, QueueEvents} = require('bullmq');
const {now} = require('./clock');

const connection = {path: process.argv[2], maxRetriesPerRequest: null};
const queue = new Queue('bench', {connection});
const events = new QueueEvents('bench', {connection});
const pause = new Int32Array(new SharedArrayBuffer(4));

// Until a moment: timers count in milliseconds, so the last one is slept in place.
async function until(moment) {
  const left = moment - now();
  if (left > 0.002) await new Promise((done) => setTimeout(done, (left - 0.0015) * 1e3));
  const rest = moment - now();
  if (rest > 0) Atomics.wait(pause, 0, 0, rest * 1e3);
}

const orders = {
  async fill({kind, first, count}) {
    for (let at = 0; at < count; at += 1000) {
      const some = Array.from({length: Math.min(1000, count - at)}, (_, i) => ({name: kind, data: {ident: first + at + i}}));
      await queue.addBulk(some);
    }
    return {};
  },
  async round_trips({first, count}) {
    const took = [];
    for (let i = 0; i < count; i++) {
      const begin = now();
      const job = await queue.add('noop', {ident: first + i});
      await job.waitUntilFinished(events);
      took.push(now() - begin);
    }
    return {took};
  },
  async at_rate({first, count, rate}) {
    const begin = now() + 0.05;
    const sent = [];
    for (let i = 0; i < count; i++) {
      await until(begin + i / rate);
      sent.push(queue.add('noop', {ident: first + i}));
      await new Promise(setImmediate);  // the socket is written and read here
    }
    await Promise.all(sent);
    return {begin};
  },
  async chain({first, count}) {
    const last = `chain-${first + count - 1}`;
    const ended = new Promise((done) => {
      const hear = ({jobId}) => {
        if (jobId !== last) return;
        events.off('completed', hear);
        done();
      };
      events.on('completed', hear);
    });
    const begin = now();
    await queue.add('noop', {ident: first, left: count - 1}, {jobId: `chain-${first}`});
    await ended;
    return {took: now() - begin};
  },
};

async function main() {
  await events.waitUntilReady();
  await queue.waitUntilReady();
  console.log(JSON.stringify({ready: true}));
  for await (const line of readline.createInterface({input: process.stdin})) {
    const order = JSON.parse(line);
    let answer;
    try {
      answer = await orders[order.do](order);
    } catch (error) {
      answer = {error: error.message};
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}
main();
