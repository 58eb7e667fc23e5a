// The graph as columns, and data derived from them on demand. Nodes, values and storages have the numbers of the text
// form: n12, %12 and s5 are the same there.
import type { Container, Given, Header, TargetInfo } from './container';
import { bytes, flops, plain, seconds } from './units';

export const NONE = -1;

export function lazy<T>(make: () => T): () => T {
  let known: { value: T } | undefined;
  return () => (known ??= { value: make() }).value;
}

// As lazy(), for a function of an object.
export function once<K extends object, T>(make: (of: K) => T): (of: K) => T {
  const known = new WeakMap<K, { value: T }>();
  return (of) => {
    const found = known.get(of) ?? { value: make(of) };
    known.set(of, found);
    return found.value;
  };
}

// Concatenated lists: list i is items[start[i]] to items[start[i + 1]] (exclusive).
export interface Lists {
  start: Uint32Array;
  items: Uint32Array;
}

function starts(counts: Uint32Array): Uint32Array {
  const start = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; ++i) start[i + 1] = start[i] + counts[i];
  return start;
}

// Groups the pairs (of[k], item(k)) by `of`.
export function grouped(size: number, of: { length: number; [k: number]: number }, item: (k: number) => number): Lists {
  const start = new Uint32Array(size + 1);
  for (let k = 0; k < of.length; ++k) if (of[k] !== NONE) ++start[of[k] + 1];
  for (let i = 0; i < size; ++i) start[i + 1] += start[i];
  const next = start.slice();
  const items = new Uint32Array(start[size]);
  for (let k = 0; k < of.length; ++k) if (of[k] !== NONE) items[next[of[k]]++] = item(k);
  return { start, items };
}

// The children of each item; the first item is the root.
export function childrenBy(parent: Uint32Array): Lists {
  return grouped(parent.length, Int32Array.from(parent).fill(NONE, 0, 1), (k) => k);
}

function minusOne(array: Uint32Array): Int32Array {
  return new Int32Array(array).map((number) => number - 1);
}

export interface Cluster {
  name: string;
  className: string;
  call: number;
  repeats: number;
  span: string;
}

export interface Totals {
  operators: number;
  flops: number;
  bytes: number; // allocated
  moved: number;
  seconds: number;
  saved: number; // allocated here and saved for backward
  given: number;
}

export class Graph {
  readonly header: Header;
  readonly nodeCount: number;
  readonly hasTime: boolean;

  constructor(private readonly data: Container) {
    this.header = data.header;
    this.nodeCount = data.header.nodes;
    this.hasTime = data.has('node.picoseconds');
  }

  // ---- Nodes
  private readonly targets = lazy(() => this.data.ints('node.target'));
  private readonly constantTexts = lazy(() => this.data.ints('node.constants'));
  private readonly sources = lazy(() => this.data.ints('node.source'));
  private readonly names = lazy(() => this.data.ints('node.name'));
  readonly phase = lazy(() => this.data.ints('node.phase'));
  readonly category = lazy(() => this.data.ints('node.category'));
  readonly moduleOf = lazy(() => this.data.ints('node.module'));
  readonly regionOf = lazy(() => this.data.ints('node.region'));
  readonly clusterOf = lazy(() => this.data.ints('node.cluster'));
  readonly matmul = lazy(() => this.data.wide('node.matmul'));
  readonly elementwise = lazy(() => this.data.wide('node.elementwise'));
  readonly transcendental = lazy(() => this.data.wide('node.transcendental'));
  readonly read = lazy(() => this.data.wide('node.read'));
  readonly written = lazy(() => this.data.wide('node.written'));
  readonly scratch = lazy(() => this.data.wide('node.scratch'));
  readonly scratchSource = lazy(() => this.data.ints('node.scratch_source'));
  readonly uncovered = lazy(() => this.data.ints('node.uncovered'));
  readonly different = lazy(() =>
    this.data.has('node.different') ? this.data.ints('node.different') : new Uint32Array(this.nodeCount),
  );
  readonly seconds = lazy(() =>
    this.hasTime ? this.data.wide('node.picoseconds').map((time) => time * 1e-12) : new Float64Array(this.nodeCount),
  );
  // Given amounts by node; empty if kinds or no values were given.
  readonly given = lazy(() => {
    const out = new Float64Array(this.nodeCount);
    if (this.header.given && !this.header.given.kinds) for (const [node, amount] of this.header.given.values) out[node] = amount;
    return out;
  });
  // Given kinds by node; NONE for nodes without one.
  readonly givenKind = lazy(() => {
    const out = new Int32Array(this.nodeCount).fill(NONE);
    if (this.header.given?.kinds) for (const [node, kind] of this.header.given.values) out[node] = kind;
    return out;
  });
  // The given value of a node as text; '' without one.
  givenText(node: number): string {
    const { given } = this.header;
    if (given === undefined) return '';
    if (given.kinds) return given.kinds[this.givenKind()[node]]?.[0] ?? '';
    return this.givenNodes().has(node) ? formatGiven(given)(this.given()[node]) : '';
  }
  private readonly givenNodes = lazy(() => new Set(this.header.given?.values.map(([node]) => node)));
  // Bytes reserved by the caching allocator at every step; undefined if unknown.
  readonly reserved = lazy(() => (this.data.has('node.reserved') ? this.data.wide('node.reserved') : undefined));
  kernel(node: number): string {
    return this.hasTime ? this.header.kernels[this.data.ints('node.kernel')[node]] : '';
  }
  bound(node: number): number {
    return this.hasTime ? this.data.ints('node.bound')[node] : 0;
  }
  // The forward node that a backward node differentiates, or NONE.
  readonly forward = lazy(() => new Int32Array(this.data.ints('node.forward')).map((back, i) => (back === 0 ? NONE : i - back)));
  readonly backwards = lazy(() => grouped(this.nodeCount, this.forward(), (k) => k));
  // The node drawn in this one's place where layers are folded.
  readonly standIn = lazy(() => this.data.ints('node.stand_in').map((back, i) => i - back));

  target(node: number): TargetInfo {
    return this.header.targets[this.targets()[node]];
  }
  targetIndex(node: number): number {
    return this.targets()[node];
  }
  op(node: number): string {
    return this.target(node).name;
  }
  // Returns "add" for "aten::add.Tensor".
  shortOp(node: number): string {
    return shortName(this.op(node));
  }
  placeholder(node: number): string {
    return this.header.texts[this.names()[node]];
  }
  label(node: number): string {
    return this.placeholder(node) || this.shortOp(node);
  }
  source(node: number): string {
    return this.header.texts[this.sources()[node]];
  }
  constants(node: number): string {
    return this.header.texts[this.constantTexts()[node]];
  }
  private readonly noteTexts = lazy(() => new Map(this.header.notes));
  notes(node: number): [string, string][] {
    return this.noteTexts().get(node) ?? [];
  }
  /** A placeholder's shard and full shape: "S(0) of [4096,4096]"; empty if it is not sharded. */
  layout(node: number): string {
    const notes = new Map(this.notes(node));
    const layout = notes.get('layout');
    return layout === undefined ? '' : `${layout} of [${notes.get('whole_sizes') ?? ''}]`;
  }
  isPlaceholder(node: number): boolean {
    return this.target(node).builtin === true && this.placeholder(node) !== '';
  }

  // ---- Values
  readonly outputStart = lazy(() => starts(this.data.ints('node.outputs')));
  readonly inputStart = lazy(() => starts(this.data.ints('node.inputs')));
  readonly savedStart = lazy(() => starts(this.data.ints('node.saved')));
  readonly inputValue = lazy(() => this.valuesBefore('input.value', this.inputStart(), this.outputStart()));
  private readonly places = lazy(() => this.data.ints('input.place'));
  // Position among the schema's arguments; true if the call writes it.
  inputPlace(k: number): number {
    return this.places()[k] >> 1;
  }
  inputWritten(k: number): boolean {
    return (this.places()[k] & 1) === 1;
  }
  readonly savedValue = lazy(() => this.valuesBefore('saved.value', this.savedStart(), this.outputStart().subarray(1)));
  // Decodes values, each by its distance from the value before the node's `end`.
  private valuesBefore(name: string, start: Uint32Array, end: Uint32Array): Uint32Array {
    const out = this.data.ints(name).slice();
    for (let i = 0; i < this.nodeCount; ++i) {
      for (let k = start[i]; k < start[i + 1]; ++k) out[k] = end[i] - 1 - out[k];
    }
    return out;
  }
  savedRole(k: number): string {
    return ['argument', 'result', 'internal'][this.data.ints('saved.role')[k]] ?? '';
  }
  readonly producer = lazy(() => {
    const start = this.outputStart();
    const out = new Uint32Array(start[this.nodeCount]);
    for (let i = 0; i < this.nodeCount; ++i) out.fill(i, start[i], start[i + 1]);
    return out;
  });
  // Nodes that read a value, in program order; repeated if they read it twice.
  readonly users = lazy(() => {
    const start = this.inputStart();
    const node = new Uint32Array(this.inputValue().length);
    for (let i = 0; i < this.nodeCount; ++i) node.fill(i, start[i], start[i + 1]);
    return grouped(this.header.values, this.inputValue(), (k) => node[k]);
  });
  readonly storageOf = lazy(() => minusOne(this.data.ints('value.storage')));
  private readonly valueKind = lazy(() => this.data.ints('value.kind'));
  isTensor(value: number): boolean {
    return this.valueKind()[value] === 0;
  }
  sizes(value: number): string {
    return this.header.lists[this.data.ints('value.sizes')[value]];
  }
  strides(value: number): string {
    const at = this.data.ints('value.strides')[value];
    return at === 0 ? '' : this.header.lists[at - 1];
  }
  offset(value: number): number {
    return this.data.wide('value.offset')[value];
  }
  requiresGrad(value: number): boolean {
    return this.data.ints('value.requires_grad')[value] === 1;
  }
  deviceOfValue(value: number): string {
    return this.header.devices[this.data.ints('value.device')[value]] ?? '';
  }
  // "f32[8,512,768]"
  type(value: number): string {
    const kind = this.data.ints('value.kind')[value];
    if (kind !== 0) return ['tensor', 'int', 'float', 'bool'][kind];
    return `${this.header.dtypes[this.data.ints('value.dtype')[value]]}[${this.sizes(value)}]`;
  }
  private readonly elements = lazy(() =>
    this.header.lists.map((text) => (text === '' ? 1 : text.split(',').reduce((product, n) => product * Number(n), 1))),
  );
  private readonly valueBytes = lazy(() => {
    const kind = this.data.ints('value.kind');
    const dtype = this.data.ints('value.dtype');
    const sizes = this.data.ints('value.sizes');
    const elements = this.elements();
    const each = this.header.dtype_bytes;
    const out = new Float64Array(kind.length);
    for (let v = 0; v < out.length; ++v) out[v] = kind[v] === 0 ? elements[sizes[v]] * (each[dtype[v]] ?? 0) : 0;
    return out;
  });
  bytesOfValue(value: number): number {
    return this.valueBytes()[value];
  }
  // The device of a node's first result or, without results, of its first operand.
  device(node: number): string {
    const start = this.outputStart();
    for (let v = start[node]; v < start[node + 1]; ++v) if (this.isTensor(v)) return this.deviceOfValue(v);
    const inputs = this.inputStart();
    for (let k = inputs[node]; k < inputs[node + 1]; ++k) {
      const v = this.inputValue()[k];
      if (this.isTensor(v)) return this.deviceOfValue(v);
    }
    return '';
  }

  // ---- Storages
  get storageCount(): number {
    return this.header.storages;
  }
  readonly storageBytes = lazy(() => this.data.wide('storage.bytes'));
  readonly storageKind = lazy(() => this.data.ints('storage.kind'));
  readonly storageBorn = lazy(() => minusOne(this.data.ints('storage.born')));
  readonly storageFreed = lazy(() => minusOne(this.data.ints('storage.freed')));
  readonly storageExisted = lazy(() => this.data.ints('storage.existed'));
  readonly storageValue = lazy(() => minusOne(this.data.ints('storage.value')));
  // Offset in the static plan's arena; NONE if it is not in the plan.
  readonly storagePlace = lazy(() =>
    this.data.has('storage.place') ? this.data.wide('storage.place').map((place) => place - 1) : undefined,
  );
  deviceOfStorage(storage: number): string {
    return this.header.devices[this.data.ints('storage.device')[storage]] ?? '';
  }
  // First and last step of a storage's lifetime, inclusive (include/shadowgraph/profile/memory.h).
  readonly lives = lazy(() => {
    const first = new Uint32Array(this.storageCount);
    const last = new Uint32Array(this.storageCount);
    for (let s = 0; s < this.storageCount; ++s) {
      first[s] = this.storageExisted()[s] === 1 ? 0 : Math.max(0, this.storageBorn()[s]);
      const freed = this.storageFreed()[s];
      last[s] = Math.max(first[s], freed === NONE ? this.nodeCount - 1 : freed);
    }
    return { first, last };
  });
  readonly born = lazy(() => grouped(this.nodeCount, this.storageBorn(), (k) => k));
  readonly valuesIn = lazy(() => grouped(this.storageCount, this.storageOf(), (k) => k));
  // The first node that saves a storage for backward, or NONE.
  readonly savedAt = lazy(() => {
    const out = new Int32Array(this.storageCount).fill(NONE);
    const start = this.savedStart();
    const storageOf = this.storageOf();
    for (let i = 0; i < this.nodeCount; ++i) {
      for (let k = start[i]; k < start[i + 1]; ++k) {
        const s = storageOf[this.savedValue()[k]];
        if (s !== NONE && out[s] === NONE) out[s] = i;
      }
    }
    return out;
  });
  // Storages returned by sg::output.
  readonly handedOut = lazy(() => {
    const out = new Uint8Array(this.storageCount);
    const last = this.nodeCount - 1;
    if (last < 0 || this.op(last) !== 'sg::output') return out;
    const start = this.inputStart();
    for (let k = start[last]; k < start[last + 1]; ++k) {
      const s = this.storageOf()[this.inputValue()[k]];
      if (s !== NONE) out[s] = 1;
    }
    return out;
  });
  // Bytes that a node allocates, and the part saved for backward.
  readonly allocated = lazy(() => this.bytesByMaker(() => true));
  readonly kept = lazy(() => this.bytesByMaker((s) => this.savedAt()[s] !== NONE));
  private bytesByMaker(counts: (storage: number) => boolean): Float64Array {
    const out = new Float64Array(this.nodeCount);
    for (let s = 0; s < this.storageCount; ++s) {
      const maker = this.storageBorn()[s];
      if (maker !== NONE && this.storageExisted()[s] === 0 && counts(s)) out[maker] += this.storageBytes()[s];
    }
    return out;
  }
  // Returns the reason that a storage is alive.
  keeper(storage: number): string {
    if (this.storageExisted()[storage] === 1) return this.header.storage_kinds[this.storageKind()[storage]];
    const saved = this.savedAt()[storage];
    if (saved !== NONE) return `autograd, saved at n${String(saved)}`;
    return this.handedOut()[storage] === 1 ? 'output' : '';
  }
  // "conv1 convolution", "fc.weight"
  storageLabel(storage: number): string {
    const maker = this.storageBorn()[storage];
    if (maker === NONE) return 'before the step';
    if (this.isPlaceholder(maker)) return this.placeholder(maker);
    const path = this.modulePath(this.moduleOf()[maker]);
    return path === '' ? this.shortOp(maker) : `${path} ${this.shortOp(maker)}`;
  }

  // ---- Modules (the tree of paths) and composite calls
  get moduleCount(): number {
    return this.moduleParent().length;
  }
  readonly moduleParent = lazy(() => this.data.ints('module.parent'));
  readonly moduleChildren = lazy(() => childrenBy(this.moduleParent()));
  private readonly paths = new Map<number, string>();
  modulePath(module: number): string {
    const known = this.paths.get(module);
    if (known !== undefined) return known;
    const part = this.header.texts[this.data.ints('module.path')[module]];
    const path = part.startsWith('.') && module !== 0 ? this.modulePath(this.moduleParent()[module]) + part : part;
    this.paths.set(module, path);
    return path;
  }
  moduleClass(module: number): string {
    return this.header.texts[this.data.ints('module.class')[module]];
  }
  moduleFigure(
    name:
      | 'calls' | 'peak' | 'saved' | 'output' | 'temporary' | 'parameters' | 'backward' | 'forward_nodes'
      | 'backward_nodes' | 'forward_flops' | 'backward_flops' | 'forward_elementwise' | 'backward_elementwise',
  ): Float64Array {
    return this.data.wide(`module.${name}`);
  }
  // Seconds of the module's nodes and all below it.
  readonly moduleSeconds = lazy(() => {
    const out = new Float64Array(this.moduleCount);
    for (let i = 0; i < this.nodeCount; ++i) out[this.moduleOf()[i]] += this.seconds()[i];
    for (let m = out.length; m-- > 1; ) out[this.moduleParent()[m]] += out[m];
    return out;
  });
  readonly moduleByPath = lazy(() => new Map(Array.from({ length: this.moduleCount }, (_, m) => [this.modulePath(m), m])));
  // Module classes, and for every node that of the innermost module with a class; NONE outside.
  readonly classes = lazy(() => {
    const names: string[] = [];
    const numbers = new Map<string, number>();
    const ofModule = new Int32Array(this.moduleCount).fill(NONE);
    for (let m = 0; m < this.moduleCount; ++m) {
      const name = this.moduleClass(m);
      if (name === '') {
        ofModule[m] = m === 0 ? NONE : ofModule[this.moduleParent()[m]];
        continue;
      }
      if (!numbers.has(name)) {
        numbers.set(name, names.length);
        names.push(name);
      }
      ofModule[m] = numbers.get(name)!;
    }
    return { names, of: (node: number) => ofModule[this.moduleOf()[node]] };
  });
  isInModule(module: number, ancestor: number): boolean {
    for (let m = module; ; m = this.moduleParent()[m]) {
      if (m === ancestor) return true;
      if (m === 0) return false;
    }
  }
  // The calls of composite operators around a node, outermost first: "conv2d".
  composites(node: number): string[] {
    return this.callsFrom(this.regionOf()[node], false).map((call) => call.name);
  }
  // Those inside the innermost module around a region.
  callsAround(region: number): { region: number; name: string }[] {
    return this.callsFrom(region, true);
  }
  private callsFrom(region: number, untilModule: boolean): { region: number; name: string }[] {
    const kind = this.data.ints('region.kind');
    const parent = this.data.ints('region.parent');
    const name = this.data.ints('region.name');
    const found: { region: number; name: string }[] = [];
    for (let depth = 0; depth < 64; ++depth) {
      const word = this.header.region_kinds[kind[region]];
      if (untilModule && word === 'module') break;
      if (word === 'composite' || word === 'checkpoint' || word === 'scope') {
        found.unshift({ region, name: this.header.texts[name[region]] });
      }
      if (parent[region] === 0) break;
      region = parent[region] - 1;
    }
    return found;
  }

  // ---- Clusters (module calls, phase by phase)
  get clusterCount(): number {
    return this.clusterParent().length;
  }
  readonly clusterParent = lazy(() => this.data.ints('cluster.parent'));
  readonly clusterStandsFor = lazy(() => minusOne(this.data.ints('cluster.stands_for')));
  cluster(c: number): Cluster {
    const texts = this.header.texts;
    return {
      name: texts[this.data.ints('cluster.name')[c]],
      className: texts[this.data.ints('cluster.class')[c]],
      call: this.data.ints('cluster.call')[c],
      repeats: this.data.ints('cluster.repeats')[c],
      span: texts[this.data.ints('cluster.span')[c]],
    };
  }
  private readonly phaseClusters = lazy(() => this.data.ints('cluster.phase'));
  isPhaseCluster(c: number): boolean {
    return this.phaseClusters()[c] === 1;
  }
  readonly clusterRepeats = lazy(() => this.data.ints('cluster.repeats'));
  // The phase that a cluster's nodes run in.
  readonly clusterPhase = lazy(() => {
    const out = new Uint32Array(this.clusterCount);
    for (let c = 1; c < out.length; ++c) {
      out[c] = this.isPhaseCluster(c) ? Math.max(0, this.header.phases.indexOf(this.cluster(c).name)) : out[this.clusterParent()[c]];
    }
    return out;
  });
  readonly clusterChildren = lazy(() => childrenBy(this.clusterParent()));
  readonly clusterNodes = lazy(() => grouped(this.clusterCount, this.clusterOf(), (k) => k));
  clusterPath(c: number): string {
    const names: string[] = [];
    for (let at = c; at !== 0 && !this.isPhaseCluster(at); at = this.clusterParent()[at]) names.unshift(this.cluster(at).name);
    return names.join('.');
  }
  readonly clusterModule = lazy(() => {
    const out = new Int32Array(this.clusterCount).fill(NONE);
    for (let c = 1; c < out.length; ++c) out[c] = this.moduleByPath().get(this.clusterPath(c)) ?? NONE;
    return out;
  });
  // Sums over a cluster and all clusters below it.
  readonly clusterTotals = lazy(() => this.totalsBy(this.clusterOf(), this.clusterParent()));
  totalsBy(clusterOf: Uint32Array, parent: Uint32Array): Record<keyof Totals, Float64Array> {
    const size = parent.length;
    const make = (): Float64Array => new Float64Array(size);
    const totals = { operators: make(), flops: make(), bytes: make(), moved: make(), seconds: make(), saved: make(), given: make() };
    const targets = this.targets();
    const builtin = Uint8Array.from(this.header.targets, (t) => (t.builtin === true ? 1 : 0));
    const columns = {
      flops: this.matmul(), bytes: this.allocated(), seconds: this.seconds(), saved: this.kept(), read: this.read(), written: this.written(), given: this.given(),
    };
    for (let i = 0; i < this.nodeCount; ++i) {
      const c = clusterOf[i];
      if (builtin[targets[i]] === 0) ++totals.operators[c];
      totals.flops[c] += columns.flops[i];
      totals.bytes[c] += columns.bytes[i];
      totals.moved[c] += columns.read[i] + columns.written[i];
      totals.seconds[c] += columns.seconds[i];
      totals.saved[c] += columns.saved[i];
      totals.given[c] += columns.given[i];
    }
    for (let c = size; c-- > 1; ) for (const column of Object.values(totals)) column[parent[c]] += column[c];
    return totals;
  }
  totalsOf(c: number): Totals {
    const t = this.clusterTotals();
    return {
      operators: t.operators[c], flops: t.flops[c], bytes: t.bytes[c], moved: t.moved[c], seconds: t.seconds[c], saved: t.saved[c], given: t.given[c],
    };
  }
  // A cluster and the identical ones folded into it.
  copies(c: number): number[] {
    return [c, ...this.childrenOf(this.clusterParent()[c]).filter((sibling) => this.clusterStandsFor()[sibling] === c)];
  }
  childrenOf(c: number): Uint32Array {
    const lists = this.clusterChildren();
    return lists.items.subarray(lists.start[c], lists.start[c + 1]);
  }
}

export function formatGiven(given: Given): (value: number) => string {
  return given.unit === 'flops' ? flops : given.unit === 'bytes' ? bytes : given.unit === 'seconds' ? seconds : plain;
}

export function shortName(op: string): string {
  const name = op.slice(op.indexOf('::') + 2);
  const dot = name.indexOf('.');
  return dot > 0 ? name.slice(0, dot) : name;
}
