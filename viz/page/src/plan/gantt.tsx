// The schedule of each rank, and its live bytes.
import type { VNode } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { fitCanvas, onChange, theme } from '../theme';
import { bytes, seconds } from '../units';
import { ACTION, MILLION, type PlanData } from './data';

// By kind of work, for even and odd micro-batches: as in viz/plans.cpp.
const WORKS = [
  { name: 'forward', letter: 'F', fills: ['#3b75af', '#7fb0dc'] },
  { name: 'backward', letter: 'B', fills: ['#2c7a4b', '#76b88f'] },
  { name: 'input gradients', letter: 'I', fills: ['#c8781e', '#eeb46f'] },
  { name: 'weight gradients', letter: 'W', fills: ['#7c5295', '#b795cb'] },
];
const LEFT = 62, RIGHT = 84, FOOT = 26, BOXES = 18, ROW = 44, MOST_ROWS = 32;

interface Window { begin: number; end: number }

// Returns the ranks to draw: all, or as many as a screen holds, evenly spaced.
export function ranksShown(ranks: number): number[] {
  if (ranks <= MOST_ROWS) return [...Array(ranks).keys()];
  return [...Array(MOST_ROWS).keys()].map((i) => Math.round((i * (ranks - 1)) / (MOST_ROWS - 1)));
}

function draw(canvas: HTMLCanvasElement, plan: PlanData, shown: Window): void {
  const { width, height, context } = fitCanvas(canvas);
  const colors = theme();
  context.fillStyle = colors.back;
  context.fillRect(0, 0, width, height);
  context.font = '11px system-ui, sans-serif';
  const room = width - LEFT - RIGHT;
  const x = (at: number): number => LEFT + ((at - shown.begin) / (shown.end - shown.begin)) * room;
  const fullest = Math.max(plan.memory, ...plan.run.ranks.map((rank) => rank.peak_bytes));
  ranksShown(plan.run.ranks.length).forEach((rank, row) => {
    const top = row * ROW + 6, line = ROW - BOXES - 8;
    const y = (live: number): number => top + BOXES + line - (live / fullest) * (line - 2);
    context.fillStyle = colors.quiet;
    context.textAlign = 'right';
    context.fillText(`rank ${rank}`, LEFT - 8, top + 13);
    context.textAlign = 'left';
    context.fillText(bytes(plan.run.ranks[rank].peak_bytes), LEFT + room + 6, top + BOXES + 10);
    context.save();
    context.beginPath();
    context.rect(LEFT, top, room, ROW);
    context.clip();
    const actions = plan.actions[rank];
    context.beginPath();
    context.moveTo(LEFT, y(plan.run.ranks[rank].resident_bytes));
    let live = plan.run.ranks[rank].resident_bytes;
    for (let i = 0; i < actions.length; i += ACTION) {
      const begin = x(actions[i + 3]), end = x(actions[i + 4]);
      if (end >= LEFT && begin <= LEFT + room) {
        const work = WORKS[actions[i]];
        context.fillStyle = work.fills[actions[i + 2] % 2];
        context.fillRect(begin, top, Math.max(0.5, end - begin - (end - begin > 3 ? 0.6 : 0)), BOXES);
        const name = `${work.letter}${actions[i + 2]}`;
        if (end - begin > 9 * name.length) {
          context.fillStyle = actions[i + 2] % 2 === 0 ? '#ffffff' : '#1b1f24';
          context.textAlign = 'center';
          context.fillText(name, (begin + end) / 2, top + 13);
        }
      }
      context.lineTo(end, y(live));
      live = actions[i + 5];
      context.lineTo(end, y(live));
    }
    context.lineTo(LEFT + room, y(live));
    context.strokeStyle = colors.edge;
    context.stroke();
    context.strokeStyle = colors.accent;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(LEFT, y(plan.memory));
    context.lineTo(LEFT + room, y(plan.memory));
    context.stroke();
    context.restore();
  });
  context.fillStyle = colors.quiet;
  context.textAlign = 'center';
  for (let i = 0; i <= 6; ++i) {
    const at = shown.begin + ((shown.end - shown.begin) * i) / 6;
    context.fillText(seconds((at / MILLION) * plan.run.seconds), x(at), height - 8);
  }
}

export function Gantt({ plan }: { plan: PlanData }): VNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [shown, setShown] = useState<Window>({ begin: 0, end: MILLION });
  useEffect(() => onChange(canvas.current!, () => draw(canvas.current!, plan, shown)), [plan, shown]);
  const span = shown.end - shown.begin;
  const move = (begin: number, wide: number): void => {
    const length = Math.min(MILLION, Math.max(1000, wide));
    const first = Math.min(MILLION - length, Math.max(0, begin));
    setShown({ begin: first, end: first + length });
  };
  const used = new Set(plan.actions.flatMap((actions) => actions.filter((_, i) => i % ACTION === 0)));
  const rows = ranksShown(plan.run.ranks.length).length;
  return (
    <section>
      <h2>Schedule and live bytes by rank</h2>
      <div class="plan-tools">
        {WORKS.map((work, i) => used.has(i) && <span key={work.name} class="entry"><i style={{ background: work.fills[0] }} />{work.letter}: {work.name}</span>)}
        <span class="quiet">line: live bytes; dashed: device memory{rows < plan.run.ranks.length ? `; ${rows} of ${plan.run.ranks.length} ranks` : ''}</span>
        <span class="zoom" role="group" aria-label="Visible part of the step">
          <button type="button" aria-label="Earlier" disabled={shown.begin === 0} onClick={() => move(shown.begin - span / 2, span)}>←</button>
          <button type="button" aria-label="Zoom in" onClick={() => move(shown.begin + (shown.begin === 0 ? 0 : span / 4), span / 2)}>+</button>
          <button type="button" aria-label="Zoom out" disabled={span === MILLION} onClick={() => move(shown.begin - span / 2, span * 2)}>-</button>
          <button type="button" aria-label="Later" disabled={shown.end === MILLION} onClick={() => move(shown.begin + span / 2, span)}>→</button>
          <button type="button" disabled={span === MILLION} onClick={() => move(0, MILLION)}>whole step</button>
        </span>
      </div>
      <canvas ref={canvas} class="plan-gantt" style={{ height: `${rows * ROW + FOOT + 6}px` }} role="img" aria-label={`A step of ${seconds(plan.run.seconds)} on ${plan.run.ranks.length} ranks, with a pipeline bubble of ${(100 * plan.run.bubble).toFixed(1)} percent`} />
    </section>
  );
}
