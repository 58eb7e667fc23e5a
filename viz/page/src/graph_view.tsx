// The graph: boxes on a canvas; only visible ones are drawn.
import type { VNode } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { litBy, useApp, type Lit, type Seen } from './app_context';
import { around, boxesOf, EdgeKind, firstOpen, pathsBetween, pathTo, siblingsOf, type Boxes, type BoxOptions, type Edge, type Item } from './boxes';
import { coloring, MODES, type Coloring, type Mode } from './colors';
import { formatGiven, NONE, once, type Graph } from './graph';
import { layoutOf, type Layout, type Point } from './layout';
import { EdgeLegend, nodeTitle } from './panel';
import { find } from './search';
import { fitted, LABEL, LINE, NODE, OPEN, TITLE, widthOf } from './text';
import { fitCanvas, onChange, theme, type Theme } from './theme';
import { bytes, exact, flops, seconds, shortened, visible, spread } from './units';

const FIRST_BOXES = 44;
const MOST_IN_PART = 300;

interface Picture {
  graph: Graph;
  boxes: Boxes;
  layout: Layout;
  options: BoxOptions;
  colors: Coloring;
}

interface Camera {
  x: number; // picture coordinate of the screen's left edge
  y: number;
  zoom: number;
}

// Other phases are closed boxes.
export const openAtFirst = once((graph: Graph) => firstOpen(graph, [phasesAtFirst(graph)[0]], FIRST_BOXES));

export function phasesAtFirst(graph: Graph): number[] {
  const used = new Set<number>();
  for (let i = 0; i < graph.nodeCount; ++i) if (graph.target(i).builtin !== true) used.add(graph.phase()[i]);
  return [...used].sort((a, b) => a - b);
}

export function optionsOf(graph: Graph, seen: Pick<Seen, 'state'>): BoxOptions {
  const { state } = seen;
  const options: BoxOptions = {
    open: state.open ? new Set(state.open) : openAtFirst(graph),
    unfolded: new Set(state.unfolded),
    phases: state.phases ?? phasesAtFirst(graph),
    showViews: state.showViews,
    showParameters: state.showParameters,
  };
  if (state.around && state.around.node < graph.nodeCount) options.only = around(graph, state.around.node, state.around.radius, MOST_IN_PART);
  if (state.path && Math.max(state.path.from, state.path.to) < graph.nodeCount) {
    options.only = pathsBetween(graph, state.path.from, state.path.to).slice(0, MOST_IN_PART);
  }
  return options;
}

// Backward runs upwards next to forward.
function upwards(graph: Graph): (item: Item) => boolean {
  return (item) => item.kind === 'cluster' && graph.header.phases[graph.clusterPhase()[item.id]] === 'backward';
}

export class Drawing {
  camera: Camera = { x: 0, y: 0, zoom: 1 };
  hover = NONE;
  private frame = 0;
  private readonly edgesOf = new Map<number, Edge[]>();
  picture: Picture | undefined;
  lit: Lit | undefined;
  selected = NONE;

  constructor(private readonly canvas: HTMLCanvasElement, private readonly map: HTMLCanvasElement) {}

  setPicture(picture: Picture): void {
    this.picture = picture;
    this.edgesOf.clear();
    for (const edge of picture.boxes.edges) {
      for (const end of [edge.from, edge.to]) {
        const list = this.edgesOf.get(end);
        if (list) list.push(edge);
        else this.edgesOf.set(end, [edge]);
      }
    }
    this.hover = NONE;
  }

  edgesAt(item: number): Edge[] {
    return this.edgesOf.get(item) ?? [];
  }

  request(): void {
    if (this.frame === 0) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
  }

  fit(): void {
    const { picture } = this;
    if (!picture) return;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    const { layout } = picture;
    // Prefer a readable scale: a long network starts at its top.
    const whole = Math.min((width - 40) / layout.width, (height - 40) / layout.height);
    const readable = width > 2200 ? 1.6 : 0.9;
    const zoom = Math.min(readable * 1.4, Math.max(whole, Math.min(readable, (width - 40) / layout.width)));
    this.camera = { zoom, x: layout.width / 2 - width / 2 / zoom, y: zoom > whole ? -20 / zoom : layout.height / 2 - height / 2 / zoom };
    if (layout.width * zoom > width) this.camera.x = -20 / zoom;
    this.request();
  }

  zoomAt(px: number, py: number, factor: number): void {
    const zoom = Math.min(4, Math.max(0.005, this.camera.zoom * factor));
    this.camera.x += px / this.camera.zoom - px / zoom;
    this.camera.y += py / this.camera.zoom - py / zoom;
    this.camera.zoom = zoom;
    this.request();
  }

  // Scrolls to an item; keeps the scale if it is readable.
  show(item: number): void {
    const { picture, camera } = this;
    if (!picture) return;
    const box = picture.boxes.items[item];
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    const inside = (picture.layout.x[item] - camera.x) * camera.zoom;
    const top = (picture.layout.y[item] - camera.y) * camera.zoom;
    const seen = inside > 0 && top > 0 && inside + box.width * camera.zoom < width && top + Math.min(box.height, 60) * camera.zoom < height;
    if (seen && camera.zoom > 0.45) return;
    if (camera.zoom < 0.45) camera.zoom = Math.min(0.9, Math.max(0.45, (width * 0.8) / box.width));
    camera.x = picture.layout.x[item] + box.width / 2 - width / 2 / camera.zoom;
    camera.y = picture.layout.y[item] + Math.min(box.height, (height * 0.7) / camera.zoom) / 2 - height / 2 / camera.zoom;
    this.request();
  }

  at(px: number, py: number): number {
    const { picture, camera } = this;
    if (!picture) return NONE;
    const x = px / camera.zoom + camera.x;
    const y = py / camera.zoom + camera.y;
    const { items } = picture.boxes;
    const { layout } = picture;
    let found = NONE;
    const pending = [0];
    for (let i = pending.pop(); i !== undefined; i = pending.pop()) {
      const item = items[i];
      const inside = x >= layout.x[i] && y >= layout.y[i] && x <= layout.x[i] + item.width && y <= layout.y[i] + item.height;
      if (i !== 0 && !inside) continue;
      if (i !== 0 && (found === NONE || item.depth > items[found].depth)) found = i;
      pending.push(...item.children);
    }
    return found;
  }

  // Returns true if a screen point is on the button that opens or closes an item.
  onSign(item: number, px: number, py: number): boolean {
    const { picture, camera } = this;
    if (!picture) return false;
    const box = picture.boxes.items[item];
    if (box.kind !== 'cluster' && box.kind !== 'chunk') return false;
    const x = px / camera.zoom + camera.x - picture.layout.x[item];
    const y = py / camera.zoom + camera.y - picture.layout.y[item];
    return x > box.width - 26 && y < 26;
  }

  wayOf(edge: Edge): Point[] {
    const { picture } = this;
    if (!picture) return [];
    const { items } = picture.boxes;
    const { layout } = picture;
    const [a, b] = siblingsOf(items, edge.from, edge.to);
    const middle = layout.ways.get(`${String(a)} ${String(b)}`) ?? [];
    const up = a !== 0 && items[a].parent > 0 && upwards(picture.graph)(items[items[a].parent]);
    const end = (i: number, out: boolean): Point => ({
      x: layout.x[i] + items[i].width / 2,
      y: layout.y[i] + (out !== up ? items[i].height : 0),
    });
    if (middle.length === 0) {
      // Edges between phases or between copies attach to the sides.
      const right = layout.x[edge.to] > layout.x[edge.from] + items[edge.from].width;
      const left = layout.x[edge.to] + items[edge.to].width < layout.x[edge.from];
      const from = { x: layout.x[edge.from] + (right ? items[edge.from].width : left ? 0 : items[edge.from].width), y: layout.y[edge.from] + items[edge.from].height / 2 };
      const to = { x: layout.x[edge.to] + (right ? 0 : items[edge.to].width), y: layout.y[edge.to] + items[edge.to].height / 2 };
      if (right || left) return [from, to];
      const out = Math.max(from.x, to.x) + 24;
      return [from, { x: out, y: from.y }, { x: out, y: to.y }, to];
    }
    // Within the items they leave and enter, edges follow the layout's routes; otherwise they are straight.
    const leaving: Point[] = [];
    for (let i = edge.from; i !== a; i = items[i].parent) leaving.push(...(layout.ways.get(`out ${String(i)}`) ?? (i === edge.from ? [end(i, true)] : [])));
    const entering: Point[] = [];
    for (let i = edge.to; i !== b; i = items[i].parent) entering.unshift(...(layout.ways.get(`in ${String(i)}`) ?? (i === edge.to ? [end(i, false)] : [])));
    return [...leaving, ...middle, ...entering];
  }

  draw(): void {
    const { picture, camera } = this;
    if (!picture || this.canvas.clientWidth === 0) return;
    const { width, height, context } = fitCanvas(this.canvas);
    const colors = theme();
    context.fillStyle = colors.back;
    context.fillRect(0, 0, width, height);
    context.save();
    context.scale(camera.zoom, camera.zoom);
    context.translate(-camera.x, -camera.y);
    const right = camera.x + width / camera.zoom;
    const bottom = camera.y + height / camera.zoom;
    const { items } = picture.boxes;
    const { layout } = picture;
    const inSight: number[] = [];
    const pending = [0];
    for (let i = pending.pop(); i !== undefined; i = pending.pop()) {
      const item = items[i];
      if (i !== 0 && (layout.x[i] > right || layout.y[i] > bottom || layout.x[i] + item.width < camera.x || layout.y[i] + item.height < camera.y)) continue;
      if (i !== 0) inSight.push(i);
      if (i === 0 || item.width * camera.zoom > 6) pending.push(...item.children);
    }
    inSight.sort((a, b) => items[a].depth - items[b].depth);
    for (const i of inSight) if (items[i].open) this.drawOpen(context, i, colors);
    const near = this.hover !== NONE ? this.hover : this.selected;
    if (camera.zoom > 0.02) this.drawEdges(context, colors, near, right, bottom);
    for (const i of inSight) if (items[i].open) this.drawTitle(context, i, colors);
    for (const i of inSight) if (!items[i].open) this.drawBox(context, i, colors);
    context.restore();
    this.drawMap(colors, width, height);
  }

  private drawOpen(context: CanvasRenderingContext2D, i: number, colors: Theme): void {
    const { boxes, layout } = this.picture!;
    const item = boxes.items[i];
    const x = layout.x[i];
    const y = layout.y[i];
    context.fillStyle = colors.inside[item.depth % 2];
    round(context, x, y, item.width, item.height, 8);
    context.fill();
    const chosen = this.isLit(item);
    context.lineWidth = chosen ? 3 : i === this.hover ? 2 : 1;
    context.strokeStyle = chosen ? colors.accent : colors.line;
    context.stroke();
  }

  // Drawn over the edges, with a halo.
  private drawTitle(context: CanvasRenderingContext2D, i: number, colors: Theme): void {
    const { boxes, layout } = this.picture!;
    const item = boxes.items[i];
    const x = layout.x[i];
    const y = layout.y[i];
    if (item.width * this.camera.zoom < 30) return;
    context.strokeStyle = colors.inside[item.depth % 2];
    context.lineWidth = 5;
    context.lineJoin = 'round';
    // When zoomed out, titles of open modules are larger, as far as space allows.
    const scale = this.camera.zoom < 0.6 ? Math.min(1.5, 0.6 / this.camera.zoom) : 1;
    const room = item.width - 42;
    const title = fitted(item.title, OPEN, room / scale);
    context.fillStyle = colors.text;
    context.font = scale === 1 ? OPEN : OPEN.replace('13px', `${(13 * scale).toFixed(1)}px`);
    context.textBaseline = 'top';
    context.strokeText(title, x + 10, y + 7);
    context.fillText(title, x + 10, y + 7);
    const used = widthOf(title, OPEN) * scale + 20;
    if (scale === 1 && item.lines.length > 0 && used + widthOf(item.lines[0], LINE) < item.width - 28) {
      context.fillStyle = colors.quiet;
      context.font = LINE;
      context.strokeText(item.lines[0], x + used, y + 9);
      context.fillText(item.lines[0], x + used, y + 9);
    }
    if (item.key !== 'all') sign(context, x + item.width - 21, y + 6, false, colors);
  }

  private isLit(item: Item): boolean {
    const { lit, picture } = this;
    if (!lit || !picture) return false;
    if (item.kind === 'node') return lit.node(item.id);
    return item.kind === 'cluster' && item.id !== 0 && lit.cluster(item.id);
  }

  private drawBox(context: CanvasRenderingContext2D, i: number, colors: Theme): void {
    const { boxes, layout, colors: coloring } = this.picture!;
    const item = boxes.items[i];
    const x = layout.x[i];
    const y = layout.y[i];
    const zoom = this.camera.zoom;
    if (item.kind === 'omitted') {
      context.fillStyle = colors.quiet;
      context.font = 'italic 11px system-ui, sans-serif';
      context.textBaseline = 'top';
      context.fillText(item.title, x + 8, y + 7);
      context.setLineDash([3, 3]);
      context.strokeStyle = colors.quiet;
      context.lineWidth = 1;
      round(context, x, y, item.width, item.height, 5);
      context.stroke();
      context.setLineDash([]);
      return;
    }
    const paint = coloring.paint(item);
    const module = item.kind !== 'node';
    if (item.kind === 'cluster' && this.picture!.graph.cluster(item.id).repeats > 1 && /\u00d7/.test(item.title)) {
      // Drawn as a stack: identical layers are folded into this one.
      for (const off of [6, 3]) {
        context.fillStyle = colors.box;
        round(context, x + off, y + off, item.width, item.height, 6);
        context.fill();
        context.lineWidth = 1;
        context.strokeStyle = colors.line;
        context.stroke();
      }
    }
    context.fillStyle = paint?.fill ?? colors.box;
    round(context, x, y, item.width, item.height, module ? 6 : 4);
    context.fill();
    const chosen = this.isLit(item) || i === this.selected;
    context.lineWidth = chosen ? 3.5 : i === this.hover ? 2.5 : 1;
    context.strokeStyle = chosen ? colors.accent : module ? colors.edge : colors.line;
    context.stroke();
    if (zoom < 0.12) return;
    const ink = paint ? (paint.dark ? '#ffffff' : '#1b1f24') : colors.text;
    const quiet = paint ? ink : colors.quiet;
    context.textBaseline = 'top';
    context.fillStyle = ink;
    context.font = module ? TITLE : NODE;
    context.fillText(fitted(item.title, context.font, item.width - (module ? 40 : 15)), x + 9, y + 6);
    if (zoom > 0.3) {
      context.font = LINE;
      context.fillStyle = quiet;
      item.lines.forEach((line, at) => context.fillText(fitted(line, LINE, item.width - 14), x + 9, y + 6 + 15 * (at + 1)));
    }
    if (module) sign(context, x + item.width - 21, y + 6, true, { ...colors, quiet: ink });
  }

  private drawEdges(context: CanvasRenderingContext2D, colors: Theme, near: number, right: number, bottom: number): void {
    const { boxes } = this.picture!;
    const { items } = boxes;
    const zoom = this.camera.zoom;
    const drawn: { edge: Edge; points: Point[]; lit: boolean }[] = [];
    for (const edge of boxes.edges) {
      const lit = near !== NONE && (edge.from === near || edge.to === near);
      const [a] = siblingsOf(items, edge.from, edge.to);
      // There are too many edges between phases; draw those of the hovered item.
      if (!lit && items[a].parent === 0 && items[a].kind === 'cluster' && edge.kind !== EdgeKind.nextCopy) continue;
      const points = this.wayOf(edge);
      if (points.length < 2) continue;
      let left = Infinity, top = Infinity, r = -Infinity, b = -Infinity;
      for (const p of points) {
        left = Math.min(left, p.x);
        r = Math.max(r, p.x);
        top = Math.min(top, p.y);
        b = Math.max(b, p.y);
      }
      if (left > right || top > bottom || r < this.camera.x || b < this.camera.y) continue;
      drawn.push({ edge, points, lit });
    }
    drawn.sort((a, b) => Number(a.lit) - Number(b.lit));
    for (const { edge, points, lit } of drawn) {
      const width = edge.bytes > 0 ? Math.max(0.8, Math.min(7, Math.log2(1 + edge.bytes / 4096) * 0.33)) : 0.8;
      context.lineWidth = lit ? width + 1 : width;
      context.strokeStyle = lit ? colors.accent : edge.kind === EdgeKind.mutation ? '#d55e00' : edge.kind === EdgeKind.alias ? '#0072b2' : colors.edge;
      context.globalAlpha = lit ? 1 : near !== NONE && this.hover !== NONE ? 0.35 : 0.8;
      context.setLineDash(edge.kind === EdgeKind.alias ? [7, 4] : edge.kind === EdgeKind.mutation ? [2, 3] : edge.kind === EdgeKind.nextCopy ? [10, 6] : []);
      context.beginPath();
      context.moveTo(points[0].x, points[0].y);
      for (let k = 1; k + 1 < points.length; ++k) {
        const next = points[k + 1];
        const last = k + 2 === points.length;
        context.quadraticCurveTo(points[k].x, points[k].y, last ? next.x : (points[k].x + next.x) / 2, last ? next.y : (points[k].y + next.y) / 2);
      }
      if (points.length === 2) context.lineTo(points[1].x, points[1].y);
      context.stroke();
      context.setLineDash([]);
      if (zoom > 0.25) arrow(context, points[points.length - 2], points[points.length - 1], 5 + width, context.strokeStyle);
    }
    context.globalAlpha = 1;
    if (zoom < 0.55) return;
    // Tensor types on edges, where space allows.
    context.font = LABEL;
    context.textBaseline = 'middle';
    const graph = this.picture!.graph;
    const taken: { x: number; y: number; w: number }[] = [];
    for (const { edge, points, lit } of drawn.reverse()) {
      if (edge.value === NONE || (!lit && edge.kind === EdgeKind.nextCopy)) continue;
      const text = shortened(graph.type(edge.value), 28) + (edge.count > 1 ? ` +${String(edge.count - 1)}` : '');
      // Placed between the boxes, rather than inside one.
      const [a, b] = siblingsOf(items, edge.from, edge.to);
      const p = middleOf(this.picture!.layout.ways.get(`${String(a)} ${String(b)}`) ?? points) ?? middleOf(points)!;
      const w = widthOf(text, LABEL);
      if (taken.some((t) => Math.abs(t.y - p.y) < 11 && p.x + 4 < t.x + t.w && t.x < p.x + 4 + w)) continue;
      taken.push({ x: p.x + 4, y: p.y, w });
      context.fillStyle = colors.back;
      context.globalAlpha = 0.75;
      context.fillRect(p.x + 3, p.y - 6, w + 2, 12);
      context.globalAlpha = 1;
      context.fillStyle = lit ? colors.accent : colors.quiet;
      context.fillText(text, p.x + 4, p.y);
    }
  }

  private mapScale = 1;
  private drawMap(colors: Theme, width: number, height: number): void {
    const { picture, camera } = this;
    if (!picture || this.map.clientWidth === 0) return;
    const small = fitCanvas(this.map);
    const { context } = small;
    context.fillStyle = colors.back;
    context.fillRect(0, 0, small.width, small.height);
    const scale = Math.min((small.width - 8) / picture.layout.width, (small.height - 8) / picture.layout.height);
    this.mapScale = scale;
    const { items } = picture.boxes;
    for (const item of items) {
      if (item.index === 0 || item.width * scale < 1) continue;
      const paint = item.open ? undefined : picture.colors.paint(item);
      context.fillStyle = item.open ? colors.inside[item.depth % 2] : (paint?.fill ?? colors.edge);
      context.fillRect(4 + picture.layout.x[item.index] * scale, 4 + picture.layout.y[item.index] * scale, Math.max(1, item.width * scale), Math.max(1, item.height * scale));
    }
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.strokeRect(4 + camera.x * scale, 4 + camera.y * scale, (width / camera.zoom) * scale, (height / camera.zoom) * scale);
  }

  mapTo(px: number, py: number): void {
    this.camera.x = (px - 4) / this.mapScale - this.canvas.clientWidth / 2 / this.camera.zoom;
    this.camera.y = (py - 4) / this.mapScale - this.canvas.clientHeight / 2 / this.camera.zoom;
    this.request();
  }
}

function round(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, radius: number): void {
  context.beginPath();
  context.moveTo(x + radius, y);
  context.arcTo(x + width, y, x + width, y + height, radius);
  context.arcTo(x + width, y + height, x, y + height, radius);
  context.arcTo(x, y + height, x, y, radius);
  context.arcTo(x, y, x + width, y, radius);
  context.closePath();
}

function sign(context: CanvasRenderingContext2D, x: number, y: number, plus: boolean, colors: Theme): void {
  context.strokeStyle = colors.quiet;
  context.lineWidth = 1.2;
  context.strokeRect(x, y, 13, 13);
  context.beginPath();
  context.moveTo(x + 3, y + 6.5);
  context.lineTo(x + 10, y + 6.5);
  if (plus) {
    context.moveTo(x + 6.5, y + 3);
    context.lineTo(x + 6.5, y + 10);
  }
  context.stroke();
}

function middleOf(points: readonly Point[]): Point | undefined {
  if (points.length === 0) return undefined;
  const k = Math.floor((points.length - 1) / 2);
  return points.length % 2 === 1 ? points[k] : { x: (points[k].x + points[k + 1].x) / 2, y: (points[k].y + points[k + 1].y) / 2 };
}

function arrow(context: CanvasRenderingContext2D, from: Point, to: Point, size: number, color: string | CanvasGradient | CanvasPattern): void {
  const angle = Math.atan2(to.y - from.y, to.x - from.x);
  context.fillStyle = color;
  context.beginPath();
  context.moveTo(to.x, to.y);
  context.lineTo(to.x - size * Math.cos(angle - 0.4), to.y - size * Math.sin(angle - 0.4));
  context.lineTo(to.x - size * Math.cos(angle + 0.4), to.y - size * Math.sin(angle + 0.4));
  context.closePath();
  context.fill();
}

// Formats the given value of a module; for repeated layers, minimum, mean and maximum.
function givenOf(graph: Graph, cluster: number): string {
  const given = graph.header.given!;
  return `${visible(given.title, 60)}: ${spread(graph.copies(cluster).map((c) => graph.totalsOf(c).given), formatGiven(given))}`;
}

function tooltipOf(graph: Graph, item: Item): string[] {
  if (item.kind === 'omitted') return [`${item.title} outside this part`];
  if (item.kind === 'chunk') return [item.title, ...item.lines, 'consecutive boxes; open to see them'];
  if (item.kind === 'cluster') {
    const totals = graph.totalsOf(item.id);
    return [
      visible(graph.clusterPath(item.id) || item.title, 200), ...item.lines.slice(0, 1),
      `${flops(totals.flops)}, ${bytes(totals.moved)} moved, ${bytes(totals.bytes)} allocated, ${bytes(totals.saved)} saved`,
      ...(graph.hasTime ? [seconds(totals.seconds)] : []),
      ...(totals.given > 0 ? [givenOf(graph, item.id)] : []),
    ];
  }
  const node = item.id;
  const lines = [visible(graph.op(node)) + (graph.placeholder(node) === '' ? '' : ` ${visible(graph.placeholder(node), 120)}`)];
  if (graph.constants(node) !== '') lines.push(visible(graph.constants(node), 160));
  const first = graph.outputStart();
  for (let v = first[node]; v < Math.min(first[node + 1], first[node] + 4); ++v) {
    lines.push(`\u2192 ${graph.type(v)}${graph.strides(v) === '' ? '' : ` strides ${graph.strides(v)}`}, ${bytes(graph.bytesOfValue(v))}`);
    const s = graph.storageOf()[v];
    if (s !== NONE && graph.storageBorn()[s] === node) lines.push(`   alive n${String(graph.lives().first[s])} to n${String(graph.lives().last[s])}${graph.savedAt()[s] === NONE ? '' : ', saved for backward'}`);
  }
  if (graph.matmul()[node] > 0) lines.push(`${flops(graph.matmul()[node])}${graph.hasTime ? `, ${seconds(graph.seconds()[node])}` : ''}`);
  if (graph.givenText(node) !== '') lines.push(`${visible(graph.header.given!.title, 60)}: ${visible(graph.givenText(node), 80)}`);
  const path = graph.modulePath(graph.moduleOf()[node]);
  if (path !== '') lines.push(`in ${visible(path, 160)}`);
  if (graph.source(node) !== '') lines.push(visible(graph.source(node), 160));
  return lines;
}

export function GraphView(): VNode {
  const seen = useApp();
  const { graph, state, store } = seen;
  const canvas = useRef<HTMLCanvasElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const drawing = useRef<Drawing | undefined>(undefined);
  const [tip, setTip] = useState<{ x: number; y: number; lines: string[] } | undefined>(undefined);
  const [said, setSaid] = useState('');
  const options = useMemo(
    () => optionsOf(graph, { state }),
    [graph, state.open, state.unfolded, state.phases, state.showViews, state.showParameters, state.around, state.path],
  );
  const picture = useMemo(() => {
    const boxes = boxesOf(graph, options);
    const layout = layoutOf(boxes, upwards(graph));
    return { graph, boxes, layout, options };
  }, [graph, options]);
  const colors = useMemo(() => coloring(graph, state.color, picture.boxes.items, state.side), [graph, picture, state.color, state.side]);
  const lit = useMemo(() => litBy(graph, state.selection), [graph, state.selection]);
  // After a module opens, the camera moves with the clicked box, so that it stays in place.
  const anchor = useRef<{ key: string; x: number; y: number } | undefined>(undefined);
  const scene = useRef<string>('');

  const itemOfSelection = (): number => {
    const { selection } = state;
    if (!selection) return NONE;
    if (selection.kind === 'cluster') return picture.boxes.items.find((item) => item.kind === 'cluster' && item.id === selection.id)?.index ?? NONE;
    const node = selection.kind === 'node' ? selection.id : selection.kind === 'storage' ? graph.storageBorn()[selection.id] : NONE;
    if (node !== NONE && node < graph.nodeCount) return picture.boxes.itemOf(node);
    if (selection.kind === 'module') return picture.boxes.items.find((item) => item.kind === 'cluster' && graph.clusterModule()[item.id] === selection.id)?.index ?? NONE;
    return NONE;
  };

  useEffect(() => {
    const own = new Drawing(canvas.current!, map.current!);
    drawing.current = own;
    if (window.shadowgraph) window.shadowgraph.drawing = own;
    return onChange(canvas.current!, () => own.request());
  }, []);

  useEffect(() => {
    const own = drawing.current!;
    own.setPicture({ ...picture, colors });
    own.lit = lit;
    const at = itemOfSelection();
    own.selected = at !== NONE && !picture.boxes.items[at].open ? at : NONE;
    const now = `${state.side} ${JSON.stringify(options.only?.length ?? '')} ${String(state.around?.node)} ${String(state.path?.from)} ${options.phases.join()}`;
    if (anchor.current) {
      const found = picture.boxes.items.find((item) => item.key === anchor.current!.key);
      if (found) {
        own.camera.x += picture.layout.x[found.index] - anchor.current.x;
        own.camera.y += picture.layout.y[found.index] - anchor.current.y;
      }
      anchor.current = undefined;
    } else if (scene.current !== now) {
      own.fit();
    }
    scene.current = now;
    own.request();
  }, [picture, colors, lit]);

  // Selecting an item in a closed box opens the boxes around it.
  useEffect(() => {
    const { selection } = state;
    if (!selection || options.only || selection.kind === 'operator') return;
    let target: { node: number } | { cluster: number } | undefined;
    if (selection.kind === 'node') target = { node: selection.id };
    if (selection.kind === 'storage' && selection.id < graph.storageCount && graph.storageBorn()[selection.id] !== NONE) target = { node: graph.storageBorn()[selection.id] };
    if (selection.kind === 'cluster') target = { cluster: selection.id };
    if (selection.kind === 'module') {
      const cluster = graph.clusterModule().indexOf(selection.id);
      if (cluster !== NONE) target = { cluster };
    }
    if (!target || ('node' in target && target.node >= graph.nodeCount)) return;
    // A folded copy is shown by the one drawn in its place.
    if ('cluster' in target && graph.clusterStandsFor()[target.cluster] !== NONE && !state.unfolded.includes(graph.clusterStandsFor()[target.cluster])) {
      target = { cluster: graph.clusterStandsFor()[target.cluster] };
    }
    const keys = pathTo(graph, picture.boxes, options, target);
    if (keys.length > 0) store.set({ open: [...options.open, ...keys] });
    else {
      const at = itemOfSelection();
      if (at !== NONE) drawing.current!.show(at);
    }
  }, [state.selection, picture]);

  const toggle = (item: Item): void => {
    if (item.kind !== 'cluster' && item.kind !== 'chunk') return;
    anchor.current = { key: item.key, x: picture.layout.x[item.index], y: picture.layout.y[item.index] };
    const open = new Set(options.open);
    if (item.open) open.delete(item.key);
    else open.add(item.key);
    setSaid(`${item.title} ${item.open ? 'closed' : 'opened'}`);
    store.set({ open: [...open] });
  };
  const select = (item: Item): void => {
    if (item.kind === 'node' || item.kind === 'omitted') store.select({ kind: 'node', id: item.id });
    if (item.kind === 'cluster') store.select({ kind: 'cluster', id: item.id });
    setSaid(`${item.title}, ${item.lines.join(', ')}`);
  };

  // ---- Pointer: drag to pan, pinch or scroll to zoom, click to select, double-click to open.
  const pointers = useRef(new Map<number, Point>());
  const dragged = useRef(0);
  const place = (event: PointerEvent | WheelEvent | MouseEvent): Point => {
    const box = canvas.current!.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const onDown = (event: PointerEvent): void => {
    canvas.current!.setPointerCapture(event.pointerId);
    pointers.current.set(event.pointerId, place(event));
    dragged.current = 0;
  };
  const onMove = (event: PointerEvent): void => {
    const own = drawing.current!;
    const at = place(event);
    const before = pointers.current.get(event.pointerId);
    if (before) {
      if (pointers.current.size === 2) {
        const other = [...pointers.current].find(([id]) => id !== event.pointerId)![1];
        const was = Math.hypot(before.x - other.x, before.y - other.y);
        const is = Math.hypot(at.x - other.x, at.y - other.y);
        if (was > 0) own.zoomAt((at.x + other.x) / 2, (at.y + other.y) / 2, is / was);
        dragged.current += 10;
      } else {
        own.camera.x -= (at.x - before.x) / own.camera.zoom;
        own.camera.y -= (at.y - before.y) / own.camera.zoom;
        dragged.current += Math.abs(at.x - before.x) + Math.abs(at.y - before.y);
        own.request();
      }
      pointers.current.set(event.pointerId, at);
      setTip(undefined);
      return;
    }
    const found = own.at(at.x, at.y);
    const item = found === NONE ? undefined : picture.boxes.items[found];
    const hover = item && !item.open ? found : NONE;
    if (hover !== own.hover) {
      own.hover = hover;
      own.request();
    }
    canvas.current!.style.cursor = item && own.onSign(found, at.x, at.y) ? 'pointer' : item && !item.open ? 'default' : 'grab';
    setTip(item && !item.open ? { x: at.x, y: at.y, lines: tooltipOf(graph, item) } : undefined);
  };
  const onUp = (event: PointerEvent): void => {
    const held = pointers.current.delete(event.pointerId);
    if (!held || dragged.current > 6) return;
    const own = drawing.current!;
    const at = place(event);
    const found = own.at(at.x, at.y);
    if (found === NONE) {
      store.select(undefined);
      return;
    }
    const item = picture.boxes.items[found];
    if (own.onSign(found, at.x, at.y)) toggle(item);
    else if (item.open && item.kind === 'cluster' && item.id === 0) store.select(undefined);
    else select(item);
  };
  const onWheel = (event: WheelEvent): void => {
    event.preventDefault();
    const at = place(event);
    if (event.shiftKey) {
      drawing.current!.camera.x += event.deltaY / drawing.current!.camera.zoom;
      drawing.current!.request();
    } else drawing.current!.zoomAt(at.x, at.y, Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)));
  };
  const onDouble = (event: MouseEvent): void => {
    const at = place(event);
    const found = drawing.current!.at(at.x, at.y);
    if (found !== NONE) toggle(picture.boxes.items[found]);
  };

  const moveTo = (event: PointerEvent): void => {
    const box = map.current!.getBoundingClientRect();
    drawing.current!.mapTo(event.clientX - box.left, event.clientY - box.top);
  };

  // ---- Keys
  const onKey = (event: KeyboardEvent): void => {
    const own = drawing.current!;
    const step = 60 / own.camera.zoom;
    const middle = { x: canvas.current!.clientWidth / 2, y: canvas.current!.clientHeight / 2 };
    const selected = itemOfSelection();
    const follow = (forward: boolean): void => {
      if (selected === NONE) return;
      const next = own.edgesAt(selected).filter((e) => (forward ? e.from : e.to) === selected).map((e) => (forward ? e.to : e.from));
      if (next.length > 0) select(picture.boxes.items[forward ? Math.min(...next) : Math.max(...next)]);
    };
    const beside = (by: number): void => {
      if (selected === NONE) {
        const first = picture.boxes.items.find((item) => !item.open && item.index > 0);
        if (first) select(first);
        return;
      }
      const siblings = picture.boxes.items[picture.boxes.items[selected].parent].children;
      const at = siblings.indexOf(selected) + by;
      if (at >= 0 && at < siblings.length) select(picture.boxes.items[siblings[at]]);
    };
    const keys: Record<string, () => void> = {
      '+': () => own.zoomAt(middle.x, middle.y, 1.25), '=': () => own.zoomAt(middle.x, middle.y, 1.25),
      '-': () => own.zoomAt(middle.x, middle.y, 0.8), '0': () => own.fit(),
      Escape: () => store.set({ selection: undefined, around: undefined, path: undefined }),
      Enter: () => { if (selected !== NONE) toggle(picture.boxes.items[selected]); },
      ' ': () => { if (selected !== NONE) toggle(picture.boxes.items[selected]); },
      ArrowDown: () => { if (event.shiftKey) { own.camera.y += step; own.request(); } else follow(true); },
      ArrowUp: () => { if (event.shiftKey) { own.camera.y -= step; own.request(); } else follow(false); },
      ArrowRight: () => { if (event.shiftKey) { own.camera.x += step; own.request(); } else beside(1); },
      ArrowLeft: () => { if (event.shiftKey) { own.camera.x -= step; own.request(); } else beside(-1); },
      '/': () => document.getElementById('search')?.focus(),
    };
    const act = keys[event.key] as (() => void) | undefined;
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  };

  const phases = phasesAtFirst(graph);
  const part = state.around ?? state.path;
  return (
    <div class="graph">
      <div class="tools">
        <Search />
        <label>
          color by{' '}
          <select value={state.color} onChange={(event) => store.set({ color: event.currentTarget.value as Mode })}>
            {MODES.filter(([mode]) => (mode !== 'difference' || seen.before !== undefined) && (mode !== 'given' || graph.header.given !== undefined)).map(([mode]) => <option key={mode} value={mode}>{modeName(graph, mode)}</option>)}
          </select>
        </label>
        <span class="phases">
          {phases.map((phase) => (
            <label key={phase}>
              <input
                type="checkbox"
                checked={options.phases.includes(phase)}
                onChange={() => {
                  const next = options.phases.includes(phase) ? options.phases.filter((p) => p !== phase) : [...options.phases, phase].sort((a, b) => a - b);
                  store.set({ phases: next });
                }}
              />{' '}
              {visible(graph.header.phases[phase], 40)}
            </label>
          ))}
        </span>
        <label><input type="checkbox" checked={state.showViews} onChange={() => store.set({ showViews: !state.showViews })} /> views</label>
        <label><input type="checkbox" checked={state.showParameters} onChange={() => store.set({ showParameters: !state.showParameters })} /> parameters</label>
        <label title="Calls of composite operators (linear, layer_norm) and checkpoints as boxes">
          <input type="checkbox" checked={state.composites} onChange={() => store.set({ composites: !state.composites })} /> calls
        </label>
        <span class="zoom">
          <button type="button" aria-label="Zoom in" onClick={() => drawing.current!.zoomAt(canvas.current!.clientWidth / 2, canvas.current!.clientHeight / 2, 1.4)}>+</button>
          <button type="button" aria-label="Zoom out" onClick={() => drawing.current!.zoomAt(canvas.current!.clientWidth / 2, canvas.current!.clientHeight / 2, 1 / 1.4)}>−</button>
          <button type="button" onClick={() => drawing.current!.fit()}>Fit</button>
          <button type="button" title="Close all modules" onClick={() => store.set({ open: [] })}>Close all</button>
          <button type="button" title="Back to the initial view" onClick={() => store.set({ open: undefined, unfolded: [] })}>Reset</button>
        </span>
      </div>
      {part && (
        <div class="part" role="status">
          {state.around && (
            <>
              around {nodeTitle(graph, state.around.node)}, {' '}
              <label>radius <input type="number" min={1} max={12} value={state.around.radius} onChange={(event) => store.set({ around: { node: state.around!.node, radius: Math.max(1, Number(event.currentTarget.value)) } })} /></label>
            </>
          )}
          {state.path && <>paths from {nodeTitle(graph, state.path.from)} to {nodeTitle(graph, state.path.to)}</>}
          : {exact(options.only?.length ?? 0)} operators{(options.only?.length ?? 0) >= MOST_IN_PART && ', truncated'}
          {options.only?.length === 0 && ' (not connected)'}
          <button type="button" onClick={() => store.set({ around: undefined, path: undefined })}>Whole graph</button>
        </div>
      )}
      <div class="drawing">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-label="The graph. Arrow keys move between boxes, Enter opens, slash searches. The tables contain the same data."
          onPointerDown={onDown}
          onPointerMove={onMove}
          onPointerUp={onUp}
          onPointerCancel={(event) => pointers.current.delete(event.pointerId)}
          onPointerLeave={() => {
            setTip(undefined);
            drawing.current!.hover = NONE;
            drawing.current!.request();
          }}
          onDblClick={onDouble}
          onWheel={onWheel}
          onKeyDown={onKey}
        />
        <canvas
          ref={map}
          class="map"
          aria-hidden="true"
          onPointerDown={(event) => {
            map.current!.setPointerCapture(event.pointerId);
            moveTo(event);
          }}
          onPointerMove={(event) => {
            if (event.buttons !== 0) moveTo(event);
          }}
        />
        <LegendBox colors={colors} name={modeName(graph, state.color)} />
        {tip && (
          <div class="tip" style={{ left: `${String(Math.min(tip.x + 14, Math.max(0, (canvas.current?.clientWidth ?? 400) - 330)))}px`, top: `${String(tip.y + 16)}px` }}>
            {tip.lines.map((line, i) => <div key={i} class={i === 0 ? 'first' : ''}><bdi>{line}</bdi></div>)}
          </div>
        )}
        <div class="say" aria-live="polite">{said}</div>
      </div>
    </div>
  );
}

function modeName(graph: Graph, mode: Mode): string {
  if (mode === 'given' && graph.header.given) return visible(graph.header.given.title, 60);
  return MODES.find(([m]) => m === mode)?.[1] ?? mode;
}

function LegendBox({ colors, name }: { colors: Coloring; name: string }): VNode {
  const { legend } = colors;
  return (
    <details class="legend" open={window.innerWidth > 700}>
      <summary>{name}</summary>
      {legend.entries?.map((entry) => <span key={entry.label} class="entry"><i style={{ background: entry.fill }} />{visible(entry.label, 60)}</span>)}
      {legend.scale && (
        <div class="scale">
          <span>{legend.scale.low}</span>
          <i class="gradient" />
          <span>{legend.scale.high}</span>
        </div>
      )}
      {legend.note && <span class="quiet">{legend.note}</span>}
      <EdgeLegend />
      <span class="quiet">edges: width by bytes</span>
    </details>
  );
}

function Search(): VNode {
  const { graph, store, state } = useApp();
  const [query, setQuery] = useState('');
  const found = useMemo(() => find(graph, query), [graph, query]);
  const [at, setAt] = useState(0);
  const go = (i: number): void => {
    if (found.nodes.length === 0) return;
    const next = (i + found.nodes.length) % found.nodes.length;
    setAt(next);
    store.set({ selection: { kind: 'node', id: found.nodes[next] }, around: undefined, path: undefined });
  };
  const [shown, setShown] = useState(false);
  return (
    <span class="search">
      <input
        id="search"
        type="search"
        placeholder="Find: conv, layer1.0, f32[32,64, n12, %7"
        aria-label="Find operators, modules, shapes, numbers"
        value={query}
        onFocus={() => setShown(true)}
        onBlur={() => setTimeout(() => setShown(false), 200)}
        onInput={(event) => {
          setQuery(event.currentTarget.value);
          setAt(-1);
          setShown(true);
        }}
        onKeyDown={(event) => {
          if (event.key === 'Enter') go(event.shiftKey ? at - 1 : at + 1);
          if (event.key === 'Escape') {
            setQuery('');
            (event.currentTarget as HTMLElement).blur();
          }
        }}
      />
      {query !== '' && <span class="quiet count">{found.count === 0 ? 'no match' : `${at >= 0 ? `${String(at + 1)} of ` : ''}${exact(found.count)}`}</span>}
      {shown && query !== '' && found.nodes.length > 0 && (
        <ul class="results">
          {found.nodes.slice(0, 30).map((node, i) => (
            <li key={node}>
              <button type="button" class={state.selection?.kind === 'node' && state.selection.id === node ? 'chosen' : ''} onClick={() => go(i)}>
                <bdi>{nodeTitle(graph, node)}</bdi>
              </button>
            </li>
          ))}
          {found.count > 30 && <li class="quiet">and {exact(found.count - 30)} more; press Enter for the next</li>}
        </ul>
      )}
    </span>
  );
}
