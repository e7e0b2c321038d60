// The view of one flow: its graph with current states, timeline, definition, result, and controls for waiting approvals.
import {html, useCall, useEffect, useMemo, useRef, useState, Ago, Copy, Action, Glyph, Problem, Sentence, State, Their, flow_href, flow_state, go, href, job_href, node_state, set_now, useAgain, useNow, useTitle, while_seen} from './ui.js';
import {events, rpc} from './api.js';
import {Graph} from './graph.js';
import {Answer, Explained, Pairs, Value} from './job.js';
import {clock, counted, elapsed, line, list_of, moment, number_of, object_of, plain, span, text_of} from './text.js';

// Loads a flow, and loads it again after each change of its journal.
function useFlow(id, context) {
  const [state, set] = useState({dag: null, record: null, why: null, error: null, gone: '', moved: 0});
  const turn = useRef(0);
  const load = async () => {
    const mine = ++turn.current;
    try {
      const params = {id, context_id: context};
      const [dag, record, why] = await Promise.all([rpc('flow.dag', params), rpc('flow.get', params), rpc('flow.explain', params)]);
      if (mine !== turn.current) return;
      set_now(dag.now_ms);
      set((was) => ({...was, dag, record, why, error: null, moved: was.moved + 1}));
    } catch (error) {
      if (mine === turn.current) set((was) => ({...was, error}));
    }
  };
  useEffect(() => {
    set({dag: null, record: null, why: null, error: null, gone: '', moved: 0});
    load();
    let due = 0;
    const soon = () => { due ||= setTimeout(() => { due = 0; load(); }, 250); };
    const end = events(new URLSearchParams({context, flow: id}).toString(), soon, (gone) => set((was) => ({...was, gone})));
    // Poll while nodes are active, since the journal does not report that an agent has claimed a job.
    const rest = while_seen(1500, () => { if (busy.current) load(); });
    return () => { turn.current++; end(); clearTimeout(due); rest(); };
  }, [id, context]);
  useAgain(state.error, load);
  const busy = useRef(false);
  busy.current = state.dag?.nodes.some((node) => ['dispatched', 'running', 'ready'].includes(node.node_status)) ?? false;
  return {...state, load};
}

// Returns the periods in which a node waited or ran, [{from, to, kind}], computed from its timeline.
export function bars_of(node, moments, now) {
  const bars = [];
  let since = 0, kind = '';
  const begin = (at, as) => { if (since && at > since) bars.push({from: since, to: at, kind}); since = at; kind = as; };
  for (const each of moments) {
    const {what, at_ms: at} = each;
    if (/^(queued|waits|starts a flow|begins its parts|ready|retried|dispatched)/.test(what)) begin(at, /^queued/.test(what) ? 'queued' : 'waits');
    else if (/^attempt \d+ (failed|was lost|was given back)/.test(what)) { begin(at, 'waits'); if (bars.length) bars[bars.length - 1].kind = 'lost'; bars[bars.length - 1] && (bars[bars.length - 1].note = what); }
    else if (/^(completed|failed|cancelled|skipped)/.test(what)) { begin(at, ''); since = 0; }
  }
  const ends = node.ended_ms || now;
  if (since && kind) bars.push({from: since, to: ends, kind});
  const last = bars[bars.length - 1];
  if (node.started_ms && last && last.kind !== 'lost' && node.started_ms > last.from && node.started_ms <= last.to) {
    bars.push({from: node.started_ms, to: last.to, kind: 'run'});
    last.to = node.started_ms;
  } else if (node.started_ms && last && node.started_ms <= last.from && last.kind === 'queued') last.kind = 'run';
  else if (node.started_ms && !last) bars.push({from: node.started_ms, to: ends, kind: 'run'});
  return bars;
}

const TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000, 7200000, 21600000, 86400000, 604800000];
function Timeline({dag, id, context, moved, choose, chosen}) {
  const {value: moments, error} = useCall('flow.timeline', {id, context_id: context, limit: 5000}, [moved]);
  const running = dag.nodes.some((node) => !node.ended_ms && node.started_ms);
  const tick_now = useNow(1000);
  if (!moments) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  if (moments.length === 0) return html`<p class="empty">It has not started.</p>`;
  const now = running || dag.status === 'started' ? Math.max(tick_now, dag.now_ms) : Math.max(...moments.map((each) => each.at_ms));
  const from = moments.find((each) => each.at_ms)?.at_ms ?? now, all = Math.max(now - from, 1);
  const of = new Map();
  for (const each of moments) if (each.node) of.set(each.node, [...(of.get(each.node) ?? []), each]);
  const rows = dag.nodes.filter((node) => of.has(node.name) || node.started_ms).map((node) => ({node, bars: bars_of(node, of.get(node.name) ?? [], now)}))
    .sort((a, b) => (a.bars[0]?.from ?? a.node.ended_ms ?? 0) - (b.bars[0]?.from ?? b.node.ended_ms ?? 0));
  const step = TICKS.find((each) => all / each <= (innerWidth < 700 ? 2 : 6)) ?? TICKS[TICKS.length - 1];
  const ticks = [];
  for (let at = 0; at <= all; at += step) ticks.push(at);
  const x = (at) => Math.max(0, Math.min(100, ((at - from) / all) * 100));
  return html`<div class="gantt" tabindex="0" role="group" aria-label="timeline"><div class="gantt-head"><span></span><div class="track">${ticks.map((at) => html`<span class="tick" style=${{left: `${(at / all) * 100}%`}}>${at ? `+${span(at)}` : clock(from)}</span>`)}</div></div>
    ${rows.map(({node, bars}) => html`<button type="button" class=${`gantt-row${chosen === node.name ? ' chosen' : ''}`} key=${node.id} onClick=${() => choose(node.name)}><span class="gantt-name"><${Glyph} shape=${node_state(node)[0]}/> <${Their} text=${node.name} most=${40}/></span>
      <div class="track">${bars.map((bar) => html`<span class=${`bar ${bar.kind} ${bar.kind === 'run' ? node_state(node)[0] : ''}`} style=${{left: `${x(bar.from)}%`, width: `${Math.max(x(bar.to) - x(bar.from), 0.4)}%`}} title=${`${{run: 'ran', queued: 'queued', waits: 'waited', lost: 'failed attempt'}[bar.kind]} ${span(bar.to - bar.from)}${bar.note ? `: ${line(bar.note)}` : ''}`}></span>`)}</div></button>`)}
    <p class="legend quiet"><span class="bar run"></span> ran <span class="bar queued"></span> queued <span class="bar waits"></span> waited <span class="bar lost"></span> an attempt that failed</p></div>
    <details open=${rows.length < 12}><summary><h3>History</h3></summary><table class="moments"><tbody>${moments.slice(-1000).map((each) => html`<tr><td><time title=${moment(each.at_ms)}>${each.at_ms ? clock(each.at_ms) : ''}</time></td><td class="num quiet">+${span(each.at_ms - from)}</td><td><${Their} text=${each.node || 'flow'} most=${60}/></td><td><${Their} text=${each.what}/></td></tr>`)}</tbody></table></details>`;
}

// Same rule as in the server: the approvers of the step, or without approvers all who may control the flow; admins always.
const may_answer = (node, rights, steers) => rights && (rights.administer || (node.approvers?.length ? node.approvers.includes(rights.actor) : steers));

function Node({node, id, context, rights, steers, load, close}) {
  const now = useNow();
  const asks = ['approval', 'pause'].includes(node.detail) && !['completed', 'failed', 'cancelled'].includes(node.node_status);
  const gates = (node.gates ?? []).filter((each) => each.startsWith('approval:')).map((each) => each.slice(9));
  const say = (method, params) => async (comment) => { await rpc(method, {id, context_id: context, ...params, ...(comment ? {comment} : {})}); await load(); };
  return html`<aside class="card node-card" aria-label="node"><div class="title"><h2><${Their} text=${node.name} most=${80}/></h2><${State} of=${node_state(node)}/><button type="button" class="small" onClick=${close} aria-label="close">\u2715</button></div>
    ${node.error && html`<p class="problem"><bdi>${plain(node.error)}</bdi></p>`}
    ${node.asks && html`<p><bdi>${plain(node.asks)}</bdi></p>`}
    ${asks && may_answer(node, rights, steers) && (node.detail === 'pause' ? html`<${Answer} pause=${true} approve=${say('flow.resume', {node: node.name})}/>` : html`<${Answer} approve=${say('flow.approve', {name: node.name})} reject=${say('flow.reject', {name: node.name})}/>`)}
    ${node.detail === 'gate' && gates.map((gate) => html`<p>waits for approval: <bdi>${line(gate)}</bdi></p>${may_answer(node, rights, steers) && html`<${Answer} key=${gate} approve=${say('flow.approve', {name: gate})} reject=${say('flow.reject', {name: gate})}/>`}`)}
    <${Pairs} of=${{kind: node.kind, detail: node.detail === node.kind || node.detail === 'ok' ? '' : node.detail, attempt: node.attempt > 1 ? node.attempt : '', agent: node.runner_id || '', began: moment(node.started_ms), ended: moment(node.ended_ms),
      took: node.started_ms ? span(elapsed(node.started_ms, node.ended_ms || now)) : '', 'not later than': moment(node.until_ms), approvers: node.approvers?.length ? node.approvers.join(', ') : ''}}/>
    <p>${node.kind === 'job' && html`<a class="button" href=${job_href(node.job, context)}>Job and log</a> `}${node.child ? html`<a class="button" href=${flow_href(node.child, context)}>Flow ${node.child}</a> ` : ''}
    ${node.node_status === 'failed' && steers && html`<${Action} run=${say('flow.retry', {node: node.name})}>Run it again<//>`}</p></aside>`;
}

function Definition({id, context}) {
  const {value, error} = useCall('flow.get', {id, context_id: context, definition: true});
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const text = text_of(value.definition, 2);
  return html`<p class="actions"><${Copy} text=${text}/><a class="button" href=${href(['try'], {context, kind: 'flow', of: String(id)})}>Change and run</a></p><${Value} of=${text}/>
    ${value.inputs && html`<h3>Inputs</h3><${Pairs} of=${value.inputs}/>`}${Object.keys(object_of(value.env_vars)).length > 0 && html`<h3>Environment</h3><${Pairs} of=${value.env_vars}/>`}`;
}

function Outcome({id, context, moved}) {
  const {value, error} = useCall('flow.result', {id, context_id: context}, [moved]);
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  return Object.keys(object_of(value.result)).length === 0 ? html`<p class="empty">${value.ended ? 'Its jobs returned no result.' : 'No result yet.'}</p>` : html`<${Pairs} of=${value.result}/>`;
}

function Others({name, id, context}) {
  const {value} = useCall('flow.list', {name, context_id: context, limit: 12}, [], name !== '');
  const now = useNow();
  const others = (value ?? []).filter((each) => each.id !== id);
  if (others.length === 0) return html`<p class="empty">It is the only run of this name.</p>`;
  return html`<table><tbody>${others.map((each) => html`<tr><td><${State} of=${flow_state(each)}/></td><td><a href=${flow_href(each.id, context)}>flow ${each.id}</a></td><td><${Ago} at=${each.at_ms} now=${now}/></td><td class="num">${each.started_ms && each.ended_ms ? span(elapsed(each.started_ms, each.ended_ms)) : ''}</td></tr>`)}</tbody></table>`;
}

const VIEWS = [['graph', 'Graph'], ['timeline', 'Timeline'], ['result', 'Result'], ['definition', 'Definition'], ['runs', 'Other runs']];

export function FlowView({id, query, context, rights}) {
  const {dag, record, why, error, gone, moved, load} = useFlow(id, context);
  const now = useNow();
  const shown = VIEWS.some(([name]) => name === query.view) ? query.view : 'graph';
  const chosen = query.node ?? '';
  const choose = (node) => go(flow_href(id, context, {view: shown, node: node === chosen ? '' : node}));
  useTitle(record ? record.name || `flow ${id}` : `flow ${id}`);
  if (!dag || !record) return html`<main><p><a href=${href(['flows'], {context})}>Flows</a> / ${id}</p>${error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const ended = ['finished', 'error'].includes(record.status);
  const own = record.caller_id === rights?.actor;
  const steers = rights && (rights.steer_all || (rights.steer_own && own));
  const call = (method, more = {}) => async () => { await rpc(method, {id, context_id: context, ...more}); await load(); };
  const nodes = dag.nodes.filter((node) => !node.on_call || node.node_status !== 'pending');
  const done = nodes.filter((node) => ['completed', 'failed', 'cancelled'].includes(node.node_status)).length;
  const skipped = nodes.filter((node) => node.detail === 'skipped').length;
  const node = dag.nodes.find((each) => each.name === chosen);
  const asking = dag.nodes.filter((each) => node_state(each)[0] === 'asks' && each.name !== chosen);
  const retries = record.status === 'error' && !/flow replay/.test(why?.[0]?.next ?? '');
  const again = async () => {
    const made = await rpc('flow.replay', {id, context_id: context});
    await rpc('flow.start', {id: made.id, context_id: context});
    go(flow_href(made.id, context));
  };
  return html`<main class="flow-view">
    <p class="crumbs"><a href=${href(['flows'], {context})}>Flows</a> / ${record.parent ? html`<span class="quiet">part of <bdi>${line(record.parent)}</bdi></span> / ` : ''}${id}</p>
    <div class="title"><h1><${Their} text=${record.name || `flow ${id}`} most=${120}/></h1><${State} of=${flow_state(ended ? record : {...record, detail: dag.detail})}/>
      <div class="actions">${steers && record.detail === 'new' && html`<${Action} kind="first" run=${call('flow.start')}>Start<//>`}
        ${steers && retries && html`<${Action} kind="first" keys="r" title="the failed nodes (r)" run=${call('flow.retry')}>Run again<//>`}
        ${steers && rights.create && ended && html`<${Action} kind=${retries ? '' : 'first'} keys=${retries ? '' : 'r'} title=${`a new run of the same definition, as actor ${record.caller_id}`} run=${again}>${retries ? 'New run' : 'Run again'}<//>`}
        ${steers && record.status === 'started' && (record.detail === 'paused' ? html`<${Action} run=${call('flow.resume')}>Resume<//>` : html`<${Action} run=${call('flow.pause')} title="no new job starts">Pause<//>`)}
        ${steers && record.status === 'started' && html`<${Action} keys="x" title="ends its jobs, then compensates (x)" run=${call('flow.cancel')}>Cancel<//>`}</div></div>
    <p class="facts quiet"><span>caller ${record.caller_id}</span><span>${counted(dag.nodes.length, 'node')}</span>${record.started_ms ? html`<span>${ended ? 'took' : 'runs for'} ${span(elapsed(record.started_ms, ended ? record.ended_ms : now))}</span>` : ''}<span>${ended ? html`ended <${Ago} at=${record.ended_ms} now=${now}/>` : html`created <${Ago} at=${number_of(record.created_at) * 1000} now=${now}/>`}</span></p>
    <div class="progress"><progress max=${Math.max(nodes.length, 1)} value=${done} aria-label="progress"></progress><span>${done} of ${nodes.length} done${skipped > 0 ? `, ${skipped} skipped` : ''}</span></div>
    <${Problem} error=${error}/>${gone && html`<${Problem} error=${{message: gone}}/>`}
    ${dag.anomalies?.length > 0 && html`<${Problem} error=${{message: list_of(dag.anomalies).slice(0, 3).map((each) => text_of(each)).join('; ')}}/>`}
    ${record.status !== 'finished' && why?.length > 0 && html`<section class=${`card explain ${flow_state(record)[0]}`} aria-label="why">${why.slice(0, 3).map((each) => html`<${Explained} why=${each}/>`)}</section>`}
    ${asking.map((each) => html`<${Node} key=${each.id} node=${each} id=${id} context=${context} rights=${rights} steers=${steers} load=${load} close=${() => choose(each.name)}/>`)}
    <nav class="tabs" aria-label="of this flow">${VIEWS.map(([name, title]) => html`<a href=${flow_href(id, context, {view: name, node: chosen})} aria-current=${shown === name ? 'page' : null}>${title}</a>`)}</nav>
    ${node && html`<${Node} key=${node.id} node=${node} id=${id} context=${context} rights=${rights} steers=${steers} load=${load} close=${() => choose(chosen)}/>`}
    ${chosen && !node && html`<${Problem} error=${{message: `it has no node ${line(chosen, 60)}`}}/>`}
    <section class="card" aria-label=${shown}>
    ${shown === 'graph' && html`<${Graph} nodes=${dag.nodes} edges=${dag.edges} chosen=${chosen} choose=${choose} now=${dag.now_ms}/>`}
    ${shown === 'timeline' && html`<${Timeline} dag=${dag} id=${id} context=${context} moved=${moved} choose=${choose} chosen=${chosen}/>`}
    ${shown === 'result' && html`<${Outcome} id=${id} context=${context} moved=${moved}/>`}
    ${shown === 'definition' && html`<${Definition} id=${id} context=${context}/>`}
    ${shown === 'runs' && html`<${Others} name=${record.name} id=${id} context=${context}/>`}</section>
  </main>`;
}
