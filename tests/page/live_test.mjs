// Changes while a page is open: long logs, many jobs, many streams, and a server that restarts.
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {run_claims, click, scroll_to, expect_text, sleep, text, wait_until, World} from './world.mjs';

const world = await new World().start();
const rows = (page) => page.$eval('.log .virtual', (at) => Number(at.getAttribute('aria-rowcount')));

// Writes records and the index as a store does: jobs of caller 7, the newest last.
function write_jobs(many, about, first = 1) {
  const words = [];
  for (let i = first; i < first + many; i++) {
    const {name, at} = about(i);
    const fields = ['id', i, 'caller_id', 7, 'context_id', 1, 'script_type', 'python', 'name', name, 'status', i % 50 === 0 ? 'error' : 'finished', 'detail', i % 50 === 0 ? 'timeout' : 'ok',
      'created_at', Math.floor(at / 1000), 'queued_ms', at, 'started_ms', at + 2, 'ended_ms', at + 9];
    words.push(['HSET', `job:7:${i}`, ...fields], ['ZADD', 'mj:jobs', at * 1000, `job:7:${i}`]);
  }
  const wire = ['MULTI', 'EXEC'].map((each) => `*1\r\n$${each.length}\r\n${each}\r\n`);
  const all = words.map((each) => `*${each.length}\r\n${each.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`).join('')}`).join('');
  const piped = spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', '--pipe'], {input: many > 10000 ? all : wire[0] + all + wire[1], encoding: 'utf8', maxBuffer: 1 << 28});
  assert.match(piped.stdout, /errors: 0/);
}

await run_claims(world, {
  async 'a live log of 100,000 lines is followed and searched, and only visible lines are rendered'() {
    const lines = 100000;
    const made = await world.start_job(`import time\nfor i in range(${lines}):\n    print("line", i, "of the import, with some text behind it")\n    if i % 5000 == 0: time.sleep(0.3)\nprint("THE LAST")`, {name: 'long', policy: {output: {keep: 16 << 20}}});
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await page.waitForSelector('.log .virtual');
    await world.wait_for_end(made.key);
    const stored = (await world.rpc('job.get', {id: made.key.replace('job:', '')})).usage.stdout_bytes;
    assert.ok(stored > 4000000, String(stored));
    await wait_until('all that is kept', async () => (await rows(page)) >= 1000 && (await text(page, '.log')).includes('lines'), 60000);
    const kept = await world.rpc('job.logs', {id: made.key.replace('job:', ''), limit: 1});
    assert.equal(kept.lines.length, 1);
    await page.$$eval('.log input[type=checkbox]', (all) => all[1].checked || all[1].click());
    await wait_until('the end of the log', async () => /THE LAST/.test(await text(page, '.log')), 60000);
    assert.ok((await page.$$('.log .line')).length < 120, 'what is not seen is not drawn');
    const count = await rows(page);
    assert.equal(count, lines + 1);
    console.log(`  lines in the page: ${count}`);
    const began = Date.now();
    await page.type('.log input[type=search]', 'line 777 ');
    await expect_text(page, '1 line', '.log [role=status]');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.log .line.chosen mark');
    console.log(`  found after ${Date.now() - began} ms`);
    const heap = (await page.metrics()).JSHeapUsedSize;
    console.log(`  heap: ${(heap / (1 << 20)).toFixed(1)} MiB`);
    assert.ok(heap < 100 << 20);
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'an open page reconnects to a restarted coordinator and misses no event'() {
    const made = await world.start_job('import time\nfor i in range(60):\n    print("tick", i, flush=True)\n    time.sleep(0.1)', {name: 'ticks'});
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    const behind = [];
    page.on('request', (request) => request.url().includes('/events?') && request.url().includes('job=') && behind.push(request.headers()['last-event-id']));
    await expect_text(page, 'tick 3', '.log');
    await world.stop_process('coordinator', 'SIGKILL');
    await expect_text(page, 'reconnecting', 'header');
    await sleep(1500);
    await world.start_coordinator();
    await expect_text(page, 'live', 'header');
    await wait_until('the end', async () => (await text(page, '.log')).includes('tick 59'), 60000);
    await expect_text(page, 'finished', '.title');
    assert.equal(await rows(page), 60, 'each line once');
    assert.ok(behind.some((each) => Number(each) >= 4), `it went on behind what it had heard, not from the first line: ${behind}`);
    await click(page, 'main button', 'Run again');
    await wait_until('another job', () => !page.url().includes(made.key.replace('job:', '')));
    await page.close();
  },
  async 'an unavailable store is shown with its time, and so is its return'() {
    const page = await world.open_view('#/overview');
    await expect_text(page, 'What is stuck');
    await expect_text(page, 'live', 'header');
    // this actor receives no events of the context as a whole
    const other = await world.open_view('#/jobs', world.create_token(16));
    await expect_text(other, 'live', 'header');
    spawnSync('kill', ['-STOP', String(world.processes.get('redis').pid)]);
    try {
      const began = Date.now();
      for (const each of [page, other]) {
        await each.bringToFront();
        await expect_text(each, /The store \(Redis\) has been unavailable since \d\d:\d\d:\d\d: the shown data is from before/);
        await expect_text(each, 'Redis unavailable', 'header');
        console.log(`  shown after ${Date.now() - began} ms`);
      }
      // About 5 s; the second page polls when it becomes visible.
      const took = Date.now() - began;
      assert.ok(took < 8000, `not ${took} ms: a look waits for another one, or a call is made again before it is shown`);
      await page.bringToFront();
      await world.check_accessibility(page, 'Redis is unavailable');
      assert.ok(await page.$('.tiles'), 'what was shown stays');
    } finally {
      spawnSync('kill', ['-CONT', String(world.processes.get('redis').pid)]);
    }
    for (const each of [page, other]) {
      await each.bringToFront();
      await wait_until('the notice that Redis is unavailable is gone', async () => !(await each.$('.store-unavailable')));
      await expect_text(each, 'live', 'header');
    }
    await page.bringToFront();
    await world.wait_for_end((await world.start_job('pass')).key);
    await expect_text(page, `${(await world.rpc('context.overview')).ended} kept`, '.tiles');
    assert.deepEqual(page.console_errors, []);
    await page.close();
    await other.close();
  },
  // A browser opens at most six connections to one server.
  async 'more pages than a browser opens connections receive live events'() {
    const made = await world.start_job('import time\nfor i in range(1200):\n    print("tick", i, flush=True)\n    time.sleep(0.1)', {name: 'ticks'});
    const seen = [];
    for (let i = 0; i < 4; i++) seen.push(await world.open_view(`#/jobs/${made.key.replace('job:', '')}`, world.operator, {seen: true}));
    const began = Date.now();
    const last = await world.open_view('#/jobs', world.operator, {seen: true});
    await expect_text(last, 'ticks', '.window');
    console.log(`  the fifth page shows its rows after ${Date.now() - began} ms`);
    const next = await world.start_job('pass', {name: 'after-the-crowd.py'});
    await expect_text(last, 'after-the-crowd.py', '.window');
    await world.rpc('job.cancel', {id: made.key.replace('job:', '')});
    await world.wait_for_end(next.key);
    for (const page of seen) {
      await expect_text(page, 'cancelled', '.title');
      await expect_text(page, 'live', 'header');
    }
    // a piece is one line, or several lines if they were read late
    const pieces = (await world.rpc('job.logs', {id: made.key.replace('job:', ''), limit: 5000})).lines;
    const count = pieces.map((each) => each.text).join('').trimEnd().split('\n').length;
    for (const page of seen) assert.equal(await rows(page), count, 'each line once');
    for (const page of [...seen, last]) {
      assert.deepEqual(page.console_errors, []);
      await page.close();
    }
  },
  async 'a flow continues after its coordinator was killed, and the open page follows it'() {
    const made = await world.rpc('flow.create', {definition: {name: 'stairs', jobs: {
      first: {type: 'python', script: 'import time\ntime.sleep(4)'}, second: {needs: ['first'], type: 'python', script: 'pass'}, ask: {needs: ['second'], approval: {comment: 'on?'}}}}});
    await world.rpc('flow.start', {id: made.id});
    const page = await world.open_view(`#/flows/${made.id}`);
    await page.waitForSelector('.graph .node.running');
    await world.stop_process('coordinator', 'SIGKILL');
    await expect_text(page, 'reconnecting', 'header');
    await world.start_coordinator();
    await expect_text(page, 'live', 'header');
    await page.waitForSelector('.graph .node.asks', {timeout: 60000});
    assert.equal((await page.$$('.graph .node.done')).length, 2);
    await page.goto(`${page.url()}?view=timeline`);
    await expect_text(page, 'second', '.moments');
    const heard = await text(page, '.moments');
    for (const name of ['first', 'second']) assert.equal(heard.split('\n').filter((row) => row.includes(name) && row.includes('completed')).length, 1, `${name} in ${heard}`);
    await page.close();
  },
  async '200 event streams of one context cause one poll per second'() {
    const streams = [];
    const abort = new AbortController();
    let heard = 0;
    for (let i = 0; i < 200; i++) {
      const response = await fetch(`${world.url}/events?context=1&overview=1`, {headers: {Authorization: `Bearer ${world.operator}`}, signal: abort.signal});
      assert.equal(response.status, 200);
      streams.push((async () => {
        const reader = response.body.getReader();
        let here = '';
        for (;;) {
          const {done, value} = await reader.read();
          if (done) return;
          here += Buffer.from(value).toString();
          if (here.includes('event: overview')) { heard++; here = ''; }
        }
      })().catch(() => {}));
    }
    await wait_until('each has heard', () => heard >= 200);
    // Counts scripts in Redis for five seconds: one per second for all pages, and those of agent and coordinator.
    const calls = () => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, 'info', 'commandstats'], {encoding: 'utf8'}).stdout.match(/cmdstat_zcount:calls=(\d+)/)?.[1] ?? '0';
    const before = Number(calls());
    await sleep(5000);
    const looks = (Number(calls()) - before) / 90;
    console.log(`  looks in 5 s: ${looks}`);
    assert.ok(looks <= 8, `${looks} looks in 5 s`);
    abort.abort();
    await Promise.all(streams);
  },
  async 'a dead agent is reported with its jobs, and so are queues without an agent'() {
    const made = await world.start_job('import time\ntime.sleep(600)', {name: 'held'});
    await wait_until('it runs', async () => (await world.rpc('job.get', {id: made.key.replace('job:', '')})).status === 'started');
    const page = await world.open_view('#/overview');
    await expect_text(page, '20 live');
    await world.stop_process('agent', 'SIGKILL');
    await world.start_job('pass', {name: 'waits.py'});
    await expect_text(page, /agent 20 on .+ is silent for \d+ s/, '.findings');
    await expect_text(page, /jobs? waits? and no agent is alive/, '.findings');
    await expect_text(page, '20 silent');
    await world.check_accessibility(page, 'an agent that died');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async '100,000 jobs are listed without waiting, in pages'() {
    await world.stop_process('agent');
    const now = Date.now();
    write_jobs(100000, (i) => ({name: i % 25000 === 1 ? `needle-${i}` : `bulk-${i}`, at: now - (100000 - i) * 10}));
    const page = await world.open_view('#/overview');
    await expect_text(page, 'What is stuck');
    const shown = async (view) => {
      const began = Date.now();
      await page.evaluate((to) => { location.hash = to; }, view);
      await page.waitForSelector('.window .job');
      return Date.now() - began;
    };
    const first = await shown('#/jobs');
    await expect_text(page, /100.0\d\d|10\d.\d\d\d/, '.status');
    console.log(`  first rows of 100,000 after ${first} ms`);
    for (let looks = 0; looks < 2000; looks++) {
      const loaded = await page.$eval('.virtual', (at) => { at.scrollTop = at.scrollHeight; return Number(at.getAttribute('aria-rowcount')); });
      if (loaded >= 5000) break;
      await sleep(30);
    }
    assert.ok((await page.$eval('.virtual', (at) => Number(at.getAttribute('aria-rowcount')))) >= 5000);
    assert.ok((await page.$$('.window .job')).length < 100, 'what is not seen is not drawn');
    console.log(`  failed ones after ${await shown('#/jobs?status=error')} ms`);
    // A request reads a limited number of records. The page repeats it, shows the progress, and asks before it reads
    // all records.
    const part = await world.rpc('jobs.page', {name: 'needle', limit: 200});
    assert.ok(part.looked_at <= 10000 && part.after, `${part.looked_at} ${part.after}`);
    const began = Date.now();
    await page.evaluate(() => { location.hash = '#/jobs?name=needle'; });
    await expect_text(page, /1\+ shown, 50.\d\d\d of 10\d.\d\d\d searched/, '.status');
    console.log(`  half of 100,000 searched after ${Date.now() - began} ms`);
    await click(page, '.status button', 'Search on');
    await wait_until('three jobs are listed', async () => (await page.$$('.window .job')).length === 3);
    await click(page, '.status button', 'Search on');
    await wait_until('four of 100,000', async () => (await page.$$('.window .job')).length === 4);
    await page.evaluate(() => { location.hash = '#/jobs?name=nowhere-at-all'; });
    await expect_text(page, 'None of the 50');
    await click(page, '.status button', 'Search on');
    await expect_text(page, 'None of the 100');
    await click(page, '.status button', 'Search on');
    await expect_text(page, 'No job matches');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  // The agent has stopped. All jobs are written between two polls, in one step of the store.
  async 'the scroll position is kept when more jobs arrive than one page of the list'() {
    const page = await world.open_view('#/jobs');
    await expect_text(page, 'bulk-100000', '.window');
    let first = 200001;
    const burst = (name) => {
      const at = Date.now();
      // all newer than any other change
      write_jobs(1500, (i) => ({name: `${name}-${i - first}`, at: at + Math.floor((i - first) / 10)}), first);
      first += 1500;
    };
    const place = () => page.$eval('.virtual', (box) => {
      const top = box.getBoundingClientRect().top + 40;
      const row = [...box.querySelectorAll('.window .job')].find((each) => each.getBoundingClientRect().top >= top);
      return `${row.querySelector('.name').innerText} at ${Math.round(row.getBoundingClientRect().top)}`;
    });
    const chosen = () => page.$eval('.window .job.chosen', (row) => `${row.querySelector('.name').innerText} at ${Math.round(row.getBoundingClientRect().top)}`);
    await scroll_to(page, 4500);
    await sleep(300);
    const before = await place();
    burst('first');
    await expect_text(page, 'Many new jobs', '.status');
    assert.equal(await place(), before, 'a reader is left where he is');
    // Returns to the top and scrolls down again: earlier rows are still listed after the new rows.
    await click(page, '.status button', 'Many new jobs');
    await expect_text(page, 'first-1499', '.window');
    await wait_until('the gap', () => page.$eval('.virtual', (box) => { box.scrollTop += 600; return [...box.querySelectorAll('.gap')].length === 1; }));
    await wait_until('what was read before', () => page.$eval('.virtual', (box, name) => { if (box.innerText.includes(name)) return true; box.scrollTop += 300; return false; }, before.split(' ')[0]));
    await page.$eval('.virtual', (box) => { box.scrollTop = 0; });
    await wait_until('the gap again', () => page.$eval('.virtual', (box) => { box.scrollTop += 600; return [...box.querySelectorAll('.gap')].length === 1; }));
    for (let i = 0; i < 5 && await page.$('.gap'); i++) {
      await page.$eval('.gap button', (at) => at.click());
      await sleep(400);
      await wait_until('the gap, or none', () => page.$eval('.virtual', (box) => { box.scrollTop += 300; return box.querySelector('.gap') || box.innerText.includes('bulk-100000'); }));
    }
    await expect_text(page, 'bulk-100000', '.window');
    assert.equal(await page.$('.gap'), null, 'it is filled');
    // The row chosen by keyboard stays chosen and keeps its position.
    await page.$eval('.virtual', (box) => { box.scrollTop = 0; });
    for (let i = 0; i < 6; i++) await page.keyboard.press('j');
    await wait_until('a row is chosen', () => page.$('.window .job.chosen'));
    const held = await chosen();
    burst('second');
    await expect_text(page, /second-|new jobs?/);
    await sleep(1500);
    assert.equal(await chosen(), held);
    await page.keyboard.press('Enter');
    await expect_text(page, held.split(' ')[0], 'h1');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'requests made while the server was unavailable are answered after its return'() {
    const made = await world.start_job('pass', {name: 'asked-for'});
    const flow = await world.rpc('flow.create', {definition: {name: 'asked-for-flow', jobs: {a: {type: 'python', script: 'pass'}}}});
    for (const [view, wanted] of [['#/jobs?name=asked-for', 'asked-for'], ['#/flows', 'asked-for-flow'], [`#/flows/${flow.id}`, 'asked-for-flow'], [`#/jobs/${made.key.replace('job:', '')}`, 'asked-for']]) {
      const page = await world.open_view('#/overview');
      await expect_text(page, 'What is stuck');
      await world.stop_process('coordinator');
      await page.evaluate((to) => { location.hash = to; }, view);
      await expect_text(page, 'the server cannot be reached', 'main');
      await world.start_coordinator();
      await expect_text(page, wanted, /s\/\d/.test(view) ? 'h1' : 'main');
      await wait_until('no error', async () => !/cannot be reached/.test(await text(page, 'main')), 15000);
      assert.deepEqual(page.console_errors, [], view);
      await page.close();
    }
  },
  async 'the flow that was selected by keyboard stays selected when newer flows arrive'() {
    const flow_of = async (name) => {
      const made = await world.rpc('flow.create', {definition: {name, jobs: {a: {type: 'python', script: 'pass'}}}});
      await world.rpc('flow.start', {id: made.id});
      return made.id;
    };
    const first = await flow_of('the-chosen-one');
    const page = await world.open_view('#/flows');
    await expect_text(page, 'the-chosen-one', '.window');
    await page.keyboard.press('j');
    await wait_until('it is chosen', () => page.$eval('.window .chosen', (at) => at.innerText.includes('the-chosen-one')));
    await flow_of('comes-before');
    await expect_text(page, 'comes-before', '.window');
    assert.match(await text(page, '.window .chosen'), /the-chosen-one/);
    await page.keyboard.press('Enter');
    await wait_until('its page', () => page.url().includes(`#/flows/${first}`));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
});
