// A long list of which only the visible rows are in the document. All rows have the same height, which the style sheet must
// match.
import {html, useEffect, useLayout, useRef, useState} from './ui.js';

const BESIDE = 8;  // rows drawn above and below the visible rows

// count: number of rows; row(index): draws a row; near_end(): called when the last rows become visible; label: name for
// screen readers. chosen: index of the selected row, which is scrolled into view; name: its identity. If the same name has
// a new index, rows were inserted or removed, and the selected row keeps its position on the screen.
export function Virtual({count, row, height, near_end, chosen = -1, name = '', label, head = null, stick = false, onTop = null}) {
  const box = useRef(null);
  const [seen, set] = useState({from: 0, to: 60});
  const look = () => {
    const at = box.current;
    if (!at) return;
    const from = Math.max(0, Math.floor(at.scrollTop / height) - BESIDE);
    const to = Math.ceil((at.scrollTop + at.clientHeight) / height) + BESIDE;
    set((now) => (now.from === from && now.to === to ? now : {from, to}));
    if (near_end && at.scrollTop + at.clientHeight > count * height - 40 * height) near_end();
    if (onTop) onTop(at.scrollTop < height);
  };
  useEffect(() => {
    look();
    const watch = new ResizeObserver(look);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [count, height]);
  const last = useRef({chosen: -1, name: ''});
  useLayout(() => {
    const at = box.current, before = last.current, top = chosen * height;
    last.current = {chosen, name};
    if (chosen < 0 || !at) return;
    const was = before.chosen * height, was_seen = before.chosen >= 0 && was + height > at.scrollTop && was < at.scrollTop + at.clientHeight;
    if (name && name === before.name) {
      if (was_seen) at.scrollTop += top - was;
    } else if (top < at.scrollTop) at.scrollTop = top;
    else if (top + height > at.scrollTop + at.clientHeight) at.scrollTop = top + height - at.clientHeight;
  }, [chosen, name]);
  useLayout(() => {
    if (stick && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [stick, count]);
  const rows = [];
  for (let i = seen.from; i < Math.min(seen.to, count); i++) rows.push(row(i));
  return html`<div class="virtual" ref=${box} onScroll=${look} role="table" aria-label=${label} aria-rowcount=${count} tabindex="0">
    ${head}
    <div class="spacer" role="rowgroup" style=${{height: `${count * height}px`}}><div class="window" role="presentation" style=${{transform: `translateY(${seen.from * height}px)`}}>${rows}</div></div>
  </div>`;
}
