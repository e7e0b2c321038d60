// Client of the server: JSON-RPC calls and event streams, with the token of the user. Token and key are stored only in the
// memory of this module, so a reload deletes them.
import {encode_login} from './key.js';
import {parseJson, stringifyJson} from '../../clients/node/exact_json.js';

let token = '';
let key = null;  // the user's key, which signs logins; null: login by token
let handle_denied = () => {};
export const set_token = (text) => { token = text; };
export const has_token = () => token !== '';
export const set_denied_handler = (handler) => { handle_denied = handler; };

// error_code is the field `word` of the answer, for example 'not_found'; the page adds 'unreachable' and 'io'.
export class RpcError extends Error {
  constructor(message, error_code, remedy, field) {
    super(message);
    Object.assign(this, {error_code, remedy, field});
  }
}

const headers = (extra_headers = {}) => (token ? {...extra_headers, Authorization: `Bearer ${token}`} : extra_headers);
const fetch_path = (path, options) =>
  fetch(path, {cache: 'no-store', ...options, credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer'});

// Loads the JSON file whose address index.html has in <meta name=NAME>.
export const load_asset = async (name) => (await fetch_path(document.querySelector(`meta[name=${name}]`).content, {cache: 'default'})).json();

let next_id = 1;
const format_request = (method, params) => stringifyJson({jsonrpc: '2.0', id: next_id++, method, params});
const to_rpc_error = ({message, data}) => new RpcError(message, data?.word ?? 'io', data?.remedy ?? '', data?.field);

// ---- sessions: logins by key ----

// Until the server has scanned its actors, it answers `unavailable` for an unknown key, so the call is repeated.
const LOGIN_RETRY_MS = 1200, MAX_LOGIN_TRIES = 10;
async function call_session_method(method, params = {}) {
  for (let tries = 1; ; tries++) {
    const response = await fetch_path('/session', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: format_request(method, params)})
      .catch(() => { throw new RpcError('the server cannot be reached', 'unreachable', 'it is tried again'); });
    const answer = await response.json().catch(() => ({error: {message: `the server answered ${response.status}`}}));
    if (!answer.error) return answer.result;
    if (answer.error.data?.word !== 'unavailable' || tries === MAX_LOGIN_TRIES) throw to_rpc_error(answer.error);
    await new Promise((resolve) => setTimeout(resolve, LOGIN_RETRY_MS));
  }
}
export async function log_in_by_key(user_key) {
  const {challenge, audience} = await call_session_method('session.challenge');
  if (audience !== location.origin) throw new RpcError(`the server has the name ${audience}, which differs from this page: no challenge is signed`, 'denied', '');
  const fields = {algorithm: 'ed25519', audience, challenge, signer: user_key.signer};
  const session = await call_session_method('session.begin', {...fields, signature: await user_key.sign(encode_login(fields))});
  [key, token] = [user_key, session.token];
}
let renewal = null;
const renew_session = () => (renewal ??= log_in_by_key(key).finally(() => { renewal = null; }));
// Ends the session on the server. A token of the tokens file is only deleted in this page.
export function log_out() {
  if (key && token) fetch_path('/rpc', {method: 'POST', keepalive: true, headers: headers({'Content-Type': 'application/json'}), body: format_request('session.end', {})}).catch(() => {});
  [key, token] = [null, ''];
}

// Called after the server has refused a token. Returns true if another token is set now, if necessary by a new session.
// Without a key, or if the key is refused, shows the login and returns false. Throws if the server is unavailable.
async function ensure_new_token(refused_token) {
  if (token && token !== refused_token) return true;
  if (key) {
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
    response = await fetch_path('/rpc', {method: 'POST', signal, headers: headers({'Content-Type': 'application/json'}),
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

// State of the connection: 'live', 'away' (no server), or 'store' (the server answers, but its store is unavailable).
const watchers = new Set();
let connection_state = 'live';
export const get_connection_state = () => connection_state;
export function watch_connection(listener) {
  watchers.add(listener);
  return () => watchers.delete(listener);
}
function set_connection_state(state) {
  if (connection_state === state) return;
  connection_state = state;
  for (const listener of watchers) listener(state);
}
// A busy server also answers 'unavailable', so the store is reported as unavailable only if the error persists. No event
// reports reliably that the store is available again, so the page calls jobs.page every PROBE_INTERVAL_MS until the call
// no longer fails because of the store. A call that takes longer than SLOW_CALL_MS starts checks of /readyz every READY_POLL_INTERVAL_MS.
const PROBE_INTERVAL_MS = 2000, READY_POLL_INTERVAL_MS = 500, SLOW_CALL_MS = 1000;
let outage = null;
export const get_store_outage = () => outage ?? {since_ms: Date.now(), message: ''};  // since_ms: in the time of this host
export function report_store_error(for_ms, message) {
  const is_first = !outage;
  outage ??= {since_ms: Date.now() - for_ms, message};
  if (for_ms >= PROBE_INTERVAL_MS) set_connection_state('store');  // even if a failed call was the first sign
  else if (is_first) setTimeout(poll_ready, 0);
  if (is_first) setTimeout(probe_store, PROBE_INTERVAL_MS);
}
// Reads the state of the store from the server. /readyz is answered immediately, while calls wait for the store.
let is_checking = false;
async function check_ready() {
  if (is_checking || connection_state === 'store') return;
  is_checking = true;
  const crowd_timer = setTimeout(start_taking_turns, CROWD_TIMEOUT_MS);
  const answer = await fetch_path('/readyz', {}).then((response) => response.json()).catch(() => ({}));
  clearTimeout(crowd_timer);
  is_checking = false;
  if (String(answer.reason ?? '').startsWith('Redis is unavailable')) report_store_error(PROBE_INTERVAL_MS, answer.reason);
}
function poll_ready() {
  if (!outage || connection_state === 'store') return;
  check_ready();
  setTimeout(poll_ready, READY_POLL_INTERVAL_MS);
}
export function clear_store_error() {
  outage = null;
  if (connection_state === 'store') set_connection_state('live');
}
async function probe_store() {
  if (!outage) return;
  const error = await rpc('jobs.page', {limit: 1}).then(() => null, (problem) => problem);
  if (!outage) return;
  if (!['unavailable', 'unreachable', 'io'].includes(error?.error_code)) return clear_store_error();
  if (error.error_code === 'unavailable') set_connection_state('store');
  setTimeout(probe_store, PROBE_INTERVAL_MS);
}

// Returns a parser of server-sent events: call it with each received text, and it calls on_event({event, id, data}). An event
// with an id and no data reports the position at which the stream begins.
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

// A browser opens at most six connections to a server for all of its pages. If event streams occupy all of them, calls are
// blocked, so that /readyz is not answered. For CROWDED_PERIOD_MS the streams then take turns: each receives the new
// events, closes its connection, and reconnects after a pause.
const CROWD_TIMEOUT_MS = 2000, CROWDED_PERIOD_MS = 60000, TURN_MS = 400, TURN_PAUSE_MS = 2000, SERVER_CHECK_INTERVAL_MS = 15000;
let crowded_until = 0;
const open_streams = new Set();
const is_crowded = () => Date.now() < crowded_until;
function start_taking_turns() {
  const was_crowded = is_crowded();
  crowded_until = Date.now() + CROWDED_PERIOD_MS;
  if (!was_crowded) for (const release_connection of open_streams) release_connection();
}
// Checks the server when the page becomes visible, and regularly while streams are open. Otherwise a page that makes no
// calls would not detect that its streams block the calls of other pages.
export function watch_server() {
  document.addEventListener('visibilitychange', () => { if (!document.hidden) check_ready(); });
  setInterval(() => { if (!document.hidden && open_streams.size) check_ready(); }, SERVER_CHECK_INTERVAL_MS);
}

// Opens an event stream. It reconnects after errors and resumes after the last received event. It is closed while the page
// is hidden for more than MAX_HIDDEN_MS. Calls on_event(event, data) for each event. Calls on_gone(message, error_code) if
// the server has ended the stream permanently. Returns a function that closes the stream.
export function open_event_stream(query, on_event, on_gone = () => {}) {
  let is_closed = false, last_event_id = '', reconnect_delay_ms = MIN_RECONNECT_DELAY_MS, current_controller = null, reconnect_timer = 0, hidden_timer = 0, turn_timer = 0;
  const reconnect = () => {
    if (is_closed || document.hidden && is_suspended) return;
    const min_delay_ms = is_crowded() ? Math.max(reconnect_delay_ms, TURN_PAUSE_MS) : reconnect_delay_ms;
    reconnect_timer = setTimeout(listen, min_delay_ms + Math.random() * min_delay_ms);
    reconnect_delay_ms = Math.min(reconnect_delay_ms * 2, MAX_RECONNECT_DELAY_MS);
  };
  // released_controller: controller of the connection that was closed to let other streams take their turn.
  let is_suspended = false, released_controller = null;
  const release_connection = () => {
    clearTimeout(turn_timer);
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
      const response = await fetch_path(`/events?${query}`, {signal: own_controller.signal, headers: headers(last_event_id ? {'Last-Event-ID': last_event_id} : {})});
      if (response.status === 401) {
        if (await ensure_new_token(used_token)) reconnect();
        return;
      }
      if (response.status >= 400 && response.status < 500) {
        const answer = await response.json().catch(() => ({}));
        is_closed = true;
        return on_gone(answer.error?.message ?? `the server answered ${response.status}`, answer.error?.data?.word);
      }
      if (response.status === 503) {
        const answer = await response.json().catch(() => ({}));
        if (answer.error?.data?.word !== 'unavailable') throw new Error('503');
        report_store_error(0, answer.error.message);
        return reconnect();
      }
      if (!response.ok) throw new Error(String(response.status));
      if (connection_state === 'away') set_connection_state('live');
      let has_received = false;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parse_events = create_event_parser(({event, id, data}) => {
        reconnect_delay_ms = MIN_RECONNECT_DELAY_MS;
        if (id) last_event_id = id;
        if (!data) return;
        if (event === 'gone') is_closed = true;
        const value = parseJson(data);
        if (event === 'gone') on_gone(value.message);
        else if (event !== 'refused') on_event(event, value);
      });
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        restart_silence_timer();
        if (!has_received && is_crowded()) turn_timer = setTimeout(release_connection, TURN_MS);
        has_received = true;
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
      if (own_controller === current_controller) clearTimeout(turn_timer);
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
    clearTimeout(turn_timer);
    clearTimeout(hidden_timer);
    document.removeEventListener('visibilitychange', on_visibility_change);
    current_controller?.abort();
  };
}
