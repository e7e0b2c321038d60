// Client of mycojobs: submits jobs and flows, waits for them, and reads their results and logs. GET /openrpc.json of the
// server and docs/rpc.md describe the protocol; index.d.ts has the types.
import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { open, rename, stat, unlink } from "node:fs/promises";
import https from "node:https";
import { dirname, join, resolve as resolvePath } from "node:path";
import { Readable } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseJson, stringifyJson } from "./exact_json.js";

const READ_VERBS = new Set(
  ("get list page status result logs explain dag timeline history wait ping version info discover check overview rights verify doctor refusals " +
    "cells show facts dead").split(" "),
);
const RESPONSE_TIMEOUT_MS = 60_000;
const DEFAULT_RETRY_MS = 30_000;
const SILENCE_TIMEOUT_MS = 45_000;  // an event stream receives a heartbeat at least every 15 s
const UPLOAD_RESPONSE_TIMEOUT_MS = 120_000;  // the server writes the file to its disk before it responds
const UPLOAD_LINK_MS = 45000; // time in which the link of artifact.put can be used again; its ticket is valid for 60 s
const MAX_CALLS = 8;  // simultaneous calls; event streams and followed logs are not included
const MAX_REQUEST_BYTES = 16 << 20;
const MAX_RESPONSE_BYTES = 64 << 20;
const MAX_EVENT_CHARACTERS = 4 << 20;
const LOG_WAIT_MS = 20_000;  // parameter wait_ms of job.logs
// Parameter wait_ms of jobs.wait and flows.wait, and limits of a WaitGroup: concurrent calls, and entries of each call.
const [WAIT_MS, SHORT_WAIT_MS, MAX_WAIT_CALLS, MAX_WAIT_ENTRIES] = [20_000, 250, 4, 1000];
const MAX_TIMER_MS = 2 ** 31 - 1;  // Node treats longer times as 1 ms
const MIN_POLL_INTERVAL_MS = 500;  // minimum interval between requests with empty responses

// Returns true if a call may be sent again after an unknown outcome. The parameter `key` is an idempotency key only in
// flow.*; in other methods it names an instance.
function isRepeatable(method, params) {
  const [group, verb] = method.split(".");
  return READ_VERBS.has(verb) || method === "job.cancel" || Boolean(params.idempotency_key || (group === "flow" && params.key));
}

// Escapes control characters and direction marks in untrusted text for a terminal.
const escapeText = (text) =>
  text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (c) => (c === "\n" ? c : `\\u{${c.codePointAt(0).toString(16)}}`));

/** `text` is the original text. `message` includes the remedy and is safe for a terminal. */
export class MycojobsError extends Error {
  constructor(text, { code = 0, word = "", field = "", remedy = "", cause } = {}) {
    super(escapeText(remedy ? `${text} (${remedy})` : text), { cause });
    Object.assign(this, { name: new.target.name, text, code, word, field, remedy });
  }
}
export class Invalid extends MycojobsError {}
export class NotFound extends MycojobsError {}
export class Conflict extends MycojobsError {}
export class Denied extends MycojobsError {}
export class Unavailable extends MycojobsError {
  sent = true;  // if false, the server has not executed the call
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

const hasType = (value, kind) => (kind === "array" ? Array.isArray(value) : value !== null && typeof value === kind && !Array.isArray(value));
const toText = (value) => (typeof value === "string" ? value : "");

// Returns the error of a response that is not from a mycojobs server, or from a server of another version.
const invalidResponseError = (subject, response) =>
  new MycojobsError(`${subject}: the response is not in the contract: ${String(response).slice(0, 100)}`, { word: "http", remedy: "check which program runs there" });

// Returns a member of a response. Throws an error if the member is missing or has another type.
function getMember(method, response, name, kind) {
  if (!hasType(response, "object") || !hasType(response[name], kind)) throw invalidResponseError(method, hasType(response, "object") ? `no ${name}` : response);
  return response[name];
}

function toError(error) {
  const [code, data] = [getMember("error", error, "code", "number"), hasType(error.data, "object") ? error.data : {}];
  const details = { code, word: toText(data.word), field: toText(data.field), remedy: toText(data.remedy) };
  return new (CODES[code] ?? MycojobsError)(getMember("error", error, "message", "string"), details);
}

// Returns the error of a response with a status other than 200. Status 503 means that the server refused the call before
// processing it. Other codes may be from a proxy.
function parseHttpError(status, body) {
  let error;
  try {
    error = toError(parseJson(body).error);
  } catch {
    error = new (status >= 500 ? Unavailable : MycojobsError)(`HTTP ${status}: ${body.slice(0, 200)}`, { word: "http" });
  }
  if (error instanceof Unavailable) error.sent = status !== 503;
  return error;
}

function parseResponse(body, id, url) {
  let [response, error] = [undefined, undefined];
  try {
    response = parseJson(body);
    if (response.error !== undefined && (response.id === id || response.id === null)) error = toError(response.error);
    else if (response.id === id && response.result !== undefined) return response.result;
  } catch {
    // reported below
  }
  throw error ?? invalidResponseError(url, body);
}

async function readText(response) {
  const pieces = [];
  let size = 0;
  for await (const piece of response.body ?? []) {
    if ((size += piece.length) > MAX_RESPONSE_BYTES) {
      throw new TooLarge(`the response is over the limit of ${MAX_RESPONSE_BYTES} bytes`, { code: -32005, word: "too_large", remedy: "request less at a time" });
    }
    pieces.push(piece);
  }
  return new TextDecoder().decode(Buffer.concat(pieces));
}

const invalidError = (text, remedy) => new Invalid(text, { code: -32602, word: "invalid", remedy });

// Checks options before a call is sent: a misspelled option would be ignored otherwise.
function checkOptions(subject, options, names) {
  if (!hasType(options, "object")) throw invalidError(`${subject}: the options are not an object`, `give {${names.join(", ")}}`);
  for (const name of Object.keys(options)) {
    if (!names.includes(name)) throw invalidError(`${subject}: unknown option ${JSON.stringify(name)}`, `the options are ${names.join(", ")}`);
  }
  return options;
}
const WAIT_OPTIONS = ["timeout", "signal"];
// Parameters of job.start; type, env and depends are short forms of script_type, env_vars and dependends.
const SUBMIT_OPTIONS = (
  "type env depends script_type env_vars dependends id context_id caller_id name timeout retries prerequisites run_at_ms priority " +
  "queue_timeout_ms idempotency_key concurrency_key concurrency_limit inputs args stdin files notify policy traceparent"
).split(" ");

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
// Converts a time span, a number of seconds or a text with a unit, to milliseconds. Returns undefined for an absent value.
function parseMilliseconds(name, span) {
  if (span == null) return undefined;
  if (typeof span === "number" && span >= 0) return span * 1000;
  const [, number, unit] = (typeof span === "string" && /^(\d+)(ms|[smhd])$/.exec(span)) || [];
  if (unit) return number * UNIT_MS[unit];
  throw invalidError(`${name}: ${String(span).slice(0, 40)} is not a time span`, 'give seconds, or a text such as "500ms", "30s", "5m", "2h" or "1d"');
}

// A file that the server has, for `files` of jobs. It expires at until_ms unless a job uses it.
export class Upload {
  constructor(reference, bytes, sha256, until_ms) {
    [this.reference, this.bytes, this.sha256, this.until_ms] = [reference, bytes, sha256, until_ms];
  }
}

// Returns the content of a file of a job as JSON: a text, bytes as base64, or the reference of an upload.
function encodeContent(content) {
  if (content instanceof Upload) return { upload: content.reference };
  return content instanceof Uint8Array ? { base64: Buffer.from(content).toString("base64") } : content;
}

function getProtocol(url) {
  try {
    return new URL(url).protocol;
  } catch {
    return "";
  }
}

function formatRequest(id, method, params) {
  let body;
  try {
    body = stringifyJson({ jsonrpc: "2.0", id, method, params });
  } catch (error) {
    throw invalidError(`${method}: a parameter is not JSON: ${error.message}`);
  }
  // the server would close the connection at once, and the error response could be lost
  const size = Buffer.byteLength(body);
  if (size <= MAX_REQUEST_BYTES) return body;
  throw new TooLarge(`${method}: ${size} bytes are over the limit of ${MAX_REQUEST_BYTES}`, { code: -32005, word: "too_large", remedy: "send less at a time" });
}

// Calls `callback` after `ms`, which may exceed the limit of a timer or be Infinity. Returns a function that cancels it.
function startTimer(ms, callback) {
  let timer;
  const schedule = (remainingMs) => {
    timer = setTimeout(() => (remainingMs > MAX_TIMER_MS ? schedule(remainingMs - MAX_TIMER_MS) : callback()), Math.min(remainingMs, MAX_TIMER_MS));
  };
  schedule(ms);
  return () => clearTimeout(timer);
}

// Returns a signal for fetch that is aborted by the caller's signal, or `ms` after the last refresh(). end() removes
// all listeners.
function createTimeout(ms, signal) {
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  const timer = setTimeout(() => controller.abort(new Error(`no data was received for ${ms} ms`)), Math.min(ms, MAX_TIMER_MS));
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort);
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  };
  return { signal: controller.signal, refresh: () => timer.refresh(), end };
}

// Returns an agent that trusts the CAs of a file. The server closes idle connections after 15 s.
function createTlsAgent(ca) {
  let certificates;
  try {
    certificates = readFileSync(ca);
  } catch (error) {
    throw invalidError(`ca: ${ca}: ${error.code}`, "give a file with certificates in PEM");
  }
  if (!certificates.includes("-----BEGIN CERTIFICATE-----")) throw invalidError(`ca: ${ca} has no certificate in PEM`, "give a file with certificates in PEM");
  return new https.Agent({ ca: certificates, keepAlive: true, timeout: 10_000 });
}

// Works like fetch(), which accepts no CA.
function fetchWithAgent(agent, url, { method = "GET", headers, body, signal }) {
  return new Promise((resolve, reject) => {
    const request = https.request(url, { method, headers, agent, signal }, (message) => {
      const status = message.statusCode;
      if (status < 200 || status > 599) {  // Response would throw in this callback, which would end the program
        reject(Object.assign(new Error("fetch failed"), { cause: new Error(`the status ${status} is invalid`) }));
        return request.destroy();
      }
      const hasBody = ![204, 205, 304].includes(status);
      if (!hasBody) message.resume();
      resolve(new Response(hasBody ? Readable.toWeb(message) : null, { status }));
    });
    request.on("error", (cause) => reject(Object.assign(new Error("fetch failed"), { cause })));
    if (body instanceof Readable) body.on("error", (error) => request.destroy(error)).pipe(request);
    else request.end(body);
  });
}

// Meaning and remedy by the code of Node. Such calls are not repeated.
const CA_REMEDY = "give the client the certificate of this CA: the option ca, or MYCOJOBS_HTTPS_CA";
const UNKNOWN_CA = ["was issued by an unknown CA", CA_REMEDY];
const CERTIFICATE_ERRORS = {
  CERT_HAS_EXPIRED: ["has expired", "renew it"],
  CERT_NOT_YET_VALID: ["is not valid yet", "check the clocks of both hosts"],
  DEPTH_ZERO_SELF_SIGNED_CERT: ["is self-signed and not trusted", "give the client a copy of it: the option ca, or MYCOJOBS_HTTPS_CA"],
  ERR_TLS_CERT_ALTNAME_INVALID: ["is for another host", "use a name of the certificate in the address"],
  SELF_SIGNED_CERT_IN_CHAIN: UNKNOWN_CA, UNABLE_TO_GET_ISSUER_CERT: UNKNOWN_CA, UNABLE_TO_GET_ISSUER_CERT_LOCALLY: UNKNOWN_CA,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: UNKNOWN_CA, CERT_SIGNATURE_FAILURE: UNKNOWN_CA,
};

// Returns the error of a rejected certificate or a failed handshake, or undefined for other errors.
function toTlsError(cause) {
  if (Object.hasOwn(CERTIFICATE_ERRORS, cause?.code ?? "")) {
    const [problem, remedy] = CERTIFICATE_ERRORS[cause.code];
    return new MycojobsError(`the certificate of the server ${problem}`, { word: "tls", cause, remedy });
  }
  if (/wrong version number|packet length too long|record layer failure/.test(cause?.message ?? "")) {
    return new MycojobsError("the server answers in plain text: the port does not use TLS", { word: "tls", cause, remedy: "write http:// in the address" });
  }
}

function toConnectionError(cause) {
  if (cause instanceof MycojobsError) return cause;
  const tlsError = toTlsError(cause.cause);
  if (tlsError) return tlsError;
  const error = new Unavailable(`the server does not answer: ${cause.cause?.message || cause.cause?.code || cause.message}`, {
    code: -32004, word: "unavailable", cause, remedy: "see whether `mycojobs coordinator` or `dev` runs there",
  });
  error.sent = !["ECONNREFUSED", "ENOTFOUND", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"].includes(cause.cause?.code);
  return error;
}

export class Client {
  #url; #headers; #fetch = fetch; #maxRetryMs; #freeSlots = MAX_CALLS; #slotWaiters = []; #lastRequestId = 0;

  /** `options` is the address of a server, or {url, token, ca, context, retryFor}. */
  constructor(options = {}) {
    const clientOptions = typeof options === "string" || options instanceof URL ? { url: options } : options;
    let { url, token, ca, context, retryFor } = checkOptions("Client", clientOptions, ["url", "token", "ca", "context", "retryFor"]);
    retryFor = parseMilliseconds("retryFor", retryFor) ?? DEFAULT_RETRY_MS;
    this.#url = String(url || process.env.COORDINATOR_URL || "http://127.0.0.1:9652").replace(/\/+$/, "");
    token ||= process.env.MYCOJOBS_TOKEN;
    if (!/^https?:$/.test(getProtocol(this.#url))) throw invalidError(`"${this.#url}" is not an address of a server`, "give http://HOST:PORT or https://HOST:PORT");
    ca ||= process.env.MYCOJOBS_HTTPS_CA;
    if (ca && getProtocol(this.#url) === "https:") this.#fetch = fetchWithAgent.bind(undefined, createTlsAgent(ca));
    if (/[^\x20-\x7e]/.test(token ?? "")) throw invalidError("the token has invalid characters");
    this.#headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    this.context = context;
    this.#maxRetryMs = retryFor;
    this.waits = { jobs: new WaitGroup(this, "jobs.wait", "jobs", "key"), flows: new WaitGroup(this, "flows.wait", "flows", "id") };
    Object.defineProperty(this, "waits", { enumerable: false });
    Object.defineProperty(this, "download", { value: this.#download.bind(this) });
  }

  /**
   * Calls any method of the server. `repeat` determines whether the call may be sent again if no response arrived; by
   * default this depends on the method (isRepeatable). `answerWithin` limits the wait for each response.
   */
  async call(method, params = {}, options = {}) {
    const { repeat, signal, answerWithin } = checkOptions("call", options, ["repeat", "signal", "answerWithin"]);
    const responseTimeoutMs = parseMilliseconds("answerWithin", answerWithin) ?? RESPONSE_TIMEOUT_MS;
    const deadline = Date.now() + this.#maxRetryMs;
    for (let pauseMs = 50; ; pauseMs = Math.min(pauseMs * 2, 2000)) {
      try {
        return await this.#callOnce(method, params, signal, responseTimeoutMs);
      } catch (error) {
        const canRetry = error instanceof Unavailable && (!error.sent || (repeat ?? isRepeatable(method, params)));
        if (!canRetry || Date.now() + pauseMs > deadline) throw error;
      }
      // random, so that clients do not retry simultaneously
      await pause(pauseMs * (0.5 + Math.random() / 2), undefined, { signal });
    }
  }

  async #callOnce(method, params, signal, responseTimeoutMs) {
    const isShared = !method.endsWith(".logs");  // a followed log would block other calls
    if (isShared) await this.#acquireSlot();
    try {
      const id = ++this.#lastRequestId;
      const body = formatRequest(id, method, params);
      const { status, text } = await this.#post(body, createTimeout(responseTimeoutMs, signal));
      if (status !== 200) throw parseHttpError(status, text);
      return parseResponse(text, id, this.#url);
    } catch (error) {
      signal?.throwIfAborted();
      throw toConnectionError(error);
    } finally {
      if (isShared) this.#releaseSlot();
    }
  }

  async #post(body, limit) {
    try {
      const response = await this.#fetch(`${this.#url}/rpc`, { method: "POST", headers: this.#headers, body, redirect: "error", signal: limit.signal });
      return { status: response.status, text: await readText(response) };
    } finally {
      limit.end();
    }
  }

  async #acquireSlot() {
    if (this.#freeSlots > 0) this.#freeSlots--;
    else await new Promise((resolve) => this.#slotWaiters.push(resolve));
  }

  #releaseSlot() {
    const resolve = this.#slotWaiters.shift();
    if (resolve) resolve();
    else this.#freeSlots++;
  }

  /** Queues a script. */
  async submit(script, options = {}) {
    const { type = "python", env, depends, timeout, stdin, files, ...others } = checkOptions("submit", options, SUBMIT_OPTIONS);
    const params = {
      script, script_type: type, env_vars: env, context_id: this.context, idempotency_key: randomUUID(), ...others,
      ...(timeout != null && { timeout: parseMilliseconds("timeout", timeout) / 1000 }),
      ...(stdin != null && { stdin: encodeContent(stdin) }),
      ...(files != null && { files: Object.fromEntries(Object.entries(files).map(([name, content]) => [name, encodeContent(content)])) }),
      ...(depends && { dependends: depends.map((job) => job.id ?? job) }),
    };
    return new Job(this, getMember("job.start", await this.call("job.start", params), "key", "string"), params.context_id);
  }

  /**
   * Sends a file to the server, for `files` of jobs of this caller. Files of more than 1 MiB must be uploaded. After a
   * lost connection the whole file is sent again, within retryFor.
   */
  async upload(path, options = {}) {
    const { callerId, signal } = checkOptions("upload", options, ["callerId", "signal"]);
    const file = await open(path, "r");
    try {
      const hash = createHash("sha256");
      let bytes = 0;
      for await (const piece of file.createReadStream({ autoClose: false, start: 0 })) {
        hash.update(piece);
        bytes += piece.length;
      }
      const params = { bytes, sha256: hash.digest("hex"), context_id: this.context, ...(callerId && { caller_id: callerId }) };
      let [deadline, pauseMs] = [Date.now() + this.#maxRetryMs, 50];
      let [link, linkDeadline, isRepeat] = ["", 0, false];
      while (true) {
        try {
          // Each call of artifact.put reserves bytes of the quota, so that a file is sent again to the first link.
          isRepeat = Date.now() < linkDeadline;
          if (!isRepeat) {
            link = getMember("artifact.put", await this.call("artifact.put", params, { repeat: true, signal }), "link", "string");
            linkDeadline = Date.now() + UPLOAD_LINK_MS;
          }
          return await this.#sendUpload(link, file, params, signal);
        } catch (error) {
          // A conflict: the server has not noticed yet that the last connection was lost.
          const isLinkLost = error instanceof Denied || error instanceof NotFound;
          const isPassing = error instanceof Unavailable || (isRepeat && (isLinkLost || error instanceof Conflict));
          if (!isPassing || Date.now() + pauseMs > deadline) throw error;
          if (isLinkLost) linkDeadline = 0;
          await pause(pauseMs * (0.5 + Math.random() / 2), undefined, { signal });
          pauseMs = Math.min(pauseMs * 2, 2000);
        }
      }
    } finally {
      await file.close();
    }
  }

  async #sendUpload(link, file, params, signal) {
    const limit = createTimeout(UPLOAD_RESPONSE_TIMEOUT_MS, signal);
    async function* readPieces() {
      for await (const piece of file.createReadStream({ autoClose: false, start: 0 })) {
        limit.refresh();
        yield piece;
      }
    }
    try {
      const headers = { ...this.#headers, "Content-Length": String(params.bytes) };
      const request = { method: "PUT", headers, body: Readable.from(readPieces()), duplex: "half", redirect: "error", signal: limit.signal };
      const response = await this.#fetch(`${this.#url}${link}`, request);
      const text = await readText(response);
      if (response.status !== 201) throw parseHttpError(response.status, text);
      const answer = parseJson(text);
      const [reference, untilMs] = [getMember("PUT /artifacts", answer, "upload", "string"), getMember("PUT /artifacts", answer, "until_ms", "number")];
      return new Upload(reference, params.bytes, params.sha256, untilMs);
    } catch (error) {
      signal?.throwIfAborted();
      throw toConnectionError(error);
    } finally {
      limit.end();
    }
  }

  job(key) {
    return new Job(this, String(key), this.context);
  }

  /** Creates a flow from a definition and starts it. */
  async flowStart(definition, options = {}) {
    const names = ["inputs", "env", "notify", "idempotencyKey", "traceparent"];
    const { inputs, env, notify, idempotencyKey = randomUUID(), traceparent } = checkOptions("flowStart", options, names);
    const context_id = this.context;
    const request = { definition, inputs, env_vars: env, notify, context_id, idempotency_key: idempotencyKey, traceparent };
    const id = getMember("flow.create", await this.call("flow.create", request), "id", "number");
    await this.call("flow.start", { id, context_id }, { repeat: true });
    return this.flow(id);
  }

  flow(id) {
    return new Flow(this, Number(id), this.context);
  }

  /**
   * Yields the events of a flow or a job until its end, or the events of all flows of the context without an end.
   * Reconnects after a lost connection. `after` is the id of the last event that the caller has processed.
   */
  async *events(options = {}) {
    const { flow, job, after: first = "", signal } = checkOptions("events", options, ["flow", "job", "after", "signal"]);
    let after = first;
    const context = this.context ?? getMember("system.info", await this.call("system.info"), "contexts", "array")[0] ?? 1;
    const query = { context, ...(flow && { flow }), ...(job && { job }) };
    let deadline = Date.now() + this.#maxRetryMs;
    while (true) {
      try {
        for await (const event of this.#readEvents({ ...query, ...(after && { after }) }, signal)) {
          [after, deadline] = [event.id || after, Date.now() + this.#maxRetryMs];
          if (event.kind === "gone") throw new Denied(String(event.data.message), { code: -32003, word: "denied" });
          if (event.kind) yield event;
          const hasEnded = flow && event.kind === "flow" && ["finished", "error"].includes(event.data.status);
          if (hasEnded || (job && event.data.ended)) return;
        }
      } catch (error) {
        if (!(error instanceof Unavailable) || Date.now() > deadline) throw error;
      }
      await pause(250 + Math.random() * 500, undefined, { signal });
    }
  }

  // Passes the bytes of a file of a job to `write`. Continues after a lost connection, as long as bytes arrive within
  // retryFor.
  async #download(subject, query, { bytes, sha256 }, write, signal) {
    const hash = createHash("sha256");
    let [received, isFirst, deadline, pauseMs] = [0, true, Date.now() + this.#maxRetryMs, 50];
    while (isFirst || received < bytes) {
      const start = received;
      try {
        for await (const piece of this.#readFile(query, received, signal)) {
          received += piece.length;
          if (received > bytes) break;
          await write(piece);
          hash.update(piece);
          [deadline, pauseMs] = [Date.now() + this.#maxRetryMs, 50];
        }
        if (received === start && received < bytes) throw new Unavailable(`${subject}: the server has sent no bytes`);
        isFirst = false;
      } catch (error) {
        if (!(error instanceof Unavailable) || Date.now() + pauseMs > deadline) throw error;
        await pause(pauseMs * (0.5 + Math.random() / 2), undefined, { signal });
        pauseMs = Math.min(pauseMs * 2, 2000);
      }
    }
    if (received !== bytes || hash.digest("hex") !== sha256) {
      throw new MycojobsError(`${subject}: the received content is not that of the job's record`, { word: "damaged", remedy: "run the job again" });
    }
  }

  // Yields the bytes of one connection, from the offset on.
  async *#readFile(query, offset, signal) {
    const limit = createTimeout(SILENCE_TIMEOUT_MS, signal);
    try {
      const headers = { ...this.#headers, ...(offset && { Range: `bytes=${offset}-` }) };
      const response = await this.#fetch(`${this.#url}/artifacts?${new URLSearchParams(query)}`, { headers, redirect: "error", signal: limit.signal });
      if (response.status !== (offset ? 206 : 200)) throw parseHttpError(response.status, await readText(response));
      for await (const piece of response.body ?? []) {
        limit.refresh();
        yield piece;
      }
    } catch (error) {
      signal?.throwIfAborted();
      throw toConnectionError(error);
    } finally {
      limit.end();
    }
  }

  // Yields the events of one connection. An event without a kind is a heartbeat.
  async *#readEvents(query, signal) {
    const limit = createTimeout(SILENCE_TIMEOUT_MS, signal);
    try {
      const url = `${this.#url}/events?${new URLSearchParams(query)}`;
      const response = await this.#fetch(url, { headers: this.#headers, redirect: "error", signal: limit.signal });
      if (response.status !== 200) throw parseHttpError(response.status, await readText(response));
      let [buffer, fields] = ["", {}];
      for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
        limit.refresh();
        const lines = (buffer + piece).split("\n");
        buffer = lines.pop();
        if (buffer.length > MAX_EVENT_CHARACTERS) throw new Error("an event without an end");
        for (const line of lines) {
          if (line) {
            const [, name, value] = /^([^:]*):? ?([^]*)$/.exec(line);
            fields[name] = value;
          } else {
            const data = parseJson(fields.data ?? "{}");
            if (!hasType(data, "object")) throw new Error("an event that is not an object");
            yield { kind: fields.data ? fields.event ?? "message" : "", id: fields.id ?? "", data };
            fields = {};
          }
        }
      }
    } catch (error) {
      signal?.throwIfAborted();
      throw toConnectionError(error);
    } finally {
      limit.end();
    }
  }
}

const ARTIFACT_MEMBERS = {
  name: "string", bytes: "number", sha256: "string", media_type: "string", executable: "boolean", runner_id: "number", readable: "boolean", problem: "string",
};

// A file that a job has stored. The name is a relative path that the job has chosen: do not use it as a path unchecked.
export class Artifact {
  #client; #jobKey; #context;

  constructor(client, jobKey, context, entry) {
    [this.#client, this.#jobKey, this.#context] = [client, jobKey, context];
    for (const [name, kind] of Object.entries(ARTIFACT_MEMBERS)) this[name] = getMember("artifact.list", entry, name, kind);
  }
  /**
   * Downloads the file to `path`, which is replaced if it exists. The bytes are written to a temporary file in the same
   * folder, which gets the name `path` after its size and SHA-256 were verified.
   */
  async save(path, options = {}) {
    const { signal } = checkOptions("save", options, ["signal"]);
    const target = resolvePath(path instanceof URL ? fileURLToPath(path) : path);
    if (await stat(target).then((found) => found.isDirectory(), () => false)) throw invalidError(`${target} is a folder`, "give the path of a file");
    const temporary = join(dirname(target), `.mycojobs-${randomUUID()}`);
    const query = { ...(this.#context && { context: this.#context }), job: this.#jobKey, name: this.name, sha256: this.sha256 };
    const file = await open(temporary, "wx", this.executable ? 0o777 : 0o666);
    try {
      await this.#client.download(`${this.#jobKey}: artifact ${this.name}`, query, this, (piece) => file.writeFile(piece), signal);
      await file.close();
      await rename(temporary, target);
    } catch (error) {
      await file.close().catch(() => {});
      await unlink(temporary).catch(() => {});
      throw error;
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
  #call(method, params, options) {
    return this.#client.call(method, { id: this.key, context_id: this.#context, ...params }, options);
  }
  status() {
    return this.#call("job.status");
  }
  /** Waits for the end of the job and returns its JobState, even if the job has failed. */
  async wait(limits = {}) {
    const { timeout, signal } = checkOptions("wait", limits, WAIT_OPTIONS);
    const timeoutMs = parseMilliseconds("timeout", timeout);
    if (!this.key.includes(":")) this.key = getMember("job.status", await this.status(), "key", "string").replace(/^job:/, "");
    return this.#client.waits.jobs.wait(`job:${this.key}`, this.#context, `job ${this.key}`, timeoutMs, signal);
  }
  /** Waits for the end of the job and returns its result. Throws JobFailed or JobCancelled if it has not finished successfully. */
  async result(limits = {}) {
    await this.wait(limits);
    const state = await this.#call("job.result");
    if (getMember("job.result", state, "status", "string") !== "finished") throw new (state.detail === "cancelled" ? JobCancelled : JobFailed)(state);
    return getMember("job.result", state, "result", "object");
  }
  /** Yields the log lines. With `follow`, waits for further lines until the end of the job. */
  async *logs(options = {}) {
    const { follow = false, after: first = 0, signal } = checkOptions("logs", options, ["follow", "after", "signal"]);
    let after = first;
    while (true) {
      const startedAt = Date.now();
      const page = await this.#call("job.logs", { after_seq: after, wait_ms: follow ? LOG_WAIT_MS : 0 }, { signal });
      const [lines, lastSeq] = [getMember("job.logs", page, "lines", "array"), getMember("job.logs", page, "after_seq", "number")];
      if (lines.length && lastSeq <= after) throw invalidResponseError("job.logs", `line ${lastSeq} again`);
      yield* lines;
      after = lastSeq;
      if (page.ended || !(follow || lines.length)) return;
      if (!lines.length) await pause(Math.max(0, startedAt + MIN_POLL_INTERVAL_MS - Date.now()), undefined, { signal });
    }
  }
  /** Returns the files that the job has stored. */
  async artifacts() {
    const entries = await this.#call("artifact.list");
    if (!hasType(entries, "array")) throw invalidResponseError("artifact.list", entries);
    return entries.map((entry) => new Artifact(this.#client, this.key, this.#context, entry));
  }
  cancel() {
    return this.#call("job.cancel");
  }
  retry() {
    return this.#call("job.retry");
  }
  /** Starts the same job again as a new job of the same caller, if it has ended. */
  async restart() {
    return new Job(this.#client, getMember("job.restart", await this.#call("job.restart", { idempotency_key: randomUUID() }), "key", "string"), this.#context);
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
  #call(method, params) {
    return this.#client.call(method, { id: this.id, context_id: this.#context, ...params });
  }
  #control(method, params) {
    return this.#call(method, { key: randomUUID(), ...params });
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
  /** Waits for the end of the flow and returns its FlowResult, even if the flow has failed. */
  async wait(limits = {}) {
    const { timeout, signal } = checkOptions("wait", limits, WAIT_OPTIONS);
    return this.#client.waits.flows.wait(this.id, this.#context, `flow ${this.id}`, parseMilliseconds("timeout", timeout), signal);
  }
  /**
   * Waits for the end of the flow and returns the results of its jobs, with keys of the form <node>.<key>. Throws
   * FlowFailed if the flow has not finished successfully.
   */
  async result(limits = {}) {
    const state = await this.wait(limits);
    if (getMember("flows.wait", state, "status", "string") !== "finished") throw new FlowFailed(state);
    return getMember("flows.wait", state, "result", "object");
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
  /**
   * Runs failed nodes again. `allowIrreversible` permits this even if a new child flow would repeat a finished node that
   * is marked irreversible.
   */
  retry(node, options = {}) {
    const { allowIrreversible } = checkOptions("retry", options, ["allowIrreversible"]);
    return this.#control("flow.retry", { node, ...(allowIrreversible && { allow_irreversible: true }) });
  }
}

// Combines any number of waits in at most MAX_WAIT_CALLS concurrent calls. Each call waits for up to MAX_WAIT_ENTRIES
// entries that no other call contains. A call that takes the last free place waits only SHORT_WAIT_MS, so that new waits
// are not delayed for long.
class WaitGroup {
  #client; #method; #param; #idMember;
  #waiters = new Map();  // entry ("context key") -> {context, key, waiters}
  #unrequested = new Set();
  #calls = new Set();  // AbortControllers

  constructor(client, method, param, idMember) {
    [this.#client, this.#method, this.#param, this.#idMember] = [client, method, param, idMember];
  }

  async wait(key, context, subject, timeoutMs, signal) {
    signal?.throwIfAborted();
    const entry = `${context ?? ""} ${key}`;
    if (!this.#waiters.has(entry)) {
      this.#waiters.set(entry, { context, key, waiters: new Set() });
      this.#unrequested.add(entry);
    }
    let waiter, onAbort;
    let end = () => {};
    try {
      return await new Promise((resolve, reject) => {
        waiter = { resolve, reject };
        this.#waiters.get(entry).waiters.add(waiter);
        const onTimeout = () => reject(new WaitTimeout(`${subject} has not ended after ${timeoutMs / 1000} s`, { word: "wait_timeout", remedy: "it continues: wait again, or cancel it" }));
        if (timeoutMs !== undefined) end = startTimer(timeoutMs, onTimeout);
        onAbort = () => reject(signal.reason);
        signal?.addEventListener("abort", onAbort);
        this.#startCall();
      });
    } finally {
      end();
      signal?.removeEventListener("abort", onAbort);
      this.#removeWaiter(entry, waiter);
    }
  }

  #removeWaiter(entry, waiter) {
    const waiters = this.#waiters.get(entry)?.waiters;
    waiters?.delete(waiter);
    if (waiters?.size === 0) {
      this.#waiters.delete(entry);
      this.#unrequested.delete(entry);
    }
    if (this.#waiters.size === 0) for (const call of this.#calls) call.abort();
  }

  #startCall() {
    if (this.#unrequested.size === 0 || this.#calls.size >= MAX_WAIT_CALLS) return;
    const { context } = this.#waiters.get([...this.#unrequested][0]);
    const entries = [...this.#unrequested].filter((entry) => this.#waiters.get(entry).context === context).slice(0, MAX_WAIT_ENTRIES);
    for (const entry of entries) this.#unrequested.delete(entry);
    const controller = new AbortController();
    this.#calls.add(controller);
    this.#waitOnce(context, entries, this.#calls.size === MAX_WAIT_CALLS ? SHORT_WAIT_MS : WAIT_MS, controller);
  }

  async #waitOnce(context, entries, wait_ms, controller) {
    const startedAt = Date.now();
    const keys = entries.map((entry) => this.#waiters.get(entry).key);
    const complete = (key, settle) => {
      const entry = `${context ?? ""} ${key}`;
      for (const waiter of this.#waiters.get(entry)?.waiters ?? []) settle(waiter);
      this.#waiters.delete(entry);
    };
    try {
      const states = await this.#client.call(this.#method, { [this.#param]: keys, context_id: context, wait_ms }, { signal: controller.signal });
      if (!hasType(states, "array")) throw invalidResponseError(this.#method, states);
      const requested = new Set(keys);  // entries that were not requested are ignored
      const ended = states.map((state) => [getMember(this.#method, state, this.#idMember, typeof keys[0]), state]).filter(([key]) => requested.has(key));
      for (const [key, state] of ended) complete(key, (waiter) => waiter.resolve(state));
      if (!ended.length) await pause(Math.max(0, startedAt + Math.min(MIN_POLL_INTERVAL_MS, wait_ms) - Date.now()), undefined, { signal: controller.signal });
    } catch (error) {
      // an error with the field "jobs[3]" concerns only this entry, so the other waits continue
      const indexMatch = [NotFound, Denied, Invalid].some((kind) => error instanceof kind) && /^\w+\[(\d{1,4})\]$/.exec(error.field);
      if (!controller.signal.aborted) for (const key of indexMatch && indexMatch[1] < keys.length ? [keys[indexMatch[1]]] : keys) complete(key, (waiter) => waiter.reject(error));
    }
    this.#calls.delete(controller);
    for (const entry of entries) if (this.#waiters.has(entry)) this.#unrequested.add(entry);
    this.#startCall();
  }
}
