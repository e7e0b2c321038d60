// Submits jobs and flows to mycojobs, waits for them, and reads what they say. Everything that it knows is in the contract of the
// server: GET /openrpc.json, docs/rpc.md. Types: index.d.ts.
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

const READS = new Set("get list status result logs explain dag timeline wait ping version info discover".split(" "));
const ANSWER_MS = 60_000; // a server that is silent for longer is away
const SILENCE_MS = 45_000; // a stream of events says something every 15 s
const MOST_CALLS = 8; // at one time; a stream of events or a log that is followed is one more
const MOST_BYTES = 16 << 20; // of a call
const LOG_WAIT_MS = 20_000;
const [WAIT_MS, SHORT_WAIT_MS, MOST_WAITS, MOST_OF_A_WAIT] = [20_000, 250, 4, 1000];

// Text of outsiders for a terminal: control codes and marks of direction as escapes.
const screen = (text) =>
  text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (c) => (c === "\n" ? c : `\\u{${c.codePointAt(0).toString(16)}}`));

/** `text`: as it was said; `message`: safe for a terminal, with the remedy. */
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
  sent = true; // false: nothing can have happened
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

const readError = ({ code = 0, message = "", data }) =>
  new (CODES[code] ?? MycojobsError)(message, { code, word: data?.word, field: data?.field, remedy: data?.remedy });

// What an answer says that has no 200: refused before it was looked at.
function refused(status, text) {
  let error;
  try {
    error = readError(JSON.parse(text).error);
  } catch {
    error = new (status >= 500 ? Unavailable : MycojobsError)(`HTTP ${status}: ${text.slice(0, 200)}`, { word: "http" });
  }
  if (error instanceof Unavailable) error.sent = false;
  return error;
}

function readAnswer(text) {
  try {
    const answer = JSON.parse(text);
    if ("result" in answer || answer.error) return answer;
  } catch {
    // told below
  }
  throw new MycojobsError(`the server answers what is no JSON-RPC: ${text.slice(0, 100)}`, { word: "http" });
}

function lost(why) {
  const error = new Unavailable(`the server does not answer: ${why.cause?.message || why.cause?.code || why.message}`, {
    code: -32004, word: "unavailable", cause: why, remedy: "see whether `mycojobs coordinator` or `dev` runs there",
  });
  error.sent = !["ECONNREFUSED", "ENOTFOUND", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"].includes(why.cause?.code);
  return error;
}

export class Client {
  #url; #headers; #free = MOST_CALLS; #queue = [];

  constructor({ url, token, context, retryFor = 30_000 } = {}) {
    this.#url = (url || process.env.COORDINATOR_URL || "http://127.0.0.1:9652").replace(/\/+$/, "");
    token ||= process.env.MYCOJOBS_TOKEN;
    this.#headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    Object.assign(this, { context, retryFor });
    this.waits = { jobs: new Waits(this, "jobs.wait", "jobs", "key"), flows: new Waits(this, "flows.wait", "flows", "id") };
    Object.defineProperty(this, "waits", { enumerable: false });
  }

  /** Any method of the contract. repeat: whether it may be sent again if no answer came; undefined: if that is harmless. */
  async call(method, params = {}, { repeat, signal, answerWithin = ANSWER_MS } = {}) {
    const harmless = READS.has(method.split(".").pop()) || method === "job.cancel" || Boolean(params.idempotency_key || params.key);
    const until = Date.now() + this.retryFor;
    for (let ms = 50; ; ms = Math.min(ms * 2, 2000)) {
      try {
        return await this.#once(method, params, signal, answerWithin);
      } catch (why) {
        const again = why instanceof Unavailable && (!why.sent || (repeat ?? harmless));
        if (!again || Date.now() + ms > until) throw why;
      }
      await pause(ms, undefined, { signal });
    }
  }

  async #once(method, params, signal, answerWithin) {
    const shared = !method.endsWith(".logs"); // one that is followed would keep others waiting
    if (shared) await this.#enter();
    try {
      const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
      const size = Buffer.byteLength(body); // a server closes the connection at once: its answer might be lost
      if (size > MOST_BYTES) throw new TooLarge(`${method}: ${size} bytes are over the limit of ${MOST_BYTES}`, { code: -32005, word: "too_large" });
      const { status, text } = await this.#post(body, signal, answerWithin);
      if (status !== 200) throw refused(status, text);
      const answer = readAnswer(text);
      if (answer.error) throw readError(answer.error);
      return answer.result;
    } finally {
      if (shared) this.#leave();
    }
  }

  async #post(body, signal, answerWithin) {
    const limit = AbortSignal.timeout(answerWithin);
    try {
      const given = { method: "POST", headers: this.#headers, body, redirect: "error", signal: signal ? either(signal, limit) : limit };
      const answer = await fetch(`${this.#url}/rpc`, given);
      return { status: answer.status, text: await answer.text() };
    } catch (why) {
      signal?.throwIfAborted();
      throw lost(why);
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
  async submit(script, { type = "python", env, depends, ...options } = {}) {
    const params = {
      script, script_type: type, env_vars: env, context_id: this.context, idempotency_key: randomUUID(), ...options,
      ...(depends && { dependends: depends.map((each) => each.id ?? each) }),
    };
    return new Job(this, (await this.call("job.start", params)).key, params.context_id);
  }

  job(key) {
    return new Job(this, String(key), this.context);
  }

  /** Makes a flow of a definition and begins it. */
  async flowStart(definition, { inputs, env, notify, idempotencyKey = randomUUID(), traceparent } = {}) {
    const context_id = this.context;
    const wish = { definition, inputs, env_vars: env, notify, context_id, idempotency_key: idempotencyKey, traceparent };
    const { id } = await this.call("flow.create", wish);
    await this.call("flow.start", { id, context_id }, { repeat: true });
    return this.flow(id);
  }

  flow(id) {
    return new Flow(this, id, this.context);
  }

  /** What happens, as it happens: to a flow or a job until it has ended, else to all flows of the context. */
  async *events({ flow, job, after = "", signal } = {}) {
    const context = this.context ?? (await this.call("system.info")).contexts[0];
    const query = new URLSearchParams({ context, ...(flow && { flow }), ...(job && { job }) });
    let until = Date.now() + this.retryFor;
    while (true) {
      try {
        for await (const event of this.#stream(`/events?${query}`, after, signal)) {
          [after, until] = [event.id || after, Date.now() + this.retryFor];
          if (event.kind === "gone") throw new Denied(String(event.data.message), { code: -32003, word: "denied" });
          yield event;
          const over = flow && event.kind === "flow" && ["finished", "error"].includes(event.data.status);
          if (over || (job && event.data.ended)) return;
        }
      } catch (why) {
        if (!(why instanceof Unavailable) || Date.now() > until) throw why;
      }
      await pause(500, undefined, { signal });
    }
  }

  async *#stream(path, after, signal) {
    const own = new AbortController();
    const silence = setTimeout(() => own.abort(new Error("it is silent")), SILENCE_MS);
    try {
      const headers = { ...this.#headers, ...(after && { "Last-Event-ID": after }) };
      const answer = await fetch(this.#url + path, { headers, redirect: "error", signal: signal ? either(signal, own.signal) : own.signal });
      if (answer.status !== 200) throw refused(answer.status, await answer.text());
      let [rest, fields] = ["", {}];
      for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
        silence.refresh();
        const lines = (rest + text).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
          if (name) fields[name] = value;
          else if (!line && fields.data) yield { kind: fields.event ?? "message", id: fields.id ?? "", data: JSON.parse(fields.data) };
          if (!line) fields = {};
        }
      }
    } catch (why) {
      signal?.throwIfAborted();
      throw why instanceof MycojobsError ? why : lost(why);
    } finally {
      clearTimeout(silence);
      own.abort();
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
  /** Its JobState when it has ended, however. */
  async wait({ timeout, signal } = {}) {
    if (!this.key.includes(":")) this.key = (await this.status()).key.replace(/^job:/, "");
    return this.#client.waits.jobs.wait(`job:${this.key}`, this.#context, `job ${this.key}`, timeout, signal);
  }
  /** What it has handed back, when it has ended. JobFailed, JobCancelled: it has not finished. */
  async result(limits = {}) {
    await this.wait(limits);
    const state = await this.#call("job.result");
    if (state.status !== "finished") throw new (state.detail === "cancelled" ? JobCancelled : JobFailed)(state);
    return state.result;
  }
  /** Its lines: those that there are, or, with follow, until it has ended. */
  async *logs({ follow = false, after = 0, signal } = {}) {
    while (true) {
      const page = await this.#call("job.logs", { after_seq: after, wait_ms: follow ? LOG_WAIT_MS : 0 }, { signal });
      yield* page.lines;
      after = page.after_seq;
      if (page.ended || !(follow || page.lines.length)) return;
    }
  }
  cancel() {
    return this.#call("job.cancel");
  }
  retry() {
    return this.#call("job.retry");
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
  /** Its FlowResult when it has ended, however. */
  wait({ timeout, signal } = {}) {
    return this.#client.waits.flows.wait(this.id, this.#context, `flow ${this.id}`, timeout, signal);
  }
  /** What its jobs have handed back, by <node>.<key>. FlowFailed: it has not finished. */
  async result(limits = {}) {
    const state = await this.wait(limits);
    if (state.status !== "finished") throw new FlowFailed(state);
    return state.result;
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
  retry(node) {
    return this.#control("flow.retry", { node });
  }
}

// Any number of waits over at most MOST_WAITS calls: each takes everything that no other call asks for. The last of them is short, so
// that who begins to wait then is not left out for long.
class Waits {
  #client; #method; #param; #name;
  #waiting = new Map(); // place -> {context, key, waiters}
  #unasked = new Set();
  #calls = new Set(); // AbortControllers

  constructor(client, method, param, name) {
    [this.#client, this.#method, this.#param, this.#name] = [client, method, param, name];
  }

  async wait(key, context, what, timeout, signal) {
    signal?.throwIfAborted();
    const place = `${context ?? ""} ${key}`;
    if (!this.#waiting.has(place)) {
      this.#waiting.set(place, { context, key, waiters: new Set() });
      this.#unasked.add(place);
    }
    let waiter, timer, stop;
    try {
      return await new Promise((resolve, reject) => {
        waiter = { resolve, reject };
        this.#waiting.get(place).waiters.add(waiter);
        const late = () => reject(new WaitTimeout(`${what} has not ended after ${timeout} ms`, { word: "wait_timeout", remedy: "it goes on: wait again, or cancel it" }));
        if (timeout !== undefined) timer = setTimeout(late, timeout);
        stop = () => reject(signal.reason);
        signal?.addEventListener("abort", stop);
        this.#ask();
      });
    } finally {
      clearTimeout(timer);
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
    const keys = places.map((place) => this.#waiting.get(place).key);
    const tell = (key, how) => {
      const place = `${context ?? ""} ${key}`;
      for (const waiter of this.#waiting.get(place)?.waiters ?? []) how(waiter);
      this.#waiting.delete(place);
    };
    try {
      const ended = await this.#client.call(this.#method, { [this.#param]: keys, context_id: context, wait_ms }, { signal: stop.signal });
      for (const state of ended) tell(state[this.#name], (waiter) => waiter.resolve(state));
    } catch (why) {
      // "jobs[3]": that one cannot be waited for; the others can
      const one = [NotFound, Denied, Invalid].some((kind) => why instanceof kind) && /\[(\d+)\]$/.exec(why.field);
      if (!stop.signal.aborted) for (const key of one ? [keys[one[1]]] : keys) tell(key, (waiter) => waiter.reject(why));
    }
    this.#calls.delete(stop);
    for (const place of places) if (this.#waiting.has(place)) this.#unasked.add(place);
    this.#ask();
  }
}

// AbortSignal.any, which Node 18 may lack.
function either(one, other) {
  const both = new AbortController();
  for (const each of [one, other]) {
    if (each.aborted) both.abort(each.reason);
    each.addEventListener("abort", () => both.abort(each.reason), { signal: both.signal });
  }
  return both.signal;
}
