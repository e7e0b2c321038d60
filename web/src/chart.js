// A chart of values over time, drawn by uPlot. The library is loaded when the first chart is shown.
import {html, useEffect, useRef} from './ui.js';
import {clock} from './text.js';

const library = () => import('uplot');
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const SLOTS = 90;  // number of slots that the server returns after the first job has ended
// ends: number of ended jobs in each slot, latest first.
export function Chart({ends, slot_ms, now}) {
  const box = useRef(null), plot = useRef(null), latest = useRef(null);
  const slots = Math.max(ends.length, SLOTS);
  const times = [], values = [];
  for (let i = slots - 1; i >= 0; i--) {
    times.push(Math.round((now - i * slot_ms) / 1000));
    values.push(ends[i] ?? 0);
  }
  latest.current = [times, values];
  useEffect(() => {
    let over = false, watch = null;
    const at = box.current;
    library().then(({default: uPlot}) => {
      if (over) return;
      const axis = {stroke: colour('--quiet'), grid: {stroke: colour('--line'), width: 1}, ticks: {show: false}, font: '11px system-ui'};
      plot.current = new uPlot({
        width: at.clientWidth, height: 140, legend: {show: false}, cursor: {y: false, drag: {x: false, y: false}},
        scales: {y: {range: (u, low, high) => [0, Math.max(4, high)]}},
        axes: [{...axis, size: 26, space: 70, values: (u, splits) => splits.map((s) => clock(s * 1000).slice(0, 5))}, {...axis, size: 36, space: 30, values: (u, splits) => splits.map((v) => (Number.isInteger(v) ? String(v) : ''))}],
        series: [{}, {stroke: colour('--accent'), fill: colour('--accent-soft'), width: 1.5, paths: uPlot.paths.stepped({align: -1}), points: {show: false}}],
      }, latest.current, at);
      watch = new ResizeObserver(() => plot.current?.setSize({width: at.clientWidth, height: 140}));
      watch.observe(at);
    });
    return () => {
      over = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(latest.current), [now, ends]);
  const total = values.reduce((a, b) => a + b, 0);
  return html`<div class="chart" ref=${box} role="img" aria-label=${`${total} jobs ended in the last ${Math.round(slots * slot_ms / 60000)} minutes`}></div>`;
}
