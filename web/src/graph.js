// The graph of a flow. The library dagre computes the layout; it is loaded when the first graph is shown.
import {html, useEffect, useMemo, useRef, useState, node_state, SHAPES} from './ui.js';
import {elapsed, line} from './text.js';

const library = () => import('@dagrejs/dagre');
const WIDTH = 164, HEIGHT = 40, MOST = 400;

async function layout(nodes, edges, across) {
  const {default: dagre} = await library();
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({rankdir: across ? 'LR' : 'TB', nodesep: across ? 14 : 18, ranksep: across ? 44 : 30, marginx: 8, marginy: 8});
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), {width: WIDTH, height: HEIGHT});
  for (const edge of edges) graph.setEdge(String(edge.from), String(edge.to));
  dagre.layout(graph);
  const places = new Map(nodes.map((node) => [node.id, graph.node(String(node.id))]));
  const paths = edges.map((edge) => ({...edge, points: graph.edge(String(edge.from), String(edge.to)).points}));
  return {places, paths, width: graph.graph().width, height: graph.graph().height};
}
const path = (points) => `M${points.map((at) => `${at.x.toFixed(1)} ${at.y.toFixed(1)}`).join('L')}`;

// Returns the ids of the critical path: the chain of dependent nodes with the longest total run time.
export function critical(nodes, edges, now) {
  const by = new Map(nodes.map((node) => [node.id, node])), before = new Map(), best = new Map();
  for (const {from, to} of edges) before.set(to, [...(before.get(to) ?? []), from]);
  const took = (node) => (node.started_ms ? elapsed(node.started_ms, node.ended_ms || now) : 0);
  const visit = (id) => {
    if (best.has(id)) return best.get(id);
    best.set(id, {sum: 0, from: null});
    let top = {sum: 0, from: null};
    for (const each of before.get(id) ?? []) if (by.has(each) && visit(each).sum > top.sum) top = {sum: visit(each).sum, from: each};
    best.set(id, {sum: top.sum + took(by.get(id)), from: top.from});
    return best.get(id);
  };
  let end = null;
  for (const node of nodes) if (!end || visit(node.id).sum > visit(end).sum) end = node.id;
  const ids = new Set();
  for (let at = end; at && visit(end).sum > 0; at = visit(at).from) if (by.get(at).started_ms) ids.add(at);
  return ids;
}

export function Graph({nodes, edges, chosen, choose, now}) {
  const [drawn, set] = useState(null);
  const box = useRef(null);
  const across = useMemo(() => innerWidth > 700, []);
  const kept = nodes.length > MOST ? nodes.slice(0, MOST) : nodes;
  const form = kept.map((node) => node.id).join() + edges.length;
  useEffect(() => {
    let over = false;
    const ids = new Set(kept.map((node) => node.id));
    layout(kept, edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to)), across).then((found) => { if (!over) set(found); });
    return () => { over = true; };
  }, [form]);
  const long = useMemo(() => critical(kept, edges, now), [form, kept.map((node) => node.ended_ms).join()]);
  if (!drawn) return html`<p class="empty">Loading \u2026</p>`;
  const by = new Map(kept.map((node) => [node.id, node]));
  return html`${nodes.length > MOST && html`<p class="quiet">The first ${MOST} of ${nodes.length} nodes.</p>`}
    <div class="graph" ref=${box} tabindex="0" role="group" aria-label="graph of the flow"><svg width=${drawn.width} height=${drawn.height} viewBox=${`0 0 ${drawn.width} ${drawn.height}`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 1l7 3-7 3z" class="head"/></marker></defs>
      ${drawn.paths.map((edge) => html`<path class=${`edge${long.has(edge.from) && long.has(edge.to) ? ' long' : ''}`} d=${path(edge.points)} marker-end="url(#arrow)"/>`)}
      ${kept.map((node) => {
        const at = drawn.places.get(node.id), [shape, word] = node_state(by.get(node.id));
        if (!at) return null;
        const pick = () => choose(node.name);
        return html`<g key=${node.id} class=${`node ${shape}${chosen === node.name ? ' chosen' : ''}${long.has(node.id) ? ' long' : ''}`} transform=${`translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`} tabindex="0" role="button" aria-pressed=${chosen === node.name} onClick=${pick} onKeyDown=${(e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pick(); } }}>
          <rect width=${WIDTH} height=${HEIGHT} rx="5"/><svg x="9" y="12" width="16" height="16" viewBox="0 0 16 16" class=${`glyph ${shape}`}><path d=${SHAPES[shape]}/></svg>
          <title>${line(node.name, 80)}</title><text x="33" y="17">${line(node.name, 18)}</text><text x="33" y="31" class="word">${word}${node.attempt > 1 ? `, attempt ${node.attempt}` : ''}</text></g>`;
      })}
    </svg></div><p class="quiet">Thick lines: the longest path.</p>`;
}
