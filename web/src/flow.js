// The view of one flow: its graph with current states, timeline, definition, result, and controls for waiting approvals.
import {html, useCall, useEffect, useRef, useState, RelativeTime, CopyButton, Action, Glyph, Problem, State, UntrustedText, flow_href, get_flow_state, navigate, href, job_href, get_node_state, set_store_time, useRetry, useNow, useTitle, poll_while_visible} from './ui.js';
import {open_event_stream, rpc} from './api.js';
import {Graph} from './graph.js';
import {Answer, Explanation, Pairs, Value} from './job.js';
import {format_clock, format_counted, get_elapsed_ms, to_line, to_list, format_time, to_number, to_object, escape_hidden, format_duration, to_text} from './text.js';

// Loads a flow, and loads it again after each change of its journal.
function useFlow(id, context) {
  const [state, set_state] = useState({dag: null, record: null, reasons: null, error: null, end_reason: '', version: 0});
  const last_load_number = useRef(0);
  const load = async () => {
    const load_number = ++last_load_number.current;
    try {
      const params = {id, context_id: context};
      const [dag, record, reasons] = await Promise.all([rpc('flow.dag', params), rpc('flow.get', params), rpc('flow.explain', params)]);
      if (load_number !== last_load_number.current) return;
      set_store_time(dag.now_ms);
      set_state((previous) => ({...previous, dag, record, reasons, error: null, version: previous.version + 1}));
    } catch (error) {
      if (load_number === last_load_number.current) set_state((previous) => ({...previous, error}));
    }
  };
  useEffect(() => {
    set_state({dag: null, record: null, reasons: null, error: null, end_reason: '', version: 0});
    load();
    let timer = 0;
    const schedule_load = () => { timer ||= setTimeout(() => { timer = 0; load(); }, 250); };
    const close_stream = open_event_stream(new URLSearchParams({context, flow: id}).toString(), schedule_load, (reason) => set_state((previous) => ({...previous, end_reason: reason})));
    // Poll while nodes are active, since the journal does not report that an agent has claimed a job.
    const stop_polling = poll_while_visible(1500, () => { if (has_active_nodes.current) load(); });
    return () => { last_load_number.current++; close_stream(); clearTimeout(timer); stop_polling(); };
  }, [id, context]);
  useRetry(state.error, load);
  const has_active_nodes = useRef(false);
  has_active_nodes.current = state.dag?.nodes.some((node) => ['dispatched', 'running', 'ready'].includes(node.node_status)) ?? false;
  return {...state, load};
}

// Returns the periods in which a node waited or ran, [{start_ms, end_ms, kind, note}], computed from its timeline.
export function compute_bars(node, entries, now_ms) {
  const bars = [];
  let bar_start_ms = 0, kind = '';
  const start_bar = (at_ms, new_kind) => { if (bar_start_ms && at_ms > bar_start_ms) bars.push({start_ms: bar_start_ms, end_ms: at_ms, kind}); bar_start_ms = at_ms; kind = new_kind; };
  for (const entry of entries) {
    const {what: text, at_ms} = entry;
    if (/^(queued|waits|starts a flow|begins its parts|ready|retried|dispatched)/.test(text)) start_bar(at_ms, /^queued/.test(text) ? 'queued' : 'waits');
    else if (/^attempt \d+ (failed|was lost|was given back)/.test(text)) { start_bar(at_ms, 'waits'); if (bars.length) bars[bars.length - 1].kind = 'lost'; bars[bars.length - 1] && (bars[bars.length - 1].note = text); }
    else if (/^(completed|failed|cancelled|skipped)/.test(text)) { start_bar(at_ms, ''); bar_start_ms = 0; }
  }
  const end_ms = node.ended_ms || now_ms;
  if (bar_start_ms && kind) bars.push({start_ms: bar_start_ms, end_ms, kind});
  const last_bar = bars[bars.length - 1];
  if (node.started_ms && last_bar && last_bar.kind !== 'lost' && node.started_ms > last_bar.start_ms && node.started_ms <= last_bar.end_ms) {
    bars.push({start_ms: node.started_ms, end_ms: last_bar.end_ms, kind: 'run'});
    last_bar.end_ms = node.started_ms;
  } else if (node.started_ms && last_bar && node.started_ms <= last_bar.start_ms && last_bar.kind === 'queued') last_bar.kind = 'run';
  else if (node.started_ms && !last_bar) bars.push({start_ms: node.started_ms, end_ms, kind: 'run'});
  return bars;
}

const TICK_INTERVALS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000, 7200000, 21600000, 86400000, 604800000];
function FlowTimeline({dag, id, context, version, select, selected}) {
  const {value: entries, error} = useCall('flow.timeline', {id, context_id: context, limit: 5000}, [version]);
  const is_running = dag.nodes.some((node) => !node.ended_ms && node.started_ms);
  const current_ms = useNow(1000);
  if (!entries) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  if (entries.length === 0) return html`<p class="empty">It has not started.</p>`;
  const now_ms = is_running || dag.status === 'started' ? Math.max(current_ms, dag.now_ms) : Math.max(...entries.map((entry) => entry.at_ms));
  const first_ms = entries.find((entry) => entry.at_ms)?.at_ms ?? now_ms, total_ms = Math.max(now_ms - first_ms, 1);
  const entries_by_node = new Map();
  for (const entry of entries) if (entry.node) entries_by_node.set(entry.node, [...(entries_by_node.get(entry.node) ?? []), entry]);
  const rows = dag.nodes.filter((node) => entries_by_node.has(node.name) || node.started_ms).map((node) => ({node, bars: compute_bars(node, entries_by_node.get(node.name) ?? [], now_ms)}))
    .sort((a, b) => (a.bars[0]?.start_ms ?? a.node.ended_ms ?? 0) - (b.bars[0]?.start_ms ?? b.node.ended_ms ?? 0));
  const tick_interval_ms = TICK_INTERVALS_MS.find((entry) => total_ms / entry <= (innerWidth < 700 ? 2 : 6)) ?? TICK_INTERVALS_MS[TICK_INTERVALS_MS.length - 1];
  const ticks = [];
  for (let offset_ms = 0; offset_ms <= total_ms; offset_ms += tick_interval_ms) ticks.push(offset_ms);
  const to_percent = (at_ms) => Math.max(0, Math.min(100, ((at_ms - first_ms) / total_ms) * 100));
  return html`<div class="gantt" tabindex="0" role="group" aria-label="timeline"><div class="gantt-head"><span></span><div class="track">${ticks.map((offset_ms) => html`<span class="tick" style=${{left: `${(offset_ms / total_ms) * 100}%`}}>${offset_ms ? `+${format_duration(offset_ms)}` : format_clock(first_ms)}</span>`)}</div></div>
    ${rows.map(({node, bars}) => html`<button type="button" class=${`gantt-row${selected === node.name ? ' chosen' : ''}`} key=${node.id} onClick=${() => select(node.name)}><span class="gantt-name"><${Glyph} shape=${get_node_state(node)[0]}/> <${UntrustedText} text=${node.name} max_chars=${40}/></span>
      <div class="track">${bars.map((bar) => html`<span class=${`bar ${bar.kind} ${bar.kind === 'run' ? get_node_state(node)[0] : ''}`} style=${{left: `${to_percent(bar.start_ms)}%`, width: `${Math.max(to_percent(bar.end_ms) - to_percent(bar.start_ms), 0.4)}%`}} title=${`${{run: 'ran', queued: 'queued', waits: 'waited', lost: 'failed attempt'}[bar.kind]} ${format_duration(bar.end_ms - bar.start_ms)}${bar.note ? `: ${to_line(bar.note)}` : ''}`}></span>`)}</div></button>`)}
    <p class="legend quiet"><span class="bar run"></span> ran <span class="bar queued"></span> queued <span class="bar waits"></span> waited <span class="bar lost"></span> an attempt that failed</p></div>
    <details open=${rows.length < 12}><summary><h3>History</h3></summary><table class="moments"><tbody>${entries.slice(-1000).map((entry) => html`<tr><td><time title=${format_time(entry.at_ms)}>${entry.at_ms ? format_clock(entry.at_ms) : ''}</time></td><td class="num quiet">+${format_duration(entry.at_ms - first_ms)}</td><td><${UntrustedText} text=${entry.node || 'flow'} max_chars=${60}/></td><td><${UntrustedText} text=${entry.what}/></td></tr>`)}</tbody></table></details>`;
}

// Returns whether the user may answer the node, by the same rule as the server: admins, and the approvers of the node. If
// the node has no approvers, all actors that may control the flow.
const can_answer = (node, rights, can_steer) => rights && (rights.administer || (node.approvers?.length ? node.approvers.includes(rights.actor) : can_steer));

function NodeCard({node, id, context, rights, can_steer, load, close}) {
  const now_ms = useNow();
  const needs_answer = ['approval', 'pause'].includes(node.detail) && !['completed', 'failed', 'cancelled'].includes(node.node_status);
  const gates = (node.gates ?? []).filter((entry) => entry.startsWith('approval:')).map((entry) => entry.slice(9));
  const make_answer = (method, params) => async (comment) => { await rpc(method, {id, context_id: context, ...params, ...(comment ? {comment} : {})}); await load(); };
  return html`<aside class="card node-card" aria-label="node"><div class="title"><h2><${UntrustedText} text=${node.name} max_chars=${80}/></h2><${State} state=${get_node_state(node)}/><button type="button" class="small" onClick=${close} aria-label="close">\u2715</button></div>
    ${node.error && html`<p class="problem"><bdi>${escape_hidden(node.error)}</bdi></p>`}
    ${node.asks && html`<p><bdi>${escape_hidden(node.asks)}</bdi></p>`}
    ${needs_answer && can_answer(node, rights, can_steer) && (node.detail === 'pause' ? html`<${Answer} is_pause=${true} approve=${make_answer('flow.resume', {node: node.name})}/>` : html`<${Answer} approve=${make_answer('flow.approve', {name: node.name})} reject=${make_answer('flow.reject', {name: node.name})}/>`)}
    ${node.detail === 'gate' && gates.map((gate) => html`<p>waits for approval: <bdi>${to_line(gate)}</bdi></p>${can_answer(node, rights, can_steer) && html`<${Answer} key=${gate} approve=${make_answer('flow.approve', {name: gate})} reject=${make_answer('flow.reject', {name: gate})}/>`}`)}
    <${Pairs} fields=${{kind: node.kind, detail: node.detail === node.kind || node.detail === 'ok' ? '' : node.detail, attempt: node.attempt > 1 ? node.attempt : '', agent: node.runner_id || '', began: format_time(node.started_ms), ended: format_time(node.ended_ms),
      took: node.started_ms ? format_duration(get_elapsed_ms(node.started_ms, node.ended_ms || now_ms)) : '', 'not later than': format_time(node.until_ms), approvers: node.approvers?.length ? node.approvers.join(', ') : ''}}/>
    <p>${node.kind === 'job' && html`<a class="button" href=${job_href(node.job, context)}>Job and log</a> `}${node.child ? html`<a class="button" href=${flow_href(node.child, context)}>Flow ${node.child}</a> ` : ''}
    ${node.node_status === 'failed' && can_steer && html`<${Action} run=${make_answer('flow.retry', {node: node.name})}>Run it again<//>`}</p></aside>`;
}

function Definition({id, context}) {
  const {value, error} = useCall('flow.get', {id, context_id: context, definition: true});
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const text = to_text(value.definition, 2);
  return html`<p class="actions"><${CopyButton} text=${text}/><a class="button" href=${href(['try'], {context, kind: 'flow', of: String(id)})}>Change and run</a></p><${Value} value=${text}/>
    ${value.inputs && html`<h3>Inputs</h3><${Pairs} fields=${value.inputs}/>`}${Object.keys(to_object(value.env_vars)).length > 0 && html`<h3>Environment</h3><${Pairs} fields=${value.env_vars}/>`}`;
}

function FlowResult({id, context, version}) {
  const {value, error} = useCall('flow.result', {id, context_id: context}, [version]);
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  return Object.keys(to_object(value.result)).length === 0 ? html`<p class="empty">${value.ended ? 'Its jobs returned no result.' : 'No result yet.'}</p>` : html`<${Pairs} fields=${value.result}/>`;
}

function OtherRuns({name, id, context}) {
  const {value} = useCall('flow.list', {name, context_id: context, limit: 12}, [], name !== '');
  const now_ms = useNow();
  const other_flows = (value ?? []).filter((entry) => entry.id !== id);
  if (other_flows.length === 0) return html`<p class="empty">It is the only run of this name.</p>`;
  return html`<table><tbody>${other_flows.map((entry) => html`<tr><td><${State} state=${get_flow_state(entry)}/></td><td><a href=${flow_href(entry.id, context)}>flow ${entry.id}</a></td><td><${RelativeTime} at_ms=${entry.at_ms} now_ms=${now_ms}/></td><td class="num">${entry.started_ms && entry.ended_ms ? format_duration(get_elapsed_ms(entry.started_ms, entry.ended_ms)) : ''}</td></tr>`)}</tbody></table>`;
}

const VIEWS = [['graph', 'Graph'], ['timeline', 'Timeline'], ['result', 'Result'], ['definition', 'Definition'], ['runs', 'Other runs']];

export function FlowView({id, query, context, rights}) {
  const {dag, record, reasons, error, end_reason, version, load} = useFlow(id, context);
  const now_ms = useNow();
  const view = VIEWS.some(([name]) => name === query.view) ? query.view : 'graph';
  const selected = query.node ?? '';
  const select = (node) => navigate(flow_href(id, context, {view, node: node === selected ? '' : node}));
  useTitle(record ? record.name || `flow ${id}` : `flow ${id}`);
  if (!dag || !record) return html`<main><p><a href=${href(['flows'], {context})}>Flows</a> / ${id}</p>${error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const has_ended = ['finished', 'error'].includes(record.status);
  const is_owner = record.caller_id === rights?.actor;
  const can_steer = rights && (rights.steer_all || (rights.steer_own && is_owner));
  const make_call = (method, params = {}) => async () => { await rpc(method, {id, context_id: context, ...params}); await load(); };
  const nodes = dag.nodes.filter((node) => !node.on_call || node.node_status !== 'pending');
  const ended_count = nodes.filter((node) => ['completed', 'failed', 'cancelled'].includes(node.node_status)).length;
  const skipped_count = nodes.filter((node) => node.detail === 'skipped').length;
  const node = dag.nodes.find((entry) => entry.name === selected);
  const waiting_nodes = dag.nodes.filter((entry) => get_node_state(entry)[0] === 'asks' && entry.name !== selected);
  const can_retry = record.status === 'error' && !/flow replay/.test(reasons?.[0]?.next ?? '');
  const replay = async () => {
    const flow = await rpc('flow.replay', {id, context_id: context});
    await rpc('flow.start', {id: flow.id, context_id: context});
    navigate(flow_href(flow.id, context));
  };
  return html`<main class="flow-view">
    <p class="crumbs"><a href=${href(['flows'], {context})}>Flows</a> / ${record.parent ? html`<span class="quiet">part of <bdi>${to_line(record.parent)}</bdi></span> / ` : ''}${id}</p>
    <div class="title"><h1><${UntrustedText} text=${record.name || `flow ${id}`} max_chars=${120}/></h1><${State} state=${get_flow_state(has_ended ? record : {...record, detail: dag.detail})}/>
      <div class="actions">${can_steer && record.detail === 'new' && html`<${Action} kind="first" run=${make_call('flow.start')}>Start<//>`}
        ${can_steer && can_retry && html`<${Action} kind="first" shortcut_key="r" title="the failed nodes (r)" run=${make_call('flow.retry')}>Run again<//>`}
        ${can_steer && rights.create && has_ended && html`<${Action} kind=${can_retry ? '' : 'first'} shortcut_key=${can_retry ? '' : 'r'} title=${`a new run of the same definition, as actor ${record.caller_id}`} run=${replay}>${can_retry ? 'New run' : 'Run again'}<//>`}
        ${can_steer && record.status === 'started' && (record.detail === 'paused' ? html`<${Action} run=${make_call('flow.resume')}>Resume<//>` : html`<${Action} run=${make_call('flow.pause')} title="no new job starts">Pause<//>`)}
        ${can_steer && record.status === 'started' && html`<${Action} shortcut_key="x" title="ends its jobs, then compensates (x)" run=${make_call('flow.cancel')}>Cancel<//>`}</div></div>
    <p class="facts quiet"><span>caller ${record.caller_id}</span><span>${format_counted(dag.nodes.length, 'node')}</span>${record.started_ms ? html`<span>${has_ended ? 'took' : 'runs for'} ${format_duration(get_elapsed_ms(record.started_ms, has_ended ? record.ended_ms : now_ms))}</span>` : ''}<span>${has_ended ? html`ended <${RelativeTime} at_ms=${record.ended_ms} now_ms=${now_ms}/>` : html`created <${RelativeTime} at_ms=${to_number(record.created_at) * 1000} now_ms=${now_ms}/>`}</span></p>
    <div class="progress"><progress max=${Math.max(nodes.length, 1)} value=${ended_count} aria-label="progress"></progress><span>${ended_count} of ${nodes.length} done${skipped_count > 0 ? `, ${skipped_count} skipped` : ''}</span></div>
    <${Problem} error=${error}/>${end_reason && html`<${Problem} error=${{message: end_reason}}/>`}
    ${dag.anomalies?.length > 0 && html`<${Problem} error=${{message: to_list(dag.anomalies).slice(0, 3).map((entry) => to_text(entry)).join('; ')}}/>`}
    ${record.status !== 'finished' && reasons?.length > 0 && html`<section class=${`card explain ${get_flow_state(record)[0]}`} aria-label="why">${reasons.slice(0, 3).map((entry) => html`<${Explanation} explanation=${entry}/>`)}</section>`}
    ${waiting_nodes.map((entry) => html`<${NodeCard} key=${entry.id} node=${entry} id=${id} context=${context} rights=${rights} can_steer=${can_steer} load=${load} close=${() => select(entry.name)}/>`)}
    <nav class="tabs" aria-label="of this flow">${VIEWS.map(([name, title]) => html`<a href=${flow_href(id, context, {view: name, node: selected})} aria-current=${view === name ? 'page' : null}>${title}</a>`)}</nav>
    ${node && html`<${NodeCard} key=${node.id} node=${node} id=${id} context=${context} rights=${rights} can_steer=${can_steer} load=${load} close=${() => select(selected)}/>`}
    ${selected && !node && html`<${Problem} error=${{message: `it has no node ${to_line(selected, 60)}`}}/>`}
    <section class="card" aria-label=${view}>
    ${view === 'graph' && html`<${Graph} nodes=${dag.nodes} edges=${dag.edges} selected=${selected} select=${select} now_ms=${dag.now_ms}/>`}
    ${view === 'timeline' && html`<${FlowTimeline} dag=${dag} id=${id} context=${context} version=${version} select=${select} selected=${selected}/>`}
    ${view === 'result' && html`<${FlowResult} id=${id} context=${context} version=${version}/>`}
    ${view === 'definition' && html`<${Definition} id=${id} context=${context}/>`}
    ${view === 'runs' && html`<${OtherRuns} name=${record.name} id=${id} context=${context}/>`}</section>
  </main>`;
}
