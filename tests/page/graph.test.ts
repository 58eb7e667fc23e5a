import assert from 'node:assert/strict';
import { test } from 'node:test';
import { around, boxesOf, EdgeKind, firstOpen, pathsBetween, pathTo, type Boxes, type BoxOptions } from '../../viz/page/src/boxes';
import { withComposites } from '../../viz/page/src/composites';
import { layoutOf } from '../../viz/page/src/layout';
import { aliveAt, blocksOf, phaseRuns, running, timelineOf } from '../../viz/page/src/memory';
import { find } from '../../viz/page/src/search';
import { graphOf, small, type TestNode } from './pack';

// x -> outer.inner: `calls` modules with one relu each; unless outer is a wrapper, it also has two operators.
function wrapped(calls: number, own: boolean): ReturnType<typeof graphOf> {
  const nodes: TestNode[] = [{ op: 'sg::input', name: 'x', makes: [0] }];
  for (let i = 0; i < calls; ++i) nodes.push({ op: 'aten::relu', inputs: [i], makes: [0], cluster: 3 + i });
  if (own) nodes.push({ op: 'aten::relu', inputs: [calls], makes: [0], cluster: 1 });
  const parts = Array.from({ length: calls }, (_, i) => ({ parent: 2, name: `part${String(i)}`, className: `Part${String(i)}` }));
  return graphOf(nodes, [{ parent: 0, name: '' }, { parent: 0, name: 'outer', className: 'Outer' }, { parent: 1, name: 'inner', className: 'Inner' }, ...parts], [{ bytes: 400, kind: 2, existed: true }]);
}

test('a wrapper of one module is open at first, and so is a box that is alone', () => {
  assert.deepEqual([...firstOpen(wrapped(2, false), [0], 0)].includes('c1'), true);
  const open = firstOpen(wrapped(60, false), [0], 44);
  assert.ok(open.has('c1') && open.has('c2'), [...open].join());
  assert.ok(!open.has('c3'));
  assert.ok(!firstOpen(wrapped(60, true), [0], 44).has('c2'));
});

const options = (change: Partial<BoxOptions> = {}): BoxOptions => ({
  open: new Set(['c0']), unfolded: new Set(), phases: [0, 1], showViews: false, showParameters: false, ...change,
});
const named = (boxes: Boxes): string[] => boxes.items.filter((i) => i.index > 0).map((i) => i.title);
const between = (boxes: Boxes): string[] => boxes.edges.map((e) => `${boxes.items[e.from].title} ${EdgeKind[e.kind]} ${boxes.items[e.to].title}`).sort();

test('values, producers and users', () => {
  const graph = small();
  assert.deepEqual([...graph.producer()], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const users = graph.users();
  assert.deepEqual([...users.items.subarray(users.start[0], users.start[1])], [2, 8]);
  assert.equal(graph.type(2), 'f32[400]');
  assert.equal(graph.bytesOfValue(2), 1600);
  assert.equal(graph.forward()[9], 2);
  assert.equal(graph.savedAt()[0], 2);
  assert.equal(graph.keeper(1), 'parameter');
  assert.equal(graph.keeper(4), 'output');
});

// By hand: 400 + 800 exist before; s2 has 1600 at n2..n5, s3 1600 at n5..n8, s4 40 from n8, s5 80 at n9.
test('bytes alive at every step, and the peak', () => {
  const timeline = timelineOf(small(), 'cpu');
  assert.deepEqual([...timeline.total], [1200, 1200, 2800, 2800, 2800, 4400, 2800, 2800, 2840, 1320, 1240]);
  assert.equal(timeline.peakStep, 5);
  assert.deepEqual(aliveAt(small(), 'cpu', 5), [2, 3, 1, 0]);
  assert.deepEqual(phaseRuns(small()), [{ phase: 0, first: 2, last: 8 }, { phase: 1, first: 9, last: 9 }]);
  assert.deepEqual(running(small()), [2, 10]);
});

test('blocks that live together do not overlap', () => {
  const { blocks, left } = blocksOf(small(), 'cpu');
  assert.equal(left, 0);
  for (const a of blocks) {
    for (const b of blocks) {
      if (a === b || a.first > b.last || b.first > a.last) continue;
      assert.ok(a.place + a.bytes <= b.place || b.place + b.bytes <= a.place, `s${String(a.storage)} and s${String(b.storage)}`);
    }
  }
});

test('closed modules are boxes, equal ones are one', () => {
  const boxes = boxesOf(small(), options());
  // a contains only the folded layers, so they share a box; backward contains one operator but remains a phase.
  assert.deepEqual(named(boxes), ['forward', 'backward', 'x', 'a.{0..1} \u00d72', 'add', 'output']);
  assert.deepEqual(between(boxes), ['a.{0..1} \u00d72 data add', 'add data backward', 'add data output', 'x data a.{0..1} \u00d72', 'x data add']);
});

test('an open layer shows its operators, through views, and the way to its next copy', () => {
  const boxes = boxesOf(small(), options({ open: new Set(['c0', 'c2']) }));
  assert.deepEqual(named(boxes).slice(6), ['mm', 'relu_']);
  assert.deepEqual(between(boxes).filter((e) => e.includes('relu_')), ['mm mutation relu_', 'relu_ data add', 'relu_ nextCopy mm']);
});

test('views are boxes when they are asked for', () => {
  const boxes = boxesOf(small(), options({ open: new Set(['c0', 'c2']), showViews: true }));
  assert.ok(between(boxes).includes('mm alias view'));
});

test('an unfolded run shows every copy', () => {
  const boxes = boxesOf(small(), options({ open: new Set(['c0', 'c1']), unfolded: new Set([2]) }));
  assert.deepEqual(named(boxes).filter((n) => /^[01]$/.test(n)), ['0', '1']);
  assert.ok(between(boxes).includes('0 data 1'));
});

test('parameters are boxes when they are asked for', () => {
  assert.ok(named(boxesOf(small(), options({ showParameters: true }))).includes('w'));
});

test('a crowd is parted into runs', () => {
  const many: TestNode[] = [{ op: 'sg::input', name: 'x', makes: [0] }];
  for (let i = 0; i < 500; ++i) many.push({ op: 'aten::add', inputs: [0], makes: [0] });
  const graph = graphOf(many, [{ parent: 0, name: '' }], [{ bytes: 4, kind: 2, existed: true }]);
  const boxes = boxesOf(graph, options());
  assert.ok(boxes.items.every((item) => item.children.length <= 120));
  const chunk = boxes.items.find((item) => item.kind === 'chunk')!;
  const opened = boxesOf(graph, options({ open: new Set(['c0', chunk.key]) }));
  assert.ok(opened.items.find((item) => item.key === chunk.key)!.children.length > 20);
  assert.deepEqual(pathTo(graph, boxes, options(), { node: 1 }), [chunk.key]);
});

test('neighborhood and ways', () => {
  const graph = small();
  assert.deepEqual(around(graph, 8, 1, 100), [0, 7, 8, 9, 10]);
  assert.deepEqual(pathsBetween(graph, 2, 8), [2, 4, 5, 7, 8]);
  assert.deepEqual(pathsBetween(graph, 8, 2), [2, 4, 5, 7, 8]);
  const part = boxesOf(graph, options({ only: [8] }));
  assert.deepEqual(named(part).sort(), ['2 more', '2 more', 'add']);
});

test('boxes lie inside the one that they are in, and apart', () => {
  const graph = small();
  const boxes = boxesOf(graph, options({ open: new Set(['c0', 'c2']) }));
  const layout = layoutOf(boxes, () => false);
  for (const item of boxes.items) {
    for (const c of item.children) {
      const child = boxes.items[c];
      assert.ok(layout.x[c] >= layout.x[item.index] && layout.x[c] + child.width <= layout.x[item.index] + item.width + 0.01, child.title);
      assert.ok(layout.y[c] >= layout.y[item.index] && layout.y[c] + child.height <= layout.y[item.index] + item.height + 0.01, child.title);
      for (const d of item.children) {
        if (d <= c) continue;
        const other = boxes.items[d];
        const apart = layout.x[c] + child.width <= layout.x[d] + 0.01 || layout.x[d] + other.width <= layout.x[c] + 0.01 || layout.y[c] + child.height <= layout.y[d] + 0.01 || layout.y[d] + other.height <= layout.y[c] + 0.01;
        assert.ok(apart, `${child.title} and ${other.title}`);
      }
    }
  }
});

test('what is open at first is what fits', () => {
  assert.deepEqual([...firstOpen(small(), [0], 44)], ['c0', 'c2']);
});

test('finding by operator, name, shape and number', () => {
  const graph = small();
  assert.deepEqual(find(graph, 'RELU').nodes, [4, 7]);
  assert.deepEqual(find(graph, 'f32[10]').nodes, [8]);
  assert.deepEqual(find(graph, 'n7').nodes, [7]);
  assert.deepEqual(find(graph, '%8').nodes, [8]);
  assert.deepEqual(find(graph, 's5').nodes, [9]);
  assert.deepEqual(find(graph, 'n99').nodes, []);
  assert.equal(find(graph, 'mm', 1).count, 3);
});

// m contains linear = (mm, add) and a relu; backward differentiates mm and add.
const calls = (): ReturnType<typeof graphOf> => graphOf(
  [
    { op: 'sg::input', name: 'x', makes: [0] },
    { op: 'aten::mm', inputs: [0, 0], makes: [1], cluster: 1, region: 2, flops: 7 },
    { op: 'aten::add', inputs: [1, 0], makes: [2], cluster: 1, region: 2 },
    { op: 'aten::relu', inputs: [2], makes: [3], cluster: 1, region: 1 },
    { op: 'aten::neg', inputs: [3], makes: [4], phase: 1, cluster: 3, forward: 2 },
    { op: 'aten::exp', inputs: [4], makes: [5], phase: 1, cluster: 3, forward: 1 },
  ],
  [{ parent: 0, name: '' }, { parent: 0, name: 'm', className: 'M' }, { parent: 0, name: 'backward', phase: true }, { parent: 2, name: 'm', className: 'M' }],
  Array.from({ length: 6 }, () => ({ bytes: 400, kind: 7 })),
  [{ kind: 'module', parent: 0, name: 'm' }, { kind: 'composite', parent: 1, name: 'aten::linear' }],
);

test('calls of composite operators are boxes when asked for, in backward too', () => {
  const plain = calls();
  const graph = withComposites(plain);
  assert.equal(withComposites(plain), graph);
  assert.deepEqual(named(boxesOf(plain, options({ open: new Set(['c0', 'c1']) }))), ['forward', 'backward', 'x', 'm', 'mm', 'add', 'relu']);
  const boxes = boxesOf(graph, options({ open: new Set(['c0', 'c1', 'c2', 'c3']) }));
  assert.deepEqual(named(boxes), ['forward', 'backward', 'x', 'm', 'm', 'aten::linear', 'relu', 'aten::linear']);
  assert.deepEqual(between(boxes), ['aten::linear data relu', 'relu data aten::linear', 'x data aten::linear']);
  // Module numbers are unchanged; composite calls are numbered after them, with separate sums.
  assert.equal(graph.clusterCount, plain.clusterCount + 2);
  assert.equal(graph.totalsOf(plain.clusterCount).flops, 7);
  assert.deepEqual(graph.totalsOf(1), plain.totalsOf(1));
  assert.equal(graph.clusterPhase()[plain.clusterCount + 1], 1);
  assert.deepEqual(graph.composites(1), ['aten::linear']);
  assert.deepEqual(plain.clusterOf()[1], 1);
});

test('what enters an open box goes around those inside', () => {
  // x is used by the first and the last operator of a chain in m.
  const graph = graphOf(
    [
      { op: 'sg::input', name: 'x', makes: [0] },
      { op: 'aten::neg', inputs: [0], makes: [1], cluster: 1 },
      { op: 'aten::exp', inputs: [1], makes: [2], cluster: 1 },
      { op: 'aten::abs', inputs: [2], makes: [3], cluster: 1 },
      { op: 'aten::add', inputs: [3, 0], makes: [4], cluster: 1 },
      { op: 'sg::output', inputs: [4] },
    ],
    [{ parent: 0, name: '' }, { parent: 0, name: 'm', className: 'M' }],
    Array.from({ length: 5 }, () => ({ bytes: 400, kind: 7 })),
  );
  const boxes = boxesOf(graph, options({ phases: [0], open: new Set(['c0', 'c1']) }));
  const layout = layoutOf(boxes, () => false);
  const at = (title: string): number => boxes.items.findIndex((item) => item.title === title);
  const way = layout.ways.get(`in ${String(at('add'))}`);
  assert.ok(way && way.length > 2);
  assert.ok(layout.ways.has(`out ${String(at('add'))}`));
  for (const title of ['neg', 'exp', 'abs']) {
    const i = at(title);
    const box = boxes.items[i];
    way.slice(1).forEach((p, k) => {
      for (const t of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
        const x = way[k].x + (p.x - way[k].x) * t;
        const y = way[k].y + (p.y - way[k].y) * t;
        const inside = x > layout.x[i] + 1 && x < layout.x[i] + box.width - 1 && y > layout.y[i] + 1 && y < layout.y[i] + box.height - 1;
        assert.ok(!inside, `${title} is in the way at ${String(x)}, ${String(y)}`);
      }
    });
  }
});

test('a part of a tensor says what it is a part of', () => {
  const graph = graphOf(
    [
      { op: 'sg::input', name: 'x', makes: [0] },
      { op: 'sg::parameter', name: 'w', makes: [1], notes: [['layout', 'S(0)'], ['whole_sizes', '64,4']] },
      { op: 'aten::mm', inputs: [0, 1], makes: [2] },
    ],
    [{ parent: 0, name: '' }, { parent: 0, name: 'forward', phase: true }],
    [{ bytes: 16, kind: 2, existed: true }, { bytes: 64, kind: 0, existed: true }, { bytes: 16, kind: 4 }],
  );
  const boxes = boxesOf(graph, options({ phases: [0], showParameters: true }));
  const lines = boxes.items.filter((i) => i.kind === 'node').map((i) => i.lines.join(', '));
  assert.deepEqual(lines, ['f32[4]', 'f32[16], S(0) of [64,4]', 'f32[4]']);
});
