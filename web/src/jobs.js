// The list of jobs, loaded page by page and filtered by the query of the address. Changed jobs are added at the front.
import {html, useEffect, useMemo, useRef, useState, Problem, State, Their, go, has_failed, href, job_href, job_state, now_ms, replace, Kept, Typed, useAgain, useNow, useTitle, while_seen} from './ui.js';
import {rpc} from './api.js';
import {Rows} from './rows.js';
import {Virtual} from './virtual.js';
import {ago, count, counted, elapsed, moment, span} from './text.js';

// FIELDS: the fields that a row shows. Scripts, results and receipts are loaded only in the view of one job.
const FIELDS = ['name', 'detail', 'error', 'flow_id', 'script_type', 'changed_ms', 'started_ms', 'ended_ms'];
const PAGE = 200, MOST_PAGES = 5;
const STATUSES = [['', 'all'], ['dispatched', 'queued'], ['waiting_for_prerequisites', 'waiting'], ['started', 'running'], ['error', 'failed'], ['finished', 'finished']];

export const filters_of = (query) => {
  const filter = {};
  for (const name of ['status', 'state', 'name', 'script_type']) if (query[name]) filter[name] = query[name];
  if (/^\d+$/.test(query.caller ?? '')) filter.caller_id = Number(query.caller);
  for (const [name, field] of [['since', 'since_ms'], ['until', 'until_ms']]) {
    const at = query[name] ? Date.parse(query[name]) : NaN;
    if (Number.isFinite(at)) filter[field] = at;
  }
  return filter;
};

function useJobs(context, filter, changed_ms) {
  const key = JSON.stringify([context, filter]);
  const rows = useMemo(() => new Rows(), [key]);
  const [state, set] = useState({tick: 0, error: null, busy: false});
  const current = useRef(rows), at_front = useRef(true), latest = useRef(0);
  if (current.current !== rows) at_front.current = true;
  current.current = rows;
  latest.current = changed_ms ?? 0;
  const show = (more = {}) => set((now) => ({...now, tick: now.tick + 1, ...more}));
  // Loads the next page. Only one page is loaded at a time.
  const load = async () => {
    if (rows.busy || rows.over || rows.searched >= rows.may_search) return;
    rows.busy = true;
    const first_at = rows.searched === 0 ? latest.current : 0;
    set((now) => ({...now, busy: true}));
    let wrong = null;
    try {
      const params = {context_id: context, ...filter, limit: PAGE, fields: FIELDS};
      if (rows.after) params.after = rows.after;
      const page = await rpc('jobs.page', params);
      rows.add(page.jobs);
      rows.newest_ms = Math.max(rows.newest_ms, first_at);
      if (!rows.begun) rows.front_ms = rows.newest_ms;
      rows.searched += page.looked_at;
      if (page.jobs.length * 2 >= PAGE) rows.may_search = rows.searched + Rows.MOST_SEARCHED;
      rows.after = page.after;
      rows.over = page.after === '';
      rows.begun = true;
    } catch (error) {
      wrong = error;
    }
    rows.busy = false;
    if (current.current === rows) show({error: wrong, busy: false});
  };
  useEffect(() => { show({error: null, busy: rows.busy}); load(); }, [rows]);
  useAgain(state.error, load);
  // With a filter, a page can be empty although more pages follow.
  useEffect(() => { if (rows.begun && !rows.over && rows.all.length < 60 && !state.error) load(); }, [state.tick, state.busy]);
  // Reads the jobs that have changed since a time, at most MOST_PAGES pages. The filter's status and state are not applied.
  const happened_since = async (since_ms) => {
    const {status, state: word, ...rest} = filter, met = [];
    const params = {context_id: context, ...rest, since_ms: Math.max(since_ms, filter.since_ms ?? 0, 1), limit: PAGE, fields: FIELDS};
    let after = '';
    for (let pages = 0; pages < MOST_PAGES && current.current === rows; pages++) {
      const page = await rpc('jobs.page', after ? {...params, after} : params);
      met.push(...page.jobs);
      after = page.after;
      if (after === '') break;
    }
    return {met, after};
  };
  // Merge jobs that changed after the newest row. Their status and state are not filtered, since a job that no longer
  // matches the filter must be removed from the list.
  useEffect(() => {
    if (!changed_ms || filter.until_ms || !rows.begun || rows.renewing) return;
    rows.renewing = true;
    const renew = async () => {
      while (current.current === rows && latest.current > rows.newest_ms) {
        const until = latest.current, front = at_front.current && !rows.too_many;
        const {met, after} = await happened_since(front ? rows.front_ms : rows.newest_ms);
        if (current.current !== rows) return;
        if (after === '') rows.meet(met, at_front.current && front, filter);
        else if (at_front.current && front) rows.leap(met, after, filter);
        else {
          rows.too_many = true;
          rows.meet(met, false, filter);  // updates only the loaded rows
        }
        rows.newest_ms = Math.max(rows.newest_ms, until);
        if (at_front.current && front) {
          rows.drop_waiting();
          rows.front_ms = rows.newest_ms;
        }
        show();
      }
    };
    renew().catch(() => {}).finally(() => {  // the next change repeats the call
      rows.renewing = false;
      if (rows.wanted) meet_waiting();
    });
  }, [changed_ms, rows, rows.begun]);
  // Adds the jobs that changed while the reader was not at the top of the list to its front.
  const meet_waiting = async () => {
    if (rows.too_many) {
      rows.wanted = rows.renewing;
      if (rows.renewing) return;
      rows.renewing = true;
      try {
        const {met, after} = await happened_since(rows.front_ms);
        if (current.current !== rows) return;
        rows.drop_waiting();
        if (after === '') rows.meet(met, true, filter);
        else rows.leap(met, after, filter);
      } catch (error) {
        return show({error});
      } finally {
        rows.renewing = false;
      }
    } else {
      rows.front([...rows.waiting.values()].sort((a, b) => elapsed(a.changed_ms, b.changed_ms)));
      rows.drop_waiting();
    }
    rows.front_ms = rows.newest_ms;
    show({error: null});
  };
  const fill = async (gap) => {
    if (gap.busy) return;
    gap.busy = true;
    show();
    try {
      for (let pages = 0, met = 0; pages < MOST_PAGES && met === 0; pages++) {
        const page = await rpc('jobs.page', {context_id: context, ...filter, limit: PAGE, fields: FIELDS, after: gap.after});
        if (current.current !== rows) return;
        rows.fill(gap, page.jobs, page.after);
        met = page.jobs.length;
        if (!rows.all.includes(gap)) break;
      }
      show({error: null});
    } catch (error) {
      show({error});
    } finally {
      gap.busy = false;
    }
  };
  const go_on = () => {
    rows.may_search = rows.searched + Rows.MOST_SEARCHED;
    load();
  };
  return {rows, ...state, load, go_on, fill, at_front, meet_waiting, asks: !rows.busy && !rows.over && rows.searched >= rows.may_search};
}

function Filter({query, context}) {
  const set = (name, value) => replace(href(['jobs'], {...query, context, [name]: value}));
  const timer = useRef(0);
  const soon = (name) => (event) => {
    const {value} = event.target;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => set(name, value), 250);
  };
  const any = Object.keys(query).some((name) => name !== 'context' && query[name]);
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="find"><span class="hidden">in its name</span><${Typed} id="find" type="search" placeholder="in its name  ( / )" value=${query.name ?? ''} change=${soon('name')}/></label>
    <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, word]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status && !(query.state && !status)} onClick=${() => replace(href(['jobs'], {...query, context, status, state: ''}))}>${word}</button>`)}</div>
    <details class="more" open=${Boolean(query.state || query.script_type || query.caller || query.since || query.until)}><summary>more</summary><div>
      <label>detail <${Typed} value=${query.state ?? ''} placeholder="timeout, oom \u2026" change=${soon('state')}/></label>
      <label>type <${Typed} value=${query.script_type ?? ''} placeholder="python" change=${soon('script_type')}/></label>
      <label>caller <${Typed} inputmode="numeric" value=${query.caller ?? ''} placeholder="12" change=${soon('caller')}/></label>
      <label>since <input type="datetime-local" value=${query.since ?? ''} onChange=${soon('since')}/></label>
      <label>until <input type="datetime-local" value=${query.until ?? ''} onChange=${soon('until')}/></label>
    </div></details>
    ${any && html`<a class="button small" href=${href(['jobs'], {context})}>clear</a>`}
  </form>`;
}

const took = (job, now) => (job.started_ms && job.status !== 'dispatched' ? span(elapsed(job.started_ms, job.ended_ms >= job.started_ms ? job.ended_ms : now)) : '');

export function Jobs({query, context, view, cursor}) {
  useTitle('Jobs');
  const now = useNow();
  const [slow, set_slow] = useState(0);
  // Users without the right to read the overview receive no change events, so their jobs are polled.
  useEffect(() => {
    if (!view) return while_seen(3000, () => set_slow(now_ms()));
  }, [Boolean(view)]);
  const filter = filters_of(query);
  const {rows, error, busy, load, go_on, fill, asks, at_front, meet_waiting} = useJobs(context, filter, view ? view.changed_ms : slow);
  const narrow = useNarrow();
  // The selection is a job, not an index, so that new rows do not move it.
  const [chosen_key, choose] = useState('');
  const chosen = chosen_key ? rows.all.findIndex((each) => each.key === chosen_key) : -1;
  cursor.current = {
    move: (by) => choose(rows.all[Math.max(0, Math.min(rows.all.length - 1, chosen + by))]?.key ?? ''),
    open: () => { if (chosen >= 0) rows.all[chosen].gap ? fill(rows.all[chosen]) : go(job_href(chosen_key, context)); },
  };
  const row = (i) => {
    const job = rows.all[i];
    if (job.gap) return html`<div role="row" key=${job.key} aria-rowindex=${i + 1} class=${`job gap${i === chosen ? ' chosen' : ''}`}><span role="cell" class="name">Other jobs changed in between. <button type="button" class="small" disabled=${job.busy} onClick=${() => fill(job)}>Show more</button></span></div>`;
    const when = ago(job.changed_ms, now), lasted = took(job, now);
    const draw = () => html`<div role="row" aria-rowindex=${i + 1} class=${`job${i === chosen ? ' chosen' : ''}`}>
      <span role="cell" class="what">${State({of: job_state(job)})}</span>
      <span role="cell" class="name"><a href=${job_href(job.key, context)}>${Their({text: job.name || job.key.replace('job:', ''), most: 120})}</a> ${job.flow_id ? html`<span class="tag">flow ${job.flow_id}</span>` : ''}</span>
      <span role="cell" class="key quiet">${job.key.replace('job:', '')}</span>
      <span role="cell" class="type quiet">${Their({text: job.script_type, most: 20})}</span>
      <span role="cell" class="when quiet"><time title=${moment(job.changed_ms)}>${when}</time></span>
      <span role="cell" class="took num quiet">${lasted}</span>
      <span role="cell" class=${has_failed(job) || !job.error ? 'error' : 'error quiet'}>${Their({text: job.error, most: 200})}</span>
    </div>`;
    return html`<${Kept} key=${job.key} shows=${[i, i === chosen, context, when, lasted, job.status, job.detail, job.error, job.changed_ms]} draw=${draw}/>`;
  };
  const all = Object.keys(filter).length === 0;
  const head = html`<div role="rowgroup" class="head"><div role="row" class="job"><span role="columnheader" class="what">state</span><span role="columnheader" class="name">name</span><span role="columnheader" class="key">job</span><span role="columnheader" class="type">type</span><span role="columnheader" class="when">changed</span><span role="columnheader" class="took num">took</span><span role="columnheader" class="error">error</span></div></div>`;
  return html`<main class="list"><h1 class="hidden">Jobs</h1><${Filter} query=${query} context=${context}/>
    <p class="quiet status" role="status">${all && view ? counted(view.jobs, 'job') : `${count(rows.at.size)}${rows.over ? '' : '+'} shown`}${all ? '' : `, ${count(rows.searched)}${view ? ` of ${count(Math.max(view.jobs, rows.searched))}` : ''} searched`}${busy ? ' \u2026' : ''}
      ${asks && html` <button type="button" class="small" onClick=${go_on}>Search on</button>`}
      ${(rows.waiting.size > 0 || rows.too_many) && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; meet_waiting(); }}>${rows.too_many ? 'Many new jobs' : counted(rows.waiting.size, 'new job')}</button>`}</p>
    <${Problem} error=${error}/>
    ${rows.all.length === 0 && rows.over ? html`<p class="empty">${all ? html`No job yet. <a href=${href(['try'], {context})}>Try one.</a>` : 'No job matches.'}</p>`
      : rows.all.length === 0 && asks ? html`<p class="empty">None of the ${count(rows.searched)} jobs that changed last matches.</p>`
      : html`<${Virtual} count=${rows.all.length} height=${narrow ? 54 : 30} row=${row} near_end=${load} chosen=${chosen} name=${chosen_key} label="jobs" head=${head}
          onTop=${(top) => { at_front.current = top; if (top && (rows.waiting.size || rows.too_many)) meet_waiting(); }}/>`}
  </main>`;
}

export function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 700px)'), []);
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const changed = () => set(query.matches);
    query.addEventListener('change', changed);
    return () => query.removeEventListener('change', changed);
  }, []);
  return narrow;
}
