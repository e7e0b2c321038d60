// The environment of one page test: a Redis server, a coordinator, an agent and a browser. close() stops the processes
// and removes the folder.
import assert from 'node:assert/strict';
import {spawn, spawnSync} from 'node:child_process';
import {existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {tmpdir} from 'node:os';
import {basename, delimiter, join} from 'node:path';

const {MYCOJOBS_BIN: BIN, MYCOJOBS_WEB: WEB} = process.env;
export const SOURCE = process.env.MYCOJOBS_SOURCE;
const program = join(BIN, 'mycojobs');
// The environment of the programs, without variables that would change their settings.
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('MYCOJOBS_') && name !== 'COORDINATOR_URL'));
export const sleep = (ms) => new Promise((then) => setTimeout(then, ms));

// Reports a skipped test in the format of GoogleTest, for tests/ledger.
function skip(reason) {
  const part = basename(process.argv[1]).split('_')[0];
  console.log(`${reason}\n[  SKIPPED ] Page.${part[0].toUpperCase()}${part.slice(1)}`);
  process.exit(77);
}
const CHROMIUM = process.env.PATH.split(delimiter).map((folder) => join(folder, 'chromium')).find(existsSync);
if (!CHROMIUM) skip('chromium is not installed');
if (!existsSync(join(WEB, 'node_modules/puppeteer-core'))) skip('the modules of npm are missing: ./dev build brings them');
const modules = createRequire(join(WEB, 'package.json'));

export async function wait_until(description, condition, limit_ms = 60000) {
  const deadline = Date.now() + limit_ms;
  for (let last_error; ; await sleep(50)) {
    try {
      const value = await condition();
      if (value) return value;
    } catch (error) {
      last_error = error;
    }
    if (Date.now() > deadline) throw new Error(`${description}: not within ${limit_ms} ms${last_error ? `: ${last_error.message}` : ''}`);
  }
}

// Variants in which each view is opened, by the suffix of the picture's file name.
export const VIEW_VARIANTS = {'': {}, '-dark': {scheme: 'dark'}, '-360': {width: 360, height: 740, reduced: true}};

export class World {
  folder = mkdtempSync(join(tmpdir(), 'mycojobs-page-'));
  processes = new Map();
  port = 0;

  start_process(name, argv, more = {}) {
    const out = openSync(join(this.folder, `${name}.log`), 'a');
    const child = spawn(argv[0], argv.slice(1), {stdio: ['ignore', out, out], env: environment, ...more});
    this.processes.set(name, child);
    return child;
  }
  read_log(name) { return readFileSync(join(this.folder, `${name}.log`), 'utf8'); }
  async stop_process(name, signal = 'SIGTERM') {
    const child = this.processes.get(name);
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exited = new Promise((then) => child.once('exit', then));
    child.kill(signal);
    const timer = setTimeout(() => child.kill('SIGKILL'), 15000);
    await exited;
    clearTimeout(timer);
  }
  run(...argv) {
    const result = spawnSync(program, [...argv, '--redis', this.redis, '--state-dir', join(this.folder, 'state'), ...(argv[0] === 'key' ? ['--api-tokens', this.tokens] : [])], {encoding: 'utf8', timeout: 60000, env: environment});
    assert.equal(result.status, 0, `${argv.join(' ')}: ${result.stderr}`);
    return result.stdout;
  }
  // The operator permits long outputs, for views of long logs.
  get config() {
    const path = join(this.folder, 'mycojobs.toml');
    writeFileSync(path, '[contexts.1.ceiling]\noutput.keep = "16 MiB"\n', {mode: 0o600});
    return path;
  }
  get redis() { return `unix:${join(this.folder, 'redis.sock')}`; }
  get tokens() { return join(this.folder, 'tokens'); }
  get url() { return `http://127.0.0.1:${this.port}`; }

  // Starts Redis, the coordinator and, unless `agent` is false, the agent. `kept` limits the number of ended jobs in the
  // store (retention); 0 means no limit.
  async start({agent = true, kept = 0} = {}) {
    this.kept = kept ? ['--retention-count', String(kept)] : [];
    this.start_process('redis', ['redis-server', '--port', '0', '--unixsocket', join(this.folder, 'redis.sock'), '--dir', this.folder, '--save', '', '--appendonly', 'no', '--databases', '32']);
    await wait_until('redis', () => existsSync(join(this.folder, 'redis.sock')));
    this.operator = this.run('key', 'token', '--operator').trim().split('\n').pop().trim();
    await this.start_coordinator();
    await this.rpc('context.create', {id: 1, admins: [1, 12], readers: [13], submitters: [16], executors: [14]});
    if (agent) await this.start_agent();
    return this;
  }
  async start_coordinator() {
    const before = existsSync(join(this.folder, 'coordinator.log')) ? this.read_log('coordinator').length : 0;
    this.start_process('coordinator', [program, 'coordinator', '--config', this.config, '--redis', this.redis, '--context', '1', '--state-dir', join(this.folder, 'coordinator'), '--api-listen', `127.0.0.1:${this.port}`, '--api-tokens', this.tokens]);
    const found = await wait_until('coordinator', () => /JSON-RPC at http:\/\/127\.0\.0\.1:(\d+)/.exec(this.read_log('coordinator').slice(before)));
    this.port = Number(found[1]);
  }
  async start_agent() {
    this.start_process('agent', [program, 'agent', '--config', this.config, '--redis', this.redis, '--context', '1', '--runner', '20', '--runner-actor', '1', '--slots', '4', '--state-dir', join(this.folder, 'agent'), '--health-listen', '', ...this.kept]);
    await wait_until('agent', async () => (await this.rpc('context.overview', {})).runners.some((each) => each.state === 'live'));
  }
  create_token(actor) { return this.run('key', 'token', '--actor', String(actor)).trim().split('\n').pop().trim(); }
  async rpc(method, params = {}, token = this.operator) {
    const response = await fetch(`${this.url}/rpc`, {method: 'POST', headers: {Authorization: `Bearer ${token}`, 'Content-Type': 'application/json'}, body: JSON.stringify({jsonrpc: '2.0', id: 1, method, params})});
    const answer = await response.json();
    if (answer.error) throw Object.assign(new Error(`${method}: ${answer.error.message}`), answer.error.data);
    return answer.result;
  }
  start_job(script, more = {}) { return this.rpc('job.start', {script, script_type: 'python', ...more}); }
  async wait_for_end(key) { return wait_until(`end of ${key}`, async () => { const job = await this.rpc('job.status', {id: key.replace('job:', '')}); return job.ended && job; }); }

  // Opens an empty page. `apart` uses a separate browser context, which has its own connections. `seen` keeps the page
  // active while another page is in front. `console_errors` of the page receives its errors.
  async open_page({width = 1280, height = 800, scheme = 'light', reduced = false, apart = false, seen = false} = {}) {
    this.browser ??= await modules('puppeteer-core').launch({executablePath: CHROMIUM, headless: true, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--force-color-profile=srgb', '--lang=en']});
    const page = await (apart ? await this.browser.createBrowserContext() : this.browser).newPage();
    if (seen) await (await page.createCDPSession()).send('Emulation.setFocusEmulationEnabled', {enabled: true});
    page.console_errors = [];
    page.on('pageerror', (error) => page.console_errors.push(`error: ${error.message}`));
    page.on('console', (printed) => { if (printed.type() === 'error' && !/ERR_CONNECTION|Failed to load resource|ERR_INCOMPLETE|ERR_EMPTY/.test(printed.text())) page.console_errors.push(printed.text()); });
    await page.setViewport({width, height});
    await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: scheme}, {name: 'prefers-reduced-motion', value: reduced ? 'reduce' : 'no-preference'}]);
    return page;
  }
  // Opens a view and logs in.
  async open_view(view, token = this.operator, options = {}) {
    const page = await this.open_page(options);
    await page.goto(`${this.url}/${view}`);
    await page.waitForSelector('input[type=password]');
    await page.type('input[type=password]', token);
    await page.keyboard.press('Enter');
    await page.waitForSelector('header');
    return page;
  }
  // With MYCOJOBS_PICTURES=FOLDER, writes the pictures of docs/pictures. pngquant, if installed, reduces them to a
  // third.
  async write_picture(page, name) {
    const folder = process.env.MYCOJOBS_PICTURES;
    if (!folder) return;
    await sleep(700);
    const path = join(folder, `page-${name}.png`);
    await page.screenshot({path});
    spawnSync('pngquant', ['--force', '--strip', '--output', path, '64', path]);
  }
  async check_accessibility(page, view) {
    await page.evaluate(readFileSync(modules.resolve('axe-core/axe.min.js'), 'utf8'));
    const found = await page.evaluate(async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})).violations
      .map((each) => `${each.impact} ${each.id}: ${each.nodes.map((node) => `${node.target} ${node.failureSummary}`).slice(0, 3).join(' | ')}`));
    const serious = found.filter((each) => /^(serious|critical)/.test(each));
    assert.deepEqual(serious, [], view);
  }
  async close() {
    await this.browser?.close();
    for (const name of ['agent', 'coordinator', 'dev', 'redis']) await this.stop_process(name);
    rmSync(this.folder, {recursive: true, force: true, maxRetries: 5});
  }
}

export const text = (page, selector = 'body') => page.$eval(selector, (at) => at.innerText);
export const expect_text = (page, wanted, selector = 'body') => wait_until(`"${wanted}" on the page`, async () => {
  const shown = await text(page, selector);
  return wanted instanceof RegExp ? wanted.test(shown) : shown.includes(wanted);
}).catch(async (error) => { throw new Error(`${error.message}; there is: ${(await text(page)).slice(0, 500).replace(/\n/g, ' / ')}`); });
// A list that is scrolled down does not insert new rows, so waits until the list has enough rows.
export const scroll_to = (page, top) => wait_until('rows to scroll over', () => page.$eval('.virtual', (at, to) => {
  if (at.scrollHeight - at.clientHeight < to) return false;
  at.scrollTop = to;
  return at.scrollTop >= to;
}, top));
// Clicks the first matching element with this text.
export const click = async (page, selector, wanted) => {
  const at = await wait_until(`${selector} that says ${wanted}`, () => page.evaluateHandle((what, says) => [...document.querySelectorAll(what)].find((each) => each.innerText.trim().startsWith(says)) ?? null, selector, wanted).then((found) => found.asElement()));
  await at.evaluate((each) => each.scrollIntoView({block: 'center'}));
  await at.click();
};

// Runs the tests (functions by name) in sequence, prints the result of each, closes the world and exits.
// MYCOJOBS_PAGE_CLAIMS=TEXT selects the claims with TEXT in their name.
export async function run_claims(world, all) {
  let failed = 0;
  try {
    for (const [name, run] of Object.entries(all).filter(([each]) => each.includes(process.env.MYCOJOBS_PAGE_CLAIMS ?? ''))) {
      const began = Date.now();
      try {
        await run();
        console.log(`passed (${Date.now() - began} ms): ${name}`);
      } catch (error) {
        failed++;
        console.log(`FAILED (${Date.now() - began} ms): ${name}\n  ${error.stack}`);
        for (const page of (await world.browser?.pages()) ?? []) if (page.url() !== 'about:blank') await page.close();
      }
    }
    if (failed) for (const name of ['coordinator', 'agent']) if (existsSync(join(world.folder, `${name}.log`))) console.log(`--- ${name}\n${world.read_log(name).slice(-3000)}`);
  } finally {
    await world.close();
  }
  process.exit(failed ? 1 : 0);
}
