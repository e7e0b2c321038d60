// The list of jobs, loaded page by page and filtered by the query of the address. Changed jobs are added at the front.
import {html, useEffect, useMemo, useRef, useState, Problem, State, UntrustedText, navigate, has_failed, href, job_href, job_state, store_now_ms, replace_route, Memo, DelayedInput, useRetry, useNow, useTitle, poll_while_visible} from './ui.js';
import {rpc} from './api.js';
import {Rows} from './rows.js';
import {Virtual} from './virtual.js';
import {format_age, format_count, format_counted, elapsed, format_time, format_duration} from './text.js';

// The fields of jobs that a row shows. Scripts, results and receipts are loaded only in the view of one job.
const FIELDS = ['name', 'detail', 'error', 'flow_id', 'script_type', 'changed_ms', 'started_ms', 'ended_ms'];
const PAGE_SIZE = 200, MAX_PAGES = 5;
const STATUSES = [['', 'all'], ['dispatched', 'queued'], ['waiting_for_prerequisites', 'waiting'], ['started', 'running'], ['error', 'failed'], ['finished', 'finished']];

export const parse_filter = (query) => {
  const filter = {};
  for (const name of ['status', 'state', 'name', 'script_type']) if (query[name]) filter[name] = query[name];
  if (/^\d+$/.test(query.caller ?? '')) filter.caller_id = Number(query.caller);
  for (const [name, field] of [['since', 'since_ms'], ['until', 'until_ms']]) {
    const time_ms = query[name] ? Date.parse(query[name]) : NaN;
    if (Number.isFinite(time_ms)) filter[field] = time_ms;
  }
  return filter;
};

function useJobs(context, filter, changed_ms) {
  const key = JSON.stringify([context, filter]);
  const rows = useMemo(() => new Rows(), [key]);
  const [state, set] = useState({tick: 0, error: null, is_loading: false});
  const current = useRef(rows), at_front = useRef(true), latest_change_ms = useRef(0);
  if (current.current !== rows) at_front.current = true;
  current.current = rows;
  latest_change_ms.current = changed_ms ?? 0;
  const redraw = (changes = {}) => set((previous) => ({...previous, tick: previous.tick + 1, ...changes}));
  // Loads the next page. Only one page is loaded at a time.
  const load = async () => {
    if (rows.is_loading || rows.is_complete || rows.scanned >= rows.scan_limit) return;
    rows.is_loading = true;
    const index_time_ms = rows.scanned === 0 ? latest_change_ms.current : 0;
    set((previous) => ({...previous, is_loading: true}));
    let load_error = null;
    try {
      const params = {context_id: context, ...filter, limit: PAGE_SIZE, fields: FIELDS};
      if (rows.after) params.after = rows.after;
      const page = await rpc('jobs.page', params);
      rows.add(page.jobs);
      rows.newest_ms = Math.max(rows.newest_ms, index_time_ms);
      if (!rows.is_loaded) rows.front_ms = rows.newest_ms;
      rows.scanned += page.looked_at;
      if (page.jobs.length * 2 >= PAGE_SIZE) rows.scan_limit = rows.scanned + Rows.MAX_SCANNED;
      rows.after = page.after;
      rows.is_complete = page.after === '';
      rows.is_loaded = true;
    } catch (error) {
      load_error = error;
    }
    rows.is_loading = false;
    if (current.current === rows) redraw({error: load_error, is_loading: false});
  };
  useEffect(() => { redraw({error: null, is_loading: rows.is_loading}); load(); }, [rows]);
  useRetry(state.error, load);
  // With a filter, a page can be empty although more pages follow.
  useEffect(() => { if (rows.is_loaded && !rows.is_complete && rows.list.length < 60 && !state.error) load(); }, [state.tick, state.is_loading]);
  // Reads the jobs that have changed since a time, at most MAX_PAGES pages. The filter's status and state are not applied.
  const read_changed_since = async (since_ms) => {
    const {status, state: word, ...other_filters} = filter, jobs = [];
    const params = {context_id: context, ...other_filters, since_ms: Math.max(since_ms, filter.since_ms ?? 0, 1), limit: PAGE_SIZE, fields: FIELDS};
    let after = '';
    for (let pages = 0; pages < MAX_PAGES && current.current === rows; pages++) {
      const page = await rpc('jobs.page', after ? {...params, after} : params);
      jobs.push(...page.jobs);
      after = page.after;
      if (after === '') break;
    }
    return {jobs, after};
  };
  // Merge jobs that changed after the newest row. Their status and state are not filtered, since a job that no longer
  // matches the filter must be removed from the list.
  useEffect(() => {
    if (!changed_ms || filter.until_ms || !rows.is_loaded || rows.is_updating) return;
    rows.is_updating = true;
    const update = async () => {
      while (current.current === rows && latest_change_ms.current > rows.newest_ms) {
        const target_ms = latest_change_ms.current, is_at_front = at_front.current && !rows.has_overflow;
        const {jobs, after} = await read_changed_since(is_at_front ? rows.front_ms : rows.newest_ms);
        if (current.current !== rows) return;
        if (after === '') rows.merge(jobs, at_front.current && is_at_front, filter);
        else if (at_front.current && is_at_front) rows.merge_with_gap(jobs, after, filter);
        else {
          rows.has_overflow = true;
          rows.merge(jobs, false, filter);  // updates only the loaded rows
        }
        rows.newest_ms = Math.max(rows.newest_ms, target_ms);
        if (at_front.current && is_at_front) {
          rows.clear_pending();
          rows.front_ms = rows.newest_ms;
        }
        redraw();
      }
    };
    update().catch(() => {}).finally(() => {  // the next change repeats the call
      rows.is_updating = false;
      if (rows.update_requested) show_pending();
    });
  }, [changed_ms, rows, rows.is_loaded]);
  // Adds the jobs that changed while the reader was not at the top of the list to its front.
  const show_pending = async () => {
    if (rows.has_overflow) {
      rows.update_requested = rows.is_updating;
      if (rows.is_updating) return;
      rows.is_updating = true;
      try {
        const {jobs, after} = await read_changed_since(rows.front_ms);
        if (current.current !== rows) return;
        rows.clear_pending();
        if (after === '') rows.merge(jobs, true, filter);
        else rows.merge_with_gap(jobs, after, filter);
      } catch (error) {
        return redraw({error});
      } finally {
        rows.is_updating = false;
      }
    } else {
      rows.move_to_front([...rows.pending.values()].sort((a, b) => elapsed(a.changed_ms, b.changed_ms)));
      rows.clear_pending();
    }
    rows.front_ms = rows.newest_ms;
    redraw({error: null});
  };
  const fill_gap = async (gap) => {
    if (gap.is_loading) return;
    gap.is_loading = true;
    redraw();
    try {
      for (let pages = 0, job_count = 0; pages < MAX_PAGES && job_count === 0; pages++) {
        const page = await rpc('jobs.page', {context_id: context, ...filter, limit: PAGE_SIZE, fields: FIELDS, after: gap.after});
        if (current.current !== rows) return;
        rows.fill_gap(gap, page.jobs, page.after);
        job_count = page.jobs.length;
        if (!rows.list.includes(gap)) break;
      }
      redraw({error: null});
    } catch (error) {
      redraw({error});
    } finally {
      gap.is_loading = false;
    }
  };
  const continue_search = () => {
    rows.scan_limit = rows.scanned + Rows.MAX_SCANNED;
    load();
  };
  return {rows, ...state, load, continue_search, fill_gap, at_front, show_pending, needs_confirmation: !rows.is_loading && !rows.is_complete && rows.scanned >= rows.scan_limit};
}

function Filter({query, context}) {
  const set = (name, value) => replace_route(href(['jobs'], {...query, context, [name]: value}));
  const timer = useRef(0);
  const set_delayed = (name) => (event) => {
    const {value} = event.target;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set(name, value), 250);
  };
  const has_filter = Object.keys(query).some((name) => name !== 'context' && query[name]);
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="find"><span class="hidden">in its name</span><${DelayedInput} id="find" type="search" placeholder="in its name  ( / )" value=${query.name ?? ''} change=${set_delayed('name')}/></label>
    <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, label]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status && !(query.state && !status)} onClick=${() => replace_route(href(['jobs'], {...query, context, status, state: ''}))}>${label}</button>`)}</div>
    <details class="more" open=${Boolean(query.state || query.script_type || query.caller || query.since || query.until)}><summary>more</summary><div>
      <label>detail <${DelayedInput} value=${query.state ?? ''} placeholder="timeout, oom \u2026" change=${set_delayed('state')}/></label>
      <label>type <${DelayedInput} value=${query.script_type ?? ''} placeholder="python" change=${set_delayed('script_type')}/></label>
      <label>caller <${DelayedInput} inputmode="numeric" value=${query.caller ?? ''} placeholder="12" change=${set_delayed('caller')}/></label>
      <label>since <input type="datetime-local" value=${query.since ?? ''} onChange=${set_delayed('since')}/></label>
      <label>until <input type="datetime-local" value=${query.until ?? ''} onChange=${set_delayed('until')}/></label>
    </div></details>
    ${has_filter && html`<a class="button small" href=${href(['jobs'], {context})}>clear</a>`}
  </form>`;
}

const format_run_time = (job, now) => (job.started_ms && job.status !== 'dispatched' ? format_duration(elapsed(job.started_ms, job.ended_ms >= job.started_ms ? job.ended_ms : now)) : '');

export function Jobs({query, context, view, cursor}) {
  useTitle('Jobs');
  const now = useNow();
  const [poll_ms, set_poll_ms] = useState(0);
  // Users without the right to read the overview receive no change events, so their jobs are polled.
  useEffect(() => {
    if (!view) return poll_while_visible(3000, () => set_poll_ms(store_now_ms()));
  }, [Boolean(view)]);
  const filter = parse_filter(query);
  const {rows, error, is_loading, load, continue_search, fill_gap, needs_confirmation, at_front, show_pending} = useJobs(context, filter, view ? view.changed_ms : poll_ms);
  const is_narrow = useNarrow();
  // The selection is a job, not an index, so that new rows do not move it.
  const [selected_key, select] = useState('');
  const selected = selected_key ? rows.list.findIndex((entry) => entry.key === selected_key) : -1;
  cursor.current = {
    move: (delta) => select(rows.list[Math.max(0, Math.min(rows.list.length - 1, selected + delta))]?.key ?? ''),
    open: () => { if (selected >= 0) rows.list[selected].gap ? fill_gap(rows.list[selected]) : navigate(job_href(selected_key, context)); },
  };
  const row = (i) => {
    const job = rows.list[i];
    if (job.gap) return html`<div role="row" key=${job.key} aria-rowindex=${i + 1} class=${`job gap${i === selected ? ' chosen' : ''}`}><span role="cell" class="name">Other jobs changed in between. <button type="button" class="small" disabled=${job.is_loading} onClick=${() => fill_gap(job)}>Show more</button></span></div>`;
    const age = format_age(job.changed_ms, now), run_time = format_run_time(job, now);
    const draw = () => html`<div role="row" aria-rowindex=${i + 1} class=${`job${i === selected ? ' chosen' : ''}`}>
      <span role="cell" class="what">${State({state: job_state(job)})}</span>
      <span role="cell" class="name"><a href=${job_href(job.key, context)}>${UntrustedText({text: job.name || job.key.replace('job:', ''), max_chars: 120})}</a> ${job.flow_id ? html`<span class="tag">flow ${job.flow_id}</span>` : ''}</span>
      <span role="cell" class="key quiet">${job.key.replace('job:', '')}</span>
      <span role="cell" class="type quiet">${UntrustedText({text: job.script_type, max_chars: 20})}</span>
      <span role="cell" class="when quiet"><time title=${format_time(job.changed_ms)}>${age}</time></span>
      <span role="cell" class="took num quiet">${run_time}</span>
      <span role="cell" class=${has_failed(job) || !job.error ? 'error' : 'error quiet'}>${UntrustedText({text: job.error, max_chars: 200})}</span>
    </div>`;
    return html`<${Memo} key=${job.key} deps=${[i, i === selected, context, age, run_time, job.status, job.detail, job.error, job.changed_ms]} draw=${draw}/>`;
  };
  const is_unfiltered = Object.keys(filter).length === 0;
  const head = html`<div role="rowgroup" class="head"><div role="row" class="job"><span role="columnheader" class="what">state</span><span role="columnheader" class="name">name</span><span role="columnheader" class="key">job</span><span role="columnheader" class="type">type</span><span role="columnheader" class="when">changed</span><span role="columnheader" class="took num">took</span><span role="columnheader" class="error">error</span></div></div>`;
  return html`<main class="list"><h1 class="hidden">Jobs</h1><${Filter} query=${query} context=${context}/>
    <p class="quiet status" role="status">${is_unfiltered && view ? format_counted(view.jobs, 'job') : `${format_count(rows.by_key.size)}${rows.is_complete ? '' : '+'} shown`}${is_unfiltered ? '' : `, ${format_count(rows.scanned)}${view ? ` of ${format_count(Math.max(view.jobs, rows.scanned))}` : ''} searched`}${is_loading ? ' \u2026' : ''}
      ${needs_confirmation && html` <button type="button" class="small" onClick=${continue_search}>Search on</button>`}
      ${(rows.pending.size > 0 || rows.has_overflow) && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; show_pending(); }}>${rows.has_overflow ? 'Many new jobs' : format_counted(rows.pending.size, 'new job')}</button>`}</p>
    <${Problem} error=${error}/>
    ${rows.list.length === 0 && rows.is_complete ? html`<p class="empty">${is_unfiltered ? html`No job yet. <a href=${href(['try'], {context})}>Try one.</a>` : 'No job matches.'}</p>`
      : rows.list.length === 0 && needs_confirmation ? html`<p class="empty">None of the ${format_count(rows.scanned)} jobs that changed last matches.</p>`
      : html`<${Virtual} count=${rows.list.length} height=${is_narrow ? 54 : 30} render_row=${row} on_near_end=${load} selected=${selected} name=${selected_key} label="jobs" head=${head}
          on_top_change=${(top) => { at_front.current = top; if (top && (rows.pending.size || rows.has_overflow)) show_pending(); }}/>`}
  </main>`;
}

export function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 700px)'), []);
  const [is_narrow, set] = useState(query.matches);
  useEffect(() => {
    const on_change = () => set(query.matches);
    query.addEventListener('change', on_change);
    return () => query.removeEventListener('change', on_change);
  }, []);
  return is_narrow;
}
