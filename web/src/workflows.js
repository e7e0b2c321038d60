// The views of workflows and their instances, and of one instance: state, pending effects with reasons, timeline and log.
import {html, useCall, useEffect, useMemo, useState, Action, Glyph, Problem, State, UntrustedText, flow_href, navigate, href, job_href, replace_route, useNow, useTitle, poll_while_visible, RelativeTime, WaitingTime} from './ui.js';
import {rpc} from './api.js';
import {Answer, Explanation, Pairs, Value} from './job.js';
import {LogLines} from './lines.js';
import {LogView} from './log.js';
import {format_bytes, format_clock, format_count, format_counted, get_entry, to_line, to_list, format_time, escape_hidden, to_text} from './text.js';
import {parseJson, stringifyJson} from '../../clients/node/exact_json.js';

const POLL_MS = 2000, INITIAL_LIMIT = 200, MAX_LIMIT = 10000, TIMELINE_PAGE_SIZE = 300;
const LOG_PAGE_SIZE = 1000, MAX_LOG_PAGES = 20;  // Limits of one read of a log.
const STATUSES = [['', 'all'], ['running', 'running'], ['waiting', 'waiting'], ['completed', 'completed'], ['failed', 'failed']];
const STATE_SHAPES = {running: 'running', waiting: 'waiting', completed: 'done', failed: 'failed'};
const APPROVAL_EFFECT = 'sys/approval@1';

// Returns a counter that grows while the page is visible. It triggers polls, since there are no events of workflows.
function usePollCounter() {
  const [poll_count, set_poll_count] = useState(0);
  useEffect(() => poll_while_visible(POLL_MS, () => set_poll_count((n) => n + 1)), []);
  return poll_count;
}
export const instance_href = (workflow, key, context) => href(['workflows', workflow], {context, key: stringifyJson(key)});
// Selects a row by keyboard. The selection is a name, not an index, so that new rows do not move it. Returns the index of
// the selected row, or -1.
function useSelection(rows, get_name, keyboard_actions, open) {
  const [name, select] = useState('');
  const selected = name ? rows.findIndex((entry) => get_name(entry) === name) : -1;
  keyboard_actions.current = {
    move: (delta) => { const target = rows[Math.max(0, Math.min(rows.length - 1, selected + delta))]; select(target ? get_name(target) : ''); },
    open: () => { if (selected >= 0) open(rows[selected]); },
  };
  return selected;
}
const to_state = (status) => [get_entry(STATE_SHAPES, status) ?? 'planned', status];

export function Workflows({context, rights, keyboard_actions}) {
  useTitle('Workflows');
  const {value, error} = useCall('workflow.list', {context_id: context}, [usePollCounter()]);
  const rows = value ?? [];
  const selected = useSelection(rows, (workflow) => workflow.workflow, keyboard_actions, (workflow) => navigate(href(['workflows', workflow.workflow], {context})));
  return html`<main><h1>Workflows</h1><${Problem} error=${error}/>
    ${value && rows.length === 0 && html`<p class="empty">No workflows are deployed. ${rights?.create ? html`Apply one with <code class="command">mycojobs workflow apply FILE</code>.` : ''}</p>`}
    ${rows.length > 0 && html`<section class="card"><div class="wide-table" tabindex="0" role="region" aria-label="workflows"><table class="compact" role="table"><thead role="rowgroup"><tr><th>workflow</th>${STATUSES.slice(1).map(([, label]) => html`<th class="num">${label}</th>`)}<th class="num">inbox</th><th>accepts</th><th class="num">journal</th></tr></thead><tbody role="rowgroup">${rows.map((workflow, i) => html`<tr role="row" key=${workflow.workflow} class=${i === selected ? 'chosen' : ''}>
      <td role="cell" class="first"><a href=${href(['workflows', workflow.workflow], {context})}><${UntrustedText} text=${workflow.workflow} max_chars=${80}/></a>${workflow.older_code ? html` <span class="tag">${format_count(workflow.older_code)} of older code</span>` : ''}${workflow.refused_receipts ? html` <span class="tag">${format_counted(workflow.refused_receipts, 'refused receipt')}</span>` : ''}</td>
      ${STATUSES.slice(1).map(([status, label]) => html`<td role="cell" class="num" data-label=${label}>${workflow.instances[status] ? html`<a href=${href(['workflows', workflow.workflow], {context, status})}>${format_count(workflow.instances[status])}</a>` : html`<span class="quiet">0</span>`}</td>`)}
      <td role="cell" class="num" data-label="inbox">${format_count(workflow.inbox)}</td><td role="cell" class="takes" data-label="takes"><${UntrustedText} text=${workflow.takes.join(', ')} max_chars=${120}/></td><td role="cell" class="num quiet" data-label="journal">${format_count(workflow.height)}</td></tr>`)}</tbody></table></div></section>`}</main>`;
}

export function InstanceList({name, query, context, keyboard_actions}) {
  useTitle(name);
  const status = STATUSES.some(([entry]) => entry === query.status) ? query.status : '';
  const [limit, set_limit] = useState(INITIAL_LIMIT), [page, set_page] = useState({});
  // A cursor is valid for the list in which it was received.
  const after = page.name === name && page.status === status ? page.after : '';
  const set_after = (cursor) => set_page({name, status, after: cursor});
  const {value, error} = useCall('workflow.cells', {context_id: context, workflow: name, limit, ...(status ? {status} : {}), ...(after ? {after} : {})}, [usePollCounter()]);
  const key_filter = (query.find ?? '').toLowerCase();
  const rows = (value ?? []).filter((entry) => to_text(entry.key).toLowerCase().includes(key_filter));
  const selected = useSelection(rows, (entry) => `${entry.workflow} ${stringifyJson(entry.key)}`, keyboard_actions, (entry) => navigate(instance_href(entry.workflow, entry.key, context)));
  return html`<main><p class="crumbs"><a href=${href(['workflows'], {context})}>Workflows</a></p><h1><${UntrustedText} text=${name} max_chars=${120}/></h1>
    <form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}><label class="find"><span class="hidden">in its key</span><input id="find" type="search" placeholder="in its key  ( / )" value=${query.find ?? ''} onInput=${(event) => replace_route(href(['workflows', name], {context, status, find: event.target.value}))}/></label>
      <div class="choices" role="group" aria-label="state">${STATUSES.map(([entry, label]) => html`<button type="button" aria-pressed=${status === entry} onClick=${() => replace_route(href(['workflows', name], {context, status: entry, find: query.find}))}>${label}</button>`)}</div></form>
    <p class="quiet status" role="status">${value ? `${format_count(rows.length)} shown` : ''}${value && value.length >= limit && limit < MAX_LIMIT ? html`, there are more <button type="button" class="small" onClick=${() => set_limit(Math.min(limit * 5, MAX_LIMIT))}>Show more</button>` : ''}${value && value.length >= limit && limit >= MAX_LIMIT ? html` <button type="button" class="small" onClick=${() => set_after(value[value.length - 1].cursor)}>Next page</button>` : ''}${after ? html` <button type="button" class="small" onClick=${() => set_after('')}>First page</button>` : ''}</p>
    <${Problem} error=${error}/>
    ${value && rows.length === 0 ? html`<p class="empty">No instance matches.</p>` : rows.length > 0 && html`<section class="card"><div class="wide-table" tabindex="0" role="region" aria-label="instances"><table><thead><tr><th>state</th><th>key</th><th class="num">steps</th><th class="num">mail</th><th class="num">waits for</th><th class="num">size</th></tr></thead><tbody>${rows.map((entry, i) => html`<tr key=${`${entry.workflow} ${to_text(entry.key)}`} class=${i === selected ? 'chosen' : ''}>
      <td><${State} state=${to_state(entry.status)}/></td><td><a href=${instance_href(entry.workflow, entry.key, context)}><${UntrustedText} text=${to_text(entry.key) || 'the only one'} max_chars=${120}/></a></td><td class="num">${format_count(entry.steps)}</td><td class="num">${format_count(entry.mail)}</td><td class="num">${format_count(entry.pending)}</td><td class="num quiet">${format_bytes(entry.state_bytes)}</td></tr>`)}</tbody></table></div></section>`}</main>`;
}

// Shows the job or flow that performs an effect, with a link if the page has a view for it.
function EffectLink({reference, context}) {
  if (/^job:\d+:\d+$/.test(reference)) return html`<a href=${job_href(reference, context)}>${reference}</a>`;
  if (/^flow:\d+/.test(reference)) return html`<a href=${flow_href(Number(reference.slice(5).split(':').pop()), context)}>${reference}</a>`;
  return html`<${UntrustedText} text=${reference || 'not started'} max_chars=${60}/>`;
}
const format_json = (value, max_chars = 300) => to_line(value === null ? 'null' : typeof value === 'string' ? stringifyJson(value) : value, max_chars);
const FACT_FORMATTERS = {
  event: (fact) => `${fact.schema} ${format_json(fact.value)}`,
  step: (fact) => `${fact.effects.map((entry) => `asks ${entry.effect}`).concat(fact.events.length ? [format_counted(fact.events.length, 'event')] : []).join(', ')}${fact.state === null ? '' : ` state ${format_json(fact.state)}`}`,
  published: (fact) => `${fact.intent.slice(0, 12)} by ${fact.carrier}`,
  receipt: (fact) => `${fact.intent.slice(0, 12)} ${fact.status} ${format_json(fact.payload)}`,
};
function format_fact(fact) {
  const {height, at_ms, kind, cells, ...other_fields} = fact;
  try {
    return get_entry(FACT_FORMATTERS, kind)?.(fact) ?? format_json(other_fields);
  } catch {
    return format_json(other_fields);
  }
}
// Shows the latest entries of the timeline, with updates, and earlier entries on request.
function InstanceTimeline({params, last_height}) {
  const {value, error} = useCall('workflow.timeline', {...params, limit: TIMELINE_PAGE_SIZE}, [last_height]);
  const cache = useMemo(() => ({rows: [], is_complete: false}), [stringifyJson(params)]);
  const [page_error, set_page_error] = useState(null);
  useMemo(() => {
    if (!value?.length) return;
    const first_height = value[0].height, earlier_rows = cache.rows.filter((entry) => entry.height < first_height);
    const is_first_page = value.length < TIMELINE_PAGE_SIZE, is_contiguous = earlier_rows.length < cache.rows.length;  // Otherwise there can be a gap.
    cache.rows = is_contiguous ? earlier_rows.concat(value) : value;
    cache.is_complete = is_first_page || is_contiguous && cache.is_complete;
  }, [value, cache]);
  const [, redraw] = useState(0);
  const load_earlier = async () => {
    try {
      const page = await rpc('workflow.timeline', {...params, limit: TIMELINE_PAGE_SIZE, before: cache.rows[0].height});
      cache.rows = page.concat(cache.rows);
      cache.is_complete = page.length < TIMELINE_PAGE_SIZE;
      set_page_error(null);
    } catch (error) {
      set_page_error(error);
    }
    redraw((n) => n + 1);
  };
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const rows = cache.rows;
  return html`<${Problem} error=${page_error}/>${!cache.is_complete && html`<p class="quiet">the latest ${format_count(rows.length)} <button type="button" class="small" onClick=${load_earlier}>Show earlier</button></p>`}<div class="wide-table" tabindex="0" role="region" aria-label="history"><table class="moments"><thead><tr><th>when</th><th class="num">height</th><th>kind</th><th>what</th></tr></thead><tbody>${rows.map((entry) => html`<tr key=${entry.height}><td><time title=${format_time(entry.at_ms)}>${format_clock(entry.at_ms)}</time></td><td class="num quiet">${entry.height}</td><td>${to_line(entry.kind, 24)}</td><td><bdi dir="ltr">${escape_hidden(to_line(format_fact(entry), 400))}</bdi></td></tr>`)}</tbody></table></div>`;
}

// Shows the output of the jobs of an instance's effects.
function InstanceLog({params, poll_count}) {
  const id = stringifyJson(params);
  const log = useMemo(() => new LogLines(), [id]);
  const [status, set_status] = useState({has_ended: false, error: null});
  const cursor = useMemo(() => ({after: '', is_loading: false, is_unmounted: false}), [id]);
  useEffect(() => () => { cursor.is_unmounted = true; }, [cursor]);
  useEffect(() => {
    if (cursor.is_loading) return;
    cursor.is_loading = true;
    (async () => {
      try {
        for (let page_count = 0, has_more = true; has_more && page_count < MAX_LOG_PAGES && !cursor.is_unmounted; page_count++) {
          const page = await rpc('workflow.logs', {...params, limit: LOG_PAGE_SIZE, ...(cursor.after ? {after: cursor.after} : {})});
          if (cursor.is_unmounted) return;
          for (const entry of page.frames) log.add_piece({...entry, seq: entry.sequence, writer: `${entry.effect} ${entry.job ?? entry.flow}`});
          cursor.after = page.after;
          has_more = page.more;
          if (page.frames.length) log.notify();
          if (page.frames.length || !has_more) set_status({has_ended: page.ended, error: null});
        }
      } catch (error) {
        if (!cursor.is_unmounted) set_status((previous) => ({...previous, error}));
      } finally {
        cursor.is_loading = false;
      }
    })();
  }, [cursor, poll_count]);
  return html`<section class="card"><h2>Log</h2><${Problem} error=${status.error}/><${LogView} log=${log} has_ended=${status.has_ended} command="mycojobs workflow logs"/></section>`;
}

export function InstanceView({name, query, context, rights}) {
  let key = null;
  try {
    key = parseJson(query.key);
  } catch {
    key = query.key;
  }
  const params = {context_id: context, workflow: name, ...(key === null ? {} : {key})};
  const poll_count = usePollCounter(), now_ms = useNow();
  const {value: instance, error, load} = useCall('workflow.show', params, [poll_count]);
  const explanation = useCall('workflow.explain', params, [instance?.last, instance?.status, instance?.pending]);
  const title = to_text(key) || name;
  useTitle(`${title} ${name}`);
  const crumbs = html`<p class="crumbs"><a href=${href(['workflows'], {context})}>Workflows</a> / <a href=${href(['workflows', name], {context})}><${UntrustedText} text=${name} max_chars=${80}/></a></p>`;
  if (!instance) return html`<main>${crumbs}<h1><${UntrustedText} text=${title} max_chars=${120}/></h1>${error ? html`<${Problem} error=${error}/>${error.error_code === 'not_found' && html`<${InstanceLog} params=${params} poll_count=${poll_count}/><section class="card"><h2>History</h2><${InstanceTimeline} params=${params} last_height=${0}/></section>`}` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const make_answer = (intent, verb) => async (comment) => { await rpc(`workflow.${verb}`, {...params, intent, ...(comment ? {comment} : {})}); await load(); };
  const can_answer = (entry) => rights && (rights.administer || to_list(entry.params?.approvers).includes(rights.actor));
  const approvals = instance.intents.filter((entry) => entry.effect === APPROVAL_EFFECT);
  const cancel = async () => { await rpc('workflow.cancel', params); await load(); };
  const remove = async () => { await rpc('workflow.remove', params); navigate(href(['workflows', name], {context})); };
  return html`<main class="instance">${crumbs}
    <div class="title"><h1><${UntrustedText} text=${title} max_chars=${120}/></h1><${State} state=${to_state(instance.status)}/>${rights?.steer_all && html`<div class="actions">${instance.status === 'failed' && html`<${Action} run=${remove} title="removes the instance">Remove<//>`}
      ${['running', 'waiting'].includes(instance.status) && html`<${Action} shortcut_key="x" title="cancels the instance with its jobs and flows (x)" run=${cancel}>Cancel<//>`}</div>`}</div>
    <p class="facts quiet"><span>${format_counted(instance.steps, 'step')}</span><span>${format_counted(instance.mail, 'event')} to come</span><span>${format_counted(instance.pending, 'effect')} under way</span>${instance.refused ? html`<span>${format_counted(instance.refused, 'receipt')} refused</span>` : ''}</p>
    <${Problem} error=${error}/>
    ${instance.failure && html`<p class="problem"><${Glyph} shape="failed"/> <bdi>${escape_hidden(instance.failure)}: ${escape_hidden(instance.message)}</bdi></p>`}
    ${explanation.value?.length > 0 && html`<section class=${`card explain ${to_state(instance.status)[0]}`} aria-label="why">${explanation.value.slice(0, 5).map((entry) => html`<${Explanation} explanation=${entry}/>`)}</section>`}
    ${approvals.map((entry) => html`<section class="card question" key=${entry.intent}><div class="title"><h2><${Glyph} shape="asks"/> <${UntrustedText} text=${entry.params?.title ?? 'approval'} max_chars=${300}/></h2></div>${entry.params?.text ? html`<p><bdi>${escape_hidden(entry.params.text)}</bdi></p>` : ''}<p class="facts quiet"><span>asked: ${to_list(entry.params?.approvers).map((approver) => to_text(approver)).join(', ')}</span><span><${WaitingTime} since_ms=${entry.asked_ms} now_ms=${now_ms}/></span></p>
      ${can_answer(entry) && html`<${Answer} approve=${make_answer(entry.intent, 'approve')} reject=${make_answer(entry.intent, 'reject')}/>`}</section>`)}
    <div class="columns wide"><section class="card"><h2>State</h2>${instance.state === null ? html`<p class="empty">No state yet.</p>` : html`<${Value} value=${instance.state}/>`}</section>
    <section class="card"><h2>Waits for</h2>${instance.intents.length === 0 && instance.waiting_mail.length === 0 ? html`<p class="empty">An event.</p>` : html`<table><tbody>${instance.intents.map((entry) => html`<tr key=${entry.intent}><td><${UntrustedText} text=${entry.effect} max_chars=${80}/></td><td><${EffectLink} reference=${entry.carrier} context=${context}/></td><td><${RelativeTime} at_ms=${entry.asked_ms} now_ms=${now_ms}/></td></tr>`)}${instance.waiting_mail.map((entry) => html`<tr key=${entry.height}><td><${UntrustedText} text=${entry.schema || 'a receipt'} max_chars=${80}/></td><td class="quiet">its next step</td><td class="quiet">height ${entry.height}</td></tr>`)}</tbody></table>`}
      <h3>Record</h3><${Pairs} fields=${{workflow: instance.workflow, manifest: instance.world, code: instance.manifest.slice(0, 12), state: instance.state_hash ? instance.state_hash.slice(0, 12) : '', 'first height': instance.born, 'last height': instance.last}}/></section></div>
    <${InstanceLog} params=${params} poll_count=${poll_count}/>
    <section class="card"><h2>History</h2><${InstanceTimeline} params=${params} last_height=${instance.last}/></section></main>`;
}
