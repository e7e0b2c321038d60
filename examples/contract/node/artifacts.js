const fs = require("fs");
const folder = process.env.MYCOJOBS_ARTIFACTS + "/dir";
fs.mkdirSync(folder);
fs.writeFileSync(folder + "/report.txt", "a report\n");
