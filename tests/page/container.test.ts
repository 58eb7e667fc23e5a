import assert from 'node:assert/strict';
import { deflateSync } from 'node:zlib';
import { test } from 'node:test';
import { Container, decode, inflateSlowly, unpack } from '../../viz/page/src/container';
import { pack } from './pack';

test('numbers of one to eight bytes', () => {
  const bytes = Uint8Array.from([0, 127, 0x80, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
  const out = new Float64Array(5);
  decode(bytes, 0, bytes.length, 5, false, out);
  assert.deepEqual([...out], [0, 127, 128, 4294967295, 2 ** 53 - 1]);
});

test('differences go both ways', () => {
  const out = new Float64Array(4);
  // +5, -3, +0, -2: zigzag 10, 5, 0, 3
  decode(Uint8Array.from([10, 5, 0, 3]), 0, 4, 4, true, out);
  assert.deepEqual([...out], [5, 2, 2, 0]);
});

test('a column that is cut short is said to be damaged', () => {
  assert.throws(() => decode(Uint8Array.from([1, 2, 3]), 0, 3, 2, false, new Float64Array(2)), /damaged/);
});

test('other data, and another version, are refused', () => {
  assert.throws(() => new Container(new Uint8Array(20)), /not a graph/);
  assert.throws(() => new Container(pack({ version: 99 }, {})), /version 99/);
});

test('what is asked for and not there is named', () => {
  const container = new Container(pack({}, { 'a.b': [1, 2, 3] }));
  assert.deepEqual([...container.ints('a.b')], [1, 2, 3]);
  assert.throws(() => container.ints('a.c'), /no column a\.c/);
});

test('packed and unpacked, by both ways of inflating', async () => {
  const bytes = pack({ title: 'größe </script>' }, { x: [3, 1, 4] });
  const container = await unpack(deflateSync(bytes).toString('base64'));
  assert.equal(container.header.title, 'größe </script>');
  assert.deepEqual([...container.ints('x')], [3, 1, 4]);
  assert.deepEqual(inflateSlowly(deflateSync(bytes)), bytes);
});
