// Calls the server and receives its event streams, with the token of the user. Token and key are stored only in the memory
// of this module, so a reload of the page deletes them.
import {encode_login} from './key.js';
import {parseJson, stringifyJson} from '../../clients/node/exact_json.js';

let token = '';
let login_key = null;  // The user's key, which signs logins, or null if the user has logged in by token.
let handle_denied = () => {};
export const set_token = (text) => { token = text; };
export const has_token = () => token !== '';
export const set_denied_handler = (handler) => { handle_denied = handler; };

// The error of a call. error_code is the field `word` of the answer, for example 'not_found', or 'unreachable' or 'io' for
// errors that this module detects.
export class RpcError extends Error {
  constructor(message, error_code, remedy, field) {
    super(message);
    Object.assign(this, {error_code, remedy, field});
  }
}

const make_headers = (extra_headers = {}) => (token ? {...extra_headers, Authorization: `Bearer ${token}`} : extra_headers);
const fetch_path = (path, options) =>
  fetch(path, {cache: 'no-store', ...options, credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer'});

// Loads the JSON file whose address index.html has in <meta name=NAME>.
export const load_asset = async (name) => (await fetch_path(document.querySelector(`meta[name=${name}]`).content, {cache: 'default'})).json();

let next_id = 1;
const format_request = (method, params) => stringifyJson({jsonrpc: '2.0', id: next_id++, method, params});
const to_rpc_error = ({message, data}) => new RpcError(message, data?.word ?? 'io', data?.remedy ?? '', data?.field);

// ---- sessions: logins by key ----

// A call is repeated after the error `unavailable`, which the server returns for an unknown key until it has read all
// actors.
const LOGIN_RETRY_MS = 1200, MAX_LOGIN_ATTEMPTS = 10;
async function call_session_method(method, params = {}) {
  for (let attempt = 1; ; attempt++) {
    const response = await fetch_path('/session', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: format_request(method, params)})
      .catch(() => { throw new RpcError('the server cannot be reached', 'unreachable', 'it is tried again'); });
    const answer = await response.json().catch(() => ({error: {message: `the server answered ${response.status}`}}));
    if (!answer.error) return answer.result;
    if (answer.error.data?.word !== 'unavailable' || attempt === MAX_LOGIN_ATTEMPTS) throw to_rpc_error(answer.error);
    await new Promise((resolve) => setTimeout(resolve, LOGIN_RETRY_MS));
  }
}
export async function log_in_by_key(user_key) {
  const {challenge, audience} = await call_session_method('session.challenge');
  if (audience !== location.origin) throw new RpcError(`the server has the name ${audience}, which differs from this page: no challenge is signed`, 'denied', '');
  const fields = {algorithm: 'ed25519', audience, challenge, signer: user_key.signer};
  const session = await call_session_method('session.begin', {...fields, signature: await user_key.sign(encode_login(fields))});
  [login_key, token] = [user_key, session.token];
}
let pending_renewal = null;
const renew_session = () => (pending_renewal ??= log_in_by_key(login_key).finally(() => { pending_renewal = null; }));
// Ends the session on the server. A token of the tokens file is only deleted in this page.
export function log_out() {
  if (login_key && token) fetch_path('/rpc', {method: 'POST', keepalive: true, headers: make_headers({'Content-Type': 'application/json'}), body: format_request('session.end', {})}).catch(() => {});
  [login_key, token] = [null, ''];
}

// Replaces a token that the server has refused. Returns true if another token is set: a concurrent call has replaced the
// token, or this call has begun a new session with the key. Shows the login and returns false if there is no key or the
// key is refused. Throws if the server is unavailable.
async function ensure_new_token(refused_token) {
  if (token && token !== refused_token) return true;
  if (login_key) {
    try {
      await renew_session();
      return true;
    } catch (error) {
      if (error.error_code === 'unreachable' || error.error_code === 'unavailable') throw error;
    }
  }
  handle_denied();
  return false;
}

export async function rpc(method, params = {}, signal = undefined, is_retry = false) {
  const used_token = token;
  let response;
  let slow_timer = setTimeout(function check_slow_call() {
    check_ready();
    slow_timer = setTimeout(check_slow_call, READY_POLL_INTERVAL_MS);
  }, SLOW_CALL_MS);
  try {
    response = await fetch_path('/rpc', {method: 'POST', signal, headers: make_headers({'Content-Type': 'application/json'}),
      body: format_request(method, params)});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new RpcError('the server cannot be reached', 'unreachable', 'it is tried again');
  } finally {
    clearTimeout(slow_timer);
  }
  if (response.status === 401) {
    if (!is_retry && await ensure_new_token(used_token)) return rpc(method, params, signal, true);
    if (is_retry) handle_denied();
    throw new RpcError('the caller is unknown', 'denied', 'log in with a token');
  }
  let answer;
  try {
    answer = parseJson(await response.text());
  } catch {
    throw new RpcError(`the server answered ${response.status}`, 'io', 'call again');
  }
  if (answer.error?.data?.word === 'unavailable') report_store_error(0, answer.error.message);
  if (answer.error) throw to_rpc_error(answer.error);
  return answer.result;
}

// Reads at most max_bytes from the begin of a file, by a link of artifact.get. REQUIRES: the file is not empty.
export async function read_file(link, max_bytes) {
  const response = await fetch_path(link, {headers: {Range: `bytes=0-${max_bytes - 1}`}})
    .catch(() => { throw new RpcError('the server cannot be reached', 'unreachable', 'try it again'); });
  if (response.ok) return new Uint8Array(await response.arrayBuffer()).subarray(0, max_bytes);
  const answer = await response.json().catch(() => ({}));
  throw to_rpc_error(answer.error ?? {message: `the server answered ${response.status}`});
}

// State of the connection: 'live', 'away' (no server), or 'store' (the server answers, but its store is unavailable).
const connection_listeners = new Set();
let connection_state = 'live';
export const get_connection_state = () => connection_state;
export function watch_connection(listener) {
  connection_listeners.add(listener);
  return () => connection_listeners.delete(listener);
}
function set_connection_state(state) {
  if (connection_state === state) return;
  connection_state = state;
  for (const listener of connection_listeners) listener(state);
}
// A busy server also answers 'unavailable', so the store is reported as unavailable only if the error persists. No
// event reports reliably that the store is available again, so the page calls jobs.page every PROBE_INTERVAL_MS until
// the call no longer fails because of the store. A call that takes longer than SLOW_CALL_MS starts checks of /readyz
// every READY_POLL_INTERVAL_MS.
const PROBE_INTERVAL_MS = 2000, READY_POLL_INTERVAL_MS = 500, SLOW_CALL_MS = 1000;
let store_outage = null;
export const get_store_outage = () => store_outage ?? {since_ms: Date.now(), message: ''};  // since_ms is a time of the clock of this host.
// Reports an error of the store that has lasted for duration_ms, or 0 if only one call has failed.
export function report_store_error(duration_ms, message) {
  const is_first_error = !store_outage;
  store_outage ??= {since_ms: Date.now() - duration_ms, message};
  if (duration_ms >= PROBE_INTERVAL_MS) set_connection_state('store');
  else if (is_first_error) setTimeout(poll_ready, 0);
  if (is_first_error) setTimeout(probe_store, PROBE_INTERVAL_MS);
}
// Reads the state of the store from /readyz, which the server answers immediately, while calls wait for the store.
let is_checking = false;
async function check_ready() {
  if (is_checking || connection_state === 'store') return;
  is_checking = true;
  const sharing_timer = setTimeout(start_connection_sharing, READY_TIMEOUT_MS);
  const answer = await fetch_path('/readyz', {}).then((response) => response.json()).catch(() => ({}));
  clearTimeout(sharing_timer);
  is_checking = false;
  if (String(answer.reason ?? '').startsWith('Redis is unavailable')) report_store_error(PROBE_INTERVAL_MS, answer.reason);
}
function poll_ready() {
  if (!store_outage || connection_state === 'store') return;
  check_ready();
  setTimeout(poll_ready, READY_POLL_INTERVAL_MS);
}
export function clear_store_error() {
  store_outage = null;
  if (connection_state === 'store') set_connection_state('live');
}
async function probe_store() {
  if (!store_outage) return;
  const error = await rpc('jobs.page', {limit: 1}).then(() => null, (problem) => problem);
  if (!store_outage) return;
  if (!['unavailable', 'unreachable', 'io'].includes(error?.error_code)) return clear_store_error();
  if (error.error_code === 'unavailable') set_connection_state('store');
  setTimeout(probe_store, PROBE_INTERVAL_MS);
}

// Returns a parser of server-sent events: call it with each received text, and it calls on_event({event, id, data}). An
// event with an id and no data reports the position at which the stream begins.
export function create_event_parser(on_event) {
  let buffer = '';
  return (text) => {
    buffer += text;
    let start = 0;
    for (let end = buffer.indexOf('\n\n', start); end >= 0; end = buffer.indexOf('\n\n', start)) {
      const block = buffer.slice(start, end);
      start = end + 2;
      const event = {event: 'message', id: '', data: ''};
      for (const field of block.split('\n')) {
        const colon = field.indexOf(':');
        if (colon > 0) event[field.slice(0, colon)] = field.slice(colon + 1).trimStart();
      }
      if (event.data || event.id) on_event(event);
    }
    buffer = buffer.slice(start);
  };
}

const MIN_RECONNECT_DELAY_MS = 500, MAX_RECONNECT_DELAY_MS = 5000, MAX_SILENCE_MS = 40000, MAX_HIDDEN_MS = 5000;

// A browser opens at most six connections to a server for all of its pages. If event streams use all connections, calls
// are blocked. Therefore, if /readyz is not answered within READY_TIMEOUT_MS, the streams share the connections for
// SHARING_PERIOD_MS: each stream receives the new events, closes its connection after SHARED_CONNECTION_MS, and reconnects
// after SHARED_RECONNECT_DELAY_MS.
const READY_TIMEOUT_MS = 2000, SHARING_PERIOD_MS = 60000, SHARED_CONNECTION_MS = 400, SHARED_RECONNECT_DELAY_MS = 2000, SERVER_CHECK_INTERVAL_MS = 15000;
let sharing_end_ms = 0;
const open_streams = new Set();
const is_sharing_connections = () => Date.now() < sharing_end_ms;
function start_connection_sharing() {
  const was_sharing = is_sharing_connections();
  sharing_end_ms = Date.now() + SHARING_PERIOD_MS;
  if (!was_sharing) for (const release_connection of open_streams) release_connection();
}
// Checks the server when the page becomes visible, and regularly while streams are open. Otherwise a page that makes no
// calls would not detect that its streams block the calls of other pages.
export function watch_server() {
  document.addEventListener('visibilitychange', () => { if (!document.hidden) check_ready(); });
  setInterval(() => { if (!document.hidden && open_streams.size) check_ready(); }, SERVER_CHECK_INTERVAL_MS);
}

// Opens an event stream. The stream reconnects after errors and resumes after the last received event. When the page has
// been hidden for MAX_HIDDEN_MS, the stream is closed until the page is visible again. Calls on_event(event, data) for each
// event, and on_stream_ended(message, error_code) if the server has ended the stream permanently. Returns a function that
// closes the stream.
export function open_event_stream(query, on_event, on_stream_ended = () => {}) {
  let is_closed = false, last_event_id = '', reconnect_delay_ms = MIN_RECONNECT_DELAY_MS, current_controller = null, reconnect_timer = 0, hidden_timer = 0, release_timer = 0;
  const reconnect = () => {
    if (is_closed || document.hidden && is_suspended) return;
    const min_delay_ms = is_sharing_connections() ? Math.max(reconnect_delay_ms, SHARED_RECONNECT_DELAY_MS) : reconnect_delay_ms;
    reconnect_timer = setTimeout(listen, min_delay_ms + Math.random() * min_delay_ms);
    reconnect_delay_ms = Math.min(reconnect_delay_ms * 2, MAX_RECONNECT_DELAY_MS);
  };
  let is_suspended = false;
  let released_controller = null;  // Controller of the connection that release_connection() has closed.
  const release_connection = () => {
    clearTimeout(release_timer);
    released_controller = current_controller;
    current_controller?.abort();
  };
  open_streams.add(release_connection);
  async function listen() {
    current_controller = new AbortController();
    const own_controller = current_controller, used_token = token;
    let silence_timer = 0;
    const restart_silence_timer = () => {
      clearTimeout(silence_timer);
      silence_timer = setTimeout(() => own_controller.abort(), MAX_SILENCE_MS);
    };
    try {
      restart_silence_timer();
      const response = await fetch_path(`/events?${query}`, {signal: own_controller.signal, headers: make_headers(last_event_id ? {'Last-Event-ID': last_event_id} : {})});
      if (response.status === 401) {
        if (await ensure_new_token(used_token)) reconnect();
        return;
      }
      if (response.status >= 400 && response.status < 500) {
        const answer = await response.json().catch(() => ({}));
        is_closed = true;
        return on_stream_ended(answer.error?.message ?? `the server answered ${response.status}`, answer.error?.data?.word);
      }
      if (response.status === 503) {
        const answer = await response.json().catch(() => ({}));
        if (answer.error?.data?.word !== 'unavailable') throw new Error('503');
        report_store_error(0, answer.error.message);
        return reconnect();
      }
      if (!response.ok) throw new Error(String(response.status));
      if (connection_state === 'away') set_connection_state('live');
      let has_received_data = false;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parse_events = create_event_parser(({event, id, data}) => {
        reconnect_delay_ms = MIN_RECONNECT_DELAY_MS;
        if (id) last_event_id = id;
        if (!data) return;
        if (event === 'gone') is_closed = true;
        const value = parseJson(data);
        if (event === 'gone') on_stream_ended(value.message);
        else if (event !== 'refused') on_event(event, value);
      });
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        restart_silence_timer();
        if (!has_received_data && is_sharing_connections()) release_timer = setTimeout(release_connection, SHARED_CONNECTION_MS);
        has_received_data = true;
        parse_events(value);
      }
      if (!is_closed) reconnect();
    } catch (error) {
      if (is_closed || own_controller !== current_controller) return;
      if (released_controller === own_controller) return reconnect();
      if (error.name !== 'AbortError' || !is_suspended) {
        set_connection_state('away');
        reconnect();
      }
    } finally {
      clearTimeout(silence_timer);
      if (own_controller === current_controller) clearTimeout(release_timer);
    }
  }
  function on_visibility_change() {
    clearTimeout(hidden_timer);
    if (document.hidden) {
      hidden_timer = setTimeout(() => { is_suspended = true; clearTimeout(reconnect_timer); current_controller?.abort(); }, MAX_HIDDEN_MS);
    } else if (is_suspended) {
      is_suspended = false;
      reconnect_delay_ms = MIN_RECONNECT_DELAY_MS;
      listen();
    }
  }
  document.addEventListener('visibilitychange', on_visibility_change);
  listen();
  return () => {
    is_closed = true;
    open_streams.delete(release_connection);
    clearTimeout(reconnect_timer);
    clearTimeout(release_timer);
    clearTimeout(hidden_timer);
    document.removeEventListener('visibilitychange', on_visibility_change);
    current_controller?.abort();
  };
}
