// Memory and stages by rank.
import type { VNode } from 'preact';
import { bytes, percent, visible } from '../units';
import { FILLS } from './chart';
import { ranksShown } from './gantt';
import type { PlanData } from './data';

const PARTS = ['parameters', 'optimizer state', 'gradients', 'activations', 'other', 'reserved, unused'];

function partsOf(plan: PlanData, rank: number): number[] {
  const { ranks, stages } = plan.run;
  const of = ranks[rank];
  const sum = (figure: (stage: (typeof stages)[0]) => number): number => of.stages.reduce((all, stage) => all + figure(stages[stage]), 0);
  const parameters = sum((stage) => stage.parameter_bytes);
  const state = sum((stage) => stage.optimizer_state_bytes);
  const gradients = sum((stage) => stage.gradient_bytes);
  const rest = Math.max(0, of.peak_bytes - parameters - state - gradients - of.activations_peak_bytes);
  const reserved = Math.max(0, (of.reserved_peak_bytes ?? of.peak_bytes) - of.peak_bytes);
  return [parameters, state, gradients, of.activations_peak_bytes, rest, reserved];
}

// Formats " (3+2s)": three layers fully recomputed, two selectively.
function again(stage: { recomputed: number; selective: number }): string {
  const parts = [stage.recomputed > 0 ? `${stage.recomputed}` : '', stage.selective > 0 ? `${stage.selective}s` : ''].filter(Boolean);
  return parts.length > 0 ? ` (${parts.join('+')})` : '';
}

export function Ranks({ plan }: { plan: PlanData }): VNode {
  const stages = plan.simulated[0].plan.stages;
  const shown = ranksShown(plan.run.ranks.length);
  const full = Math.max(plan.memory, ...shown.map((rank) => partsOf(plan, rank).reduce((a, b) => a + b, 0)));
  return (
    <section>
      <h2>Memory by rank</h2>
      <div class="plan-tools">{PARTS.map((name, i) => <span key={name} class="entry"><i style={{ background: FILLS[i] }} />{name}</span>)}</div>
      <table class="compare-table plan-table">
        <thead><tr><th>rank</th><th class="plan-bar">at the peak, of {bytes(plan.memory)}</th><th class="number">reserved</th><th class="number">compute</th><th>stages: layers (recomputed; s: selective)</th></tr></thead>
        <tbody>
          {shown.map((rank) => {
            const of = plan.run.ranks[rank];
            return (
              <tr key={rank}>
                <th>{rank}</th>
                <td class="plan-bar">
                  <span class="plan-stack">
                    {partsOf(plan, rank).map((part, i) => <i key={PARTS[i]} title={`${PARTS[i]}: ${bytes(part)}`} style={{ width: `${(100 * part) / full}%`, background: FILLS[i] }} />)}
                    <b style={{ left: `${(100 * plan.memory) / full}%` }} />
                  </span>
                </td>
                <td class="number">{bytes(of.reserved_peak_bytes ?? of.peak_bytes)}</td>
                <td class="number">{percent(of.computing_seconds / plan.run.seconds)}</td>
                <td>{of.stages.map((stage) => {
                  const planned = stages[stage];
                  return planned ? <span key={stage} class="plan-stage" title={visible(planned.begins || 'start of the model')}>{planned.units}{again(planned)} </span> : null;
                })}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}
