// Calls call() of the Node client with each [method, parameters] of standard input. Prints the codes of the responses
// by method, as JSON.
import { readFileSync } from "node:fs";
import { Client, MycojobsError } from "../../clients/node/index.js";

const client = new Client();
const shown = {};
const calls = JSON.parse(readFileSync(0, "utf8")).map(async ([method, params]) => {
  try {
    await client.call(method, params);
    shown[method] = 0;
  } catch (why) {
    if (!(why instanceof MycojobsError)) throw why;
    shown[method] = why.code;
  }
});
await Promise.all(calls);
console.log(JSON.stringify(shown));
