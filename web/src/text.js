// Converts data to readable text. Data of jobs and clients is untrusted: it becomes only text nodes, and characters that
// would reverse or hide text are replaced by visible signs.

import {stringifyJson} from '../../clients/node/exact_json.js';

// Converts any value to text. All shown data passes through this function. Does not throw. Objects become JSON, since their
// toString is untrusted, too. indent: indentation of the JSON.
export function to_text(value, indent = undefined) {
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
export function to_number(value) {
  const number = typeof value === 'number' || typeof value === 'bigint' ? Number(value) : 0;
  return Number.isFinite(number) ? number : 0;
}
export const get_elapsed_ms = (from, to) => to_number(to) - to_number(from);
export const to_list = (value) => (Array.isArray(value) ? value : []);
export const to_object = (value) => (value !== null && typeof value === 'object' && !Array.isArray(value) ? value : {});
// Looks up a name from untrusted data. Finds only own entries, not members of Object.prototype.
export const get_entry = (table, name) => (typeof name === 'string' && Object.hasOwn(table, name) ? table[name] : undefined);
// Quotes a word for a command that users copy into a shell. A backtick is escaped, since it would end the command in
// TextWithCommands.
export const quote_shell_word = (word) => (/^[\w@%+=:,./][\w@%+=:,./-]*$/.test(word) ? word : `'${word.replaceAll("'", "'\\''").replaceAll('`', `'"$(printf '\\140')"'`)}'`);

const FORMAT_CHARACTERS = /[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const CONTROL_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

const to_sign = (c) => {
  const code = c.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? '\u2421' : `\u2039U+${code.toString(16).toUpperCase().padStart(4, '0')}\u203a`;
};

// Returns a text with visible signs for control characters. Line breaks are kept.
export const escape_hidden = (text) => to_text(text).replace(/\r\n/g, '\n').replace(CONTROL_CHARACTERS, to_sign).replace(FORMAT_CHARACTERS, to_sign);
// Returns the characters that an input field does not show or that change the order of its text: [{line, sign}], at most
// `max_count`. Such characters can make a harmful script look harmless.
export function find_hidden_characters(text, max_count = 100) {
  const result = [];
  let number = 1, start = 0;
  for (const match of text.matchAll(new RegExp(`${CONTROL_CHARACTERS.source}|${FORMAT_CHARACTERS.source}`, 'g'))) {
    if (match[0] === '\r' && text[match.index + 1] === '\n') continue;
    for (let newline = text.indexOf('\n', start); newline >= 0 && newline < match.index; newline = text.indexOf('\n', start)) { number++; start = newline + 1; }
    if (result.push({line: number, sign: to_sign(match[0])}) === max_count) break;
  }
  return result;
}
export const remove_hidden_characters = (text) => text.replace(/\r\n/g, '\n').replace(CONTROL_CHARACTERS, '').replace(FORMAT_CHARACTERS, '');
// Same as escape_hidden(), in one line of at most `max_chars` characters.
export const to_line = (text, max_chars = 300) => {
  const text_line = escape_hidden(to_text(text).slice(0, max_chars * 2)).replace(/[\n\t]+/g, ' ');
  return text_line.length > max_chars ? text_line.slice(0, max_chars) + '\u2026' : text_line;
};

// parse_log_line() splits a line of a log into [{text, style}]; style is a class of style.css or ''. Colours of ECMA-48
// become styles; all other escape sequences are removed.
const ESCAPE = /\u001b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~]|$)/g;
const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

function apply_colours(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < numbers.length; i++) {
    const n = numbers[i];
    if (n === 0) style = {};
    else if (n === 1) style = {...style, bold: true};
    else if (n === 2) style = {...style, dim: true};
    else if (n === 4) style = {...style, under: true};
    else if (n === 22) style = {...style, bold: false, dim: false};
    else if (n === 24) style = {...style, under: false};
    else if ((n >= 30 && n <= 37) || (n >= 90 && n <= 97)) style = {...style, colour: COLOURS[n % 10]};
    else if (n === 39) style = {...style, colour: undefined};
    else if (n === 38 || n === 48) i += numbers[i + 1] === 5 ? 2 : 4;
  }
  return style;
}
const to_class_names = (style) =>
  [style.colour && `ansi-${style.colour}`, style.bold && 'ansi-bold', style.dim && 'ansi-dim', style.under && 'ansi-under'].filter(Boolean).join(' ');

export function parse_log_line(text) {
  if (!text.includes('\u001b')) return [{text: escape_hidden(text), style: ''}];
  const parts = [];
  let start = 0, style = {};
  const add_part = (piece) => piece && parts.push({text: escape_hidden(piece), style: to_class_names(style)});
  for (const match of text.matchAll(ESCAPE)) {
    add_part(text.slice(start, match.index));
    if (match[2] === 'm') style = apply_colours(style, match[1] || '0');
    start = match.index + match[0].length;
  }
  add_part(text.slice(start));
  return parts;
}
// Returns a line of a log without escape sequences, for searching.
export const strip_escapes = (text) => escape_hidden(text.includes('\u001b') ? text.replace(ESCAPE, '') : text);

export function format_duration(ms) {
  if (typeof ms === 'bigint') ms = Number(ms);
  if (typeof ms !== 'number' || !Number.isFinite(ms)) return '';
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60) ? `${Math.floor(s % 60)} s` : ''}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
// Returns the time since at_ms in the largest unit, for example "27 s ago".
const UNITS = [[86400_000, 'd'], [3600_000, 'h'], [60_000, 'min'], [1000, 's']];
export function format_age(at_ms, now_ms) {
  [at_ms, now_ms] = [to_number(at_ms), to_number(now_ms)];
  if (!at_ms) return '';
  const [unit_ms, name] = UNITS.find(([unit_ms]) => now_ms - at_ms >= unit_ms) ?? [];
  return unit_ms ? `${Math.floor((now_ms - at_ms) / unit_ms)} ${name} ago` : 'now';
}
// Returns the same as format_age() without "ago": "27 s".
export const format_elapsed = (at_ms, now_ms) => (at_ms ? format_age(at_ms, Math.max(to_number(now_ms), to_number(at_ms) + 1000)).replace(' ago', '') : '');
const MAX_DATE_MS = 8.64e15;  // The latest time that a Date can represent.
export function format_time(ms) {
  const time_ms = to_number(ms);
  if (Math.abs(time_ms) > MAX_DATE_MS) return time_ms > 0 ? 'after the year 275760' : 'before all time';
  return time_ms ? new Date(time_ms).toISOString().replace('T', ' ').replace(/\.\d+Z/, ' UTC') : '';
}
const pad_two = (n) => String(n).padStart(2, '0');
export const format_clock = (ms) => {
  const date = new Date(to_number(ms));
  if (Number.isNaN(date.getTime())) return '';
  return `${pad_two(date.getHours())}:${pad_two(date.getMinutes())}:${pad_two(date.getSeconds())}`;
};
export function format_bytes(n) {
  if (n == null) return '';
  n = to_number(n);
  if (n < 1024) return `${n} B`;
  if (n < 1 << 20) return `${(n / 1024).toFixed(1)} KiB`;
  return n < 1 << 30 ? `${(n / (1 << 20)).toFixed(1)} MiB` : `${(n / (1 << 30)).toFixed(1)} GiB`;
}
export const format_count = (n) => to_text(n ?? 0).replace(/\B(?=(\d{3})+$)/g, '\u202f');
export const format_counted = (n, singular, plural = singular + 's') => `${format_count(n)} ${n === 1 ? singular : plural}`;
