// The side panel: details of the selection.
import type { ComponentChildren, VNode } from 'preact';
import { useApp, type Seen } from './app_context';
import { EDGE_NAMES } from './colors';
import { EdgeKind } from './boxes';
import { formatGiven, NONE, type Graph } from './graph';
import type { Selection } from './state';
import { bytes, exact, flops, seconds, spread as spreadOf, visible } from './units';

function Row(props: { name: string; children: ComponentChildren }): VNode {
  return (
    <tr>
      <th scope="row">{props.name}</th>
      <td>{props.children}</td>
    </tr>
  );
}

export function Link(props: { to: Selection; children: ComponentChildren; title?: string }): VNode {
  const { store } = useApp();
  return (
    <button type="button" class="link" title={props.title} onClick={() => store.select(props.to)}>
      <bdi>{props.children}</bdi>
    </button>
  );
}

export function nodeTitle(graph: Graph, node: number): string {
  const path = graph.modulePath(graph.moduleOf()[node]);
  return visible(`n${String(node)} ${graph.label(node)}${path === '' ? '' : ` in ${path}`}`, 160);
}

function NodeLink(props: { graph: Graph; node: number }): VNode {
  return <Link to={{ kind: 'node', id: props.node }} title={nodeTitle(props.graph, props.node)}>{`n${String(props.node)} ${visible(props.graph.label(props.node), 40)}`}</Link>;
}

function Long(props: { nodes: number[]; graph: Graph }): VNode {
  const most = 12;
  return (
    <>
      {props.nodes.slice(0, most).map((node) => (
        <div key={node}><NodeLink graph={props.graph} node={node} /></div>
      ))}
      {props.nodes.length > most && <div class="quiet">and {exact(props.nodes.length - most)} more</div>}
    </>
  );
}

const SCRATCH = ['registered', 'measured', 'by rule', 'none, by nature', 'unknown'];
const BOUNDS = ['', 'limited by computing', 'limited by memory', 'limited by fixed cost', 'measured'];

function range(start: Uint32Array, at: number): number[] {
  const all: number[] = [];
  for (let k = start[at]; k < start[at + 1]; ++k) all.push(k);
  return all;
}

function NodePanel({ seen, node }: { seen: Seen; node: number }): VNode {
  const { graph, store, state } = seen;
  const target = graph.target(node);
  const inputs = range(graph.inputStart(), node);
  const outputs = range(graph.outputStart(), node);
  const saved = range(graph.savedStart(), node);
  const composites = graph.composites(node);
  const module = graph.moduleOf()[node];
  const backwards = range(graph.backwards().start, node).map((k) => graph.backwards().items[k]);
  const forward = graph.forward()[node];
  const users = [...new Set(outputs.flatMap((v) => range(graph.users().start, v).map((k) => graph.users().items[k])))];
  const isSelectedStart = state.selection?.kind === 'node';
  return (
    <>
      <h2><bdi>{visible(graph.label(node), 120)}</bdi></h2>
      <div class="buttons">
        <button type="button" onClick={() => store.set({ view: 'graph', around: { node, radius: 2 }, path: undefined })}>Neighborhood</button>
        <button type="button" onClick={() => store.set({ view: 'graph', around: undefined, path: undefined, selection: { kind: 'node', id: node } })}>Show in graph</button>
        {isSelectedStart && <PathButton node={node} />}
      </div>
      <table class="facts">
        <tbody>
          <Row name="node">{`n${String(node)} of ${exact(graph.nodeCount)}, phase ${visible(graph.header.phases[graph.phase()[node]])}`}</Row>
          {module !== 0 && <Row name="module"><Link to={{ kind: 'module', id: module }}>{visible(graph.modulePath(module), 300)}</Link> {visible(graph.moduleClass(module), 80)}</Row>}
          <Row name="operator"><Link to={{ kind: 'operator', id: target.name }}>{visible(target.name)}</Link></Row>
          {composites.length > 0 && <Row name="called by">{composites.map((c) => visible(c, 80)).join(' › ')}</Row>}
          {graph.givenText(node) !== '' && <Row name={visible(graph.header.given!.title, 60)}>{visible(graph.givenText(node), 200)}</Row>}
          {graph.source(node) !== '' && <Row name="source"><code>{visible(graph.source(node))}</code></Row>}
          {inputs.length > 0 && (
            <Row name="inputs">
              {inputs.slice(0, 40).map((k) => {
                const value = graph.inputValue()[k];
                const maker = graph.producer()[value];
                return (
                  <div key={k}>
                    <span class="quiet">{visible(target.arguments[graph.inputPlace(k)] ?? '')} </span>
                    <Link to={{ kind: 'node', id: maker }} title={nodeTitle(graph, maker)}>%{value}</Link> <code>{graph.type(value)}</code>
                    {graph.inputWritten(k) && <b class="tag">written</b>} <span class="quiet"><bdi>{visible(graph.label(maker), 40)}</bdi></span>
                  </div>
                );
              })}
              {inputs.length > 40 && <div class="quiet">and {inputs.length - 40} more</div>}
            </Row>
          )}
          {graph.constants(node) !== '' && <Row name="arguments"><code>{visible(graph.constants(node), 2000)}</code></Row>}
          {outputs.length > 0 && (
            <Row name="outputs">
              {outputs.slice(0, 20).map((value) => {
                const storage = graph.storageOf()[value];
                return (
                  <div key={value}>
                    %{value} <code>{graph.type(value)}</code> {graph.isTensor(value) && <span class="quiet">{bytes(graph.bytesOfValue(value))} </span>}
                    {graph.strides(value) !== '' && <span class="quiet">strides {graph.strides(value)} </span>}
                    {graph.offset(value) !== 0 && <span class="quiet">offset {exact(graph.offset(value))} </span>}
                    {graph.requiresGrad(value) && <span class="quiet">requires grad </span>}
                    {storage !== NONE && <>in <Link to={{ kind: 'storage', id: storage }}>s{storage}</Link>{graph.storageBorn()[storage] !== node && <span class="quiet"> (an alias)</span>}</>}
                  </div>
                );
              })}
            </Row>
          )}
          {users.length > 0 && <Row name="used by"><Long graph={graph} nodes={users} /></Row>}
          {saved.length > 0 && (
            <Row name="saved for backward">
              {saved.slice(0, 20).map((k) => {
                const value = graph.savedValue()[k];
                const storage = graph.storageOf()[value];
                return <div key={k}>%{value} <code>{graph.type(value)}</code> <span class="quiet">{graph.savedRole(k)}</span> {storage !== NONE && <Link to={{ kind: 'storage', id: storage }}>s{storage}</Link>}</div>;
              })}
            </Row>
          )}
          {forward !== NONE && <Row name="backward of"><NodeLink graph={graph} node={forward} /></Row>}
          {backwards.length > 0 && <Row name="backward nodes"><Long graph={graph} nodes={backwards} /></Row>}
          <Row name="FLOPs">
            {flops(graph.matmul()[node])} matmul, {flops(graph.elementwise()[node])} elementwise{graph.transcendental()[node] > 0 && `, ${flops(graph.transcendental()[node])} transcendental`}
            {graph.uncovered()[node] === 1 && <b class="tag">no formula</b>}
          </Row>
          {graph.hasTime && <Row name="time">{seconds(graph.seconds()[node])} <span class="quiet">{graph.kernel(node).replaceAll('_', ' ')} {BOUNDS[graph.bound(node)]}</span></Row>}
          <Row name="bytes moved">{bytes(graph.read()[node])} read, {bytes(graph.written()[node])} written</Row>
          <Row name="allocates">{bytes(graph.allocated()[node])}, {bytes(graph.kept()[node])} of it saved for backward</Row>
          {target.builtin !== true && <Row name="scratch">{graph.scratchSource()[node] === 4 ? 'unknown' : bytes(graph.scratch()[node])} <span class="quiet">{graph.scratchSource()[node] === 4 ? '' : SCRATCH[graph.scratchSource()[node]]}</span></Row>}
          {graph.device(node) !== '' && <Row name="device">{graph.device(node)}</Row>}
          {graph.notes(node).map(([key, text]) => <Row key={key} name={visible(key, 40)}>{visible(text)}</Row>)}
          <Row name="schema"><code class="schema">{visible(target.schema, 3000)}</code></Row>
        </tbody>
      </table>
    </>
  );
}

// The first press sets the start, the second one shows the paths from there.
let pathStart: { graph: Graph; node: number } | undefined;
function PathButton({ node }: { node: number }): VNode {
  const { store, graph } = useApp();
  const from = pathStart?.graph === graph ? pathStart.node : undefined;
  if (from !== undefined && from !== node) {
    return (
      <button type="button" onClick={() => { pathStart = undefined; store.set({ view: 'graph', path: { from, to: node }, around: undefined }); }}>
        Path from n{from}
      </button>
    );
  }
  return (
    <button type="button" disabled={from === node} onClick={() => { pathStart = { graph, node }; store.set({}); }}>
      {from === node ? 'Select the other end' : 'Path from here'}
    </button>
  );
}

function StoragePanel({ seen, storage }: { seen: Seen; storage: number }): VNode {
  const { graph, store } = seen;
  const { first, last } = graph.lives();
  const maker = graph.storageBorn()[storage];
  const freed = graph.storageFreed()[storage];
  const values = range(graph.valuesIn().start, storage).map((k) => graph.valuesIn().items[k]);
  const users = [...new Set(values.flatMap((v) => range(graph.users().start, v).map((k) => graph.users().items[k])))].sort((a, b) => a - b);
  const saved = graph.savedAt()[storage];
  const place = graph.storagePlace();
  return (
    <>
      <h2><bdi>{visible(graph.storageLabel(storage), 160)}</bdi></h2>
      <div class="buttons">
        <button type="button" onClick={() => store.set({ view: 'memory', step: Math.max(first[storage], 0) })}>Show in memory</button>
        {maker !== NONE && <button type="button" onClick={() => store.set({ view: 'graph', selection: { kind: 'node', id: maker }, around: undefined, path: undefined })}>Show producer in graph</button>}
      </div>
      <table class="facts">
        <tbody>
          <Row name="storage">s{storage}, {graph.header.storage_kinds[graph.storageKind()[storage]].replaceAll('_', ' ')}</Row>
          <Row name="size">{bytes(graph.storageBytes()[storage])} <span class="quiet">{exact(graph.storageBytes()[storage])} bytes</span></Row>
          <Row name="device">{graph.deviceOfStorage(storage)}</Row>
          <Row name="alive">
            {graph.storageExisted()[storage] === 1 ? 'from before the step' : `from n${String(first[storage])}`} {freed === NONE ? 'to the end' : `to n${String(last[storage])}`}
            <span class="quiet"> {exact(last[storage] - first[storage] + 1)} of {exact(graph.nodeCount)} steps</span>
          </Row>
          {maker !== NONE && <Row name="allocated by"><NodeLink graph={graph} node={maker} /></Row>}
          {maker !== NONE && graph.moduleOf()[maker] !== 0 && <Row name="module"><Link to={{ kind: 'module', id: graph.moduleOf()[maker] }}>{visible(graph.modulePath(graph.moduleOf()[maker]), 300)}</Link></Row>}
          {maker !== NONE && graph.source(maker) !== '' && <Row name="source"><code>{visible(graph.source(maker))}</code></Row>}
          <Row name="kept alive by">{visible(graph.keeper(storage)) || (users.length > 0 ? `its last user, n${String(users[users.length - 1])}` : 'nothing')}</Row>
          {saved !== NONE && <Row name="first saved at"><NodeLink graph={graph} node={saved} /></Row>}
          <Row name="tensors">
            {values.slice(0, 12).map((v) => <div key={v}>%{v} <code>{graph.type(v)}</code>{graph.strides(v) !== '' && <span class="quiet"> strides {graph.strides(v)}</span>}</div>)}
            {values.length > 12 && <div class="quiet">and {values.length - 12} more</div>}
          </Row>
          <Row name="used by"><Long graph={graph} nodes={users} /></Row>
          {freed !== NONE && <Row name="freed after"><NodeLink graph={graph} node={freed} /></Row>}
          {place && place[storage] >= 0 && <Row name="static plan offset">{exact(place[storage])}</Row>}
        </tbody>
      </table>
    </>
  );
}

function ModulePanel({ seen, module }: { seen: Seen; module: number }): VNode {
  const { graph, store } = seen;
  const figure = (name: Parameters<Graph['moduleFigure']>[0]): number => graph.moduleFigure(name)[module];
  const show = (): void => store.set({ view: 'graph', around: undefined, path: undefined, selection: { kind: 'module', id: module } });
  return (
    <>
      <h2><bdi>{module === 0 ? 'whole program' : visible(graph.modulePath(module), 300)}</bdi></h2>
      <div class="buttons"><button type="button" onClick={show}>Show in graph</button></div>
      <table class="facts">
        <tbody>
          {graph.moduleClass(module) !== '' && <Row name="class">{visible(graph.moduleClass(module))}</Row>}
          <Row name="calls">{exact(figure('calls'))}</Row>
          <Row name="operators">{exact(figure('forward_nodes'))} forward, {exact(figure('backward_nodes'))} backward</Row>
          <Row name="FLOPs">{flops(figure('forward_flops'))} forward, {flops(figure('backward_flops'))} backward</Row>
          <Row name="elementwise">{flops(figure('forward_elementwise'))} forward, {flops(figure('backward_elementwise'))} backward</Row>
          {graph.hasTime && <Row name="time">{seconds(graph.moduleSeconds()[module])}</Row>}
          <Row name="parameters">{bytes(figure('parameters'))}</Row>
          <Row name="saved for backward">{bytes(figure('saved'))}</Row>
          <Row name="saved outputs">{bytes(figure('output'))}</Row>
          <Row name="temporary">{bytes(figure('temporary'))}</Row>
          <Row name="allocated in backward">{bytes(figure('backward'))}</Row>
          <Row name="peak while running">{bytes(figure('peak'))}</Row>
        </tbody>
      </table>
    </>
  );
}

function ClusterPanel({ seen, cluster }: { seen: Seen; cluster: number }): VNode {
  const { graph, store, state } = seen;
  const copies = graph.copies(cluster);
  const totals = copies.map((c) => graph.totalsOf(c));
  const module = graph.clusterModule()[cluster];
  const isUnfolded = state.unfolded.includes(cluster);
  const spread = (pick: (t: (typeof totals)[number]) => number, format: (v: number) => string): string => spreadOf(totals.map(pick), format);
  const info = graph.cluster(cluster);
  return (
    <>
      <h2><bdi>{visible(graph.clusterPath(cluster) || graph.header.phases[graph.clusterPhase()[cluster]], 300)}</bdi></h2>
      <div class="buttons">
        {copies.length > 1 && (
          <button type="button" onClick={() => store.set({ unfolded: isUnfolded ? state.unfolded.filter((c) => c !== cluster) : [...state.unfolded, cluster] })}>
            {isUnfolded ? 'Fold repeated layers' : `Unfold all ${String(copies.length)}`}
          </button>
        )}
      </div>
      <table class="facts">
        <tbody>
          {info.className !== '' && <Row name="class">{visible(info.className)}</Row>}
          <Row name="phase">{visible(graph.header.phases[graph.clusterPhase()[cluster]])}</Row>
          {copies.length > 1 && <Row name="repeats">{copies.length} identical layers, {visible(info.span, 80)}</Row>}
          {module !== NONE && module !== 0 && <Row name="module"><Link to={{ kind: 'module', id: module }}>{visible(graph.modulePath(module), 300)}</Link> <span class="quiet">all calls and phases</span></Row>}
          <Row name="operators">{spread((t) => t.operators, exact)}</Row>
          <Row name="FLOPs">{spread((t) => t.flops, flops)}</Row>
          {graph.hasTime && <Row name="time">{spread((t) => t.seconds, seconds)}</Row>}
          <Row name="bytes moved">{spread((t) => t.moved, bytes)}</Row>
          <Row name="allocates">{spread((t) => t.bytes, bytes)}</Row>
          <Row name="saved for backward">{spread((t) => t.saved, bytes)}</Row>
          {graph.header.given && !graph.header.given.kinds && <Row name={visible(graph.header.given.title, 60)}>{spread((t) => t.given, formatGiven(graph.header.given))}</Row>}
        </tbody>
      </table>
    </>
  );
}

function OperatorPanel({ seen, op }: { seen: Seen; op: string }): VNode {
  const { graph } = seen;
  const target = graph.header.targets.find((t) => t.name === op);
  const nodes: number[] = [];
  let products = 0;
  let time = 0;
  let allocated = 0;
  for (let i = 0; i < graph.nodeCount; ++i) {
    if (graph.op(i) !== op) continue;
    nodes.push(i);
    products += graph.matmul()[i];
    time += graph.seconds()[i];
    allocated += graph.allocated()[i];
  }
  return (
    <>
      <h2>{visible(op)}</h2>
      <table class="facts">
        <tbody>
          <Row name="calls">{exact(nodes.length)}</Row>
          <Row name="FLOPs">{flops(products)}</Row>
          {graph.hasTime && <Row name="time">{seconds(time)}</Row>}
          <Row name="allocates">{bytes(allocated)}</Row>
          {target && <Row name="schema"><code class="schema">{visible(target.schema, 3000)}</code></Row>}
          <Row name="nodes"><Long graph={graph} nodes={nodes} /></Row>
        </tbody>
      </table>
    </>
  );
}

export function Panel(): VNode | null {
  const seen = useApp();
  const { state, graph, store } = seen;
  const selection = state.selection;
  if (!selection) return null;
  const inside =
    selection.kind === 'node' && selection.id < graph.nodeCount ? <NodePanel seen={seen} node={selection.id} />
    : selection.kind === 'storage' && selection.id < graph.storageCount ? <StoragePanel seen={seen} storage={selection.id} />
    : selection.kind === 'module' && selection.id < graph.moduleCount ? <ModulePanel seen={seen} module={selection.id} />
    : selection.kind === 'cluster' && selection.id < graph.clusterCount ? <ClusterPanel seen={seen} cluster={selection.id} />
    : selection.kind === 'operator' ? <OperatorPanel seen={seen} op={selection.id} />
    : <p>The graph has no such item.</p>;
  return (
    <aside class="panel" aria-label="Selection">
      <button type="button" class="close" aria-label="Close" onClick={() => store.select(undefined)}>×</button>
      {inside}
    </aside>
  );
}

export function EdgeLegend(): VNode {
  return (
    <span class="edges">
      {[EdgeKind.data, EdgeKind.alias, EdgeKind.mutation, EdgeKind.nextCopy].map((kind) => (
        <span key={kind}><i class={`edge edge${String(kind)}`} />{EDGE_NAMES[kind]}</span>
      ))}
    </span>
  );
}
