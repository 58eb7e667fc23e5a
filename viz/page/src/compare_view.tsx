// Comparison of two graphs: totals, peak memory, modules, operators, added and removed nodes.
import type { VNode } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { mainTimeline, useApp } from './app_context';
import { atPeak, changedNodes, figures, kindsAtPeak, modules, operators, sideOfGraph, sideOfProfile, type Difference, type ModuleFigure } from './differences';
import { NONE, type Graph } from './graph';
import { running } from './memory';
import { chartTop, drawTimeline } from './memory_view';
import { nodeTitle } from './panel';
import { onChange } from './theme';
import { change, csvField, exact, visible } from './units';

const FIGURES: [ModuleFigure, string][] = [
  ['saved', 'saved for backward'], ['parameters', 'parameters'], ['forward_flops', 'forward FLOPs'], ['backward_flops', 'backward FLOPs'],
  ['temporary', 'temporary'], ['backward', 'allocated in backward'], ['peak', 'peak'],
];
const MOST = 40;

function Rows({ title, rows, onPress, say, mixed }: { title: string; rows: Difference[]; onPress?: (row: Difference) => void; say?: string; mixed?: boolean }): VNode {
  const [all, setAll] = useState(false);
  const shown = all ? rows.slice(0, 2000) : rows.slice(0, MOST);
  const by = (row: Difference): number => (row.after ?? 0) - (row.before ?? 0);
  const known = (row: Difference): boolean => row.before !== undefined && row.after !== undefined;
  const most = Math.max(1, ...rows.map((row) => Math.abs(by(row))));
  const copy = (): void => {
    const text = ['what,before,after', ...rows.map((r) => [csvField(r.name), r.before ?? '', r.after ?? ''].join(','))].join('\n');
    void navigator.clipboard?.writeText(text);
  };
  return (
    <section>
      <h2>{title} {rows.length > 0 && <button type="button" onClick={copy}>Copy as CSV</button>}</h2>
      {rows.length === 0 ? <p class="quiet">{say ?? 'No difference.'}</p> : (
        <table class="compare-table">
          <thead><tr><th scope="col">what</th><th scope="col" class="number">before</th><th scope="col" class="number">after</th><th scope="col" class="number">change</th></tr></thead>
          <tbody>
            {shown.map((row) => (
              <tr key={row.name}>
                <th scope="row">{onPress ? <button type="button" class="link" onClick={() => onPress(row)}><bdi>{visible(row.name, 120)}</bdi></button> : <bdi>{visible(row.name, 120)}</bdi>}</th>
                <td class="number">{row.before === undefined ? 'unknown' : row.format(row.before)}</td>
                <td class="number">{row.after === undefined ? 'unknown' : row.format(row.after)}</td>
                <td class={`number ${known(row) && by(row) > 0 ? 'more' : known(row) && by(row) < 0 ? 'less' : ''}`}>
                  {!mixed && <i class="share" style={{ width: `${((Math.abs(by(row)) / most) * 100).toFixed(1)}%` }} />}
                  {known(row) && `${by(row) > 0 ? '▲ ' : by(row) < 0 ? '▼ ' : ''}${change(row.before!, row.after!, row.format)}`}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {rows.length > MOST && !all && <button type="button" onClick={() => setAll(true)}>and {exact(rows.length - MOST)} more</button>}
    </section>
  );
}

function Timelines({ graphs }: { graphs: [string, Graph, 'before' | 'after'][] }): VNode {
  const { store } = useApp();
  const top = Math.max(...graphs.map(([, graph]) => chartTop(graph))); // one scale for both
  return (
    <div class="two">
      {graphs.map(([name, graph, side]) => (
        <section key={name}>
          <h2>{name}: <bdi>{visible(graph.header.title, 80)}</bdi></h2>
          <button type="button" class="small-timeline" aria-label={`Memory ${name}`} onClick={() => store.set({ view: 'memory', side, step: mainTimeline(graph).peakStep, range: undefined })}>
            <OneTimeline graph={graph} top={top} />
          </button>
        </section>
      ))}
    </div>
  );
}

function OneTimeline({ graph, top }: { graph: Graph; top: number }): VNode {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current!;
    return onChange(element, () => drawTimeline(element, graph, mainTimeline(graph), running(graph), undefined, top));
  }, [graph, top]);
  return <canvas ref={canvas} data-top={top} />;
}

function Nodes({ title, graph, side, nodes }: { title: string; graph: Graph; side: 'before' | 'after'; nodes: number[] }): VNode {
  const { store } = useApp();
  const words = useMemo(() => new Map(graph.header.different ?? []), [graph]);
  return (
    <section>
      <h2>{title}: {exact(nodes.length)}</h2>
      <ul class="nodes">
        {nodes.slice(0, 60).map((node) => (
          <li key={node}>
            <button type="button" class="link" onClick={() => store.set({ view: 'graph', side, color: 'difference', selection: { kind: 'node', id: node }, around: undefined, path: undefined })}>
              <bdi>{nodeTitle(graph, node)}</bdi>
            </button>{' '}
            <span class="quiet">{visible(words.get(node) ?? '', 80)}</span>
          </li>
        ))}
      </ul>
      {nodes.length > 60 && <p class="quiet">and {exact(nodes.length - 60)} more; color the graph by difference to see all</p>}
    </section>
  );
}

export function CompareView(): VNode {
  const { after, before, saved, store } = useApp();
  const [figure, setFigure] = useState<ModuleFigure>('saved');
  const sides = useMemo(() => {
    const was = before ? sideOfGraph(before) : saved && sideOfProfile(saved);
    return was && { was, now: sideOfGraph(after) };
  }, [before, after, saved]);
  const all = useMemo(() => sides && {
    figures: figures(sides.was.profile, sides.now.profile),
    kinds: kindsAtPeak(sides.was, sides.now),
    operators: operators(sides.was.profile, sides.now.profile),
  }, [sides]);
  const nodes = useMemo(() => before && { peak: atPeak(before, after), old: changedNodes(before), now: changedNodes(after) }, [before, after]);
  const byModule = useMemo(() => (sides ? modules(sides.was, sides.now, figure) : []), [sides, figure]);
  if (!sides || !all) return <p class="empty">This page has one graph; create it with --compare to compare two.</p>;
  return (
    <div class="compare">
      <p>
        before: <b><bdi>{visible(sides.was.title, 120)}</bdi></b>, after: <b><bdi>{visible(after.header.title, 120)}</bdi></b>.{' '}
        {nodes && `${exact(after.header.same ?? 0)} operators are unchanged, ${exact(nodes.old.single.length)} removed, ${exact(nodes.now.single.length)} added, ${exact(nodes.now.changed.length)} changed. `}
        {nodes
          ? <button type="button" onClick={() => store.set({ view: 'graph', side: 'after', color: 'difference' })}>Show in graph</button>
          : 'The earlier side is a profile without a graph, so only costs by module and operator are compared. To see added and removed operators and the tensors behind the peak, compare with a graph file (.sg).'}
      </p>
      <Rows title="Totals" rows={all.figures} mixed />
      {before && <Timelines graphs={[['before', before, 'before'], ['after', after, 'after']]} />}
      <Rows title="Peak memory by kind" rows={all.kinds} />
      {nodes && <Rows title="Peak memory by producer" rows={nodes.peak} />}
      <section>
        <label>
          modules by{' '}
          <select value={figure} onChange={(event) => setFigure(event.currentTarget.value as ModuleFigure)}>
            {FIGURES.map(([key, name]) => <option key={key} value={key}>{name}</option>)}
          </select>
        </label>
        <Rows
          title="Modules"
          rows={byModule}
          say="No module differs."
          onPress={(row) => {
            const own = row.selection!.after !== NONE;
            if (!own && row.selection!.before === NONE) return;
            store.set({ view: 'graph', side: own ? 'after' : 'before', selection: { kind: 'module', id: own ? row.selection!.after : row.selection!.before } });
          }}
        />
      </section>
      <Rows title="Calls by operator" rows={all.operators} />
      {nodes && (
        <>
          <div class="two">
            <Nodes title="Removed" graph={before!} side="before" nodes={nodes.old.single} />
            <Nodes title="Added" graph={after} side="after" nodes={nodes.now.single} />
          </div>
          <Nodes title="Changed" graph={after} side="after" nodes={nodes.now.changed} />
        </>
      )}
    </div>
  );
}
