// Each role sees only the data and actions that the table of permissions grants. `dev` permits a browser on its host
// without a token.
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {openSync, readFileSync} from 'node:fs';
import {join} from 'node:path';
import {run_claims, click, VIEW_VARIANTS, expect_text, text, wait_until, World} from './world.mjs';

const world = await new World().start();
const tokens = Object.fromEntries([['admin', 12], ['reader', 13], ['executor', 14], ['stranger', 15], ['submitter', 16]].map(([role, actor]) => [role, world.create_token(actor)]));
const others = await world.start_job('raise SystemExit(3)', {name: 'of the operator'});
await world.wait_for_end(others.key);
const own = await world.rpc('job.start', {script: 'raise SystemExit(4)', script_type: 'python', name: 'of the submitter'}, tokens.submitter);
await world.wait_for_end(own.key);
const definition = {name: 'ask', jobs: {named: {approval: {approvers: [15], comment: 'stranger, say'}}}};
const flow = await world.rpc('flow.create', {definition});
await world.rpc('flow.start', {id: flow.id});
world.run('workflow', 'apply', join(process.env.MYCOJOBS_SOURCE, 'examples/workflow/order/order.json'));
world.run('workflow', 'send', 'order/Placed', JSON.stringify({id: 7, item: 'book', count: 1, cents: 150000, card: 'visa'}));
await wait_until('its approval', async () => (await world.rpc('approval.list')).questions.some((each) => each.workflow));
const order = {workflow: 'order/order@1', key: 7};
const buttons = (page) => page.$$eval('main button', (all) => all.map((each) => each.innerText.trim()));
const at = (key) => `#/jobs/${key.replace('job:', '')}`;
// Calls methods that the open page does not offer. Returns the responses of the server.
const by_hand = (page, token, calls) => page.evaluate(async (asked, bearer) => {
  const words = {};
  for (const [method, params] of asked) {
    const response = await fetch('/rpc', {method: 'POST', headers: {Authorization: `Bearer ${bearer}`, 'Content-Type': 'application/json'}, body: JSON.stringify({jsonrpc: '2.0', id: 1, method, params})});
    const answer = await response.json();
    words[method] = answer.error ? answer.error.data.word : 'done';
  }
  return words;
}, calls, token);
const all_denied = async (page, token, calls) => assert.deepEqual(await by_hand(page, token, calls), Object.fromEntries(calls.map(([method]) => [method, 'denied'])));
const id_of = (key) => key.replace('job:', '');

await run_claims(world, {
  async 'a reader sees everything and is offered no action'() {
    const page = await world.open_view(at(others.key), tokens.reader);
    await expect_text(page, 'exit code 3');
    assert.deepEqual((await buttons(page)).filter((each) => /Run|Cancel|Change|Approve/.test(each)), []);
    await page.goto(`${world.url}/#/overview`);
    await expect_text(page, 'queue:python');
    assert.deepEqual((await buttons(page)).filter((each) => /Pause|Verify|Doctor/.test(each)), []);
    await page.goto(`${world.url}/#/approvals`);
    await expect_text(page, 'stranger, say');
    await expect_text(page, 'Order 7 of 1500 EUR');
    assert.deepEqual((await buttons(page)).filter((each) => /Approve|Reject/.test(each)), []);
    await page.goto(`${world.url}/#/workflows/order%2Forder%401?key=7`);
    await expect_text(page, 'Order 7 of 1500 EUR');
    assert.deepEqual((await buttons(page)).filter((each) => /Approve|Reject|Cancel|Remove/.test(each)), []);
    await page.goto(`${world.url}/#/flows/${flow.id}?node=named`);
    await expect_text(page, 'needs approval', '.node-card');
    assert.deepEqual((await buttons(page)).filter((each) => /Approve|Reject|Pause|Cancel|Run/.test(each)), []);
    await all_denied(page, tokens.reader, [['job.retry', {id: id_of(others.key)}], ['job.cancel', {id: id_of(others.key)}], ['job.start', {script: 'pass', script_type: 'python'}], ['queue.pause', {queue: 'python'}], ['queue.requeue', {letter: '1-0'}], ['queue.drop', {letter: '1-0'}],
      ['context.verify', {}], ['context.doctor', {}], ['flow.approve', {id: flow.id, name: 'named'}], ['flow.cancel', {id: flow.id}], ['flow.create', {definition}], ['workflow.approve', order], ['workflow.cancel', order], ['workflow.remove', order]]);
    await page.close();
  },
  async 'a submitter sees only its own jobs and may run them again'() {
    const page = await world.open_view('#/jobs', tokens.submitter);
    await expect_text(page, 'of the submitter');
    assert.equal((await text(page)).includes('of the operator'), false);
    await click(page, '.virtual a', 'of the submitter');
    await expect_text(page, 'exit code 4');
    await click(page, 'main button', 'Run again');
    await wait_until('its second attempt', async () => (await world.rpc('job.get', {id: own.key.replace('job:', '')})).attempt === 2);
    await page.goto(`${world.url}/${at(others.key)}`);
    await expect_text(page, 'may not read job');
    await page.goto(`${world.url}/#/overview`);
    await expect_text(page, 'You see only your own records');
    await all_denied(page, tokens.submitter, [['job.get', {id: id_of(others.key)}], ['job.logs', {id: id_of(others.key)}], ['job.history', {id: id_of(others.key)}], ['job.explain', {id: id_of(others.key)}], ['artifact.list', {id: id_of(others.key)}], ['artifact.get', {id: id_of(others.key), name: 'a'}], ['job.retry', {id: id_of(others.key)}],
      ['context.overview', {}], ['context.verify', {}], ['context.doctor', {}], ['queue.pause', {queue: 'python'}], ['flow.get', {id: flow.id}], ['flow.approve', {id: flow.id, name: 'named'}]]);
    await page.close();
  },
  async 'a job that an admin runs again runs as its original caller'() {
    const whose = async (view) => wait_until('a new job', async () => { const [, key] = /#\/jobs\/([^?]*)/.exec(decodeURIComponent(view.url())) ?? []; return key && key !== done && key !== id_of(own.key) && key; });
    const finished = await world.rpc('job.start', {script: 'result = {"done": True}', script_type: 'python', name: 'mine', env_vars: {KEPT: 'yes'}}, tokens.submitter);
    const done = id_of(finished.key);
    await world.wait_for_end(finished.key);
    const page = await world.open_view(at(finished.key), tokens.admin);
    await expect_text(page, 'finished', '.title');
    await click(page, 'main button', 'Run again');
    const clicked = await whose(page);
    assert.match(clicked, /^16:/);
    assert.equal((await world.rpc('job.get', {id: clicked})).env_vars.KEPT, 'yes');
    await page.goto(`${world.url}/${at(finished.key)}`);
    await expect_text(page, 'Run again', '.title');
    await page.keyboard.press('r');
    await expect_text(page, 'Run again', 'dialog[open]');
    await page.keyboard.press('Enter');
    assert.match(await whose(page), /^16:/);
    await world.wait_for_end(own.key);
    await page.goto(`${world.url}/${at(own.key)}`);
    await expect_text(page, 'Run a copy');
    await click(page, 'main button', 'Run a copy');
    assert.match(await whose(page), /^16:/);
    await page.goto(`${world.url}/#/try?of=${encodeURIComponent(done)}`);
    await expect_text(page, 'was created by actor 16', 'main');
    await expect_text(page, 'with your rights', 'main');
    const theirs = await world.rpc('flow.create', {definition: {name: 'theirs', jobs: {a: {log: 'x'}}}}, tokens.submitter);
    await world.rpc('flow.start', {id: theirs.id}, tokens.submitter);
    await wait_until('its end', async () => (await world.rpc('flow.get', {id: theirs.id})).status === 'finished');
    await page.goto(`${world.url}/#/flows/${theirs.id}`);
    await click(page, 'main button', 'Run again');
    const again = await wait_until('a new flow', () => { const [, id] = /#\/flows\/(\d+)/.exec(page.url()) ?? []; return id && Number(id) !== theirs.id && Number(id); });
    assert.equal((await world.rpc('flow.get', {id: again})).caller_id, 16);
    for (const [method, id] of [['job.restart', done], ['flow.replay', theirs.id]]) {
      await assert.rejects(world.rpc(method, {id, caller_id: 12}, tokens.admin), /caller_id/, `${method} takes no caller`);
      await assert.rejects(world.rpc(method, {id}, tokens.reader), /may not/);
    }
    await page.goto(`${world.url}/#/try?kind=flow&of=${theirs.id}`);
    await expect_text(page, 'was created by actor 16', 'main');
    await page.close();
  },
  async 'an admin may do everything'() {
    spawnSync('redis-cli', ['-s', join(world.folder, 'redis.sock'), '-n', '3', 'set', 'another', 'context']);
    const shares = async (token) => (await world.rpc('context.doctor', {}, token)).some((each) => each.name === 'sharing');
    assert.equal(await shares(world.operator), true);
    assert.equal(await shares(tokens.admin), false, 'which other contexts there are is for operators');
    const page = await world.open_view(at(others.key), tokens.admin);
    await expect_text(page, 'Run again');
    await page.goto(`${world.url}/#/overview`);
    await expect_text(page, 'Verify');
    await click(page, 'td button', 'Pause');
    await expect_text(page, 'paused');
    await click(page, 'td button', 'Resume');
    await assert.rejects(world.rpc('queue.pause', {queue: 'refused'}, tokens.reader));
    const refusals = await wait_until('what was refused', () => page.evaluateHandle(() => [...document.querySelectorAll('.findings li')].find((at) => at.innerText.includes('of requests without permission'))?.querySelector('summary') ?? null).then((found) => found.asElement()));
    await refusals.click();
    await wait_until('who it was, and what he wanted', () => page.$$eval('.findings table tr', (all) => all.some((at) => at.innerText.startsWith('13') && at.innerText.includes('queues'))));
    await wait_until('all that an admin may', async () => JSON.stringify(await by_hand(page, tokens.admin, [['queue.dead', {}], ['context.verify', {}], ['context.doctor', {}], ['context.refusals', {id: 1}], ['job.get', {id: id_of(own.key)}]])) === JSON.stringify(Object.fromEntries(['queue.dead', 'context.verify', 'context.doctor', 'context.refusals', 'job.get'].map((each) => [each, 'done']))));
    await all_denied(page, tokens.admin, [['actor.create', {id: 99}], ['context.create', {id: 9}], ['context.delete', {id: 1}]]);
    await page.close();
  },
  async 'an executor sees no job of other actors and is offered no action'() {
    const page = await world.open_view('#/jobs', tokens.executor);
    await expect_text(page, 'may not read');
    await page.goto(`${world.url}/#/overview`);
    await expect_text(page, 'Overview', 'main h1');
    await expect_text(page, 'may not read', 'main');
    assert.doesNotMatch(await text(page, 'main'), /You see only your own records/);
    await page.goto(`${world.url}/#/approvals`);
    await expect_text(page, 'Nothing waits for approval', 'main');
    await page.goto(`${world.url}/#/try`);
    await expect_text(page, 'but not create jobs');
    assert.deepEqual((await buttons(page)).filter((each) => /Run|Cancel|Approve|Pause|Verify|Doctor/.test(each)), []);
    await all_denied(page, tokens.executor, [['jobs.page', {}], ['job.get', {id: id_of(others.key)}], ['job.retry', {id: id_of(others.key)}], ['job.start', {script: 'pass', script_type: 'python'}], ['context.overview', {}], ['queue.dead', {}],
      ['queue.pause', {queue: 'python'}], ['queue.drop', {letter: '1-0'}], ['flow.get', {id: flow.id}], ['flow.approve', {id: flow.id, name: 'named'}], ['workflow.show', order], ['workflow.approve', order]]);
    await page.close();
  },
  async 'direct requests without a token or with a wrong token are rejected'() {
    const page = await world.open_page();
    await page.goto(`${world.url}/`);
    const words = await page.evaluate(async () => {
      const status = async (path, options) => (await fetch(path, options)).status;
      const body = JSON.stringify({jsonrpc: '2.0', id: 1, method: 'jobs.page', params: {}});
      return [await status('/rpc', {method: 'POST', body, headers: {'Content-Type': 'application/json'}}), await status('/rpc', {method: 'POST', body, headers: {'Content-Type': 'application/json', Authorization: 'Bearer mj_wrong'}}), await status('/events?context=1&overview=1')];
    });
    assert.deepEqual(words, [401, 401, 401]);
    await page.close();
  },
  async 'an actor without a role sees only the approvals that name it, and decides them'() {
    const page = await world.open_view('#/jobs', tokens.stranger);
    await expect_text(page, 'may not read');
    assert.equal((await text(page)).includes('of the operator'), false);
    await all_denied(page, tokens.stranger, [['workflow.list', {}], ['workflow.show', order], ['workflow.approve', order], ['jobs.page', {}], ['job.get', {id: id_of(others.key)}], ['context.overview', {}], ['flow.get', {id: flow.id}], ['flow.cancel', {id: flow.id}], ['job.start', {script: 'pass', script_type: 'python'}]]);
    await page.goto(`${world.url}/#/approvals`);
    await expect_text(page, 'stranger, say');
    assert.equal((await text(page)).includes('Order 7'), false);
    await click(page, 'button', 'Approve');
    await wait_until('approved', async () => (await world.rpc('flow.get', {id: flow.id})).status === 'finished');
    await page.goto(`${world.url}/#/try`);
    await expect_text(page, 'but not create jobs');
    await page.close();
  },
  async 'after a token was revoked, the page asks for a token'() {
    const page = await world.open_view('#/jobs', tokens.executor);
    await world.run('key', 'token', '--actor', '99');
    const {writeFileSync} = await import('node:fs');
    const rows = readFileSync(world.tokens, 'utf8').split('\n');
    writeFileSync(world.tokens, rows.filter((row) => !/ 14( |$)/.test(row)).join('\n'), {mode: 0o600});
    await page.evaluate(() => { location.hash = '#/flows'; });
    await page.waitForSelector('input[type=password]', {timeout: 20000});
    await page.close();
  },
  async 'an actor logs in with its key, which stays in the browser, until the key is revoked'() {
    const fresh = (name) => world.run('key', 'new', join(world.folder, name)).trim().split('\n').pop().trim();
    const [mine, next] = [fresh('mine.key'), fresh('next.key')];
    const secret = (name) => readFileSync(join(world.folder, name), 'utf8').trim();
    await world.rpc('actor.create', {id: 13, pubkey: mine});
    const page = await world.open_page();
    const sent = [];
    page.on('request', (request) => sent.push(`${request.url()} ${request.postData() ?? ''} ${JSON.stringify(request.headers())}`));
    await page.goto(`${world.url}/#/jobs`);
    const choose = async (name) => (await page.waitForSelector('input[type=file]')).uploadFile(join(world.folder, name));
    await choose('coordinator.log');
    await expect_text(page, 'not a key of');
    await world.check_accessibility(page, 'the login by key');
    await choose('mine.key');
    await expect_text(page, 'actor 13', 'header');
    await expect_text(page, 'of the operator');
    assert.deepEqual((await buttons(page)).filter((each) => /Run|Cancel|Verify|Doctor/.test(each)), []);
    assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length), 0);
    // If the server no longer knows the session, the page logs in again.
    await world.stop_process('coordinator', 'SIGKILL');
    await world.start_coordinator();
    await world.wait_for_end((await world.start_job('pass', {name: 'after-the-restart'})).key);
    await expect_text(page, 'after-the-restart');
    await expect_text(page, 'live', 'header');
    await world.rpc('actor.update', {id: 13, pubkey: next});
    await page.waitForSelector('input[type=password]', {timeout: 20000});
    await choose('mine.key');
    await expect_text(page, 'no actor here has the key');
    await page.type('input[type=password]', secret('next.key'));
    await page.keyboard.press('Enter');
    await expect_text(page, 'actor 13', 'header');
    const begun = sent.filter((each) => each.includes('session.begin')).length;
    assert.ok(begun >= 4, `${begun} logins`);
    for (const each of sent) {
      for (const name of ['mine.key', 'next.key']) assert.ok(!each.includes(secret(name).split(':')[1]), 'a secret was sent');
      assert.ok(!each.split(' ')[0].includes('mjs_'), 'a token in an address');
    }
    await click(page, 'header button', 'Log out');
    await page.waitForSelector('input[type=password]');
    await wait_until('the session to be ended', () => sent.some((each) => each.includes('session.end')));
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'the page signs nothing for another origin'() {
    world.run('key', 'new', join(world.folder, 'relayed.key'));
    const page = await world.open_page();
    const begun = [];
    await page.setRequestInterception(true);
    page.on('request', (request) => {
      const asked = request.postData() ?? '';
      if (asked.includes('session.begin')) begun.push(asked);
      if (!asked.includes('session.challenge')) return request.continue();
      const result = {challenge: 'c', audience: world.url.replace('http:', 'https:'), until_ms: 0};
      return request.respond({status: 200, contentType: 'application/json', body: JSON.stringify({jsonrpc: '2.0', id: 1, result})});
    });
    await page.goto(`${world.url}/#/jobs`);
    await (await page.waitForSelector('input[type=file]')).uploadFile(join(world.folder, 'relayed.key'));
    await expect_text(page, 'no challenge is signed');
    assert.deepEqual(begun, []);
    await page.close();
  },
  async '`dev` prints one address, which needs no token and has the five examples'() {
    const log = openSync(join(world.folder, 'dev.log'), 'a'), out = openSync(join(world.folder, 'dev.out'), 'a');
    world.start_process('dev', [join(process.env.MYCOJOBS_BIN, 'mycojobs'), 'dev', '--state-dir', join(world.folder, 'dev'), '--api-listen', '127.0.0.1:0'], {stdio: ['ignore', out, log]});
    const printed = () => readFileSync(join(world.folder, 'dev.out'), 'utf8');
    await wait_until('its address', printed);
    const [, address] = /^the page is at (http:\/\/127\.0\.0\.1:\d+\/)\n$/.exec(printed()) ?? assert.fail(printed());
    for (const [form, how] of Object.entries(VIEW_VARIANTS)) {
      const page = await world.open_page(how);
      await page.goto(address);
      await expect_text(page, 'No job has run in this context yet');
      await world.check_accessibility(page, `the examples${form}`);
      await world.write_picture(page, `dev${form}`);
      await page.close();
    }
    const page = await world.open_page();
    await page.goto(address);
    await click(page, 'button', 'Run the 5 examples');
    for (const [name, state] of [['compute.py', 'finished'], ['denied.py', 'finished'], ['traceback.py', 'failed: exception'], ['memory.py', 'failed: oom'], ['endless.py', 'failed: timeout']])
      await wait_until(`${name} ${state}`, () => page.$$eval('.window .job', (all, what, how) => all.some((at) => at.innerText.includes(what) && at.innerText.includes(how)), name, state));
    await page.goto(`${address}#/overview`);
    await expect_text(page, 'What is stuck');
    assert.doesNotMatch(await text(page), /No job has run in this context yet/);
    await page.goto(`${address}#/try`);
    await page.waitForSelector('textarea');
    await click(page, 'button', 'Run');
    await expect_text(page, 'step 4', '.log');
    assert.equal(printed().split('\n').length, 2, 'one line');
    assert.deepEqual(page.console_errors, []);
    await page.close();
  },
  async 'data that one actor has read is not shown to the next actor that logs in'() {
    const page = await world.open_view('#/approvals', tokens.admin);
    await expect_text(page, 'Order 7 of', 'main');
    await click(page, 'header button', 'Log out');
    await page.waitForSelector('input[type=password]');
    await page.setRequestInterception(true);  // delays the responses
    page.on('request', (request) => (/approval\.list|context\.rights/.test(request.postData() ?? '') ? undefined : request.continue()));
    await page.type('input[type=password]', tokens.submitter);
    await page.keyboard.press('Enter');
    await expect_text(page, 'Approvals', 'h1');
    assert.doesNotMatch(await text(page, 'main'), /Order 7 of|Approve/);
    assert.equal(await page.$('header .badge'), null);
    await page.close();
  },
});
