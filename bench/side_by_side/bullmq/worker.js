// A BullMQ worker. Arguments: socket, concurrency, "process" for the sandboxed processor. SIGTERM closes it.
'use strict';
const path = require('path');
const {Queue, Worker} = require('bullmq');
const {run} = require('./work');

const [socket, concurrency, where] = process.argv.slice(2);
const connection = {path: socket, maxRetriesPerRequest: null};
const queue = new Queue('bench', {connection});

async function here(job) {
  await run(job);
  if (job.data.left > 0) {
    const {ident, left} = job.data;
    await queue.add('noop', {ident: ident + 1, left: left - 1}, {jobId: `chain-${ident + 1}`});
  }
}

const processor = where === 'process' ? path.join(__dirname, 'sandboxed.js') : here;
const worker = new Worker('bench', processor, {connection, concurrency: Number(concurrency)});
worker.on('error', (error) => console.error(error.message));
process.on('SIGTERM', async () => {
  await worker.close();
  process.exit(0);
});
