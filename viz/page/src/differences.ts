// Differences of two graphs: totals, live bytes at the peak, modules, operators.
import { mainTimeline } from './app_context';
import type { ProfileJson } from './container';
import { NONE, type Graph } from './graph';
import { aliveAt } from './memory';
import * as units from './units';

export interface Difference {
  name: string;
  before: number | undefined; // undefined: unknown
  after: number | undefined;
  format: (value: number) => string;
  selection?: { before: number; after: number }; // of modules
}

export type ModuleFigure = 'saved' | 'parameters' | 'forward_flops' | 'backward_flops' | 'temporary' | 'backward' | 'peak';

interface ModuleJson {
  path?: string;
  children?: ModuleJson[];
  flops?: { forward?: number; backward?: number };
  [figure: string]: unknown;
}
export interface SavedProfile extends ProfileJson {
  title: string;
  modules?: ModuleJson;
}

// One side of a comparison: a graph of this page, or a saved profile (profile.json).
export interface Side {
  title: string;
  profile: ProfileJson;
  graph: Graph | undefined;
  kinds: () => Map<string, number>; // bytes at the peak
  modules: (figure: ModuleFigure) => Map<string, number>; // by path
}

export function sideOfGraph(graph: Graph): Side {
  return {
    title: graph.header.title,
    profile: graph.header.profile,
    graph,
    kinds: () => {
      const timeline = mainTimeline(graph);
      return new Map(timeline.kinds.map((kind, k) => [kind.replaceAll('_', ' '), timeline.steps > 0 ? timeline.live[k][timeline.peakStep] : 0]));
    },
    modules: (figure) => {
      const column = graph.moduleFigure(figure);
      const found = new Map<string, number>();
      for (let m = 1; m < graph.moduleCount; ++m) found.set(graph.modulePath(m), column[m]);
      return found;
    },
  };
}

const KEYS: Record<ModuleFigure, string> = {
  saved: 'saved_activation_bytes', parameters: 'parameter_bytes', temporary: 'temporary_bytes', backward: 'backward_bytes', peak: 'peak_bytes',
  forward_flops: 'forward', backward_flops: 'backward',
};

export function sideOfProfile(profile: SavedProfile): Side {
  return {
    title: profile.title,
    profile,
    graph: undefined,
    kinds: () => new Map(Object.entries(profile.peak.by_kind).map(([kind, bytes]) => [kind.replaceAll('_', ' '), bytes])),
    modules: (figure) => {
      const found = new Map<string, number>();
      const pending = profile.modules ? [profile.modules] : [];
      for (let module = pending.pop(); module; module = pending.pop()) {
        const value = figure.endsWith('flops') ? (module.flops as Record<string, unknown> | undefined)?.[KEYS[figure]] : module[KEYS[figure]];
        if (module.path) found.set(module.path, (found.get(module.path) ?? 0) + Number(value ?? 0));
        pending.push(...(module.children ?? []));
      }
      return found;
    },
  };
}

export function figures(before: ProfileJson, after: ProfileJson): Difference[] {
  const total = (values: Record<string, number> | undefined): number | undefined => values && Object.values(values).reduce((x, y) => x + y, 0);
  const memory = (profile: ProfileJson, key: string): number | undefined => (profile.device_memory as Record<string, number> | undefined)?.[key];
  const row = (name: string, format: (value: number) => string, of: (profile: ProfileJson) => number | undefined): Difference => ({ name, before: of(before), after: of(after), format });
  const rows: Difference[] = [
    row('operators', units.exact, (p) => p.nodes),
    row('peak memory', units.bytes, (p) => p.peak.bytes),
    row('saved for backward', units.bytes, (p) => p.saved_bytes),
    row('reserved by the allocator', units.bytes, (p) => memory(p, 'reserved_peak_bytes')),
    row('static plan', units.bytes, (p) => p.memory_layout?.bytes),
    row('parameters', units.count, (p) => p.parameters),
    row('matmul FLOPs', units.flops, (p) => total(p.flops)),
    row('elementwise FLOPs', units.flops, (p) => total(p.elementwise_flops)),
    row('estimated time', units.seconds, (p) => p.time?.seconds),
  ];
  return rows.filter((r) => (r.before ?? 0) !== 0 || (r.after ?? 0) !== 0);
}

// Live bytes at the peak by kind and producer, largest change first.
export function atPeak(before: Graph, after: Graph): Difference[] {
  const sums = (graph: Graph): Map<string, number> => {
    const timeline = mainTimeline(graph);
    const found = new Map<string, number>();
    for (const s of aliveAt(graph, timeline.device, timeline.peakStep)) {
      const name = `${graph.header.storage_kinds[graph.storageKind()[s]].replaceAll('_', ' ')} ${graph.storageLabel(s)}`;
      found.set(name, (found.get(name) ?? 0) + graph.storageBytes()[s]);
    }
    return found;
  };
  return changes(sums(before), sums(after), units.bytes);
}

export function kindsAtPeak(before: Side, after: Side): Difference[] {
  return changes(before.kinds(), after.kinds(), units.bytes);
}

export function operators(before: ProfileJson, after: ProfileJson): Difference[] {
  return changes(new Map(Object.entries(before.operators)), new Map(Object.entries(after.operators)), units.exact);
}

export function modules(before: Side, after: Side, figure: ModuleFigure): Difference[] {
  const format = figure.endsWith('flops') ? units.flops : units.bytes;
  return changes(before.modules(figure), after.modules(figure), format).map((row) => ({
    ...row,
    selection: { before: before.graph?.moduleByPath().get(row.name) ?? NONE, after: after.graph?.moduleByPath().get(row.name) ?? NONE },
  }));
}

function changes(before: Map<string, number>, after: Map<string, number>, format: (value: number) => string): Difference[] {
  const rows: (Difference & { before: number; after: number })[] = [];
  for (const name of new Set([...before.keys(), ...after.keys()])) {
    const a = before.get(name) ?? 0;
    const b = after.get(name) ?? 0;
    if (a !== b) rows.push({ name, before: a, after: b, format });
  }
  return rows.sort((x, y) => Math.abs(y.after - y.before) - Math.abs(x.after - x.before) || (x.name < y.name ? -1 : 1));
}

export function changedNodes(graph: Graph): { single: number[]; changed: number[] } {
  const single: number[] = [];
  const changed: number[] = [];
  graph.different().forEach((state, node) => {
    if (state === 1) single.push(node);
    if (state === 2) changed.push(node);
  });
  return { single, changed };
}
