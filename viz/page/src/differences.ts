// What differs between two graphs: figures, what is alive at the peak, modules, operators.
import { mainTimeline } from './app_context';
import { NONE, type Graph } from './graph';
import { aliveAt } from './memory';
import * as units from './units';

export interface Difference {
  name: string;
  before: number;
  after: number;
  format: (value: number) => string;
  selection?: { before: number; after: number }; // of modules
}

export function figures(before: Graph, after: Graph): Difference[] {
  const a = before.header.profile;
  const b = after.header.profile;
  const total = (values: Record<string, number> | undefined): number => Object.values(values ?? {}).reduce((x, y) => x + y, 0);
  const memory = (profile: typeof a, key: string): number => Number((profile.device_memory as Record<string, number> | undefined)?.[key] ?? 0);
  const rows: Difference[] = [
    { name: 'operators', before: before.nodeCount, after: after.nodeCount, format: units.exact },
    { name: 'peak memory', before: a.peak.bytes, after: b.peak.bytes, format: units.bytes },
    { name: 'kept for backward', before: a.saved_bytes, after: b.saved_bytes, format: units.bytes },
    { name: 'reserved by the allocator', before: memory(a, 'reserved_peak_bytes'), after: memory(b, 'reserved_peak_bytes'), format: units.bytes },
    { name: 'static plan', before: a.static_plan?.bytes ?? 0, after: b.static_plan?.bytes ?? 0, format: units.bytes },
    { name: 'parameters', before: a.parameters, after: b.parameters, format: units.count },
    { name: 'FLOPs of products', before: total(a.flops), after: total(b.flops), format: units.flops },
    { name: 'elementwise FLOPs', before: total(a.elementwise_flops), after: total(b.elementwise_flops), format: units.flops },
    { name: 'time, estimated', before: a.time?.seconds ?? 0, after: b.time?.seconds ?? 0, format: units.seconds },
  ];
  return rows.filter((row) => row.before !== 0 || row.after !== 0);
}

// Bytes alive at the peak by kind and maker, those that moved most first.
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

export function kindsAtPeak(before: Graph, after: Graph): Difference[] {
  const sums = (graph: Graph): Map<string, number> => {
    const timeline = mainTimeline(graph);
    return new Map(timeline.kinds.map((kind, k) => [kind.replaceAll('_', ' '), timeline.steps > 0 ? timeline.live[k][timeline.peakStep] : 0]));
  };
  return changes(sums(before), sums(after), units.bytes);
}

export function operators(before: Graph, after: Graph): Difference[] {
  const sums = (graph: Graph): Map<string, number> => new Map(Object.entries(graph.header.profile.operators));
  return changes(sums(before), sums(after), units.exact);
}

export type ModuleFigure = 'saved' | 'parameters' | 'forward_flops' | 'backward_flops' | 'temporary' | 'backward' | 'peak';

export function modules(before: Graph, after: Graph, figure: ModuleFigure): Difference[] {
  const sums = (graph: Graph): Map<string, number> => {
    const column = graph.moduleFigure(figure);
    const found = new Map<string, number>();
    for (let m = 1; m < graph.moduleCount; ++m) found.set(graph.modulePath(m), column[m]);
    return found;
  };
  const format = figure.endsWith('flops') ? units.flops : units.bytes;
  return changes(sums(before), sums(after), format).map((row) => ({
    ...row,
    selection: { before: before.moduleByPath().get(row.name) ?? NONE, after: after.moduleByPath().get(row.name) ?? NONE },
  }));
}

function changes(before: Map<string, number>, after: Map<string, number>, format: (value: number) => string): Difference[] {
  const rows: Difference[] = [];
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
