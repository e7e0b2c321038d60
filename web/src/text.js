// Converts data to readable text. Data of jobs and clients is untrusted: it becomes only text nodes, and characters that
// would reverse or hide text are replaced by visible signs.

import {stringifyJson} from '../../clients/node/exact_json.js';

// Converts any value to text. All shown data passes through this function. Does not throw. Objects become JSON, since their
// toString is untrusted, too. indent: indentation of the JSON.
export function text_of(value, indent = undefined) {
  if (typeof value === 'string') return value;
  if (value === null || value === undefined || typeof value === 'function' || typeof value === 'symbol') return '';
  if (typeof value !== 'object') return String(value);
  try {
    return stringifyJson(value, indent) ?? '';
  } catch {
    return '(a value that is nested too deeply to be shown)';
  }
}
// Converts any value to a finite number; 0 if that is not possible. The parser returns integers above 2^53 as BigInt.
export function number_of(value) {
  const number = typeof value === 'number' || typeof value === 'bigint' ? Number(value) : 0;
  return Number.isFinite(number) ? number : 0;
}
export const elapsed = (from, to) => number_of(to) - number_of(from);
export const list_of = (value) => (Array.isArray(value) ? value : []);
export const object_of = (value) => (value !== null && typeof value === 'object' && !Array.isArray(value) ? value : {});
// Looks up a name from untrusted data. Finds only own entries, not members of Object.prototype.
export const entry_of = (table, name) => (typeof name === 'string' && Object.hasOwn(table, name) ? table[name] : undefined);
// Quotes a word for a command that users copy into a shell. A backtick is escaped, since it would end the command in
// Sentence.
export const shell_word = (word) => (/^[\w@%+=:,./][\w@%+=:,./-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''").replaceAll('`', `'"$(printf '\\140')"'`)}'`);

const TURNING = /[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

const sign = (c) => {
  const code = c.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? '\u2421' : `\u2039U+${code.toString(16).toUpperCase().padStart(4, '0')}\u203a`;
};

// Returns a text with visible signs for control characters. Line breaks are kept.
export const plain = (text) => text_of(text).replace(/\r\n/g, '\n').replace(CONTROL, sign).replace(TURNING, sign);
// Returns the characters that an input field does not show or that change the order of its text: [{line, sign}], at most
// `most`. Such characters can make a harmful script look harmless.
export function hidden_in(text, most = 100) {
  const found = [];
  let number = 1, from = 0;
  for (const each of text.matchAll(new RegExp(`${CONTROL.source}|${TURNING.source}`, 'g'))) {
    if (each[0] === '\r' && text[each.index + 1] === '\n') continue;
    for (let at = text.indexOf('\n', from); at >= 0 && at < each.index; at = text.indexOf('\n', from)) { number++; from = at + 1; }
    if (found.push({line: number, sign: sign(each[0])}) === most) break;
  }
  return found;
}
export const without_hidden = (text) => text.replace(/\r\n/g, '\n').replace(CONTROL, '').replace(TURNING, '');
// Same as plain(), in one line of at most `most` characters.
export const line = (text, most = 300) => {
  const whole = plain(text_of(text).slice(0, most * 2)).replace(/[\n\t]+/g, ' ');
  return whole.length > most ? whole.slice(0, most) + '\u2026' : whole;
};

// log_parts() splits a line of a log into [{text, style}]; style is a class of style.css or ''. Colours of ECMA-48 become
// styles; all other escape sequences are removed.
const ESCAPE = /\u001b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~]|$)/g;
const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

function coloured(now, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i];
    if (n === 0) now = {};
    else if (n === 1) now = {...now, bold: true};
    else if (n === 2) now = {...now, dim: true};
    else if (n === 4) now = {...now, under: true};
    else if (n === 22) now = {...now, bold: false, dim: false};
    else if (n === 24) now = {...now, under: false};
    else if ((n >= 30 && n <= 37) || (n >= 90 && n <= 97)) now = {...now, colour: COLOURS[n % 10]};
    else if (n === 39) now = {...now, colour: undefined};
    else if (n === 38 || n === 48) i += numbers[i + 1] === 5 ? 2 : 4;
  }
  return now;
}
const style_of = (now) =>
  [now.colour && `ansi-${now.colour}`, now.bold && 'ansi-bold', now.dim && 'ansi-dim', now.under && 'ansi-under'].filter(Boolean).join(' ');

export function log_parts(text) {
  if (!text.includes('\u001b')) return [{text: plain(text), style: ''}];
  const parts = [];
  let from = 0, now = {};
  const push = (piece) => piece && parts.push({text: plain(piece), style: style_of(now)});
  for (const found of text.matchAll(ESCAPE)) {
    push(text.slice(from, found.index));
    if (found[2] === 'm') now = coloured(now, found[1] || '0');
    from = found.index + found[0].length;
  }
  push(text.slice(from));
  return parts;
}
// Returns a line of a log without escape sequences, for searching.
export const log_text = (text) => plain(text.includes('\u001b') ? text.replace(ESCAPE, '') : text);

export function span(ms) {
  if (typeof ms === 'bigint') ms = Number(ms);
  if (typeof ms !== 'number' || !Number.isFinite(ms)) return '';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60) ? `${Math.floor(s % 60)} s` : ''}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
// Returns a duration in its largest unit, which is exact enough for lists.
const UNITS = [[86400_000, 'd'], [3600_000, 'h'], [60_000, 'min'], [1000, 's']];
export function ago(at_ms, now_ms) {
  [at_ms, now_ms] = [number_of(at_ms), number_of(now_ms)];
  if (!at_ms) return '';
  const [unit, name] = UNITS.find(([each]) => now_ms - at_ms >= each) ?? [];
  return unit ? `${Math.floor((now_ms - at_ms) / unit)} ${name} ago` : 'now';
}
// Returns the time since a moment, without "ago": "27 s".
export const since = (at_ms, now_ms) => (at_ms ? ago(at_ms, Math.max(number_of(now_ms), number_of(at_ms) + 1000)).replace(' ago', '') : '');
const LAST_MS = 8.64e15;  // largest time of a Date
export function moment(ms) {
  const at = number_of(ms);
  if (Math.abs(at) > LAST_MS) return at > 0 ? 'after the year 275760' : 'before all time';
  return at ? new Date(at).toISOString().replace('T', ' ').replace(/\.\d+Z/, ' UTC') : '';
}
const two = (n) => String(n).padStart(2, '0');
export const clock = (ms) => {
  const at = new Date(number_of(ms));
  if (Number.isNaN(at.getTime())) return '';
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
};
export function bytes(n) {
  if (n == null) return '';
  n = number_of(n);
  if (n < 1024) return `${n} B`;
  if (n < 1 << 20) return `${(n / 1024).toFixed(1)} KiB`;
  return n < 1 << 30 ? `${(n / (1 << 20)).toFixed(1)} MiB` : `${(n / (1 << 30)).toFixed(1)} GiB`;
}
export const count = (n) => text_of(n ?? 0).replace(/\B(?=(\d{3})+$)/g, '\u202f');
export const counted = (n, one, many = one + 's') => `${count(n)} ${n === 1 ? one : many}`;
