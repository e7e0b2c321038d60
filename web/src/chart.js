// A chart of values over time, drawn by uPlot. The library is loaded when the first chart is shown.
import {html, useEffect, useRef} from './ui.js';
import {format_clock} from './text.js';

const load_library = () => import('uplot');
const get_colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const MIN_SLOTS = 90;  // Number of slots that the server returns after the first job has ended.
// Shows the number of jobs that ended in each slot of time. end_counts: one number for each slot, latest slot first.
export function Chart({end_counts, slot_ms, now_ms}) {
  const container = useRef(null), plot = useRef(null), latest_data = useRef(null);
  const slot_count = Math.max(end_counts.length, MIN_SLOTS);
  const times_s = [], counts = [];
  for (let i = slot_count - 1; i >= 0; i--) {
    times_s.push(Math.round((now_ms - i * slot_ms) / 1000));
    counts.push(end_counts[i] ?? 0);
  }
  latest_data.current = [times_s, counts];
  useEffect(() => {
    let is_unmounted = false, observer = null;
    const element = container.current;
    load_library().then(({default: uPlot}) => {
      if (is_unmounted) return;
      const axis = {stroke: get_colour('--quiet'), grid: {stroke: get_colour('--line'), width: 1}, ticks: {show: false}, font: '11px system-ui'};
      plot.current = new uPlot({
        width: element.clientWidth, height: 140, legend: {show: false}, cursor: {y: false, drag: {x: false, y: false}},
        scales: {y: {range: (plot_object, min_value, max_value) => [0, Math.max(4, max_value)]}},
        axes: [{...axis, size: 26, space: 70, values: (plot_object, ticks_s) => ticks_s.map((tick_s) => format_clock(tick_s * 1000).slice(0, 5))}, {...axis, size: 36, space: 30, values: (plot_object, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ''))}],
        series: [{}, {stroke: get_colour('--accent'), fill: get_colour('--accent-soft'), width: 1.5, paths: uPlot.paths.stepped({align: -1}), points: {show: false}}],
      }, latest_data.current, element);
      observer = new ResizeObserver(() => plot.current?.setSize({width: element.clientWidth, height: 140}));
      observer.observe(element);
    });
    return () => {
      is_unmounted = true;
      observer?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(latest_data.current), [now_ms, end_counts]);
  const total = counts.reduce((a, b) => a + b, 0);
  return html`<div class="chart" ref=${container} role="img" aria-label=${`${total} jobs ended in the last ${Math.round(slot_count * slot_ms / 60000)} minutes`}></div>`;
}
