// A graph with the calls of composite operators as boxes: "linear" around t and addmm, "conv2d" around convolution.
// Regions of composites and checkpoints become clusters inside those of modules, numbered after them, so that open
// clusters stay open. Everything else is the same graph.
import { childrenBy, grouped, lazy, NONE, once, type Cluster, type Graph, type Lists } from './graph';

interface Extra {
  of: Uint32Array; // cluster of every node
  parent: Uint32Array;
  names: string[]; // of the clusters after those of modules
}

function extraOf(graph: Graph): Extra {
  const of = graph.clusterOf().slice();
  const parent = [...graph.clusterParent()];
  const first = parent.length;
  const names: string[] = [];
  const known = new Map<string, number>();
  const forward = graph.forward();
  const calls = new Map<number, { region: number; name: string }[]>();
  for (let node = 0; node < graph.nodeCount; ++node) {
    if (graph.target(node).builtin === true) continue;
    // Backward nodes belong to the call that they differentiate.
    const region = graph.regionOf()[forward[node] === NONE ? node : forward[node]];
    let chain = calls.get(region);
    if (!chain) calls.set(region, (chain = graph.callsAround(region)));
    for (const call of chain) {
      const key = `${String(of[node])} ${String(call.region)}`;
      let cluster = known.get(key);
      if (cluster === undefined) {
        cluster = parent.length;
        known.set(key, cluster);
        parent.push(of[node]);
        names.push(call.name);
      }
      of[node] = cluster;
    }
  }
  return { of, parent: Uint32Array.from(parent), names: [...Array<string>(first).fill(''), ...names] };
}

export const withComposites = once((base: Graph): Graph => {
  const extra = lazy(() => extraOf(base));
  const modules = base.clusterCount;
  const size = lazy(() => extra().parent.length);
  const longer = <T extends Uint32Array | Int32Array>(array: T, fill: number): T => {
    const out = new (array.constructor as new (length: number) => T)(size());
    out.fill(fill);
    out.set(array);
    return out;
  };
  const graph = Object.create(base) as Graph;
  const own: Partial<Record<keyof Graph, unknown>> = {
    clusterOf: () => extra().of,
    clusterParent: () => extra().parent,
    clusterStandsFor: lazy(() => longer(base.clusterStandsFor(), NONE)),
    clusterRepeats: lazy(() => longer(base.clusterRepeats(), 1)),
    clusterModule: lazy(() => longer(base.clusterModule(), NONE)),
    clusterPhase: lazy(() => {
      const out = longer(base.clusterPhase(), 0);
      for (let c = modules; c < out.length; ++c) out[c] = out[extra().parent[c]];
      return out;
    }),
    isPhaseCluster: (c: number) => c < modules && base.isPhaseCluster(c),
    clusterChildren: lazy(() => childrenBy(extra().parent)),
    clusterNodes: lazy((): Lists => grouped(size(), extra().of, (k) => k)),
    clusterTotals: lazy(() => base.totalsBy(extra().of, extra().parent)),
    cluster: (c: number): Cluster =>
      c < modules
        ? base.cluster(c)
        : { name: extra().names[c], className: 'call', call: 0, repeats: 1, span: '' },
  };
  for (const [name, value] of Object.entries(own)) Object.defineProperty(graph, name, { value });
  return graph;
});
