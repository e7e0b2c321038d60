// The rows of the list of jobs: pages as they come, what happens at the front, and what the reader is not to lose. Pure.
import {left_out} from './states.js';

const MOST_AT_FRONT = 4000;

// As the server has them, of a job that has changed.
const stands = (job, filter) => (filter.status !== 'error' || filter.state || !left_out(job)) && (!filter.status || job.status === filter.status) && (!filter.state || job.status === filter.state || job.detail === filter.state);

// Where the next page begins, as time: cursors begin with it.
const moment_of = (after) => Number(after.split(' ')[0]) / 1000;

// The rows, in the order in which they were loaded. More may have happened than was read: then a gap {gap: true, after, floor_ms}
// stands behind what was read, and what stood there before stays behind it: nobody loses his place.
export class Rows {
  static MOST_SEARCHED = 50000;  // records that a filter looks at by itself while it finds next to nothing; then the reader is asked
  all = [];
  at = new Map();
  after = '';
  over = false;
  begun = false;  // its first page has come
  busy = false;
  renewing = false;
  wanted = false;              // the reader has asked for what is new while that was being read
  searched = 0;                // records that were looked at
  may_search = Rows.MOST_SEARCHED;  // until the reader is asked whether to go on
  newest_ms = 0;
  front_ms = 0;                // until then the rows at the front are all that there are
  gaps = 0;                    // made so far
  waiting = new Map();   // of those that came while the list was not at its front
  too_many = false;      // so many came that they are not kept: the list is read anew
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
  // To the front, unless the reader is somewhere else; what the filter wants no more goes from there.
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
  // More has happened than was read: between these and what stands here there are others.
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
  // What was between: before the gap, which goes when its end is reached.
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
