import type { VNode } from 'preact';
import { useState } from 'preact/hooks';

export function ThemeButton(): VNode {
  const [chosen, setChosen] = useState(document.documentElement.dataset.theme ?? '');
  const next = chosen === '' ? (window.matchMedia('(prefers-color-scheme: dark)').matches ? 'light' : 'dark') : chosen === 'dark' ? 'light' : 'dark';
  return (
    <button type="button" class="plain" aria-label={`Switch to ${next} mode`} title={`Switch to ${next} mode`} onClick={() => { document.documentElement.dataset.theme = next; setChosen(next); }}>
      {next === 'dark' ? '☾' : '☀'}
    </button>
  );
}
