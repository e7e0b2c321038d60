// call() of the Node client with every method that is named on standard input: what it was answered, as JSON.
import { readFileSync } from "node:fs";
import { Client, MycojobsError } from "../../clients/node/index.js";

const client = new Client();
const told = {};
for (const method of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    await client.call(method, {});
    told[method] = 0;
  } catch (why) {
    if (!(why instanceof MycojobsError)) throw why;
    told[method] = why.code;
  }
}
console.log(JSON.stringify(told));
