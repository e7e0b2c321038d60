// The rows of the list of jobs: merges loaded pages and changed jobs so that the reader's position in the list is kept. No
// side effects.
import {left_out} from './states.js';

const MOST_AT_FRONT = 4000;

// Returns whether a changed job matches the filter, by the same rules as the server.
const stands = (job, filter) => (filter.status !== 'error' || filter.state || !left_out(job)) && (!filter.status || job.status === filter.status) && (!filter.state || job.status === filter.state || job.detail === filter.state);

// Returns the time at the beginning of a cursor, in milliseconds.
const moment_of = (after) => Number(after.split(' ')[0]) / 1000;

// The rows in the order in which they were loaded. If more jobs have changed than were read, a row {gap: true, after,
// floor_ms} separates the new rows from the older rows, so that the older rows need not be removed.
export class Rows {
  static MOST_SEARCHED = 50000;  // records scanned with few matches before the reader must confirm
  all = [];
  at = new Map();
  after = '';
  over = false;
  begun = false;  // the first page is loaded
  busy = false;
  renewing = false;
  wanted = false;              // the reader has requested new rows while they were being loaded
  searched = 0;                // number of scanned records
  may_search = Rows.MOST_SEARCHED;  // number of scanned records at which the reader must confirm
  newest_ms = 0;
  front_ms = 0;                // the rows at the front are complete up to this time
  gaps = 0;                    // number of gaps so far
  waiting = new Map();   // by key: jobs that changed while the reader was not at the front
  too_many = false;      // too many to keep in `waiting`; they must be read again
  add(jobs) {
    for (const job of jobs) {
      if (this.at.has(job.key)) { this.renew(job); continue; }
      this.at.set(job.key, job);
      this.all.push(job);
      this.newest_ms = Math.max(this.newest_ms, job.changed_ms ?? 0);
    }
    if (!this.begun) this.front_ms = this.newest_ms;
  }
  renew(job) { const {__proto__: none, ...fields} = job; Object.assign(this.at.get(job.key), fields); }
  drop(keys) {
    for (const key of keys) this.at.delete(key);
    this.all = this.all.filter((job) => !keys.has(job.key));
  }
  drop_waiting() {
    this.waiting.clear();
    this.too_many = false;
  }
  // Merges changed jobs. With at_front, moves matching jobs to the front and removes jobs that no longer match the filter;
  // otherwise only updates the rows and collects new jobs in `waiting`.
  meet(jobs, at_front, filter) {
    const fresh = [], gone = new Set();
    for (const job of jobs) {
      if (!stands(job, filter)) {
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
  // Adds changed jobs to the front if more jobs have changed than were read: inserts a gap before the older rows.
  leap(jobs, after, filter) {
    const key = `gap:${++this.gaps}`, floor_ms = this.front_ms;
    const gone = new Set(jobs.filter((job) => !stands(job, filter)).map((job) => job.key));
    const fresh = jobs.filter((job) => stands(job, filter));
    this.drop(new Set([...gone].filter((each) => this.at.has(each))));
    for (const job of jobs) if (this.at.has(job.key)) this.renew(job);
    if (this.all.length) this.all.unshift({key, gap: true, after, floor_ms});
    else Object.assign(this, {after, over: false});
    this.front(fresh);
  }
  // Inserts a page of jobs before a gap, and removes the gap if the page reaches its end.
  fill(gap, jobs, after) {
    const at = this.all.indexOf(gap);
    if (at < 0) return;
    const before = new Set(this.all.slice(0, at).map((row) => row.key));
    const found = jobs.filter((job) => !before.has(job.key)), keys = new Set(found.map((job) => job.key));
    const rows = found.map((job) => { if (this.at.has(job.key)) this.renew(job); else this.at.set(job.key, job); return this.at.get(job.key); });
    const closed = after === '' || moment_of(after) <= gap.floor_ms;
    gap.after = after;
    this.all = [...this.all.slice(0, at), ...rows, ...this.all.slice(closed ? at + 1 : at).filter((row) => !keys.has(row.key))];
  }
  front(jobs) {
    const keys = new Set(jobs.map((job) => job.key));
    const first = jobs.map((job) => this.at.get(job.key) ?? job);
    for (const job of first) this.at.set(job.key, job);
    this.all = [...first, ...this.all.filter((job) => !keys.has(job.key))];
    if (this.all.length > MOST_AT_FRONT) {
      for (const job of this.all.splice(MOST_AT_FRONT / 2)) this.at.delete(job.key);
      while (this.all[this.all.length - 1].gap) this.all.pop();
      const last = this.all[this.all.length - 1];
      this.after = `${Number(last.changed_ms ?? 0) * 1000 + 999} 0`;
      this.over = false;
    }
  }
}
