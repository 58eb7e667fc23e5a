import { render } from 'preact';
import { unpackText } from '../container';
import { visible } from '../units';
import type { PlanData } from './data';
import { PlanPage } from './page';

async function start(): Promise<void> {
  const root = document.getElementById('page')!;
  try {
    const element = document.getElementById('plan-data');
    if (!element) throw new Error('the page has no plan');
    const plan = JSON.parse(await unpackText(element.textContent ?? '')) as PlanData;
    element.remove();
    root.textContent = '';
    render(<PlanPage plan={plan} />, root);
    // For the tests in test/browser.
    requestAnimationFrame(() => Object.assign(window, { shadowgraphPlan: plan }));
  } catch (error) {
    root.textContent = `This page cannot be shown: ${visible(error instanceof Error ? error.message : String(error))}`;
    root.className = 'waiting';
    throw error;
  }
}

void start();
