// The list of jobs, loaded page by page and filtered by the query of the address. Changed jobs are added at the front.
import {html, useEffect, useMemo, useRef, useState, Problem, State, UntrustedText, navigate, has_failed, href, job_href, get_job_state, store_now_ms, replace_route, Memo, DelayedInput, useRetry, useNow, useTitle, poll_while_visible} from './ui.js';
import {rpc} from './api.js';
import {Rows} from './rows.js';
import {Virtual} from './virtual.js';
import {format_age, format_count, format_counted, get_elapsed_ms, format_time, format_duration} from './text.js';

// The fields of jobs that a row shows. Scripts, results and receipts are loaded only in the view of one job.
const ROW_FIELDS = ['name', 'detail', 'error', 'flow_id', 'script_type', 'changed_ms', 'started_ms', 'ended_ms'];
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
  const [state, set_state] = useState({tick: 0, error: null, is_loading: false});
  const current_rows = useRef(rows), is_scrolled_to_top = useRef(true), latest_change_ms = useRef(0);
  if (current_rows.current !== rows) is_scrolled_to_top.current = true;
  current_rows.current = rows;
  latest_change_ms.current = changed_ms ?? 0;
  const redraw = (changes = {}) => set_state((previous) => ({...previous, tick: previous.tick + 1, ...changes}));
  // Loads the next page. Only one page is loaded at a time.
  const load = async () => {
    if (rows.is_loading || rows.is_complete || rows.scanned_count >= rows.max_scanned_count) return;
    rows.is_loading = true;
    const index_time_ms = rows.scanned_count === 0 ? latest_change_ms.current : 0;
    set_state((previous) => ({...previous, is_loading: true}));
    let load_error = null;
    try {
      const params = {context_id: context, ...filter, limit: PAGE_SIZE, fields: ROW_FIELDS};
      if (rows.next_cursor) params.after = rows.next_cursor;
      const page = await rpc('jobs.page', params);
      rows.add(page.jobs);
      rows.newest_ms = Math.max(rows.newest_ms, index_time_ms);
      if (!rows.is_loaded) rows.front_ms = rows.newest_ms;
      rows.scanned_count += page.looked_at;
      if (page.jobs.length * 2 >= PAGE_SIZE) rows.max_scanned_count = rows.scanned_count + Rows.MAX_SCANNED_RECORDS;
      rows.next_cursor = page.after;
      rows.is_complete = page.after === '';
      rows.is_loaded = true;
    } catch (error) {
      load_error = error;
    }
    rows.is_loading = false;
    if (current_rows.current === rows) redraw({error: load_error, is_loading: false});
  };
  useEffect(() => { redraw({error: null, is_loading: rows.is_loading}); load(); }, [rows]);
  useRetry(state.error, load);
  // With a filter, a page can be empty although more pages follow.
  useEffect(() => { if (rows.is_loaded && !rows.is_complete && rows.list.length < 60 && !state.error) load(); }, [state.tick, state.is_loading]);
  // Reads the jobs that have changed since a time, at most MAX_PAGES pages. Returns {jobs, after}: if `after` is not empty,
  // more jobs have changed. The filter's status and state are not applied.
  const read_changed_since = async (since_ms) => {
    const {status, state: ignored_state, ...other_filters} = filter, jobs = [];
    const params = {context_id: context, ...other_filters, since_ms: Math.max(since_ms, filter.since_ms ?? 0, 1), limit: PAGE_SIZE, fields: ROW_FIELDS};
    let after = '';
    for (let pages = 0; pages < MAX_PAGES && current_rows.current === rows; pages++) {
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
      while (current_rows.current === rows && latest_change_ms.current > rows.newest_ms) {
        const target_ms = latest_change_ms.current, was_scrolled_to_top = is_scrolled_to_top.current && !rows.has_overflow;
        const {jobs, after} = await read_changed_since(was_scrolled_to_top ? rows.front_ms : rows.newest_ms);
        if (current_rows.current !== rows) return;
        if (after === '') rows.merge(jobs, is_scrolled_to_top.current && was_scrolled_to_top, filter);
        else if (is_scrolled_to_top.current && was_scrolled_to_top) rows.merge_with_gap(jobs, after, filter);
        else {
          rows.has_overflow = true;
          rows.merge(jobs, false, filter);  // Updates only the loaded rows.
        }
        rows.newest_ms = Math.max(rows.newest_ms, target_ms);
        if (is_scrolled_to_top.current && was_scrolled_to_top) {
          rows.clear_pending();
          rows.front_ms = rows.newest_ms;
        }
        redraw();
      }
    };
    update().catch(() => {}).finally(() => {  // After an error, the next change repeats the call.
      rows.is_updating = false;
      if (rows.is_update_requested) show_pending();
    });
  }, [changed_ms, rows, rows.is_loaded]);
  // Adds the jobs that changed while the reader was not at the top of the list to its front.
  const show_pending = async () => {
    if (rows.has_overflow) {
      rows.is_update_requested = rows.is_updating;
      if (rows.is_updating) return;
      rows.is_updating = true;
      try {
        const {jobs, after} = await read_changed_since(rows.front_ms);
        if (current_rows.current !== rows) return;
        rows.clear_pending();
        if (after === '') rows.merge(jobs, true, filter);
        else rows.merge_with_gap(jobs, after, filter);
      } catch (error) {
        return redraw({error});
      } finally {
        rows.is_updating = false;
      }
    } else {
      rows.move_to_front([...rows.pending.values()].sort((a, b) => get_elapsed_ms(a.changed_ms, b.changed_ms)));
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
      for (let pages = 0, added_count = 0; pages < MAX_PAGES && added_count === 0; pages++) {
        const page = await rpc('jobs.page', {context_id: context, ...filter, limit: PAGE_SIZE, fields: ROW_FIELDS, after: gap.next_cursor});
        if (current_rows.current !== rows) return;
        rows.fill_gap(gap, page.jobs, page.after);
        added_count = page.jobs.length;
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
    rows.max_scanned_count = rows.scanned_count + Rows.MAX_SCANNED_RECORDS;
    load();
  };
  return {rows, ...state, load, continue_search, fill_gap, is_scrolled_to_top, show_pending, is_scan_paused: !rows.is_loading && !rows.is_complete && rows.scanned_count >= rows.max_scanned_count};
}

function Filter({query, context}) {
  const set_filter = (name, value) => replace_route(href(['jobs'], {...query, context, [name]: value}));
  const timer = useRef(0);
  const make_delayed_setter = (name) => (event) => {
    const {value} = event.target;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set_filter(name, value), 250);
  };
  const has_filter = Object.keys(query).some((name) => name !== 'context' && query[name]);
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="find"><span class="hidden">in its name</span><${DelayedInput} id="find" type="search" placeholder="in its name  ( / )" value=${query.name ?? ''} change=${make_delayed_setter('name')}/></label>
    <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, label]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status && !(query.state && !status)} onClick=${() => replace_route(href(['jobs'], {...query, context, status, state: ''}))}>${label}</button>`)}</div>
    <details class="more" open=${Boolean(query.state || query.script_type || query.caller || query.since || query.until)}><summary>more</summary><div>
      <label>detail <${DelayedInput} value=${query.state ?? ''} placeholder="timeout, oom \u2026" change=${make_delayed_setter('state')}/></label>
      <label>type <${DelayedInput} value=${query.script_type ?? ''} placeholder="python" change=${make_delayed_setter('script_type')}/></label>
      <label>caller <${DelayedInput} inputmode="numeric" value=${query.caller ?? ''} placeholder="12" change=${make_delayed_setter('caller')}/></label>
      <label>since <input type="datetime-local" value=${query.since ?? ''} onChange=${make_delayed_setter('since')}/></label>
      <label>until <input type="datetime-local" value=${query.until ?? ''} onChange=${make_delayed_setter('until')}/></label>
    </div></details>
    ${has_filter && html`<a class="button small" href=${href(['jobs'], {context})}>clear</a>`}
  </form>`;
}

const format_run_time = (job, now_ms) => (job.started_ms && job.status !== 'dispatched' ? format_duration(get_elapsed_ms(job.started_ms, job.ended_ms >= job.started_ms ? job.ended_ms : now_ms)) : '');

export function Jobs({query, context, overview, keyboard_actions}) {
  useTitle('Jobs');
  const now_ms = useNow();
  const [poll_ms, set_poll_ms] = useState(0);
  // Users without the right to read the overview receive no change events, so their jobs are polled.
  useEffect(() => {
    if (!overview) return poll_while_visible(3000, () => set_poll_ms(store_now_ms()));
  }, [Boolean(overview)]);
  const filter = parse_filter(query);
  const {rows, error, is_loading, load, continue_search, fill_gap, is_scan_paused, is_scrolled_to_top, show_pending} = useJobs(context, filter, overview ? overview.changed_ms : poll_ms);
  const is_narrow = useNarrow();
  // The selection is a job, not an index, so that new rows do not move it.
  const [selected_key, select] = useState('');
  const selected = selected_key ? rows.list.findIndex((entry) => entry.key === selected_key) : -1;
  keyboard_actions.current = {
    move: (delta) => select(rows.list[Math.max(0, Math.min(rows.list.length - 1, selected + delta))]?.key ?? ''),
    open: () => { if (selected >= 0) rows.list[selected].gap ? fill_gap(rows.list[selected]) : navigate(job_href(selected_key, context)); },
  };
  const render_row = (i) => {
    const job = rows.list[i];
    if (job.gap) return html`<div role="row" key=${job.key} aria-rowindex=${i + 1} class=${`job gap${i === selected ? ' chosen' : ''}`}><span role="cell" class="name">Other jobs changed in between. <button type="button" class="small" disabled=${job.is_loading} onClick=${() => fill_gap(job)}>Show more</button></span></div>`;
    const age = format_age(job.changed_ms, now_ms), run_time = format_run_time(job, now_ms);
    const draw = () => html`<div role="row" aria-rowindex=${i + 1} class=${`job${i === selected ? ' chosen' : ''}`}>
      <span role="cell" class="what">${State({state: get_job_state(job)})}</span>
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
    <p class="quiet status" role="status">${is_unfiltered && overview ? format_counted(overview.jobs, 'job') : `${format_count(rows.by_key.size)}${rows.is_complete ? '' : '+'} shown`}${is_unfiltered ? '' : `, ${format_count(rows.scanned_count)}${overview ? ` of ${format_count(Math.max(overview.jobs, rows.scanned_count))}` : ''} searched`}${is_loading ? ' \u2026' : ''}
      ${is_scan_paused && html` <button type="button" class="small" onClick=${continue_search}>Search on</button>`}
      ${(rows.pending.size > 0 || rows.has_overflow) && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; show_pending(); }}>${rows.has_overflow ? 'Many new jobs' : format_counted(rows.pending.size, 'new job')}</button>`}</p>
    <${Problem} error=${error}/>
    ${rows.list.length === 0 && rows.is_complete ? html`<p class="empty">${is_unfiltered ? html`No job yet. <a href=${href(['try'], {context})}>Try one.</a>` : 'No job matches.'}</p>`
      : rows.list.length === 0 && is_scan_paused ? html`<p class="empty">None of the ${format_count(rows.scanned_count)} jobs that changed last matches.</p>`
      : html`<${Virtual} count=${rows.list.length} height=${is_narrow ? 54 : 30} render_row=${render_row} on_near_end=${load} selected=${selected} name=${selected_key} label="jobs" head=${head}
          on_top_change=${(is_at_top) => { is_scrolled_to_top.current = is_at_top; if (is_at_top && (rows.pending.size || rows.has_overflow)) show_pending(); }}/>`}
  </main>`;
}

export function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 700px)'), []);
  const [is_narrow, set_is_narrow] = useState(query.matches);
  useEffect(() => {
    const on_change = () => set_is_narrow(query.matches);
    query.addEventListener('change', on_change);
    return () => query.removeEventListener('change', on_change);
  }, []);
  return is_narrow;
}
