// Tables: modules as a tree, operators, storages, calls. Only visible rows are rendered.
import { options, type VNode } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { litBy, mainTimeline, useApp, type Lit } from './app_context';
import { formatGiven, NONE, once, type Graph } from './graph';
import type { Selection, TableName } from './state';
import { onChange } from './theme';
import { bytes, csvField, exact, flops, percent, seconds, visible } from './units';

export interface Column {
  key: string;
  title: string;
  number: boolean;
  value: (row: number) => number | string;
  text?: (row: number) => string;
  share?: (row: number) => number; // of the total: drawn as a bar behind the number
  help?: string;
}

export interface TableData {
  columns: Column[];
  rows: number[];
  selection: (row: number) => Selection;
  isLit: (row: number, lit: Lit) => boolean;
  depth?: (row: number) => number;
  children?: (row: number) => boolean;
  parent?: (row: number) => number;
  sort: string; // initially
}

const MAKERS = { modules: once(modules), operators: once(operators), storages: once(storages), calls: once(calls) };

export function tableOf(graph: Graph, name: TableName): TableData {
  return MAKERS[name](graph);
}

function sum(column: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < column.length; ++i) total += column[i];
  return total;
}

function modules(graph: Graph): TableData {
  const figure = (name: Parameters<Graph['moduleFigure']>[0]): Float64Array => graph.moduleFigure(name);
  const depth = new Uint32Array(graph.moduleCount);
  const parent = graph.moduleParent();
  for (let m = 1; m < depth.length; ++m) depth[m] = depth[parent[m]] + 1;
  const kids = graph.moduleChildren();
  const amount = (key: string, title: string, column: ArrayLike<number>, text: (v: number) => string, help: string): Column => ({
    key, title, number: true, help, value: (m) => column[m], text: (m) => text(column[m]), share: (m) => (column[0] > 0 ? column[m] / column[0] : 0),
  });
  const order: number[] = [];
  const pending = graph.moduleCount > 0 ? [0] : [];
  for (let m = pending.pop(); m !== undefined; m = pending.pop()) {
    order.push(m);
    for (let k = kids.start[m + 1]; k-- > kids.start[m]; ) pending.push(kids.items[k]);
  }
  return {
    columns: [
      { key: 'path', title: 'module', number: false, value: (m) => (m === 0 ? '(all)' : graph.modulePath(m)) },
      { key: 'class', title: 'class', number: false, value: (m) => graph.moduleClass(m) },
      { key: 'calls', title: 'calls', number: true, value: (m) => figure('calls')[m], text: (m) => exact(figure('calls')[m]) },
      amount('parameters', 'parameters', figure('parameters'), bytes, 'bytes of parameters read in forward'),
      amount('forward', 'forward FLOPs', figure('forward_flops'), flops, 'matrix products: 2 per multiply-add'),
      amount('backward', 'backward FLOPs', figure('backward_flops'), flops, 'matrix products: 2 per multiply-add'),
      ...(graph.hasTime ? [amount('time', 'time', graph.moduleSeconds(), seconds, 'estimated, all phases')] : []),
      amount('saved', 'saved', figure('saved'), bytes, 'bytes first saved for backward in this module'),
      amount('output', 'saved outputs', figure('output'), bytes, 'bytes allocated in forward and saved for backward'),
      amount('temporary', 'temporary', figure('temporary'), bytes, 'bytes allocated in forward and not saved'),
      amount('made', 'backward', figure('backward'), bytes, 'bytes allocated in backward'),
      { key: 'peak', title: 'peak', number: true, value: (m) => figure('peak')[m], text: (m) => bytes(figure('peak')[m]), help: 'maximum bytes alive on the device while one of its operators runs' },
    ],
    rows: order,
    selection: (m) => ({ kind: 'module', id: m }),
    isLit: (m, lit) => lit.module === m,
    depth: (m) => depth[m],
    children: (m) => kids.start[m + 1] > kids.start[m],
    parent: (m) => (m === 0 ? NONE : parent[m]),
    sort: '',
  };
}

function operators(graph: Graph): TableData {
  const names = [...new Set(graph.header.targets.map((t) => t.name))];
  const index = new Map(names.map((n, i) => [n, i]));
  const of = graph.header.targets.map((t) => index.get(t.name)!);
  const make = (): Float64Array => new Float64Array(names.length);
  const all = { calls: make(), flops: make(), elementwise: make(), time: make(), moved: make(), allocated: make(), kept: make(), uncovered: make() };
  for (let i = 0; i < graph.nodeCount; ++i) {
    const op = of[graph.targetIndex(i)];
    ++all.calls[op];
    all.flops[op] += graph.matmul()[i];
    all.elementwise[op] += graph.elementwise()[i] + graph.transcendental()[i];
    all.time[op] += graph.seconds()[i];
    all.moved[op] += graph.read()[i] + graph.written()[i];
    all.allocated[op] += graph.allocated()[i];
    all.kept[op] += graph.kept()[i];
    all.uncovered[op] += graph.uncovered()[i];
  }
  const amount = (key: string, title: string, column: Float64Array, text: (v: number) => string): Column => {
    const total = sum(column);
    return { key, title, number: true, value: (r) => column[r], text: (r) => text(column[r]), share: (r) => (total > 0 ? column[r] / total : 0) };
  };
  const category = names.map((n) => graph.header.categories[graph.header.targets.find((t) => t.name === n)!.category][0]);
  return {
    columns: [
      { key: 'operator', title: 'operator', number: false, value: (r) => names[r] },
      { key: 'kind', title: 'kind', number: false, value: (r) => category[r] },
      amount('calls', 'calls', all.calls, exact),
      ...(graph.hasTime ? [amount('time', 'time', all.time, seconds)] : []),
      amount('flops', 'FLOPs', all.flops, flops),
      amount('elementwise', 'elementwise', all.elementwise, flops),
      amount('moved', 'bytes moved', all.moved, bytes),
      amount('allocated', 'allocated', all.allocated, bytes),
      amount('kept', 'saved for backward', all.kept, bytes),
      { key: 'uncovered', title: 'no formula', number: true, value: (r) => all.uncovered[r], text: (r) => (all.uncovered[r] > 0 ? `${exact(all.uncovered[r])} calls` : ''), help: 'calls without a FLOP formula: FLOPs are a lower bound' },
    ],
    rows: names.map((_, i) => i).filter((r) => all.calls[r] > 0),
    selection: (r) => ({ kind: 'operator', id: names[r] }),
    isLit: (r, lit) => lit.operator === names[r],
    sort: graph.hasTime ? '-time' : '-flops',
  };
}

function storages(graph: Graph): TableData {
  const { first, last } = graph.lives();
  const size = graph.storageBytes();
  const peak = mainTimeline(graph).peakStep;
  const kinds = graph.header.storage_kinds;
  return {
    columns: [
      { key: 'storage', title: 'storage', number: true, value: (s) => s, text: (s) => `s${String(s)}` },
      { key: 'bytes', title: 'size', number: true, value: (s) => size[s], text: (s) => bytes(size[s]) },
      { key: 'kind', title: 'kind', number: false, value: (s) => kinds[graph.storageKind()[s]] },
      { key: 'made', title: 'allocated by', number: false, value: (s) => graph.storageLabel(s) },
      { key: 'type', title: 'first tensor', number: false, value: (s) => (graph.storageValue()[s] >= 0 ? graph.type(graph.storageValue()[s]) : '') },
      { key: 'first', title: 'from', number: true, value: (s) => first[s], text: (s) => (graph.storageExisted()[s] === 1 ? 'before' : `n${String(first[s])}`) },
      { key: 'last', title: 'to', number: true, value: (s) => last[s], text: (s) => (graph.storageFreed()[s] === NONE ? 'end' : `n${String(last[s])}`) },
      { key: 'life', title: 'steps', number: true, value: (s) => last[s] - first[s] + 1, text: (s) => exact(last[s] - first[s] + 1) },
      { key: 'kept', title: 'kept alive by', number: false, value: (s) => graph.keeper(s) },
      { key: 'peak', title: 'at the peak', number: false, value: (s) => (first[s] <= peak && peak <= last[s] ? 'yes' : '') },
      { key: 'device', title: 'device', number: false, value: (s) => graph.deviceOfStorage(s) },
    ],
    rows: Array.from({ length: graph.storageCount }, (_, s) => s),
    selection: (s) => ({ kind: 'storage', id: s }),
    isLit: (s, lit) => lit.storage(s),
    sort: '-bytes',
  };
}

function calls(graph: Graph): TableData {
  const amount = (key: string, title: string, column: () => ArrayLike<number>, text: (v: number) => string): Column => ({ key, title, number: true, value: (n) => column()[n], text: (n) => text(column()[n]) });
  return {
    columns: [
      { key: 'node', title: 'node', number: true, value: (n) => n, text: (n) => `n${String(n)}` },
      { key: 'operator', title: 'operator', number: false, value: (n) => graph.op(n) + (graph.placeholder(n) === '' ? '' : ` ${graph.placeholder(n)}`) },
      { key: 'phase', title: 'phase', number: false, value: (n) => graph.header.phases[graph.phase()[n]] },
      { key: 'module', title: 'module', number: false, value: (n) => graph.modulePath(graph.moduleOf()[n]) },
      { key: 'type', title: 'output', number: false, value: (n) => (graph.outputStart()[n + 1] > graph.outputStart()[n] ? graph.type(graph.outputStart()[n]) : '') },
      ...(graph.hasTime ? [amount('time', 'time', graph.seconds, seconds)] : []),
      ...(graph.header.given?.kinds ? [{ key: 'given', title: visible(graph.header.given.title, 40), number: false, value: (n: number) => graph.givenText(n) }] : []),
      ...(graph.header.given && !graph.header.given.kinds ? [amount('given', visible(graph.header.given.title, 40), graph.given, formatGiven(graph.header.given))] : []),
      amount('flops', 'FLOPs', graph.matmul, flops),
      { key: 'moved', title: 'bytes moved', number: true, value: (n) => graph.read()[n] + graph.written()[n], text: (n) => bytes(graph.read()[n] + graph.written()[n]) },
      amount('allocated', 'allocated', graph.allocated, bytes),
      amount('kept', 'saved for backward', graph.kept, bytes),
      { key: 'alive', title: 'alive', number: true, value: (n) => mainTimeline(graph).total[n], text: (n) => bytes(mainTimeline(graph).total[n]) },
      { key: 'source', title: 'source', number: false, value: (n) => graph.source(n) },
    ],
    rows: Array.from({ length: graph.nodeCount }, (_, n) => n),
    selection: (n) => ({ kind: 'node', id: n }),
    isLit: (n, lit) => lit.node(n),
    sort: '',
  };
}

// Filters and sorts rows; in a tree, keeps the parents of matches.
export function arranged(table: TableData, filter: string, sort: string, closed: ReadonlySet<number>): number[] {
  let { rows } = table;
  const words = filter.toLowerCase().split(/\s+/).filter((w) => w !== '');
  if (words.length > 0) {
    const texts = table.columns.filter((c) => !c.number || c.key === 'node' || c.key === 'storage');
    const found = rows.filter((row) => {
      const text = texts.map((c) => String(c.text ? c.text(row) : c.value(row))).join(' ').toLowerCase();
      return words.every((w) => text.includes(w));
    });
    if (table.parent && sort === '') {
      const wanted = new Set<number>();
      for (const row of found) for (let r = row; r !== NONE && !wanted.has(r); r = table.parent(r)) wanted.add(r);
      return rows.filter((r) => wanted.has(r));
    }
    rows = found;
  } else if (table.parent && sort === '' && closed.size > 0) {
    const hidden = new Set<number>();
    rows = rows.filter((r) => {
      const above = table.parent!(r);
      if (above !== NONE && (hidden.has(above) || closed.has(above))) {
        hidden.add(r);
        return false;
      }
      return true;
    });
  }
  if (sort === '') return rows;
  const key = sort.replace(/^-/, '');
  const column = table.columns.find((c) => c.key === key);
  if (!column) return rows;
  const down = sort.startsWith('-') ? -1 : 1;
  // Sorts indices rather than rows, so that the values of a million rows are in one array.
  const places = Uint32Array.from(rows, (_, i) => i);
  if (column.number) {
    const values = Float64Array.from(rows, (row) => Number(column.value(row)));
    places.sort((a, b) => down * (values[a] - values[b]) || rows[a] - rows[b]);
  } else {
    const values = rows.map((row) => String(column.value(row)));
    places.sort((a, b) => (values[a] === values[b] ? rows[a] - rows[b] : values[a] < values[b] ? -down : down));
  }
  return Array.from(places, (place) => rows[place]);
}

export function toCsv(table: TableData, rows: readonly number[]): string {
  const lines = [table.columns.map((c) => csvField(c.title)).join(',')];
  for (const row of rows) lines.push(table.columns.map((c) => csvField(String(c.value(row)))).join(','));
  return `${lines.join('\n')}\n`;
}

const NAMES: [TableName, string][] = [['modules', 'Modules'], ['operators', 'Operators'], ['storages', 'Storages'], ['calls', 'Calls']];
const HEIGHT = 27;
const MOST_PIXELS = 15_000_000; // browsers limit the height of elements: Firefox 17.9 million, Chromium 33.5 million
const MOST_PRINTED = 2000;
const BEYOND = 8; // rows rendered above and below the visible ones

// Returns the visible rows of a scrolled list, and the heights of the spacers above and below. A list higher than the
// limit of an element scrolls by more than one row height per row.
export function inSight(rows: number, top: number, height: number): { first: number; last: number; above: number; below: number } {
  const real = rows * HEIGHT;
  const whole = Math.min(real, MOST_PIXELS);
  // A list that became shorter is scrolled to its end.
  const at = Math.max(0, Math.min(top, whole - height));
  const scale = whole > height ? (real - height) / (whole - height) : 1;
  const first = Math.max(0, Math.floor((at * scale) / HEIGHT) - BEYOND);
  const last = Math.min(rows, Math.ceil((at * scale + height) / HEIGHT) + BEYOND);
  const above = Math.max(0, first * HEIGHT - at * scale + at);
  return { first, last, above, below: Math.max(0, whole - above - (last - first) * HEIGHT) };
}

// Returns the scroll position at which a row is at the top.
export function scrolledTo(rows: number, row: number, height: number): number {
  const real = rows * HEIGHT;
  const whole = Math.min(real, MOST_PIXELS);
  return real > height ? (row * HEIGHT * (whole - height)) / (real - height) : 0;
}

// Returns true while the page is printed; all rows are rendered then.
function usePrinting(): boolean {
  const [printing, setPrinting] = useState(false);
  useEffect(() => {
    // The browser prints as soon as the listeners return, so render synchronously.
    const set = (now: boolean) => (): void => {
      const later = options.debounceRendering;
      options.debounceRendering = (render) => render();
      setPrinting(now);
      if (later) options.debounceRendering = later;
      else delete options.debounceRendering;
    };
    const events = [['beforeprint', set(true)], ['afterprint', set(false)]] as const;
    for (const [name, listener] of events) window.addEventListener(name, listener);
    return () => {
      for (const [name, listener] of events) window.removeEventListener(name, listener);
    };
  }, []);
  return printing;
}

export function TablesView(): VNode {
  const { graph, state, store } = useApp();
  const table = tableOf(graph, state.table);
  const lit = useMemo(() => litBy(graph, state.selection), [graph, state.selection]);
  const sort = state.sort === '' ? table.sort : state.sort === '-' ? '' : state.sort;
  const deep = (table.depth && state.closed.length === 0 && table.rows.length > 400) ? new Set(table.rows.filter((r) => table.depth!(r) >= 2)) : undefined;
  const closed = useMemo(() => deep ?? new Set(state.closed.map(Number)), [graph, state.closed, state.table]);
  const rows = useMemo(() => arranged(table, state.filter, sort, closed), [table, state.filter, sort, closed]);
  const [copied, setCopied] = useState('');
  const body = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const element = body.current!;
    return onChange(element, () => setScroll({ top: element.scrollTop, height: element.clientHeight }));
  }, []);
  // Scroll a new list to its top.
  useEffect(() => {
    body.current!.scrollTop = 0;
  }, [table, state.filter, sort]);
  // Scroll to the row of an item selected elsewhere.
  useEffect(() => {
    const at = state.selection ? rows.findIndex((row) => table.isLit(row, lit)) : NONE;
    if (at === NONE) return;
    const box = body.current!;
    const { first, last } = inSight(rows.length, box.scrollTop, box.clientHeight);
    if (at < first + BEYOND || at > last - BEYOND - 3) box.scrollTop = scrolledTo(rows.length, Math.max(0, at - box.clientHeight / 3 / HEIGHT), box.clientHeight);
  }, [lit, table]);
  const printing = usePrinting();
  const { first, last, above, below } = printing ? { first: 0, last: Math.min(rows.length, MOST_PRINTED), above: 0, below: 0 } : inSight(rows.length, scroll.top, scroll.height);
  const turn = (column: Column): void => {
    const now = sort.replace(/^-/, '') === column.key ? sort : '';
    const next = now === '' ? (column.number ? `-${column.key}` : column.key) : now.startsWith('-') === column.number ? (column.number ? column.key : `-${column.key}`) : '-';
    store.set({ sort: next });
  };
  const copy = (): void => {
    const text = toCsv(table, rows);
    const done = (): void => setCopied(`${exact(rows.length)} rows copied`);
    const fall = (): void => {
      const area = document.createElement('textarea');
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
      done();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, fall);
    else fall();
  };
  const toggle = (row: number): void => {
    const next = new Set(closed);
    if (next.has(row)) next.delete(row);
    else next.add(row);
    store.set({ closed: next.size === 0 ? ['-'] : [...next].map(String) });
  };
  const move = (event: KeyboardEvent, row: number): void => {
    const by = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (by !== 0) {
      event.preventDefault();
      const at = rows.indexOf(row) + by;
      if (at >= 0 && at < rows.length) {
        store.select(table.selection(rows[at]));
        requestAnimationFrame(() => (body.current!.querySelector(`[data-row="${String(rows[at])}"]`) as HTMLElement | null)?.focus());
      }
    }
    if (event.key === 'Enter') store.select(table.selection(row));
    if (table.children?.(row) && (event.key === 'ArrowRight' || event.key === 'ArrowLeft') && closed.has(row) === (event.key === 'ArrowRight')) toggle(row);
  };
  const tree = table.depth !== undefined && sort === '';
  return (
    <div class="tables">
      <div class="tools">
        <span role="tablist" aria-label="Tables">
          {NAMES.map(([name, title]) => (
            <button key={name} type="button" role="tab" aria-selected={state.table === name} onClick={() => store.set({ table: name, sort: '', filter: '' })}>{title}</button>
          ))}
        </span>
        <input type="search" placeholder="Filter rows" aria-label="Filter rows by words" value={state.filter} onInput={(event) => store.set({ filter: event.currentTarget.value })} />
        <span class="quiet">{exact(rows.length)} of {exact(table.rows.length)} rows</span>
        <button type="button" onClick={copy}>Copy as CSV</button>
        <span class="quiet" aria-live="polite">{copied}</span>
      </div>
      <div class="rows" ref={body} onScroll={() => setScroll({ top: body.current!.scrollTop, height: body.current!.clientHeight })}>
        <table aria-rowcount={rows.length + 1}>
          <thead>
            <tr>
              {table.columns.map((column) => {
                const on = sort.replace(/^-/, '') === column.key;
                return (
                  <th key={column.key} scope="col" class={column.number ? 'number' : ''} aria-sort={on ? (sort.startsWith('-') ? 'descending' : 'ascending') : 'none'}>
                    <button type="button" title={column.help} onClick={() => turn(column)}>{column.title}{on ? (sort.startsWith('-') ? ' ▾' : ' ▴') : ''}</button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {above > 0 && <tr style={{ height: `${above.toFixed(0)}px` }} aria-hidden="true"><td colSpan={table.columns.length} /></tr>}
            {rows.slice(first, last).map((row, i) => (
              <tr
                key={row}
                data-row={row}
                tabIndex={0}
                aria-rowindex={first + i + 2}
                aria-selected={table.isLit(row, lit)}
                class={table.isLit(row, lit) ? 'lit' : ''}
                onClick={() => store.select(table.selection(row))}
                onKeyDown={(event) => move(event, row)}
              >
                {table.columns.map((column, c) => {
                  const text = visible(column.text ? column.text(row) : String(column.value(row)), 200);
                  const share = column.share?.(row);
                  return (
                    <td key={column.key} class={column.number ? 'number' : ''} title={share !== undefined && share > 0 ? `${percent(share)} of the total` : undefined}>
                      {share !== undefined && share > 0.001 && <i class="share" style={{ width: `${(Math.min(1, share) * 100).toFixed(1)}%` }} />}
                      {c === 0 && tree && (
                        <span style={{ paddingLeft: `${String(Math.min(12, table.depth!(row)) * 14)}px` }}>
                          {table.children!(row) ? (
                            <button type="button" class="fold" aria-label={closed.has(row) ? 'open' : 'close'} aria-expanded={!closed.has(row)} onClick={(event) => { event.stopPropagation(); toggle(row); }}>{closed.has(row) ? '▸' : '▾'}</button>
                          ) : <span class="fold" />}
                        </span>
                      )}
                      <bdi>{c === 0 && tree && row !== 0 ? lastPart(text) : text}</bdi>
                    </td>
                  );
                })}
              </tr>
            ))}
            {below > 0 && <tr style={{ height: `${below.toFixed(0)}px` }} aria-hidden="true"><td colSpan={table.columns.length} /></tr>}
          </tbody>
        </table>
        {printing && rows.length > last && <p>and {exact(rows.length - last)} more rows, not printed</p>}
      </div>
    </div>
  );
}

function lastPart(path: string): string {
  return path.slice(path.lastIndexOf('.') + 1) || path;
}
