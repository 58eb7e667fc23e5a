// The page of a plan: summary, alternatives, schedule and memory by rank, search.
import type { ComponentChildren, VNode } from 'preact';
import { ThemeButton } from '../theme_button';
import { bytes, exact, percent, seconds, visible } from '../units';
import { PlanChart } from './chart';
import type { PlanData } from './data';
import { Gantt } from './gantt';
import { Neighbors } from './neighbors';
import { Ranks } from './ranks';

function Card(props: { title: string; value: string; children?: ComponentChildren }): VNode {
  return <div class="card"><span class="name">{props.title}</span><span class="value">{props.value}</span><span class="quiet">{props.children}</span></div>;
}

function Cards({ plan }: { plan: PlanData }): VNode {
  const best = plan.simulated[0];
  const filled = best.plan.data * best.plan.microbatches * best.plan.micro_batch;
  return (
    <section class="cards">
      <Card title="Step time" value={seconds(best.seconds)}>
        {exact(plan.batch)} samples{plan.sequence > 0 ? ` of ${exact(plan.sequence)} tokens; ${exact(plan.tokens_per_second_per_device)} tokens/s per device` : ''}
        {filled > plan.batch ? `; ${exact(filled - plan.batch)} of ${exact(filled)} samples are padding, since the batch is not divisible` : ''}
      </Card>
      <Card title="MFU" value={plan.model_flops_share > 0 ? percent(plan.model_flops_share) : 'unknown'}>model FLOPs utilization, without recompute</Card>
      <Card title="Peak per device" value={bytes(best.bytes)}>of {bytes(plan.memory)} available for tensors</Card>
      <Card title="Gap to the bound" value={percent(1 - plan.bound_seconds / best.seconds)}>lower bound {seconds(plan.bound_seconds)}, by per-layer estimates</Card>
      <Card title="Pipeline bubble" value={percent(plan.run.bubble)}>of the step, including transfers</Card>
    </section>
  );
}

function Search({ plan }: { plan: PlanData }): VNode {
  return (
    <section>
      <h2>Search</h2>
      <p>{Object.entries(plan.counted).map(([what, count]) => `${exact(count)} ${what}`).join(', ')}.</p>
      <table class="compare-table plan-table">
        <thead><tr><th>simulated plan</th><th class="number">step time</th><th class="number">peak</th><th class="number">estimated time</th><th class="number">estimated peak</th></tr></thead>
        <tbody>
          {plan.simulated.map((point) => (
            <tr key={point.text}><th>{point.text}</th><td class="number">{seconds(point.seconds)}</td><td class="number">{bytes(point.bytes)}</td><td class="number">{seconds(point.estimated_seconds)}</td><td class="number">{bytes(point.estimated_bytes)}</td></tr>
          ))}
        </tbody>
      </table>
      {plan.notes.map((note) => <p key={note} class="quiet">{visible(note, 1000)}</p>)}
    </section>
  );
}

export function PlanPage({ plan }: { plan: PlanData }): VNode {
  const best = plan.simulated[0];
  return (
    <>
      <header>
        <h1><bdi>{visible(plan.model, 120)}</bdi> <span class="quiet">on {exact(plan.devices)} x {visible(plan.device_title, 80)}</span></h1>
        <span class="right">
          <button type="button" class="plain" onClick={() => window.print()}>Print</button>
          <ThemeButton />
        </span>
      </header>
      <main>
        <div class="overview">
          <p class="plan-name">{best.text}</p>
          <Cards plan={plan} />
          <PlanChart plan={plan} />
          <Neighbors plan={plan} />
          <Gantt plan={plan} />
          <Ranks plan={plan} />
          <Search plan={plan} />
        </div>
      </main>
    </>
  );
}
