const fs = require("fs");
const inputs = JSON.parse(fs.readFileSync(process.env.MYCOJOBS_INPUTS, "utf8"));
fs.writeFileSync(process.env.MYCOJOBS_RESULT, JSON.stringify({ size: inputs.build.size }));
