// Each view with real data while jobs run: a failed job is found, understood and run again with three clicks;
// approvals; use of the keyboard only; checks of axe-core. MYCOJOBS_PICTURES=FOLDER updates docs/pictures (world.mjs).
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {mkdirSync, readFileSync, writeFileSync} from 'node:fs';
import {join} from 'node:path';
import {run_claims, click, VIEW_VARIANTS, expect_text, sleep, SOURCE, text, wait_until, World} from './world.mjs';

const world = await new World().start();
const flow_of = async (file) => {
  const definition = readFileSync(join(SOURCE, 'examples/flow', file), 'utf8');
  const made = await world.rpc('flow.create', {definition});
  await world.rpc('flow.start', {id: made.id});
  return made.id;
};
const BROKEN = '"""Means of measurements."""\n\n\ndef average(values):\n    return sum(values) / len(values)\n\n\nprint("average of nothing:")\nprint(average([]))\n';
const broken = await world.start_job(BROKEN, {name: 'average.py'});
const good = await world.start_job('print("hello")\nresult = {"n": 42, "id": 9007199254740993, "text": "two\\nlines"}', {name: 'hello.py'});
await world.wait_for_end(broken.key);
await world.wait_for_end(good.key);
for (let i = 0; i < 24; i++) await world.start_job(i % 7 === 3 ? 'raise ValueError("no such customer")' : `import time\ntime.sleep(${(i % 5) / 20})`, {name: `import-${i}.py`});
await world.start_job('import time\nfor i in range(600):\n    print("row", i)\n    time.sleep(0.1)', {name: 'nightly-import.py'});
const release = await flow_of('approval.yaml');
const pipeline = await flow_of('pipeline.yaml');
await flow_of('compensation.yaml');
world.run('workflow', 'apply', join(SOURCE, 'examples/workflow/order/order.json'));
const place = (id, cents) => world.run('workflow', 'send', 'order/Placed', JSON.stringify({id, item: 'book', count: 1, cents, card: 'visa'}));
place(6, 1500);
place(7, 150000);
const fits = async (page, where) => assert.deepEqual(await page.evaluate(() => (document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('main *')]
  .filter((at) => at.getBoundingClientRect().right > innerWidth && !at.closest('.virtual *, .code *, .graph *')).map((at) => `${at.tagName}.${at.className} ${at.getBoundingClientRect().right}`).slice(0, 5))), [], `${where} is wider than the screen`);

await run_claims(world, {
  async 'nothing is shown without a token, and a wrong token is rejected with a remedy'() {
    const page = await world.open_page();
    await page.goto(`${world.url}/#/jobs`);
    await page.waitForSelector('input[type=password]');
    await fits(page, 'the login');
    await world.check_accessibility(page, 'the login');
    for (const [form, how] of Object.entries(VIEW_VARIANTS)) {
      const empty = await world.open_page(how);
      await empty.goto(`${world.url}/`);
      await empty.waitForSelector('input[type=password]');
      await fits(empty, `the login${form}`);
      await world.write_picture(empty, `login${form}`);
      await empty.close();
    }
    await page.bringToFront();
    await page.type('input[type=password]', 'mj_wrong');
    await page.keyboard.press('Enter');
    await expect_text(page, 'this server does not know this token');
    await world.check_accessibility(page, 'a token that is wrong');
    await page.reload();
    await expect_text(page, 'mycojobs key token --actor ID');
    assert.equal((await text(page)).includes('average.py'), false);
    assert.equal((await page.cookies()).length, 0);
    assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0);
    await page.close();
  },
  async 'a failing job is found, understood and run again in three clicks'() {
    const page = await world.open_view('#/overview');
    await expect_text(page, 'What is stuck');
    await click(page, '.tile', 'failed');                                    // first click
    await page.waitForSelector('.virtual .window .job');
    await expect_text(page, 'average.py');
    await click(page, '.virtual a', 'average.py');                           // second click
    await expect_text(page, 'ZeroDivisionError: division by zero (line 5)');
    await page.waitForSelector('.code .marked');                             // the list names the error, too
    assert.match(await text(page, '.code .marked'), /return sum\(values\) \/ len\(values\)/);
    await expect_text(page, 'average of nothing:', '.log');
    await expect_text(page, 'Next:');
    await world.check_accessibility(page, 'a failed job');
    await click(page, 'main button', 'Run again');                           // third click
    await wait_until('the second attempt', async () => (await world.rpc('job.get', {id: '1:1'}).catch(() => world.rpc('job.get', {id: broken.key.replace('job:', '')}))).attempt === 2);
    await expect_text(page, 'attempt 2');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'the overview shows the state of the context and its waiting jobs'() {
    const page = await world.open_view('#/overview');
    await expect_text(page, /2 approvals wait for a decision/);
    await expect_text(page, 'queue:python');
    await expect_text(page, '20 live');
    await page.waitForSelector('.chart canvas');
    await click(page, 'button', 'Verify');
    await expect_text(page, 'No findings');
    await click(page, 'button', 'Doctor');
    await expect_text(page, /appendonly: no: a crash or restart of Redis loses all/, '.doctor');
    await expect_text(page, /Remedy: redis-cli CONFIG SET appendonly yes/, '.doctor');
    await click(page, '.doctor summary', '');
    await expect_text(page, /leads the context/, '.doctor');
    await expect_text(page, 'live agents claim from', '.doctor');
    await world.check_accessibility(page, 'overview');
    await page.evaluate(() => scrollTo(0, 0));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'the compensation of a flow that succeeded is neither a failure nor run again'() {
    const before = (await world.rpc('context.overview')).failures;
    const made = await world.rpc('flow.create', {definition: {name: 'launch', jobs: {ship: {type: 'python', script: 'pass', compensate: 'undo'}, undo: {type: 'python', script: 'print("UNDONE")'}}}});
    await world.rpc('flow.start', {id: made.id});
    await wait_until('its end', async () => (await world.rpc('flow.get', {id: made.id})).status === 'finished');
    const {job} = (await world.rpc('flow.dag', {id: made.id})).nodes.find((each) => each.name === 'undo');
    const id = job.replace('job:', '');
    assert.equal((await world.rpc('job.get', {id})).detail, 'not_needed');
    await assert.rejects(world.rpc('job.retry', {id}), /is run by its flow: see mycojobs flow retry/);
    assert.deepEqual(Object.keys((await world.rpc('context.overview')).failures).sort(), Object.keys(before).sort());
    assert.equal(before.not_needed, undefined);
    const page = await world.open_view(`#/jobs/${id}`);
    await expect_text(page, 'not needed', '.title');
    assert.ok(await page.$('.title .state.cancelled'), 'shown neutrally');
    assert.equal(await page.$('.wrong'), null);
    assert.doesNotMatch(await text(page, '.title'), /failed|Run again/);
    const jobs = (await world.rpc('context.overview')).jobs;
    await page.keyboard.press('r');
    await sleep(500);
    assert.equal((await world.rpc('context.overview')).jobs, jobs, 'no key runs it');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'the artifacts of a job are listed, shown and downloaded'() {
    const script = `import mycojobs, base64
folder = mycojobs.artifacts
(folder / 'dist').mkdir()
(folder / 'dist' / 'report.txt').write_text('first line\\n' + 'x' * 100000)
(folder / 'plot.png').write_bytes(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=='))
(folder / 'page.html').write_text('<script>window.owned=1</script>')
(folder / 'drawing.svg').write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
(folder / 'empty').write_bytes(b'')`;
    const made = await world.start_job(script, {name: 'artifacts.py'});
    await world.wait_for_end(made.key);
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await wait_until('the buttons', async () => (await page.$$('.artifacts button')).length === 8);
    const rows = Object.fromEntries(await page.$$eval('.artifacts tbody tr', (all) => all.map((at) => [at.cells[0].innerText, at.cells[3].innerText.replace(/\s+/g, ' ').trim()])));
    assert.deepEqual(rows, {'dist/report.txt': 'Download Show', 'drawing.svg': 'Download', empty: 'Download Show', 'page.html': 'Download', 'plot.png': 'Download Show'});
    const click_in = (name, label) => page.evaluate((row, button) => [...document.querySelectorAll('.artifacts tr')].find((at) => at.cells[0].innerText === row).querySelectorAll('button').forEach((at) => { if (at.innerText === button) at.click(); }), name, label);
    await click_in('dist/report.txt', 'Show');
    await expect_text(page, 'first line', '.artifacts');
    await expect_text(page, 'The first 64.0 KiB of 97.7 KiB.', '.artifacts');
    await click_in('plot.png', 'Show');
    await wait_until('the decoded image', () => page.$eval('.artifacts img', (at) => at.complete && at.naturalWidth === 1));
    await world.check_accessibility(page, 'artifacts');
    await page.setViewport({width: 360, height: 740});
    await fits(page, 'artifacts');
    await page.setViewport({width: 1280, height: 800});
    await click_in('plot.png', 'Hide');
    await wait_until('no image', async () => (await page.$('.artifacts img')) === null);
    const folder = join(world.folder, 'downloads');
    mkdirSync(folder);
    await (await page.createCDPSession()).send('Page.setDownloadBehavior', {behavior: 'allow', downloadPath: folder});
    await click_in('page.html', 'Download');
    await wait_until('the download', () => readFileSync(join(folder, 'page.html'), 'utf8') === '<script>window.owned=1</script>');
    assert.match(page.url(), /#\/jobs\//, 'the page is still open');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'a job shows its requested policy, its granted policy, and the active sandbox layers'() {
    const made = await world.start_job('pass', {name: 'bounded.py', policy: {memory: '64 MiB', output: {keep: 4096}}});
    await world.wait_for_end(made.key);
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await expect_text(page, 'granted', '.policy');
    const rows = Object.fromEntries(await page.$$eval('.policy tbody tr', (all) => all.map((at) => [at.cells[0].innerText, [at.cells[1].innerText, at.cells[2].innerText]])));
    assert.deepEqual(rows.memory, ['64 MiB', '64.0 MiB']);
    assert.deepEqual(rows['output.keep'], ['4.0 KiB', '4.0 KiB']);
    assert.equal(rows.pids[0], '\u2013');
    assert.match(rows.pids[1], /^\d+$/);
    await expect_text(page, 'seccomp', '.layers');
    await world.check_accessibility(page, 'a job with a policy');
    const greedy = {memory: '900 GiB'};
    await assert.rejects(world.start_job('pass', {policy: greedy}), /more than the ceiling/);
    // The agent rejects the record that another client writes.
    const plain = (...words) => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words]);
    plain('hset', 'job:1:9000', 'id', '9000', 'caller_id', '1', 'context_id', '1', 'script', 'pass', 'script_type', 'python', 'name', 'greedy.py', 'policy', JSON.stringify(greedy));
    plain('lpush', 'queue:python', 'job:1:9000');
    await world.wait_for_end('job:1:9000');
    await page.goto(`${world.url}/#/jobs/1:9000`);
    await expect_text(page, '900 GiB', '.policy');
    await expect_text(page, 'not yet', '.policy');
    await expect_text(page, 'more than the ceiling');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'the keys for "run again" and "cancel" ask for confirmation'() {
    const failed = await world.start_job('raise ValueError("once more")', {name: 'asked.py'});
    await world.wait_for_end(failed.key);
    const id = failed.key.replace('job:', '');
    const attempt = async () => (await world.rpc('job.get', {id})).attempt;
    const page = await world.open_view(`#/jobs/${id}`);
    await expect_text(page, 'Run again', '.title');
    await page.keyboard.press('r');
    await expect_text(page, 'Run again: asked.py?', 'dialog[open]');
    await world.check_accessibility(page, 'the question of a key');
    await page.keyboard.press('Escape');
    await wait_until('closed', async () => !(await page.$('dialog[open]')));
    await sleep(500);
    assert.equal(await attempt(), 1, 'Esc leaves it');
    await page.keyboard.press('r');
    await page.waitForSelector('dialog[open]');
    await page.keyboard.press('Enter');
    await wait_until('the second attempt', async () => (await attempt()) === 2);
    const long = await world.start_job('import time\ntime.sleep(60)', {name: 'sleeper.py'});
    const status = async () => (await world.rpc('job.get', {id: long.key.replace('job:', '')})).status;
    await wait_until('it runs', async () => (await status()) === 'started');
    await page.goto(`${page.url().split('#')[0]}#/jobs/${long.key.replace('job:', '')}`);
    await expect_text(page, 'Cancel', '.title');
    await page.keyboard.press('x');
    await expect_text(page, 'Cancel: sleeper.py?', 'dialog[open]');
    assert.equal(await status(), 'started');
    await page.keyboard.press('Enter');
    await wait_until('it is cancelled', async () => (await status()) === 'error');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'jobs are filtered, and the filter is part of the address'() {
    const page = await world.open_view('#/jobs');
    await expect_text(page, 'import-23.py');
    await world.check_accessibility(page, 'jobs');
    await page.keyboard.press('/');
    await page.keyboard.type('hello', {delay: 150});  // the view is redrawn while typing, and no input is lost
    await wait_until('the address', () => page.url().includes('name=hello'));
    await wait_until('one row', async () => (await page.$$('.window .job')).length === 1);
    await expect_text(page, 'hello.py');
    const again = await world.open_view(new URL(page.url()).hash);
    await wait_until('the same rows', async () => (await again.$$('.window .job')).length === 1);
    await again.close();
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await expect_text(page, '42');
    await expect_text(page, '9007199254740993');
    await page.keyboard.press('Escape');
    await wait_until('the list', () => new URL(page.url()).hash.startsWith('#/jobs?'));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'a flow is followed and approved, and its timeline is shown'() {
    const page = await world.open_view(`#/flows/${release}`);
    await expect_text(page, 'needs approval');
    await expect_text(page, 'under way', '.title');
    const list = await world.open_view('#/flows');
    const row = await wait_until('its row', () => list.evaluate((id) => [...document.querySelectorAll('.window .job')].find((at) => at.querySelector('.key').innerText === String(id))?.querySelector('.what').innerText, release));
    assert.equal(row.trim(), 'under way', 'the same word');
    await list.close();
    await page.bringToFront();
    await page.waitForSelector('.graph .node.asks');
    assert.equal((await page.$$('.graph .node')).length, 5);
    await world.check_accessibility(page, 'a flow');
    await page.waitForSelector('.answer input');  // the permissions are loaded asynchronously
    await page.type('.answer input', 'looks good');
    await click(page, 'button', 'Approve');
    await wait_until('the flow goes on', async () => (await world.rpc('flow.dag', {id: release})).nodes.find((each) => each.name === 'ship').node_status === 'completed');
    await wait_until('seen without a reload', () => page.evaluate(() => [...document.querySelectorAll('.graph .node.done')].some((at) => at.textContent.includes('ship'))));
    await click(page, '.tabs a', 'Timeline');
    await expect_text(page, 'looks good', '.moments');
    await page.waitForSelector('.gantt .bar.run');
    await world.check_accessibility(page, 'timeline');
    await click(page, '.tabs a', 'Definition');
    await expect_text(page, '"approval"');
    await click(page, '.tabs a', 'Other runs');
    await expect_text(page, 'the only run of this name');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'an approval is decided with a comment'() {
    const id = await flow_of('approval.yaml');
    const page = await world.open_view('#/approvals');
    await expect_text(page, 'ship it?');
    await expect_text(page, /has waited for \d+ s/);
    const mine = await wait_until('the question', async () => {
      for (const each of await page.$$('.question')) if ((await each.evaluate((at) => at.innerText)).includes(`release ${id}`)) return each;
      return null;
    });
    await (await mine.$('summary')).click();
    await expect_text(page, 'build');
    await world.check_accessibility(page, 'approvals');
    await (await mine.$('.answer input')).type('not today');
    await mine.evaluate((at) => [...at.querySelectorAll('button')].find((each) => each.innerText === 'Reject').click());
    await expect_text(page, 'rejected');
    const dag = await wait_until('the node failed', async () => { const found = await world.rpc('flow.dag', {id}); return found.nodes.find((each) => each.name === 'ship').node_status === 'failed' && found; });
    assert.ok(dag);
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'a workflow and its instance are shown, and its approval is decided'() {
    const page = await world.open_view('#/workflows');
    await expect_text(page, 'order/order@1');
    await click(page, 'td a', 'order/order@1');
    await expect_text(page, '2 shown');
    await page.keyboard.press('/');
    await page.keyboard.type('7');
    await expect_text(page, '1 shown');
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await expect_text(page, 'Order 7 of 1500 EUR');
    await expect_text(page, '"cents": 150000');
    await expect_text(page, 'it waits for sys/approval@1');
    await expect_text(page, 'order 7 reserved', '.log');
    await expect_text(page, 'stock/reserve@1 job:1:', '.log .whose');
    await world.check_accessibility(page, 'an instance');
    const other = await world.open_view('#/approvals');
    await expect_text(other, 'Order 7 of 1500 EUR');
    await other.close();
    await page.bringToFront();
    await page.waitForSelector('.answer input');
    await page.type('.answer input', 'a good customer');
    await click(page, 'button', 'Approve');
    await wait_until('it goes on', async () => (await world.rpc('workflow.show', {workflow: 'order/order@1', key: 7})).intents.every((each) => each.effect !== 'sys/approval@1'));
    await wait_until('seen without a reload', async () => (await page.$$('.question')).length === 0);
    await expect_text(page, 'a good customer', '.moments');
    await expect_text(page, 'charged 150000 cents', '.log');
    await page.type('.log input[type=search]', 'CHARGED');
    await expect_text(page, '1 line', '.log .bar');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'scrolling loads each flow beyond the first page once'() {
    const definition = {name: 'many', jobs: {ask: {approval: {comment: 'on?'}}}}, made = [];
    for (let i = 0; i < 230; i++) made.push((await world.rpc('flow.create', {definition})).id);
    const page = await world.open_view('#/flows?name=many');
    await expect_text(page, /[12]00\+ shown/, '.status');                        // the next page may already be loaded
    const met = new Set();
    const look = async () => { for (const id of await page.$$eval('.window .job .key', (all) => all.map((at) => Number(at.innerText)))) met.add(id); };
    await look();
    assert.equal(Math.max(...met), made[made.length - 1], 'the newest first');
    for (let top = 0; met.size < made.length && top < 230 * 30; top += 300) {
      await page.$eval('.virtual', (at, to) => { at.scrollTop = to; }, top);
      await sleep(60);
      await look();
    }
    assert.deepEqual([...met].sort((a, b) => a - b), made);
    await expect_text(page, '230 shown', '.status');
    // A new flow is announced, and is listed when the reader returns to the top.
    const late = (await world.rpc('flow.create', {definition})).id;
    await world.rpc('flow.start', {id: late});
    await click(page, '.status button', 'New ones');
    await wait_until('the new one on top', () => page.$eval('.window .job .key', (at, id) => at.innerText === String(id), late));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'scrolling loads each old step of an instance once'() {
    const folder = join(world.folder, 'tally');
    mkdirSync(folder);
    writeFileSync(join(folder, 'tally.json'), JSON.stringify({name: 'tally/tally@1', schemas: {'tally/Said@1': {type: 'object', required: ['id', 'n'], properties: {id: {type: 'integer'}, n: {type: 'integer'}}}},
      state: {type: 'integer'}, event: 'tally/Said@1', key_schema: {type: 'integer'}, effects_emitted: [], impl: {module: 'tally.lua', entrypoint: 'step'},
      routing: {subscriptions: [{event: 'tally/Said@1', workflow: 'tally/tally@1', key_field: 'id'}]}}));
    writeFileSync(join(folder, 'tally.lua'), 'function step(state, event)\n  return (state or 0) + 1\nend\n');
    world.run('workflow', 'apply', join(folder, 'tally.json'));
    const events = 320;  // two facts each, 300 per page
    for (let n = 0; n < events; n++) await world.rpc('workflow.send', {event: 'tally/Said@1', value: {id: 3, n}});
    const show = () => world.rpc('workflow.show', {workflow: 'tally/tally@1', key: 3});
    await wait_until('each was counted', async () => (await show()).state === events);
    const page = await world.open_view('#/workflows/tally%2Ftally%401?key=3');
    await expect_text(page, 'the latest 300', 'main');
    const heights = () => page.$$eval('.moments tbody tr', (all) => all.map((at) => Number(at.children[1].innerText)));
    assert.equal((await heights()).length, 300);
    await click(page, 'main button', 'Show earlier');
    await wait_until('600', async () => (await heights()).length === 600);
    await click(page, 'main button', 'Show earlier');
    await wait_until('all', async () => (await heights()).length > 600);
    const all = await heights();
    assert.deepEqual(all, [...new Set(all)].sort((a, b) => a - b), 'in order, each once');
    const heard = (await text(page, '.moments')).split('\n');
    for (const n of [0, 1, 150, events - 1]) assert.equal(heard.filter((row) => row.includes('"n":' + n + '}')).length, 1, `event ${n}`);
    assert.equal(await page.evaluate(() => [...document.querySelectorAll('main button')].some((at) => at.innerText === 'Show earlier')), false, 'that was all');
    await world.rpc('workflow.send', {event: 'tally/Said@1', value: {id: 3, n: 7777}});
    await expect_text(page, '"n":7777', '.moments');
    assert.equal((await heights()).length, all.length + 2, 'what was read stays');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'a script and a flow are written, checked and run'() {
    const page = await world.open_view('#/try');
    await page.waitForSelector('.examples-of button');  // the initial content of the box is set by then
    await page.$eval('textarea', (at) => { at.value = 'print("from the box")\nresult = {"k": 7}'; at.dispatchEvent(new Event('input', {bubbles: true})); });
    await click(page, 'button', 'Run');
    await expect_text(page, 'from the box', '.log');
    await expect_text(page, 'finished');
    // A job that is changed and run keeps its fields that have no box.
    await page.goto(`${world.url}/#/try`);
    await click(page, '.examples-of button', 'compute.py');
    await expect_text(page, '200000', '.kept');
    await click(page, 'main button', 'Run');
    await expect_text(page, 'sieved 200000 numbers', '.log');
    await expect_text(page, 'finished', '.title');
    await click(page, 'main a', 'Change and run');
    await expect_text(page, '200000', '.kept');
    const with_files = await world.start_job('print(1)', {stdin: 'x', files: {'data.csv': 'a,b'}});
    await page.goto(`${world.url}/#/try?of=${with_files.key.replace('job:', '')}`);
    await expect_text(page, 'Not copied from the job: its standard input, the file data.csv');
    await page.goto(`${world.url}/#/try?kind=flow`);
    const good_text = await wait_until('the flow to begin with', () => page.$eval('textarea', (at) => at.value.startsWith('name: first-flow') && at.value));
    await page.$eval('textarea', (at) => { at.value = at.value.replace('type: python', 'tipe: python'); at.dispatchEvent(new Event('input', {bubbles: true})); });
    await click(page, 'button', 'Check');
    await expect_text(page, 'line 4');
    await world.check_accessibility(page, 'try');
    await page.$eval('textarea', (at, value) => { at.value = value; at.dispatchEvent(new Event('input', {bubbles: true})); }, good_text);
    await click(page, 'button', 'Run');
    await expect_text(page, 'first-flow');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  // Waits for elements that only this view has; shared elements may be those of the previous view.
  async 'each view fits in light mode, in dark mode and at 360 pixels, and axe-core finds no serious violation'() {
    const asking = await flow_of('approval.yaml');
    place(8, 150000);
    await wait_until('both to ask', async () => { const {questions} = await world.rpc('approval.list'); return questions.some((each) => each.flow === asking) && questions.some((each) => each.key === 8); });
    const order = '#/workflows/order%2Forder%401';
    const views = {
      overview: ['#/overview', '.chart canvas'], jobs: ['#/jobs', '.window .job:not(.flow)'], job: [`#/jobs/${broken.key.replace('job:', '')}`, '.code .marked'],
      flows: ['#/flows', '.window .flow'], flow: [`#/flows/${asking}`, '.graph .node.asks'], timeline: [`#/flows/${pipeline}?view=timeline`, '.gantt .bar.run'],
      result: [`#/flows/${pipeline}?view=result`, '[aria-label=result] .pairs'], definition: [`#/flows/${pipeline}?view=definition`, '[aria-label=definition] .value'], runs: [`#/flows/${asking}?view=runs`, '[aria-label=runs] td'],
      workflows: ['#/workflows', '[aria-label=workflows] tbody tr'], instances: [order, '[aria-label=instances] tbody tr'], workflow: [`${order}?key=8`, '.instance .question'],
      approvals: ['#/approvals', '.approvals .question'], try: ['#/try', '.examples-of button']};
    const grounds = {};
    for (const [form, how] of Object.entries(VIEW_VARIANTS)) {
      const page = await world.open_view('#/overview', world.operator, how);
      for (const [name, [view, shown]] of Object.entries(views)) {
        await page.evaluate((to) => { location.hash = to; }, view);
        await page.waitForSelector(shown, {timeout: 60000}).catch(() => assert.fail(`${view}${form}: there is no ${shown}`));
        await sleep(300);
        await fits(page, `${view}${form}`);
        if (form === '-360' && name === 'workflows') assert.ok(await page.$eval(`${shown}`, (at) => at.offsetHeight) < 100, 'rows are compact');
        if (form === '-360' && name === 'timeline') assert.ok(await page.$eval('.moments tr', (at) => at.offsetHeight) < 60, 'a moment is a line or two');
        await world.check_accessibility(page, `${view}${form}`);
        await world.write_picture(page, `${name}${form}`);
      }
      await page.keyboard.press('?');
      await page.waitForSelector('dialog[open]');
      await fits(page, `help${form}`);
      await world.write_picture(page, `help${form}`);
      grounds[form] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.deepEqual(page.console_errors, []);
      await page.close();
    }
    assert.equal(grounds[''], grounds['-360']);
    const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0);
    assert.ok(light(grounds['']) > 600 && light(grounds['-dark']) < 150, JSON.stringify(grounds));
  },
  async 'animations are disabled if the user prefers reduced motion'() {
    const made = await world.rpc('flow.create', {definition: {name: 'slow', jobs: {sleep: {type: 'python', script: 'import time\ntime.sleep(60)'}}}});
    await world.rpc('flow.start', {id: made.id});
    for (const [reduced, name] of [[false, 'breathe'], [true, 'none']]) {
      const page = await world.open_view(`#/flows/${made.id}`, world.operator, {reduced});
      await page.waitForSelector('.graph .node.running .glyph', {timeout: 60000});
      assert.equal(await page.$eval('.graph .node.running .glyph', (at) => getComputedStyle(at).animationName), name);
      const moving = await page.evaluate(() => document.getAnimations().filter((each) => each.playState === 'running').length);
      assert.equal(moving > 0, !reduced, `${moving} animations`);
      await page.close();
    }
    await world.rpc('flow.cancel', {id: made.id});
  },
  async 'one view lists blocked work with its causes and offers the remedies'() {
    const redis = (...words) => assert.equal(spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words], {encoding: 'utf8'}).status, 0);
    const letter = (id, job, reason) => redis('XADD', 'mj:dead-letters', id, 'key', job, 'queue', 'queue:python', 'reason', reason);
    await world.rpc('queue.pause', {queue: 'v'});
    await world.start_job('fn main() {}', {name: 'paused.v', script_type: 'v'});
    await world.start_job('echo nobody', {name: 'nobody.sh', script_type: 'bash'});
    await world.start_job('pass', {name: 'later.py', prerequisites: ['approval:budget']});
    // An entry with a record that was written later, an entry without a record, and an entry that is not a job.
    redis('HSET', 'job:7:1', 'id', '1', 'caller_id', '7', 'context_id', '1', 'script_type', 'python', 'script', 'print("came late")', 'status', 'dispatched', 'created_at', '1700000000');
    letter('1700000000000-0', 'job:7:1', 'no_record');
    letter('1700000000001-0', 'job:7:2', 'no_record');
    letter('1700000000002-0', '<img src=x onerror="window.owned=1">', 'bad_record');
    const page = await world.open_view('#/overview');
    for (const each of ['3 dead letters', /1 job in queue:v, which is paused/, /no live agent serves queue:bash: 1 job/, /1 job waits for a prerequisite/, /approvals? waits? for a decision/]) await expect_text(page, each, '.findings');
    const item = (says) => wait_until(`the finding ${says}`, async () => {
      for (const each of await page.$$('.findings li')) if ((await each.evaluate((at) => at.innerText)).includes(says)) return each;
      return null;
    });
    await (await (await item('dead letters')).$('summary')).click();
    await expect_text(page, '<img src=x onerror=', '.findings');
    await world.check_accessibility(page, 'what is stuck');
    for (const [form, how] of Object.entries(VIEW_VARIANTS)) {
      const other = await world.open_view('#/overview', world.operator, how);
      await expect_text(other, 'dead letters', '.findings');
      await other.$eval('.findings summary', (at) => at.click());
      await expect_text(other, 'bad record', '.findings');
      await fits(other, `what is stuck${form}`);
      if (form === '-360') await other.$eval('.findings summary', (at) => at.scrollIntoView({block: 'center'}));
      await world.write_picture(other, `stuck${form}`);
      await other.close();
    }
    await page.bringToFront();
    const act = (job, does) => page.$$eval('[aria-label="dead letters"] tbody tr', (rows, of, says) => [...rows.find((at) => at.cells[0].innerText.startsWith(of)).querySelectorAll('button')].find((at) => at.innerText === says).click(), job, does);
    await act('<img', 'Run again');
    await expect_text(page, 'can never run: drop it', '.findings');
    await act('<img', 'Drop');
    await expect_text(page, '2 dead letters', '.findings');
    await act('7:1', 'Run again');
    await wait_until('it runs', async () => (await world.rpc('job.get', {id: '7:1'})).status === 'finished');
    await expect_text(page, /1 dead letter\b/, '.findings');
    await act('7:2', 'Drop');
    await wait_until('none is left', async () => (await world.rpc('queue.dead')).length === 0 && !(await text(page, '.findings')).includes('dead letter'));
    await (await (await item('which is paused')).$('button')).click();
    await wait_until('it goes on', async () => !(await world.rpc('queue.list')).some((each) => each.queue === 'queue:v' && each.paused));
    await (await (await item('for a prerequisite')).$('a')).click();
    await expect_text(page, 'later.py', '.window');
    assert.equal(await page.evaluate(() => window.owned), undefined);
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'all functions can be used by keyboard'() {
    const page = await world.open_view('#/overview');
    await expect_text(page, 'What is stuck');
    await page.keyboard.press('g');
    await page.keyboard.press('f');
    await wait_until('flows', () => page.url().includes('#/flows'));
    await page.waitForSelector('.window .job');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('k');
    await page.keyboard.press('Enter');
    await wait_until('a flow', () => /#\/flows\/\d+/.test(page.url()));
    await page.waitForSelector('.graph .node');
    await page.evaluate(() => document.querySelector('.graph .node').focus());
    await page.keyboard.press('Enter');
    await page.waitForSelector('.node-card');
    await page.keyboard.press('?');
    await page.waitForSelector('dialog[open]');
    await world.check_accessibility(page, 'help');
    await page.keyboard.press('Escape');
    await wait_until('closed', async () => !(await page.$('dialog[open]')));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  // Without focus() or click() in the test: Tab must reach each element, the focus must be visible, and Enter must
  // activate it.
  async 'without a mouse, a user logs in, finds and decides an approval, and runs a script'() {
    const id = await flow_of('approval.yaml');
    await wait_until('it asks', async () => (await world.rpc('approval.list')).questions.some((each) => each.flow === id));
    const page = await world.open_page();
    await page.goto(`${world.url}/`);
    await page.waitForSelector('input[type=password]');
    const has_focus = () => page.evaluate(() => { const at = document.activeElement; return {says: (at.innerText || at.placeholder || at.type || '').trim(), seen: at === document.body || getComputedStyle(at).outlineStyle !== 'none' || getComputedStyle(at).boxShadow !== 'none', near: at.closest('.question')?.innerText ?? ''}; });
    const tab_to = async (wanted, near = '') => {
      for (let i = 0; i < 120; i++) {
        const now = await has_focus();
        if (now.says.startsWith(wanted) && now.near.includes(near)) { assert.ok(now.seen, `${wanted} has the focus, and that is not seen`); return; }
        await page.keyboard.press('Tab');
      }
      assert.fail(`Tab does not reach ${wanted}`);
    };
    await tab_to('password');
    await page.keyboard.type(world.operator);
    await page.keyboard.press('Enter');
    await page.waitForSelector('header');
    await page.keyboard.type('ga');
    await expect_text(page, `release ${id}`);
    await tab_to('reason', `release ${id}`);
    await page.keyboard.type('by hand');
    await tab_to('Approve', `release ${id}`);
    await page.keyboard.press('Enter');
    await wait_until('approved', async () => (await world.rpc('flow.dag', {id})).nodes.find((each) => each.name === 'ship').node_status === 'completed');
    // the question is removed, and the browser chooses the next focus
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.type('gt');
    await page.waitForSelector('textarea');
    await tab_to('Run');
    await page.keyboard.press('Enter');
    await expect_text(page, 'step 4', '.log');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'a copy button reports success at its position'() {
    const made = await world.start_job('print("x")', {name: 'to copy'});
    await world.wait_for_end(made.key);
    const page = await world.open_page();
    // as on other hosts over http
    await page.evaluateOnNewDocument(() => Object.defineProperty(Navigator.prototype, 'clipboard', {value: undefined}));
    await page.goto(`${world.url}/#/jobs/${made.key.replace('job:', '')}`);
    await page.waitForSelector('input[type=password]');
    await page.type('input[type=password]', world.operator);
    await page.keyboard.press('Enter');
    await click(page, 'main button', 'copy');
    await expect_text(page, 'not copied', 'main');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'an error when a definition is opened for editing is not shown for the next definition'() {
    const page = await world.open_view('#/try?of=7%3A999999');
    await page.waitForSelector('main .problem');
    await click(page, 'main button', 'a flow');
    await wait_until('no error', async () => !(await page.$('main .problem')), 5000);
    assert.match(await page.$eval('textarea', (at) => at.value), /first-flow/);
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
});
