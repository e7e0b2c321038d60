// Shared parts of all views: html, hooks, the address, shapes of states, and buttons with progress and errors.
import {h, render, Component, Fragment} from 'preact';
import {useState, useEffect, useLayoutEffect as useLayout, useRef, useMemo, useCallback} from 'preact/hooks';
import htm from 'htm';
import {rpc} from './api.js';
import {format_age, to_line, format_time, escape_hidden, format_elapsed, to_text} from './text.js';
import {stringifyJson} from '../../clients/node/exact_json.js';

// Only nodes that this module has created are drawn. Any other object among the children of a node is data and is shown as
// text, even if it looks like a node.
const created_nodes = new WeakSet();
function to_child(value) {
  if (Array.isArray(value)) return value.map(to_child);
  if (typeof value === 'bigint') return String(value);
  return value === null || typeof value !== 'object' || created_nodes.has(value) ? value : escape_hidden(value);
}
const NON_TEXT_ATTRIBUTES = ['style', 'ref', 'key', 'children'];
const URL_ATTRIBUTES = ['href', 'src', 'action', 'formAction', 'xlinkHref', 'xlink:href', 'data'];
const is_local_url = (value) => typeof value === 'string' && /^(?:#|\/(?!\/))/.test(value);
// Returns the attributes of an element without those that would interpret data as markup, and without addresses of other
// servers.
function filter_attributes(attributes) {
  const result = {};
  for (const [name, value] of Object.entries(attributes)) {
    if (/^(dangerouslySetInnerHTML|innerHTML|outerHTML|srcDoc)$/i.test(name) || (URL_ATTRIBUTES.includes(name) && !is_local_url(value))) continue;
    result[name] = value !== null && typeof value === 'object' && !NON_TEXT_ATTRIBUTES.includes(name) ? to_text(value) : value;
  }
  return result;
}
function create_node(type, attributes, ...children) {
  const node = h(type, attributes && typeof type === 'string' ? filter_attributes(attributes) : attributes, ...children.map(to_child));
  created_nodes.add(node);
  return node;
}

export const html = htm.bind(create_node);
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
  const nonempty_parameters = Object.entries(query).filter(([, value]) => value !== '' && value != null);
  const text = new URLSearchParams(nonempty_parameters).toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}
export const navigate = (target) => { location.hash = target; };
export const replace_route = (target) => { history.replaceState(null, '', target); dispatchEvent(new HashChangeEvent('hashchange')); };

export const job_href = (key, context) => href(['jobs', key.replace(/^job:/, '')], {context});
export const flow_href = (id, context, params = {}) => href(['flows', String(id)], {context, ...params});

// ---- states ----

export {get_flow_state, has_failed, get_job_state, was_skipped, get_node_state} from './states.js';
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
export const State = ({state: [shape, word]}) => html`<span class="state ${shape}"><${Glyph} shape=${shape}/><span>${escape_hidden(word)}</span></span>`;

// Calls draw() again only if one of the values in `deps` has changed. Nodes are not cached instead: Preact would render a
// copy whose children refer to the cached nodes, so former siblings would stay in memory.
export class Memo extends Component {
  shouldComponentUpdate(next_props) { return next_props.deps.some((entry, i) => entry !== this.props.deps[i]); }
  render({draw}) { return draw(); }
}

// ---- components ----

// Draws its children. If that throws, shows the error and a retry button in their place, and the rest of the page stays
// usable. This protects the page in addition to to_text().
export class ErrorBoundary extends Component {
  componentDidCatch(error) {
    console.warn(error);
    this.setState({error});
  }
  render({children}, {error}) {
    if (!error) return children;
    return html`<p class="problem" role="alert"><${Glyph} shape="failed"/> This part could not be shown: <${UntrustedText} text=${error?.message}/> <button type="button" class="small" onClick=${() => this.setState({error: null})}>Try again</button></p>`;
  }
}
export const Card = ({title, children}) => html`<section class="card"><h2>${title}</h2><${ErrorBoundary}>${children}<//></section>`;

// Shows untrusted text, isolated from the direction of the surrounding text.
export const UntrustedText = ({text, max_chars = 300}) => html`<bdi>${to_line(text, max_chars)}</bdi>`;
// Shows a text of the server. Each part in backticks is a command, which is shown in a style that is easy to copy.
export function TextWithCommands({text}) {
  return escape_hidden(text).split(/(`[^`]+`)/).map((part) =>
    part.startsWith('`') && part.length > 2 ? html`<code class="command">${part.slice(1, -1)}</code>` : part);
}
// Shows a command that the page has composed. Its words must be quoted by quote_shell_word().
export const Command = ({text}) => html`<code class="command">${escape_hidden(text)}</code>`;
export const WaitingTime = ({since_ms, now_ms}) => html`has waited for <time title=${format_time(since_ms)}>${format_elapsed(since_ms, now_ms)}</time>`;
export const RelativeTime = ({at_ms, now_ms}) => html`<time title=${format_time(at_ms)}>${format_age(at_ms, now_ms)}</time>`;

// Current time by the clock of the store, since the clock of this host can differ.
let clock_offset_ms = 0;
export const set_store_time = (now_ms) => { if (now_ms) clock_offset_ms = now_ms - Date.now(); };
export const store_now_ms = () => Date.now() + clock_offset_ms;
// Returns the current time of the store. The view is drawn again every `interval_ms` while the page is visible.
export function useNow(interval_ms = 1000) {
  const [now_ms, set_now_ms] = useState(store_now_ms());
  useEffect(() => poll_while_visible(interval_ms, () => set_now_ms(store_now_ms())), [interval_ms]);
  return now_ms;
}
// Calls callback() regularly while the page is visible, and when it becomes visible. Returns a function that stops the
// calls.
export function poll_while_visible(interval_ms, callback) {
  const call_if_visible = () => { if (!document.hidden) callback(); };
  const timer = setInterval(call_if_visible, interval_ms);
  document.addEventListener('visibilitychange', call_if_visible);
  return () => {
    clearInterval(timer);
    document.removeEventListener('visibilitychange', call_if_visible);
  };
}

// Calls load() again after a while if the last call failed because the server or its store was unavailable.
const RETRY_MS = 3000;
export function useRetry(error, load) {
  const latest_load = useRef(load);
  latest_load.current = load;
  useEffect(() => {
    if (!['unreachable', 'unavailable'].includes(error?.error_code)) return undefined;
    const timer = setTimeout(() => latest_load.current(), RETRY_MS);
    return () => clearTimeout(timer);
  }, [error]);
}

// Calls a method and returns {value, error, load}. The result of a previous call, for example for another context or user,
// is never returned.
export function useCall(method, params, deps = [], is_enabled = true) {
  const call = is_enabled ? stringifyJson([method, params]) : '';
  const [state, set_state] = useState({value: null, error: null, call: ''});
  const last_call_number = useRef(0);
  const load = useCallback(async () => {
    if (!is_enabled) return set_state({value: null, error: null, call});
    const call_number = ++last_call_number.current;
    try {
      const value = await rpc(method, params);
      if (call_number === last_call_number.current) set_state({value, error: null, call});
    } catch (error) {
      if (call_number === last_call_number.current) set_state((previous) => ({value: previous.call === call ? previous.value : null, error, call}));
    }
  }, [call]);
  useEffect(() => {
    load();
    return () => { last_call_number.current++; };
  }, [load, ...deps]);
  const {value, error} = state.call === call ? state : {value: null, error: null};
  useRetry(error, load);
  return {value, error, load};
}

export const Problem = ({error}) => error && html`<p class="problem" role="alert"><${Glyph} shape="failed"/> ${escape_hidden(error.message)}${error.remedy ? html` <span class="quiet"><${TextWithCommands} text=${error.remedy}/></span>` : ''}</p>`;

// A button that is disabled while its action runs, and shows an error of the action beside it. The key `shortcut_key`
// also runs the action (main.js).
export function Action({children, run, kind = '', title = '', shortcut_key = ''}) {
  const [state, set_state] = useState({is_busy: false, error: null});
  const is_mounted = useRef(true);
  useEffect(() => () => { is_mounted.current = false; }, []);
  const handle_click = async () => {
    if (state.is_busy) return;
    set_state({is_busy: true, error: null});
    try {
      await run();
      if (is_mounted.current) set_state({is_busy: false, error: null});
    } catch (error) {
      if (is_mounted.current) set_state({is_busy: false, error});
    }
  };
  return html`<span class="action"><button type="button" class=${kind} title=${title} disabled=${state.is_busy} data-key=${shortcut_key} onClick=${handle_click}>${children}</button><${Problem} error=${state.error}/></span>`;
}

// An input field whose value is part of the page address. change() may update the address later, so the field shows the
// typed text until it loses the focus.
export function DelayedInput({value, change, ...attributes}) {
  const [draft, set_draft] = useState(null);
  return html`<input ...${attributes} value=${draft ?? value} onInput=${(event) => { set_draft(event.target.value); change(event); }} onBlur=${() => set_draft(null)}/>`;
}

// A button that copies a text. Browsers permit access to the clipboard only on https and localhost, and can refuse it.
export function CopyButton({text, label = 'copy'}) {
  const [message, set_message] = useState('');
  const copy = async () => {
    const is_copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    set_message(is_copied ? 'copied' : 'not copied: the browser does that on https and on localhost alone');
    setTimeout(() => set_message(''), is_copied ? 1500 : 5000);
  };
  return html`<button type="button" class="small" onClick=${copy}>${message || label}</button>`;
}

export const Section = ({title, note = '', open = true, children}) => html`<details class="section" open=${open}><summary><h2>${title}</h2>${note && html`<span class="quiet">${note}</span>`}</summary><div class="body"><${ErrorBoundary}>${children}<//></div></details>`;

export function useTitle(text) {
  useEffect(() => { document.title = text ? `${to_line(text, 80)} \u00b7 mycojobs` : 'mycojobs'; }, [text]);
}
