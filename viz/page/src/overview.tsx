// The overview: summary, findings, costs by module, and what is not covered. Every card links to its details.
import type { ComponentChildren, VNode } from 'preact';
import { useEffect, useMemo, useRef } from 'preact/hooks';
import { mainTimeline, useApp } from './app_context';
import { running } from './memory';
import { drawTimeline, KindEntries } from './memory_view';
import type { Graph } from './graph';
import type { State } from './state';
import { onChange } from './theme';
import { bytes, count, exact, flops, percent, seconds, visible } from './units';

function Card(props: { title: string; value: string; to?: Partial<State>; children?: ComponentChildren }): VNode {
  const { store } = useApp();
  const inside = (
    <>
      <span class="name">{props.title}</span>
      <span class="value">{props.value}</span>
      <span class="quiet">{props.children}</span>
    </>
  );
  return props.to ? <button type="button" class="card" onClick={() => store.set(props.to!)}>{inside}</button> : <div class="card">{inside}</div>;
}

function sum(values: Record<string, number> | undefined): number {
  return Object.values(values ?? {}).reduce((a, b) => a + b, 0);
}

function SmallTimeline({ graph }: { graph: Graph }): VNode {
  const { store } = useApp();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current!;
    return onChange(element, () => drawTimeline(element, graph, mainTimeline(graph), running(graph)));
  }, [graph]);
  return (
    <button type="button" class="small-timeline" aria-label="Memory over the step; opens the memory view" onClick={() => store.set({ view: 'memory', step: mainTimeline(graph).peakStep })}>
      <canvas ref={canvas} />
    </button>
  );
}

// Returns the modules with the largest values of a column, without containers dominated by one child.
function topModules(graph: Graph, column: ArrayLike<number>, most: number): number[] {
  const children = graph.moduleChildren();
  const found: number[] = [];
  for (let m = 1; m < graph.moduleCount; ++m) {
    if (column[m] <= 0) continue;
    // Skip a container whose child has nearly all of its value.
    let largest = 0;
    for (let k = children.start[m]; k < children.start[m + 1]; ++k) largest = Math.max(largest, column[children.items[k]]);
    if (graph.moduleClass(m) === '' || largest > 0.9 * column[m] || column[m] > 0.9 * column[0]) continue;
    found.push(m);
  }
  found.sort((a, b) => column[b] - column[a]);
  // Skip modules inside one that is already listed.
  const kept: number[] = [];
  for (const m of found) {
    if (kept.length >= most) break;
    if (!kept.some((other) => graph.isInModule(m, other))) kept.push(m);
  }
  return kept;
}

function Bars({ title, graph, column, format }: { title: string; graph: Graph; column: Float64Array; format: (v: number) => string }): VNode | null {
  const { store } = useApp();
  const top = useMemo(() => topModules(graph, column, 8), [graph, column]);
  if (top.length === 0) return null;
  const high = column[top[0]];
  return (
    <section>
      <h2>{title}</h2>
      <ul class="bars">
        {top.map((m) => (
          <li key={m}>
            <button type="button" onClick={() => store.set({ view: 'graph', selection: { kind: 'module', id: m } })}>
              <i style={{ width: `${String((column[m] / high) * 100)}%` }} />
              <bdi>{visible(graph.modulePath(m), 80)}</bdi> <span class="quiet">{visible(graph.moduleClass(m), 40)}</span>
              <b>{format(column[m])}</b>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function Overview(): VNode {
  const { graph, store, before, saved } = useApp();
  const other = before?.header.title ?? saved?.title;
  const { profile, metadata } = graph.header;
  const memory = profile.device_memory as Record<string, number> | undefined;
  const unknownCalls = callsOf(profile.unknown_scratch);
  const uncoveredCalls = callsOf(profile.uncovered_operators);
  const untimed = profile.time?.uncovered ?? [];
  const untimedCalls = callsOf(untimed);
  const peak = profile.peak;
  const both = useMemo(() => {
    const a = graph.moduleFigure('forward_flops');
    const b = graph.moduleFigure('backward_flops');
    return a.map((v, i) => v + b[i]);
  }, [graph]);
  const table = (name: State['table'], sort: string, filter = ''): Partial<State> => ({ view: 'tables', table: name, sort, filter });
  return (
    <div class="overview">
      <section class="cards" aria-label="Summary">
        {profile.fits && (
          <Card title={profile.fits.fits ? 'fits' : 'does not fit'} value={bytes(profile.fits.bytes)} to={{ view: 'memory' }}>
            {visible(profile.fits.text, 200)}
          </Card>
        )}
        {profile.steady_peak && <Card title="steady-state peak" value={bytes(profile.steady_peak.bytes)}>in {visible(profile.steady_peak.phase)}, with optimizer state from the start of the step</Card>}
        <Card title={profile.steady_peak ? 'peak of the recorded step' : 'peak memory'} value={bytes(peak.bytes)} to={{ view: 'memory', step: peak.node, selection: { kind: 'node', id: peak.node } }}>
          in {visible(peak.phase)}, at n{peak.node} {visible(peak.op, 60)}{peak.module ? ` of ${visible(peak.module, 60)}` : ''}
          {unknownCalls > 0 && '; lower bound'}
        </Card>
        {profile.saved_bytes > 0 && (
          <Card title="saved for backward" value={bytes(profile.saved_bytes)} to={table('storages', '-bytes', 'autograd')}>
            {bytes(profile.saved_activation_bytes)} of it activations
          </Card>
        )}
        {memory?.reserved_peak_bytes !== undefined && (
          <Card title="reserved by the allocator" value={bytes(memory.reserved_peak_bytes)} to={{ view: 'memory' }}>
            {bytes(memory.allocated_peak_bytes)} allocated; {bytes(memory.footprint_bytes)} on the device, with an assumed context
          </Card>
        )}
        {profile.out_of_memory && <Card title="does not fit" value="out of memory">{visible(profile.out_of_memory, 300)}</Card>}
        <Card title="parameters" value={count(profile.parameters)} to={table('modules', '-parameters')}>
          {bytes(profile.parameter_bytes)}{profile.buffers > 0 && `, and ${bytes(profile.buffer_bytes)} of buffers`}
        </Card>
        <Card title="matmul FLOPs" value={flops(sum(profile.flops))} to={table('operators', '-flops')}>
          {Object.entries(profile.flops ?? {}).filter(([, value]) => value > 0).sort(([a], [b]) => graph.header.phases.indexOf(a) - graph.header.phases.indexOf(b)).map(([phase, value]) => `${visible(phase, 30)} ${count(value)}`).join(', ')}
          {uncoveredCalls > 0 && '; lower bound'}
        </Card>
        {profile.time && (
          <Card title="estimated time" value={seconds(profile.time.seconds)} to={table('operators', '-time')}>
            on {visible(profile.time.spec, 60)}{profile.time.flop_utilization !== undefined && `, ${percent(profile.time.flop_utilization)} of peak FLOPs`}
            {untimedCalls > 0 && '; lower bound'}
          </Card>
        )}
        <Card title="operators" value={exact(graph.nodeCount)} to={{ view: 'graph' }}>
          {exact(graph.moduleCount - 1)} modules, {exact(graph.storageCount)} storages
        </Card>
      </section>
      <section>
        <h2>Memory over {profile.steady_peak ? 'a step of the steady state' : 'the step'}</h2>
        <SmallTimeline graph={graph} />
        <div class="kinds"><KindEntries graph={graph} timeline={mainTimeline(graph)} step={mainTimeline(graph).peakStep} /><span class="quiet">at the peak</span></div>
      </section>
      {(profile.findings?.length ?? 0) > 0 && (
        <section>
          <h2>Findings</h2>
          <ol class="findings">
            {profile.findings!.map((finding) => (
              <li key={finding.name + finding.seen}>
                <b>{visible(finding.name).replaceAll('-', ' ')}</b>
                {finding.bytes ? <span class="tag">{bytes(finding.bytes)}</span> : null}
                {finding.seconds ? <span class="tag">{seconds(finding.seconds)}</span> : null}
                <div>{visible(finding.seen, 1000)}</div>
                <div class="quiet">→ {visible(finding.remedy, 1000)}</div>
              </li>
            ))}
          </ol>
        </section>
      )}
      <div class="columns">
        <Bars title="FLOPs by module" graph={graph} column={both} format={flops} />
        <Bars title="Saved for backward by module" graph={graph} column={graph.moduleFigure('saved')} format={bytes} />
        {graph.hasTime && <Bars title="Time by module" graph={graph} column={graph.moduleSeconds()} format={seconds} />}
        <section>
          <h2>Coverage</h2>
          {unknownCalls + uncoveredCalls === 0 && <p>FLOPs and scratch memory of all operators are known.</p>}
          <OpCounts rows={profile.uncovered_operators}>{exact(uncoveredCalls)} calls have no FLOP formula; FLOPs and times are lower bounds.</OpCounts>
          <OpCounts rows={untimed}>Part of the time of {exact(untimedCalls)} calls is unknown; the time is a lower bound.</OpCounts>
          <OpCounts rows={profile.unknown_scratch}>The scratch memory of {exact(unknownCalls)} calls is unknown; the peak is a lower bound.</OpCounts>
        </section>
        <section>
          <h2>Capture</h2>
          <table class="facts">
            <tbody>
              {metadata.map(([key, value]) => <tr key={key}><th scope="row">{visible(key, 60)}</th><td><bdi>{visible(value, 300)}</bdi></td></tr>)}
              {profile.capture_seconds !== undefined && <tr><th scope="row">capture time</th><td>{seconds(profile.capture_seconds)}</td></tr>}
              {graph.header.guards > 0 && <tr><th scope="row">guards on data or sizes</th><td>{exact(graph.header.guards)}</td></tr>}
              <tr><th scope="row">memory on</th><td>{visible(profile.device)}</td></tr>
              <tr><th scope="row">libtorch</th><td>{visible(graph.header.libtorch)}</td></tr>
              <tr><th scope="row">shadowgraph</th><td>{visible(graph.header.shadowgraph)}</td></tr>
            </tbody>
          </table>
          {other !== undefined && <p><button type="button" onClick={() => store.set({ view: 'compare' })}>Compare with {visible(other, 80)}</button></p>}
        </section>
      </div>
    </div>
  );
}

function callsOf(rows: readonly { count: number }[]): number {
  return rows.reduce((total, row) => total + row.count, 0);
}

function OpCounts({ rows, children }: { rows: readonly { op: string; count: number }[]; children: ComponentChildren }): VNode | null {
  if (callsOf(rows) === 0) return null;
  return (
    <>
      <p>{children}</p>
      <ul>{rows.slice(0, 12).map((row) => <li key={row.op}><OpLink op={row.op} /> ×{exact(row.count)}</li>)}</ul>
    </>
  );
}

function OpLink({ op }: { op: string }): VNode {
  const { store } = useApp();
  return <button type="button" class="link" onClick={() => store.set({ view: 'tables', table: 'operators', filter: '', sort: '', selection: { kind: 'operator', id: op } })}>{visible(op, 80)}</button>;
}
