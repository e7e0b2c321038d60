// The frame of the page: login, choice of context and view, and keyboard shortcuts.
import {html, render, useCall, useEffect, useRef, useState, Glyph, Guard, Problem, go, href, read_route, set_now, useNow} from './ui.js';
import {connection, events, has_token, log_in_by_key, log_out, rpc, set_token, store_away, store_is_back, suspect_store, watch_connection, watch_server, when_denied} from './api.js';
import {looks_like_key, read_key} from './key.js';
import {Overview} from './overview.js';
import {Jobs} from './jobs.js';
import {JobView} from './job.js';
import {Flows} from './flows.js';
import {FlowView} from './flow.js';
import {Approvals} from './approvals.js';
import {Cells, InstanceView, Workflows} from './workflows.js';
import {Try} from './try.js';
import {clock, line, since} from './text.js';

const VIEWS = [['overview', 'Overview', 'o'], ['jobs', 'Jobs', 'j'], ['flows', 'Flows', 'f'], ['workflows', 'Workflows', 'w'], ['approvals', 'Approvals', 'a'], ['try', 'Try it', 't']];
const KEYS = [['/', 'search'], ['j  k', 'the next row, the one before'], ['Enter', 'open it'], ['g then o j f w a t', 'overview, jobs, flows, workflows, approvals, try it'], ['r', 'run again, after a question'], ['x', 'cancel, after a question'], ['Esc', 'back'], ['?', 'this help']];

function useRoute() {
  const [route, set] = useState(read_route());
  useEffect(() => {
    const changed = () => set(read_route());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return route;
}

function Login({enter}) {
  const [text, set] = useState('');
  const [error, fail] = useState(null);
  const [busy, work] = useState(false);
  const by_token = async (given) => {
    set_token(given);
    await rpc('system.info').catch((problem) => {
      set_token('');
      throw problem.word === 'denied' ? {message: 'this server does not know this token', remedy: 'create one with `mycojobs key token --actor ID`'} : problem;
    });
  };
  const by_key = async (given) => log_in_by_key(await read_key(given));
  const log_in = async (given) => {
    work(true);
    try {
      await (looks_like_key(given) ? by_key : by_token)(given.trim());
      enter();
    } catch (problem) {
      work(false);
      fail(problem);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    return log_in(text);
  };
  const choose = async (event) => {
    const [file] = event.target.files;
    event.target.value = '';
    fail(null);
    if (!file) return;
    const given = file.size <= 1024 ? await file.text() : '';
    if (looks_like_key(given)) log_in(given);
    else fail({message: 'this file is not a key of `mycojobs key new`'});
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}><h1>mycojobs</h1>
    <label>Token or key <input type="password" autocomplete="off" required autofocus value=${text} onInput=${(e) => { set(e.target.value); fail(null); }}/></label>
    <p class="quiet">The operator of this server creates a token with <code class="command">mycojobs key token --actor ID</code> on its host.</p>
    <button class="first" disabled=${busy}>Log in</button>
    <label class="file">or by an actor's key <input type="file" accept=".key" disabled=${busy} onChange=${choose}/></label>
    <p class="quiet">The key (<code class="command">mycojobs key new NAME</code>) signs a challenge of the server in the browser; only the signature is sent.</p><${Problem} error=${error}/>
    <p class="quiet">Token and key stay in the memory of this page until you close it.</p></form></main>`;
}

function Help({close}) {
  const box = useRef(null);
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} onClose=${close} aria-label="help"><h2>Keys</h2><dl class="keys">${KEYS.map(([keys, what]) => html`<dt><kbd>${keys}</kbd></dt><dd>${what}</dd>`)}</dl>
    <p class="quiet">This page uses only the JSON-RPC: <code class="command">mycojobs rpc</code> offers the same. <a href=${document.querySelector('link[rel=license]').getAttribute('href')}>Licences</a></p><form method="dialog"><button autofocus>Close</button></form></dialog>`;
}

// Asks for confirmation before a keyboard shortcut clicks a button. If the button has changed while the dialog was open,
// it is not clicked.
const said_by = (button) => `${location.hash} ${button.innerText}`;
function Question({button, close}) {
  const box = useRef(null), [asked] = useState({says: said_by(button), verb: button.innerText.trim(), of: document.querySelector('main h1')?.innerText ?? '', note: button.title.replace(/ \(\w\)$/, '')});
  useEffect(() => { box.current.showModal(); }, []);
  const closed = () => {
    const yes = box.current.returnValue === 'yes';
    close();
    if (yes && button.isConnected && !button.disabled && said_by(button) === asked.says) button.click();
  };
  return html`<dialog ref=${box} class="question-of-key" onClose=${closed} aria-labelledby="asked" aria-describedby="asked-note"><h2 id="asked">${asked.verb}: <bdi>${line(asked.of, 120)}</bdi>?</h2><p id="asked-note" class="quiet">${asked.note}</p>
    <form method="dialog" class="actions"><button class="first" value="yes" autofocus>Yes, ${asked.verb.toLowerCase()}</button><button value="no">No</button></form></dialog>`;
}

// Uses the clock of this host. The running duration is outside of role=alert, so that screen readers do not repeat it.
function StoreAway({since_ms, message}) {
  useNow();
  return html`<section class="store-away" aria-label="the store is away"><p role="alert"><${Glyph} shape="failed"/> The store (Redis) has been unavailable since ${clock(since_ms)}: the shown data is from before. Retrying.</p>
    <p class="quiet">for ${since(since_ms, Date.now())} now: <bdi>${line(message, 200)}</bdi></p></section>`;
}

// Follows the overview of a context. gone: the reason if the user may not read the overview.
function useOverview(context, ready) {
  const [state, set] = useState({view: null, gone: ''});
  useEffect(() => {
    if (!ready) return undefined;
    set({view: null, gone: ''});
    return events(new URLSearchParams({context, overview: 1}).toString(), (event, view) => {
      if (event === 'away') return suspect_store(view.for_ms, view.message);
      store_is_back();
      set_now(view.now_ms);
      set({view, gone: ''});
    }, (gone) => set({view: null, gone}));
  }, [context, ready]);
  return state;
}

// Keyboard shortcuts. Keys in input fields are not handled, except Escape.
function useKeys({cursor, help, ask}) {
  useEffect(() => {
    let before = '';
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
      const {target, key} = event;
      if (target.closest?.('input, textarea, select')) {
        if (key === 'Escape') target.blur();
        return;
      }
      const pair = before === 'g' && VIEWS.find(([, , letter]) => letter === key);
      before = key;
      const take = (then) => { event.preventDefault(); then(); };
      if (pair) { before = ''; take(() => go(href([pair[0]], {context: read_route().query.context}))); }
      else if (key === '/') { const box = document.querySelector('.log input[type=search], #find'); if (box) take(() => box.focus()); }
      else if (key === '?') take(help);
      else if (key === 'j' || key === 'k') cursor.current && take(() => cursor.current.move(key === 'j' ? 1 : -1));
      else if (key === 'Enter' && !target.closest?.('a, button, summary, [role=button]')) cursor.current && take(cursor.current.open);
      else if (key === 'r' || key === 'x') { const button = document.querySelector(`main button[data-key="${key}"]:not(:disabled)`); if (button) take(() => ask(button)); }
      else if (key === 'Escape') { const {parts, query} = read_route(); if (parts.length > 1) go(href([parts[0]], {context: query.context})); }
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}

function Page() {
  const [stage, set] = useState('asking');  // asking, login, in, away
  const [info, set_info] = useState(null);
  const [live, set_live] = useState(connection());
  const [helps, help] = useState(false), [asked, ask] = useState(null);
  const route = useRoute(), cursor = useRef(null);
  const begin = async () => {
    try {
      set_info(await rpc('system.info'));
      set('in');
    } catch (error) {
      if (error.word === 'denied') set('login');
      else { set('away'); setTimeout(begin, 2000); }
    }
  };
  useEffect(() => {
    when_denied(() => { log_out(); set('login'); });
    addEventListener('pagehide', log_out);
    begin();
    return watch_connection(set_live);
  }, []);
  const served = info?.contexts?.length ? info.contexts : [1];
  const context = /^\d+$/.test(route.query.context ?? '') ? Number(route.query.context) : served[0];
  const ready = stage === 'in';
  const {view, gone} = useOverview(context, ready);
  const rights = useCall('context.rights', {context_id: context}, [live], ready);  // loaded again after a reconnection, since the first call may have failed
  // Outside of the Approvals view only the number of approvals is shown, so they are loaded less often.
  const stamp = Math.floor((view?.changed_ms ?? 0) / (route.parts[0] === 'approvals' ? 2000 : 10000));
  const questions = useCall('approval.list', {context_id: context}, [stamp], ready);
  useKeys({cursor, help: () => help(true), ask});
  const [name, id] = [route.parts[0] ?? 'overview', route.parts[1]];
  useEffect(() => {
    cursor.current = null;
    if (!helps) document.querySelector('#page main')?.focus?.();
    document.querySelector('header nav [aria-current]')?.scrollIntoView({block: 'nearest', inline: 'center'});
  }, [name, id, ready]);
  if (stage === 'login') return html`<${Login} enter=${begin}/>`;
  if (stage !== 'in') return html`<main class="login"><p class="empty">${stage === 'away' ? 'The server cannot be reached. Retrying.' : 'Loading \u2026'}</p></main>`;
  const waiting = questions.value?.questions.filter((each) => each.answers).length ?? 0;
  const all = {query: route.query, context, rights: rights.value, view, cursor};
  const shown = name === 'jobs' && id ? html`<${JobView} key=${`${context} ${id}`} name=${id} ...${all}/>` : name === 'jobs' ? html`<${Jobs} ...${all}/>`
    : name === 'flows' && /^\d+$/.test(id ?? '') ? html`<${FlowView} key=${`${context} ${id}`} id=${Number(id)} ...${all}/>` : name === 'flows' ? html`<${Flows} ...${all}/>`
    : name === 'workflows' && id && route.query.key !== undefined ? html`<${InstanceView} key=${`${context} ${id} ${route.query.key}`} name=${id} ...${all}/>`
    : name === 'workflows' && id ? html`<${Cells} key=${`${context} ${id}`} name=${id} ...${all}/>` : name === 'workflows' ? html`<${Workflows} ...${all}/>`
    : name === 'approvals' ? html`<${Approvals} ...${all} questions=${questions} load=${questions.load}/>` : name === 'try' ? html`<${Try} ...${all}/>`
    : name === 'overview' ? html`<${Overview} ...${all} questions=${questions} gone=${gone && (rights.value?.read_own && rights.value.create ? 'You see only your own records: open Jobs or Flows.' : gone)}/>` : html`<main><p class="empty">This view does not exist.</p></main>`;
  return html`<a class="skip" href="#" onClick=${(e) => { e.preventDefault(); document.querySelector('main a, main button, main input')?.focus(); }}>to the content</a>
    <header><a class="brand" href=${href(['overview'], {context})}>mycojobs</a>
      <nav aria-label="views">${VIEWS.map(([to, title, letter]) => html`<a href=${href([to], {context})} aria-current=${name === to ? 'page' : null} title=${`g ${letter}`}>${title}${to === 'approvals' && waiting > 0 ? html` <span class="badge" aria-label=${`${waiting} wait for you`}>${waiting}</span>` : ''}</a>`)}</nav>
      <span class="grow"></span>
      ${served.length > 1 && html`<label class="context">context <select value=${String(context)} onChange=${(e) => go(href(['overview'], {context: e.target.value}))}>${served.map((each) => html`<option value=${String(each)}>${each}</option>`)}</select></label>`}
      <span class=${`live ${live}`} role="status"><${Glyph} shape=${live === 'live' ? 'done' : 'waiting'}/>${live === 'live' ? 'live' : live === 'store' ? 'store away' : 'reconnecting'}</span>
      <span class="quiet who">${info.actor ? `actor ${info.actor}` : ''}</span>
      ${has_token() && html`<button type="button" class="small" onClick=${() => { log_out(); set('login'); }}>Log out</button>`}
      <button type="button" class="small" onClick=${() => help(true)} aria-label="keys and help">?</button></header>
    ${live === 'store' && html`<${StoreAway} ...${store_away()}/>`}
    ${asked && html`<${Question} button=${asked} close=${() => ask(null)}/>`}
    <${Guard} key=${`${context} ${name} ${id} ${route.query.key}`}>${shown}<//>${helps && html`<${Help} close=${() => help(false)}/>`}`;
}

watch_server();
render(html`<${Page}/>`, document.getElementById('page'));
