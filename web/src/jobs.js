// All jobs: pages by cursor, filtered by what stands in the address; what happens comes in at the front.
import {html, useEffect, useMemo, useRef, useState, Ago, Glyph, Problem, State, Their, go, has_failed, href, job_href, job_state, now_ms, replace, useNow, useTitle, while_seen} from './ui.js';
import {rpc} from './api.js';
import {Virtual} from './virtual.js';
import {count, counted, span} from './text.js';

// MOST_SEARCHED: records that a filter looks at by itself while it finds next to nothing; then the reader is asked.
const PAGE = 200, MOST_AT_FRONT = 4000, MOST_PAGES = 5, MOST_SEARCHED = 50000;
const STATUSES = [['', 'all'], ['dispatched', 'queued'], ['waiting_for_prerequisites', 'waiting'], ['started', 'running'], ['error', 'failed'], ['finished', 'finished']];

export const filters_of = (query) => {
  const wish = {};
  for (const name of ['status', 'state', 'name', 'script_type']) if (query[name]) wish[name] = query[name];
  if (/^\d+$/.test(query.caller ?? '')) wish.caller_id = Number(query.caller);
  for (const [name, field] of [['since', 'since_ms'], ['until', 'until_ms']]) {
    const at = query[name] ? Date.parse(query[name]) : NaN;
    if (Number.isFinite(at)) wish[field] = at;
  }
  return wish;
};

// As the server has them, of a job that has changed.
const stands = (job, wish) => (!wish.status || job.status === wish.status) && (!wish.state || job.status === wish.state || job.detail === wish.state);

// The rows, in the order in which they were loaded; `tick` counts what has changed.
class Rows {
  all = [];
  at = new Map();
  after = '';
  over = false;
  begun = false;  // its first page has come
  busy = false;
  renewing = false;
  searched = 0;                // records that were looked at
  may_search = MOST_SEARCHED;  // until the reader is asked whether to go on
  newest_ms = 0;
  waiting = new Map();   // of those that came while the list was not at its front
  too_many = false;      // so many came that they are not kept: the list is read anew
  add(jobs) {
    for (const job of jobs) {
      if (this.at.has(job.key)) { this.renew(job); continue; }
      this.at.set(job.key, job);
      this.all.push(job);
      this.newest_ms = Math.max(this.newest_ms, job.changed_ms ?? 0);
    }
  }
  renew(job) { Object.assign(this.at.get(job.key), job); }
  drop(keys) {
    for (const key of keys) this.at.delete(key);
    this.all = this.all.filter((job) => !keys.has(job.key));
  }
  // To the front, unless the reader is somewhere else; what the filter wants no more goes from there.
  meet(jobs, at_front, wish) {
    const fresh = [], gone = new Set();
    for (const job of jobs) {
      if (!stands(job, wish)) {
        this.waiting.delete(job.key);
        if (this.at.has(job.key)) { this.renew(job); gone.add(job.key); }
        continue;
      }
      this.newest_ms = Math.max(this.newest_ms, job.changed_ms ?? 0);
      if (this.at.has(job.key)) this.renew(job);
      if (at_front) fresh.push(job);
      else if (!this.at.has(job.key) && !this.too_many) this.waiting.set(job.key, job);
    }
    if (this.waiting.size > MOST_AT_FRONT) {
      this.waiting.clear();
      this.too_many = true;
    }
    if (at_front && gone.size) this.drop(gone);
    if (at_front) this.front(fresh);
  }
  // More has happened than was read: between these and what stands here there are others.
  restart(jobs, after, wish) {
    Object.assign(this, {all: [], at: new Map(), waiting: new Map(), too_many: false, over: false, after});
    this.add(jobs.filter((job) => stands(job, wish)));
  }
  front(jobs) {
    const keys = new Set(jobs.map((job) => job.key));
    const first = jobs.map((job) => this.at.get(job.key) ?? job);
    for (const job of first) this.at.set(job.key, job);
    this.all = [...first, ...this.all.filter((job) => !keys.has(job.key))];
    if (this.all.length > MOST_AT_FRONT) {
      for (const job of this.all.splice(MOST_AT_FRONT / 2)) this.at.delete(job.key);
      const last = this.all[this.all.length - 1];
      this.after = `${(last.changed_ms ?? 0) * 1000 + 999} 0`;
      this.over = false;
    }
  }
}

function useJobs(context, wish, changed_ms) {
  const key = JSON.stringify([context, wish]);
  const [turn, anew] = useState(0);
  const rows = useMemo(() => new Rows(), [key, turn]);
  const [state, set] = useState({tick: 0, error: null, busy: false});
  const current = useRef(rows), at_front = useRef(true), latest = useRef(0);
  if (current.current !== rows) at_front.current = true;
  current.current = rows;
  latest.current = changed_ms ?? 0;
  const show = (more = {}) => set((now) => ({...now, tick: now.tick + 1, ...more}));
  // At most one page at a time, whoever asks for it.
  const load = async () => {
    if (rows.busy || rows.over || rows.searched >= rows.may_search) return;
    rows.busy = true;
    const first_at = rows.searched === 0 ? latest.current : 0;
    set((now) => ({...now, busy: true}));
    let wrong = null;
    try {
      const params = {context_id: context, ...wish, limit: PAGE};
      if (rows.after) params.after = rows.after;
      const page = await rpc('jobs.page', params);
      rows.add(page.jobs);
      rows.newest_ms = Math.max(rows.newest_ms, first_at);
      rows.searched += page.looked_at;
      if (page.jobs.length * 2 >= PAGE) rows.may_search = rows.searched + MOST_SEARCHED;
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
  // A page of a filter may be empty, and go on.
  useEffect(() => { if (rows.begun && !rows.over && rows.all.length < 60 && !state.error) load(); }, [state.tick, state.busy]);
  // Those to which something has happened since the newest, wanted or not: who has left a state leaves its list.
  useEffect(() => {
    if (!changed_ms || wish.until_ms || !rows.begun || rows.renewing) return;
    rows.renewing = true;
    const renew = async () => {
      while (current.current === rows && latest.current > rows.newest_ms) {
        const {status, state: word, ...rest} = wish;
        const until = latest.current, params = {context_id: context, ...rest, since_ms: Math.max(rows.newest_ms, wish.since_ms ?? 0, 1), limit: PAGE};
        const met = [];
        let after = '';
        for (let pages = 0; pages < MOST_PAGES && current.current === rows; pages++) {
          const page = await rpc('jobs.page', after ? {...params, after} : params);
          met.push(...page.jobs);
          after = page.after;
          if (after === '') break;
        }
        if (current.current !== rows) return;
        if (after === '') rows.meet(met, at_front.current, wish);
        else if (at_front.current) rows.restart(met, after, wish);
        else rows.too_many = true;
        rows.newest_ms = Math.max(rows.newest_ms, until);
        show();
      }
    };
    renew().catch(() => {}).finally(() => { rows.renewing = false; });  // the next change asks again
  }, [changed_ms, rows, rows.begun]);
  const meet_waiting = () => {
    if (rows.too_many) return anew((n) => n + 1);
    rows.front([...rows.waiting.values()]);
    rows.waiting.clear();
    show();
  };
  const go_on = () => {
    rows.may_search = rows.searched + MOST_SEARCHED;
    load();
  };
  return {rows, ...state, load, go_on, at_front, meet_waiting, asks: !rows.busy && !rows.over && rows.searched >= rows.may_search};
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
    <label class="find"><span class="hidden">in its name</span><input id="find" type="search" placeholder="in its name  ( / )" value=${query.name ?? ''} onInput=${soon('name')}/></label>
    <div class="choices" role="group" aria-label="state">${STATUSES.map(([status, word]) => html`<button type="button" aria-pressed=${(query.status ?? '') === status && !(query.state && !status)} onClick=${() => replace(href(['jobs'], {...query, context, status, state: ''}))}>${word}</button>`)}</div>
    <details class="more" open=${Boolean(query.state || query.script_type || query.caller || query.since || query.until)}><summary>more</summary><div>
      <label>detail <input value=${query.state ?? ''} placeholder="timeout, oom \u2026" onInput=${soon('state')}/></label>
      <label>type <input value=${query.script_type ?? ''} placeholder="python" onInput=${soon('script_type')}/></label>
      <label>caller <input inputmode="numeric" value=${query.caller ?? ''} placeholder="12" onInput=${soon('caller')}/></label>
      <label>since <input type="datetime-local" value=${query.since ?? ''} onChange=${soon('since')}/></label>
      <label>until <input type="datetime-local" value=${query.until ?? ''} onChange=${soon('until')}/></label>
    </div></details>
    ${any && html`<a class="button small" href=${href(['jobs'], {context})}>clear</a>`}
  </form>`;
}

const took = (job, now) => (job.started_ms && job.status !== 'dispatched' ? span((job.ended_ms >= job.started_ms ? job.ended_ms : now) - job.started_ms) : '');

export function Jobs({query, context, view, cursor}) {
  useTitle('Jobs');
  const now = useNow();
  const [slow, set_slow] = useState(0);
  // Who may not see the overview is told nothing by it: its own jobs are asked for.
  useEffect(() => {
    if (!view) return while_seen(3000, () => set_slow(now_ms()));
  }, [Boolean(view)]);
  const wish = filters_of(query);
  const {rows, error, busy, load, go_on, asks, at_front, meet_waiting} = useJobs(context, wish, view ? view.changed_ms : slow);
  const narrow = useNarrow();
  const [chosen, choose] = useState(-1);
  cursor.current = {
    move: (by) => choose((at) => Math.max(0, Math.min(rows.all.length - 1, at + by))),
    open: () => rows.all[chosen] && go(job_href(rows.all[chosen].key, context)),
  };
  const row = (i) => {
    const job = rows.all[i];
    return html`<div role="row" key=${job.key} aria-rowindex=${i + 1} class=${`job${i === chosen ? ' chosen' : ''}`}>
      <span role="cell" class="what"><${State} of=${job_state(job)}/></span>
      <span role="cell" class="name"><a href=${job_href(job.key, context)}><${Their} text=${job.name || job.key.replace('job:', '')} most=${120}/></a> ${job.flow_id ? html`<span class="tag">flow ${job.flow_id}</span>` : ''}</span>
      <span role="cell" class="key quiet">${job.key.replace('job:', '')}</span>
      <span role="cell" class="type quiet"><${Their} text=${job.script_type} most=${20}/></span>
      <span role="cell" class="when quiet"><${Ago} at=${job.changed_ms} now=${now}/></span>
      <span role="cell" class="took num quiet">${took(job, now)}</span>
      <span role="cell" class=${has_failed(job) || !job.error ? 'error' : 'error quiet'}><${Their} text=${job.error} most=${200}/></span>
    </div>`;
  };
  const all = Object.keys(wish).length === 0;
  const head = html`<div role="rowgroup" class="head"><div role="row" class="job"><span role="columnheader" class="what">state</span><span role="columnheader" class="name">name</span><span role="columnheader" class="key">job</span><span role="columnheader" class="type">type</span><span role="columnheader" class="when">changed</span><span role="columnheader" class="took num">took</span><span role="columnheader" class="error">error</span></div></div>`;
  return html`<main class="list"><h1 class="hidden">Jobs</h1><${Filter} query=${query} context=${context}/>
    <p class="quiet status" role="status">${all && view ? counted(view.jobs, 'job') : `${count(rows.all.length)}${rows.over ? '' : '+'} shown`}${all ? '' : `, ${count(rows.searched)}${view ? ` of ${count(Math.max(view.jobs, rows.searched))}` : ''} searched`}${busy ? ' \u2026' : ''}
      ${asks && html` <button type="button" class="small" onClick=${go_on}>Search on</button>`}
      ${(rows.waiting.size > 0 || rows.too_many) && html` <button type="button" class="small" onClick=${() => { document.querySelector('.virtual').scrollTop = 0; meet_waiting(); }}>${rows.too_many ? 'Many new ones' : counted(rows.waiting.size, 'new one')}</button>`}</p>
    <${Problem} error=${error}/>
    ${rows.all.length === 0 && rows.over ? html`<p class="empty">${all ? html`No job yet. <a href=${href(['try'], {context})}>Try one.</a>` : 'No job is like that.'}</p>`
      : rows.all.length === 0 && asks ? html`<p class="empty">None of the ${count(rows.searched)} to which something happened last is like that.</p>`
      : html`<${Virtual} count=${rows.all.length} height=${narrow ? 54 : 30} row=${row} near_end=${load} chosen=${chosen} label="jobs" head=${head}
          onTop=${(top) => { at_front.current = top; if (top && (rows.waiting.size || rows.too_many)) meet_waiting(); }}/>`}
  </main>`;
}

export function useNarrow() {
  const query = useMemo(() => matchMedia('(max-width: 700px)'), []);
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const told = () => set(query.matches);
    query.addEventListener('change', told);
    return () => query.removeEventListener('change', told);
  }, []);
  return narrow;
}
