// Memory: bytes alive over the step, stacked by kind, and each storage as a rectangle over its lifetime.
import type { VNode } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { litBy, mainTimeline, useApp, type Lit } from './app_context';
import { kindColor } from './colors';
import { once, type Graph } from './graph';
import { aliveAt, blocksOf, phaseRuns, running, type Block, type Blocks, type Timeline } from './memory';
import { Link, nodeTitle } from './panel';
import { fitted, LINE } from './text';
import { fitCanvas, onChange, theme } from './theme';
import { bytes, exact, percent, shortened, visible } from './units';

const LEFT = 76;
const RIGHT = 14;
const TOP = 22;
const BOTTOM = 22;
const PHASE_COLORS: Record<string, string> = { forward: '#56b4e9', backward: '#e69f00', optimizer: '#009e73' };

export const mainBlocks = once((graph: Graph) => blocksOf(graph, graph.header.profile.device));

type Range = readonly [number, number];

// Returns ticks at powers of two for an axis of this height.
function ticks(top: number, most: number): number[] {
  if (top <= 0) return [0];
  let step = 1;
  while (top / step > most) step *= 2;
  const all: number[] = [];
  for (let t = 0; t <= top; t += step) all.push(t);
  return all;
}

// Draws a horizontal line over the chart.
function across(context: CanvasRenderingContext2D, y: number, width: number): void {
  context.beginPath();
  context.moveTo(LEFT, y);
  context.lineTo(width - RIGHT, y);
  context.stroke();
}

// Draws the axes, and clips to the chart until the context is restored.
function axes(context: CanvasRenderingContext2D, graph: Graph, range: Range, top: number, width: number, height: number): { x: (step: number) => number; y: (value: number) => number } {
  const colors = theme();
  const x = (step: number): number => LEFT + ((step - range[0]) / Math.max(1, range[1] - range[0])) * (width - LEFT - RIGHT);
  const y = (value: number): number => height - BOTTOM - (value / Math.max(1, top)) * (height - TOP - BOTTOM);
  context.fillStyle = colors.back;
  context.fillRect(0, 0, width, height);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  for (const t of ticks(top, Math.max(2, Math.floor(height / 45)))) {
    context.strokeStyle = colors.line;
    context.globalAlpha = 0.5;
    across(context, y(t), width);
    context.globalAlpha = 1;
    context.fillStyle = colors.quiet;
    context.textAlign = 'right';
    context.fillText(bytes(t).replace('.00', ''), LEFT - 6, y(t));
  }
  context.textAlign = 'left';
  for (const run of phaseRuns(graph)) {
    const a = Math.max(LEFT, x(run.first));
    const b = Math.min(width - RIGHT, x(run.last + 1));
    if (b <= a) continue;
    const name = graph.header.phases[run.phase];
    context.fillStyle = PHASE_COLORS[name] ?? '#cc79a7';
    context.fillRect(a, 2, Math.max(1, b - a - 1), 4);
    if (b - a > name.length * 6.5) {
      context.fillStyle = colors.quiet;
      context.fillText(visible(name, 30), a + 2, 14);
    }
  }
  context.fillStyle = colors.quiet;
  context.textAlign = 'left';
  context.fillText(`n${String(Math.round(range[0]))}`, LEFT, height - 9);
  context.textAlign = 'right';
  context.fillText(`n${String(Math.round(range[1]))}`, width - RIGHT, height - 9);
  context.textAlign = 'center';
  context.fillText('step (operator in program order)', (width + LEFT) / 2, height - 9);
  context.textAlign = 'left';
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT - RIGHT, height);
  context.clip();
  return { x, y };
}

const RESERVED = '#cc79a7';
const PLANNED = '#8c8c8c';
const DEVICE = '#d55e00';

// Returns the bytes reserved by the allocator at every step, if the profile has them.
const reservedOf = once((graph: Graph): { bytes: Float64Array; peak: number } | undefined => {
  const column = graph.reserved();
  return column && column.length > 0 ? { bytes: column, peak: column.reduce((a, b) => Math.max(a, b), 0) } : undefined;
});
function plannedOn(graph: Graph, timeline: Timeline): number | undefined {
  const plan = graph.header.profile.steady_peak ? undefined : graph.header.profile.memory_layout; // of the recorded step
  return plan && timeline.device === graph.header.profile.device ? plan.bytes : undefined;
}

// Returns the memory limit, if it is for this device.
export function deviceMemoryOf(graph: Graph, timeline: Timeline): { bytes: number; name: string } | undefined {
  const fits = graph.header.profile.fits;
  return fits && timeline.device === graph.header.profile.device ? { bytes: fits.memory_bytes, name: fits.memory } : undefined;
}

// Returns the top of a chart of live, reserved and planned bytes. Includes the device memory unless it is far above.
export function chartTop(graph: Graph): number {
  const timeline = mainTimeline(graph);
  const most = Math.max(timeline.peak, plannedOn(graph, timeline) ?? 0, reservedOf(graph)?.peak ?? 0);
  const device = deviceMemoryOf(graph, timeline)?.bytes ?? 0;
  return Math.max(most, device <= 2.5 * most ? device : 0) * 1.08;
}

// The legend of the chart, with the bytes at a step.
export function KindEntries({ graph, timeline, step }: { graph: Graph; timeline: Timeline; step: number }): VNode {
  const reserved = reservedOf(graph);
  const planned = plannedOn(graph, timeline);
  const device = deviceMemoryOf(graph, timeline);
  return (
    <>
      {timeline.kinds.map((kind, k) => (timeline.live[k].some((v) => v > 0) ? <span key={kind} class="entry"><i style={{ background: kindColor(kind) }} />{kind.replaceAll('_', ' ')} <span class="quiet">{bytes(timeline.live[k][step])}</span></span> : null))}
      {reserved && <span class="entry"><i style={{ background: RESERVED, height: '3px' }} />reserved by the caching allocator <span class="quiet">{bytes(reserved.bytes[step])}</span></span>}
      {planned !== undefined && <span class="entry"><i style={{ background: PLANNED, height: '2px' }} />static plan <span class="quiet">{bytes(planned)}</span></span>}
      {device && <span class="entry"><i style={{ background: DEVICE, height: '3px' }} />memory of {visible(device.name, 60)} <span class="quiet">{bytes(device.bytes)}</span></span>}
    </>
  );
}

function drawDeviceMemory(context: CanvasRenderingContext2D, device: { bytes: number; name: string }, top: number, y: (value: number) => number, width: number): void {
  const inside = device.bytes <= top;
  const at = inside ? y(device.bytes) : TOP;
  context.fillStyle = DEVICE;
  context.font = '600 11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  context.fillText(`${inside ? '' : '\u2191 '}${bytes(device.bytes)}, memory of ${visible(device.name, 60)}`, width - RIGHT - 4, inside && at < TOP + 14 ? at + 9 : inside ? at - 8 : at + 4);
  context.textAlign = 'left';
  if (!inside) return;
  context.strokeStyle = DEVICE;
  context.lineWidth = 2;
  across(context, at, width);
  context.lineWidth = 1;
}

// `top`: bytes at the upper end, for charts on a common scale.
export function drawTimeline(canvas: HTMLCanvasElement, graph: Graph, timeline: Timeline, range: Range, lit?: Lit, top = chartTop(graph)): void {
  const { width, height, context } = fitCanvas(canvas);
  if (width === 0 || timeline.steps === 0) return;
  const colors = theme();
  const reserved = reservedOf(graph);
  const plan = plannedOn(graph, timeline);
  const { x, y } = axes(context, graph, range, top, width, height);
  const first = Math.max(0, Math.floor(range[0]));
  const last = Math.min(timeline.steps - 1, Math.ceil(range[1]));
  // At most one step per pixel: the one with most bytes.
  const columns: number[] = [];
  const perPixel = (range[1] - range[0]) / (width - LEFT - RIGHT);
  if (perPixel <= 1) for (let s = first; s <= last; ++s) columns.push(s);
  else {
    for (let from = first; from <= last; ) {
      const until = Math.min(last, Math.max(from, Math.floor(from + perPixel)));
      let best = from;
      for (let s = from; s <= until; ++s) if (timeline.total[s] > timeline.total[best]) best = s;
      columns.push(best);
      from = until + 1;
    }
  }
  const base = new Float64Array(columns.length);
  timeline.live.forEach((live, k) => {
    if (!columns.some((s) => live[s] > 0)) return;
    context.fillStyle = kindColor(timeline.kinds[k]);
    context.beginPath();
    context.moveTo(x(columns[0]), y(base[0]));
    const below: [number, number][] = [];
    columns.forEach((s, i) => {
      below.push([x(s), y(base[i])], [x(s + 1), y(base[i])]);
      base[i] += live[s];
      context.lineTo(x(s), y(base[i]));
      context.lineTo(x(columns[i + 1] ?? s + 1), y(base[i]));
    });
    for (let i = below.length; i-- > 0; ) context.lineTo(below[i][0], below[i][1]);
    context.closePath();
    context.fill();
  });
  if (reserved) {
    context.strokeStyle = RESERVED;
    context.lineWidth = 2;
    context.beginPath();
    columns.forEach((s, i) => {
      context.lineTo(x(s), y(reserved.bytes[s]));
      context.lineTo(x(columns[i + 1] ?? s + 1), y(reserved.bytes[s]));
    });
    context.stroke();
    context.lineWidth = 1;
  }
  if (plan !== undefined) {
    context.strokeStyle = PLANNED;
    context.lineWidth = 1.5;
    context.setLineDash([2, 3]);
    across(context, y(plan), width);
    context.lineWidth = 1;
  }
  context.strokeStyle = colors.text;
  context.setLineDash([5, 4]);
  across(context, y(timeline.peak), width);
  context.setLineDash([]);
  const px = x(timeline.peakStep + 0.5);
  context.beginPath();
  context.arc(px, y(timeline.peak), 4, 0, 7);
  context.fillStyle = colors.text;
  context.fill();
  context.font = '600 12px system-ui, sans-serif';
  const label = `peak ${bytes(timeline.peak)} at n${String(timeline.peakStep)}`;
  const space = context.measureText(label).width;
  const beside = px + 8 + space < width - RIGHT ? px + 8 : px - 8 - space;
  context.fillStyle = colors.back;
  context.globalAlpha = 0.8;
  context.fillRect(beside - 2, y(timeline.peak) - 16, space + 4, 14);
  context.globalAlpha = 1;
  context.fillStyle = colors.text;
  context.textBaseline = 'middle';
  context.fillText(label, beside, y(timeline.peak) - 9);
  const device = deviceMemoryOf(graph, timeline);
  if (device) drawDeviceMemory(context, device, top, y, width);
  if (lit) drawLit(context, lit, x, height, first, last, colors.accent);
  context.restore();
}

// Draws the steps of the selection as ticks along the axis.
function drawLit(context: CanvasRenderingContext2D, lit: Lit, x: (step: number) => number, height: number, first: number, last: number, color: string): void {
  context.fillStyle = color;
  let pixel = -1;
  for (let s = first; s <= last; ++s) {
    if (!lit.node(s)) continue;
    const at = Math.round(x(s));
    if (at === pixel) continue;
    pixel = at;
    context.fillRect(at, height - BOTTOM, Math.max(2, x(s + 1) - x(s)), 5);
  }
}

function drawBlocks(canvas: HTMLCanvasElement, graph: Graph, blocks: Blocks, range: Range, lit: Lit): void {
  const { width, height, context } = fitCanvas(canvas);
  if (width === 0) return;
  const colors = theme();
  const { x, y } = axes(context, graph, range, blocks.top, width, height);
  const kinds = graph.header.storage_kinds;
  const chosen: Block[] = [];
  for (const block of blocks.blocks) {
    if (block.last < range[0] || block.first > range[1]) continue;
    const left = x(block.first);
    const w = Math.max(0.7, x(block.last + 1) - left);
    const top = y(block.place + block.bytes);
    const h = Math.max(0.5, y(block.place) - top);
    context.fillStyle = kindColor(kinds[graph.storageKind()[block.storage]]);
    context.globalAlpha = 0.88;
    context.fillRect(left, top, w, h);
    context.globalAlpha = 1;
    if (h > 3 && w > 3) {
      context.strokeStyle = colors.back;
      context.lineWidth = 0.7;
      context.strokeRect(left, top, w, h);
    }
    if (h > 12 && w > 70) {
      context.fillStyle = '#1b1f24';
      context.font = LINE;
      context.textBaseline = 'middle';
      const from = Math.max(left, LEFT);
      const room = Math.min(left + w, width - RIGHT) - from - 8;
      if (room > 50) {
        const kind = kinds[graph.storageKind()[block.storage]];
        if (kind === 'parameter') context.fillStyle = '#ffffff';
        context.fillText(fitted(visible(`${graph.storageLabel(block.storage)} ${bytes(block.bytes)}`, 200), LINE, room), from + 4, top + h / 2);
      }
    }
    if (lit.storage(block.storage)) chosen.push(block);
  }
  context.strokeStyle = colors.accent;
  context.lineWidth = 2;
  for (const block of chosen.slice(0, 2000)) {
    const left = x(block.first);
    context.strokeRect(left, y(block.place + block.bytes), Math.max(2, x(block.last + 1) - left), Math.max(2, y(block.place) - y(block.place + block.bytes)));
  }
  context.restore();
}

interface ChartProps {
  label: string;
  class: string;
  graph: Graph;
  range: Range;
  draw: (canvas: HTMLCanvasElement) => void;
  onStep: (step: number | undefined) => void;
  onPress: (step: number, event: { x: number; y: number; width: number; height: number }) => void;
  mark: number | undefined;
}

// Interaction of both charts: the wheel zooms, dragging pans, a click pins a step.
function Chart(props: ChartProps): VNode {
  const { store } = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const element = canvas.current!;
    return onChange(element, () => latest.current.draw(element));
  }, []);
  useEffect(() => {
    const element = canvas.current!;
    const frame = requestAnimationFrame(() => {
      if (element.isConnected) props.draw(element);
    });
    return () => cancelAnimationFrame(frame);
  }, [props.draw]);
  const all = props.graph.nodeCount;
  const stepAt = (event: MouseEvent): number => {
    const box = canvas.current!.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return Math.floor(props.range[0] + share * (props.range[1] - props.range[0]));
  };
  const hold = useRef<{ x: number; range: Range; moved: boolean } | undefined>(undefined);
  const inside = (step: number): boolean => step >= 0 && step < all;
  const setRange = (from: number, to: number): void => {
    const span = Math.min(all, Math.max(8, to - from));
    const start = Math.max(0, Math.min(from, all - span));
    store.set({ range: [start, start + span] });
  };
  const width = props.range[1] - props.range[0];
  const marked = props.mark !== undefined && props.mark >= props.range[0] && props.mark <= props.range[1];
  return (
    <div class={`chart ${props.class}`}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="img"
        aria-label={props.label}
        onPointerDown={(event) => {
          canvas.current!.setPointerCapture(event.pointerId);
          hold.current = { x: event.clientX, range: props.range, moved: false };
        }}
        onPointerMove={(event) => {
          const held = hold.current;
          if (held) {
            const by = ((event.clientX - held.x) / (canvas.current!.clientWidth - LEFT - RIGHT)) * (held.range[1] - held.range[0]);
            if (Math.abs(event.clientX - held.x) > 3) held.moved = true;
            if (held.moved && width < all) setRange(held.range[0] - by, held.range[1] - by);
            return;
          }
          const step = stepAt(event);
          props.onStep(inside(step) ? step : undefined);
        }}
        onPointerUp={(event) => {
          const held = hold.current;
          hold.current = undefined;
          if (!held || held.moved) return;
          const step = stepAt(event);
          const box = canvas.current!.getBoundingClientRect();
          if (inside(step)) props.onPress(step, { x: event.clientX - box.left, y: event.clientY - box.top, width: box.width, height: box.height });
        }}
        onPointerLeave={() => props.onStep(undefined)}
        onWheel={(event) => {
          event.preventDefault();
          const at = stepAt(event);
          const factor = Math.exp(event.deltaY * 0.0015);
          setRange(at - (at - props.range[0]) * factor, at + (props.range[1] - at) * factor);
        }}
        onDblClick={() => store.set({ range: undefined })}
        onKeyDown={(event) => {
          const by: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -Math.ceil(width / 20), PageDown: Math.ceil(width / 20) };
          if (event.key in by) {
            event.preventDefault();
            const now = store.state.step ?? mainTimeline(props.graph).peakStep;
            store.set({ step: Math.max(0, Math.min(all - 1, now + by[event.key])) });
          }
          if (event.key === '+' || event.key === '=') setRange(props.range[0] + width / 6, props.range[1] - width / 6);
          if (event.key === '-') setRange(props.range[0] - width / 4, props.range[1] + width / 4);
        }}
      />
      {marked && <i class="mark" style={{ left: `calc(${String(LEFT)}px + (100% - ${String(LEFT + RIGHT)}px) * ${String((props.mark! + 0.5 - props.range[0]) / width)})` }} />}
    </div>
  );
}

export function MemoryView(): VNode {
  const { graph, state, store } = useApp();
  const timeline = mainTimeline(graph);
  const blocks = useMemo(() => mainBlocks(graph), [graph]);
  const range: Range = state.range ?? running(graph);
  const [pointed, setPointed] = useState<number | undefined>(undefined);
  const lit = useMemo(() => litBy(graph, state.selection), [graph, state.selection]);
  const low = range[0];
  const high = range[1];
  const drawAreas = useMemo(() => (canvas: HTMLCanvasElement) => drawTimeline(canvas, graph, timeline, [low, high], lit), [graph, timeline, low, high, lit]);
  const drawRectangles = useMemo(() => (canvas: HTMLCanvasElement) => drawBlocks(canvas, graph, blocks, [low, high], lit), [graph, blocks, low, high, lit]);
  const pinned = state.step !== undefined && state.step < graph.nodeCount ? state.step : undefined;
  const step = pointed ?? pinned ?? timeline.peakStep;
  const memory = graph.header.profile.device_memory as Record<string, number> | undefined;
  const plan = graph.header.profile.memory_layout;
  const blockAt = (at: number, y: number, height: number): Block | undefined => {
    const value = ((height - BOTTOM - y) / (height - TOP - BOTTOM)) * blocks.top;
    const slack = blocks.top / Math.max(1, height - TOP - BOTTOM);
    return blocks.blocks.find((b) => b.first <= at && at <= b.last && b.place <= value && value < b.place + b.bytes)
      ?? blocks.blocks.find((b) => b.first <= at && at <= b.last && b.place - slack <= value && value < b.place + b.bytes + slack);
  };
  if (graph.nodeCount === 0) return <p>The graph is empty.</p>;
  return (
    <div class="memory">
      <div class="charts">
        <h2>Bytes alive on {visible(timeline.device)}, by kind</h2>
        <div class="kinds">
          <KindEntries graph={graph} timeline={timeline} step={step} />
          <span class="zoom">
            {state.range && <button type="button" onClick={() => store.set({ range: undefined })}>Whole step</button>}
            <button type="button" onClick={() => store.set({ step: timeline.peakStep })}>Go to peak</button>
          </span>
        </div>
        <Chart label={`Bytes alive at every step, stacked by kind; the peak is ${bytes(timeline.peak)} at step ${String(timeline.peakStep)}`} class="areas" graph={graph} range={range} draw={drawAreas} onStep={setPointed} mark={pointed ?? pinned}
          onPress={(at) => store.set({ step: at, selection: { kind: 'node', id: at } })} />
        <h2>Storage lifetimes{blocks.planned ? ', at the addresses of a static plan' : ''}</h2>
        <Chart label="Each storage as a rectangle" class="blocks" graph={graph} range={range} draw={drawRectangles} onStep={setPointed} mark={pointed ?? pinned}
          onPress={(at, where) => {
            const block = blockAt(at, where.y, where.height);
            store.set({ step: at, selection: block ? { kind: 'storage', id: block.storage } : state.selection });
          }} />
        <p class="quiet">
          {blocks.leftCount > 0 && `${exact(blocks.leftCount)} small storages (${bytes(blocks.left)}) are not shown. `}
          {plan && `A static plan needs ${bytes(plan.bytes)} (lower bound ${bytes(plan.bound)}). `}
          {memory?.reserved_peak_bytes !== undefined && `The caching allocator reserves ${bytes(memory.reserved_peak_bytes)} over several steps${memory.footprint_bytes !== undefined ? `; ${bytes(memory.footprint_bytes)} on the device` : ''}. `}
          Scroll to zoom, drag to pan, click to pin a step.
        </p>
      </div>
      <AliveList step={step} timeline={timeline} pinned={pointed === undefined && pinned !== undefined} />
    </div>
  );
}

function AliveList({ step, timeline, pinned }: { step: number; timeline: Timeline; pinned: boolean }): VNode {
  const { graph, state, store } = useApp();
  const alive = useMemo(() => aliveAt(graph, timeline.device, step), [graph, timeline, step]);
  const lit = useMemo(() => litBy(graph, state.selection), [graph, state.selection]);
  const total = timeline.total[step];
  const most = 60;
  return (
    <section class="alive" aria-label="Storages alive at this step">
      <h2>
        {bytes(total)} alive at n{step}{step === timeline.peakStep ? ', the peak' : ''}
      </h2>
      <p class="quiet"><Link to={{ kind: 'node', id: step }}>{nodeTitle(graph, step)}</Link> {pinned && <button type="button" onClick={() => store.set({ step: undefined })}>Unpin</button>}</p>
      <ol>
        {alive.slice(0, most).map((s) => (
          <li key={s} class={lit.storage(s) ? 'lit' : ''}>
            <button type="button" onClick={() => store.select({ kind: 'storage', id: s })}>
              <i style={{ background: kindColor(graph.header.storage_kinds[graph.storageKind()[s]]) }} />
              <b>{bytes(graph.storageBytes()[s])}</b> <bdi>{shortened(graph.storageLabel(s), 60)}</bdi>
              <span class="quiet"> {graph.storageValue()[s] >= 0 ? graph.type(graph.storageValue()[s]) : ''}</span>
            </button>
          </li>
        ))}
      </ol>
      {alive.length > most && <p class="quiet">and {exact(alive.length - most)} more, {percent(alive.slice(most).reduce((sum, s) => sum + graph.storageBytes()[s], 0) / Math.max(1, total))} of the bytes</p>}
    </section>
  );
}
