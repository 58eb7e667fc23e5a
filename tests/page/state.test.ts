import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FIRST, fromAddress, toAddress, type State } from '../../viz/page/src/state';
import { arranged, toCsv, type TableData } from '../../viz/page/src/tables';
import { bytes, change, count, csvField, exact, flops, seconds, shortened, visible } from '../../viz/page/src/units';

test('the address holds the state', () => {
  const state: State = {
    ...FIRST, view: 'graph', side: 'before', selection: { kind: 'operator', id: 'aten::add.Tensor' }, open: ['c0', 'gc12:60'], unfolded: [3, 4],
    phases: [0, 1], color: 'flops', showViews: true, showParameters: true, around: { node: 5, radius: 3 }, path: { from: 1, to: 2 }, step: 7,
    range: [10, 20], table: 'storages', sort: '-bytes', filter: 'a & b=c#d', closed: ['1', '2'],
  };
  assert.deepEqual(fromAddress(toAddress(state)), state);
  assert.equal(toAddress(FIRST), '#overview');
  assert.deepEqual(fromAddress(''), FIRST);
});

test('a page opens where its maker wanted, unless its address says otherwise', () => {
  assert.equal(fromAddress('', 'compare').view, 'compare');
  assert.equal(fromAddress('#overview', 'compare').view, 'overview');
});

test('an invalid address does no harm', () => {
  assert.deepEqual(fromAddress('#nonsense?sel=q9&phases=x&range=9.1&color=pink&table=chairs&around=1'), FIRST);
});

test('units are those of the tool', () => {
  assert.deepEqual([0, 512, 12606, 1116691497].map(bytes), ['0 B', '512 B', '12.31 KiB', '1.04 GiB']);
  assert.deepEqual([0, 999, 3720, 924840000, 7.44e9, 1.2e15].map(count), ['0', '999', '3.72 K', '924.84 M', '7.44 G', '1.20 P']);
  assert.deepEqual([0, 3.2e-6, 0.0125, 1.04].map(seconds), ['0 s', '3.20 us', '12.5 ms', '1.04 s']);
  assert.equal(exact(25557032), '25,557,032');
  assert.equal(flops(7.44e9), '7.44 GFLOP');
  assert.equal(flops(12), '12 FLOP');
  assert.equal(change(100, 150, exact), '+50 (+50.0 %)');
  assert.equal(change(2048, 1024, bytes), '-1.00 KiB (-50.0 %)');
});

test('what is not seen is written out, and what is long is cut', () => {
  assert.equal(visible('a\u202eb\u0007'), 'a\\u202eb\\u0007');
  assert.equal(visible('x'.repeat(1_000_000), 10), 'xxxxx ... xxxxx');
  assert.equal(shortened('layers.0.attention.output', 11), 'layer\u2026utput');
  assert.equal(csvField('a,"b"\n'), '"a,""b""\n"');
});

const tree: TableData = {
  columns: [
    { key: 'name', title: 'name', number: false, value: (r) => ['all', 'a', 'a.b', 'c'][r] },
    { key: 'size', title: 'size', number: true, value: (r) => [9, 5, 5, 4][r], text: (r) => `${String([9, 5, 5, 4][r])} B` },
  ],
  rows: [0, 1, 2, 3],
  selection: (r) => ({ kind: 'module', id: r }),
  isLit: () => false,
  parent: (r) => [-1, 0, 1, 0][r],
  sort: '',
};

test('rows in order, by filter, and of a tree', () => {
  assert.deepEqual(arranged(tree, '', '', new Set()), [0, 1, 2, 3]);
  assert.deepEqual(arranged(tree, '', '-size', new Set()), [0, 1, 2, 3]);
  assert.deepEqual(arranged(tree, '', 'size', new Set()), [3, 1, 2, 0]);
  assert.deepEqual(arranged(tree, 'b', '', new Set()), [0, 1, 2]);
  assert.deepEqual(arranged(tree, '', '', new Set([1])), [0, 1, 3]);
  assert.equal(toCsv(tree, [1, 3]), 'name,size\na,5\nc,4\n');
});
