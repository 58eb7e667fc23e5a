// The state of the page; all of it is in the address, so that a link restores the view.
import { MODES, type Mode } from './colors';

export type View = 'overview' | 'graph' | 'memory' | 'tables' | 'compare';
export type TableName = 'modules' | 'operators' | 'storages' | 'calls';

export type Selection =
  | { kind: 'node'; id: number }
  | { kind: 'storage'; id: number }
  | { kind: 'module'; id: number }
  | { kind: 'cluster'; id: number }
  | { kind: 'operator'; id: string };

export interface State {
  view: View;
  side: 'after' | 'before'; // the displayed graph of a comparison
  selection: Selection | undefined;
  open: readonly string[] | undefined; // undefined: initial selection
  unfolded: readonly number[];
  phases: readonly number[] | undefined;
  color: Mode;
  showViews: boolean;
  showParameters: boolean;
  composites: boolean; // calls of composite operators as boxes
  around: { node: number; radius: number } | undefined;
  path: { from: number; to: number } | undefined;
  step: number | undefined; // pinned in the memory chart
  range: readonly [number, number] | undefined;
  table: TableName;
  sort: string; // "-bytes": descending
  filter: string;
  closed: readonly string[]; // closed modules of the table
}

export const FIRST: State = {
  view: 'overview', side: 'after', selection: undefined, open: undefined, unfolded: [], phases: undefined, color: 'op',
  showViews: false, showParameters: false, composites: false, around: undefined, path: undefined, step: undefined, range: undefined,
  table: 'modules', sort: '', filter: '', closed: [],
};

const VIEWS: readonly string[] = ['overview', 'graph', 'memory', 'tables', 'compare'];
const TABLES: readonly string[] = ['modules', 'operators', 'storages', 'calls'];
const LETTERS = { node: 'n', storage: 's', module: 'm', cluster: 'c' } as const;

export function selectionText(selection: Selection): string {
  return selection.kind === 'operator' ? `o${selection.id}` : LETTERS[selection.kind] + String(selection.id);
}

export function parseSelection(text: string): Selection | undefined {
  if (text.startsWith('o') && text.length > 1) return { kind: 'operator', id: text.slice(1) };
  for (const [kind, letter] of Object.entries(LETTERS) as [keyof typeof LETTERS, string][]) {
    if (text.startsWith(letter) && /^\d+$/.test(text.slice(1))) return { kind, id: Number(text.slice(1)) };
  }
  return undefined;
}

function numbers(text: string | null): number[] | undefined {
  if (text === null || !/^\d+([.]\d+)*$/.test(text)) return undefined;
  return text.split('.').map(Number);
}

export function toAddress(state: State): string {
  const out = new URLSearchParams();
  const put = (key: string, value: string, first = ''): void => {
    if (value !== first) out.set(key, value);
  };
  put('side', state.side, 'after');
  if (state.selection) put('sel', selectionText(state.selection));
  if (state.open) out.set('open', state.open.join('.'));
  put('unfolded', state.unfolded.join('.'));
  if (state.phases) put('phases', state.phases.join('.'));
  put('color', state.color, 'op');
  if (state.showViews) put('views', '1');
  if (state.showParameters) put('parameters', '1');
  if (state.composites) put('composites', '1');
  if (state.around) put('around', `${String(state.around.node)}.${String(state.around.radius)}`);
  if (state.path) put('path', `${String(state.path.from)}.${String(state.path.to)}`);
  if (state.step !== undefined) put('step', String(state.step));
  if (state.range) put('range', state.range.map((x) => Math.round(x)).join('.'));
  put('table', state.table, 'modules');
  put('sort', state.sort);
  put('filter', state.filter);
  put('closed', state.closed.join('.'));
  const query = out.toString();
  return `#${state.view}${query === '' ? '' : `?${query}`}`;
}

// `first`: the view if the address has none.
export function fromAddress(hash: string, first: View = 'overview'): State {
  const text = hash.replace(/^#/, '');
  const [view, query = ''] = text.split(/\?(.*)/s);
  const at = new URLSearchParams(query);
  const around = numbers(at.get('around'));
  const path = numbers(at.get('path'));
  const range = numbers(at.get('range'));
  const step = numbers(at.get('step'));
  const open = at.get('open');
  return {
    view: VIEWS.includes(view) ? (view as View) : first,
    side: at.get('side') === 'before' ? 'before' : 'after',
    selection: parseSelection(at.get('sel') ?? ''),
    open: open === null ? undefined : open.split('.').filter((key) => key !== ''),
    unfolded: numbers(at.get('unfolded')) ?? [],
    phases: numbers(at.get('phases')),
    color: MODES.some(([mode]) => mode === at.get('color')) ? (at.get('color') as Mode) : 'op',
    showViews: at.get('views') === '1',
    showParameters: at.get('parameters') === '1',
    composites: at.get('composites') === '1',
    around: around?.length === 2 ? { node: around[0], radius: around[1] } : undefined,
    path: path?.length === 2 ? { from: path[0], to: path[1] } : undefined,
    step: step?.[0],
    range: range?.length === 2 && range[0] < range[1] ? [range[0], range[1]] : undefined,
    table: TABLES.includes(at.get('table') ?? '') ? (at.get('table') as TableName) : 'modules',
    sort: at.get('sort') ?? '',
    filter: at.get('filter') ?? '',
    closed: (at.get('closed') ?? '').split('.').filter((key) => key !== ''),
  };
}

export class Store {
  state: State;
  private readonly listeners = new Set<() => void>();
  private written = '';
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(first: View = 'overview') {
    this.state = fromAddress(location.hash, first);
    window.addEventListener('hashchange', () => {
      if (location.hash === this.written) return;
      this.state = fromAddress(location.hash, first);
      this.notify();
    });
  }

  // A change of view is a step in the browser's history; the rest is not.
  set(change: Partial<State>): void {
    const turned = change.view !== undefined && change.view !== this.state.view;
    this.state = { ...this.state, ...change };
    if (turned) this.write(true);
    else {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.write(false), 150);
    }
    this.notify();
  }

  select(selection: Selection | undefined): void {
    this.set({ selection });
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }

  private write(push: boolean): void {
    clearTimeout(this.timer);
    this.written = toAddress(this.state);
    try {
      if (push) history.pushState(null, '', this.written);
      else history.replaceState(null, '', this.written);
    } catch {
      // A frame in a notebook has no separate address.
    }
  }
}
