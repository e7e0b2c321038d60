// Shared parts of all views: html, hooks, the address, shapes of states, and buttons with progress and errors.
import {h, render, Component, Fragment} from 'preact';
import {useState, useEffect, useLayoutEffect as useLayout, useRef, useMemo, useCallback} from 'preact/hooks';
import htm from 'htm';
import {rpc} from './api.js';
import {ago, line, moment, plain, since, text_of} from './text.js';
import {stringifyJson} from '../../clients/node/exact_json.js';

// Only nodes that this module has created are drawn. Any other object among the children of a node is data and is shown as
// text, even if it looks like a node.
const nodes = new WeakSet();
function child_of(value) {
  if (Array.isArray(value)) return value.map(child_of);
  if (typeof value === 'bigint') return String(value);
  return value === null || typeof value !== 'object' || nodes.has(value) ? value : plain(value);
}
const NO_TEXTS = ['style', 'ref', 'key', 'children'];
const ADDRESSES = ['href', 'src', 'action', 'formAction', 'xlinkHref', 'xlink:href', 'data'];
const is_own_address = (value) => typeof value === 'string' && /^(?:#|\/(?!\/))/.test(value);
// Returns the attributes of an element without those that would interpret data as markup, and without addresses of other
// servers.
function attributes_of(given) {
  const all = {};
  for (const [name, value] of Object.entries(given)) {
    if (/^(dangerouslySetInnerHTML|innerHTML|outerHTML|srcDoc)$/i.test(name) || (ADDRESSES.includes(name) && !is_own_address(value))) continue;
    all[name] = value !== null && typeof value === 'object' && !NO_TEXTS.includes(name) ? text_of(value) : value;
  }
  return all;
}
function node_of(type, given, ...children) {
  const node = h(type, given && typeof type === 'string' ? attributes_of(given) : given, ...children.map(child_of));
  nodes.add(node);
  return node;
}

export const html = htm.bind(node_of);
export {render, Fragment, useState, useEffect, useLayout, useRef, useMemo, useCallback};

// ---- the address: #/jobs?state=error ----

export function read_route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return {parts: path.split('/').filter(Boolean).map(decode), query: Object.fromEntries(new URLSearchParams(query))};
}
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== '' && value != null);
  const text = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}
export const go = (to) => { location.hash = to; };
export const replace = (to) => { history.replaceState(null, '', to); dispatchEvent(new HashChangeEvent('hashchange')); };

export const job_href = (key, context) => href(['jobs', key.replace(/^job:/, '')], {context});
export const flow_href = (id, context, more = {}) => href(['flows', String(id)], {context, ...more});

// ---- states ----

export {flow_state, has_failed, job_state, left_out, node_state} from './states.js';
// Each state has a different shape, so that it can be recognised without colour.
export const SHAPES = {
  done: 'M8 1.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM4.6 8.3l2.3 2.3 4.6-4.9',
  failed: 'M5.2 1.8h5.6l3.4 3.4v5.6l-3.4 3.4H5.2l-3.4-3.4V5.2zM5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8',
  running: 'M3.5 2.2v11.6L13.5 8z',
  queued: 'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6z',
  waiting: 'M4 1.8h8M4 14.2h8M4.6 2c0 3.4 3.4 4 3.4 6s-3.4 2.6-3.4 6M11.4 2c0 3.4-3.4 4-3.4 6s3.4 2.6 3.4 6',
  asks: 'M8 1.2L14.8 8 8 14.8 1.2 8zM8 4.6v4M8 10.4v1',
  cancelled: 'M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 0 0 0-12.4zM3.8 12.2l8.4-8.4',
  handled: 'M8 1.5a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13zM8 4.6v4M8 10.9v.3',
  planned: 'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6z',
};
export const Glyph = ({shape}) => html`<svg class="glyph ${shape}" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d=${SHAPES[shape]}/></svg>`;
export const State = ({of: [shape, word]}) => html`<span class="state ${shape}"><${Glyph} shape=${shape}/><span>${plain(word)}</span></span>`;

// Calls draw() again only if one of the values in `shows` has changed. Nodes are not cached instead: Preact would render a
// copy whose children refer to the cached nodes, so former siblings would stay in memory.
export class Kept extends Component {
  shouldComponentUpdate(next) { return next.shows.some((each, i) => each !== this.props.shows[i]); }
  render({draw}) { return draw(); }
}

// ---- pieces ----

// Draws its children. If that throws, shows the error and a retry button in their place, and the rest of the page stays
// usable. A second protection besides text_of().
export class Guard extends Component {
  componentDidCatch(error) {
    console.warn(error);
    this.setState({error});
  }
  render({children}, {error}) {
    if (!error) return children;
    return html`<p class="problem" role="alert"><${Glyph} shape="failed"/> This part could not be shown: <${Their} text=${error?.message}/> <button type="button" class="small" onClick=${() => this.setState({error: null})}>Try again</button></p>`;
  }
}
export const Card = ({title, children}) => html`<section class="card"><h2>${title}</h2><${Guard}>${children}<//></section>`;

// Shows untrusted text, isolated from the direction of the surrounding text.
export const Their = ({text, most = 300}) => html`<bdi>${line(text, most)}</bdi>`;
// Shows a sentence of the server, with `commands` in a style that is easy to copy.
export function Sentence({text}) {
  return plain(text).split(/(`[^`]+`)/).map((part) =>
    part.startsWith('`') && part.length > 2 ? html`<code class="command">${part.slice(1, -1)}</code>` : part);
}
// Shows a command that the page has composed. Its words must be quoted by shell_word().
export const Command = ({text}) => html`<code class="command">${plain(text)}</code>`;
export const Waited = ({at, now}) => html`has waited for <time title=${moment(at)}>${since(at, now)}</time>`;
export const Ago = ({at, now}) => html`<time title=${moment(at)}>${ago(at, now)}</time>`;

// Current time by the clock of the store, since the clock of this host can differ.
let offset = 0;
export const set_now = (now_ms) => { if (now_ms) offset = now_ms - Date.now(); };
export const now_ms = () => Date.now() + offset;
export function useNow(every_ms = 1000) {
  const [now, set] = useState(now_ms());
  useEffect(() => while_seen(every_ms, () => set(now_ms())), [every_ms]);
  return now;
}
// Calls then() regularly while the page is visible, and when it becomes visible. Returns a function that stops the calls.
export function while_seen(every_ms, then) {
  const look = () => { if (!document.hidden) then(); };
  const timer = setInterval(look, every_ms);
  document.addEventListener('visibilitychange', look);
  return () => {
    clearInterval(timer);
    document.removeEventListener('visibilitychange', look);
  };
}

// Repeats a call that failed because the server or its store was unavailable.
const AGAIN_MS = 3000;
export function useAgain(error, load) {
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    if (!['unreachable', 'unavailable'].includes(error?.word)) return undefined;
    const timer = setTimeout(() => latest.current(), AGAIN_MS);
    return () => clearTimeout(timer);
  }, [error]);
}

// Calls a method and returns {value, error, load}. The result of a previous call, for example for another context or user,
// is never returned.
export function useCall(method, params, every = [], enabled = true) {
  const call = enabled ? stringifyJson([method, params]) : '';
  const [state, set] = useState({value: null, error: null, of: ''});
  const turn = useRef(0);
  const load = useCallback(async () => {
    if (!enabled) return set({value: null, error: null, of: call});
    const mine = ++turn.current;
    try {
      const value = await rpc(method, params);
      if (mine === turn.current) set({value, error: null, of: call});
    } catch (error) {
      if (mine === turn.current) set((before) => ({value: before.of === call ? before.value : null, error, of: call}));
    }
  }, [call]);
  useEffect(() => {
    load();
    return () => { turn.current++; };
  }, [load, ...every]);
  const {value, error} = state.of === call ? state : {value: null, error: null};
  useAgain(error, load);
  return {value, error, load};
}

export const Problem = ({error}) => error && html`<p class="problem" role="alert"><${Glyph} shape="failed"/> ${plain(error.message)}${error.remedy ? html` <span class="quiet"><${Sentence} text=${error.remedy}/></span>` : ''}</p>`;

// A button that is disabled while its action runs, and shows an error of the action beside it.
export function Action({children, run, kind = '', title = '', keys = ''}) {
  const [state, set] = useState({busy: false, error: null});
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);
  const act = async () => {
    if (state.busy) return;
    set({busy: true, error: null});
    try {
      await run();
      if (alive.current) set({busy: false, error: null});
    } catch (error) {
      if (alive.current) set({busy: false, error});
    }
  };
  return html`<span class="action"><button type="button" class=${kind} title=${title} disabled=${state.busy} data-key=${keys} onClick=${act}>${children}</button><${Problem} error=${state.error}/></span>`;
}

// An input field for a value of the address, which is updated with a delay. While it has the focus, it shows the typed
// text, even if the view is drawn with the previous value.
export function Typed({value, change, ...more}) {
  const [typed, set] = useState(null);
  return html`<input ...${more} value=${typed ?? value} onInput=${(event) => { set(event.target.value); change(event); }} onBlur=${() => set(null)}/>`;
}

// Copies a text. Browsers allow the clipboard only on https and localhost, and can refuse it.
export function Copy({text, label = 'copy'}) {
  const [said, set] = useState('');
  const copy = async () => {
    const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    set(done ? 'copied' : 'not copied: the browser does that on https and on localhost alone');
    setTimeout(() => set(''), done ? 1500 : 5000);
  };
  return html`<button type="button" class="small" onClick=${copy}>${said || label}</button>`;
}

export const Section = ({title, note = '', open = true, children, id = ''}) => html`<details class="section" open=${open} id=${id}><summary><h2>${title}</h2>${note && html`<span class="quiet">${note}</span>`}</summary><div class="body"><${Guard}>${children}<//></div></details>`;

export function useTitle(text) {
  useEffect(() => { document.title = text ? `${line(text, 80)} \u00b7 mycojobs` : 'mycojobs'; }, [text]);
}
