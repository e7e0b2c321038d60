// Open pages on a busy context use a bounded amount of memory: 200 jobs per second end while these pages are open: the
// overview, the list of jobs, the same list scrolled down, the list of flows, and a job that prints. Measures the heap
// after a forced collection, nodes, listeners, and the memory of Chromium's processes. None may grow.
//   MYCOJOBS_PAGE_SECONDS=1800 ctest --test-dir build -R Page.Memory -V     # MYCOJOBS_PAGE_REPORT=FILE: writes the table for bench/page.md
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {readFileSync, writeFileSync} from 'node:fs';
import {cpus, loadavg} from 'node:os';
import {run_claims, scroll_to, expect_text, sleep, World} from './world.mjs';

const SECONDS = Number(process.env.MYCOJOBS_PAGE_SECONDS ?? 75), RATE = Number(process.env.MYCOJOBS_PAGE_RATE ?? 200);
const LONG = SECONDS >= 600;
// Lists are filled and code is compiled during WARM_S; a sample is taken every EVERY_S.
const WARM_S = LONG ? 180 : 25, EVERY_S = LONG ? 30 : 5;
const MIB = 1 << 20;
// Maximum increase of the median from the first to the last quarter of the samples after the warm-up.
const MAY_RISE = {heap: (LONG ? 1.5 : 1) * MIB, nodes: 1000, listeners: 20}, MAY_RISE_CHROMIUM = 60 * MIB;
const MOST_HEAP = 60 * MIB;  // page.md promises less than 100 MiB after a day

const world = await new World().start({kept: 20000});
const VIEWS = {overview: '#/overview', jobs: '#/jobs', scrolled: '#/jobs?script_type=python', flows: '#/flows', log: ''};

// Submits RATE jobs per second if the server accepts them, and reports the rate at which they end.
class Load {
  on = true;
  begun = 0;
  made = 0;
  refused = 0;
  constructor() { this.done = this.run(); }
  async run() {
    const began = Date.now(), under_way = new Set();
    while (this.on) {
      const due = Math.floor((Date.now() - began) / 1000 * RATE) - this.begun;
      for (let i = 0; i < due && under_way.size < 64; i++) {
        const n = this.begun++;
        const sent = world.start_job(n % 50 === 7 ? 'raise ValueError("no such customer")' : 'pass', {name: `import-${n}.py`}).then(() => { this.made++; }, () => { this.refused++; }).finally(() => under_way.delete(sent));
        under_way.add(sent);
      }
      await sleep(10);
    }
    await Promise.all(under_way);
  }
}

// Resident memory of the browser and all its processes. Shared pages are counted once (PSS).
function chromium_takes() {
  const below = [world.browser.process().pid];
  for (let i = 0; i < below.length; i++) below.push(...spawnSync('pgrep', ['-P', String(below[i])], {encoding: 'utf8'}).stdout.split('\n').filter(Boolean));
  let sum = 0;
  for (const pid of below) {
    try {
      sum += Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))[1]) * 1024;
    } catch { /* it has ended meanwhile */ }
  }
  return sum;
}

async function open_seen(view) {
  const page = await world.open_view(view, world.operator, {apart: true, seen: true});
  page.client = await page.createCDPSession();
  await page.client.send('Performance.enable', {timeDomain: 'threadTicks'});  // CPU time without waiting time
  // the driver makes the browser keep up to 200 MiB of responses for debugging
  await page._client().send('Network.disable');
  return page;
}
async function sample(pages, began) {
  const found = {at_s: (Date.now() - began) / 1000, chromium: 0};
  for (const [name, page] of Object.entries(pages)) {
    assert.equal(await page.evaluate(() => document.hidden), false, `${name} is seen`);
    await page.client.send('HeapProfiler.collectGarbage');
    const {JSHeapUsedSize: heap, Nodes: nodes, JSEventListeners: listeners, TaskDuration: busy} = Object.fromEntries((await page.client.send('Performance.getMetrics')).metrics.map((each) => [each.name, each.value]));
    found[name] = {heap, nodes, listeners, busy};
  }
  found.chromium = chromium_takes();
  return found;
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const mib = (bytes) => (bytes / MIB).toFixed(1);
function judged(samples) {
  const warm = samples.filter((each) => each.at_s >= WARM_S), part = Math.max(1, Math.floor(warm.length / 4));
  const ends = (of) => [median(warm.slice(0, part).map(of)), median(warm.slice(-part).map(of))];
  const rows = [], wrong = [];
  const add = (name, unit, of, may_rise, shown) => {
    const [first, last] = ends(of), most = Math.max(...warm.map(of));
    rows.push(`| ${name}, ${unit} | ${shown(first)} | ${shown(last)} | ${shown(most)} | ${shown(may_rise)} |`);
    if (last > first + may_rise) wrong.push(`${name}: ${unit} rose from ${shown(first)} to ${shown(last)}`);
  };
  for (const name of Object.keys(VIEWS)) {
    add(name, 'heap in MiB', (each) => each[name].heap, MAY_RISE.heap, mib);
    add(name, 'nodes', (each) => each[name].nodes, MAY_RISE.nodes, String);
    add(name, 'listeners', (each) => each[name].listeners, MAY_RISE.listeners, String);
    if (Math.max(...warm.map((each) => each[name].heap)) > MOST_HEAP) wrong.push(`${name}: its heap is above ${mib(MOST_HEAP)} MiB`);
  }
  add('Chromium with all five', 'PSS in MiB', (each) => each.chromium, MAY_RISE_CHROMIUM, mib);
  const first = warm[0], last = warm[warm.length - 1];
  const busy = Object.keys(VIEWS).map((name) => `${name} ${((last[name].busy - first[name].busy) / (last.at_s - first.at_s) * 100).toFixed(1)} %`);
  return {rows, wrong, busy};
}

await run_claims(world, {
  async [`five pages hold their memory for ${SECONDS} s while ${RATE} jobs a second come and go`]() {
    const printing = await world.start_job(`import time\nfor i in range(${(SECONDS + 60) * 5}):\n    print("row", i, "of the import")\n    time.sleep(0.2)`, {name: 'nightly-import.py', timeout: SECONDS + 300});
    for (let i = 0; i < 30; i++) await world.rpc('flow.start', {id: (await world.rpc('flow.create', {definition: {name: `night-${i}`, jobs: {ask: {approval: {comment: 'on?'}}}}})).id});
    VIEWS.log = `#/jobs/${printing.key.replace('job:', '')}`;
    const pages = {};
    for (const [name, view] of Object.entries(VIEWS)) pages[name] = await open_seen(view);
    await expect_text(pages.overview, 'What is stuck');
    await expect_text(pages.log, 'row 3', '.log');
    for (let i = 0; i < 300; i++) await world.start_job('pass', {name: `before-${i}.py`});
    await scroll_to(pages.scrolled, 3000);
    const load = new Load();
    const began = Date.now(), samples = [];
    const flows = setInterval(() => world.rpc('flow.create', {definition: {name: 'hourly', jobs: {one: {type: 'python', script: 'pass'}}}}).then((made) => world.rpc('flow.start', {id: made.id})).catch(() => {}), 1000);
    try {
      while (Date.now() - began < SECONDS * 1000) {
        await sleep(EVERY_S * 1000);
        const found = await sample(pages, began);
        samples.push(found);
        console.log(`  ${found.at_s.toFixed(0)} s, ${load.made} jobs (${load.refused} refused): ${Object.keys(pages).map((name) => `${name} ${mib(found[name].heap)} MiB ${found[name].nodes} nodes ${found[name].listeners} listeners`).join('; ')}; Chromium ${mib(found.chromium)} MiB`);
      }
    } finally {
      clearInterval(flows);
      load.on = false;
      await load.done;
    }
    const took = (Date.now() - began) / 1000, {rows, wrong, busy} = judged(samples);
    const table = [`${load.made} jobs in ${Math.round(took)} s (${Math.round(load.made / took)}/s), ${samples.length} samples; the first ${WARM_S} s are not looked at. ${cpus().length} x ${cpus()[0].model}, load ${loadavg()[0].toFixed(1)} at the end; ${await world.browser.version()}.`,
      `CPU time of each page's main thread, of one CPU: ${busy.join(', ')}.`, '', '| page | first quarter | last quarter | most | may rise by |', '|---|---|---|---|---|', ...rows].join('\n');
    console.log(table);
    if (process.env.MYCOJOBS_PAGE_REPORT) writeFileSync(process.env.MYCOJOBS_PAGE_REPORT, `${table}\n`);
    for (const name of ['overview', 'jobs']) await expect_text(pages[name], 'live', 'header');
    // Up to 64 submissions are under way at a time and may be stored in another order than they were sent, so only a job
    // that is submitted after all others is certain to be the newest.
    await world.start_job('pass', {name: 'newest-of-all.py'});
    await expect_text(pages.jobs, 'newest-of-all.py', '.window');
    await expect_text(pages.flows, 'hourly', '.window');
    await expect_text(pages.scrolled, /new jobs?/i, '.status');
    assert.ok(await pages.scrolled.$eval('.virtual', (at) => at.scrollTop) >= 3000, 'a reader is left where he is');
    await pages.scrolled.$eval('.status button', (at) => at.click());
    await expect_text(pages.scrolled, 'newest-of-all.py', '.window');
    for (const [name, page] of Object.entries(pages)) assert.deepEqual(page.console_errors, [], name);
    assert.ok(load.made > took * RATE / 4, `only ${load.made} jobs in ${took} s: it was not tried`);
    assert.deepEqual(wrong, []);
  },
});
