// Client of mycojobs: submits jobs and flows, waits for them, and reads their results and logs. The protocol is
// described by the server's contract: GET /openrpc.json, docs/rpc.md. Types: index.d.ts.
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { parseJson, stringifyJson } from "./exact_json.js";

const READS = new Set(
  ("get list page status result logs explain dag timeline history wait ping version info discover check overview rights verify doctor refusals " +
    "cells show facts dead").split(" "),
);
const ANSWER_MS = 60_000;  // time-out of a response
const RETRY_MS = 30_000;
const SILENCE_MS = 45_000;  // a stream of events has a sign of life every 15 s
const MOST_CALLS = 8;  // simultaneous calls; event streams and followed logs are not included
const MOST_BYTES = 16 << 20;  // maximum size of a request
const ANSWER_BYTES = 64 << 20;
const EVENT_CHARACTERS = 4 << 20;
const LOG_WAIT_MS = 20_000;
const [WAIT_MS, SHORT_WAIT_MS, MOST_WAITS, MOST_OF_A_WAIT] = [20_000, 250, 4, 1000];
const MOST_TIMER_MS = 2 ** 31 - 1;  // Node treats longer times as 1 ms
const EMPTY_MS = 500;  // minimum interval between requests with empty responses

// Returns true if a call may be sent again after an unknown outcome. `key` is an idempotency key only in flow.*;
// elsewhere it names an instance.
function harmless(method, params) {
  const [group, verb] = method.split(".");
  return READS.has(verb) || method === "job.cancel" || Boolean(params.idempotency_key || (group === "flow" && params.key));
}

// Escapes control characters and direction marks in untrusted text for a terminal.
const screen = (text) =>
  text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (c) => (c === "\n" ? c : `\\u{${c.codePointAt(0).toString(16)}}`));

/** `text`: the original text; `message`: safe for a terminal, with the remedy. */
export class MycojobsError extends Error {
  constructor(text, { code = 0, word = "", field = "", remedy = "", cause } = {}) {
    super(screen(remedy ? `${text} (${remedy})` : text), { cause });
    Object.assign(this, { name: new.target.name, text, code, word, field, remedy });
  }
}
export class Invalid extends MycojobsError {}
export class NotFound extends MycojobsError {}
export class Conflict extends MycojobsError {}
export class Denied extends MycojobsError {}
export class Unavailable extends MycojobsError {
  sent = true;  // false: the server cannot have executed the call
}
export class TooLarge extends MycojobsError {}
export class Unsupported extends MycojobsError {}
export class WaitTimeout extends MycojobsError {}
export class JobFailed extends MycojobsError {
  constructor(state) {
    super(`${state.key} ended as ${state.detail || "error"}: ${state.error}`, { word: "job_failed" });
    Object.assign(this, { state, detail: state.detail, errorInfo: state.error_info ?? {} });
  }
}
export class JobCancelled extends JobFailed {}
export class FlowFailed extends MycojobsError {
  constructor(state) {
    super(`flow ${state.id} ended as ${state.detail || "error"}: ${state.error}`, { word: "flow_failed" });
    Object.assign(this, { state, detail: state.detail });
  }
}
export const CODES = {
  "-32602": Invalid, "-32001": NotFound, "-32002": Conflict, "-32003": Denied,
  "-32004": Unavailable, "-32005": TooLarge, "-32006": Unsupported,
};

const is = (value, kind) => (kind === "array" ? Array.isArray(value) : value !== null && typeof value === kind && !Array.isArray(value));
const text = (value) => (typeof value === "string" ? value : "");

// The response is not from a mycojobs server, or from one with another version.
const noAnswer = (what, answer) =>
  new MycojobsError(`${what}: the response is not in the contract: ${String(answer).slice(0, 100)}`, { word: "http", remedy: "check which program runs there" });

// Returns a member of a response after a type check.
function member(method, answer, name, kind) {
  if (!is(answer, "object") || !is(answer[name], kind)) throw noAnswer(method, is(answer, "object") ? `no ${name}` : answer);
  return answer[name];
}

function readError(error) {
  const [code, data] = [member("error", error, "code", "number"), is(error.data, "object") ? error.data : {}];
  const more = { code, word: text(data.word), field: text(data.field), remedy: text(data.remedy) };
  return new (CODES[code] ?? MycojobsError)(member("error", error, "message", "string"), more);
}

// Returns the error of a response with a status other than 200. 503: refused before processing; other codes may be from
// a proxy.
function refused(status, said) {
  let error;
  try {
    error = readError(parseJson(said).error);
  } catch {
    error = new (status >= 500 ? Unavailable : MycojobsError)(`HTTP ${status}: ${said.slice(0, 200)}`, { word: "http" });
  }
  if (error instanceof Unavailable) error.sent = status !== 503;
  return error;
}

function readAnswer(said, id, url) {
  let [answer, error] = [undefined, undefined];
  try {
    answer = parseJson(said);
    if (answer.error !== undefined && (answer.id === id || answer.id === null)) error = readError(answer.error);
    else if (answer.id === id && answer.result !== undefined) return answer.result;
  } catch {
    // reported below
  }
  throw error ?? noAnswer(url, said);
}

async function textOf(answer) {
  const pieces = [];
  let size = 0;
  for await (const piece of answer.body ?? []) {
    if ((size += piece.length) > ANSWER_BYTES) {
      throw new TooLarge(`the response is over the limit of ${ANSWER_BYTES} bytes`, { code: -32005, word: "too_large", remedy: "request less at a time" });
    }
    pieces.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(pieces));
}

const invalid = (text, remedy) => new Invalid(text, { code: -32602, word: "invalid", remedy });

// Checked before a call is sent: a misspelled option would be ignored otherwise.
function checkOptions(what, options, known) {
  if (!is(options, "object")) throw invalid(`${what}: the options are not an object`, `give {${known.join(", ")}}`);
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) throw invalid(`${what}: unknown option ${JSON.stringify(name)}`, `the options are ${known.join(", ")}`);
  }
  return options;
}
const LIMITS = ["timeout", "signal"];
// Parameters of job.start; type, env and depends are short forms of script_type, env_vars and dependends.
const SUBMIT_OPTIONS = (
  "type env depends script_type env_vars dependends id context_id caller_id name timeout retries prerequisites run_at_ms priority " +
  "queue_timeout_ms idempotency_key concurrency_key concurrency_limit inputs notify policy traceparent"
).split(" ");

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
// Converts a time span to milliseconds: a number of seconds, or a text with a unit. Absent stays absent.
function milliseconds(name, span) {
  if (span == null) return undefined;
  if (typeof span === "number" && span >= 0) return span * 1000;
  const [, number, unit] = (typeof span === "string" && /^(\d+)(ms|[smhd])$/.exec(span)) || [];
  if (unit) return number * UNIT_MS[unit];
  throw invalid(`${name}: ${String(span).slice(0, 40)} is not a time span`, 'give seconds, or a text such as "500ms", "30s", "5m", "2h" or "1d"');
}

function protocolOf(url) {
  try {
    return new URL(url).protocol;
  } catch {
    return "";
  }
}

function bodyOf(id, method, params) {
  let body;
  try {
    body = stringifyJson({ jsonrpc: "2.0", id, method, params });
  } catch (why) {
    throw invalid(`${method}: a parameter is not JSON: ${why.message}`);
  }
  // the server would close the connection at once, and its response could be lost
  const size = Buffer.byteLength(body);
  if (size <= MOST_BYTES) return body;
  throw new TooLarge(`${method}: ${size} bytes are over the limit of ${MOST_BYTES}`, { code: -32005, word: "too_large", remedy: "send less at a time" });
}

// Calls `late` after `ms`, which may exceed the limit of a timer or be Infinity. Returns a function that cancels it.
function after(ms, late) {
  let timer;
  const go = (left) => {
    timer = setTimeout(() => (left > MOST_TIMER_MS ? go(left - MOST_TIMER_MS) : late()), Math.min(left, MOST_TIMER_MS));
  };
  go(ms);
  return () => clearTimeout(timer);
}

// Returns a signal for fetch that is aborted by the caller's signal, or `ms` after the last refresh(). end() removes
// all listeners.
function patience(ms, signal) {
  const own = new AbortController();
  const stop = () => own.abort(signal.reason);
  const silence = setTimeout(() => own.abort(new Error(`no data was received for ${ms} ms`)), Math.min(ms, MOST_TIMER_MS));
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop);
  const end = () => {
    clearTimeout(silence);
    signal?.removeEventListener("abort", stop);
  };
  return { signal: own.signal, refresh: () => silence.refresh(), end };
}

function lost(why) {
  if (why instanceof MycojobsError) return why;
  const error = new Unavailable(`the server does not answer: ${why.cause?.message || why.cause?.code || why.message}`, {
    code: -32004, word: "unavailable", cause: why, remedy: "see whether `mycojobs coordinator` or `dev` runs there",
  });
  error.sent = !["ECONNREFUSED", "ENOTFOUND", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"].includes(why.cause?.code);
  return error;
}

export class Client {
  #url; #headers; #retryMs; #free = MOST_CALLS; #queue = []; #number = 0;

  /** options: a server's address, or {url, token, context, retryFor}. */
  constructor(options = {}) {
    const given = typeof options === "string" || options instanceof URL ? { url: options } : options;
    let { url, token, context, retryFor } = checkOptions("Client", given, ["url", "token", "context", "retryFor"]);
    retryFor = milliseconds("retryFor", retryFor) ?? RETRY_MS;
    this.#url = String(url || process.env.COORDINATOR_URL || "http://127.0.0.1:9652").replace(/\/+$/, "");
    token ||= process.env.MYCOJOBS_TOKEN;
    if (!/^https?:$/.test(protocolOf(this.#url))) throw invalid(`"${this.#url}" is not an address of a server`, "give http://HOST:PORT");
    if (/[^\x20-\x7e]/.test(token ?? "")) throw invalid("the token has invalid characters");
    this.#headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    this.context = context;
    this.#retryMs = retryFor;
    this.waits = { jobs: new Waits(this, "jobs.wait", "jobs", "key"), flows: new Waits(this, "flows.wait", "flows", "id") };
    Object.defineProperty(this, "waits", { enumerable: false });
  }

  /** Calls any method of the contract. repeat: whether to send the call again without a response; undefined: if harmless. */
  async call(method, params = {}, options = {}) {
    const { repeat, signal, answerWithin } = checkOptions("call", options, ["repeat", "signal", "answerWithin"]);
    const answerMs = milliseconds("answerWithin", answerWithin) ?? ANSWER_MS;
    const until = Date.now() + this.#retryMs;
    for (let ms = 50; ; ms = Math.min(ms * 2, 2000)) {
      try {
        return await this.#once(method, params, signal, answerMs);
      } catch (why) {
        const again = why instanceof Unavailable && (!why.sent || (repeat ?? harmless(method, params)));
        if (!again || Date.now() + ms > until) throw why;
      }
      // random, so that clients do not retry simultaneously
      await pause(ms * (0.5 + Math.random() / 2), undefined, { signal });
    }
  }

  async #once(method, params, signal, answerMs) {
    const shared = !method.endsWith(".logs");  // a followed log would block other calls
    if (shared) await this.#enter();
    try {
      const id = ++this.#number;
      const body = bodyOf(id, method, params);
      const { status, said } = await this.#post(body, patience(answerMs, signal));
      if (status !== 200) throw refused(status, said);
      return readAnswer(said, id, this.#url);
    } catch (why) {
      signal?.throwIfAborted();
      throw lost(why);
    } finally {
      if (shared) this.#leave();
    }
  }

  async #post(body, limit) {
    try {
      const answer = await fetch(`${this.#url}/rpc`, { method: "POST", headers: this.#headers, body, redirect: "error", signal: limit.signal });
      return { status: answer.status, said: await textOf(answer) };
    } finally {
      limit.end();
    }
  }

  async #enter() {
    if (this.#free > 0) this.#free--;
    else await new Promise((go) => this.#queue.push(go));
  }

  #leave() {
    const next = this.#queue.shift();
    if (next) next();
    else this.#free++;
  }

  /** Queues a script. */
  async submit(script, options = {}) {
    const { type = "python", env, depends, timeout, ...more } = checkOptions("submit", options, SUBMIT_OPTIONS);
    const params = {
      script, script_type: type, env_vars: env, context_id: this.context, idempotency_key: randomUUID(), ...more,
      ...(timeout != null && { timeout: milliseconds("timeout", timeout) / 1000 }),
      ...(depends && { dependends: depends.map((each) => each.id ?? each) }),
    };
    return new Job(this, member("job.start", await this.call("job.start", params), "key", "string"), params.context_id);
  }

  job(key) {
    return new Job(this, String(key), this.context);
  }

  /** Creates a flow from a definition and starts it. */
  async flowStart(definition, options = {}) {
    const known = ["inputs", "env", "notify", "idempotencyKey", "traceparent"];
    const { inputs, env, notify, idempotencyKey = randomUUID(), traceparent } = checkOptions("flowStart", options, known);
    const context_id = this.context;
    const request = { definition, inputs, env_vars: env, notify, context_id, idempotency_key: idempotencyKey, traceparent };
    const id = member("flow.create", await this.call("flow.create", request), "id", "number");
    await this.call("flow.start", { id, context_id }, { repeat: true });
    return this.flow(id);
  }

  flow(id) {
    return new Flow(this, Number(id), this.context);
  }

  /** Yields events as they occur: of a flow or a job until its end, otherwise of all flows of the context. */
  async *events(options = {}) {
    const { flow, job, after: first = "", signal } = checkOptions("events", options, ["flow", "job", "after", "signal"]);
    let after = first;
    const context = this.context ?? member("system.info", await this.call("system.info"), "contexts", "array")[0] ?? 1;
    const query = { context, ...(flow && { flow }), ...(job && { job }) };
    let until = Date.now() + this.#retryMs;
    while (true) {
      try {
        for await (const event of this.#stream({ ...query, ...(after && { after }) }, signal)) {
          [after, until] = [event.id || after, Date.now() + this.#retryMs];
          if (event.kind === "gone") throw new Denied(String(event.data.message), { code: -32003, word: "denied" });
          if (event.kind) yield event;
          const over = flow && event.kind === "flow" && ["finished", "error"].includes(event.data.status);
          if (over || (job && event.data.ended)) return;
        }
      } catch (why) {
        if (!(why instanceof Unavailable) || Date.now() > until) throw why;
      }
      await pause(250 + Math.random() * 500, undefined, { signal });
    }
  }

  // Events of one connection; an event without a kind is a sign of life.
  async *#stream(query, signal) {
    const limit = patience(SILENCE_MS, signal);
    try {
      const url = `${this.#url}/events?${new URLSearchParams(query)}`;
      const answer = await fetch(url, { headers: this.#headers, redirect: "error", signal: limit.signal });
      if (answer.status !== 200) throw refused(answer.status, await textOf(answer));
      let [rest, fields] = ["", {}];
      for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
        limit.refresh();
        const lines = (rest + piece).split("\n");
        rest = lines.pop();
        if (rest.length > EVENT_CHARACTERS) throw new Error("an event without an end");
        for (const line of lines) {
          if (line) {
            const [, name, value] = /^([^:]*):? ?([^]*)$/.exec(line);
            fields[name] = value;
          } else {
            const data = parseJson(fields.data ?? "{}");
            if (!is(data, "object")) throw new Error("an event that is not an object");
            yield { kind: fields.data ? fields.event ?? "message" : "", id: fields.id ?? "", data };
            fields = {};
          }
        }
      }
    } catch (why) {
      signal?.throwIfAborted();
      throw lost(why);
    } finally {
      limit.end();
    }
  }
}

export class Job {
  #client; #context;

  constructor(client, key, context) {
    [this.#client, this.#context, this.key] = [client, context, key.replace(/^job:/, "")];
  }
  get id() {
    return Number(this.key.split(":").pop());
  }
  #call(method, more, how) {
    return this.#client.call(method, { id: this.key, context_id: this.#context, ...more }, how);
  }
  status() {
    return this.#call("job.status");
  }
  /** Waits for the end and returns the JobState, also of a failed job. */
  async wait(limits = {}) {
    const { timeout, signal } = checkOptions("wait", limits, LIMITS);
    const timeoutMs = milliseconds("timeout", timeout);
    if (!this.key.includes(":")) this.key = member("job.status", await this.status(), "key", "string").replace(/^job:/, "");
    return this.#client.waits.jobs.wait(`job:${this.key}`, this.#context, `job ${this.key}`, timeoutMs, signal);
  }
  /** Waits for the end and returns the result. JobFailed, JobCancelled: the job has not finished. */
  async result(limits = {}) {
    await this.wait(limits);
    const state = await this.#call("job.result");
    if (member("job.result", state, "status", "string") !== "finished") throw new (state.detail === "cancelled" ? JobCancelled : JobFailed)(state);
    return member("job.result", state, "result", "object");
  }
  /** Yields the log lines: the existing ones, or with `follow` all until the end of the job. */
  async *logs(options = {}) {
    const { follow = false, after: first = 0, signal } = checkOptions("logs", options, ["follow", "after", "signal"]);
    let after = first;
    while (true) {
      const began = Date.now();
      const page = await this.#call("job.logs", { after_seq: after, wait_ms: follow ? LOG_WAIT_MS : 0 }, { signal });
      const [lines, last] = [member("job.logs", page, "lines", "array"), member("job.logs", page, "after_seq", "number")];
      if (lines.length && last <= after) throw noAnswer("job.logs", `line ${last} again`);
      yield* lines;
      after = last;
      if (page.ended || !(follow || lines.length)) return;
      if (!lines.length) await pause(Math.max(0, began + EMPTY_MS - Date.now()), undefined, { signal });
    }
  }
  cancel() {
    return this.#call("job.cancel");
  }
  retry() {
    return this.#call("job.retry");
  }
  /** Starts the same job again as a new job of the same caller, if it has ended. */
  async restart() {
    return new Job(this.#client, member("job.restart", await this.#call("job.restart", { idempotency_key: randomUUID() }), "key", "string"), this.#context);
  }
  explain() {
    return this.#call("job.explain");
  }
}

export class Flow {
  #client; #context;

  constructor(client, id, context) {
    [this.#client, this.#context, this.id] = [client, context, id];
  }
  #call(method, more) {
    return this.#client.call(method, { id: this.id, context_id: this.#context, ...more });
  }
  #control(method, more) {
    return this.#call(method, { key: randomUUID(), ...more });
  }
  status() {
    return this.#call("flow.result");
  }
  dag() {
    return this.#call("flow.dag");
  }
  explain() {
    return this.#call("flow.explain");
  }
  /** Waits for the end and returns the FlowResult, also of a failed flow. */
  async wait(limits = {}) {
    const { timeout, signal } = checkOptions("wait", limits, LIMITS);
    return this.#client.waits.flows.wait(this.id, this.#context, `flow ${this.id}`, milliseconds("timeout", timeout), signal);
  }
  /** Waits for the end and returns the results of the jobs, by <node>.<key>. FlowFailed: the flow has not finished. */
  async result(limits = {}) {
    const state = await this.wait(limits);
    if (member("flows.wait", state, "status", "string") !== "finished") throw new FlowFailed(state);
    return member("flows.wait", state, "result", "object");
  }
  approve(name, comment) {
    return this.#control("flow.approve", { name, comment });
  }
  reject(name, comment) {
    return this.#control("flow.reject", { name, comment });
  }
  signal(name, payload) {
    return this.#control("flow.signal", { name, payload });
  }
  cancel(comment) {
    return this.#control("flow.cancel", { comment });
  }
  pause(comment) {
    return this.#control("flow.pause", { comment });
  }
  resume(node) {
    return this.#control("flow.resume", { node });
  }
  /** allowIrreversible: also if a new child flow repeats a finished node that is marked irreversible. */
  retry(node, options = {}) {
    const { allowIrreversible } = checkOptions("retry", options, ["allowIrreversible"]);
    return this.#control("flow.retry", { node, ...(allowIrreversible && { allow_irreversible: true }) });
  }
}

// Combines any number of waits in at most MOST_WAITS calls: each call waits for all entries that no other call
// contains. The last call is short, so that new waits are not delayed for long.
class Waits {
  #client; #method; #param; #name;
  #waiting = new Map();  // place -> {context, key, waiters}
  #unasked = new Set();
  #calls = new Set();  // AbortControllers

  constructor(client, method, param, name) {
    [this.#client, this.#method, this.#param, this.#name] = [client, method, param, name];
  }

  async wait(key, context, what, timeoutMs, signal) {
    signal?.throwIfAborted();
    const place = `${context ?? ""} ${key}`;
    if (!this.#waiting.has(place)) {
      this.#waiting.set(place, { context, key, waiters: new Set() });
      this.#unasked.add(place);
    }
    let waiter, stop;
    let end = () => {};
    try {
      return await new Promise((resolve, reject) => {
        waiter = { resolve, reject };
        this.#waiting.get(place).waiters.add(waiter);
        const late = () => reject(new WaitTimeout(`${what} has not ended after ${timeoutMs / 1000} s`, { word: "wait_timeout", remedy: "it continues: wait again, or cancel it" }));
        if (timeoutMs !== undefined) end = after(timeoutMs, late);
        stop = () => reject(signal.reason);
        signal?.addEventListener("abort", stop);
        this.#ask();
      });
    } finally {
      end();
      signal?.removeEventListener("abort", stop);
      this.#forget(place, waiter);
    }
  }

  #forget(place, waiter) {
    const waiters = this.#waiting.get(place)?.waiters;
    waiters?.delete(waiter);
    if (waiters?.size === 0) {
      this.#waiting.delete(place);
      this.#unasked.delete(place);
    }
    if (this.#waiting.size === 0) for (const call of this.#calls) call.abort();
  }

  #ask() {
    if (this.#unasked.size === 0 || this.#calls.size >= MOST_WAITS) return;
    const { context } = this.#waiting.get([...this.#unasked][0]);
    const places = [...this.#unasked].filter((each) => this.#waiting.get(each).context === context).slice(0, MOST_OF_A_WAIT);
    for (const place of places) this.#unasked.delete(place);
    const stop = new AbortController();
    this.#calls.add(stop);
    this.#one(context, places, this.#calls.size === MOST_WAITS ? SHORT_WAIT_MS : WAIT_MS, stop);
  }

  async #one(context, places, wait_ms, stop) {
    const began = Date.now();
    const keys = places.map((place) => this.#waiting.get(place).key);
    const settle = (key, how) => {
      const place = `${context ?? ""} ${key}`;
      for (const waiter of this.#waiting.get(place)?.waiters ?? []) how(waiter);
      this.#waiting.delete(place);
    };
    try {
      const states = await this.#client.call(this.#method, { [this.#param]: keys, context_id: context, wait_ms }, { signal: stop.signal });
      if (!is(states, "array")) throw noAnswer(this.#method, states);
      const asked = new Set(keys);  // ignore entries that were not requested
      const ended = states.map((state) => [member(this.#method, state, this.#name, typeof keys[0]), state]).filter(([key]) => asked.has(key));
      for (const [key, state] of ended) settle(key, (waiter) => waiter.resolve(state));
      if (!ended.length) await pause(Math.max(0, began + Math.min(EMPTY_MS, wait_ms) - Date.now()), undefined, { signal: stop.signal });
    } catch (why) {
      // "jobs[3]": this entry cannot be waited for; the others can
      const one = [NotFound, Denied, Invalid].some((kind) => why instanceof kind) && /^\w+\[(\d{1,4})\]$/.exec(why.field);
      if (!stop.signal.aborted) for (const key of one && one[1] < keys.length ? [keys[one[1]]] : keys) settle(key, (waiter) => waiter.reject(why));
    }
    this.#calls.delete(stop);
    for (const place of places) if (this.#waiting.has(place)) this.#unasked.add(place);
    this.#ask();
  }
}
