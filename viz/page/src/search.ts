// Finds nodes by operator, name, module, shape, source or number: "conv", "layer1.0", "f32[32,64", "n12", "%7".
import type { Graph } from './graph';

export interface Found {
  nodes: number[]; // the first `most`
  count: number;
}

export function find(graph: Graph, query: string, most = 200): Found {
  const text = query.trim().toLowerCase();
  const found: Found = { nodes: [], count: 0 };
  if (text === '') return found;
  const number = /^([n%s])(\d+)$/.exec(text);
  if (number) {
    const id = Number(number[2]);
    const node =
      number[1] === 'n' ? id
      : number[1] === '%' ? (id < graph.header.values ? graph.producer()[id] : -1)
      : id < graph.storageCount ? graph.storageBorn()[id] : -1;
    return node >= 0 && node < graph.nodeCount ? { nodes: [node], count: 1 } : found;
  }
  // All words must match.
  const words = text.split(/\s+/);
  const matching = words.map((word) => {
    const targets = graph.header.targets.map((target) => target.name.toLowerCase().includes(word));
    const modules = new Uint8Array(graph.moduleCount);
    for (let m = 0; m < modules.length; ++m) {
      if (graph.modulePath(m).toLowerCase().includes(word) || graph.moduleClass(m).toLowerCase() === word) modules[m] = 1;
    }
    const wantsShape = word.includes('[') || /^\d+(,\d+)+$/.test(word);
    return (node: number): boolean => {
      if (targets[graph.targetIndex(node)] || modules[graph.moduleOf()[node]] === 1) return true;
      if (graph.placeholder(node).toLowerCase().includes(word) || graph.source(node).toLowerCase().includes(word)) return true;
      if (!wantsShape) return false;
      const first = graph.outputStart();
      for (let v = first[node]; v < first[node + 1]; ++v) if (graph.type(v).includes(word)) return true;
      return false;
    };
  });
  for (let i = 0; i < graph.nodeCount; ++i) {
    if (!matching.every((matches) => matches(i))) continue;
    if (found.count++ < most) found.nodes.push(i);
  }
  return found;
}
