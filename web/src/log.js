// The log of a job, with live updates, search and colours. Suitable for 10^5 lines and for lines of 10 MiB.
import {html, useEffect, useMemo, useRef, useState, CopyButton, Memo} from './ui.js';
import {Virtual} from './virtual.js';
import {format_bytes, format_clock, format_count, format_counted, to_line, parse_log_line, strip_escapes, format_time, escape_hidden} from './text.js';

const ROW_HEIGHT_PX = 20;
const MAX_LINE_CHARS = 2000;  // Number of characters of a line that are shown.

function LogText({text, needle}) {
  const is_truncated = text.length > MAX_LINE_CHARS;
  const parts = parse_log_line(is_truncated ? text.slice(0, MAX_LINE_CHARS) : text);
  const highlight = (piece) => {
    if (!needle) return piece;
    const lower_case = piece.toLowerCase(), result = [];
    let start = 0;
    for (let index = lower_case.indexOf(needle); index >= 0; index = lower_case.indexOf(needle, start)) {
      result.push(piece.slice(start, index), html`<mark>${piece.slice(index, index + needle.length)}</mark>`);
      start = index + needle.length;
    }
    return [...result, piece.slice(start)];
  };
  return html`<bdi dir="ltr">${parts.map((part) => (part.style ? html`<span class=${part.style}>${highlight(part.text)}</span>` : highlight(part.text)))}</bdi>${
    is_truncated && html` <span class="quiet">\u2026 ${format_bytes(text.length)} in this line</span> <${CopyButton} text=${text} label="copy the line"/>`}`;
}

export function LogView({log, has_ended, command = 'mycojobs job logs'}) {
  const [version, set_version] = useState(0);
  useEffect(() => log.watch(() => set_version((n) => n + 1)), [log]);
  const [query, set_query] = useState('');
  const [shows_only_matches, set_shows_only_matches] = useState(false);
  const [is_following, set_following] = useState(!has_ended);  // The log of an ended job is shown from its beginning.
  const [shows_times, set_shows_times] = useState(false);
  const container = useRef(null);
  const needle = query.toLowerCase();
  const lines = log.lines;
  const match_indexes = useMemo(() => {
    if (!needle) return null;
    const indexes = [];
    for (let i = 0; i < lines.length; i++) if (strip_escapes(lines[i].text).toLowerCase().includes(needle)) indexes.push(i);
    return indexes;
  }, [needle, version]);
  const shown_indexes = match_indexes && shows_only_matches ? match_indexes : null;
  const [match_index, set_match_index] = useState(-1);
  useEffect(() => set_match_index(-1), [needle]);
  const move_match = (delta) => {
    if (!match_indexes?.length) return;
    set_following(false);
    set_match_index((index) => (index < 0 ? (delta > 0 ? 0 : match_indexes.length - 1) : (index + delta + match_indexes.length) % match_indexes.length));
  };
  const selected_row = match_indexes && match_index >= 0 ? (shown_indexes ? match_index : match_indexes[match_index]) : -1;
  const row_count = shown_indexes ? shown_indexes.length : lines.length;
  const handle_key = (event) => {
    if (event.key === 'Enter') move_match(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') { set_query(''); event.target.blur(); event.stopPropagation(); }
  };
  const render_row = (i) => {
    const index = shown_indexes ? shown_indexes[i] : i, line = lines[index];
    const is_selected = index === (match_indexes?.[match_index] ?? -1);
    const draw = () => html`<div role="row" class=${`line ${line.stream}${is_selected ? ' chosen' : ''}`}>
      <span role="cell" class="number">${line.number}</span>${shows_times && html`<span role="cell" class="number" title=${format_time(line.at_ms)}>${format_clock(line.at_ms)}</span>`}
      ${line.writer && html`<span role="cell" class="whose"><bdi dir="ltr">${escape_hidden(to_line(line.writer, 60))}</bdi></span>`}
      ${line.stream !== 'stdout' && html`<span role="cell" class="stream">${line.stream === 'stderr' ? 'err' : 'sys'}</span>`}<span role="cell" class="text"><${LogText} text=${line.text} needle=${needle}/></span></div>`;
    return line && html`<${Memo} key=${line.number} deps=${[line, line.text, needle, shows_times, is_selected]} draw=${draw}/>`;
  };
  return html`<div class="log" ref=${container}>
    <div class="bar">
      <label class="find"><span class="hidden">search the log</span><input type="search" placeholder="search the log" value=${query} onInput=${(e) => set_query(e.target.value)} onKeyDown=${handle_key}/></label>
      ${match_indexes && html`<span class="quiet" role="status">${match_indexes.length ? `${match_index >= 0 ? `${format_count(match_index + 1)} of ` : ''}${format_counted(match_indexes.length, 'line')}` : 'nowhere'}</span>
        <button type="button" class="small" onClick=${() => move_match(-1)} aria-label="the one before">\u2191</button><button type="button" class="small" onClick=${() => move_match(1)} aria-label="the next one">\u2193</button>
        <label class="check"><input type="checkbox" checked=${shows_only_matches} onChange=${(e) => set_shows_only_matches(e.target.checked)}/> these alone</label>`}
      <span class="grow"></span>
      <span class="quiet">${format_counted(log.dropped_count + lines.length, 'line')}${has_ended ? '' : ', live'}</span>
      <label class="check"><input type="checkbox" checked=${shows_times} onChange=${(e) => set_shows_times(e.target.checked)}/> times</label>
      <label class="check"><input type="checkbox" checked=${is_following} onChange=${(e) => set_following(e.target.checked)}/> follow</label>
    </div>
    ${log.dropped_count > 0 && html`<p class="quiet">${format_counted(log.dropped_count, 'earlier line')} are not shown: <code>${command}</code> prints them</p>`}
    ${row_count === 0 ? html`<p class="empty">${has_ended ? 'It has no output.' : 'Nothing yet.'}</p>`
      : html`<div class="lines" data-rows=${Math.min(row_count, 24)} onWheel=${(e) => e.deltaY < 0 && set_following(false)} onTouchMove=${() => set_following(false)}
          onKeyDown=${(e) => ['ArrowUp', 'PageUp', 'Home'].includes(e.key) && set_following(false)}><${Virtual} count=${row_count} height=${ROW_HEIGHT_PX} label="log" render_row=${render_row} selected=${selected_row} follow_end=${is_following && !query}/></div>`}
  </div>`;
}
