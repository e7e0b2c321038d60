// Client of the server: JSON-RPC calls and event streams, with the token of the user. Token and key are stored only in the
// memory of this module, so a reload deletes them.
import {login_bytes} from './key.js';
import {parseJson, stringifyJson} from '../../clients/node/exact_json.js';

let token = '';
let key = null;  // the user's key, which signs logins; null: login by token
let on_denied = () => {};
export const set_token = (text) => { token = text; };
export const has_token = () => token !== '';
export const when_denied = (then) => { on_denied = then; };

export class RpcError extends Error {
  constructor(message, word, remedy, field) {
    super(message);
    Object.assign(this, {word, remedy, field});
  }
}

const headers = (more = {}) => (token ? {...more, Authorization: `Bearer ${token}`} : more);
const fetched = (path, options) =>
  fetch(path, {cache: 'no-store', ...options, credentials: 'omit', redirect: 'error', referrerPolicy: 'no-referrer'});

// Loads the JSON file whose address index.html has in <meta name=NAME>.
export const asset = async (name) => (await fetched(document.querySelector(`meta[name=${name}]`).content, {cache: 'default'})).json();

let next_id = 1;
const body_of = (method, params) => stringifyJson({jsonrpc: '2.0', id: next_id++, method, params});
const error_of = ({message, data}) => new RpcError(message, data?.word ?? 'io', data?.remedy ?? '', data?.field);

// ---- sessions: logins by key ----

// The server answers `unavailable` for an unknown key until it has scanned its actors, so the call is repeated.
const UNKNOWN_MS = 1200, MOST_TRIES = 10;
async function session_call(method, params = {}) {
  for (let tries = 1; ; tries++) {
    const response = await fetched('/session', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: body_of(method, params)})
      .catch(() => { throw new RpcError('the server cannot be reached', 'unreachable', 'it is tried again'); });
    const answer = await response.json().catch(() => ({error: {message: `the server answered ${response.status}`}}));
    if (!answer.error) return answer.result;
    if (answer.error.data?.word !== 'unavailable' || tries === MOST_TRIES) throw error_of(answer.error);
    await new Promise((then) => setTimeout(then, UNKNOWN_MS));
  }
}
async function begin_session(by) {
  const {challenge, audience} = await session_call('session.challenge');
  if (audience !== location.origin) throw new RpcError(`the server has the name ${audience}, which differs from this page: no challenge is signed`, 'denied', '');
  const said = {algorithm: 'ed25519', audience, challenge, signer: by.signer};
  const session = await session_call('session.begin', {...said, signature: await by.sign(login_bytes(said))});
  [key, token] = [by, session.token];
}
export const log_in_by_key = begin_session;
let renewing = null;
const log_in_again = () => (renewing ??= begin_session(key).finally(() => { renewing = null; }));
// Ends the session on the server. A token of the tokens file is only deleted in this page.
export function log_out() {
  if (key && token) fetched('/rpc', {method: 'POST', keepalive: true, headers: headers({'Content-Type': 'application/json'}), body: body_of('session.end', {})}).catch(() => {});
  [key, token] = [null, ''];
}

// Called after the server has refused a token. Returns true if there is another token now, if necessary by a new session.
// Without a key, or if the key is refused, shows the login and returns false. Throws if the server is unavailable.
async function has_other_token(refused) {
  if (token && token !== refused) return true;
  if (key) {
    try {
      await log_in_again();
      return true;
    } catch (error) {
      if (error.word === 'unreachable' || error.word === 'unavailable') throw error;
    }
  }
  on_denied();
  return false;
}

export async function rpc(method, params = {}, signal = undefined, tried = false) {
  const by = token;
  let response;
  let slow = setTimeout(function still() {
    ask_ready();
    slow = setTimeout(still, READY_MS);
  }, SLOW_MS);
  try {
    response = await fetched('/rpc', {method: 'POST', signal, headers: headers({'Content-Type': 'application/json'}),
      body: body_of(method, params)});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new RpcError('the server cannot be reached', 'unreachable', 'it is tried again');
  } finally {
    clearTimeout(slow);
  }
  if (response.status === 401) {
    if (!tried && await has_other_token(by)) return rpc(method, params, signal, true);
    if (tried) on_denied();
    throw new RpcError('the caller is unknown', 'denied', 'log in with a token');
  }
  let answer;
  try {
    answer = parseJson(await response.text());
  } catch {
    throw new RpcError(`the server answered ${response.status}`, 'io', 'call again');
  }
  if (answer.error?.data?.word === 'unavailable') suspect_store(0, answer.error.message);
  if (answer.error) throw error_of(answer.error);
  return answer.result;
}

// State of the connection: 'live', 'away' (no server), or 'store' (the server answers, but its store is unavailable).
const watchers = new Set();
let health = 'live';
export const connection = () => health;
export function watch_connection(then) {
  watchers.add(then);
  return () => watchers.delete(then);
}
function report(now) {
  if (health === now) return;
  health = now;
  for (const each of watchers) each(now);
}
// A busy server also answers 'unavailable', so the store is reported as unavailable only if the error persists. Not every
// stream reports its return, so the page polls the store.
const PROBE_MS = 2000, READY_MS = 500, SLOW_MS = 1000;
let suspected = null;
export const store_away = () => suspected ?? {since_ms: Date.now(), message: ''};  // since_ms: in the time of this host
export function suspect_store(for_ms, message) {
  const first = !suspected;
  suspected ??= {since_ms: Date.now() - for_ms, message};
  if (for_ms >= PROBE_MS) report('store');  // even if a failed call was the first sign
  else if (first) setTimeout(watch_ready, 0);
  if (first) setTimeout(probe, PROBE_MS);
}
// Asks the server for the state of its store. /readyz is answered immediately, while calls wait for the store.
let asking = false;
async function ask_ready() {
  if (asking || health === 'store') return;
  asking = true;
  const crowd = setTimeout(take_turns, CROWD_MS);
  const answer = await fetched('/readyz', {}).then((response) => response.json()).catch(() => ({}));
  clearTimeout(crowd);
  asking = false;
  if (String(answer.reason ?? '').startsWith('the store is away')) suspect_store(PROBE_MS, answer.reason);
}
function watch_ready() {
  if (!suspected || health === 'store') return;
  ask_ready();
  setTimeout(watch_ready, READY_MS);
}
export function store_is_back() {
  suspected = null;
  if (health === 'store') report('live');
}
async function probe() {
  if (!suspected) return;
  const error = await rpc('jobs.page', {limit: 1}).then(() => null, (wrong) => wrong);
  if (!suspected) return;
  if (!['unavailable', 'unreachable', 'io'].includes(error?.word)) return store_is_back();
  if (error.word === 'unavailable') report('store');
  setTimeout(probe, PROBE_MS);
}

// Returns a parser of server-sent events: call it with each received text, and it calls then({event, id, data}). An event
// with an id and no data reports the position at which the stream begins.
export function event_reader(then) {
  let rest = '';
  return (text) => {
    rest += text;
    let from = 0;
    for (let end = rest.indexOf('\n\n', from); end >= 0; end = rest.indexOf('\n\n', from)) {
      const block = rest.slice(from, end);
      from = end + 2;
      const found = {event: 'message', id: '', data: ''};
      for (const each of block.split('\n')) {
        const colon = each.indexOf(':');
        if (colon > 0) found[each.slice(0, colon)] = each.slice(colon + 1).trimStart();
      }
      if (found.data || found.id) then(found);
    }
    rest = rest.slice(from);
  };
}

const PAUSE_MS = 500, LONGEST_PAUSE_MS = 5000, SILENCE_MS = 40000, HIDDEN_MS = 5000;

// A browser opens at most six connections to a server for all of its pages. If event streams occupy all of them, calls are
// blocked, which shows as a missing answer of /readyz. For CROWDED_MS the streams then take turns: each receives the new
// events, closes its connection, and reconnects after a pause.
const CROWD_MS = 2000, CROWDED_MS = 60000, TURN_MS = 400, TURN_PAUSE_MS = 2000, ASKED_MS = 15000;
let crowded_until = 0;
const open_streams = new Set();
const crowded = () => Date.now() < crowded_until;
function take_turns() {
  const already = crowded();
  crowded_until = Date.now() + CROWDED_MS;
  if (!already) for (const let_go of open_streams) let_go();
}
// Checks the server when the page becomes visible, and regularly while streams are open. Otherwise a page that makes no
// calls would not detect that its streams block the calls of other pages.
export function watch_server() {
  document.addEventListener('visibilitychange', () => { if (!document.hidden) ask_ready(); });
  setInterval(() => { if (!document.hidden && open_streams.size) ask_ready(); }, ASKED_MS);
}

// Opens an event stream. It reconnects after errors and resumes after the last received event. It is closed while the page
// is hidden for more than HIDDEN_MS. Calls on(event, data) for each event, and on_gone(message, word) if the server has
// ended the stream permanently. Returns a function that closes the stream.
export function events(query, on, on_gone = () => {}) {
  let over = false, last = '', pause = PAUSE_MS, abort = null, timer = 0, hidden_timer = 0, turn = 0;
  const again = () => {
    if (over || document.hidden && resting) return;
    const wait = crowded() ? Math.max(pause, TURN_PAUSE_MS) : pause;
    timer = setTimeout(listen, wait + Math.random() * wait);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  };
  let resting = false, given_way = null;
  const let_go = () => {
    clearTimeout(turn);
    given_way = abort;
    abort?.abort();
  };
  open_streams.add(let_go);
  async function listen() {
    abort = new AbortController();
    const mine = abort, by = token;
    let silence = 0;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => mine.abort(), SILENCE_MS);
    };
    try {
      alive();
      const response = await fetched(`/events?${query}`, {signal: mine.signal, headers: headers(last ? {'Last-Event-ID': last} : {})});
      if (response.status === 401) {
        if (await has_other_token(by)) again();
        return;
      }
      if (response.status >= 400 && response.status < 500) {
        const answer = await response.json().catch(() => ({}));
        over = true;
        return on_gone(answer.error?.message ?? `the server answered ${response.status}`, answer.error?.data?.word);
      }
      if (response.status === 503) {
        const answer = await response.json().catch(() => ({}));
        if (answer.error?.data?.word !== 'unavailable') throw new Error('503');
        suspect_store(0, answer.error.message);
        return again();
      }
      if (!response.ok) throw new Error(String(response.status));
      if (health === 'away') report('live');
      let heard = false;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const feed = event_reader(({event, id, data}) => {
        pause = PAUSE_MS;
        if (id) last = id;
        if (!data) return;
        if (event === 'gone') over = true;
        const value = parseJson(data);
        if (event === 'gone') on_gone(value.message);
        else if (event !== 'refused') on(event, value);
      });
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        alive();
        if (!heard && crowded()) turn = setTimeout(let_go, TURN_MS);
        heard = true;
        feed(value);
      }
      if (!over) again();
    } catch (error) {
      if (over || mine !== abort) return;
      if (given_way === mine) return again();
      if (error.name !== 'AbortError' || !resting) {
        report('away');
        again();
      }
    } finally {
      clearTimeout(silence);
      if (mine === abort) clearTimeout(turn);
    }
  }
  function visibility() {
    clearTimeout(hidden_timer);
    if (document.hidden) {
      hidden_timer = setTimeout(() => { resting = true; clearTimeout(timer); abort?.abort(); }, HIDDEN_MS);
    } else if (resting) {
      resting = false;
      pause = PAUSE_MS;
      listen();
    }
  }
  document.addEventListener('visibilitychange', visibility);
  listen();
  return () => {
    over = true;
    open_streams.delete(let_go);
    clearTimeout(timer);
    clearTimeout(turn);
    clearTimeout(hidden_timer);
    document.removeEventListener('visibilitychange', visibility);
    abort?.abort();
  };
}
