// The visible boxes, given the open modules, and the edges between them. The rules are those of ViewModel
// (include/shadowgraph/draw/draw.h): views are not drawn, repeated layers are one box, a module of one operator is that
// operator. Closed modules cost only one pass over the edges.
import type { TargetInfo } from './container';
import { NONE, type Graph } from './graph';
import { bytes, exact, flops, visible } from './units';

export interface BoxOptions {
  open: ReadonlySet<string>;
  unfolded: ReadonlySet<number>; // clusters whose identical siblings are drawn one by one
  phases: readonly number[];
  showViews: boolean;
  showParameters: boolean;
  // Draws only these nodes, without modules.
  only?: readonly number[];
}

export type ItemKind = 'all' | 'cluster' | 'chunk' | 'node' | 'omitted';

export interface Item {
  index: number;
  key: string;
  kind: ItemKind;
  id: number; // of the cluster or node
  parent: number; // index, or NONE
  depth: number;
  open: boolean;
  title: string;
  lines: string[];
  children: number[];
  // Filled in by the layout.
  width: number;
  height: number;
}

export enum EdgeKind { data = 0, alias = 1, mutation = 2, nextCopy = 3 }

export interface Edge {
  from: number; // items
  to: number;
  kind: EdgeKind;
  count: number; // number of tensors
  bytes: number; // of the largest
  value: number; // the largest
}

export interface Boxes {
  items: Item[];
  edges: Edge[];
  // Edges between the children of an item, by item; input of the layout.
  siblings: Map<number, { from: number; to: number; weight: number }[]>;
  // The item that shows a node, or NONE.
  itemOf: (node: number) => number;
}

const MOST_CHILDREN = 120;
const FAN = 60;

// Returns the source of every value, through nodes that are not drawn.
export function origins(graph: Graph, showViews: boolean): Int32Array {
  const first = graph.outputStart();
  const start = graph.inputStart();
  const inputs = graph.inputValue();
  const origin = new Int32Array(graph.header.values);
  const isThrough = Uint8Array.from(graph.header.targets, (t) => (!showViews && t.view === true && t.builtin !== true ? 1 : 0));
  for (let i = 0; i < graph.nodeCount; ++i) {
    let through = NONE;
    if (isThrough[graph.targetIndex(i)] === 1) {
      for (let k = start[i]; k < start[i + 1] && through === NONE; ++k) {
        if (graph.isTensor(inputs[k])) through = origin[inputs[k]];
      }
    }
    for (let v = first[i]; v < first[i + 1]; ++v) origin[v] = through === NONE ? v : through;
  }
  return origin;
}

// Returns true if a node is drawn as a box.
export function isShown(graph: Graph, node: number, options: Pick<BoxOptions, 'showViews' | 'showParameters'>): boolean {
  return isTargetShown(graph.target(node), options);
}

function isTargetShown(target: TargetInfo, options: Pick<BoxOptions, 'showViews' | 'showParameters'>): boolean {
  if (target.name === 'sg::gradient') return false;
  if (target.builtin === true && target.name !== 'sg::input' && target.name !== 'sg::output' && target.name !== 'sg::alias') {
    return options.showParameters;
  }
  return options.showViews || target.view !== true;
}

interface Content {
  hidden: Uint8Array; // clusters inside a folded copy
  shown: Uint32Array; // number of operator boxes in a cluster and below
  only: Int32Array; // the only box, if there is one
  run: Int32Array; // the outermost folded run that a cluster is in, by its first copy
  copy: Int32Array; // the copy's index in the run
  nodes: Uint8Array; // nodes drawn as boxes
  origin: Int32Array;
}

const contents = new WeakMap<Graph, Map<string, Content>>();

function contentOf(graph: Graph, options: BoxOptions): Content {
  const key = `${String(options.showViews)} ${String(options.showParameters)} ${[...options.unfolded].sort((a, b) => a - b).join(',')}`;
  let known = contents.get(graph);
  if (!known) contents.set(graph, (known = new Map()));
  const found = known.get(key);
  if (found) return found;
  if (known.size > 8) known.clear();
  const size = graph.clusterCount;
  const parent = graph.clusterParent();
  const standsFor = graph.clusterStandsFor();
  const content: Content = {
    hidden: new Uint8Array(size),
    shown: new Uint32Array(size),
    only: new Int32Array(size).fill(NONE),
    run: new Int32Array(size).fill(NONE),
    copy: new Int32Array(size).fill(NONE),
    nodes: new Uint8Array(graph.nodeCount),
    origin: origins(graph, options.showViews),
  };
  const inCopy = new Uint8Array(size); // in an unfolded copy: inner runs are drawn in full, each with its edges
  for (let c = 1; c < size; ++c) {
    const above = parent[c];
    inCopy[c] = inCopy[above];
    const original = standsFor[c];
    const folds = inCopy[above] === 0 && !options.unfolded.has(original === NONE ? c : original);
    if (original !== NONE && !folds) inCopy[c] = 1;
    content.hidden[c] = content.hidden[above] === 1 || (original !== NONE && folds) ? 1 : 0;
    content.run[c] = content.run[above];
    content.copy[c] = content.copy[above];
    if (content.run[c] === NONE && folds && (original !== NONE || graph.clusterRepeats()[c] > 1)) {
      content.run[c] = original === NONE ? c : original;
      content.copy[c] = c;
    }
  }
  const clusterOf = graph.clusterOf();
  const shown = Uint8Array.from(graph.header.targets, (target) => (isTargetShown(target, options) ? 1 : 0));
  for (let i = 0; i < graph.nodeCount; ++i) {
    if (shown[graph.targetIndex(i)] === 0) continue;
    const c = clusterOf[i];
    if (content.hidden[c] === 1) continue;
    content.nodes[i] = 1;
    ++content.shown[c];
    content.only[c] = i;
  }
  for (let c = size; c-- > 1; ) {
    content.shown[parent[c]] += content.shown[c];
    if (content.shown[c] > 0) content.only[parent[c]] = content.only[c];
  }
  known.set(key, content);
  return content;
}

export function displayName(graph: Graph, c: number, folded: boolean): string {
  const cluster = graph.cluster(c);
  if (c === 0) return graph.header.phases[0];
  if (folded && cluster.repeats > 1) return `${visible(cluster.span, 60)} \u00d7${String(cluster.repeats)}`;
  return visible(cluster.name, 80) + (cluster.call > 0 ? ` (call ${String(cluster.call)})` : '');
}

class Builder {
  readonly items: Item[] = [];
  private readonly nodeItem: Int32Array;
  private readonly closed: Int32Array;
  private readonly content: Content;

  constructor(private readonly graph: Graph, private readonly options: BoxOptions) {
    this.content = contentOf(graph, options);
    this.nodeItem = new Int32Array(graph.nodeCount).fill(NONE);
    this.closed = new Int32Array(graph.clusterCount).fill(NONE);
  }

  build(withEdges = true): Boxes {
    const all = this.add('all', 'all', 0, NONE, '');
    all.open = true;
    if (this.options.only) {
      for (const node of this.options.only) this.addNode(node, all.index, '');
    } else {
      for (const c of [0, ...this.graph.childrenOf(0).filter((child) => this.graph.isPhaseCluster(child))]) {
        const phase = this.graph.clusterPhase()[c];
        if (!this.options.phases.includes(phase) || this.countIn(c) === 0) continue;
        this.addCluster(c, all.index, this.graph.header.phases[phase]);
      }
    }
    // Expand open items; children are appended during the loop.
    for (let at = 1; at < this.items.length; ++at) this.open(this.items[at]);
    const itemOf = this.finishLeaves();
    const { edges, siblings } = withEdges ? this.edges(itemOf) : { edges: [], siblings: new Map() as Boxes['siblings'] };
    if (this.options.only) this.addOmitted(edges, siblings);
    return { items: this.items, edges, siblings, itemOf };
  }

  private countIn(c: number): number {
    if (c !== 0) return this.content.shown[c];
    let count = this.content.shown[0];
    for (const child of this.graph.childrenOf(0)) if (this.graph.isPhaseCluster(child)) count -= this.content.shown[child];
    return count;
  }

  private add(key: string, kind: ItemKind, id: number, parent: number, title: string): Item {
    const item: Item = {
      index: this.items.length, key, kind, id, parent, depth: parent === NONE ? 0 : this.items[parent].depth + 1,
      open: false, title, lines: [], children: [], width: 0, height: 0,
    };
    this.items.push(item);
    if (parent !== NONE) this.items[parent].children.push(item.index);
    return item;
  }

  private addNode(node: number, parent: number, prefix: string): void {
    const graph = this.graph;
    const item = this.add(`n${String(node)}`, 'node', node, parent, '');
    const label = visible(graph.label(node), 60);
    item.title = prefix === '' || prefix === label ? label : prefix;
    if (prefix !== '' && prefix !== label) item.lines.push(label);
    const first = graph.outputStart()[node];
    const made = graph.outputStart()[node + 1] - first;
    if (made > 0) item.lines.push(graph.type(first) + (made > 1 ? ` +${String(made - 1)}` : ''));
    const layout = graph.layout(node);
    if (layout !== '') item.lines.push(visible(layout, 40));
    this.nodeItem[node] = item.index;
  }

  private addCluster(c: number, parent: number, title?: string): void {
    const graph = this.graph;
    const folded = this.content.run[c] !== NONE && this.content.copy[c] === c;
    let name = title ?? displayName(graph, c, folded);
    if (this.content.shown[c] === 1 && title === undefined) {
      // A single operator is clearer than a box around it.
      const node = this.content.only[c];
      let path = '';
      for (let at = graph.clusterOf()[node]; at !== c; at = graph.clusterParent()[at]) path = `.${graph.cluster(at).name}${path}`;
      this.addNode(node, parent, name + visible(path, 60));
      return;
    }
    // A container of a single module.
    let inner = c;
    while (title === undefined && !(folded && inner === c)) {
      const cluster = graph.cluster(inner);
      if (cluster.className !== '' || this.directNodes(inner).length > 0) break;
      const children = [...graph.childrenOf(inner)].filter((child) => this.content.hidden[child] === 0 && this.content.shown[child] > 0);
      if (children.length !== 1) break;
      const child = children[0];
      const childFolded = this.content.run[child] !== NONE && this.content.copy[child] === child;
      name += `.${displayName(graph, child, childFolded)}`;
      inner = child;
      if (childFolded) break;
    }
    const item = this.add(`c${String(inner)}`, 'cluster', inner, parent, name);
    const totals = graph.totalsOf(inner);
    if (inner === 0) {
      for (const child of graph.childrenOf(0)) {
        if (!graph.isPhaseCluster(child)) continue;
        const other = graph.totalsOf(child);
        for (const key of Object.keys(totals) as (keyof typeof totals)[]) totals[key] -= other[key];
      }
    }
    const cluster = graph.cluster(inner);
    const operators = `${exact(totals.operators)} ${totals.operators === 1 ? 'operator' : 'operators'}`;
    item.lines.push((cluster.className === '' ? '' : `${visible(cluster.className, 60)}: `) + operators);
    const each = cluster.repeats > 1 && this.content.run[inner] !== NONE ? ' each' : '';
    const costs = [totals.flops > 0 ? flops(totals.flops) : '', totals.bytes > 0 ? bytes(totals.bytes) : ''].filter((t) => t !== '');
    if (costs.length > 0) item.lines.push(costs.join(', ') + each);
    item.open = this.options.open.has(item.key);
    if (!item.open) this.closed[inner] = item.index;
  }

  private directNodes(c: number): number[] {
    const lists = this.graph.clusterNodes();
    const found: number[] = [];
    for (let k = lists.start[c]; k < lists.start[c + 1]; ++k) {
      if (this.content.nodes[lists.items[k]] === 1) found.push(lists.items[k]);
    }
    return found;
  }

  // The direct contents of a cluster in program order: nodes as they are, clusters as -1 - c.
  private contentsOf(c: number): number[] {
    const refs: { at: number; ref: number }[] = this.directNodes(c).map((node) => ({ at: node, ref: node }));
    for (const child of this.graph.childrenOf(c)) {
      if (this.content.hidden[child] === 1 || this.content.shown[child] === 0 || this.graph.isPhaseCluster(child)) continue;
      refs.push({ at: this.firstOf(child), ref: -1 - child });
    }
    return refs.sort((a, b) => a.at - b.at).map((r) => r.ref);
  }
  private firstOf(c: number): number {
    const lists = this.graph.clusterNodes();
    let first = this.graph.nodeCount;
    const pending = [c];
    for (let at = pending.pop(); at !== undefined; at = pending.pop()) {
      if (lists.start[at] < lists.start[at + 1]) first = Math.min(first, lists.items[lists.start[at]]);
      else pending.push(...this.graph.childrenOf(at));
    }
    return first;
  }

  private readonly chunks = new Map<number, number[]>();

  private open(item: Item): void {
    if (item.kind === 'cluster' && item.open) this.fill(item, this.contentsOf(item.id));
    if (item.kind !== 'chunk') return;
    const refs = this.chunks.get(item.index)!;
    item.open = this.options.open.has(item.key);
    if (item.open) {
      this.fill(item, refs);
      return;
    }
    for (const ref of refs) {
      if (ref >= 0) this.nodeItem[ref] = item.index;
      else this.closed[-1 - ref] = item.index;
    }
  }

  private fill(item: Item, refs: number[]): void {
    if (refs.length <= MOST_CHILDREN) {
      for (const ref of refs) {
        if (ref >= 0) this.addNode(ref, item.index, '');
        else this.addCluster(-1 - ref, item.index);
      }
      return;
    }
    // Too many children: group consecutive ones into at most FAN boxes that can be opened.
    let each = FAN;
    while (each * FAN < refs.length) each *= FAN;
    each = refs.length <= FAN * FAN ? Math.ceil(refs.length / Math.ceil(refs.length / FAN)) : each;
    for (let from = 0; from < refs.length; from += each) {
      const part = refs.slice(from, from + each);
      const name = (ref: number): string => (ref >= 0 ? visible(this.graph.label(ref), 24) : displayName(this.graph, -1 - ref, false));
      const chunk = this.add(`g${item.key}:${String(from)}`, 'chunk', from, item.index, `${name(part[0])} \u2026 ${name(part[part.length - 1])}`);
      chunk.lines.push(`${String(part.length)} of ${String(refs.length)}, from ${String(from + 1)}`);
      this.chunks.set(chunk.index, part);
    }
  }

  private finishLeaves(): (node: number) => number {
    const { graph, content, nodeItem } = this;
    const leaf = this.closed;
    const parent = graph.clusterParent();
    for (let c = 1; c < leaf.length; ++c) {
      // Other phases are next to the forward phase, not inside it.
      const above = graph.isPhaseCluster(c) ? NONE : leaf[parent[c]];
      if (above !== NONE) leaf[c] = above;
    }
    const clusterOf = graph.clusterOf();
    const standIn = graph.standIn();
    const flat = this.options.only !== undefined;
    return (node) => {
      const shown = !flat && content.hidden[clusterOf[node]] === 1 ? standIn[node] : node;
      if (nodeItem[shown] !== NONE || flat) return nodeItem[shown];
      const at = leaf[clusterOf[shown]];
      // A closed box includes all its nodes; in an open one, nodes without a box are skipped.
      return at === NONE || this.items[at].key === 'c0' ? (content.nodes[shown] === 1 ? at : NONE) : at;
    };
  }

  private edges(itemOf: (node: number) => number): { edges: Edge[]; siblings: Boxes['siblings'] } {
    const { graph, content, items } = this;
    const size = items.length;
    const found = new Map<number, Edge>();
    const between = new Map<number, Map<number, number>>();
    const start = graph.inputStart();
    const inputs = graph.inputValue();
    const producer = graph.producer();
    const clusterOf = graph.clusterOf();
    const storageOf = graph.storageOf();
    const first = graph.outputStart();
    const flat = this.options.only !== undefined;
    for (let user = 0; user < graph.nodeCount; ++user) {
      if (start[user] === start[user + 1]) continue;
      if (flat ? this.nodeItem[user] === NONE : false) continue;
      const to = itemOf(user);
      if (to === NONE) continue;
      const userCluster = clusterOf[user];
      for (let k = start[user]; k < start[user + 1]; ++k) {
        const value = inputs[k];
        const source = producer[content.origin[value]];
        const from = itemOf(source);
        if (from === NONE) continue;
        const sourceCluster = clusterOf[source];
        let kind = EdgeKind.data;
        if (!flat && content.run[userCluster] !== NONE && content.run[userCluster] === content.run[sourceCluster] && content.copy[userCluster] !== content.copy[sourceCluster]) {
          kind = EdgeKind.nextCopy;
        } else if (!flat && content.hidden[userCluster] === 1 && content.hidden[sourceCluster] === 1) {
          continue; // within a copy: the drawn copy has this edge
        }
        if (from === to) continue;
        if (kind === EdgeKind.data) {
          if (graph.inputWritten(k)) kind = EdgeKind.mutation;
          else {
            const s = storageOf[value];
            for (let v = first[user]; s !== NONE && v < first[user + 1]; ++v) if (storageOf[v] === s) kind = EdgeKind.alias;
          }
        }
        const key = (kind * size + from) * size + to;
        const bytesOf = graph.bytesOfValue(value);
        const edge = found.get(key);
        if (edge) {
          ++edge.count;
          if (bytesOf > edge.bytes) {
            edge.bytes = bytesOf;
            edge.value = value;
          }
          continue;
        }
        found.set(key, { from, to, kind, count: 1, bytes: bytesOf, value });
        if (kind === EdgeKind.nextCopy) continue;
        const [a, b] = siblingsOf(items, from, to);
        if (a === b) continue;
        const container = items[a].parent;
        let edges = between.get(container);
        if (!edges) between.set(container, (edges = new Map()));
        edges.set(a * size + b, (edges.get(a * size + b) ?? 0) + 1);
      }
    }
    const siblings: Boxes['siblings'] = new Map();
    for (const [container, edges] of between) {
      siblings.set(container, [...edges].map(([key, weight]) => ({ from: Math.floor(key / size), to: key % size, weight })));
    }
    return { edges: [...found.values()], siblings };
  }

  // For a part of the graph: the number of omitted neighbors of each node, in gray.
  private addOmitted(edges: Edge[], siblings: Boxes['siblings']): void {
    const { graph, content } = this;
    const start = graph.inputStart();
    const producer = graph.producer();
    const inList = new Set(this.options.only);
    const outgoing = new Map<number, number>();
    const incoming = new Map<number, number>();
    for (let user = 0; user < graph.nodeCount; ++user) {
      if (!isShown(graph, user, this.options)) continue;
      for (let k = start[user]; k < start[user + 1]; ++k) {
        const source = producer[content.origin[graph.inputValue()[k]]];
        if (!isShown(graph, source, this.options)) continue;
        if (inList.has(user) && !inList.has(source)) incoming.set(user, (incoming.get(user) ?? 0) + 1);
        if (!inList.has(user) && inList.has(source)) outgoing.set(source, (outgoing.get(source) ?? 0) + 1);
      }
    }
    const list = siblings.get(0) ?? [];
    siblings.set(0, list);
    for (const [counts, before] of [[incoming, true], [outgoing, false]] as const) {
      for (const [node, count] of counts) {
        const stub = this.add(`${before ? 'i' : 'o'}${String(node)}`, 'omitted', node, 0, `${String(count)} more`);
        const at = this.nodeItem[node];
        const [from, to] = before ? [stub.index, at] : [at, stub.index];
        edges.push({ from, to, kind: EdgeKind.data, count, bytes: 0, value: NONE });
        list.push({ from, to, weight: 1 });
      }
    }
  }
}

// Returns the two children of the innermost common item that contain `a` and `b`.
export function siblingsOf(items: readonly Item[], a: number, b: number): [number, number] {
  while (items[a].depth > items[b].depth) a = items[a].parent;
  while (items[b].depth > items[a].depth) b = items[b].parent;
  while (items[a].parent !== items[b].parent) {
    a = items[a].parent;
    b = items[b].parent;
  }
  return [a, b];
}

export function boxesOf(graph: Graph, options: BoxOptions): Boxes {
  return new Builder(graph, options).build();
}

// Without edges, to count boxes only.
function itemsOf(graph: Graph, options: BoxOptions): Boxes {
  return new Builder(graph, options).build(false);
}

// Returns the items to open initially: phase by phase, modules as long as there are few boxes.
export function firstOpen(graph: Graph, phases: readonly number[], most: number): Set<string> {
  const open = new Set<string>();
  const base = { unfolded: new Set<number>(), phases, showViews: false, showParameters: false };
  let boxes = itemsOf(graph, { ...base, open });
  for (let round = 0; round < 12; ++round) {
    const closed = boxes.items.filter((item) => (item.kind === 'cluster') && !item.open);
    if (closed.length === 0) break;
    const next = new Set(open);
    for (const item of closed) next.add(item.key);
    const wider = itemsOf(graph, { ...base, open: next });
    const count = wider.items.filter((item) => !item.open).length;
    // Always open a single box.
    const alone = closed.length === 1 && !boxes.items.some((item) => item.kind === 'node' && graph.target(item.id).builtin !== true);
    if (count > most && round > 0 && !alone) break;
    for (const key of next) open.add(key);
    boxes = wider;
  }
  openWrappers(graph, boxes, base, open);
  return open;
}

// Returns true if a module's box contains only one other.
function isWrapper(graph: Graph, item: Item): boolean {
  if (item.kind !== 'cluster') return false;
  const nodes = graph.clusterNodes();
  return nodes.start[item.id] === nodes.start[item.id + 1] && [...graph.childrenOf(item.id)].length === 1;
}

// Wrappers are opened, which adds no boxes.
function openWrappers(graph: Graph, boxes: Boxes, base: Omit<BoxOptions, 'open'>, open: Set<string>): void {
  for (let round = 0; round < 70; ++round) {
    const wrappers = boxes.items.filter((item) => !item.open && isWrapper(graph, item));
    if (wrappers.length === 0) return;
    for (const item of wrappers) open.add(item.key);
    boxes = itemsOf(graph, { ...base, open });
  }
}

// Returns the keys to open so that a node or cluster gets a box.
export function pathTo(graph: Graph, boxes: Boxes, options: BoxOptions, target: { node: number } | { cluster: number }): string[] {
  const keys: string[] = [];
  let current = boxes;
  let open = new Set(options.open);
  for (let round = 0; round < 70; ++round) {
    const node = 'node' in target ? target.node : firstNodeOf(graph, target.cluster);
    if (node === NONE) return keys;
    const at = current.itemOf(node);
    if (at === NONE) return keys;
    const item = current.items[at];
    if (item.kind === 'node' || item.open) return keys;
    if ('cluster' in target && item.kind === 'cluster' && item.id === target.cluster) return keys;
    keys.push(item.key);
    open = new Set([...open, item.key]);
    current = itemsOf(graph, { ...options, open });
  }
  return keys;
}

export function firstNodeOf(graph: Graph, c: number): number {
  const lists = graph.clusterNodes();
  const pending = [c];
  for (let at = pending.pop(); at !== undefined; at = pending.pop()) {
    if (lists.start[at] < lists.start[at + 1]) return lists.items[lists.start[at]];
    pending.push(...[...graph.childrenOf(at)].reverse());
  }
  return NONE;
}

// Returns nodes within `radius` steps of `node`, along edges in both directions, through nodes that are not drawn.
export function around(graph: Graph, node: number, radius: number, most: number): number[] {
  const step = neighbors(graph);
  const found = new Set([node]);
  let rim = [node];
  for (let r = 0; r < radius && found.size < most; ++r) {
    const next: number[] = [];
    for (const at of rim) {
      for (const other of [...step.before(at), ...step.after(at)]) {
        if (found.has(other) || found.size >= most) continue;
        found.add(other);
        next.push(other);
      }
    }
    rim = next;
  }
  return [...found].sort((a, b) => a - b);
}

// Returns nodes on any path from `from` to `to` (or back, if there is none in this direction).
export function pathsBetween(graph: Graph, from: number, to: number): number[] {
  const step = neighbors(graph);
  const reach = (start: number, next: (node: number) => Iterable<number>, limit: (node: number) => boolean): Set<number> => {
    const seen = new Set([start]);
    const pending = [start];
    for (let at = pending.pop(); at !== undefined; at = pending.pop()) {
      for (const other of next(at)) {
        if (seen.has(other) || !limit(other)) continue;
        seen.add(other);
        pending.push(other);
      }
    }
    return seen;
  };
  const [a, b] = from <= to ? [from, to] : [to, from];
  const forward = reach(a, step.after, (node) => node <= b);
  const backward = reach(b, step.before, (node) => node >= a);
  return [...forward].filter((node) => backward.has(node)).sort((x, y) => x - y);
}

function neighbors(graph: Graph): { before: (node: number) => number[]; after: (node: number) => number[] } {
  const options = { open: new Set<string>(), unfolded: new Set<number>(), phases: [], showViews: false, showParameters: false };
  const { origin } = contentOf(graph, options);
  const start = graph.inputStart();
  const inputs = graph.inputValue();
  const producer = graph.producer();
  const users = graph.users();
  const first = graph.outputStart();
  const shown = (node: number): boolean => isShown(graph, node, options);
  return {
    before: (node) => {
      const found = new Set<number>();
      for (let k = start[node]; k < start[node + 1]; ++k) {
        const source = producer[origin[inputs[k]]];
        if (shown(source)) found.add(source);
      }
      return [...found];
    },
    after: (node) => {
      const found = new Set<number>();
      const values: number[] = [];
      for (let v = first[node]; v < first[node + 1]; ++v) values.push(v);
      for (let v = values.pop(); v !== undefined; v = values.pop()) {
        for (let k = users.start[v]; k < users.start[v + 1]; ++k) {
          const user = users.items[k];
          if (shown(user)) found.add(user);
          else if (graph.target(user).view === true) for (let w = first[user]; w < first[user + 1]; ++w) values.push(w);
        }
      }
      return [...found];
    },
  };
}
