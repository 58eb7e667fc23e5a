import { render } from 'preact';
import { Page } from './app';
import { AppContext } from './app_context';
import { unpack, unpackText } from './container';
import type { SavedProfile } from './differences';
import { Graph } from './graph';
import { openAtFirst, type Drawing } from './graph_view';
import { mainBlocks } from './memory_view';
import { Store } from './state';
import { tableOf } from './tables';
import { visible } from './units';

declare global {
  interface Window {
    // For the tests in test/browser.
    shadowgraph?: { after: Graph; before: Graph | undefined; store: Store; readyAfter: number; drawing?: Drawing };
  }
}

async function read(id: string): Promise<Graph | undefined> {
  const element = document.getElementById(id);
  if (!element) return undefined;
  const graph = new Graph(await unpack(element.textContent ?? ''));
  element.remove(); // frees the text, which may be large
  return graph;
}

async function readSaved(id: string): Promise<SavedProfile | undefined> {
  const element = document.getElementById(id);
  return element ? (JSON.parse(await unpackText(element.textContent ?? '')) as SavedProfile) : undefined;
}

// Precomputes in idle time, piece by piece, the data that each view needs first.
function prepare(graph: Graph): void {
  const steps: (() => unknown)[] = [
    () => openAtFirst(graph), () => mainBlocks(graph), () => graph.users(), () => tableOf(graph, 'operators'), () => graph.clusterModule(),
  ];
  const idle = typeof requestIdleCallback === 'function' ? (f: () => void) => requestIdleCallback(f) : (f: () => void) => setTimeout(f, 50);
  const next = (): void => {
    steps.shift()?.();
    if (steps.length > 0) idle(next);
  };
  if (graph.nodeCount < 300_000) idle(next);
}

async function start(): Promise<void> {
  const root = document.getElementById('page')!;
  try {
    const [after, before, saved] = await Promise.all([read('graph-data'), read('before-data'), readSaved('before-profile')]);
    if (!after) throw new Error('the page has no graph');
    const store = new Store(before || saved ? 'compare' : 'overview');
    window.shadowgraph = { after, before, store, readyAfter: 0 };
    root.textContent = '';
    render(
      <AppContext.Provider value={{ store, after, before, saved }}>
        <Page />
      </AppContext.Provider>,
      root,
    );
    requestAnimationFrame(() => {
      window.shadowgraph!.readyAfter = performance.now();
      prepare(after);
    });
  } catch (error) {
    root.textContent = `This page cannot be shown: ${visible(error instanceof Error ? error.message : String(error))}`;
    root.className = 'waiting';
    throw error;
  }
}

void start();
