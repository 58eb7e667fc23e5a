import assert from 'node:assert/strict';
import { test } from 'node:test';
import { figures, kindsAtPeak, modules, operators, sideOfProfile, type SavedProfile } from '../../viz/page/src/differences';

const saved = (change: Partial<SavedProfile>): SavedProfile =>
  ({
    title: 'saved', device: 'cpu', nodes: 3, operators: { 'aten::mm': 2 }, parameters: 10, parameter_bytes: 40, buffers: 0, buffer_bytes: 0,
    uncovered_operators: [], unknown_scratch: [], saved_bytes: 8, saved_activation_bytes: 8, peak_rounded_bytes: 0, peak_with_scratch: { bytes: 0, node: 0 },
    peak: { bytes: 100, node: 1, op: 'aten::mm', phase: 'forward', by_kind: { parameter: 40, optimizer_state: 60 } },
    ...change,
  }) as SavedProfile;

test('figures that one side does not have are not known, rather than nothing', () => {
  const rows = figures(saved({}), saved({ nodes: 5, time: { spec: 'h100', seconds: 2 } }));
  assert.deepEqual(rows.map((r) => [r.name, r.before, r.after]), [
    ['operators', 3, 5], ['peak memory', 100, 100], ['saved for backward', 8, 8], ['parameters', 10, 10], ['estimated time', undefined, 2],
  ]);
});

test('a saved profile by kind, operator and module', () => {
  const tree = (bytes: number, flops: number): SavedProfile['modules'] => ({
    path: '', saved_activation_bytes: bytes, flops: { forward: flops, backward: 0 },
    children: [{ path: 'a', saved_activation_bytes: bytes, flops: { forward: flops, backward: 0 }, children: [{ path: 'a.b', saved_activation_bytes: 1 }] }],
  });
  const was = sideOfProfile(saved({ modules: tree(8, 100)! }));
  const now = sideOfProfile(saved({
    modules: tree(6, 300)!, operators: { 'aten::mm': 2, 'aten::relu': 1 },
    peak: { bytes: 90, node: 1, op: 'aten::mm', phase: 'forward', by_kind: { parameter: 40, optimizer_state: 50 } },
  }));
  assert.deepEqual(kindsAtPeak(was, now).map((r) => [r.name, r.before, r.after]), [['optimizer state', 60, 50]]);
  assert.deepEqual(operators(was.profile, now.profile).map((r) => [r.name, r.before, r.after]), [['aten::relu', 0, 1]]);
  assert.deepEqual(modules(was, now, 'saved').map((r) => [r.name, r.before, r.after]), [['a', 8, 6]]);
  assert.deepEqual(modules(was, now, 'forward_flops').map((r) => [r.name, r.before, r.after]), [['a', 100, 300]]);
});
