// The list of flows, newest first, shown page by page. Events update rows in place. While the list is scrolled to its top,
// new flows are added, and flows that no longer match the filter are removed; otherwise a button offers the new flows.
import {html, DelayedInput, useRetry, useEffect, useMemo, useRef, useState, RelativeTime, Problem, State, UntrustedText, flow_href, get_flow_state, navigate, href, replace_route, useNow, useTitle} from './ui.js';
import {open_event_stream, rpc} from './api.js';
import {Virtual} from './virtual.js';
import {useNarrow} from './jobs.js';
import {format_count, get_elapsed_ms, to_list, format_duration} from './text.js';

const PAGE_SIZE = 100, MAX_ROWS_AT_TOP = 4000;
const STATUSES = [['', 'all'], ['started', 'under way'], ['error', 'failed'], ['finished', 'finished'], ['dispatched', 'new']];

export function Flows({query, context, keyboard_actions}) {
  useTitle('Flows');
  const now_ms = useNow();
  const is_narrow = useNarrow();
  const filter = {};
  for (const name of ['name', 'status', 'state']) if (query[name]) filter[name] = query[name];
  if (/^\d+$/.test(query.caller ?? '')) filter.caller_id = Number(query.caller);
  if (query.until && Number.isFinite(Date.parse(query.until))) filter.until_ms = Date.parse(query.until);
  const key = JSON.stringify([context, filter]);
  const rows = useMemo(() => ({list: [], by_id: new Map(), next_cursor: '', is_complete: false, scanned_count: 0, has_new_flows: false}), [key]);
  const [state, set_state] = useState({tick: 0, error: null});
  const rows_being_loaded = useRef(null), is_scrolled_to_top = useRef(true), schedule_update = useRef(() => {});
  const redraw = (error = null) => set_state((previous) => ({tick: previous.tick + 1, error}));
  const load = async () => {
    if (rows_being_loaded.current === rows || rows.is_complete) return;
    rows_being_loaded.current = rows;
    try {
      // Further pages are read until a page contains a flow that matches the filter.
      for (let match_count = 0; match_count === 0 && !rows.is_complete && rows_being_loaded.current === rows;) {
        const page = await rpc('flows.page', {context_id: context, ...filter, limit: PAGE_SIZE, ...(rows.next_cursor ? {after: rows.next_cursor} : {})});
        for (const flow of page.flows) if (!rows.by_id.has(flow.id)) { rows.by_id.set(flow.id, flow); rows.list.push(flow); match_count++; }
        Object.assign(rows, {next_cursor: page.after, is_complete: page.after === '', scanned_count: rows.scanned_count + page.looked_at});
        redraw();
      }
    } catch (error) {
      redraw(error);
    }
    if (rows_being_loaded.current === rows) rows_being_loaded.current = null;
  };
  useEffect(() => { load(); return () => { rows_being_loaded.current = null; }; }, [rows]);
  useRetry(state.error, load);
  // Update changed flows. New flows are added only while the reader is at the top of the list.
  useEffect(() => {
    const changes = new Map();
    let timer = 0;
    const update_rows = async () => {
      timer = 0;
      const received = new Map(changes);
      changes.clear();
      rows.has_new_flows ||= [...received.keys()].some((id) => !rows.by_id.has(id) && id > (rows.list[0]?.id ?? 0));
      for (const [id, data] of received) if (rows.by_id.has(id)) Object.assign(rows.by_id.get(id), {status: data.status, detail: data.detail, error: data.error, ...(data.status === 'started' ? {} : {ended_ms: rows.by_id.get(id).ended_ms ?? 0})});
      if (is_scrolled_to_top.current) {
        if (rows.has_new_flows) await read_first_page();
        const matches_filter = (flow) => (!filter.status || flow.status === filter.status) && (!filter.state || flow.status === filter.state || flow.detail === filter.state);
        set_rows(rows.list.filter(matches_filter));
        if (rows.list.length > MAX_ROWS_AT_TOP) {
          set_rows(rows.list.slice(0, MAX_ROWS_AT_TOP / 2));
          Object.assign(rows, {next_cursor: String(rows.list[rows.list.length - 1].id), is_complete: false});
        }
      }
      redraw();
    };
    const set_rows = (flows) => {
      if (flows.length < rows.list.length) Object.assign(rows, {list: flows, by_id: new Map(flows.map((flow) => [flow.id, flow]))});
    };
    const read_first_page = async () => {
      rows.has_new_flows = false;
      const page = await rpc('flows.page', {context_id: context, ...filter, limit: PAGE_SIZE}).catch(() => null);  // After an error, the next change repeats the call.
      if (!page) return void (rows.has_new_flows = true);
      const new_flows = page.flows.filter((flow) => !rows.by_id.has(flow.id));
      // If a whole page is new, there may be a gap before the loaded rows, so the list is loaded again.
      if (new_flows.length === PAGE_SIZE) Object.assign(rows, {list: [], by_id: new Map(), next_cursor: page.after, is_complete: page.after === ''});
      for (const flow of new_flows) rows.by_id.set(flow.id, flow);
      rows.list = [...new_flows, ...rows.list];
    };
    schedule_update.current = () => { timer ||= setTimeout(update_rows, 0); };
    const close_stream = open_event_stream(new URLSearchParams({context}).toString(), (event, data) => {
      if (event !== 'flow') return;
      changes.set(data.flow, data);
      timer ||= setTimeout(update_rows, 500);
    });
    return () => { close_stream(); clearTimeout(timer); };
  }, [rows]);
  const on_top_change = (is_at_top) => {
    is_scrolled_to_top.current = is_at_top;
    if (is_at_top && rows.has_new_flows) schedule_update.current();
  };
  // The selection is a flow, not an index, so that new rows do not move it.
  const [selected_id, select] = useState(0);
  const selected = selected_id ? rows.list.findIndex((entry) => entry.id === selected_id) : -1;
  keyboard_actions.current = {
    move: (delta) => select(rows.list[Math.max(0, Math.min(rows.list.length - 1, selected + delta))]?.id ?? 0),
    open: () => { if (selected >= 0) navigate(flow_href(selected_id, context)); },
  };
  const timer = useRef(0);
  const make_delayed_setter = (name) => (event) => {
    const {value} = event.target;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => replace_route(href(['flows'], {...query, context, [name]: value})), 250);
  };
  const render_row = (i) => {
    const flow = rows.list[i];
    return html`<div role="row" key=${flow.id} aria-rowindex=${i + 1} class=${`job flow${i === selected ? ' chosen' : ''}`}>
      <span role="cell" class="what"><${State} state=${get_flow_state(flow)}/></span>
      <span role="cell" class="name"><a href=${flow_href(flow.id, context)}><${UntrustedText} text=${flow.name || 'flow'} max_chars=${120}/></a></span>
      <span role="cell" class="key quiet">${flow.id}</span>
      <span role="cell" class="type quiet">${to_list(flow.jobs).length || ''}</span>
      <span role="cell" class="when quiet"><${RelativeTime} at_ms=${flow.at_ms} now_ms=${now_ms}/></span>
      <span role="cell" class="took num quiet">${flow.started_ms && (flow.ended_ms || flow.status === 'started') ? format_duration(get_elapsed_ms(flow.started_ms, flow.ended_ms || now_ms)) : ''}</span>
      <span role="cell" class="error"><${UntrustedText} text=${flow.error} max_chars=${200}/></span></div>`;
  };
  const head = html`<div role="rowgroup" class="head"><div role="row" class="job flow"><span role="columnheader" class="what">state</span><span role="columnheader" class="name">name</span><span role="columnheader" class="key">flow</span><span role="columnheader" class="type">nodes</span><span role="columnheader" class="when">created</span><span role="columnheader" class="took num">took</span><span role="columnheader" class="error">error</span></div></div>`;
  const is_unfiltered = Object.keys(filter).length === 0;
  return html`<main class="list"><h1 class="hidden">Flows</h1>
    <form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="find"><span class="hidden">of this definition</span><${DelayedInput} id="find" type="search" placeholder="of this name  ( / )" value=${query.name ?? ''} change=${make_delayed_setter('name')}/></label>
      <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, label]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status} onClick=${() => replace_route(href(['flows'], {...query, context, status}))}>${label}</button>`)}</div>
      <details class="more" open=${Boolean(query.caller || query.until)}><summary>more</summary><div>
        <label>caller <${DelayedInput} inputmode="numeric" value=${query.caller ?? ''} placeholder="12" change=${make_delayed_setter('caller')}/></label>
        <label>made until <input type="datetime-local" value=${query.until ?? ''} onChange=${make_delayed_setter('until')}/></label></div></details>
      ${!is_unfiltered && html`<a class="button small" href=${href(['flows'], {context})}>clear</a>`}
    </form>
    <p class="quiet status" role="status">${format_count(rows.list.length)}${rows.is_complete ? '' : '+'} shown${is_unfiltered || rows.is_complete ? '' : `, ${format_count(rows.scanned_count)} scanned`}
      ${rows.has_new_flows && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; on_top_change(true); }}>New ones</button>`}</p><${Problem} error=${state.error}/>
    ${rows.list.length === 0 && rows.is_complete ? html`<p class="empty">${is_unfiltered ? html`No flow yet. <a href=${href(['try'], {context, kind: 'flow'})}>Try one.</a>` : 'No flow matches.'}</p>`
      : html`<${Virtual} count=${rows.list.length} height=${is_narrow ? 54 : 30} render_row=${render_row} on_near_end=${load} selected=${selected} name=${String(selected_id)} label="flows" head=${head} on_top_change=${on_top_change}/>`}
  </main>`;
}
