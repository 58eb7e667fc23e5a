// Colors of boxes: each mode is a function from a box to a value, with a scale and a legend. The palettes are
// color-blind safe: Okabe and Ito's for kinds, cividis for amounts.
import { EdgeKind, type Item } from './boxes';
import { formatGiven, NONE, once, type Graph } from './graph';
import { bytes, flops, seconds } from './units';

export const MODES = [
  ['op', 'operator'],
  ['flops', 'FLOPs'],
  ['moved', 'bytes moved'],
  ['bytes', 'bytes allocated'],
  ['saved', 'bytes saved for backward'],
  ['time', 'time'],
  ['phase', 'phase'],
  ['device', 'device'],
  ['module', 'module class'],
  ['difference', 'difference'],
  ['given', 'given values'],
] as const;
export type Mode = (typeof MODES)[number][0];

export const OKABE_ITO = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#f0e442', '#8c8c8c'];

// The same, lightened for many kinds, then grayer variants; as in viz/node_colors.cpp.
const LIGHT = [
  '#8ec7ea', '#f6c667', '#7fd1b9', '#e3b5cf', '#f4ee9c', '#eda07a', '#9fb8e0', '#cfcfcf', '#b7dbe8', '#e8d5a9', '#b5d9cd', '#dcc9d6', '#e6e3c3', '#dfbfae',
];

const KIND_COLORS: Record<string, string> = {
  parameter: '#0072b2', buffer: '#56b4e9', input: '#cc79a7', constant: '#8c8c8c',
  activation: '#e69f00', gradient: '#009e73', optimizer_state: '#f0e442', temporary: '#d55e00',
};
export function kindColor(kind: string): string {
  return KIND_COLORS[kind] ?? '#8c8c8c';
}

const CIVIDIS = ['#00224e', '#123570', '#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#e1cc55', '#fee838'];

export function amountColor(share: number): string {
  const at = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const low = Math.floor(at);
  const part = at - low;
  const [a, b] = [CIVIDIS[low], CIVIDIS[Math.min(low + 1, CIVIDIS.length - 1)]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return `rgb(${a.map((channel, i) => Math.round(channel + (b[i] - channel) * part)).join(',')})`;
}

export interface Paint {
  fill: string;
  dark: boolean; // light text is readable on it
}

export interface Legend {
  entries?: { label: string; fill: string }[];
  scale?: { low: string; high: string };
  note?: string;
}

export interface Coloring {
  paint: (item: Item) => Paint | undefined; // undefined: the box's default
  legend: Legend;
}

// Returns the value of a box; for repeated layers, the mean.
function amount(graph: Graph, mode: Mode, item: Item): number {
  const add = (node: number, cluster: number): number => {
    switch (mode) {
      case 'flops': return cluster === NONE ? graph.matmul()[node] : graph.totalsOf(cluster).flops;
      case 'moved': return cluster === NONE ? graph.read()[node] + graph.written()[node] : graph.totalsOf(cluster).moved;
      case 'bytes': return cluster === NONE ? graph.allocated()[node] : graph.totalsOf(cluster).bytes;
      case 'saved': return cluster === NONE ? graph.kept()[node] : graph.totalsOf(cluster).saved;
      case 'given': return cluster === NONE ? graph.given()[node] : graph.totalsOf(cluster).given;
      case 'time': return cluster === NONE ? graph.seconds()[node] : graph.totalsOf(cluster).seconds;
      default: return 0;
    }
  };
  if (item.kind === 'node') return add(item.id, NONE);
  if (item.kind !== 'cluster') return 0;
  if (graph.clusterRepeats()[item.id] <= 1) return add(NONE, item.id);
  const copies = graph.copies(item.id);
  return copies.reduce((sum, copy) => sum + add(NONE, copy), 0) / copies.length;
}

export function formatOf(graph: Graph, mode: Mode): (value: number) => string {
  if (mode === 'given' && graph.header.given) return formatGiven(graph.header.given);
  return mode === 'flops' ? flops : mode === 'time' ? seconds : bytes;
}

// Returns the kind of a node, or of a closed module.
function kindOf(graph: Graph, mode: Mode, item: Item): number | undefined {
  if (item.kind === 'node') {
    const node = item.id;
    if (mode === 'op') return graph.category()[node];
    if (mode === 'phase') return graph.phase()[node];
    if (mode === 'difference') return graph.different()[node];
    if (mode === 'given') {
      const own = graph.givenKind()[node];
      return own === NONE ? undefined : own;
    }
    if (mode === 'module') {
      const own = graph.classes().of(node);
      return own === NONE ? graph.classes().names.length : own;
    }
    if (mode === 'device') return Math.max(0, graph.header.devices.indexOf(graph.device(node)));
    return undefined;
  }
  if (item.kind === 'cluster' && mode === 'phase') return graph.clusterPhase()[item.id];
  // A closed module has its class as kind.
  if (item.kind === 'cluster' && mode === 'module') {
    const at = graph.classes().names.indexOf(graph.cluster(item.id).className);
    return at < 0 ? undefined : at;
  }
  if (item.kind === 'cluster' && mode === 'difference') return differencesOf(graph)[item.id];
  return undefined;
}

// For each cluster: 1 if all its nodes were added (or removed), 2 if some differ.
const differencesOf = once((graph: Graph): Uint8Array => {
  const size = graph.clusterCount;
  const counts = [0, 1, 2].map(() => new Uint32Array(size)); // nodes by difference
  for (let i = 0; i < graph.nodeCount; ++i) ++counts[graph.different()[i]][graph.clusterOf()[i]];
  for (let c = size; c-- > 1; ) for (const count of counts) count[graph.clusterParent()[c]] += count[c];
  return new Uint8Array(size).map((_, c) => (counts[1][c] + counts[2][c] === 0 ? 0 : counts[0][c] + counts[2][c] === 0 ? 1 : 2));
});

export function coloring(graph: Graph, mode: Mode, items: readonly Item[], side: 'before' | 'after'): Coloring {
  const shown = items.filter((item) => item.kind === 'node' || (item.kind === 'cluster' && !item.open));
  const givenKinds = mode === 'given' ? graph.header.given?.kinds : undefined;
  if (givenKinds || mode === 'op' || mode === 'phase' || mode === 'device' || mode === 'module' || mode === 'difference') {
    const palette: [string, string][] =
      givenKinds ? givenKinds
      : mode === 'op' ? graph.header.categories
      : mode === 'phase' ? graph.header.phases.map((name, i) => [name, ['#a9cce3', '#f5cba7', '#a9dfbf', '#d7bde2', '#f9e79f'][i % 5]])
      : mode === 'module' ? [...graph.classes().names, 'outside all modules'].map((name, i, all) => [name, i === all.length - 1 ? '#e6e6e6' : LIGHT[i % LIGHT.length]])
      : mode === 'device' ? graph.header.devices.map((name, i) => [name, OKABE_ITO[(i + 4) % OKABE_ITO.length]])
      : [['same', '#e6e6e6'], [side === 'before' ? 'removed' : 'added', side === 'before' ? '#d55e00' : '#009e73'], ['changed', '#e69f00']];
    const used = new Set<number>();
    for (const item of shown) {
      const kind = kindOf(graph, mode, item);
      if (kind !== undefined) used.add(kind);
    }
    return {
      paint: (item) => {
        const kind = kindOf(graph, mode, item);
        if (kind === undefined) return undefined;
        return { fill: palette[kind]?.[1] ?? '#e6e6e6', dark: mode === 'difference' && kind === 1 };
      },
      legend: { entries: palette.map(([label, fill], i) => ({ label, fill, i })).filter((entry) => used.has(entry.i)) },
    };
  }
  const values = new Map(shown.map((item) => [item.index, amount(graph, mode, item)]));
  let low = Infinity;
  let high = 0;
  for (const value of values.values()) {
    if (value > 0) low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const format = formatOf(graph, mode);
  if (high === 0) {
    const note = mode === 'given' && !graph.header.given ? 'no values given; add them with --color FILE' : mode === 'time' && !graph.hasTime ? 'no times; choose a device with --spec' : 'all values are 0';
    return { paint: () => ({ fill: '#e6e6e6', dark: false }), legend: { note } };
  }
  const span = Math.log(high / low) || 1;
  return {
    paint: (item) => {
      const value = values.get(item.index);
      if (value === undefined) return undefined;
      if (value <= 0) return { fill: '#e6e6e6', dark: false };
      const share = high === low ? 1 : Math.log(value / low) / span;
      return { fill: amountColor(share), dark: share < 0.52 };
    },
    legend: { scale: { low: format(low), high: format(high) }, note: 'logarithmic; gray: 0' },
  };
}

export const EDGE_NAMES: Record<EdgeKind, string> = {
  [EdgeKind.data]: 'tensor',
  [EdgeKind.alias]: 'alias (the same storage)',
  [EdgeKind.mutation]: 'written in place',
  [EdgeKind.nextCopy]: 'to the next repeated layer',
};
