// The log of a job, with live updates, search and colours. Suitable for 10^5 lines and for lines of 10 MiB.
import {html, useEffect, useMemo, useRef, useState, Copy, Kept} from './ui.js';
import {Virtual} from './virtual.js';
import {bytes, clock, count, counted, line as clip, log_parts, log_text, moment, plain} from './text.js';

const HEIGHT = 20;
const LONGEST = 2000;  // maximum of shown characters of a line

function Text({text, find}) {
  const [whole, show] = useState(false);
  const cut = text.length > LONGEST && !whole;
  const parts = log_parts(cut ? text.slice(0, LONGEST) : text.length > 200_000 ? text.slice(0, 200_000) : text);
  const marked = (piece) => {
    if (!find) return piece;
    const low = piece.toLowerCase(), out = [];
    let from = 0;
    for (let at = low.indexOf(find); at >= 0; at = low.indexOf(find, from)) {
      out.push(piece.slice(from, at), html`<mark>${piece.slice(at, at + find.length)}</mark>`);
      from = at + find.length;
    }
    return [...out, piece.slice(from)];
  };
  return html`<bdi dir="ltr">${parts.map((part) => (part.style ? html`<span class=${part.style}>${marked(part.text)}</span>` : marked(part.text)))}</bdi>${
    cut && html` <span class="quiet">\u2026 ${bytes(text.length)} in this line</span> <${Copy} text=${text} label="copy the line"/>`}`;
}

export function LogView({log, ended, error, command = 'mycojobs job logs'}) {
  const [version, look] = useState(0);
  useEffect(() => log.watch(() => look((n) => n + 1)), [log]);
  const [find, set_find] = useState('');
  const [only, set_only] = useState(false);
  const [follow, set_follow] = useState(!ended);  // the log of an ended job is shown from its beginning
  const [times, set_times] = useState(false);
  const box = useRef(null);
  const low = find.toLowerCase();
  const lines = log.lines;
  const found = useMemo(() => {
    if (!low) return null;
    const all = [];
    for (let i = 0; i < lines.length; i++) if (log_text(lines[i].text).toLowerCase().includes(low)) all.push(i);
    return all;
  }, [low, version]);
  const shown = found && only ? found : null;
  const [at, set_at] = useState(-1);
  useEffect(() => set_at(-1), [low]);
  const step = (by) => {
    if (!found?.length) return;
    set_follow(false);
    set_at((now) => (now < 0 ? (by > 0 ? 0 : found.length - 1) : (now + by + found.length) % found.length));
  };
  const chosen = found && at >= 0 ? (shown ? at : found[at]) : -1;
  const total = shown ? shown.length : lines.length;
  const keys = (event) => {
    if (event.key === 'Enter') step(event.shiftKey ? -1 : 1);
    if (event.key === 'Escape') { set_find(''); event.target.blur(); event.stopPropagation(); }
  };
  const row = (i) => {
    const index = shown ? shown[i] : i, line = lines[index];
    const is_chosen = index === (found?.[at] ?? -1);
    const draw = () => html`<div role="row" class=${`line ${line.stream}${is_chosen ? ' chosen' : ''}`}>
      <span role="cell" class="number">${line.number}</span>${times && html`<span role="cell" class="number" title=${moment(line.at)}>${clock(line.at)}</span>`}
      ${line.of && html`<span role="cell" class="whose"><bdi dir="ltr">${plain(clip(line.of, 60))}</bdi></span>`}
      ${line.stream !== 'stdout' && html`<span role="cell" class="stream">${line.stream === 'stderr' ? 'err' : 'sys'}</span>`}<span role="cell" class="text"><${Text} text=${line.text} find=${low}/></span></div>`;
    return line && html`<${Kept} key=${line.number} shows=${[line, line.text, low, times, is_chosen]} draw=${draw}/>`;
  };
  return html`<div class="log" ref=${box}>
    <div class="bar">
      <label class="find"><span class="hidden">search the log</span><input type="search" placeholder="search the log" value=${find} onInput=${(e) => set_find(e.target.value)} onKeyDown=${keys}/></label>
      ${found && html`<span class="quiet" role="status">${found.length ? `${at >= 0 ? `${count(at + 1)} of ` : ''}${counted(found.length, 'line')}` : 'nowhere'}</span>
        <button type="button" class="small" onClick=${() => step(-1)} aria-label="the one before">\u2191</button><button type="button" class="small" onClick=${() => step(1)} aria-label="the next one">\u2193</button>
        <label class="check"><input type="checkbox" checked=${only} onChange=${(e) => set_only(e.target.checked)}/> these alone</label>`}
      <span class="grow"></span>
      <span class="quiet">${counted(log.dropped + lines.length, 'line')}${ended ? '' : ', live'}</span>
      <label class="check"><input type="checkbox" checked=${times} onChange=${(e) => set_times(e.target.checked)}/> times</label>
      <label class="check"><input type="checkbox" checked=${follow} onChange=${(e) => set_follow(e.target.checked)}/> follow</label>
    </div>
    ${log.dropped > 0 && html`<p class="quiet">${counted(log.dropped, 'earlier line')} are not shown: <code>${command}</code> prints them</p>`}
    ${error && html`<p class="problem">${error}</p>`}
    ${total === 0 ? html`<p class="empty">${ended ? 'It has no output.' : 'Nothing yet.'}</p>`
      : html`<div class="lines" data-rows=${Math.min(total, 24)} onWheel=${(e) => e.deltaY < 0 && set_follow(false)} onTouchMove=${() => set_follow(false)}
          onKeyDown=${(e) => ['ArrowUp', 'PageUp', 'Home'].includes(e.key) && set_follow(false)}><${Virtual} count=${total} height=${HEIGHT} label="log" row=${row} chosen=${chosen} stick=${follow && !find}/></div>`}
  </div>`;
}
