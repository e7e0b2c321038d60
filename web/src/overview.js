// The view for operators: health of the context, and jobs that do not make progress, with reasons.
import {html, useCall, useNow, useState, RelativeTime, Action, Command, Glyph, Problem, TextWithCommands, UntrustedText, href, job_href, store_now_ms, useTitle} from './ui.js';
import {rpc} from './api.js';
import {Chart} from './chart.js';
import {Examples} from './examples.js';
import {format_age, format_count, format_counted, get_elapsed_ms, get_entry, to_line, format_time, quote_shell_word, format_duration, to_text} from './text.js';

// Returns the problems that need attention, worst first: [{weight, shape, text, advice, list_name, paused_queue}].
// list_name is the name of a list that the finding can show. paused_queue is the name of a queue that the finding can
// resume.
export function list_findings(overview, now_ms, context, questions) {
  const findings = [];
  const own_count = questions.filter((entry) => entry.answers).length;
  if (questions.length) findings.push({weight: 5, shape: 'asks', text: html`<a href=${href(['approvals'], {context})}>${format_counted(questions.length, 'approval')}</a> ${questions.length === 1 ? 'waits' : 'wait'} for a decision${own_count ? `, ${own_count} for yours` : ''}`, advice: 'open it, then approve or reject it'});
  const live_agents = overview.runners.filter((entry) => entry.state === 'live');
  const free_slots = live_agents.reduce((sum, entry) => sum + Math.max(0, entry.slots - entry.claims), 0);
  const queued_count = overview.queues.reduce((sum, entry) => sum + entry.length + entry.prioritised, 0);
  if (queued_count > 0 && live_agents.length === 0)
    findings.push({weight: 9, shape: 'failed', text: `${format_counted(queued_count, 'job')} ${queued_count === 1 ? 'waits' : 'wait'} and no agent is alive`, advice: 'start one: `mycojobs agent`'});
  for (const entry of overview.queues) {
    const length = entry.length + entry.prioritised;
    if (length === 0) continue;
    const has_agent = live_agents.some((agent) => entry.queue.endsWith(`:runner${agent.id}`) || agent.executors.some((type) => entry.queue === `queue:${type}`));
    const waiting_ms = entry.next_since_ms && get_elapsed_ms(entry.next_since_ms, now_ms);
    const oldest_note = entry.next && html`, the next one for ${format_duration(waiting_ms)}: <a href=${job_href(entry.next, context)}><${UntrustedText} text=${entry.next.replace('job:', '')}/></a>`;
    if (entry.paused) findings.push({weight: 5, shape: 'waiting', text: html`${format_counted(length, 'job')} in <${UntrustedText} text=${entry.queue}/>, which is paused${oldest_note}`, advice: html`resume it: <${Command} text=${`mycojobs queue resume ${quote_shell_word(entry.queue)}`}/>`, paused_queue: entry.queue});
    else if (live_agents.length && !has_agent) findings.push({weight: 8, shape: 'failed', text: html`no live agent serves <${UntrustedText} text=${entry.queue}/>: ${format_counted(length, 'job')}${oldest_note}`, advice: 'start an agent that runs this: `mycojobs agent`; `mycojobs doctor` shows what its host can run'});
    else if (waiting_ms > 60000) findings.push({weight: 4, shape: 'waiting', text: html`<${UntrustedText} text=${entry.queue}/> has a backlog: ${format_counted(length, 'job')}${oldest_note}`, next: free_slots === 0 ? 'all slots are busy: start another agent, or add slots' : 'slots are free: open its next job for the reason'});
  }
  for (const entry of overview.runners)
    if (entry.state === 'silent') findings.push({weight: entry.claims ? 7 : 3, shape: 'failed', text: html`agent ${entry.id} on <${UntrustedText} text=${entry.host}/> is silent for ${format_duration(get_elapsed_ms(entry.seen_ms, now_ms))}${entry.claims ? `, and had ${format_counted(entry.claims, 'job')}` : ''}`, advice: `${entry.claims ? 'its jobs return to their queues when their leases expire; ' : ''}look at its host, or \`mycojobs runner delete ${entry.id}\` if it is gone permanently`});
  if (overview.missing) findings.push({weight: 6, shape: 'failed', text: `${format_counted(overview.missing, 'queue entry', 'queue entries')} without a record`, advice: 'each becomes a dead letter soon; `mycojobs verify` lists them'});
  if (overview.dead) findings.push({weight: 3, shape: 'failed', text: `${format_counted(overview.dead, 'dead letter')}: entries that cannot run`, advice: 'run each again after fixing its cause, or drop it (`mycojobs queue dead`)', list_name: 'dead'});
  if (overview.prerequisites) findings.push({weight: 1, shape: 'waiting', text: html`<a href=${href(['jobs'], {context, status: 'waiting_for_prerequisites', state: 'prerequisite'})}>${format_counted(overview.prerequisites, 'job')}</a> ${overview.prerequisites === 1 ? 'waits' : 'wait'} for a prerequisite: a time, a file, an address, an approval`, advice: 'each job shows its prerequisite and the waiting time'});
  if (overview.anomalies) findings.push({weight: 2, shape: 'asks', text: `${format_counted(overview.anomalies, 'anomaly', 'anomalies')}: invalid data in the store`, advice: '`mycojobs verify` and `mycojobs doctor` show details'});
  if (overview.refusals) findings.push({weight: 1, shape: 'cancelled', text: `${format_counted(overview.refusals, 'refusal')} of requests without permission`, advice: '`mycojobs context refusals` lists them; `mycojobs context grant` grants roles', list_name: 'refusals'});
  return findings.sort((a, b) => b.weight - a.weight);
}

const Tile = ({title, value, note, target, shape}) => html`<a class="tile" href=${target}><span class="label">${shape && html`<${Glyph} shape=${shape}/>`} ${title}</span><b>${value}</b><span class="quiet">${note}</span></a>`;

// Shows failed checks in the style of the findings. Successful checks can be unfolded.
function Doctor({context}) {
  const [checks, set_checks] = useState(null);
  const failed_checks = checks?.filter((entry) => entry.state !== 'ok') ?? [], ok_checks = checks?.filter((entry) => entry.state === 'ok') ?? [];
  failed_checks.sort((a, b) => (a.state === b.state ? 0 : a.state === 'error' ? -1 : 1));
  return html`<div class="doctor"><div class="actions"><${Action} run=${async () => set_checks(await rpc('context.doctor', {context_id: context}))}>Doctor<//>
    <span class="quiet">checks Redis, the leader of the context and its agents; <code class="command">mycojobs doctor</code> looks at a host</span></div>
    ${checks && html`<div role="status">${failed_checks.length === 0 ? html`<p><${Glyph} shape="done"/> ${format_counted(ok_checks.length, 'check')}, nothing is wrong</p>`
      : html`<ul class="findings">${failed_checks.map((entry) => html`<li><${Glyph} shape=${entry.state === 'error' ? 'failed' : 'asks'}/><div><b>${entry.state}</b> ${to_line(entry.area, 60)}, ${to_line(entry.name, 60)}: <${UntrustedText} text=${entry.detail}/>${entry.remedy && html` <span class="quiet"><b>Remedy:</b> <${TextWithCommands} text=${entry.remedy}/></span>`}</div></li>`)}</ul>`}
      ${ok_checks.length > 0 && html`<details><summary class="quiet">${format_counted(ok_checks.length, 'check')} found no problem</summary><table><tbody>${ok_checks.map((entry) => html`<tr><td>${to_line(entry.area, 60)}</td><td>${to_line(entry.name, 60)}</td><td><${UntrustedText} text=${entry.detail}/></td></tr>`)}</tbody></table></details>`}</div>`}</div>`;
}

function Verify({context}) {
  const [report, set_report] = useState(null);
  return html`<div class="actions"><${Action} run=${async () => set_report(await rpc('context.verify', {context_id: context}))}>Verify<//>
    <span class="quiet">checks the data of all jobs, flows and workflows</span></div>
    ${report && html`<div role="status"><p><${Glyph} shape=${report.findings.some((entry) => entry.violation) ? 'failed' : 'done'}/> ${report.found ? format_counted(report.found, 'finding') : 'No findings'}: ${format_counted(report.jobs, 'job')}, ${format_counted(report.facts, 'fact')}, ${format_counted(report.queues, 'queue')}${report.findings.some((entry) => entry.violation) ? html`. <span class="quiet"><b>Remedy:</b> <${TextWithCommands} text=${'`mycojobs doctor --rebuild --dry-run` shows the possible repairs'}/></span>` : ''}</p>
    ${report.findings.length > 0 && html`<table><thead><tr><th>rule</th><th>of</th><th>what</th></tr></thead><tbody>${report.findings.slice(0, 50).map((entry) => html`<tr><td>${entry.violation ? '' : 'note: '}${entry.rule}</td><td><${UntrustedText} text=${entry.subject}/></td><td><${UntrustedText} text=${entry.text}/></td></tr>`)}</tbody></table>`}</div>`}`;
}

const MAX_DEAD_LETTERS = 100;
// Shows the dead letters with their reasons, and actions for each letter and for all shown letters.
function DeadLetters({context, total, rights}) {
  const {value, error, load} = useCall('queue.dead', {context_id: context, limit: MAX_DEAD_LETTERS}, [total]);
  const letters = [...(value ?? [])].reverse();
  const resolve_letter = (method, letter) => async () => { await rpc(method, {letter, context_id: context}); await load(); };
  const resolve_all = (method) => async () => {
    const errors = [];
    for (const {letter} of letters) await rpc(method, {letter, context_id: context}).catch((error) => errors.push(error));
    await load();
    if (errors.length) throw Object.assign(errors[0], {message: `${errors.length} of ${letters.length} remain: ${errors[0].message}`});
  };
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  const job_link = (key) => (/^job:\d+:\d+$/.test(key) ? html`<a href=${job_href(key, context)}>${key.replace('job:', '')}</a>` : html`<${UntrustedText} text=${key} max_chars=${80}/>`);
  return html`${rights?.administer && letters.length > 1 && html`<div class="actions"><${Action} kind="small" run=${resolve_all('queue.requeue')}>Run all again<//></div>`}
    <div class="wide-table" tabindex="0" role="region" aria-label="dead letters"><table class="compact" role="table"><thead role="rowgroup"><tr><th>job</th><th>queue</th><th>why</th><th>when</th><th><span class="hidden">actions</span></th></tr></thead><tbody role="rowgroup">${letters.map((entry) => html`<tr role="row" key=${entry.letter}><td role="cell" class="first">${job_link(entry.job)}</td><td role="cell"><${UntrustedText} text=${entry.queue} max_chars=${60}/></td><td role="cell"><${UntrustedText} text=${to_text(entry.reason).replaceAll('_', ' ')} max_chars=${60}/></td><td role="cell"><time title=${format_time(entry.at_ms)}>${format_age(entry.at_ms, store_now_ms())}</time></td>
    <td role="cell" class="first">${rights?.administer && html`<${Action} kind="small" run=${resolve_letter('queue.requeue', entry.letter)}>Run again<//> <${Action} kind="small" title="removes it from this list" run=${resolve_letter('queue.drop', entry.letter)}>Drop<//>`}</td></tr>`)}</tbody></table></div>
    ${total > letters.length && html`<p class="quiet">The latest ${letters.length} of ${format_count(total)}.</p>`}`;
}
// Shows denied requests. Only admins may read them.
function Refusals({context, total}) {
  const {value, error} = useCall('context.refusals', {id: context, limit: 50}, [total]);
  if (!value) return error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`;
  return html`<table><thead><tr><th>actor</th><th>wanted to</th><th>with</th><th>when</th></tr></thead><tbody>${value.map((entry) => html`<tr key=${entry.number}><td>${entry.actor}</td><td><${UntrustedText} text=${entry.action} max_chars=${60}/></td><td><${UntrustedText} text=${entry.thing} max_chars=${120}/></td><td><time title=${format_time(entry.at_ms)}>${format_age(entry.at_ms, store_now_ms())}</time></td></tr>`)}</tbody></table>`;
}
function LazyDetails({title, children}) {
  const [is_open, set_open] = useState(false);
  return html`<details onToggle=${(event) => set_open(event.currentTarget.open)}><summary class="quiet">${title}</summary>${is_open && children}</details>`;
}
function Finding({finding, overview, context, rights}) {
  return html`<li><${Glyph} shape=${finding.shape}/><div class="grow">${finding.text}${finding.advice && html` <span class="quiet next">${typeof finding.advice === 'string' ? html`<${TextWithCommands} text=${finding.advice}/>` : finding.advice}</span>`}
    ${finding.paused_queue && rights?.administer && html` <${Action} kind="small" run=${() => rpc('queue.resume', {queue: finding.paused_queue, context_id: context})}>Resume<//>`}
    ${finding.list_name === 'dead' && html`<${LazyDetails} title="show them"><${DeadLetters} context=${context} total=${overview.dead} rights=${rights}/><//>`}
    ${finding.list_name === 'refusals' && rights?.administer && html`<${LazyDetails} title="show them"><${Refusals} context=${context} total=${overview.refusals}/><//>`}</div></li>`;
}

const WAIT_LABELS = {dependencies: 'other jobs', prerequisite: 'prerequisites', queued: 'a free slot', delayed: 'their start time', retry_wait: 'their next attempt', held: 'their concurrency key', planned: 'their flow'};

function Reasons({counts, title, empty_text, make_href}) {
  const rows = Object.entries(counts).sort((a, b) => b[1] - a[1]);
  const max_count = rows[0]?.[1] ?? 1;
  return html`<div><h3>${title}</h3>${rows.length === 0 ? html`<p class="empty">${empty_text}</p>` : html`<table class="bars"><tbody>${rows.slice(0, 12).map(([detail, n]) => html`<tr><td><a href=${make_href(detail)}><${UntrustedText} text=${title.startsWith('Waiting') ? get_entry(WAIT_LABELS, detail) ?? detail : detail} max_chars=${40}/></a></td><td class="num">${format_count(n)}</td><td class="bar"><meter min="0" max=${max_count} value=${n} aria-label=${`${n} of ${to_line(detail, 40)}`}></meter></td></tr>`)}</tbody></table>`}</div>`;
}

export function Overview({overview, context, rights, unavailable_reason, questions}) {
  useTitle('Overview');
  const now_ms = useNow();
  if (unavailable_reason) return html`<main><h1>Overview</h1><p class="empty">${unavailable_reason}</p></main>`;
  if (!overview) return html`<main><h1>Overview</h1><p class="empty">Loading \u2026</p></main>`;
  const findings = list_findings(overview, now_ms, context, questions.value?.questions ?? []);
  const queued_count = overview.queues.reduce((sum, entry) => sum + entry.length + entry.prioritised, 0);
  const waiting_count = overview.delayed + overview.prerequisites + overview.held + (overview.waits.dependencies ?? 0);
  const failed_count = Object.values(overview.failures).reduce((a, b) => a + b, 0);
  const slots = overview.runners.filter((entry) => entry.state === 'live').reduce((sum, entry) => sum + entry.slots, 0);
  const ended_per_s = overview.ends.slice(0, 6).reduce((a, b) => a + b, 0) / 60;
  const jobs_href = (query) => href(['jobs'], {context, ...query});
  return html`<main class="overview"><h1 class="hidden">Overview</h1>
    <div class="tiles">
      <${Tile} title="running" shape="running" value=${format_count(overview.running)} note=${`of ${format_counted(slots, 'slot')}`} target=${jobs_href({state: 'started'})}/>
      <${Tile} title="queued" shape="queued" value=${format_count(queued_count)} note=${format_counted(overview.queues.filter((entry) => entry.length + entry.prioritised).length, 'queue')} target=${jobs_href({state: 'queued'})}/>
      <${Tile} title="waiting" shape="waiting" value=${format_count(waiting_count)} note="for jobs, files, time" target=${jobs_href({status: 'waiting_for_prerequisites'})}/>
      <${Tile} title="failed" shape="failed" value=${format_count(failed_count)} note=${`of the last ${format_count(overview.looked_at)}`} target=${jobs_href({status: 'error'})}/>
      <${Tile} title="ended" shape="done" value=${`${ended_per_s >= 10 ? Math.round(ended_per_s) : ended_per_s.toFixed(1)}/s`} note=${`${format_count(overview.ended)} kept`} target=${jobs_href({status: 'finished'})}/>
      <${Tile} title="picked up" value=${overview.picked_up ? format_duration(overview.p50_ms) : '\u2013'} note=${overview.picked_up ? `99 % within ${format_duration(overview.p99_ms)}` : 'nothing yet'} target=${jobs_href({})}/>
      <${Tile} title="flows" value=${format_count(overview.flows_active)} note=${`under way, of ${format_count(overview.flows)}`} target=${href(['flows'], {context, state: ''})}/>
    </div>
    ${overview.jobs === 0 && rights?.create && html`<${Examples} context=${context}/>`}
    <section class="card"><h2>What is stuck</h2>
      ${findings.length === 0 ? html`<p><${Glyph} shape="done"/> Nothing: agents live, queues move.</p>`
        : html`<ul class="findings">${findings.map((entry) => html`<${Finding} key=${entry.list_name ?? entry.paused_queue} finding=${entry} overview=${overview} context=${context} rights=${rights}/>`)}</ul>`}
      ${rights?.administer && html`<${Doctor} context=${context}/>`}
      <div class="columns">
        <${Reasons} counts=${overview.waits} title="Waiting for" empty_text="Nothing waits." make_href=${(detail) => jobs_href({state: detail})}/>
        <${Reasons} counts=${overview.failures} title="Failed because of" empty_text="Nothing has failed lately." make_href=${(detail) => jobs_href({status: 'error', state: detail})}/>
      </div>
    </section>
    <section class="card"><h2>Jobs that ended, each ${format_duration(overview.slot_ms)}</h2><${Chart} end_counts=${overview.ends} slot_ms=${overview.slot_ms} now_ms=${overview.now_ms}/></section>
    <div class="columns wide">
    <section class="card"><h2>Queues</h2>${overview.queues.length === 0 ? html`<p class="empty">No job was queued yet. <a href=${href(['try'], {context})}>Try one.</a></p>` : html`<table><thead><tr><th>queue</th><th class="num">jobs</th><th>next job waits</th><th><span class="hidden">actions</span></th></tr></thead><tbody>
      ${overview.queues.map((entry) => html`<tr key=${entry.queue}><td><${UntrustedText} text=${entry.queue}/> ${entry.paused ? html`<span class="tag">paused</span>` : ''}</td><td class="num">${format_count(entry.length + entry.prioritised)}</td>
        <td>${entry.next ? html`<a href=${job_href(entry.next, context)}>${entry.next_since_ms ? format_duration(get_elapsed_ms(entry.next_since_ms, now_ms)) : 'unknown'}</a>` : '\u2013'}</td>
        <td>${rights?.administer && html`<${Action} kind="small" run=${() => rpc(entry.paused ? 'queue.resume' : 'queue.pause', {queue: entry.queue, context_id: context})}>${entry.paused ? 'Resume' : 'Pause'}<//>`}</td></tr>`)}</tbody></table>`}</section>
    <section class="card"><h2>Agents</h2>${overview.runners.length === 0 ? html`<p class="empty">No agent has registered.</p>` : html`<table><thead><tr><th>agent</th><th>host</th><th>slots</th><th>last heartbeat</th></tr></thead><tbody>
      ${overview.runners.map((entry) => html`<tr key=${entry.id}><td><span class=${`state ${entry.state === 'live' ? 'done' : entry.state === 'left' ? 'cancelled' : 'failed'}`}><${Glyph} shape=${entry.state === 'live' ? 'done' : entry.state === 'left' ? 'cancelled' : 'failed'}/><span>${entry.id} ${entry.state}</span></span></td>
        <td><${UntrustedText} text=${entry.host}/> <span class="quiet">${to_line(entry.version, 20)}</span></td><td><meter min="0" max=${Math.max(entry.slots, 1)} value=${entry.claims} aria-label="slots in use"></meter> ${entry.claims} of ${entry.slots}</td><td><${RelativeTime} at_ms=${entry.seen_ms} now_ms=${now_ms}/></td></tr>`)}</tbody></table>`}</section>
    </div>
    ${rights?.administer && html`<section class="card"><h2>Consistency</h2><${Verify} context=${context}/></section>`}
  </main>`;
}
