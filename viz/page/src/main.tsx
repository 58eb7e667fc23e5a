import { render } from 'preact';
import { Page } from './app';
import { AppContext } from './app_context';
import { unpack } from './container';
import { Graph } from './graph';
import { Store } from './state';
import { visible } from './units';

declare global {
  interface Window {
    shadowgraph?: { after: Graph; before: Graph | undefined; store: Store; readyAfter: number };
  }
}

async function read(id: string): Promise<Graph | undefined> {
  const element = document.getElementById(id);
  if (!element) return undefined;
  const graph = new Graph(await unpack(element.textContent ?? ''));
  element.remove(); // the text is of no more use, and may be large
  return graph;
}

async function start(): Promise<void> {
  const root = document.getElementById('page')!;
  try {
    const [after, before] = await Promise.all([read('graph-data'), read('before-data')]);
    if (!after) throw new Error('the page holds no graph');
    const store = new Store();
    root.textContent = '';
    render(
      <AppContext.Provider value={{ store, after, before }}>
        <Page />
      </AppContext.Provider>,
      root,
    );
    window.shadowgraph = { after, before, store, readyAfter: performance.now() };
  } catch (error) {
    root.textContent = `This page cannot be shown: ${visible(error instanceof Error ? error.message : String(error))}`;
    root.className = 'waiting';
    throw error;
  }
}

void start();
