// Checks the page of a plan: plans, neighbors, ranks, light and dark mode, no network requests.
export async function usePlan({ browser, file, check, pictures }) {
  const page = await browser.newPage();
  const faults = [];
  const asked = [];
  page.on('console', (message) => { if (['error', 'warn', 'warning'].includes(message.type())) faults.push(message.text()); });
  page.on('pageerror', (error) => faults.push(error.message));
  page.on('request', (request) => { if (!/^(file|data|blob):/.test(request.url())) asked.push(request.url()); });
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(`file://${file}`);
  await page.waitForFunction('window.shadowgraphPlan', { timeout: 60000 });
  const settle = () => new Promise((done) => setTimeout(done, 300));
  await settle();
  const plan = await page.evaluate('window.shadowgraphPlan');
  const text = await page.evaluate('document.body.innerText');
  check('plan: says which plan', text.includes(plan.simulated[0].text) && text.includes('bound'));
  const points = await page.$$('circle.plan-point');
  check('plan: all near plans are on the chart', points.length > plan.simulated.length, `${points.length}`);
  check('plan: nothing is drawn outside the chart', await page.evaluate(`[...document.querySelectorAll('circle.plan-point')].every((c) => c.cx.baseVal.value > 60 && c.cx.baseVal.value < 900 && c.cy.baseVal.value > 0 && c.cy.baseVal.value < 340)`));
  const before = await page.$eval('circle.plan-point', (c) => c.getAttribute('fill'));
  await page.select('.plan-tools select', '1');
  check('plan: another knob colors the points', (await page.$$('.plan-tools .entry')).length > 0 && before !== null);
  await (await page.$('circle.plan-point')).hover();
  await settle();
  const said = await page.$eval('.plan-said b', (element) => element.textContent);
  check('plan: pointing at a plan says which', said !== plan.simulated[0].text || plan.estimated_plans.length === 0, said);
  const drawn = () => page.$eval('canvas.plan-gantt', (canvas) => canvas.toDataURL());
  const whole = await drawn();
  await page.click('button[aria-label="Zoom in"]');
  await settle();
  check('plan: the ranks are looked at more closely', (await drawn()) !== whole);
  check('plan: a row for each rank', (await page.$$('.plan-stack')).length === Math.min(32, plan.run.ranks.length));
  for (const scheme of ['light', 'dark']) {
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    await settle();
    const [back, ink] = await page.evaluate(`[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]`);
    check(`plan: ${scheme}`, back !== ink && (scheme === 'light') === (back === 'rgb(255, 255, 255)'), back);
  }
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
  await page.setViewport({ width: 700, height: 900 });
  await settle();
  check('plan: a narrow window scrolls down alone', await page.evaluate('document.querySelector("main").scrollWidth <= document.querySelector("main").clientWidth + 1'));
  if (pictures) {
    await page.reload();
    await page.waitForFunction('window.shadowgraphPlan');
    await page.setViewport({ width: 1280, height: 1150 });
    await settle();
    await page.screenshot({ path: `${pictures}/plan-report.png` });
  }
  check('plan: no error on the console', faults.length === 0, faults.join('; '));
  check('plan: asks no network', asked.length === 0, asked.join(' '));
  await page.close();
}
