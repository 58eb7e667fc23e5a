// Bytes alive at every step, by kind: MemoryTimeline of include/shadowgraph/profile/memory.h.
import { NONE, type Graph } from './graph';

export interface Timeline {
  device: string;
  steps: number;
  kinds: string[];
  live: Float64Array[]; // by kind, then step
  total: Float64Array;
  peak: number;
  peakStep: number;
}

// With an index, `device` is a single device; without, all of its type.
export function timelineOf(graph: Graph, device: string): Timeline {
  const steps = graph.nodeCount;
  const kinds = graph.header.storage_kinds;
  const live = kinds.map(() => new Float64Array(steps + 1));
  const { first, last } = graph.lives();
  for (let s = 0; s < graph.storageCount; ++s) {
    if (graph.deviceOfStorage(s) !== device) continue;
    const kind = live[graph.storageKind()[s]];
    kind[first[s]] += graph.storageBytes()[s];
    kind[last[s] + 1] -= graph.storageBytes()[s];
  }
  const temporary = kinds.indexOf('temporary');
  for (const [node, bytes, at] of graph.header.registered_scratch ?? []) {
    if (graph.header.devices[at] !== device) continue;
    live[temporary][node] += bytes;
    live[temporary][node + 1] -= bytes;
  }
  const total = new Float64Array(steps);
  let peakStep = 0;
  for (const kind of live) {
    for (let i = 1; i < steps; ++i) kind[i] += kind[i - 1];
    for (let i = 0; i < steps; ++i) total[i] += kind[i];
  }
  for (let i = 1; i < steps; ++i) if (total[i] > total[peakStep]) peakStep = i;
  return { device, steps, kinds, live, total, peak: steps > 0 ? total[peakStep] : 0, peakStep };
}

// Storages alive at a step, largest first.
export function aliveAt(graph: Graph, device: string, step: number): number[] {
  const { first, last } = graph.lives();
  return largestFirst(graph, device, (s) => first[s] <= step && step <= last[s]);
}

function largestFirst(graph: Graph, device: string, wanted: (storage: number) => boolean): number[] {
  const bytes = graph.storageBytes();
  const found: number[] = [];
  for (let s = 0; s < graph.storageCount; ++s) {
    if (wanted(s) && bytes[s] > 0 && graph.deviceOfStorage(s) === device) found.push(s);
  }
  return found.sort((a, b) => bytes[b] - bytes[a] || a - b);
}

export interface Block {
  storage: number;
  first: number;
  last: number;
  place: number; // bytes from the bottom
  bytes: number;
}

export interface Blocks {
  blocks: Block[]; // largest first
  top: number;
  left: number; // bytes of storages that are not shown
  leftCount: number;
  planned: boolean;
}

const MOST_BLOCKS = 30000;

// Storages as rectangles, at the addresses of the static plan. Without a plan, at the lowest address that is free
// during the lifetime, largest first; small ones are omitted then, since each placement checks all previous ones.
export function blocksOf(graph: Graph, device: string): Blocks {
  const { first, last } = graph.lives();
  const bytes = graph.storageBytes();
  const all = largestFirst(graph, device, () => true);
  const place = graph.storagePlace();
  const planned = place !== undefined && all.every((s) => place[s] >= 0);
  const most = planned ? MOST_BLOCKS : 1500;
  const blocks: Block[] = [];
  let top = 0;
  for (const s of all.slice(0, most)) {
    const block = { storage: s, first: first[s], last: last[s], place: planned ? place[s] : lowest(blocks, first[s], last[s], bytes[s]), bytes: bytes[s] };
    top = Math.max(top, block.place + block.bytes);
    blocks.push(block);
  }
  let left = 0;
  for (const s of all.slice(most)) left += bytes[s];
  return { blocks, top, left, leftCount: Math.max(0, all.length - most), planned };
}

function lowest(blocks: Block[], first: number, last: number, bytes: number): number {
  const beside = blocks.filter((b) => b.first <= last && first <= b.last).sort((a, b) => a.place - b.place);
  let at = 0;
  for (const block of beside) {
    if (block.place >= at + bytes) break;
    at = Math.max(at, block.place + block.bytes);
  }
  return at;
}

// Runs of steps in one phase, for the bands above a chart.
export function phaseRuns(graph: Graph): { phase: number; first: number; last: number }[] {
  const runs: { phase: number; first: number; last: number }[] = [];
  const phase = graph.phase();
  let current = NONE;
  for (let i = 0; i < graph.nodeCount; ++i) {
    if (graph.target(i).builtin === true) continue;
    if (phase[i] !== current) {
      runs.push({ phase: phase[i], first: i, last: i });
      current = phase[i];
    }
    runs[runs.length - 1].last = i;
  }
  return runs;
}

// Returns the steps of the program, without placeholders and outputs.
export function running(graph: Graph): readonly [number, number] {
  const runs = phaseRuns(graph);
  if (runs.length === 0) return [0, graph.nodeCount];
  return [runs[0].first, runs[runs.length - 1].last + 1];
}
