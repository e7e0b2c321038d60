// The frame of the page: login, choice of context and view, and keyboard shortcuts.
import {html, render, useCall, useEffect, useRef, useState, Glyph, ErrorBoundary, Problem, navigate, href, read_route, set_store_time, useNow} from './ui.js';
import {get_connection_state, open_event_stream, has_token, log_in_by_key, log_out, rpc, set_token, get_store_outage, clear_store_error, report_store_error, watch_connection, watch_server, set_denied_handler} from './api.js';
import {is_key_text, parse_key} from './key.js';
import {Overview} from './overview.js';
import {Jobs} from './jobs.js';
import {JobView} from './job.js';
import {Flows} from './flows.js';
import {FlowView} from './flow.js';
import {Approvals} from './approvals.js';
import {InstanceList, InstanceView, Workflows} from './workflows.js';
import {TryView} from './try.js';
import {format_clock, to_line, format_elapsed} from './text.js';

const VIEWS = [['overview', 'Overview', 'o'], ['jobs', 'Jobs', 'j'], ['flows', 'Flows', 'f'], ['workflows', 'Workflows', 'w'], ['approvals', 'Approvals', 'a'], ['try', 'Try it', 't']];
const SHORTCUT_HELP = [['/', 'search'], ['j  k', 'the next row, the one before'], ['Enter', 'open it'], ['g then o j f w a t', 'overview, jobs, flows, workflows, approvals, try it'], ['r', 'run again, after a question'], ['x', 'cancel, after a question'], ['Esc', 'back'], ['?', 'this help']];

function useRoute() {
  const [route, set_route] = useState(read_route());
  useEffect(() => {
    const update_route = () => set_route(read_route());
    addEventListener('hashchange', update_route);
    return () => removeEventListener('hashchange', update_route);
  }, []);
  return route;
}

function Login({on_login}) {
  const [text, set_text] = useState('');
  const [error, set_error] = useState(null);
  const [is_busy, set_busy] = useState(false);
  const log_in_by_token = async (credential) => {
    set_token(credential);
    await rpc('system.info').catch((problem) => {
      set_token('');
      throw problem.error_code === 'denied' ? {message: 'this server does not know this token', remedy: 'create one with `mycojobs key token --actor ID`'} : problem;
    });
  };
  const parse_and_log_in_by_key = async (credential) => log_in_by_key(await parse_key(credential));
  const log_in = async (credential) => {
    set_busy(true);
    try {
      await (is_key_text(credential) ? parse_and_log_in_by_key : log_in_by_token)(credential.trim());
      on_login();
    } catch (problem) {
      set_busy(false);
      set_error(problem);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    return log_in(text);
  };
  const choose_file = async (event) => {
    const [file] = event.target.files;
    event.target.value = '';
    set_error(null);
    if (!file) return;
    const credential = file.size <= 1024 ? await file.text() : '';
    if (is_key_text(credential)) log_in(credential);
    else set_error({message: 'this file is not a key of `mycojobs key new`'});
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}><h1>mycojobs</h1>
    <label>Token or key <input type="password" autocomplete="off" required autofocus value=${text} onInput=${(e) => { set_text(e.target.value); set_error(null); }}/></label>
    <p class="quiet">The operator of this server creates a token with <code class="command">mycojobs key token --actor ID</code> on its host.</p>
    <button class="first" disabled=${is_busy}>Log in</button>
    <label class="file">or by an actor's key <input type="file" accept=".key" disabled=${is_busy} onChange=${choose_file}/></label>
    <p class="quiet">The key (<code class="command">mycojobs key new NAME</code>) signs a challenge of the server in the browser; only the signature is sent.</p><${Problem} error=${error}/>
    <p class="quiet">Token and key stay in the memory of this page until you close it.</p></form></main>`;
}

function Help({close}) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return html`<dialog ref=${dialog} onClose=${close} aria-label="help"><h2>Keys</h2><dl class="keys">${SHORTCUT_HELP.map(([keys, meaning]) => html`<dt><kbd>${keys}</kbd></dt><dd>${meaning}</dd>`)}</dl>
    <p class="quiet">This page uses only the JSON-RPC: <code class="command">mycojobs rpc</code> offers the same. <a href=${document.querySelector('link[rel=license]').getAttribute('href')}>Licences</a></p><form method="dialog"><button autofocus>Close</button></form></dialog>`;
}

// The text that identifies the effect of a button.
const describe_button = (button) => `${location.hash} ${button.innerText}`;
// Requests confirmation before a keyboard shortcut clicks a button. If the button has changed while the dialog was open,
// it is not clicked.
function ConfirmDialog({button, close}) {
  const dialog = useRef(null), [snapshot] = useState({button_state: describe_button(button), verb: button.innerText.trim(), title: document.querySelector('main h1')?.innerText ?? '', note: button.title.replace(/ \(\w\)$/, '')});
  useEffect(() => { dialog.current.showModal(); }, []);
  const handle_close = () => {
    const is_confirmed = dialog.current.returnValue === 'yes';
    close();
    if (is_confirmed && button.isConnected && !button.disabled && describe_button(button) === snapshot.button_state) button.click();
  };
  return html`<dialog ref=${dialog} class="question-of-key" onClose=${handle_close} aria-labelledby="asked" aria-describedby="asked-note"><h2 id="asked">${snapshot.verb}: <bdi>${to_line(snapshot.title, 120)}</bdi>?</h2><p id="asked-note" class="quiet">${snapshot.note}</p>
    <form method="dialog" class="actions"><button class="first" value="yes" autofocus>Yes, ${snapshot.verb.toLowerCase()}</button><button value="no">No</button></form></dialog>`;
}

// since_ms is a time of the clock of the browser, because the time of the store cannot be read during an outage. The
// duration is outside of role=alert, so that screen readers do not repeat it.
function StoreOutage({since_ms, message}) {
  useNow();
  return html`<section class="store-unavailable" aria-label="Redis is unavailable"><p role="alert"><${Glyph} shape="failed"/> The store (Redis) has been unavailable since ${format_clock(since_ms)}: the shown data is from before. Retrying.</p>
    <p class="quiet">for ${format_elapsed(since_ms, Date.now())} now: <bdi>${to_line(message, 200)}</bdi></p></section>`;
}

// Subscribes to the overview of a context. Returns {overview, unavailable_reason}. unavailable_reason is not empty if the
// user may not read the overview.
function useOverview(context, is_ready) {
  const [state, set_state] = useState({overview: null, unavailable_reason: ''});
  useEffect(() => {
    if (!is_ready) return undefined;
    set_state({overview: null, unavailable_reason: ''});
    return open_event_stream(new URLSearchParams({context, overview: 1}).toString(), (event, data) => {
      if (event === 'away') return report_store_error(data.for_ms, data.message);
      clear_store_error();
      set_store_time(data.now_ms);
      set_state({overview: data, unavailable_reason: ''});
    }, (reason) => set_state({overview: null, unavailable_reason: reason}));
  }, [context, is_ready]);
  return state;
}

// Keyboard shortcuts. Keys in input fields are not handled, except Escape.
function useKeys({keyboard_actions, show_help, confirm}) {
  useEffect(() => {
    let previous_key = '';
    const handle_key = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
      const {target, key} = event;
      if (target.closest?.('input, textarea, select')) {
        if (key === 'Escape') target.blur();
        return;
      }
      const target_view = previous_key === 'g' && VIEWS.find(([, , shortcut]) => shortcut === key);
      previous_key = key;
      const run_action = (action) => { event.preventDefault(); action(); };
      if (target_view) { previous_key = ''; run_action(() => navigate(href([target_view[0]], {context: read_route().query.context}))); }
      else if (key === '/') { const input = document.querySelector('.log input[type=search], #find'); if (input) run_action(() => input.focus()); }
      else if (key === '?') run_action(show_help);
      else if (key === 'j' || key === 'k') keyboard_actions.current && run_action(() => keyboard_actions.current.move(key === 'j' ? 1 : -1));
      else if (key === 'Enter' && !target.closest?.('a, button, summary, [role=button]')) keyboard_actions.current && run_action(keyboard_actions.current.open);
      else if (key === 'r' || key === 'x') { const button = document.querySelector(`main button[data-key="${key}"]:not(:disabled)`); if (button) run_action(() => confirm(button)); }
      else if (key === 'Escape') { const {parts, query} = read_route(); if (parts.length > 1) navigate(href([parts[0]], {context: query.context})); }
    };
    addEventListener('keydown', handle_key);
    return () => removeEventListener('keydown', handle_key);
  }, []);
}

function Page() {
  const [page_state, set_page_state] = useState('loading');  // 'loading', 'login', 'ready' or 'unreachable'
  const [info, set_info] = useState(null);
  const [connection_state, set_connection_state] = useState(get_connection_state());
  const [is_help_open, set_help_open] = useState(false), [pending_button, set_pending_button] = useState(null);
  const route = useRoute(), keyboard_actions = useRef(null);
  const load_info = async () => {
    try {
      set_info(await rpc('system.info'));
      set_page_state('ready');
    } catch (error) {
      if (error.error_code === 'denied') set_page_state('login');
      else { set_page_state('unreachable'); setTimeout(load_info, 2000); }
    }
  };
  useEffect(() => {
    set_denied_handler(() => { log_out(); set_page_state('login'); });
    addEventListener('pagehide', log_out);
    load_info();
    return watch_connection(set_connection_state);
  }, []);
  const contexts = info?.contexts?.length ? info.contexts : [1];
  const context = /^\d+$/.test(route.query.context ?? '') ? Number(route.query.context) : contexts[0];
  const is_ready = page_state === 'ready';
  const {overview, unavailable_reason} = useOverview(context, is_ready);
  const rights = useCall('context.rights', {context_id: context}, [connection_state], is_ready);  // Loaded again after a reconnection, since the first call may have failed.
  // Outside of the Approvals view only the number of approvals is shown, so they are loaded less often.
  const approvals_version = Math.floor((overview?.changed_ms ?? 0) / (route.parts[0] === 'approvals' ? 2000 : 10000));
  const questions = useCall('approval.list', {context_id: context}, [approvals_version], is_ready);
  useKeys({keyboard_actions, show_help: () => set_help_open(true), confirm: set_pending_button});
  const [name, id] = [route.parts[0] ?? 'overview', route.parts[1]];
  useEffect(() => {
    keyboard_actions.current = null;
    if (!is_help_open) document.querySelector('#page main')?.focus?.();
    document.querySelector('header nav [aria-current]')?.scrollIntoView({block: 'nearest', inline: 'center'});
  }, [name, id, is_ready]);
  if (page_state === 'login') return html`<${Login} on_login=${load_info}/>`;
  if (page_state !== 'ready') return html`<main class="login"><p class="empty">${page_state === 'unreachable' ? 'The server cannot be reached. Retrying.' : 'Loading \u2026'}</p></main>`;
  const waiting_count = questions.value?.questions.filter((entry) => entry.answers).length ?? 0;
  const view_props = {query: route.query, context, rights: rights.value, overview, keyboard_actions};
  const current_view = name === 'jobs' && id ? html`<${JobView} key=${`${context} ${id}`} name=${id} ...${view_props}/>` : name === 'jobs' ? html`<${Jobs} ...${view_props}/>`
    : name === 'flows' && /^\d+$/.test(id ?? '') ? html`<${FlowView} key=${`${context} ${id}`} id=${Number(id)} ...${view_props}/>` : name === 'flows' ? html`<${Flows} ...${view_props}/>`
    : name === 'workflows' && id && route.query.key !== undefined ? html`<${InstanceView} key=${`${context} ${id} ${route.query.key}`} name=${id} ...${view_props}/>`
    : name === 'workflows' && id ? html`<${InstanceList} key=${`${context} ${id}`} name=${id} ...${view_props}/>` : name === 'workflows' ? html`<${Workflows} ...${view_props}/>`
    : name === 'approvals' ? html`<${Approvals} ...${view_props} questions=${questions} load=${questions.load}/>` : name === 'try' ? html`<${TryView} ...${view_props}/>`
    : name === 'overview' ? html`<${Overview} ...${view_props} questions=${questions} unavailable_reason=${unavailable_reason && (rights.value?.read_own && rights.value.create ? 'You see only your own records: open Jobs or Flows.' : unavailable_reason)}/>` : html`<main><p class="empty">This view does not exist.</p></main>`;
  return html`<a class="skip" href="#" onClick=${(e) => { e.preventDefault(); document.querySelector('main a, main button, main input')?.focus(); }}>to the content</a>
    <header><a class="brand" href=${href(['overview'], {context})}>mycojobs</a>
      <nav aria-label="views">${VIEWS.map(([path, title, shortcut]) => html`<a href=${href([path], {context})} aria-current=${name === path ? 'page' : null} title=${`g ${shortcut}`}>${title}${path === 'approvals' && waiting_count > 0 ? html` <span class="badge" aria-label=${`${waiting_count} wait for you`}>${waiting_count}</span>` : ''}</a>`)}</nav>
      <span class="grow"></span>
      ${contexts.length > 1 && html`<label class="context">context <select value=${String(context)} onChange=${(e) => navigate(href(['overview'], {context: e.target.value}))}>${contexts.map((entry) => html`<option value=${String(entry)}>${entry}</option>`)}</select></label>`}
      <span class=${`live ${connection_state}`} role="status"><${Glyph} shape=${connection_state === 'live' ? 'done' : 'waiting'}/>${connection_state === 'live' ? 'live' : connection_state === 'store' ? 'Redis unavailable' : 'reconnecting'}</span>
      <span class="quiet who">${info.actor ? `actor ${info.actor}` : ''}</span>
      ${has_token() && html`<button type="button" class="small" onClick=${() => { log_out(); set_page_state('login'); }}>Log out</button>`}
      <button type="button" class="small" onClick=${() => set_help_open(true)} aria-label="keys and help">?</button></header>
    ${connection_state === 'store' && html`<${StoreOutage} ...${get_store_outage()}/>`}
    ${pending_button && html`<${ConfirmDialog} button=${pending_button} close=${() => set_pending_button(null)}/>`}
    <${ErrorBoundary} key=${`${context} ${name} ${id} ${route.query.key}`}>${current_view}<//>${is_help_open && html`<${Help} close=${() => set_help_open(false)}/>`}`;
}

watch_server();
render(html`<${Page}/>`, document.getElementById('page'));
