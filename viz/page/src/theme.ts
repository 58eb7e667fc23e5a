// Colors for canvases, from the style sheet's variables: light, dark or print.
export interface Theme {
  text: string;
  quiet: string;
  back: string;
  box: string;
  inside: string[];
  line: string;
  edge: string;
  accent: string;
}

export function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    text: of('text'), quiet: of('quiet'), back: of('back'), box: of('box'), inside: [of('inside0'), of('inside1')],
    line: of('line'), edge: of('edge'), accent: of('accent'),
  };
}

// Resizes a canvas to its box, in device pixels.
export function fitCanvas(canvas: HTMLCanvasElement): { width: number; height: number; context: CanvasRenderingContext2D } {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d')!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { width, height, context };
}

// Redraws when the size or the colors change, as long as the element is in the page.
export function onChange(element: Element, redraw: () => void): () => void {
  const draw = (): void => {
    if (element.isConnected) redraw();
  };
  const resized = new ResizeObserver(draw);
  resized.observe(element);
  const query = window.matchMedia('(prefers-color-scheme: dark)');
  const observer = new MutationObserver(draw);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
  query.addEventListener('change', draw);
  return () => {
    resized.disconnect();
    observer.disconnect();
    query.removeEventListener('change', draw);
  };
}
