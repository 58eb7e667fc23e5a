import assert from 'node:assert/strict';
import { test } from 'node:test';
import { arranged, inSight, scrolledTo, type TableData } from '../../viz/page/src/tables';

const HEIGHT = 27;

test('rows in sight of a short list', () => {
  assert.deepEqual(inSight(10, 0, 800), { first: 0, last: 10, above: 0, below: 0 });
  // At 270 px, 10 rows are above the visible part; 8 more rows are rendered on both sides of the 20 visible ones.
  assert.deepEqual(inSight(1000, 270, 540), { first: 2, last: 38, above: 2 * HEIGHT, below: (1000 - 38) * HEIGHT });
});

test('a list that became shorter than where the last one was scrolled to has rows in sight', () => {
  const { first, last } = inSight(700, 20_000_000, 800);
  assert.equal(last, 700);
  assert.ok(first < 700 - 800 / HEIGHT);
});

test('a list higher than an element may be: every row can be reached, and lies where it is looked for', () => {
  const rows = 3_000_000;
  const height = 800;
  let whole = 0;
  for (const row of [0, 1, 1000, 1_500_000, rows - 31]) {
    const top = scrolledTo(rows, row, height);
    const { first, last, above, below } = inSight(rows, top, height);
    assert.ok(first <= row && row < last, `row ${String(row)} among ${String(first)} to ${String(last)}`);
    assert.ok(Math.abs(above + (row - first) * HEIGHT - top) <= HEIGHT, `row ${String(row)}`);
    const all = above + (last - first) * HEIGHT + below;
    assert.ok(all < 17_000_000 && (whole === 0 || Math.abs(all - whole) < 9 * HEIGHT));
    whole ||= all;
  }
  assert.equal(inSight(rows, whole - height, height).last, rows);
});

test('rows by number, by text, downwards, and equal ones as they were', () => {
  const sizes = [3, 1, 3, 2];
  const names = ['b', 'a', 'b', 'c'];
  const table: TableData = {
    columns: [
      { key: 'size', title: 'size', number: true, value: (r) => sizes[r] },
      { key: 'name', title: 'name', number: false, value: (r) => names[r] },
    ],
    rows: [0, 1, 2, 3], selection: (id) => ({ kind: 'node', id }), isLit: () => false, sort: '',
  };
  const order = (sort: string): number[] => arranged(table, '', sort, new Set());
  assert.deepEqual(order('size'), [1, 3, 0, 2]);
  assert.deepEqual(order('-size'), [0, 2, 3, 1]);
  assert.deepEqual(order('name'), [1, 0, 2, 3]);
  assert.deepEqual(order('-name'), [3, 0, 2, 1]);
  assert.deepEqual(arranged(table, 'c', '-size', new Set()), [3]);
});
