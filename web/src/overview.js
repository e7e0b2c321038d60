// The view for operators: health of the context, and jobs that do not make progress, with reasons.
import {html, useCall, useNow, useState, Ago, Action, Command, Glyph, Problem, Sentence, Their, href, job_href, now_ms, useTitle} from './ui.js';
import {rpc} from './api.js';
import {Chart} from './chart.js';
import {Examples} from './examples.js';
import {ago, count, counted, elapsed, entry_of, line, moment, shell_word, span, text_of} from './text.js';

// Returns the problems that need attention, worst first: [{weight, shape, text, next, about}]. about: name of a list that
// can be unfolded.
export function findings_of(view, now, context, questions) {
  const found = [];
  const mine = questions.filter((each) => each.answers).length;
  if (questions.length) found.push({weight: 5, shape: 'asks', text: html`<a href=${href(['approvals'], {context})}>${counted(questions.length, 'approval')}</a> ${questions.length === 1 ? 'waits' : 'wait'} for a decision${mine ? `, ${mine} for yours` : ''}`, next: 'open it, then approve or reject it'});
  const live = view.runners.filter((each) => each.state === 'live');
  const free = live.reduce((sum, each) => sum + Math.max(0, each.slots - each.claims), 0);
  const waiting = view.queues.reduce((sum, each) => sum + each.length + each.prioritised, 0);
  if (waiting > 0 && live.length === 0)
    found.push({weight: 9, shape: 'failed', text: `${counted(waiting, 'job')} ${waiting === 1 ? 'waits' : 'wait'} and no agent is alive`, next: 'start one: `mycojobs agent`'});
  for (const each of view.queues) {
    const length = each.length + each.prioritised;
    if (length === 0) continue;
    const served = live.some((agent) => each.queue.endsWith(`:runner${agent.id}`) || agent.executors.some((type) => each.queue === `queue:${type}`));
    const old = each.next_since_ms && elapsed(each.next_since_ms, now);
    const oldest = each.next && html`, the next one for ${span(old)}: <a href=${job_href(each.next, context)}><${Their} text=${each.next.replace('job:', '')}/></a>`;
    if (each.paused) found.push({weight: 5, shape: 'waiting', text: html`${counted(length, 'job')} in <${Their} text=${each.queue}/>, which is paused${oldest}`, next: html`resume it: <${Command} text=${`mycojobs queue resume ${shell_word(each.queue)}`}/>`, resume: each.queue});
    else if (live.length && !served) found.push({weight: 8, shape: 'failed', text: html`no live agent serves <${Their} text=${each.queue}/>: ${counted(length, 'job')}${oldest}`, next: 'start an agent that runs this: `mycojobs agent`; `mycojobs doctor` shows what its host can run'});
    else if (old > 60000) found.push({weight: 4, shape: 'waiting', text: html`<${Their} text=${each.queue}/> has a backlog: ${counted(length, 'job')}${oldest}`, next: free === 0 ? 'all slots are busy: start another agent, or add slots' : 'slots are free: open its next job for the reason'});
  }
  for (const each of view.runners)
    if (each.state === 'silent') found.push({weight: each.claims ? 7 : 3, shape: 'failed', text: html`agent ${each.id} on <${Their} text=${each.host}/> is silent for ${span(elapsed(each.seen_ms, now))}${each.claims ? `, and had ${counted(each.claims, 'job')}` : ''}`, next: `${each.claims ? 'its jobs return to their queues when their leases expire; ' : ''}look at its host, or \`mycojobs runner delete ${each.id}\` if it is gone permanently`});
  if (view.missing) found.push({weight: 6, shape: 'failed', text: `${counted(view.missing, 'queue entry', 'queue entries')} without a record`, next: 'each becomes a dead letter soon; `mycojobs verify` lists them'});
  if (view.dead) found.push({weight: 3, shape: 'failed', text: `${counted(view.dead, 'dead letter')}: entries that cannot run`, next: 'run each again after fixing its cause, or drop it (`mycojobs queue dead`)', about: 'dead'});
  if (view.prerequisites) found.push({weight: 1, shape: 'waiting', text: html`<a href=${href(['jobs'], {context, status: 'waiting_for_prerequisites', state: 'prerequisite'})}>${counted(view.prerequisites, 'job')}</a> ${view.prerequisites === 1 ? 'waits' : 'wait'} for a prerequisite: a time, a file, an address, an approval`, next: 'each job shows its prerequisite and the waiting time'});
  if (view.anomalies) found.push({weight: 2, shape: 'asks', text: `${counted(view.anomalies, 'anomaly', 'anomalies')}: invalid data in the store`, next: '`mycojobs verify` and `mycojobs doctor` show details'});
  if (view.refusals) found.push({weight: 1, shape: 'cancelled', text: `${counted(view.refusals, 'refusal')} of requests without permission`, next: '`mycojobs context refusals` lists them; `mycojobs context grant` grants roles', about: 'refusals'});
  return found.sort((a, b) => b.weight - a.weight);
}

const Tile = ({title, value, note, to, shape}) => html`<a class="tile" href=${to}><span class="label">${shape && html`<${Glyph} shape=${shape}/>`} ${title}</span><b>${value}</b><span class="quiet">${note}</span></a>`;

// Shows failed checks in the style of the findings. Successful checks can be unfolded.
function Doctor({context}) {
  const [checks, set] = useState(null);
  const wrong = checks?.filter((each) => each.state !== 'ok') ?? [], well = checks?.filter((each) => each.state === 'ok') ?? [];
  wrong.sort((a, b) => (a.state === b.state ? 0 : a.state === 'missing' ? -1 : 1));
  return html`<div class="doctor"><div class="actions"><${Action} run=${async () => set(await rpc('context.doctor', {context_id: context}))}>Doctor<//>
    <span class="quiet">checks Redis, the leader of the context and its agents; <code class="command">mycojobs doctor</code> looks at a host</span></div>
    ${checks && html`<div role="status">${wrong.length === 0 ? html`<p><${Glyph} shape="done"/> ${counted(well.length, 'check')}, nothing is wrong</p>`
      : html`<ul class="findings">${wrong.map((each) => html`<li><${Glyph} shape=${each.state === 'missing' ? 'failed' : 'asks'}/><div><b>${each.state}</b> ${line(each.area, 60)}, ${line(each.name, 60)}: <${Their} text=${each.detail}/>${each.remedy && html` <span class="quiet"><b>Remedy:</b> <${Sentence} text=${each.remedy}/></span>`}</div></li>`)}</ul>`}
      ${well.length > 0 && html`<details><summary class="quiet">${counted(well.length, 'check')} found no problem</summary><table><tbody>${well.map((each) => html`<tr><td>${line(each.area, 60)}</td><td>${line(each.name, 60)}</td><td><${Their} text=${each.detail}/></td></tr>`)}</tbody></table></details>`}</div>`}</div>`;
}

function Verify({context}) {
  const [report, set] = useState(null);
  return html`<div class="actions"><${Action} run=${async () => set(await rpc('context.verify', {context_id: context}))}>Verify<//>
    <span class="quiet">checks the data of all jobs, flows and workflows</span></div>
    ${report && html`<div role="status"><p><${Glyph} shape=${report.findings.some((each) => each.violation) ? 'failed' : 'done'}/> ${report.found ? counted(report.found, 'finding') : 'No findings'}: ${counted(report.jobs, 'job')}, ${counted(report.facts, 'fact')}, ${counted(report.queues, 'queue')}${report.findings.some((each) => each.violation) ? html`. <span class="quiet"><b>Remedy:</b> <${Sentence} text=${'`mycojobs doctor --rebuild --dry-run` shows the possible repairs'}/></span>` : ''}</p>
    ${report.findings.length > 0 && html`<table><thead><tr><th>rule</th><th>of</th><th>what</th></tr></thead><tbody>${report.findings.slice(0, 50).map((each) => html`<tr><td>${each.violation ? '' : 'note: '}${each.rule}</td><td><${Their} text=${each.subject}/></td><td><${Their} text=${each.text}/></td></tr>`)}</tbody></table>`}</div>`}`;
}

const MOST_DEAD = 100;
// Shows the dead letters with their reasons, and actions for each letter and for all shown letters.
function DeadLetters({context, many, rights}) {
  const {value, error, load} = useCall('queue.dead', {context_id: context, limit: MOST_DEAD}, [many]);
  const letters = [...(value ?? [])].reverse();
  const settle = (method, letter) => async () => { await rpc(method, {letter, context_id: context}); await load(); };
  const each_of = (method) => async () => {
    const left = [];
    for (const {letter} of letters) await rpc(method, {letter, context_id: context}).catch((wrong) => left.push(wrong));
    await load();
    if (left.length) throw Object.assign(left[0], {message: `${left.length} of ${letters.length} remain: ${left[0].message}`});
  };
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const job = (key) => (/^job:\d+:\d+$/.test(key) ? html`<a href=${job_href(key, context)}>${key.replace('job:', '')}</a>` : html`<${Their} text=${key} most=${80}/>`);
  return html`${rights?.administer && letters.length > 1 && html`<div class="actions"><${Action} kind="small" run=${each_of('queue.requeue')}>Run all again<//></div>`}
    <div class="wide-table" tabindex="0" role="region" aria-label="dead letters"><table class="compact" role="table"><thead role="rowgroup"><tr><th>job</th><th>queue</th><th>why</th><th>when</th><th><span class="hidden">actions</span></th></tr></thead><tbody role="rowgroup">${letters.map((each) => html`<tr role="row" key=${each.letter}><td role="cell" class="first">${job(each.job)}</td><td role="cell"><${Their} text=${each.queue} most=${60}/></td><td role="cell"><${Their} text=${text_of(each.reason).replaceAll('_', ' ')} most=${60}/></td><td role="cell"><time title=${moment(each.at_ms)}>${ago(each.at_ms, now_ms())}</time></td>
    <td role="cell" class="first">${rights?.administer && html`<${Action} kind="small" run=${settle('queue.requeue', each.letter)}>Run again<//> <${Action} kind="small" title="removes it from this list" run=${settle('queue.drop', each.letter)}>Drop<//>`}</td></tr>`)}</tbody></table></div>
    ${many > letters.length && html`<p class="quiet">The latest ${letters.length} of ${count(many)}.</p>`}`;
}
// Shows denied requests. Only admins may read them.
function Refusals({context, many}) {
  const {value, error} = useCall('context.refusals', {id: context, limit: 50}, [many]);
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  return html`<table><thead><tr><th>actor</th><th>wanted to</th><th>with</th><th>when</th></tr></thead><tbody>${value.map((each) => html`<tr key=${each.number}><td>${each.actor}</td><td><${Their} text=${each.action} most=${60}/></td><td><${Their} text=${each.thing} most=${120}/></td><td><time title=${moment(each.at_ms)}>${ago(each.at_ms, now_ms())}</time></td></tr>`)}</tbody></table>`;
}
function Unfolded({title, children}) {
  const [open, set] = useState(false);
  return html`<details onToggle=${(event) => set(event.currentTarget.open)}><summary class="quiet">${title}</summary>${open && children}</details>`;
}
function Found({of, view, context, rights}) {
  return html`<li><${Glyph} shape=${of.shape}/><div class="grow">${of.text}${of.next && html` <span class="quiet next">${typeof of.next === 'string' ? html`<${Sentence} text=${of.next}/>` : of.next}</span>`}
    ${of.resume && rights?.administer && html` <${Action} kind="small" run=${() => rpc('queue.resume', {queue: of.resume, context_id: context})}>Resume<//>`}
    ${of.about === 'dead' && html`<${Unfolded} title="show them"><${DeadLetters} context=${context} many=${view.dead} rights=${rights}/><//>`}
    ${of.about === 'refusals' && rights?.administer && html`<${Unfolded} title="show them"><${Refusals} context=${context} many=${view.refusals}/><//>`}</div></li>`;
}

const words = {dependencies: 'other jobs', prerequisite: 'prerequisites', queued: 'a free slot', delayed: 'their start time', retry_wait: 'their next attempt', held: 'their concurrency key', planned: 'their flow'};

function Reasons({of, title, none, to}) {
  const rows = Object.entries(of).sort((a, b) => b[1] - a[1]);
  const most = rows[0]?.[1] ?? 1;
  return html`<div><h3>${title}</h3>${rows.length === 0 ? html`<p class="empty">${none}</p>` : html`<table class="bars"><tbody>${rows.slice(0, 12).map(([detail, n]) => html`<tr><td><a href=${to(detail)}><${Their} text=${title.startsWith('Waiting') ? entry_of(words, detail) ?? detail : detail} most=${40}/></a></td><td class="num">${count(n)}</td><td class="bar"><meter min="0" max=${most} value=${n} aria-label=${`${n} of ${line(detail, 40)}`}></meter></td></tr>`)}</tbody></table>`}</div>`;
}

export function Overview({view, context, rights, gone, questions}) {
  useTitle('Overview');
  const now = useNow();
  if (gone) return html`<main><h1>Overview</h1><p class="empty">${gone}</p></main>`;
  if (!view) return html`<main><h1>Overview</h1><p class="empty">Loading \u2026</p></main>`;
  const found = findings_of(view, now, context, questions.value?.questions ?? []);
  const waiting = view.queues.reduce((sum, each) => sum + each.length + each.prioritised, 0);
  const parked = view.delayed + view.prerequisites + view.held + (view.waits.dependencies ?? 0);
  const failed = Object.values(view.failures).reduce((a, b) => a + b, 0);
  const slots = view.runners.filter((each) => each.state === 'live').reduce((sum, each) => sum + each.slots, 0);
  const last_minute = view.ends.slice(0, 6).reduce((a, b) => a + b, 0) / 60;
  const list = (query) => href(['jobs'], {context, ...query});
  return html`<main class="overview"><h1 class="hidden">Overview</h1>
    <div class="tiles">
      <${Tile} title="running" shape="running" value=${count(view.running)} note=${`of ${counted(slots, 'slot')}`} to=${list({state: 'started'})}/>
      <${Tile} title="queued" shape="queued" value=${count(waiting)} note=${counted(view.queues.filter((each) => each.length + each.prioritised).length, 'queue')} to=${list({state: 'queued'})}/>
      <${Tile} title="waiting" shape="waiting" value=${count(parked)} note="for jobs, files, time" to=${list({status: 'waiting_for_prerequisites'})}/>
      <${Tile} title="failed" shape="failed" value=${count(failed)} note=${`of the last ${count(view.looked_at)}`} to=${list({status: 'error'})}/>
      <${Tile} title="ended" shape="done" value=${`${last_minute >= 10 ? Math.round(last_minute) : last_minute.toFixed(1)}/s`} note=${`${count(view.ended)} kept`} to=${list({status: 'finished'})}/>
      <${Tile} title="picked up" value=${view.picked_up ? span(view.p50_ms) : '\u2013'} note=${view.picked_up ? `99 % within ${span(view.p99_ms)}` : 'nothing yet'} to=${list({})}/>
      <${Tile} title="flows" value=${count(view.flows_active)} note=${`under way, of ${count(view.flows)}`} to=${href(['flows'], {context, state: ''})}/>
    </div>
    ${view.jobs === 0 && rights?.create && html`<${Examples} context=${context}/>`}
    <section class="card"><h2>What is stuck</h2>
      ${found.length === 0 ? html`<p><${Glyph} shape="done"/> Nothing: agents live, queues move.</p>`
        : html`<ul class="findings">${found.map((each) => html`<${Found} key=${each.about ?? each.resume} of=${each} view=${view} context=${context} rights=${rights}/>`)}</ul>`}
      ${rights?.administer && html`<${Doctor} context=${context}/>`}
      <div class="columns">
        <${Reasons} of=${view.waits} title="Waiting for" none="Nothing waits." to=${(detail) => list({state: detail})}/>
        <${Reasons} of=${view.failures} title="Failed because of" none="Nothing has failed lately." to=${(detail) => list({status: 'error', state: detail})}/>
      </div>
    </section>
    <section class="card"><h2>Jobs that ended, each ${span(view.slot_ms)}</h2><${Chart} ends=${view.ends} slot_ms=${view.slot_ms} now=${view.now_ms}/></section>
    <div class="columns wide">
    <section class="card"><h2>Queues</h2>${view.queues.length === 0 ? html`<p class="empty">No job was queued yet. <a href=${href(['try'], {context})}>Try one.</a></p>` : html`<table><thead><tr><th>queue</th><th class="num">jobs</th><th>next job waits</th><th><span class="hidden">actions</span></th></tr></thead><tbody>
      ${view.queues.map((each) => html`<tr key=${each.queue}><td><${Their} text=${each.queue}/> ${each.paused ? html`<span class="tag">paused</span>` : ''}</td><td class="num">${count(each.length + each.prioritised)}</td>
        <td>${each.next ? html`<a href=${job_href(each.next, context)}>${each.next_since_ms ? span(elapsed(each.next_since_ms, now)) : 'unknown'}</a>` : '\u2013'}</td>
        <td>${rights?.administer && html`<${Action} kind="small" run=${() => rpc(each.paused ? 'queue.resume' : 'queue.pause', {queue: each.queue, context_id: context})}>${each.paused ? 'Resume' : 'Pause'}<//>`}</td></tr>`)}</tbody></table>`}</section>
    <section class="card"><h2>Agents</h2>${view.runners.length === 0 ? html`<p class="empty">No agent has registered.</p>` : html`<table><thead><tr><th>agent</th><th>host</th><th>slots</th><th>last heartbeat</th></tr></thead><tbody>
      ${view.runners.map((each) => html`<tr key=${each.id}><td><span class=${`state ${each.state === 'live' ? 'done' : each.state === 'left' ? 'cancelled' : 'failed'}`}><${Glyph} shape=${each.state === 'live' ? 'done' : each.state === 'left' ? 'cancelled' : 'failed'}/><span>${each.id} ${each.state}</span></span></td>
        <td><${Their} text=${each.host}/> <span class="quiet">${line(each.version, 20)}</span></td><td><meter min="0" max=${Math.max(each.slots, 1)} value=${each.claims} aria-label="slots in use"></meter> ${each.claims} of ${each.slots}</td><td><${Ago} at=${each.seen_ms} now=${now}/></td></tr>`)}</tbody></table>`}</section>
    </div>
    ${rights?.administer && html`<section class="card"><h2>Consistency</h2><${Verify} context=${context}/></section>`}
  </main>`;
}
