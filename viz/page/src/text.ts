// Text widths on a canvas. Outside a browser, as in the unit tests, estimated from the number of characters.
const widths = new Map<string, number>();
let context: CanvasRenderingContext2D | null | undefined;

export const TITLE = '600 12.5px system-ui, sans-serif';
export const NODE = '12.5px system-ui, sans-serif';
export const LINE = '11px system-ui, sans-serif';
export const OPEN = '600 13px system-ui, sans-serif';
export const LABEL = '10px system-ui, sans-serif';

export function widthOf(text: string, font: string): number {
  const key = `${font}\n${text}`;
  const known = widths.get(key);
  if (known !== undefined) return known;
  if (context === undefined) context = typeof document === 'undefined' ? null : document.createElement('canvas').getContext('2d');
  let width = text.length * 6.7;
  if (context) {
    context.font = font;
    width = context.measureText(text).width;
  }
  if (widths.size > 50000) widths.clear();
  widths.set(key, width);
  return width;
}

// Truncates `text` in the middle to a width of `room`.
export function fitted(text: string, font: string, room: number): string {
  const width = widthOf(text, font);
  if (width <= room) return text;
  let keep = Math.max(2, Math.floor((text.length * room) / width) - 1);
  for (; keep > 2; --keep) {
    const cut = `${text.slice(0, Math.ceil(keep / 2))}\u2026${text.slice(text.length - Math.floor(keep / 2))}`;
    if (widthOf(cut, font) <= room) return cut;
  }
  return text.slice(0, 1) + '\u2026';
}
