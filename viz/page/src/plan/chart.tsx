// Plans by step time and memory. Simulated ones have a ring; the chosen one has the accent color.
import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { bytes, percent, seconds } from '../units';
import { KNOBS, marks, valuesOf, type PlanData, type Point } from './data';

const WIDTH = 900, HEIGHT = 360, LEFT = 74, RIGHT = 22, TOP = 22, FOOT = 42;
const FARTHEST = 1.6; // times the best
const GIB = 2 ** 30;
// Color-blind safe (Okabe and Ito).
export const FILLS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#8a8678', '#9467bd', '#bcbd22', '#17becf'];

export function PlanChart({ plan }: { plan: PlanData }): VNode {
  const [knob, setKnob] = useState(0);
  const [pointed, setPointed] = useState<Point>();
  const best = plan.simulated[0];
  const near = plan.estimated_plans.filter((point) => point.seconds <= FARTHEST * best.seconds && point.text !== best.text);
  const values = valuesOf([best, ...near], knob);
  const shown = pointed ?? best;
  const least = 0.98 * Math.min(plan.bound_seconds, best.seconds);
  const most = 1.02 * Math.max(best.seconds, ...near.map((point) => point.seconds));
  const fullest = 1.06 * Math.max(plan.memory, best.bytes, ...near.map((point) => point.bytes));
  const x = (value: number): number => LEFT + ((value - least) / (most - least)) * (WIDTH - LEFT - RIGHT);
  const y = (value: number): number => HEIGHT - FOOT - (value / fullest) * (HEIGHT - FOOT - TOP);
  const fill = (point: Point): string => FILLS[values.indexOf(KNOBS[knob].of(point.plan)) % FILLS.length];
  const say = (point: Point): Record<string, unknown> => ({ onPointerEnter: () => setPointed(point), onPointerLeave: () => setPointed(undefined) });
  const difference = shown.seconds / best.seconds - 1;
  return (
    <section>
      <h2>Plans by step time and memory</h2>
      <div class="plan-tools">
        <label>color by{' '}
          <select value={knob} onChange={(event) => setKnob(Number(event.currentTarget.value))}>
            {KNOBS.map(({ name }, i) => <option key={name} value={i}>{name}</option>)}
          </select>
        </label>
        {values.slice(0, FILLS.length).map((value, i) => <span key={value} class="entry"><i style={{ background: FILLS[i] }} />{String(value)}</span>)}
      </div>
      <svg class="plan-chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label="Plans by step time and peak memory of a device">
        {marks(least, most, 7).map((value) => (
          <g key={value}>
            <path d={`M${x(value)} ${TOP}V${HEIGHT - FOOT}`} stroke="var(--line)" stroke-width="0.6" />
            <text x={x(value)} y={HEIGHT - FOOT + 15} text-anchor="middle">{seconds(value)}</text>
          </g>
        ))}
        {marks(0, fullest / GIB, 5).map((value) => (
          <g key={value}>
            <path d={`M${LEFT} ${y(value * GIB)}H${WIDTH - RIGHT}`} stroke="var(--line)" stroke-width="0.6" />
            <text x={LEFT - 7} y={y(value * GIB) + 4} text-anchor="end">{bytes(value * GIB)}</text>
          </g>
        ))}
        <text x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">step time</text>
        <path d={`M${LEFT} ${y(plan.memory)}H${WIDTH - RIGHT}`} stroke="var(--accent)" stroke-dasharray="5 4" />
        <text x={WIDTH - RIGHT} y={y(plan.memory) - 5} text-anchor="end" fill="var(--accent)">device memory</text>
        <path d={`M${x(plan.bound_seconds)} ${TOP}V${HEIGHT - FOOT}`} stroke="var(--link)" stroke-dasharray="5 4" />
        <text x={x(plan.bound_seconds) + 4} y={HEIGHT - FOOT - 6} fill="var(--link)">lower bound</text>
        {near.map((point) => <circle key={point.text} class="plan-point" cx={x(point.seconds)} cy={y(point.bytes)} r="4.5" fill={fill(point)} fill-opacity="0.75" {...say(point)}><title>{point.text}</title></circle>)}
        {plan.simulated.map((point, i) => (
          <circle key={`simulated ${point.text}`} class="plan-point" cx={x(point.seconds)} cy={y(point.bytes)} r={i === 0 ? 8 : 6} fill={fill(point)} stroke={i === 0 ? 'var(--accent)' : 'var(--text)'} stroke-width={i === 0 ? 3 : 1.5} {...say(point)}><title>{point.text}</title></circle>
        ))}
        <text x={x(best.seconds) + 13} y={y(best.bytes) + 4} font-weight="600">chosen</text>
      </svg>
      <p class="plan-said" aria-live="polite">
        <b>{shown.text}</b>: {seconds(shown.seconds)}{shown === best ? '' : ` (${difference > 0 ? '+' : ''}${percent(difference)})`}, {bytes(shown.bytes)}.{' '}
        <span class="quiet">
          {near.length} other plans by per-layer estimates; ringed ones are simulated
          {plan.estimated_plans.length > near.length + 1 ? `; plans slower than ${FARTHEST} times the best are omitted` : ''}. All other plans are slower by their lower bound, or do not fit.
        </span>
      </p>
    </section>
  );
}
