// The graph of a flow. The library dagre computes the layout; it is loaded when the first graph is shown.
import {html, useEffect, useMemo, useRef, useState, node_state, SHAPES} from './ui.js';
import {elapsed, to_line} from './text.js';

const load_library = () => import('@dagrejs/dagre');
const WIDTH = 164, HEIGHT = 40, MAX_NODES = 400;

async function layout(nodes, edges, is_horizontal) {
  const {default: dagre} = await load_library();
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({rankdir: is_horizontal ? 'LR' : 'TB', nodesep: is_horizontal ? 14 : 18, ranksep: is_horizontal ? 44 : 30, marginx: 8, marginy: 8});
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), {width: WIDTH, height: HEIGHT});
  for (const edge of edges) graph.setEdge(String(edge.from), String(edge.to));
  dagre.layout(graph);
  const positions = new Map(nodes.map((node) => [node.id, graph.node(String(node.id))]));
  const paths = edges.map((edge) => ({...edge, points: graph.edge(String(edge.from), String(edge.to)).points}));
  return {positions, paths, width: graph.graph().width, height: graph.graph().height};
}
const format_path = (points) => `M${points.map((point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join('L')}`;

// Returns the ids of the critical path: the chain of dependent nodes with the longest total run time.
export function find_critical_path(nodes, edges, now) {
  const nodes_by_id = new Map(nodes.map((node) => [node.id, node])), predecessors = new Map(), best_chains = new Map();
  for (const {from, to} of edges) predecessors.set(to, [...(predecessors.get(to) ?? []), from]);
  const run_time = (node) => (node.started_ms ? elapsed(node.started_ms, node.ended_ms || now) : 0);
  const visit = (id) => {
    if (best_chains.has(id)) return best_chains.get(id);
    best_chains.set(id, {sum: 0, from: null});
    let longest = {sum: 0, from: null};
    for (const entry of predecessors.get(id) ?? []) if (nodes_by_id.has(entry) && visit(entry).sum > longest.sum) longest = {sum: visit(entry).sum, from: entry};
    best_chains.set(id, {sum: longest.sum + run_time(nodes_by_id.get(id)), from: longest.from});
    return best_chains.get(id);
  };
  let end_id = null;
  for (const node of nodes) if (!end_id || visit(node.id).sum > visit(end_id).sum) end_id = node.id;
  const ids = new Set();
  for (let id = end_id; id && visit(end_id).sum > 0; id = visit(id).from) if (nodes_by_id.get(id).started_ms) ids.add(id);
  return ids;
}

export function Graph({nodes, edges, selected, select, now}) {
  const [layout_result, set_layout] = useState(null);
  const container = useRef(null);
  const is_horizontal = useMemo(() => innerWidth > 700, []);
  const shown_nodes = nodes.length > MAX_NODES ? nodes.slice(0, MAX_NODES) : nodes;
  const layout_key = shown_nodes.map((node) => node.id).join() + edges.length;
  useEffect(() => {
    let is_stale = false;
    const ids = new Set(shown_nodes.map((node) => node.id));
    layout(shown_nodes, edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to)), is_horizontal).then((result) => { if (!is_stale) set_layout(result); });
    return () => { is_stale = true; };
  }, [layout_key]);
  const critical_ids = useMemo(() => find_critical_path(shown_nodes, edges, now), [layout_key, shown_nodes.map((node) => node.ended_ms).join()]);
  if (!layout_result) return html`<p class="empty">Loading \u2026</p>`;
  const nodes_by_id = new Map(shown_nodes.map((node) => [node.id, node]));
  return html`${nodes.length > MAX_NODES && html`<p class="quiet">The first ${MAX_NODES} of ${nodes.length} nodes.</p>`}
    <div class="graph" ref=${container} tabindex="0" role="group" aria-label="graph of the flow"><svg width=${layout_result.width} height=${layout_result.height} viewBox=${`0 0 ${layout_result.width} ${layout_result.height}`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 1l7 3-7 3z" class="head"/></marker></defs>
      ${layout_result.paths.map((edge) => html`<path class=${`edge${critical_ids.has(edge.from) && critical_ids.has(edge.to) ? ' long' : ''}`} d=${format_path(edge.points)} marker-end="url(#arrow)"/>`)}
      ${shown_nodes.map((node) => {
        const position = layout_result.positions.get(node.id), [shape, state] = node_state(nodes_by_id.get(node.id));
        if (!position) return null;
        const select_node = () => select(node.name);
        return html`<g key=${node.id} class=${`node ${shape}${selected === node.name ? ' chosen' : ''}${critical_ids.has(node.id) ? ' long' : ''}`} transform=${`translate(${position.x - WIDTH / 2} ${position.y - HEIGHT / 2})`} tabindex="0" role="button" aria-pressed=${selected === node.name} onClick=${select_node} onKeyDown=${(e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); select_node(); } }}>
          <rect width=${WIDTH} height=${HEIGHT} rx="5"/><svg x="9" y="12" width="16" height="16" viewBox="0 0 16 16" class=${`glyph ${shape}`}><path d=${SHAPES[shape]}/></svg>
          <title>${to_line(node.name, 80)}</title><text x="33" y="17">${to_line(node.name, 18)}</text><text x="33" y="31" class="word">${state}${node.attempt > 1 ? `, attempt ${node.attempt}` : ''}</text></g>`;
      })}
    </svg></div><p class="quiet">Thick lines: the longest path.</p>`;
}
