// The rows of the list of jobs: merges loaded pages and changed jobs so that the reader's position in the list is kept. No
// side effects.
import {was_skipped} from './states.js';

const MAX_ROWS_AT_FRONT = 4000;

// Returns whether a changed job matches the filter, by the same rules as the server.
const matches_filter = (job, filter) => (filter.status !== 'error' || filter.state || !was_skipped(job)) && (!filter.status || job.status === filter.status) && (!filter.state || job.status === filter.state || job.detail === filter.state);

// Returns the time of a cursor, which has the form "<time in microseconds> <key>".
const parse_cursor_ms = (cursor) => Number(cursor.split(' ')[0]) / 1000;

// The rows, latest change first. If more jobs have changed than were read, a row {gap: true, next_cursor, floor_ms}
// separates the new rows from the older rows, so that the older rows need not be removed. The jobs in the gap changed after
// floor_ms; next_cursor is the cursor of their next page.
export class Rows {
  static MAX_SCANNED_RECORDS = 50000;  // Number of records with few matches after which the reader must confirm the search.
  list = [];
  by_key = new Map();
  next_cursor = '';            // Cursor of the next page.
  is_complete = false;         // The last page is loaded.
  is_loaded = false;           // The first page is loaded.
  is_loading = false;
  is_updating = false;
  is_update_requested = false;  // The reader has requested new rows while they were being loaded.
  scanned_count = 0;           // Number of records that the server has scanned.
  max_scanned_count = Rows.MAX_SCANNED_RECORDS;  // Value of scanned_count at which the reader must confirm the search.
  newest_ms = 0;               // Time of the latest change in the rows.
  front_ms = 0;                // The rows at the front are complete up to this time.
  gap_count = 0;               // Number of gaps that were created.
  pending = new Map();         // Jobs by key that changed while the reader was not at the front.
  has_overflow = false;        // More jobs have changed than `pending` can store, so they must be read again.
  add(jobs) {
    for (const job of jobs) {
      if (this.by_key.has(job.key)) { this.update(job); continue; }
      this.by_key.set(job.key, job);
      this.list.push(job);
      this.newest_ms = Math.max(this.newest_ms, job.changed_ms ?? 0);
    }
    if (!this.is_loaded) this.front_ms = this.newest_ms;
  }
  update(job) { const {__proto__: ignored_prototype, ...fields} = job; Object.assign(this.by_key.get(job.key), fields); }
  remove(keys) {
    for (const key of keys) this.by_key.delete(key);
    this.list = this.list.filter((job) => !keys.has(job.key));
  }
  clear_pending() {
    this.pending.clear();
    this.has_overflow = false;
  }
  // Merges changed jobs. With at_front, moves matching jobs to the front and removes jobs that no longer match the filter;
  // otherwise only updates the rows and collects new jobs in `pending`.
  merge(jobs, at_front, filter) {
    const new_rows = [], removed_keys = new Set();
    for (const job of jobs) {
      if (!matches_filter(job, filter)) {
        this.pending.delete(job.key);
        if (this.by_key.has(job.key)) { this.update(job); removed_keys.add(job.key); }
        continue;
      }
      this.newest_ms = Math.max(this.newest_ms, job.changed_ms ?? 0);
      if (this.by_key.has(job.key)) this.update(job);
      if (at_front) new_rows.push(job);
      else if (!this.by_key.has(job.key) && !this.has_overflow) this.pending.set(job.key, job);
    }
    if (this.pending.size > MAX_ROWS_AT_FRONT) {
      this.pending.clear();
      this.has_overflow = true;
    }
    if (at_front && removed_keys.size) this.remove(removed_keys);
    if (at_front) this.move_to_front(new_rows);
  }
  // Adds changed jobs to the front if more jobs have changed than were read: inserts a gap before the older rows.
  merge_with_gap(jobs, next_cursor, filter) {
    const key = `gap:${++this.gap_count}`, floor_ms = this.front_ms;
    const removed_keys = new Set(jobs.filter((job) => !matches_filter(job, filter)).map((job) => job.key));
    const new_rows = jobs.filter((job) => matches_filter(job, filter));
    this.remove(new Set([...removed_keys].filter((entry) => this.by_key.has(entry))));
    for (const job of jobs) if (this.by_key.has(job.key)) this.update(job);
    if (this.list.length) this.list.unshift({key, gap: true, next_cursor, floor_ms});
    else Object.assign(this, {next_cursor, is_complete: false});
    this.move_to_front(new_rows);
  }
  // Inserts a page of jobs before a gap, and removes the gap if the page reaches its end.
  fill_gap(gap, jobs, next_cursor) {
    const index = this.list.indexOf(gap);
    if (index < 0) return;
    const keys_before = new Set(this.list.slice(0, index).map((row) => row.key));
    const page_jobs = jobs.filter((job) => !keys_before.has(job.key)), keys = new Set(page_jobs.map((job) => job.key));
    const rows = page_jobs.map((job) => { if (this.by_key.has(job.key)) this.update(job); else this.by_key.set(job.key, job); return this.by_key.get(job.key); });
    const is_closed = next_cursor === '' || parse_cursor_ms(next_cursor) <= gap.floor_ms;
    gap.next_cursor = next_cursor;
    this.list = [...this.list.slice(0, index), ...rows, ...this.list.slice(is_closed ? index + 1 : index).filter((row) => !keys.has(row.key))];
  }
  move_to_front(jobs) {
    const keys = new Set(jobs.map((job) => job.key));
    const front_rows = jobs.map((job) => this.by_key.get(job.key) ?? job);
    for (const job of front_rows) this.by_key.set(job.key, job);
    this.list = [...front_rows, ...this.list.filter((job) => !keys.has(job.key))];
    if (this.list.length > MAX_ROWS_AT_FRONT) {
      for (const job of this.list.splice(MAX_ROWS_AT_FRONT / 2)) this.by_key.delete(job.key);
      while (this.list[this.list.length - 1].gap) this.list.pop();
      const last_row = this.list[this.list.length - 1];
      this.next_cursor = `${Number(last_row.changed_ms ?? 0) * 1000 + 999} 0`;
      this.is_complete = false;
    }
  }
}
