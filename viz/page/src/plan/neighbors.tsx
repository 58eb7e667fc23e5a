// The cost of another value of one option, with all other options free.
import type { VNode } from 'preact';
import { bytes, percent, seconds } from '../units';
import type { Neighbor, PlanData } from './data';

function byKnob(neighbors: Neighbor[]): [string, Neighbor[]][] {
  const found = new Map<string, Neighbor[]>();
  for (const neighbor of neighbors) found.set(neighbor.option, [...(found.get(neighbor.option) ?? []), neighbor]);
  for (const rows of found.values()) rows.sort((a, b) => (a.seconds ?? Infinity) - (b.seconds ?? Infinity));
  return [...found];
}

export function Neighbors({ plan }: { plan: PlanData }): VNode {
  const best = plan.simulated[0];
  const slower = (neighbor: Neighbor): number => neighbor.seconds! / best.estimated_seconds - 1;
  const most = Math.max(0.01, ...plan.neighbors.filter((neighbor) => neighbor.seconds !== undefined).map(slower));
  return (
    <section>
      <h2>Alternatives by option</h2>
      <p class="quiet">The best plan for each value, with all other options free, by per-layer estimates.</p>
      <div class="columns">
        {byKnob(plan.neighbors).map(([knob, rows]) => {
          const planned = rows.filter((row) => row.seconds !== undefined);
          const others = rows.filter((row) => row.seconds === undefined);
          return (
            <div key={knob}>
              <h3>{knob}</h3>
              <table class="compare-table plan-table">
                <tbody>
                  {planned.map((row) => (
                    <tr key={row.value} title={row.plan}>
                      <th>{row.value}</th>
                      <td class="number"><i class="share" style={{ width: `${Math.max(0, (slower(row) / most) * 100)}%` }} />{`${slower(row) >= 0 ? '+' : ''}${percent(slower(row))}`}</td>
                      <td class="number">{seconds(row.seconds!)}</td>
                      <td class="number">{bytes(row.bytes!)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              {[...new Set(others.map((row) => row.why_not))].map((why) => (
                <p key={why} class="quiet">{others.filter((row) => row.why_not === why).map((row) => row.value).join(', ')}: {why}</p>
              ))}
            </div>
          );
        })}
      </div>
    </section>
  );
}
