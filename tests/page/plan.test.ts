import assert from 'node:assert/strict';
import { test } from 'node:test';
import { KNOBS, marks, valuesOf, type Plan, type Point } from '../../viz/page/src/plan/data';
import { ranksShown } from '../../viz/page/src/plan/gantt';

function point(knobs: Partial<Plan>): Point {
  const plan = { tensor: 1, context: 1, data: 1, pipeline: 1, stages_per_rank: 1, micro_batch: 1, microbatches: 1, zero: 0, schedule: '1f1b', data_outermost: false, stages: [], ...knobs };
  return { plan, text: '', seconds: 1, bytes: 1 };
}

test('values of a knob are counted as people count', () => {
  const points = [16, 2, 128, 2].map((pipeline) => point({ pipeline }));
  assert.deepEqual(valuesOf(points, 1), [2, 16, 128]);
  assert.equal(KNOBS[4].of(point({}).plan), 'none');
  assert.equal(KNOBS[4].of(point({ pipeline: 4, schedule: 'zbv', stages_per_rank: 2 }).plan), 'zbv x 2');
});

test('marks are round numbers within their ends', () => {
  assert.deepEqual(marks(0, 82, 5), [0, 20, 40, 60, 80]);
  assert.deepEqual(marks(19.6, 35.1, 7), [20, 25, 30, 35]);
  assert.deepEqual(marks(3, 3, 5), [3]);
});

test('of many ranks the first, the last and some between are drawn', () => {
  assert.deepEqual(ranksShown(3), [0, 1, 2]);
  const shown = ranksShown(128);
  assert.equal(shown.length, 32);
  assert.equal(shown[0], 0);
  assert.equal(shown[31], 127);
  assert.equal(new Set(shown).size, 32);
});
