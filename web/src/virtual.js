// A long list of which only the visible rows are in the document. All rows have the same height, which the style sheet must
// match.
import {html, useEffect, useLayout, useRef, useState} from './ui.js';

const OVERSCAN_ROWS = 8;  // Number of rows that are drawn above and below the visible rows.

// render_row(index) returns a row. on_near_end() is called when the last rows become visible, and on_top_change(is_at_top)
// when the list is scrolled. `label` is the name for screen readers. `selected` is the index of the selected row, which is
// scrolled into view, and `name` identifies this row: if the same name has a new index, rows were inserted or removed, and
// the selected row keeps its position on the screen.
export function Virtual({count, render_row, height, on_near_end, selected = -1, name = '', label, head = null, follow_end = false, on_top_change = null}) {
  const container = useRef(null);
  const [visible, set_visible] = useState({first_row: 0, end_row: 60});
  const update_visible = () => {
    const element = container.current;
    if (!element) return;
    const first_row = Math.max(0, Math.floor(element.scrollTop / height) - OVERSCAN_ROWS);
    const end_row = Math.ceil((element.scrollTop + element.clientHeight) / height) + OVERSCAN_ROWS;
    set_visible((current) => (current.first_row === first_row && current.end_row === end_row ? current : {first_row, end_row}));
    if (on_near_end && element.scrollTop + element.clientHeight > count * height - 40 * height) on_near_end();
    if (on_top_change) on_top_change(element.scrollTop < height);
  };
  useEffect(() => {
    update_visible();
    const observer = new ResizeObserver(update_visible);
    observer.observe(container.current);
    return () => observer.disconnect();
  }, [count, height]);
  const previous_selection = useRef({selected: -1, name: ''});
  useLayout(() => {
    const element = container.current, previous = previous_selection.current, top = selected * height;
    previous_selection.current = {selected, name};
    if (selected < 0 || !element) return;
    const old_top = previous.selected * height, was_visible = previous.selected >= 0 && old_top + height > element.scrollTop && old_top < element.scrollTop + element.clientHeight;
    if (name && name === previous.name) {
      if (was_visible) element.scrollTop += top - old_top;
    } else if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height > element.scrollTop + element.clientHeight) element.scrollTop = top + height - element.clientHeight;
  }, [selected, name]);
  useLayout(() => {
    if (follow_end && container.current) container.current.scrollTop = container.current.scrollHeight;
  }, [follow_end, count]);
  const rows = [];
  for (let i = visible.first_row; i < Math.min(visible.end_row, count); i++) rows.push(render_row(i));
  return html`<div class="virtual" ref=${container} onScroll=${update_visible} role="table" aria-label=${label} aria-rowcount=${count} tabindex="0">
    ${head}
    <div class="spacer" role="rowgroup" style=${{height: `${count * height}px`}}><div class="window" role="presentation" style=${{transform: `translateY(${visible.first_row * height}px)`}}>${rows}</div></div>
  </div>`;
}
