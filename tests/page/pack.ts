// Small graphs for the tests, in the format of viz/page_data.cpp.
import { Container, type Header } from '../../viz/page/src/container';
import { Graph } from '../../viz/page/src/graph';

function varint(value: number, out: number[]): void {
  while (value >= 128) {
    out.push((value % 128) + 128);
    value = Math.floor(value / 128);
  }
  out.push(value);
}

export function pack(header: Partial<Header>, columns: Record<string, number[]>): Uint8Array {
  const body: number[] = [];
  const entries = Object.entries(columns).map(([name, numbers]) => {
    const at = body.length;
    for (const number of numbers) varint(number, body);
    return { name, code: 'u' as const, count: numbers.length, at, bytes: body.length - at };
  });
  const head = new TextEncoder().encode(JSON.stringify({ version: 1, ...header, columns: entries }));
  const out = new Uint8Array(8 + head.length + body.length);
  out.set([83, 71, 80, 68]);
  new DataView(out.buffer).setUint32(4, head.length, true);
  out.set(head, 8);
  out.set(body, 8 + head.length);
  return out;
}

export interface TestNode {
  op: string;
  name?: string;
  inputs?: number[]; // values
  written?: boolean; // its first input
  makes?: number[]; // storages of its results
  saved?: number[]; // values
  phase?: number;
  cluster?: number;
  standIn?: number;
  forward?: number;
  flops?: number;
  region?: number;
  notes?: [string, string][];
}
export interface TestCluster { parent: number; name: string; phase?: boolean; standsFor?: number; repeats?: number; className?: string }
export interface TestRegion { kind: string; parent: number; name: string }
export interface TestStorage { bytes: number; kind: number; freed?: number; existed?: boolean }

const KINDS = ['parameter', 'buffer', 'input', 'constant', 'activation', 'gradient', 'optimizer_state', 'temporary'];

// Nodes in order; all tensors are f32[bytes / 4] on the CPU.
export function graphOf(nodes: TestNode[], clusters: TestCluster[], storages: TestStorage[], regions: TestRegion[] = []): Graph {
  const texts = [''];
  const text = (t: string): number => {
    if (!texts.includes(t)) texts.push(t);
    return texts.indexOf(t);
  };
  const ops = [...new Set(nodes.map((n) => n.op))];
  const c: Record<string, number[]> = {};
  const put = (name: string, value: number): void => {
    (c[name] ??= []).push(value);
  };
  for (const name of ['input.value', 'input.place', 'saved.value', 'saved.role']) c[name] = [];
  let next = 0;
  const valueStorage: number[] = [];
  const born = storages.map(() => 0);
  nodes.forEach((n, i) => {
    put('node.target', ops.indexOf(n.op));
    put('node.phase', n.phase ?? 0);
    put('node.category', 0);
    put('node.module', 0);
    put('node.region', n.region ?? 0);
    put('node.forward', n.forward === undefined ? 0 : i - n.forward);
    put('node.source', 0);
    put('node.name', text(n.name ?? ''));
    put('node.constants', 0);
    put('node.cluster', n.cluster ?? 0);
    put('node.stand_in', n.standIn === undefined ? 0 : i - n.standIn);
    for (const key of ['elementwise', 'transcendental', 'uncovered', 'read', 'written', 'scratch', 'scratch_source']) put(`node.${key}`, 0);
    put('node.matmul', n.flops ?? 0);
    put('node.inputs', n.inputs?.length ?? 0);
    n.inputs?.forEach((v, k) => {
      put('input.value', next - 1 - v);
      put('input.place', k * 2 + (n.written && k === 0 ? 1 : 0));
    });
    put('node.outputs', n.makes?.length ?? 0);
    for (const s of n.makes ?? []) {
      if (!valueStorage.includes(s)) born[s] = i + 1;
      valueStorage.push(s);
      ++next;
    }
    put('node.saved', n.saved?.length ?? 0);
    for (const v of n.saved ?? []) {
      put('saved.value', next - 1 - v);
      put('saved.role', 1);
    }
  });
  const lists = [''];
  valueStorage.forEach((s) => {
    const size = String(storages[s].bytes / 4);
    if (!lists.includes(size)) lists.push(size);
    put('value.kind', 0);
    put('value.dtype', 0);
    put('value.sizes', lists.indexOf(size));
    put('value.strides', 0);
    put('value.offset', 0);
    put('value.storage', s + 1);
    put('value.requires_grad', 0);
    put('value.device', 0);
  });
  storages.forEach((s, i) => {
    put('storage.bytes', s.bytes);
    put('storage.kind', s.kind);
    put('storage.device', 0);
    put('storage.born', born[i]);
    put('storage.freed', s.freed === undefined ? 0 : s.freed + 1);
    put('storage.value', valueStorage.indexOf(i) + 1);
    put('storage.existed', s.existed ? 1 : 0);
  });
  clusters.forEach((cluster) => {
    put('cluster.parent', cluster.parent);
    put('cluster.name', text(cluster.name));
    put('cluster.class', text(cluster.className ?? ''));
    put('cluster.call', 0);
    put('cluster.phase', cluster.phase ? 1 : 0);
    put('cluster.stands_for', cluster.standsFor === undefined ? 0 : cluster.standsFor + 1);
    put('cluster.repeats', cluster.repeats ?? 1);
    put('cluster.span', text((cluster.repeats ?? 1) > 1 ? '{0..1}' : ''));
  });
  put('module.parent', 0);
  put('module.path', 0);
  put('module.class', 0);
  const regionKinds = ['root', 'module', 'composite'];
  [{ kind: 'root', parent: -1, name: '' }, ...regions].forEach((region) => {
    put('region.kind', regionKinds.indexOf(region.kind));
    put('region.parent', region.parent + 1);
    put('region.name', text(region.name));
  });
  const header = {
    title: 'test', nodes: nodes.length, values: next, storages: storages.length, texts, lists,
    targets: ops.map((op) => ({
      name: op, schema: `${op}()`, arguments: ['self', 'other'], category: 0,
      ...(op.startsWith('sg::') ? { builtin: true } : {}), ...(op === 'aten::view' ? { view: true } : {}),
    })),
    devices: ['cpu'], dtypes: ['f32'], dtype_bytes: [4], phases: ['forward', 'backward'], storage_kinds: KINDS,
    categories: [['matmul', '#8fb8e8']] as [string, string][], kernels: [], region_kinds: regionKinds, profile: { device: 'cpu' },
    notes: nodes.flatMap((n, i) => (n.notes === undefined ? [] : [[i, n.notes] as [number, [string, string][]]])),
  };
  return new Graph(new Container(pack(header as unknown as Partial<Header>, c)));
}

// x -> a.0: mm, view, relu_ -> a.1, the same again -> add with x -> output; then backward of the first mm.
export function small(): Graph {
  const layer = (cluster: number, x: number, w: number, mm: number, first: number | undefined): TestNode[] => [
    { op: 'aten::mm', inputs: [x, w], makes: [mm], cluster, flops: 100, saved: [x], ...(first === undefined ? {} : { standIn: first }) },
    { op: 'aten::view', inputs: [], makes: [mm], cluster, ...(first === undefined ? {} : { standIn: first + 1 }) },
    { op: 'aten::relu_', inputs: [], written: true, makes: [mm], cluster, ...(first === undefined ? {} : { standIn: first + 2 }) },
  ];
  // Values: 0 x, 1 w; layer 0: 2 mm, 3 view, 4 relu_; layer 1: 5, 6, 7; 8 add; 9 gradient
  const a = layer(2, 0, 1, 2, undefined);
  a[1].inputs = [2];
  a[2].inputs = [3];
  const b = layer(3, 4, 1, 3, 2);
  b[1].inputs = [5];
  b[2].inputs = [6];
  return graphOf(
    [
      { op: 'sg::input', name: 'x', makes: [0] },
      { op: 'sg::parameter', name: 'w', makes: [1] },
      ...a,
      ...b,
      { op: 'aten::add', inputs: [7, 0], makes: [4] },
      { op: 'aten::mm', inputs: [8, 1], makes: [5], phase: 1, cluster: 5, forward: 2 },
      { op: 'sg::output', inputs: [8] },
    ],
    [
      { parent: 0, name: '' },
      { parent: 0, name: 'a' },
      { parent: 1, name: '0', className: 'Layer', repeats: 2 },
      { parent: 1, name: '1', className: 'Layer', standsFor: 2 },
      { parent: 0, name: 'backward', phase: true },
      { parent: 4, name: 'a' },
    ],
    [
      { bytes: 400, kind: 2, existed: true },
      { bytes: 800, kind: 0, existed: true },
      { bytes: 1600, kind: 4, freed: 5 },
      { bytes: 1600, kind: 7, freed: 8 },
      { bytes: 40, kind: 7 },
      { bytes: 80, kind: 5, freed: 9 },
    ],
  );
}
