// Context of all views: graphs, state, and the items highlighted by the selection.
import { createContext } from 'preact';
import { useContext, useEffect, useState } from 'preact/hooks';
import { withComposites } from './composites';
import type { SavedProfile } from './differences';
import { NONE, once, type Graph } from './graph';
import { timelineOf, type Timeline } from './memory';
import type { Selection, State, Store } from './state';

export interface App {
  store: Store;
  after: Graph;
  before: Graph | undefined;
  saved: SavedProfile | undefined; // the earlier side, if it is a profile without a graph
}

export const AppContext = createContext<App | undefined>(undefined);

export interface Seen extends App {
  state: State;
  graph: Graph; // the displayed side
}

export function useApp(): Seen {
  const app = useContext(AppContext)!;
  const [state, setState] = useState(app.store.state);
  useEffect(() => {
    setState(app.store.state);
    return app.store.subscribe(() => setState(app.store.state));
  }, [app.store]);
  return { ...app, state, graph: sideOf(app, state) };
}

export function sideOf(app: App, state: State): Graph {
  const graph = state.side === 'before' && app.before ? app.before : app.after;
  return state.composites ? withComposites(graph) : graph;
}

// Returns the timeline of the profile's device.
export const mainTimeline = once((graph: Graph): Timeline => timelineOf(graph, graph.header.profile.device));

// The nodes and storages that belong to the selection, which all views highlight.
export interface Lit {
  node: (node: number) => boolean;
  storage: (storage: number) => boolean;
  cluster: (cluster: number) => boolean;
  module: number;
  operator: string;
}

const DARK: Lit = { node: () => false, storage: () => false, cluster: () => false, module: NONE, operator: '' };

export function litBy(graph: Graph, selection: Selection | undefined): Lit {
  if (!selection) return DARK;
  const madeBy = (belongs: (node: number) => boolean) => (s: number): boolean => graph.storageBorn()[s] !== NONE && belongs(graph.storageBorn()[s]);
  switch (selection.kind) {
    case 'node': {
      const node = selection.id;
      if (node >= graph.nodeCount) return DARK;
      const own = (n: number): boolean => n === node;
      return { ...DARK, node: own, storage: madeBy(own), module: graph.moduleOf()[node], operator: graph.op(node) };
    }
    case 'storage': {
      const storage = selection.id;
      if (storage >= graph.storageCount) return DARK;
      const maker = graph.storageBorn()[storage];
      const made = maker === NONE ? {} : { module: graph.moduleOf()[maker], operator: graph.op(maker) };
      return { ...DARK, node: (n) => n === maker, storage: (s) => s === storage, ...made };
    }
    case 'module': {
      const module = selection.id;
      if (module >= graph.moduleCount) return DARK;
      const inside = memo(graph.moduleCount, (m) => graph.isInModule(m, module));
      const node = (n: number): boolean => inside(graph.moduleOf()[n]);
      return { ...DARK, node, storage: madeBy(node), cluster: (c) => graph.clusterModule()[c] === module, module };
    }
    case 'cluster': {
      const cluster = selection.id;
      if (cluster >= graph.clusterCount) return DARK;
      const copies = new Set(graph.copies(cluster));
      const inside = memo(graph.clusterCount, (c) => {
        for (let at = c; ; at = graph.clusterParent()[at]) {
          if (copies.has(at)) return true;
          if (at === 0) return false;
        }
      });
      const node = (n: number): boolean => inside(graph.clusterOf()[n]);
      return { ...DARK, node, storage: madeBy(node), cluster: (c) => c === cluster, module: graph.clusterModule()[cluster] };
    }
    case 'operator': {
      const op = selection.id;
      const node = (n: number): boolean => graph.op(n) === op;
      return { ...DARK, node, storage: madeBy(node), operator: op };
    }
  }
}

function memo(size: number, compute: (i: number) => boolean): (i: number) => boolean {
  const known = new Int8Array(size);
  return (i) => {
    if (known[i] === 0) known[i] = compute(i) ? 1 : -1;
    return known[i] === 1;
  };
}
