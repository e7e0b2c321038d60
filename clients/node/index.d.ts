/** A script type: python, v, osis, sal, native, or another executor's name. */
export type ScriptType = string;
/** An integer beyond 2^53 - 1 is a bigint. */
export type Json = null | boolean | number | bigint | string | Json[] | { [name: string]: Json };
export type Detail = Record<string, unknown>;

/** A time span: a number of seconds, or a text such as "500ms", "30s", "5m", "2h" or "1d". */
export type Duration = number | string;

export interface ClientOptions {
  /** http://HOST:PORT or https://HOST:PORT. Default: COORDINATOR_URL, otherwise http://127.0.0.1:9652. */
  url?: string;
  /** Default: MYCOJOBS_TOKEN. */
  token?: string;
  /** For https://, a file with the certificates (PEM) of the trusted CAs. Default: MYCOJOBS_HTTPS_CA, otherwise the CAs of Node. */
  ca?: string;
  /** Default: the server's first context. */
  context?: number;
  /** Time for which calls are repeated while the server is unavailable (30 s). */
  retryFor?: Duration;
}

/** Parameters of `job.start`; `type`, `env` and `depends` stand for script_type, env_vars and dependends. */
export interface SubmitOptions {
  type?: ScriptType;
  env?: Record<string, string>;
  depends?: (number | Job)[];
  id?: number | string;
  context_id?: number;
  caller_id?: number;
  name?: string;
  timeout?: Duration;
  retries?: number;
  prerequisites?: string[];
  run_at_ms?: number;
  priority?: number;
  queue_timeout_ms?: number;
  idempotency_key?: string;
  concurrency_key?: string;
  concurrency_limit?: number;
  inputs?: string[];
  args?: string[];
  stdin?: string | Uint8Array;
  files?: Record<string, string | Uint8Array | Upload>;
  notify?: Json;
  policy?: { [name: string]: Json };
  traceparent?: string;
}

/** A file that the server has, for `files` of jobs. It expires at until_ms unless a job uses it. */
export class Upload {
  private constructor();
  readonly reference: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly until_ms: number;
}

export interface JobState {
  key: string;
  id: number;
  caller_id: number;
  context_id: number;
  status: "dispatched" | "waiting_for_prerequisites" | "started" | "error" | "finished";
  detail: string;
  error: string;
  ended: boolean;
  attempt: number;
  runner_id: number;
  queued_ms: number;
  started_ms: number;
  ended_ms: number;
}
/** A file that a job has stored. problem: why the server cannot send it now. */
export interface ArtifactInfo {
  name: string;
  bytes: number;
  sha256: string;
  media_type: string;
  executable: boolean;
  runner_id: number;
  readable: boolean;
  problem: string;
}
export interface DroppedArtifact {
  name: string;
  reason: string;
  limit?: number;
  setting?: string;
  optional?: boolean;
}
export interface JobResult extends JobState {
  result: { [name: string]: Json };
  error_info?: Detail;
  usage?: Detail;
  artifacts?: Detail;
  artifacts_dropped?: DroppedArtifact[];
  layers?: string;
  receipt?: Detail;
}
export interface JobReason {
  key: string;
  state: string;
  cause: string;
  reason: string;
  evidence: unknown;
  next: unknown;
}
export interface LogLine {
  seq: number;
  stream: "stdout" | "stderr" | "system";
  text: string;
  ts_ms: number;
}
export interface FlowState {
  id: number;
  status: string;
  detail: string;
  revision: number;
}
export interface FlowResult {
  id: number;
  status: "dispatched" | "started" | "error" | "finished";
  detail: string;
  error: string;
  ended: boolean;
  result: { [name: string]: Json };
}
export interface Event {
  kind: "fact" | "flow" | "log" | "job" | string;
  id: string;
  data: { [name: string]: any };
}
export interface WaitOptions {
  /** Time after which WaitTimeout is thrown. */
  timeout?: Duration;
  signal?: AbortSignal;
}

export class Client {
  /** options: a server's address, or an object. */
  constructor(options?: string | URL | ClientOptions);
  readonly context: number | undefined;
  /** Calls any method of the contract. repeat: whether to send the call again without a response; answerWithin: 60 s. */
  call<T = any>(method: string, params?: object, options?: { repeat?: boolean; signal?: AbortSignal; answerWithin?: Duration }): Promise<T>;
  submit(script: string, options?: SubmitOptions): Promise<Job>;
  /** Sends a file to the server, for `files` of jobs. Files of more than 1 MiB must be uploaded. */
  upload(path: string | URL, options?: { callerId?: number; signal?: AbortSignal }): Promise<Upload>;
  /** key: "CALLER:ID", "job:CALLER:ID", or an id of the token's own caller. */
  job(key: string | number): Job;
  /** definition: docs/flows.md */
  flowStart(
    definition: object,
    options?: { inputs?: Record<string, Json>; env?: Record<string, string>; notify?: Json; idempotencyKey?: string; traceparent?: string },
  ): Promise<Flow>;
  flow(id: number): Flow;
  /** Events of a flow or a job until its end, otherwise of all flows of the context. Reconnects after a lost connection. */
  events(options?: { flow?: number; job?: string; after?: string; signal?: AbortSignal }): AsyncGenerator<Event, void>;
}

/** The name is a relative path that the job has chosen: do not use it as a path unchecked. */
export interface Artifact extends Readonly<ArtifactInfo> {}
export class Artifact {
  private constructor();
  /** Downloads the file to a temporary file in the same folder, verifies size and SHA-256, and then replaces `path`. */
  save(path: string | URL, options?: { signal?: AbortSignal }): Promise<void>;
}

export class Job {
  private constructor();
  readonly key: string;
  readonly id: number;
  status(): Promise<JobState>;
  wait(limits?: WaitOptions): Promise<JobState>;
  result<T = { [name: string]: Json }>(limits?: WaitOptions): Promise<T>;
  logs(options?: { follow?: boolean; after?: number; signal?: AbortSignal }): AsyncGenerator<LogLine, void>;
  artifacts(): Promise<Artifact[]>;
  cancel(): Promise<JobState>;
  retry(): Promise<JobState>;
  restart(): Promise<Job>;
  explain(): Promise<JobReason>;
}

export class Flow {
  private constructor();
  readonly id: number;
  status(): Promise<FlowResult>;
  dag(): Promise<Detail>;
  explain(): Promise<Detail[]>;
  wait(limits?: WaitOptions): Promise<FlowResult>;
  result(limits?: WaitOptions): Promise<{ [name: string]: Json }>;
  approve(name: string, comment?: string): Promise<FlowState>;
  reject(name: string, comment?: string): Promise<FlowState>;
  signal(name: string, payload?: Json): Promise<FlowState>;
  cancel(comment?: string): Promise<FlowState>;
  pause(comment?: string): Promise<FlowState>;
  resume(node?: string): Promise<FlowState>;
  retry(node?: string, options?: { allowIrreversible?: boolean }): Promise<FlowState>;
}

/** `text`: the original text; `message`: safe for a terminal, with the remedy. */
export class MycojobsError extends Error {
  readonly text: string;
  /** The error code of JSON-RPC, or 0 if the error is not from a server. */
  readonly code: number;
  readonly word: string;
  /** The parameter in question, or "". */
  readonly field: string;
  readonly remedy: string;
}
export class Invalid extends MycojobsError {}
export class NotFound extends MycojobsError {}
export class Conflict extends MycojobsError {}
export class Denied extends MycojobsError {}
export class Unavailable extends MycojobsError {
  /** Is false if the server cannot have executed the call. */
  sent: boolean;
}
export class TooLarge extends MycojobsError {}
export class Unsupported extends MycojobsError {}
export class WaitTimeout extends MycojobsError {}
export class JobFailed extends MycojobsError {
  readonly state: JobResult;
  readonly detail: string;
  readonly errorInfo: { type?: string; message?: string; traceback?: string; line?: number; exit?: number; signal?: number };
}
export class JobCancelled extends JobFailed {}
export class FlowFailed extends MycojobsError {
  readonly state: FlowResult;
  readonly detail: string;
}
/** Maps codes of JSON-RPC to exceptions. */
export const CODES: Record<string, typeof MycojobsError>;
