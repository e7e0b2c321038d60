const fs = require("fs");
fs.writeFileSync(process.env.MYCOJOBS_RESULT, JSON.stringify({ greeting: process.env.GREETING, job: process.env.MYCOJOBS_JOB_ID }));
