// Runs a job: writes the ledger line (delivery.StartLedger), then does the work of its kind. Used by both BullMQ workers.
'use strict';
const fs = require('fs');
const {now} = require('./clock');

const ledger = fs.openSync(process.env.BENCH_LEDGER, 'a');

function burn(seconds) {
  const begin = process.cpuUsage();
  for (;;) {
    const used = process.cpuUsage(begin);
    if ((used.user + used.system) / 1e6 >= seconds) return;
  }
}

const kinds = {
  noop: () => {},
  cpu: () => burn(0.3),
  sleep: () => new Promise((done) => setTimeout(done, 100)),
  hang: () => new Promise((done) => setTimeout(done, 3600e3)),
};

exports.run = async (job) => {
  fs.writeSync(ledger, `${job.data.ident} ${now()}\n`);
  await kinds[job.name]();
};
