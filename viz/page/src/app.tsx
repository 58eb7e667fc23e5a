import type { VNode } from 'preact';
import { useState } from 'preact/hooks';
import { useApp } from './app_context';
import { CompareView } from './compare_view';
import { GraphView } from './graph_view';
import { MemoryView } from './memory_view';
import { Overview } from './overview';
import { Panel } from './panel';
import type { View } from './state';
import { TablesView } from './tables';
import { ThemeButton } from './theme_button';
import { visible } from './units';

const NAMES: [View, string][] = [['overview', 'Overview'], ['graph', 'Graph'], ['memory', 'Memory'], ['tables', 'Tables'], ['compare', 'Compare']];

export function Page(): VNode {
  const { store, state, graph, before, saved } = useApp();
  const [copied, setCopied] = useState(false);
  const views = NAMES.filter(([view]) => view !== 'compare' || before !== undefined || saved !== undefined);
  const { profile } = graph.header;
  const how = [profile.mode, profile.optimizer, profile.device].filter((word) => word !== undefined && word !== '').join(', ');
  return (
    <>
      <header>
        <h1><bdi>{visible(graph.header.title, 120)}</bdi> <span class="quiet">{visible(how, 80)}</span></h1>
        <nav aria-label="Views">
          {views.map(([view, name]) => (
            <button key={view} type="button" aria-current={state.view === view ? 'page' : undefined} onClick={() => store.set({ view })}>{name}</button>
          ))}
        </nav>
        {before && state.view !== 'compare' && (
          <span class="sides" role="group" aria-label="Which graph">
            {(['before', 'after'] as const).map((side) => (
              <button key={side} type="button" aria-pressed={state.side === side} onClick={() => store.set({ side, selection: undefined, open: undefined, unfolded: [], step: undefined, range: undefined, around: undefined, path: undefined, closed: [] })}>{side}</button>
            ))}
          </span>
        )}
        <span class="right">
          <button
            type="button"
            class="plain"
            title="Copy a link to the current view"
            onClick={() => {
              setTimeout(() => {
                void navigator.clipboard?.writeText(location.href);
                setCopied(true);
                setTimeout(() => setCopied(false), 1500);
              }, 200);
            }}
          >
            {copied ? 'Copied' : 'Link'}
          </button>
          <button type="button" class="plain" onClick={() => window.print()}>Print</button>
          <ThemeButton />
        </span>
      </header>
      <div class={`main ${state.selection ? 'with-panel' : ''}`}>
        <main>
          {state.view === 'overview' && <Overview key={state.side} />}
          {state.view === 'graph' && <GraphView key={state.side} />}
          {state.view === 'memory' && <MemoryView key={state.side} />}
          {state.view === 'tables' && <TablesView key={state.side} />}
          {state.view === 'compare' && <CompareView />}
        </main>
        {state.view !== 'overview' && state.view !== 'compare' && <Panel />}
      </div>
    </>
  );
}
