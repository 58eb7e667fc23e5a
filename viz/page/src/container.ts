// Reads the data written by viz/page_data.cpp (format: README.md): a JSON header, then columns of numbers.
import { inflateSync, unzlibSync } from 'fflate';

export const VERSION = 1;

interface ColumnEntry {
  name: string;
  code: 'u' | 'd';
  count: number;
  at: number;
  bytes: number;
}

export interface TargetInfo {
  name: string;
  schema: string;
  arguments: string[];
  category: number;
  view?: boolean;
  builtin?: boolean;
}

export interface Finding {
  name: string;
  seen: string;
  remedy: string;
  bytes?: number;
  seconds?: number;
}

// The part of docs/profile.schema.json that the page reads.
export interface ProfileJson {
  model?: string;
  device: string;
  mode?: string;
  optimizer?: string;
  capture_seconds?: number;
  nodes: number;
  operators: Record<string, number>;
  parameters: number;
  parameter_bytes: number;
  buffers: number;
  buffer_bytes: number;
  flops?: Record<string, number>;
  elementwise_flops?: Record<string, number>;
  uncovered_operators: { op: string; count: number }[];
  unknown_scratch: { op: string; count: number }[];
  saved_bytes: number;
  saved_activation_bytes: number;
  peak: { bytes: number; node: number; op: string; module?: string; phase: string; by_kind: Record<string, number> };
  steady_peak?: { bytes: number; node: number; op: string; module?: string; phase: string };
  fits?: { fits: boolean; bytes: number; memory_bytes: number; memory: string; text: string };
  device_memory?: Record<string, unknown>;
  out_of_memory?: string;
  time?: { spec: string; seconds: number; flop_utilization?: number; uncovered?: { op: string; count: number }[] };
  memory_layout?: { bytes: number; bound: number; planner: string };
  findings?: Finding[];
}

// Given node values (`--color FILE`): amounts, or kinds with their fills.
export interface Given {
  title: string;
  unit: '' | 'flops' | 'bytes' | 'seconds';
  values: [number, number][]; // node, and its amount or kind
  kinds?: [string, string][];
}

export interface Header {
  version: number;
  title: string;
  profile: ProfileJson;
  metadata: [string, string][];
  libtorch: string;
  shadowgraph: string;
  nodes: number;
  values: number;
  storages: number;
  targets: TargetInfo[];
  texts: string[];
  lists: string[];
  devices: string[];
  dtypes: string[];
  dtype_bytes: number[];
  notes: [number, [string, string][]][];
  guards: number;
  phases: string[];
  storage_kinds: string[];
  categories: [string, string][];
  kernels: string[];
  region_kinds: string[];
  columns: ColumnEntry[];
  registered_scratch?: [number, number, number][];
  different?: [number, string][];
  same?: number;
  given?: Given;
}

// Reads `count` numbers from bytes[at..end).
export function decode(bytes: Uint8Array, at: number, end: number, count: number, delta: boolean, out: { [index: number]: number }): void {
  let last = 0;
  for (let i = 0; i < count; ++i) {
    let byte = bytes[at++];
    let value = byte & 127;
    let unit = 128;
    while (byte >= 128) {
      byte = bytes[at++];
      value += (byte & 127) * unit;
      unit *= 128;
    }
    if (delta) {
      last += value % 2 === 0 ? value / 2 : -(value + 1) / 2;
      out[i] = last;
    } else {
      out[i] = value;
    }
  }
  if (at !== end) throw new Error('a column of the page data is damaged');
}

export class Container {
  readonly header: Header;
  private readonly columns = new Map<string, ColumnEntry>();
  private readonly known = new Map<string, Uint32Array | Float64Array>();
  private readonly base: number;

  constructor(private readonly bytes: Uint8Array) {
    if (bytes.length < 8 || String.fromCharCode(bytes[0], bytes[1], bytes[2], bytes[3]) !== 'SGPD') {
      throw new Error('the page data is not a graph');
    }
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true);
    this.header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))) as Header;
    if (this.header.version !== VERSION) {
      throw new Error(`the page data has version ${String(this.header.version)}; this page reads version ${String(VERSION)}`);
    }
    this.base = 8 + length;
    for (const column of this.header.columns) this.columns.set(column.name, column);
  }

  has(name: string): boolean {
    return this.columns.has(name);
  }

  // Numbers below 2^32. Decoded on first use.
  ints(name: string): Uint32Array {
    return this.decoded(name, Uint32Array);
  }

  // Numbers below 2^53.
  wide(name: string): Float64Array {
    return this.decoded(name, Float64Array);
  }

  private decoded<T extends Uint32Array | Float64Array>(name: string, kind: new (count: number) => T): T {
    const found = this.known.get(name);
    if (found) return found as T;
    const column = this.columns.get(name);
    if (!column) throw new Error(`the page data has no column ${name}`);
    const array = new kind(column.count);
    const at = this.base + column.at;
    decode(this.bytes, at, at + column.bytes, column.count, column.code === 'd', array);
    this.known.set(name, array);
    return array;
  }
}

function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// Uses the browser's decompression if available, which is twice as fast; otherwise fflate.
export async function inflate(bytes: Uint8Array): Promise<Uint8Array> {
  if (typeof DecompressionStream === 'function') {
    try {
      const stream = new Blob([bytes as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream('deflate'));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    } catch {
      // Old browsers have streams without this format.
    }
  }
  return inflateSlowly(bytes);
}

export function inflateSlowly(bytes: Uint8Array): Uint8Array {
  return (bytes[0] & 15) === 8 ? unzlibSync(bytes) : inflateSync(bytes);
}

export async function unpackText(base64: string): Promise<string> {
  return new TextDecoder().decode(await inflate(fromBase64(base64.trim())));
}

export async function unpack(base64: string): Promise<Container> {
  return new Container(await inflate(fromBase64(base64.trim())));
}
