// Positions of boxes. Each open item is laid out by dagre separately, with its open children as boxes of their size,
// and the result is cached: opening a module lays out only that module and those around it.
import * as dagre from '@dagrejs/dagre';
import { EdgeKind, siblingsOf, type Boxes, type Item } from './boxes';
import { NONE } from './graph';
import { LINE as SMALL, NODE, OPEN, TITLE, widthOf } from './text';

export interface Point {
  x: number;
  y: number;
}

export interface Layout {
  // Corner of each item in the whole picture.
  x: Float64Array;
  y: Float64Array;
  // The route of an edge between two children of one item, in picture coordinates; "from to" by index. From outside an
  // open item to its child: "in child"; from the child to the outside: "out child".
  ways: Map<string, Point[]>;
  width: number;
  height: number;
}

interface Arranged {
  places: Point[]; // of children, in order
  ways: { from: number; to: number; points: Point[] }[]; // by index among the children; OUTSIDE: the item's border
  width: number;
  height: number;
}

const OUTSIDE = -1;
const RIM = 18; // between the border and the first boxes
const MOST_PORTS = 40; // above this, edges from outside are straight
const PADDING = 14;
const HEADER = 26;
const LINE = 15;

const kept = new Map<string, Arranged>();

function sizeOf(item: Item): void {
  const module = item.kind === 'cluster' || item.kind === 'chunk';
  const title = widthOf(item.title, module ? TITLE : NODE) + (module ? 24 : 0);
  const longest = Math.max(title, ...item.lines.map((line) => widthOf(line, SMALL)));
  item.width = Math.min(290, Math.max(item.kind === 'omitted' ? 56 : 76, longest + 20));
  item.height = 12 + LINE * (1 + item.lines.length);
}

function arrange(items: readonly Item[], container: Item, edges: { from: number; to: number }[], upwards: boolean, touched: Uint8Array, ports: { entered: number[]; left: number[] }): Arranged {
  const children = container.children.map((c) => items[c]);
  const place = new Map(container.children.map((c, i) => [c, i]));
  const linked = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  for (const child of children) if (touched[child.index] === 1) linked.add(child.index);
  const result: Arranged = { places: children.map(() => ({ x: 0, y: 0 })), ways: [], width: 0, height: 0 };
  const joined = children.filter((child) => linked.has(child.index));
  if (joined.length > 0) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({
      rankdir: upwards ? 'BT' : 'TB',
      nodesep: 16, ranksep: 34, edgesep: 10, marginx: 0, marginy: 0,
      ranker: joined.length > 60 ? 'longest-path' : 'network-simplex',
    });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const child of joined) graph.setNode(String(child.index), { width: child.width, height: child.height });
    for (const edge of edges) graph.setEdge(String(edge.from), String(edge.to), { weight: 1, minlen: 1 });
    // Edges to and from the outside take space among the boxes: they are routed from the border around them.
    for (const child of ports.entered) {
      graph.setNode(`in ${String(child)}`, { width: 2, height: 1 });
      graph.setEdge(`in ${String(child)}`, String(child), { weight: 1, minlen: 1 });
    }
    for (const child of ports.left) {
      graph.setNode(`out ${String(child)}`, { width: 2, height: 1 });
      graph.setEdge(String(child), `out ${String(child)}`, { weight: 1, minlen: 1 });
    }
    if (ports.entered.length + ports.left.length > 0) toTheRims(graph, ports);
    dagre.layout(graph);
    for (const child of joined) {
      const at = graph.node(String(child.index)) as { x: number; y: number };
      result.places[place.get(child.index)!] = { x: at.x - child.width / 2, y: at.y - child.height / 2 };
    }
    // The ranks of the ports take as much space as a margin.
    const atTop = upwards ? ports.left.length > 0 : ports.entered.length > 0;
    const atBottom = upwards ? ports.entered.length > 0 : ports.left.length > 0;
    let high = Infinity;
    let low = 0;
    for (const child of joined) {
      const y = result.places[place.get(child.index)!].y;
      high = Math.min(high, y);
      low = Math.max(low, y + child.height);
    }
    const up = high - (atTop ? RIM : 0);
    const bottom = low - up + (atBottom ? RIM : 0);
    for (const child of joined) result.places[place.get(child.index)!].y -= up;
    // A route passes rows of boxes vertically, between them, and turns between rows.
    const rows = new Map<number, { top: number; bottom: number }>();
    for (const child of joined) {
      const { y } = result.places[place.get(child.index)!];
      const center = Math.round(y + child.height / 2);
      const row = rows.get(center) ?? { top: Infinity, bottom: 0 };
      rows.set(center, { top: Math.min(row.top, y), bottom: Math.max(row.bottom, y + child.height) });
    }
    const moved = (points: Point[] | undefined): Point[] => {
      const raised = (points ?? []).map((p) => ({ x: p.x, y: p.y - up }));
      const way = raised.flatMap((p, i) => {
        const row = i === 0 || i === raised.length - 1 ? undefined : (rows.get(Math.round(p.y)) ?? rows.get(Math.round(p.y) - 1) ?? rows.get(Math.round(p.y) + 1));
        if (!row) return [p];
        const down = raised[i + 1].y > raised[i - 1].y;
        return [{ x: p.x, y: down ? row.top : row.bottom }, { x: p.x, y: down ? row.bottom : row.top }];
      });
      return way.map((p) => ({ x: p.x, y: Math.min(bottom, Math.max(0, p.y)) }));
    };
    result.height = bottom;
    for (const edge of edges) {
      const way = graph.edge(String(edge.from), String(edge.to)) as { points?: Point[] } | undefined;
      result.ways.push({ from: place.get(edge.from)!, to: place.get(edge.to)!, points: moved(way?.points) });
    }
    for (const [list, entering] of [[ports.entered, true], [ports.left, false]] as const) {
      for (const child of list) {
        const port = `${entering ? 'in' : 'out'} ${String(child)}`;
        const way = graph.edge(entering ? port : String(child), entering ? String(child) : port) as { points?: Point[] } | undefined;
        const at = place.get(child)!;
        result.ways.push({ from: entering ? OUTSIDE : at, to: entering ? at : OUTSIDE, points: moved(way?.points) });
      }
    }
  }
  for (const child of joined) {
    const at = result.places[place.get(child.index)!];
    result.width = Math.max(result.width, at.x + child.width);
    result.height = Math.max(result.height, at.y + child.height);
  }
  for (const way of result.ways) {
    for (const point of way.points) result.width = Math.max(result.width, point.x + 4);
  }
  // Boxes without edges are placed next to the rest, or in rows below it.
  const loose = children.filter((child) => !linked.has(child.index));
  if (joined.length > 0 && loose.length > 0 && loose.length <= 4) {
    // A few go to the side, where no edge passes.
    const x = result.width + 16;
    let y = 0;
    for (const child of loose) {
      result.places[place.get(child.index)!] = { x, y };
      y += child.height + 12;
      result.width = Math.max(result.width, x + child.width);
      result.height = Math.max(result.height, y - 12);
    }
  } else if (loose.length > 0) {
    const area = loose.reduce((sum, child) => sum + (child.width + 16) * (child.height + 16), 0);
    const limit = Math.max(result.width, Math.sqrt(area * 1.6), 200);
    let x = 0;
    let y = joined.length > 0 ? result.height + 24 : 0;
    let tallest = 0;
    for (const child of loose) {
      if (x > 0 && x + child.width > limit) {
        x = 0;
        y += tallest + 16;
        tallest = 0;
      }
      result.places[place.get(child.index)!] = { x, y };
      x += child.width + 16;
      tallest = Math.max(tallest, child.height);
      result.width = Math.max(result.width, x - 16);
      result.height = Math.max(result.height, y + tallest);
    }
  }
  return result;
}

// Keeps boxes away from the border at which edges enter: all incoming routes start at one rank, all outgoing end at
// one.
function toTheRims(graph: dagre.graphlib.Graph, ports: { entered: number[]; left: number[] }): void {
  if (ports.entered.length > 0) {
    graph.setNode('top', { width: 1, height: 1 });
    for (const child of ports.entered) graph.setEdge('top', `in ${String(child)}`, { weight: 8, minlen: 1 });
  }
  if (ports.left.length > 0) {
    graph.setNode('bottom', { width: 1, height: 1 });
    for (const child of ports.left) graph.setEdge(`out ${String(child)}`, 'bottom', { weight: 8, minlen: 1 });
  }
}

// Places phases side by side, backward from bottom to top, so that a layer's backward is roughly next to it.
function besideOneAnother(children: Item[]): Arranged {
  const places: Point[] = [];
  let x = 0;
  let height = 0;
  for (const child of children) {
    places.push({ x, y: 0 });
    x += child.width + 60;
    height = Math.max(height, child.height);
  }
  return { places, ways: [], width: x - 60, height };
}

// For each open item, the children with edges from and to the outside.
function portsOf(boxes: Boxes): Map<number, { entered: number[]; left: number[] }> {
  const { items } = boxes;
  const entered = new Map<number, Set<number>>();
  const left = new Map<number, Set<number>>();
  const note = (of: Map<number, Set<number>>, child: number): void => {
    of.set(items[child].parent, (of.get(items[child].parent) ?? new Set()).add(child));
  };
  for (const edge of boxes.edges) {
    if (edge.kind === EdgeKind.nextCopy) continue;
    const [a, b] = siblingsOf(items, edge.from, edge.to);
    // Phases are side by side; edges between them are straight and only drawn on hover.
    if (a === b || items[a].parent === 0) continue;
    for (let i = edge.to; i !== b; i = items[i].parent) note(entered, i);
    for (let i = edge.from; i !== a; i = items[i].parent) note(left, i);
  }
  const ports = new Map<number, { entered: number[]; left: number[] }>();
  for (const container of new Set([...entered.keys(), ...left.keys()])) {
    const own = { entered: [...(entered.get(container) ?? [])].sort((x, y) => x - y), left: [...(left.get(container) ?? [])].sort((x, y) => x - y) };
    if (own.entered.length + own.left.length <= MOST_PORTS) ports.set(container, own);
  }
  return ports;
}

export function layoutOf(boxes: Boxes, upwards: (item: Item) => boolean): Layout {
  const { items, siblings } = boxes;
  const arranged = new Map<number, Arranged>();
  // Items that contain an end of an edge.
  const touched = new Uint8Array(items.length);
  for (const edge of boxes.edges) {
    for (let i = edge.from; i !== NONE && touched[i] === 0; i = items[i].parent) touched[i] = 1;
    for (let i = edge.to; i !== NONE && touched[i] === 0; i = items[i].parent) touched[i] = 1;
  }
  const ports = portsOf(boxes);
  const flat = items[0].children.some((c) => items[c].kind !== 'cluster');
  for (let i = items.length; i-- > 0; ) {
    const item = items[i];
    if (!item.open) {
      sizeOf(item);
      continue;
    }
    const edges = siblings.get(i) ?? [];
    let done: Arranged | undefined;
    if (i === 0 && !flat) {
      done = besideOneAnother(item.children.map((c) => items[c]));
    } else {
      const up = upwards(item);
      const place = new Map(item.children.map((c, at) => [c, at]));
      const own = ports.get(i) ?? { entered: [], left: [] };
      const key = `${up ? 'u' : 'd'}${item.children.map((c) => `${touched[c] === 1 ? 't' : ''}${items[c].width.toFixed(0)}x${items[c].height.toFixed(0)}`).join(' ')}|${edges.map((e) => `${String(place.get(e.from))}-${String(place.get(e.to))}`).join(' ')}|${own.entered.map((c) => String(place.get(c))).join(' ')}|${own.left.map((c) => String(place.get(c))).join(' ')}`;
      done = kept.get(key);
      if (!done) {
        done = arrange(items, item, edges, up, touched, own);
        if (kept.size > 2000) kept.clear();
        kept.set(key, done);
      }
    }
    arranged.set(i, done);
    if (i === 0) {
      item.width = done.width;
      item.height = done.height;
    } else {
      item.width = Math.max(done.width + 2 * PADDING, widthOf(item.title, OPEN) + 60, 110);
      item.height = done.height + PADDING + HEADER + 6;
    }
  }
  const layout: Layout = { x: new Float64Array(items.length), y: new Float64Array(items.length), ways: new Map(), width: items[0].width, height: items[0].height };
  for (let i = 0; i < items.length; ++i) {
    const item = items[i];
    const done = arranged.get(i);
    if (!done) continue;
    const left = layout.x[i] + (i === 0 ? 0 : Math.max(PADDING, (item.width - done.width) / 2));
    const top = layout.y[i] + (i === 0 ? 0 : HEADER + 6);
    item.children.forEach((child, at) => {
      layout.x[child] = left + done.places[at].x;
      layout.y[child] = top + done.places[at].y;
    });
    for (const way of done.ways) {
      const key = way.from === OUTSIDE ? `in ${String(item.children[way.to])}`
        : way.to === OUTSIDE ? `out ${String(item.children[way.from])}`
        : `${String(item.children[way.from])} ${String(item.children[way.to])}`;
      layout.ways.set(key, way.points.map((p) => ({ x: p.x + left, y: p.y + top })));
    }
  }
  return layout;
}
