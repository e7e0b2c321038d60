// Monotonic seconds, the same clock as Python's time.monotonic().
'use strict';
exports.now = () => Number(process.hrtime.bigint()) / 1e9;
