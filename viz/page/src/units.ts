// Formatting of numbers, in the same units as the tool, and of names.

// Divides a value by powers of `step` until it is below one, or the units end.
function scaled(value: number, step: number, units: readonly string[]): string {
  let unit = 0;
  for (value /= step; Math.abs(value) >= step && unit < units.length - 1; ++unit) value /= step;
  return `${value.toFixed(2)} ${units[unit]}`;
}

export function bytes(value: number): string {
  return Math.abs(value) < 1024 ? `${value.toFixed(0)} B` : scaled(value, 1024, ['KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
}

export function count(value: number): string {
  if (Math.abs(value) >= 1000) return scaled(value, 1000, ['K', 'M', 'G', 'T', 'P', 'E']);
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

// A number without a unit.
export function plain(value: number): string {
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

export function flops(value: number): string {
  const text = count(value);
  return /[A-Z]$/.test(text) ? `${text}FLOP` : `${text} FLOP`;
}

export function seconds(value: number): string {
  const size = Math.abs(value);
  const sign = value < 0 ? '-' : '';
  if (size === 0) return '0 s';
  if (size < 1e-6) return `${sign}${(size * 1e9).toPrecision(3)} ns`;
  if (size < 1e-3) return `${sign}${(size * 1e6).toPrecision(3)} us`;
  if (size < 1) return `${sign}${(size * 1e3).toPrecision(3)} ms`;
  if (size < 120) return `${sign}${size.toPrecision(3)} s`;
  return `${sign}${(size / 60).toFixed(1)} min`;
}

// Formats the values of repeated layers: a single one if they are equal.
export function spread(values: readonly number[], format: (value: number) => string): string {
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (low === high) return format(low) + (values.length > 1 ? ' each' : '');
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return `min ${format(low)}, mean ${format(mean)}, max ${format(high)}`;
}

export function exact(value: number): string {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ',');
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

// Formats the change between two values: "+1.2 GiB (+10.3 %)".
export function change(before: number, after: number, format: (value: number) => string): string {
  const delta = after - before;
  if (delta === 0) return 'same';
  const sign = delta > 0 ? '+' : '';
  const share = before !== 0 ? ` (${sign}${((delta / before) * 100).toFixed(1)} %)` : '';
  return `${sign}${format(delta)}${share}`;
}

// Control characters and bidirectional marks.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

// Escapes such characters, and truncates the text in the middle to `longest` characters.
export function visible(text: string, longest = 400): string {
  const cut = text.length > longest ? `${text.slice(0, Math.ceil(longest / 2))} ... ${text.slice(text.length - Math.floor(longest / 2))}` : text;
  return cut.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// Truncates a name to `longest` characters, keeping its end, which distinguishes layers.
export function shortened(text: string, longest: number): string {
  const shown = visible(text);
  if (shown.length <= longest) return shown;
  const head = Math.max(1, Math.ceil((longest - 1) / 2));
  return `${shown.slice(0, head)}\u2026${shown.slice(shown.length - Math.max(1, longest - 1 - head))}`;
}

// Formats a CSV field (RFC 4180).
export function csvField(text: string): string {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
