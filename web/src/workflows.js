// The views of workflows and their instances, and of one instance: state, pending effects with reasons, timeline and log.
import {html, useCall, useEffect, useMemo, useState, Action, Glyph, Problem, State, Their, flow_href, go, href, job_href, replace, useNow, useTitle, while_seen, Ago, Waited} from './ui.js';
import {rpc} from './api.js';
import {Answer, Explained, Pairs, Value} from './job.js';
import {LogLines} from './lines.js';
import {LogView} from './log.js';
import {bytes, clock, count, counted, entry_of, line, list_of, moment, plain, text_of} from './text.js';
import {parseJson, stringifyJson} from '../../clients/node/exact_json.js';

const LOOK_MS = 2000, FIRST = 200, MOST = 10000, MOMENTS = 300;
const FRAMES = 1000, PAGES = 20;  // limits of one read of a log
const STATUSES = [['', 'all'], ['running', 'running'], ['waiting', 'waiting'], ['completed', 'completed'], ['failed', 'failed']];
const SHAPES = {running: 'running', waiting: 'waiting', completed: 'done', failed: 'failed'};
const APPROVAL = 'sys/approval@1';

// Returns a counter that grows while the page is visible. It triggers polls, since there are no events of workflows.
function useLooks() {
  const [looks, set] = useState(0);
  useEffect(() => while_seen(LOOK_MS, () => set((n) => n + 1)), []);
  return looks;
}
const key_text = (key) => text_of(key);
export const instance_href = (workflow, key, context) => href(['workflows', workflow], {context, key: stringifyJson(key)});
// Selection of a row by keyboard. The selection is a name, not an index, so that new rows do not move it. Returns the
// current index; -1: no selection.
function useChosen(rows, name_of, cursor, open) {
  const [name, choose] = useState('');
  const chosen = name ? rows.findIndex((each) => name_of(each) === name) : -1;
  cursor.current = {
    move: (by) => { const to = rows[Math.max(0, Math.min(rows.length - 1, chosen + by))]; choose(to ? name_of(to) : ''); },
    open: () => { if (chosen >= 0) open(rows[chosen]); },
  };
  return chosen;
}
const state_of = (status) => [entry_of(SHAPES, status) ?? 'planned', status];

export function Workflows({context, rights, cursor}) {
  useTitle('Workflows');
  const {value, error} = useCall('workflow.list', {context_id: context}, [useLooks()]);
  const rows = value ?? [];
  const chosen = useChosen(rows, (each) => each.workflow, cursor, (each) => go(href(['workflows', each.workflow], {context})));
  return html`<main><h1>Workflows</h1><${Problem} error=${error}/>
    ${value && rows.length === 0 && html`<p class="empty">No workflow is in force. ${rights?.create ? html`Apply one with <code class="command">mycojobs workflow apply FILE</code>.` : ''}</p>`}
    ${rows.length > 0 && html`<section class="card"><div class="wide-table" tabindex="0" role="region" aria-label="workflows"><table class="compact" role="table"><thead role="rowgroup"><tr><th>workflow</th>${STATUSES.slice(1).map(([, word]) => html`<th class="num">${word}</th>`)}<th class="num">inbox</th><th>accepts</th><th class="num">journal</th></tr></thead><tbody role="rowgroup">${rows.map((each, i) => html`<tr role="row" key=${each.workflow} class=${i === chosen ? 'chosen' : ''}>
      <td role="cell" class="first"><a href=${href(['workflows', each.workflow], {context})}><${Their} text=${each.workflow} most=${80}/></a>${each.older_code ? html` <span class="tag">${count(each.older_code)} of older code</span>` : ''}${each.refused_receipts ? html` <span class="tag">${counted(each.refused_receipts, 'refused receipt')}</span>` : ''}</td>
      ${STATUSES.slice(1).map(([status, word]) => html`<td role="cell" class="num" data-label=${word}>${each.instances[status] ? html`<a href=${href(['workflows', each.workflow], {context, status})}>${count(each.instances[status])}</a>` : html`<span class="quiet">0</span>`}</td>`)}
      <td role="cell" class="num" data-label="inbox">${count(each.inbox)}</td><td role="cell" class="takes" data-label="takes"><${Their} text=${each.takes.join(', ')} most=${120}/></td><td role="cell" class="num quiet" data-label="journal">${count(each.height)}</td></tr>`)}</tbody></table></div></section>`}</main>`;
}

export function Cells({name, query, context, cursor}) {
  useTitle(name);
  const status = STATUSES.some(([each]) => each === query.status) ? query.status : '';
  const [limit, more] = useState(FIRST);
  const {value, error} = useCall('workflow.cells', {context_id: context, workflow: name, limit, ...(status ? {status} : {})}, [useLooks()]);
  const find = (query.find ?? '').toLowerCase();
  const rows = (value ?? []).filter((each) => key_text(each.key).toLowerCase().includes(find));
  const chosen = useChosen(rows, (each) => `${each.workflow} ${stringifyJson(each.key)}`, cursor, (each) => go(instance_href(each.workflow, each.key, context)));
  return html`<main><p class="crumbs"><a href=${href(['workflows'], {context})}>Workflows</a></p><h1><${Their} text=${name} most=${120}/></h1>
    <form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}><label class="find"><span class="hidden">in its key</span><input id="find" type="search" placeholder="in its key  ( / )" value=${query.find ?? ''} onInput=${(event) => replace(href(['workflows', name], {context, status, find: event.target.value}))}/></label>
      <div class="choices" role="group" aria-label="state">${STATUSES.map(([each, word]) => html`<button type="button" aria-pressed=${status === each} onClick=${() => replace(href(['workflows', name], {context, status: each, find: query.find}))}>${word}</button>`)}</div></form>
    <p class="quiet status" role="status">${value ? `${count(rows.length)} shown` : ''}${value && value.length >= limit && limit < MOST ? html`, there are more <button type="button" class="small" onClick=${() => more(Math.min(limit * 5, MOST))}>Show more</button>` : ''}</p>
    <${Problem} error=${error}/>
    ${value && rows.length === 0 ? html`<p class="empty">No instance matches.</p>` : rows.length > 0 && html`<section class="card"><div class="wide-table" tabindex="0" role="region" aria-label="instances"><table><thead><tr><th>state</th><th>key</th><th class="num">steps</th><th class="num">mail</th><th class="num">waits for</th><th class="num">size</th></tr></thead><tbody>${rows.map((each, i) => html`<tr key=${`${each.workflow} ${key_text(each.key)}`} class=${i === chosen ? 'chosen' : ''}>
      <td><${State} of=${state_of(each.status)}/></td><td><a href=${instance_href(each.workflow, each.key, context)}><${Their} text=${key_text(each.key) || 'the only one'} most=${120}/></a></td><td class="num">${count(each.steps)}</td><td class="num">${count(each.mail)}</td><td class="num">${count(each.pending)}</td><td class="num quiet">${bytes(each.state_bytes)}</td></tr>`)}</tbody></table></div></section>`}</main>`;
}

// Shows the job or flow that performs an effect, with a link if the page has a view for it.
function Carrier({of, context}) {
  if (/^job:\d+:\d+$/.test(of)) return html`<a href=${job_href(of, context)}>${of}</a>`;
  if (/^flow:\d+/.test(of)) return html`<a href=${flow_href(Number(of.slice(5).split(':').pop()), context)}>${of}</a>`;
  return html`<${Their} text=${of || 'not started'} most=${60}/>`;
}
const json = (value, most = 300) => line(value === null ? 'null' : typeof value === 'string' ? stringifyJson(value) : value, most);
const SAID = {
  event: (fact) => `${fact.schema} ${json(fact.value)}`,
  step: (fact) => `${fact.effects.map((each) => `asks ${each.effect}`).concat(fact.events.length ? [counted(fact.events.length, 'event')] : []).join(', ')}${fact.state === null ? '' : ` state ${json(fact.state)}`}`,
  published: (fact) => `${fact.intent.slice(0, 12)} by ${fact.carrier}`,
  receipt: (fact) => `${fact.intent.slice(0, 12)} ${fact.status} ${json(fact.payload)}`,
};
function what_of(fact) {
  const {height, at_ms, kind, cells, ...rest} = fact;
  try {
    return entry_of(SAID, kind)?.(fact) ?? json(rest);
  } catch {
    return json(rest);
  }
}
// Shows the latest entries of the timeline, with updates, and earlier entries on request.
function Moments({params, last}) {
  const {value, error} = useCall('workflow.timeline', {...params, limit: MOMENTS}, [last]);
  const known = useMemo(() => ({rows: [], over: false}), [stringifyJson(params)]);
  const [wrong, fail] = useState(null);
  useMemo(() => {
    if (!value?.length) return;
    const from = value[0].height, before = known.rows.filter((each) => each.height < from);
    const whole = value.length < MOMENTS, joined = before.length < known.rows.length;  // otherwise there can be a gap
    known.rows = joined ? before.concat(value) : value;
    known.over = whole || joined && known.over;
  }, [value, known]);
  const [, again] = useState(0);
  const earlier = async () => {
    try {
      const page = await rpc('workflow.timeline', {...params, limit: MOMENTS, before: known.rows[0].height});
      known.rows = page.concat(known.rows);
      known.over = page.length < MOMENTS;
      fail(null);
    } catch (error) {
      fail(error);
    }
    again((n) => n + 1);
  };
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const shown = known.rows;
  return html`<${Problem} error=${wrong}/>${!known.over && html`<p class="quiet">the latest ${count(shown.length)} <button type="button" class="small" onClick=${earlier}>Show earlier</button></p>`}<div class="wide-table" tabindex="0" role="region" aria-label="history"><table class="moments"><thead><tr><th>when</th><th class="num">height</th><th>kind</th><th>what</th></tr></thead><tbody>${shown.map((each) => html`<tr key=${each.height}><td><time title=${moment(each.at_ms)}>${clock(each.at_ms)}</time></td><td class="num quiet">${each.height}</td><td>${line(each.kind, 24)}</td><td><bdi dir="ltr">${plain(line(what_of(each), 400))}</bdi></td></tr>`)}</tbody></table></div>`;
}

// Shows the output of the jobs of an instance's effects.
function Written({params, looks}) {
  const id = stringifyJson(params);
  const log = useMemo(() => new LogLines(), [id]);
  const [read, set_read] = useState({ended: false, error: null});
  const at = useMemo(() => ({after: '', busy: false, gone: false}), [id]);
  useEffect(() => () => { at.gone = true; }, [at]);
  useEffect(() => {
    if (at.busy) return;
    at.busy = true;
    (async () => {
      try {
        for (let pages = 0, more = true; more && pages < PAGES && !at.gone; pages++) {
          const page = await rpc('workflow.logs', {...params, limit: FRAMES, ...(at.after ? {after: at.after} : {})});
          if (at.gone) return;
          for (const each of page.frames) log.take({...each, seq: each.sequence, of: `${each.effect} ${each.job ?? each.flow}`});
          at.after = page.after;
          more = page.more;
          if (page.frames.length) log.renewed();
          if (page.frames.length || !more) set_read({ended: page.ended, error: null});
        }
      } catch (error) {
        if (!at.gone) set_read((now) => ({...now, error}));
      } finally {
        at.busy = false;
      }
    })();
  }, [at, looks]);
  return html`<section class="card"><h2>Log</h2><${Problem} error=${read.error}/><${LogView} log=${log} ended=${read.ended} command="mycojobs workflow logs"/></section>`;
}

export function InstanceView({name, query, context, rights}) {
  let key = null;
  try {
    key = parseJson(query.key);
  } catch {
    key = query.key;
  }
  const params = {context_id: context, workflow: name, ...(key === null ? {} : {key})};
  const looks = useLooks(), now = useNow();
  const {value: it, error, load} = useCall('workflow.show', params, [looks]);
  const why = useCall('workflow.explain', params, [it?.last, it?.status, it?.pending]);
  const title = key_text(key) || name;
  useTitle(`${title} ${name}`);
  const crumbs = html`<p class="crumbs"><a href=${href(['workflows'], {context})}>Workflows</a> / <a href=${href(['workflows', name], {context})}><${Their} text=${name} most=${80}/></a></p>`;
  if (!it) return html`<main>${crumbs}<h1><${Their} text=${title} most=${120}/></h1>${error ? html`<${Problem} error=${error}/>${error.word === 'not_found' && html`<${Written} params=${params} looks=${looks}/><section class="card"><h2>History</h2><${Moments} params=${params} last=${0}/></section>`}` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const say = (intent, verb) => async (comment) => { await rpc(`workflow.${verb}`, {...params, intent, ...(comment ? {comment} : {})}); await load(); };
  const may_answer = (each) => rights && (rights.administer || list_of(each.params?.approvers).includes(rights.actor));
  const asking = it.intents.filter((each) => each.effect === APPROVAL);
  const cancel = async () => { await rpc('workflow.cancel', params); await load(); };
  const remove = async () => { await rpc('workflow.remove', params); go(href(['workflows', name], {context})); };
  return html`<main class="instance">${crumbs}
    <div class="title"><h1><${Their} text=${title} most=${120}/></h1><${State} of=${state_of(it.status)}/>${rights?.steer_all && html`<div class="actions">${it.status === 'failed' && html`<${Action} run=${remove} title="removes the instance">Remove<//>`}
      ${['running', 'waiting'].includes(it.status) && html`<${Action} keys="x" title="ends it, and the jobs and flows that run for it (x)" run=${cancel}>Cancel<//>`}</div>`}</div>
    <p class="facts quiet"><span>${counted(it.steps, 'step')}</span><span>${counted(it.mail, 'event')} to come</span><span>${counted(it.pending, 'effect')} under way</span>${it.refused ? html`<span>${counted(it.refused, 'receipt')} refused</span>` : ''}</p>
    <${Problem} error=${error}/>
    ${it.failure && html`<p class="problem"><${Glyph} shape="failed"/> <bdi>${plain(it.failure)}: ${plain(it.message)}</bdi></p>`}
    ${why.value?.length > 0 && html`<section class=${`card explain ${state_of(it.status)[0]}`} aria-label="why">${why.value.slice(0, 5).map((each) => html`<${Explained} why=${each}/>`)}</section>`}
    ${asking.map((each) => html`<section class="card question" key=${each.intent}><div class="title"><h2><${Glyph} shape="asks"/> <${Their} text=${each.params?.title ?? 'approval'} most=${300}/></h2></div>${each.params?.text ? html`<p><bdi>${plain(each.params.text)}</bdi></p>` : ''}<p class="facts quiet"><span>asked: ${list_of(each.params?.approvers).map((of) => text_of(of)).join(', ')}</span><span><${Waited} at=${each.asked_ms} now=${now}/></span></p>
      ${may_answer(each) && html`<${Answer} approve=${say(each.intent, 'approve')} reject=${say(each.intent, 'reject')}/>`}</section>`)}
    <div class="columns wide"><section class="card"><h2>State</h2>${it.state === null ? html`<p class="empty">No state yet.</p>` : html`<${Value} of=${it.state}/>`}</section>
    <section class="card"><h2>Waits for</h2>${it.intents.length === 0 && it.waiting_mail.length === 0 ? html`<p class="empty">An event.</p>` : html`<table><tbody>${it.intents.map((each) => html`<tr key=${each.intent}><td><${Their} text=${each.effect} most=${80}/></td><td><${Carrier} of=${each.carrier} context=${context}/></td><td><${Ago} at=${each.asked_ms} now=${now}/></td></tr>`)}${it.waiting_mail.map((each) => html`<tr key=${each.height}><td><${Their} text=${each.schema || 'a receipt'} most=${80}/></td><td class="quiet">its next step</td><td class="quiet">height ${each.height}</td></tr>`)}</tbody></table>`}
      <h3>Record</h3><${Pairs} of=${{workflow: it.workflow, manifest: it.world, code: it.manifest.slice(0, 12), state: it.state_hash ? it.state_hash.slice(0, 12) : '', 'first height': it.born, 'last height': it.last}}/></section></div>
    <${Written} params=${params} looks=${looks}/>
    <section class="card"><h2>History</h2><${Moments} params=${params} last=${it.last}/></section></main>`;
}
