// Tests pages in a real browser: npm run browser -- FOLDER [--pictures FOLDER] [--only NAME]
// FOLDER contains NAME.html for each model, compare.html, plan.html and hostile.html, as written by
// tests/page/check.sh. Chromium is $CHROMIUM or Debian's. Prints one line per check, then one line of measurements
// per page; fails if a check fails.
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import puppeteer from 'puppeteer-core';
import { usePlan } from './plan.mjs';

const folder = resolve(process.argv[2]);
const option = (name) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : undefined);
const pictures = option('--pictures');
const only = option('--only');
if (pictures) mkdirSync(pictures, { recursive: true });

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu'],
  headless: true,
});
let passed = 0;
const failures = [];
const figures = [];

function check(what, good, seen = '') {
  if (good) ++passed;
  else {
    failures.push(`${what} ${seen}`);
    console.log(`FAILED ${what} ${seen}`);
  }
}
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function open(file, hash = '', width = 1280, height = 800) {
  const page = await browser.newPage();
  page.faults = [];
  page.asked = [];
  await page.setViewport({ width, height });
  page.on('console', (message) => { if (['error', 'warn', 'warning'].includes(message.type())) page.faults.push(message.text()); });
  page.on('pageerror', (error) => page.faults.push(error.message));
  page.on('request', (request) => { if (!/^(file|data|blob):/.test(request.url())) page.asked.push(request.url()); });
  page.client = await page.createCDPSession();
  await page.client.send('Performance.enable', { timeDomain: 'threadTicks' });
  await page.goto(`file://${file}${hash}`);
  await page.waitForFunction('window.shadowgraph && window.shadowgraph.readyAfter > 0', { timeout: 60000 });
  await settle(page);
  return page;
}

// Waits until pending drawing has finished.
const FRAMES = `const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));`;
const settle = (page) => page.evaluate(`(async () => { ${FRAMES} for (let i = 0; i < 5; ++i) await frame(); })()`);

// CPU time in milliseconds of the page's thread from an action until it is drawn, independent of machine load.
async function worked(page) {
  const { metrics } = await page.client.send('Performance.getMetrics');
  return 1000 * metrics.find((m) => m.name === 'TaskDuration').value;
}

async function timed(page, action) {
  await settle(page);
  const start = await worked(page);
  await page.evaluate(`(async () => { ${FRAMES} ${action}; await frame(); await frame(); })()`);
  return (await worked(page)) - start;
}

const button = (text, within = '') => `[...document.querySelectorAll('${within} button')].find((b) => b.textContent.trim() === '${text}').click()`;
const state = (page) => page.evaluate('JSON.parse(JSON.stringify(window.shadowgraph.store.state))');

const rowsInSight = (page) => page.evaluate(`(() => {
  const box = document.querySelector('.rows').getBoundingClientRect();
  return [...document.querySelectorAll('.rows tbody tr[data-row]')].filter((r) => r.getBoundingClientRect().top < box.bottom && r.getBoundingClientRect().bottom > box.top).length;
})()`);

async function useModel(file) {
  const name = basename(file, '.html');
  const page = await open(file);
  const ready = await page.evaluate('window.shadowgraph.readyAfter');
  const work = await worked(page);
  const painted = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1");
  const clicks = {};
  check(`${name}: overview has figures`, (await page.$$('.card')).length >= 4);

  // Values computed by the page equal those of the tool.
  const sums = await page.evaluate(async () => {
    const { after: g } = window.shadowgraph;
    const p = g.header.profile;
    const total = (c) => c.reduce((a, b) => a + b, 0);
    return {
      flops: total(g.matmul()), flopsOfTool: Object.values(p.flops ?? {}).reduce((a, b) => a + b, 0),
      nodes: g.nodeCount, nodesOfTool: p.nodes,
    };
  });
  check(`${name}: FLOPs of nodes add up to the tool's`, Math.abs(sums.flops - sums.flopsOfTool) <= 1e-9 * sums.flopsOfTool, JSON.stringify(sums));
  check(`${name}: as many nodes`, sums.nodes === sums.nodesOfTool);

  for (const view of ['Graph', 'Memory', 'Tables', 'Overview']) {
    clicks[view] = await timed(page, button(view, 'nav'));
    await settle(page);
    check(`${name}: ${view} is shown`, (await state(page)).view === view.toLowerCase());
  }

  // Memory view: the peak equals the tool's, hovering and clicking work, and the list adds up.
  await page.evaluate(button('Memory', 'nav'));
  await settle(page);
  const title = await page.$eval('.alive h2', (e) => e.textContent);
  const peak = await page.evaluate('[window.shadowgraph.after.header.profile.peak.bytes, (window.shadowgraph.after.header.profile.steady_peak ?? window.shadowgraph.after.header.profile.peak).node]');
  check(`${name}: the memory view starts at the tool's peak`, title.includes(`n${peak[1]}`) && title.includes('the peak'), title);
  const curves = await page.$eval('.kinds', (e) => e.textContent);
  const known = await page.evaluate("({ reserved: window.shadowgraph.after.reserved() !== undefined, peak: window.shadowgraph.after.header.profile.device_memory?.reserved_peak_bytes ?? 0, most: Math.max(0, ...(window.shadowgraph.after.reserved() ?? [])), alive: window.shadowgraph.after.header.profile.peak.bytes })");
  check(`${name}: reserved bytes are a curve where the profile has them`, known.reserved === curves.includes('reserved by') && (!known.reserved || (known.most >= known.alive && known.most <= known.peak)), JSON.stringify(known));
  const box = await (await page.$('.chart.areas canvas')).boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + box.height / 2);
  await settle(page);
  check(`${name}: pointing at a step lists what is alive`, (await page.$eval('.alive h2', (e) => e.textContent)) !== title);
  await page.mouse.click(box.x + box.width * 0.4, box.y + box.height / 2);
  await settle(page);
  check(`${name}: pressing pins the step`, (await state(page)).step > 0);
  const blocks = await (await page.$('.chart.blocks canvas')).boundingBox();
  await page.mouse.click(blocks.x + blocks.width * 0.5, blocks.y + blocks.height * 0.85);
  await settle(page);
  check(`${name}: pressing a block selects a storage`, (await state(page)).selection?.kind === 'storage', JSON.stringify((await state(page)).selection));
  check(`${name}: its panel names the node that allocated it`, /allocated by|from before|kept alive by/.test(await page.$eval('.panel', (e) => e.textContent)));

  // The same item is highlighted in the tables.
  await page.evaluate(button('Tables', 'nav'));
  await page.evaluate(button('Storages', '.tools'));
  await settle(page);
  check(`${name}: the storage's row is lit`, (await page.$$('.rows tr.lit')).length === 1);
  // Another table starts at its top, whatever the scroll position of the previous one.
  await page.evaluate("document.querySelector('.rows').scrollTop = 1e9");
  await settle(page);
  check(`${name}: the last row is seen at the end`, await page.evaluate(`(() => {
    const rows = [...document.querySelectorAll('.rows tbody tr[data-row]')], box = document.querySelector('.rows').getBoundingClientRect();
    const last = rows.at(-1)?.getBoundingClientRect();
    return last !== undefined && last.bottom <= box.bottom + 2 && last.bottom > box.bottom - 60 && rows.at(-1).ariaRowIndex === document.querySelector('.rows table').ariaRowCount;
  })()`) || (await page.$$('.rows tbody tr[data-row]')).length < 30);
  clicks.sort = await timed(page, "document.querySelectorAll('.rows th button')[7].click()");
  const kind = await page.evaluate('(() => { const g = window.shadowgraph.after; return g.header.storage_kinds[g.storageKind()[g.storageCount - 1]]; })()');
  await page.type('.tables input[type=search]', kind);
  await page.waitForFunction((word) => ((rows) => rows.length > 0 && rows.every((r) => r.textContent.includes(word)))([...document.querySelectorAll('.rows tbody tr[data-row]')]), { timeout: 5000 }, kind).catch(() => undefined);
  await settle(page);
  check(`${name}: the filter leaves rows with its words`, await page.$$eval('.rows tbody tr[data-row]', (rows, word) => rows.length > 0 && rows.every((r) => r.textContent.includes(word)), kind), await page.evaluate(() => JSON.stringify([document.querySelector('.tables input[type=search]').value, [...document.querySelectorAll('.rows tbody tr[data-row]')].slice(0, 3).map((r) => r.textContent)])));
  for (const table of ['Calls', 'Modules', 'Operators']) {
    await page.evaluate("document.querySelector('.rows').scrollTop = 1e9");
    await settle(page);
    clicks[table] = await timed(page, button(table, '.tools'));
    await settle(page);
    const seen = await rowsInSight(page);
    check(`${name}: the table of ${table.toLowerCase()} has rows in sight`, seen > 0, String(seen));
  }

  // Graph view: search, open, color, neighborhood, path.
  await page.evaluate('window.shadowgraph.store.set({ view: "graph", selection: undefined })');
  await settle(page);
  const boxesBefore = await page.evaluate('window.shadowgraph.drawing.picture.boxes.items.length');
  check(`${name}: the graph has boxes`, boxesBefore > 3, String(boxesBefore));
  const crowd = await page.evaluate('Math.max(...window.shadowgraph.drawing.picture.boxes.items.map((i) => i.children.length))');
  check(`${name}: no box holds more than 120`, crowd <= 120, String(crowd));
  const closed = await page.evaluate(`(() => {
    const d = window.shadowgraph.drawing, { items } = d.picture.boxes;
    const item = items.find((i) => !i.open && i.kind === 'cluster' && i.depth > 1) ?? items.find((i) => !i.open && i.kind !== 'node');
    if (!item) return null;
    d.show(item.index);
    d.draw();
    const r = document.querySelector('.drawing canvas').getBoundingClientRect();
    const c = d.camera, l = d.picture.layout;
    return { key: item.key, x: r.left + (l.x[item.index] + item.width - 14 - c.x) * c.zoom, y: r.top + (l.y[item.index] + 13 - c.y) * c.zoom };
  })()`);
  if (closed) {
    await page.mouse.click(closed.x, closed.y);
    await settle(page);
    check(`${name}: a press on the sign opens a module`, (await page.evaluate(`window.shadowgraph.drawing.picture.boxes.items.find((i) => i.key === '${closed.key}')?.open`)) === true, JSON.stringify(closed));
    clicks.open = await timed(page, `const s = window.shadowgraph.store, o = s.state.open; s.set({ open: o.filter((k) => k !== '${closed.key}') }); `);
    clicks.backward = await timed(page, `const d = window.shadowgraph.drawing, s = window.shadowgraph.store; const b = d.picture.boxes.items.find((i) => i.depth === 1 && !i.open); if (b) s.set({ open: [...d.picture.options.open, b.key] });`);
    await settle(page);
  }
  const wanted = await page.evaluate('(() => { const g = window.shadowgraph.after; let i = Math.floor(g.nodeCount * 0.4); while (g.target(i).builtin || g.target(i).view) ++i; return g.shortOp(i); })()');
  await page.type('#search', wanted);
  clicks.search = await timed(page, "document.querySelector('#search').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))");
  await settle(page);
  const found = (await state(page)).selection;
  check(`${name}: what is found is selected`, found?.kind === 'node', JSON.stringify(found));
  check(`${name}: and is a box of its own`, await page.evaluate(`(() => { const p = window.shadowgraph.drawing.picture; const i = p.boxes.itemOf(${found?.id}); return i >= 0 && p.boxes.items[i].kind === 'node'; })()`));
  check(`${name}: the panel has its schema`, (await page.$eval('.panel', (e) => e.textContent)).includes('schema'));
  for (const mode of ['flops', 'bytes', 'time', 'saved', 'phase', 'device', 'module', 'op']) {
    clicks[`color ${mode}`] = await timed(page, `window.shadowgraph.store.set({ color: '${mode}' })`);
    check(`${name}: color by ${mode} has a legend`, (await page.$$('.legend .entry, .legend .scale, .legend .quiet')).length > 0);
  }
  // With composite operators as boxes, there are the same operators with more boxes around them.
  if (await page.evaluate("window.shadowgraph.after.composites(window.shadowgraph.store.state.selection.id).length > 0")) {
    const shown = await page.evaluate('window.shadowgraph.drawing.picture.graph.clusterCount');
    clicks.calls = await timed(page, 'window.shadowgraph.store.set({ composites: true })');
    await settle(page);
    const seen = await page.evaluate(`(() => {
      const { graph, boxes } = window.shadowgraph.drawing.picture;
      const { after } = window.shadowgraph;
      const sum = (g) => g.clusterTotals().flops[0];
      return { more: graph.clusterCount - ${shown}, flops: sum(graph) === sum(after), item: boxes.itemOf(${found?.id}) >= 0 };
    })()`);
    check(`${name}: calls are boxes`, seen.more > 0 && seen.flops && seen.item, JSON.stringify(seen));
    await page.evaluate('window.shadowgraph.store.set({ composites: false })');
    await settle(page);
  }
  // No edge crosses a box other than those that it connects.
  const crossed = await page.evaluate(`(() => {
    const d = window.shadowgraph.drawing, { items, edges } = d.picture.boxes, l = d.picture.layout;
    let ways = 0, through = 0;
    for (const edge of edges) {
      if (edge.kind === 3) continue;
      const ends = new Set();
      for (let i = edge.from; i >= 0; i = items[i].parent) ends.add(i);
      for (let i = edge.to; i >= 0; i = items[i].parent) ends.add(i);
      const phase = (i) => { while (items[i].depth > 1) i = items[i].parent; return i; };
      if (phase(edge.from) !== phase(edge.to)) continue;
      ++ways;
      const points = d.wayOf(edge);
      const inside = (p, i) => p.x > l.x[i] + 2 && p.x < l.x[i] + items[i].width - 2 && p.y > l.y[i] + 2 && p.y < l.y[i] + items[i].height - 2;
      const along = points.slice(1).flatMap((p, k) => [0.25, 0.5, 0.75, 1].map((t) => ({ x: points[k].x + (p.x - points[k].x) * t, y: points[k].y + (p.y - points[k].y) * t })));
      if (along.some((p) => items.some((item, i) => !item.open && !ends.has(i) && inside(p, i)))) ++through;
    }
    return { ways, through };
  })()`);
  check(`${name}: edges go around boxes`, crossed.ways > 0 && crossed.through <= crossed.ways * 0.05, JSON.stringify(crossed));
  console.log(`${name}: of ${crossed.ways} edges ${crossed.through} lead through a box`);
  clicks.around = await timed(page, button('Neighborhood', '.panel'));
  await settle(page);
  check(`${name}: the neighborhood is a part`, (await page.$('.part')) !== null && (await page.evaluate('window.shadowgraph.drawing.picture.options.only.length')) >= 1);
  await page.evaluate(`window.shadowgraph.store.set({ around: undefined, path: { from: ${Math.max(0, (found?.id ?? 3) - 30)}, to: ${found?.id ?? 3} } })`);
  await settle(page);
  check(`${name}: a way between two nodes is shown or said not to be`, (await page.$('.part')) !== null);
  await page.evaluate('window.shadowgraph.store.set({ path: undefined })');

  // Keyboard shortcuts.
  await page.evaluate('document.activeElement.blur(); document.querySelector(".drawing canvas").focus()');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('+');
  await page.keyboard.press('0');
  await settle(page);

  // Opening the address restores the whole state.
  await page.evaluate(`window.shadowgraph.store.set({ color: 'bytes' })`);
  await pause(400);
  const before = await state(page);
  const other = await open(file, await page.evaluate('location.hash'));
  check(`${name}: the link shows what its sender saw`, JSON.stringify(await state(other)) === JSON.stringify(before));
  check(`${name}: nothing is asked of the network`, page.asked.length + other.asked.length === 0, String(page.asked));
  check(`${name}: no error on the console`, page.faults.length + other.faults.length === 0, [...page.faults, ...other.faults].join('; '));
  await other.close();
  await page.close();
  const slowest = Object.entries(clicks).sort((a, b) => b[1] - a[1])[0];
  figures.push({ name, painted: Math.round(painted), ready: Math.round(ready), work: Math.round(work), slowest: `${slowest[0]} ${slowest[1].toFixed(0)} ms` });
  check(`${name}: painted within a second`, work < 1000, `${work.toFixed(0)} ms`);
  check(`${name}: every click within 100 ms`, slowest[1] < Number(process.env.CLICK_MS ?? 100), `${slowest[0]} ${slowest[1].toFixed(0)} ms`);
  console.log(`${name}: ready after ${ready.toFixed(0)} ms, ${work.toFixed(0)} of work; ${Object.entries(clicks).map(([k, v]) => `${k} ${v.toFixed(0)}`).join(', ')} ms`);
}

async function useCompare(file) {
  const name = basename(file, '.html');
  const page = await open(file, '#compare');
  check(`${name}: figures are compared`, (await page.$$('.compare-table tbody tr')).length > 3);
  check(`${name}: both steps are drawn`, (await page.$$('.compare canvas')).length === 2);
  const tops = await page.$$eval('.compare canvas', (all) => all.map((canvas) => canvas.dataset.top));
  check(`${name}: both steps have one scale`, tops[0] !== undefined && tops[0] === tops[1], tops.join());
  const first = await open(file, '');
  check(`${name}: it opens at the comparison`, (await state(first)).view === 'compare', (await state(first)).view);
  await first.close();
  await page.evaluate(button('Show in graph', '.compare'));
  await settle(page);
  check(`${name}: the graph is colored by difference`, (await state(page)).color === 'difference' && (await page.$eval('.legend', (e) => e.textContent)).includes('same'));
  await page.evaluate(button('before', '.sides'));
  await settle(page);
  check(`${name}: the other graph is there, too`, (await state(page)).side === 'before');
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
}

// Comparison with a saved profile: costs, kinds, modules and operators, but no graph.
async function useSaved(file) {
  const name = basename(file, '.html');
  const page = await open(file, '#compare');
  check(`${name}: figures are compared`, (await page.$$('.compare-table tbody tr')).length > 3);
  check(`${name}: there is no second graph`, (await page.$$('.compare canvas')).length === 0 && (await page.$('.sides')) === null);
  const heads = await page.$$eval('.compare h2', (all) => all.map((h) => h.textContent.replace('Copy as CSV', '').trim()));
  check(`${name}: by kind, module and operator`, ['Totals', 'Peak memory by kind', 'Modules', 'Calls by operator'].every((h) => heads.includes(h)), heads.join(', '));
  await page.evaluate("[...document.querySelectorAll('.compare section section .link')][0]?.click()");
  await settle(page);
  check(`${name}: a module leads to the graph`, (await state(page)).view === 'graph' && (await state(page)).selection?.kind === 'module', JSON.stringify(await state(page)));
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
}

// Colored by values from a file: a legend with their title, and each node has its value.
async function useGiven(file) {
  const name = basename(file, '.html');
  const page = await open(file, '#graph?color=given');
  const given = await page.evaluate('window.shadowgraph.after.header.given');
  check(`${name}: the legend has the title of the values`, (await page.$eval('.legend summary', (e) => e.textContent)) === given.title);
  const seen = await page.evaluate(`(() => {
    const { after } = window.shadowgraph, g = after.header.given;
    const [node, value] = g.values[g.values.length >> 1];
    return { right: after.given()[node] === value, sum: after.clusterTotals().given[0], whole: g.values.reduce((s, [, v]) => s + v, 0) };
  })()`);
  check(`${name}: values are those of the file`, seen.right && Math.abs(seen.sum - seen.whole) <= 1e-9 * seen.whole, JSON.stringify(seen));
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
}

// A million nodes: modules can be opened, every view is drawn, and every table has rows.
async function useMillion(file) {
  const name = basename(file, '.html');
  const page = await open(file);
  const work = await worked(page);
  check(`${name}: open within 5 s`, work < 5000, `${work.toFixed(0)} ms`);
  const clicks = {};
  for (const view of ['Graph', 'Memory', 'Tables']) {
    clicks[view] = await timed(page, button(view, 'nav'));
    await settle(page);
  }
  for (const table of ['Storages', 'Calls', 'Operators', 'Modules']) {
    clicks[table] = await timed(page, button(table, '.tools'));
    await settle(page);
    check(`${name}: the table of ${table.toLowerCase()} has rows in sight`, (await rowsInSight(page)) > 3);
    await page.evaluate("document.querySelector('.rows').scrollTop = 1e9");
    await settle(page);
    check(`${name}: and at its end`, (await rowsInSight(page)) > 3);
  }
  await page.evaluate(button('Calls', '.tools'));
  await settle(page);
  clicks.sort = await timed(page, "[...document.querySelectorAll('.rows th button')].find((b) => b.textContent.startsWith('bytes moved')).click()");
  await page.evaluate(button('Graph', 'nav'));
  await settle(page);
  const boxes = await page.evaluate('window.shadowgraph.drawing.picture.boxes.items.length');
  check(`${name}: the graph is at the level of modules`, boxes > 3 && boxes < 3000, String(boxes));
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
  const slowest = Object.entries(clicks).sort((a, b) => b[1] - a[1])[0];
  check(`${name}: every click within 2 s`, slowest[1] < 2000, `${slowest[0]} ${slowest[1].toFixed(0)} ms`);
  figures.push({ name, painted: 0, ready: 0, work: Math.round(work), slowest: `${slowest[0]} ${slowest[1].toFixed(0)} ms` });
  console.log(`${name}: ${work.toFixed(0)} ms of work; ${Object.entries(clicks).map(([k, v]) => `${k} ${v.toFixed(0)}`).join(', ')} ms`);
}

// In print, a table has all of its rows and no empty pages; with the keyboard alone, focus moves from the views to a
// row and on to the next row.
async function usePaperAndKeys(file) {
  const name = basename(file, '.html');
  const page = await open(file, '#tables?table=calls');
  const rows = await page.evaluate('Number(document.querySelector(".rows table").ariaRowCount) - 1');
  const pdf = Buffer.from(await page.pdf({ format: 'A4', landscape: true })).toString('latin1');
  const pages = (pdf.match(/\/Type\s*\/Page\b/g) ?? []).length;
  const printed = Math.min(rows, 2000);
  check(`${name}: a table is printed whole`, pages >= printed / 60 && pages <= 4 + printed / 15, `${pages} pages of ${printed} rows`);
  await settle(page);
  check(`${name}: and is short again on the screen`, (await page.$$('.rows tbody tr[data-row]')).length < 80);
  await page.evaluate('document.activeElement.blur()');
  let steps = 0;
  for (; steps < 60; ++steps) {
    await page.keyboard.press('Tab');
    if (await page.evaluate("document.activeElement.matches('.rows tr[data-row]')")) break;
  }
  check(`${name}: Tab leads to the rows`, steps < 60);
  const at = await page.evaluate('Number(document.activeElement.dataset.row)');
  await page.keyboard.press('ArrowDown');
  await settle(page);
  check(`${name}: and arrows from row to row`, (await page.evaluate('Number(document.activeElement.dataset.row)')) === at + 1);
  check(`${name}: the row is selected`, (await state(page)).selection?.id === at + 1);
  // Accessible names and roles for screen readers.
  const tree = await page.accessibility.snapshot({ interestingOnly: false });
  const names = [];
  const walk = (one) => { names.push([one.role, one.name ?? '']); (one.children ?? []).forEach(walk); };
  walk(tree);
  const count = (role) => names.filter(([r]) => r === role).length;
  check(`${name}: a table, its heads and rows are said`, count('table') >= 1 && count('columnheader') >= 8 && count('row') > 10, JSON.stringify([count('table'), count('columnheader'), count('row')]));
  const nameless = names.filter(([role, text]) => ['button', 'textbox', 'searchbox', 'combobox', 'checkbox', 'link'].includes(role) && text === '');
  check(`${name}: every control has a name`, nameless.length === 0, JSON.stringify(nameless.slice(0, 5)));
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
}

async function useHostile(file) {
  const name = basename(file, '.html');
  const page = await open(file);
  for (const view of ['Graph', 'Memory', 'Tables', 'Overview']) {
    await page.evaluate(button(view, 'nav'));
    await settle(page);
  }
  await page.evaluate(button('Tables', 'nav'));
  await page.evaluate(button('Calls', '.tools'));
  await settle(page);
  await page.evaluate('window.shadowgraph.store.set({ selection: { kind: "node", id: 2 } })');
  await settle(page);
  check(`${name}: no name became a program`, (await page.evaluate('window.broken')) === undefined);
  check(`${name}: no name became an element`, (await page.$$('main img, main script, .panel img, .panel script')).length === 0);
  const text = await page.evaluate('document.body.innerText');
  // eslint-disable-next-line no-control-regex
  check(`${name}: what is not seen is written out`, !/[\u202e\u0007]/.test(text), '');
  check(`${name}: no error on the console`, page.faults.length === 0, page.faults.join('; '));
  await page.close();
}

async function takePictures(file, names) {
  for (const [name, hash, width, height, first] of names) {
    const page = await open(file, hash, width, height);
    if (first) await page.evaluate(first);
    await pause(500);
    await page.screenshot({ path: join(pictures, name) });
    await page.close();
  }
}

for (const entry of readdirSync(folder).filter((n) => n.endsWith('.html')).sort()) {
  const file = join(folder, entry);
  const name = basename(entry, '.html');
  if (only && only !== name) continue;
  try {
    if (name === 'million') await useMillion(file);
    else if (name.startsWith('given')) await useGiven(file);
    else if (name.startsWith('saved')) await useSaved(file);
    else if (name.startsWith('compare')) await useCompare(file);
    else if (name.startsWith('plan')) await usePlan({ browser, file, check, pictures });
    else if (name.startsWith('hostile')) await useHostile(file);
    else {
      await useModel(file);
      if (name === 'resnet50') await usePaperAndKeys(file);
    }
  } catch (error) {
    check(`${name}: works`, false, error.stack);
  }
}
// The same pages in Firefox, if it is installed: every view opens and is drawn.
async function useFirefox(executablePath) {
  const firefox = await puppeteer.launch({ browser: 'firefox', executablePath, headless: true });
  try {
    for (const entry of readdirSync(folder).filter((n) => /^(resnet50|llama3_8b|compare|hostile)[.]html$/.test(n))) {
      const page = await firefox.newPage();
      const faults = [];
      page.on('pageerror', (error) => faults.push(error.message));
      page.on('console', (message) => { if (['error', 'warn', 'warning'].includes(message.type())) faults.push(message.text()); });
      await page.setViewport({ width: 1280, height: 800 });
      for (const view of ['overview', 'graph', 'memory', 'tables', ...(entry.startsWith('compare') ? ['compare'] : [])]) {
        await page.goto(`file://${join(folder, entry)}#${view}`);
        await page.reload();
        await page.waitForFunction('window.shadowgraph && window.shadowgraph.readyAfter > 0', { timeout: 60000 });
        await pause(500);
        // The canvases are not blank.
        const drawn = await page.evaluate(`[...document.querySelectorAll('canvas')].every((c) => {
          if (c.clientWidth === 0) return true;
          const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);
          const seen = new Uint32Array(data.buffer);
          return seen.some((p) => p !== seen[0]);
        })`);
        check(`${entry} in Firefox: ${view} is drawn`, drawn && (await page.$('main')) !== null);
      }
      check(`${entry} in Firefox: no error on the console`, faults.length === 0, faults.join('; '));
      await page.close();
    }
  } finally {
    await firefox.close();
  }
}
const firefox = process.env.FIREFOX ?? '/usr/bin/firefox-esr';
if (existsSync(firefox) && !only) await useFirefox(firefox);
else console.log(`not opened in Firefox${only ? '' : `: no ${firefox}`}`);

if (pictures) {
  const resnet = join(folder, 'resnet50.html');
  if (existsSync(resnet)) {
    await takePictures(resnet, [
      ['report-overview.png', '#overview', 1280, 900],
      ['report-backward.png', '#graph?phases=0.1&color=time', 1280, 900, `(async () => {
        const { drawing, store } = window.shadowgraph;
        const backward = drawing.picture.boxes.items.find((item) => item.title === 'backward');
        store.set({ open: ['c0', backward.key] });
        await new Promise((done) => setTimeout(done, 300));
        drawing.fit();
      })()`],
    ]);
  }
}
await browser.close();
for (const row of figures) console.log(`figures ${row.name}: painted ${row.painted} ms, ready ${row.ready} ms, of work ${row.work} ms; slowest click ${row.slowest}`);
console.log(`page in a browser: ${passed} passed, ${failures.length} failed`);
process.exit(failures.length === 0 ? 0 : 1);
