// The processor of the sandboxed worker: runs in child processes, which BullMQ uses again.
'use strict';
const {run} = require('./work');
module.exports = run;
