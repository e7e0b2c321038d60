// The list of flows, newest first. A flow that changes is updated in place.
import {html, Typed, useAgain, useEffect, useMemo, useRef, useState, Ago, Problem, State, Their, flow_href, flow_state, go, href, replace, useNow, useTitle} from './ui.js';
import {events, rpc} from './api.js';
import {Virtual} from './virtual.js';
import {useNarrow} from './jobs.js';
import {count, elapsed, list_of, span} from './text.js';

const PAGE = 100, MOST_AT_FRONT = 4000;
const STATUSES = [['', 'all'], ['started', 'under way'], ['error', 'failed'], ['finished', 'finished'], ['dispatched', 'new']];

export function Flows({query, context, cursor}) {
  useTitle('Flows');
  const now = useNow();
  const narrow = useNarrow();
  const filter = {};
  for (const name of ['name', 'status', 'state']) if (query[name]) filter[name] = query[name];
  if (/^\d+$/.test(query.caller ?? '')) filter.caller_id = Number(query.caller);
  if (query.until && Number.isFinite(Date.parse(query.until))) filter.until_ms = Date.parse(query.until);
  const key = JSON.stringify([context, filter]);
  const rows = useMemo(() => ({all: [], at: new Map(), after: '', over: false, searched: 0, fresh: false}), [key]);
  const [state, set] = useState({tick: 0, error: null});
  const busy = useRef(null), at_front = useRef(true), renew_soon = useRef(() => {});
  const show = (error = null) => set((was) => ({tick: was.tick + 1, error}));
  const load = async () => {
    if (busy.current === rows || rows.over) return;
    busy.current = rows;
    try {
      for (let found = 0; found === 0 && !rows.over && busy.current === rows;) {  // read on if no flow of a page matches the filter
        const page = await rpc('flows.page', {context_id: context, ...filter, limit: PAGE, ...(rows.after ? {after: rows.after} : {})});
        for (const flow of page.flows) if (!rows.at.has(flow.id)) { rows.at.set(flow.id, flow); rows.all.push(flow); found++; }
        Object.assign(rows, {after: page.after, over: page.after === '', searched: rows.searched + page.looked_at});
        show();
      }
    } catch (error) {
      show(error);
    }
    if (busy.current === rows) busy.current = null;
  };
  useEffect(() => { load(); return () => { busy.current = null; }; }, [rows]);
  useAgain(state.error, load);
  // Update changed flows. New flows are added only while the reader is at the top of the list.
  useEffect(() => {
    const moved = new Map();
    let timer = 0;
    const renew = async () => {
      timer = 0;
      const heard = new Map(moved);
      moved.clear();
      rows.fresh ||= [...heard.keys()].some((id) => !rows.at.has(id) && id > (rows.all[0]?.id ?? 0));
      for (const [id, data] of heard) if (rows.at.has(id)) Object.assign(rows.at.get(id), {status: data.status, detail: data.detail, error: data.error, ...(data.status === 'started' ? {} : {ended_ms: rows.at.get(id).ended_ms ?? 0})});
      if (at_front.current) {
        if (rows.fresh) await read_first();
        const stands = (flow) => (!filter.status || flow.status === filter.status) && (!filter.state || flow.status === filter.state || flow.detail === filter.state);
        keep(rows.all.filter(stands));
        if (rows.all.length > MOST_AT_FRONT) {
          keep(rows.all.slice(0, MOST_AT_FRONT / 2));
          Object.assign(rows, {after: String(rows.all[rows.all.length - 1].id), over: false});
        }
      }
      show();
    };
    const keep = (flows) => {
      if (flows.length < rows.all.length) Object.assign(rows, {all: flows, at: new Map(flows.map((flow) => [flow.id, flow]))});
    };
    const read_first = async () => {
      rows.fresh = false;
      const page = await rpc('flows.page', {context_id: context, ...filter, limit: PAGE}).catch(() => null);  // the next change repeats the call
      if (!page) return void (rows.fresh = true);
      const first = page.flows.filter((flow) => !rows.at.has(flow.id));
      // A whole page is new, so there may be a gap before the loaded rows. Start the list again.
      if (first.length === PAGE) Object.assign(rows, {all: [], at: new Map(), after: page.after, over: page.after === ''});
      for (const flow of first) rows.at.set(flow.id, flow);
      rows.all = [...first, ...rows.all];
    };
    renew_soon.current = () => { timer ||= setTimeout(renew, 0); };
    const end = events(new URLSearchParams({context}).toString(), (event, data) => {
      if (event !== 'flow') return;
      moved.set(data.flow, data);
      timer ||= setTimeout(renew, 500);
    });
    return () => { end(); clearTimeout(timer); };
  }, [rows]);
  const to_front = (top) => {
    at_front.current = top;
    if (top && rows.fresh) renew_soon.current();
  };
  // The selection is a flow, not an index, so that new rows do not move it.
  const [chosen_id, choose] = useState(0);
  const chosen = chosen_id ? rows.all.findIndex((each) => each.id === chosen_id) : -1;
  cursor.current = {
    move: (by) => choose(rows.all[Math.max(0, Math.min(rows.all.length - 1, chosen + by))]?.id ?? 0),
    open: () => { if (chosen >= 0) go(flow_href(chosen_id, context)); },
  };
  const timer = useRef(0);
  const soon = (name) => (event) => {
    const {value} = event.target;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => replace(href(['flows'], {...query, context, [name]: value})), 250);
  };
  const row = (i) => {
    const flow = rows.all[i];
    return html`<div role="row" key=${flow.id} aria-rowindex=${i + 1} class=${`job flow${i === chosen ? ' chosen' : ''}`}>
      <span role="cell" class="what"><${State} of=${flow_state(flow)}/></span>
      <span role="cell" class="name"><a href=${flow_href(flow.id, context)}><${Their} text=${flow.name || 'flow'} most=${120}/></a></span>
      <span role="cell" class="key quiet">${flow.id}</span>
      <span role="cell" class="type quiet">${list_of(flow.jobs).length || ''}</span>
      <span role="cell" class="when quiet"><${Ago} at=${flow.at_ms} now=${now}/></span>
      <span role="cell" class="took num quiet">${flow.started_ms && (flow.ended_ms || flow.status === 'started') ? span(elapsed(flow.started_ms, flow.ended_ms || now)) : ''}</span>
      <span role="cell" class="error"><${Their} text=${flow.error} most=${200}/></span></div>`;
  };
  const head = html`<div role="rowgroup" class="head"><div role="row" class="job flow"><span role="columnheader" class="what">state</span><span role="columnheader" class="name">name</span><span role="columnheader" class="key">flow</span><span role="columnheader" class="type">nodes</span><span role="columnheader" class="when">created</span><span role="columnheader" class="took num">took</span><span role="columnheader" class="error">error</span></div></div>`;
  const all = Object.keys(filter).length === 0;
  return html`<main class="list"><h1 class="hidden">Flows</h1>
    <form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="find"><span class="hidden">of this definition</span><${Typed} id="find" type="search" placeholder="of this name  ( / )" value=${query.name ?? ''} change=${soon('name')}/></label>
      <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, word]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status} onClick=${() => replace(href(['flows'], {...query, context, status}))}>${word}</button>`)}</div>
      <details class="more" open=${Boolean(query.caller || query.until)}><summary>more</summary><div>
        <label>caller <${Typed} inputmode="numeric" value=${query.caller ?? ''} placeholder="12" change=${soon('caller')}/></label>
        <label>made until <input type="datetime-local" value=${query.until ?? ''} onChange=${soon('until')}/></label></div></details>
      ${!all && html`<a class="button small" href=${href(['flows'], {context})}>clear</a>`}
    </form>
    <p class="quiet status" role="status">${count(rows.all.length)}${rows.over ? '' : '+'} shown${all || rows.over ? '' : `, ${count(rows.searched)} scanned`}
      ${rows.fresh && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; to_front(true); }}>New ones</button>`}</p><${Problem} error=${state.error}/>
    ${rows.all.length === 0 && rows.over ? html`<p class="empty">${all ? html`No flow yet. <a href=${href(['try'], {context, kind: 'flow'})}>Try one.</a>` : 'No flow matches.'}</p>`
      : html`<${Virtual} count=${rows.all.length} height=${narrow ? 54 : 30} row=${row} near_end=${load} chosen=${chosen} name=${String(chosen_id)} label="flows" head=${head} onTop=${to_front}/>`}
  </main>`;
}
