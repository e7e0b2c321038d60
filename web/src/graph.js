// The graph of a flow. The library dagre computes the layout. It is loaded when the first graph is shown.
import {html, useEffect, useMemo, useRef, useState, get_node_state, SHAPES} from './ui.js';
import {get_elapsed_ms, to_line} from './text.js';

const load_library = () => import('@dagrejs/dagre');
const NODE_WIDTH = 164, NODE_HEIGHT = 40, MAX_NODES = 400;

async function compute_layout(nodes, edges, is_horizontal) {
  const {default: dagre} = await load_library();
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({rankdir: is_horizontal ? 'LR' : 'TB', nodesep: is_horizontal ? 14 : 18, ranksep: is_horizontal ? 44 : 30, marginx: 8, marginy: 8});
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(String(node.id), {width: NODE_WIDTH, height: NODE_HEIGHT});
  for (const edge of edges) graph.setEdge(String(edge.from), String(edge.to));
  dagre.layout(graph);
  const positions = new Map(nodes.map((node) => [node.id, graph.node(String(node.id))]));
  const edge_paths = edges.map((edge) => ({...edge, points: graph.edge(String(edge.from), String(edge.to)).points}));
  return {positions, edge_paths, width: graph.graph().width, height: graph.graph().height};
}
const format_path = (points) => `M${points.map((point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join('L')}`;

// Returns the ids of the nodes of the critical path: the chain of dependent nodes with the longest total run time.
export function find_critical_path(nodes, edges, now_ms) {
  const nodes_by_id = new Map(nodes.map((node) => [node.id, node])), predecessors = new Map(), longest_chains = new Map();
  for (const {from, to} of edges) predecessors.set(to, [...(predecessors.get(to) ?? []), from]);
  const get_run_time_ms = (node) => (node.started_ms ? get_elapsed_ms(node.started_ms, node.ended_ms || now_ms) : 0);
  const find_longest_chain = (id) => {
    if (longest_chains.has(id)) return longest_chains.get(id);
    longest_chains.set(id, {total_ms: 0, previous_id: null});
    let longest_chain = {total_ms: 0, previous_id: null};
    for (const entry of predecessors.get(id) ?? []) if (nodes_by_id.has(entry) && find_longest_chain(entry).total_ms > longest_chain.total_ms) longest_chain = {total_ms: find_longest_chain(entry).total_ms, previous_id: entry};
    longest_chains.set(id, {total_ms: longest_chain.total_ms + get_run_time_ms(nodes_by_id.get(id)), previous_id: longest_chain.previous_id});
    return longest_chains.get(id);
  };
  let end_id = null;
  for (const node of nodes) if (!end_id || find_longest_chain(node.id).total_ms > find_longest_chain(end_id).total_ms) end_id = node.id;
  const ids = new Set();
  for (let id = end_id; id && find_longest_chain(end_id).total_ms > 0; id = find_longest_chain(id).previous_id) if (nodes_by_id.get(id).started_ms) ids.add(id);
  return ids;
}

export function Graph({nodes, edges, selected, select, now_ms}) {
  const [layout_result, set_layout] = useState(null);
  const container = useRef(null);
  const is_horizontal = useMemo(() => innerWidth > 700, []);
  const shown_nodes = nodes.length > MAX_NODES ? nodes.slice(0, MAX_NODES) : nodes;
  const layout_key = shown_nodes.map((node) => node.id).join() + edges.length;
  useEffect(() => {
    let is_stale = false;
    const ids = new Set(shown_nodes.map((node) => node.id));
    compute_layout(shown_nodes, edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to)), is_horizontal).then((result) => { if (!is_stale) set_layout(result); });
    return () => { is_stale = true; };
  }, [layout_key]);
  const critical_ids = useMemo(() => find_critical_path(shown_nodes, edges, now_ms), [layout_key, shown_nodes.map((node) => node.ended_ms).join()]);
  if (!layout_result) return html`<p class="empty">Loading \u2026</p>`;
  const nodes_by_id = new Map(shown_nodes.map((node) => [node.id, node]));
  return html`${nodes.length > MAX_NODES && html`<p class="quiet">The first ${MAX_NODES} of ${nodes.length} nodes.</p>`}
    <div class="graph" ref=${container} tabindex="0" role="group" aria-label="graph of the flow"><svg width=${layout_result.width} height=${layout_result.height} viewBox=${`0 0 ${layout_result.width} ${layout_result.height}`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 1l7 3-7 3z" class="head"/></marker></defs>
      ${layout_result.edge_paths.map((edge) => html`<path class=${`edge${critical_ids.has(edge.from) && critical_ids.has(edge.to) ? ' long' : ''}`} d=${format_path(edge.points)} marker-end="url(#arrow)"/>`)}
      ${shown_nodes.map((node) => {
        const position = layout_result.positions.get(node.id), [shape, state] = get_node_state(nodes_by_id.get(node.id));
        if (!position) return null;
        const select_node = () => select(node.name);
        return html`<g key=${node.id} class=${`node ${shape}${selected === node.name ? ' chosen' : ''}${critical_ids.has(node.id) ? ' long' : ''}`} transform=${`translate(${position.x - NODE_WIDTH / 2} ${position.y - NODE_HEIGHT / 2})`} tabindex="0" role="button" aria-pressed=${selected === node.name} onClick=${select_node} onKeyDown=${(event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); select_node(); } }}>
          <rect width=${NODE_WIDTH} height=${NODE_HEIGHT} rx="5"/><svg x="9" y="12" width="16" height="16" viewBox="0 0 16 16" class=${`glyph ${shape}`}><path d=${SHAPES[shape]}/></svg>
          <title>${to_line(node.name, 80)}</title><text x="33" y="17">${to_line(node.name, 18)}</text><text x="33" y="31" class="word">${state}${node.attempt > 1 ? `, attempt ${node.attempt}` : ''}</text></g>`;
      })}
    </svg></div><p class="quiet">Thick lines: the longest path.</p>`;
}
