// A chart of values over time, drawn by uPlot. The library is loaded when the first chart is shown.
import {html, useEffect, useRef} from './ui.js';
import {format_clock} from './text.js';

const load_library = () => import('uplot');
const get_colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const MIN_SLOTS = 90;  // number of slots that the server returns after the first job has ended
// ends: number of ended jobs in each slot, latest first.
export function Chart({ends, slot_ms, now}) {
  const container = useRef(null), plot = useRef(null), latest_data = useRef(null);
  const slots = Math.max(ends.length, MIN_SLOTS);
  const times = [], values = [];
  for (let i = slots - 1; i >= 0; i--) {
    times.push(Math.round((now - i * slot_ms) / 1000));
    values.push(ends[i] ?? 0);
  }
  latest_data.current = [times, values];
  useEffect(() => {
    let is_unmounted = false, observer = null;
    const element = container.current;
    load_library().then(({default: uPlot}) => {
      if (is_unmounted) return;
      const axis = {stroke: get_colour('--quiet'), grid: {stroke: get_colour('--line'), width: 1}, ticks: {show: false}, font: '11px system-ui'};
      plot.current = new uPlot({
        width: element.clientWidth, height: 140, legend: {show: false}, cursor: {y: false, drag: {x: false, y: false}},
        scales: {y: {range: (u, low, high) => [0, Math.max(4, high)]}},
        axes: [{...axis, size: 26, space: 70, values: (u, splits) => splits.map((s) => format_clock(s * 1000).slice(0, 5))}, {...axis, size: 36, space: 30, values: (u, splits) => splits.map((v) => (Number.isInteger(v) ? String(v) : ''))}],
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
  useEffect(() => plot.current?.setData(latest_data.current), [now, ends]);
  const total = values.reduce((a, b) => a + b, 0);
  return html`<div class="chart" ref=${container} role="img" aria-label=${`${total} jobs ended in the last ${Math.round(slots * slot_ms / 60000)} minutes`}></div>`;
}
