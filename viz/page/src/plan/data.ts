// The data from viz/page_writer.cpp: the plan's JSON, and the actions of each rank.
export interface Plan {
  tensor: number;
  context: number;
  data: number;
  pipeline: number;
  stages_per_rank: number;
  micro_batch: number;
  microbatches: number;
  zero: number;
  schedule: string;
  data_outermost: boolean;
  stages: { begins: string; units: number; recomputed: number; selective: number }[];
}

export interface Point {
  plan: Plan;
  text: string;
  seconds: number;
  bytes: number;
}

export interface Simulated extends Point {
  estimated_seconds: number;
  estimated_bytes: number;
}

export interface Neighbor {
  option: string;
  value: string;
  seconds?: number;
  bytes?: number;
  plan?: string;
  why_not?: string;
}

export interface Rank {
  stages: number[];
  computing_seconds: number;
  waits: Record<string, number>;
  resident_bytes: number;
  peak_bytes: number;
  activations_peak_bytes: number;
  allocated_peak_bytes?: number;
  reserved_peak_bytes?: number;
}

export interface Stage {
  begins: string;
  forward_seconds: number;
  parameter_bytes: number;
  optimizer_state_bytes: number;
  gradient_bytes: number;
  carried_bytes: number;
}

export interface PlanData {
  model: string;
  device_title: string;
  devices: number;
  batch: number;
  sequence: number;
  memory: number;
  bound_seconds: number;
  tokens_per_second_per_device: number;
  model_flops_share: number;
  simulated: Simulated[];
  estimated_plans: Point[];
  neighbors: Neighbor[];
  counted: Record<string, number>;
  notes: string[];
  run: { seconds: number; bubble: number; ranks: Rank[]; stages: Stage[] };
  // By rank: work (0 forward, 1 backward, 2 input gradients, 3 weight gradients), stage, micro-batch, begin and end in
  // millionths of the step, live bytes afterwards; concatenated.
  actions: number[][];
}

export const ACTION = 6;
export const MILLION = 1e6;

export const KNOBS: { name: string; of: (plan: Plan) => string | number }[] = [
  { name: 'tensor', of: (plan) => plan.tensor },
  { name: 'pipeline', of: (plan) => plan.pipeline },
  { name: 'zero', of: (plan) => plan.zero },
  { name: 'micro-batch', of: (plan) => plan.micro_batch },
  { name: 'schedule', of: (plan) => (plan.pipeline === 1 ? 'none' : `${plan.schedule} x ${plan.stages_per_rank}`) },
  { name: 'context', of: (plan) => plan.context },
];

// Values of an option: numbers by size, then strings.
export function valuesOf(points: readonly Point[], knob: number): (string | number)[] {
  const values = new Set(points.map((point) => KNOBS[knob].of(point.plan)));
  return [...values].sort((a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b))));
}

// Returns about `count` ticks at multiples of 1, 2 or 5 times a power of ten.
export function marks(least: number, most: number, count: number): number[] {
  const rough = (most - least) / count;
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough)!;
  const found: number[] = [];
  for (let n = Math.ceil(least / step); n * step <= most * (1 + 1e-9); ++n) found.push(n * step);
  return found;
}
