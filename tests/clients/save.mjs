// Saves artifacts with the Node client. Arguments: the key of a job, a folder. Prints for each artifact its name and the
// error of save(), or "" if it was saved.
import { join } from "node:path";
import { Client } from "../../clients/node/index.js";

const [key, folder] = process.argv.slice(2);
const artifacts = await new Client({ retryFor: process.env.RETRY_FOR ?? "30s" }).job(key).artifacts();
const results = {};
for (const [index, artifact] of artifacts.entries()) {
  results[artifact.name] = await artifact.save(join(folder, `file${index}`)).then(() => "", (error) => `${error.name} ${error.word}`);
}
console.log(JSON.stringify(results));
