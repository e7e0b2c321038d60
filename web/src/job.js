// The view of one job: its state and the reason, log, error with the line of the script, result, and actions.
import {html, useCall, useEffect, useMemo, useRef, useState, Ago, Copy, Action, Glyph, Problem, Section, Sentence, State, Their, flow_href, go, has_failed, href, job_href, job_state, useNow, useTitle, Card, Command, Guard} from './ui.js';
import {events, rpc} from './api.js';
import {LogLines} from './lines.js';
import {LogView} from './log.js';
import {bytes, count, counted, elapsed, entry_of, line, list_of, moment, number_of, object_of, plain, shell_word, span, text_of} from './text.js';

const LOOK_MS = 200;
// Follows the log and the state of a job.
function useJobStream(key, context) {
  const log = useMemo(() => new LogLines(), [key, context]);
  const [heard, set] = useState({state: null, gone: ''});
  useEffect(() => {
    set({state: null, gone: ''});
    let due = 0, state = null;
    // Draw at most once per LOOK_MS, and only the log. The rest of the view is drawn when the state of the job changes.
    const show = () => { due ||= setTimeout(() => { due = 0; log.renewed(); set((now) => (now.state === state ? now : {...now, state})); }, LOOK_MS); };
    const end = events(new URLSearchParams({context, job: key.replace('job:', '')}).toString(), (event, data) => {
      if (event === 'log') log.take(data);
      if (event === 'job') state = data;
      show();
    }, (gone) => set((now) => ({...now, gone})));
    return () => { end(); clearTimeout(due); };
  }, [log]);
  return {log, ...heard};
}

const MOST_LINES = 2000, LONGEST = 2000;  // limits of lines of a script and characters of a line; a copy is complete
// Shows the lines of a script around the failed line.
function Script({script, at, open}) {
  const lines = useMemo(() => plain(script).replace(/\n$/, '').split('\n'), [script]);
  const [all, show] = useState(lines.length <= (open ? 400 : 14));
  const from = all || !at ? 0 : Math.max(0, at - 5), to = Math.min(lines.length, all ? MOST_LINES : at ? at + 4 : 40);
  return html`<div class="code" tabindex="0" role="region" aria-label="script"><table><tbody>${lines.slice(from, to).map((text, i) => {
    const number = from + i + 1;
    return html`<tr class=${number === at ? 'marked' : ''}><td class="number">${number}</td><td class="sign">${number === at ? '\u25b6' : ''}</td><td><bdi dir="ltr">${(text.length > LONGEST ? `${text.slice(0, LONGEST)}\u2026` : text) || ' '}</bdi></td></tr>`;
  })}</tbody></table></div>${all && to < lines.length ? html`<p class="quiet">The first ${count(to)} of ${counted(lines.length, 'line')}.</p>` : to - from < lines.length && html`<button type="button" class="small" onClick=${() => show(true)}>all ${counted(lines.length, 'line')}</button>`}`;
}

const LONG = 4000;  // characters of a text from a job that are shown initially
export function Value({of}) {
  const text = text_of(of, 1);
  const [whole, show] = useState(false);
  const cut = text.length > LONG && !whole;
  const scrolls = text.length > 1500 || text.split('\n').length > 18;  // focusable, so that keys can scroll it
  return html`<pre class="value" tabindex=${scrolls ? 0 : null}><bdi dir="ltr">${plain(cut ? text.slice(0, LONG) : text)}</bdi></pre>${cut && html`<button type="button" class="small" onClick=${() => show(true)}>all ${bytes(text.length)}</button>`}`;
}
const value_of = (value) => {
  if (value !== null && typeof value === 'object') return html`<${Value} of=${value}/>`;
  const text = text_of(value);
  return text.length > LONG ? html`<${Value} of=${text}/>` : html`<bdi>${plain(text)}</bdi>`;
};
// Shows names and values of untrusted data as text.
export const Pairs = ({of}) => html`<dl class="pairs">${Object.entries(object_of(of)).filter(([, value]) => value !== '' && value != null).map(([name, value]) => html`<dt><${Their} text=${name}/></dt><dd>${value_of(value)}</dd>`)}</dl>`;

const WORDS = {scheduled: 'submitted', claimed: 'taken', parked: 'parked', queued: 'queued', released: 'given back', expired: 'lost: its lease ran out', retry: 'failed',
  completed: 'finished', failed: 'failed', cancelled: 'cancelled', dead_lettered: 'dead letter', requeued: 'retry requested', planned: 'planned by its flow', replanned: 'planned again', restored: 'restored'};
function History({moments}) {
  const begin = moments[0]?.at_ms;
  return html`<table><thead><tr><th>when</th><th class="num">after</th><th>what</th><th class="num">attempt</th><th class="num">agent</th></tr></thead><tbody>${moments.map((each) => html`<tr><td><time>${moment(each.at_ms)}</time></td><td class="num">${span(elapsed(begin, each.at_ms))}</td>
    <td>${entry_of(WORDS, each.kind) ?? line(each.kind, 40)}${each.detail && each.kind !== 'completed' ? html`: <${Their} text=${each.detail}/>` : ''}${each.due_ms ? `, again ${moment(each.due_ms)}` : ''}</td><td class="num">${each.attempt ?? ''}</td><td class="num">${each.runner_id ?? ''}</td></tr>`)}</tbody></table>`;
}

// Fields that are copied for a changed copy of a job.
export const COPIED = ['script', 'script_type', 'name', 'timeout', 'retries', 'env_vars', 'priority', 'queue_timeout_ms', 'concurrency_key', 'concurrency_limit', 'policy', 'notify'];

function may_steer(job, rights) {
  return rights && (rights.steer_all || (rights.steer_own && job.caller_id === rights.actor));
}

function Actions({job, key_, context, rights, load}) {
  const live = !['finished', 'error'].includes(job.status);
  const again = job.status === 'error' && job.detail !== 'cancelled' && !job.flow_id;
  const call = (method) => async () => { await rpc(method, {id: key_, context_id: context}); await load(); };
  const steers = may_steer(job, rights);
  const restarts = steers && !job.flow_id && !job.effect_of && !job.supervisor_url;
  // The server restarts the stored record as its original caller, not as the user of the page.
  const restart = async () => go(job_href((await rpc('job.restart', {id: key_, context_id: context})).key, context));
  return html`<div class="actions">
    ${steers && again && html`<${Action} kind="first" keys="r" title="as its next attempt (r)" run=${call('job.retry')}>Run again<//>`}
    ${restarts && !live && !again && html`<${Action} kind="first" keys="r" title=${`unchanged, as a new job of actor ${job.caller_id} (r)`} run=${restart}>Run again<//>`}
    ${restarts && again && html`<${Action} run=${restart} title=${`unchanged, as a new job of actor ${job.caller_id}`}>Run a copy<//>`}
    ${steers && live && job.detail === 'created' && html`<${Action} kind="first" run=${call('job.start')}>Start<//>`}
    ${steers && live && html`<${Action} keys="x" title="cancels it permanently (x)" run=${call('job.cancel')}>Cancel<//>`}
    ${rights?.create && job.script && html`<a class="button" href=${href(['try'], {context, of: key_})}>Change and run</a>`}
  </div>`;
}

// Shows the controls that answer an approval or a pause.
export function Answer({approve, reject, pause = false}) {
  const [comment, set] = useState('');
  return html`<div class="answer"><label><span class="hidden">why</span><input value=${comment} placeholder="reason (stored with actor and time)" maxlength="4096" onInput=${(e) => set(e.target.value)}/></label>
    <${Action} kind="first" run=${() => approve(comment)}>${pause ? 'Resume' : 'Approve'}<//>${reject && html`<${Action} run=${() => reject(comment)}>Reject<//>`}</div>`;
}

// known: text that the view already shows, so it is not repeated.
export function Explained({why, known = ''}) {
  return html`<div class="why">${known && text_of(why.reason).includes(known) ? '' : html`<p><bdi>${plain(why.reason)}</bdi></p>`}${why.next && html`<p class="quiet"><b>Next:</b> <${Sentence} text=${why.next}/></p>`}
    ${why.evidence?.length > 0 && html`<details><summary class="quiet">evidence</summary><ul>${[why.evidence].flat().map((each) => html`<li><bdi>${plain(each)}</bdi></li>`)}</ul></details>`}</div>`;
}

function Wrong({job, why}) {
  const {traceback, line: failed_at, ...more} = object_of(job.error_info);
  const at = Number.isSafeInteger(failed_at) && failed_at > 0 ? failed_at : 0;
  const rest = Object.fromEntries(Object.entries(more).filter(([, value]) => !text_of(job.error).includes(text_of(value))));
  const error = text_of(job.error || job.detail), long = error.length > LONG / 4;
  return html`<section class="card wrong" aria-label="error"><h2><${Glyph} shape="failed"/> <bdi>${long ? line(error, LONG / 4) : plain(error)}</bdi></h2>
    ${long && html`<${Section} title="All of it" open=${false} note=${bytes(error.length)}><${Value} of=${error}/><//>`}
    ${why && html`<${Explained} why=${why} known=${job.error}/>`}
    ${at && job.script ? html`<${Script} script=${job.script} at=${at} open=${false}/>` : ''}
    ${traceback && html`<${Section} title="Traceback" open=${!at}><${Value} of=${traceback}/><//>`}
    ${Object.keys(rest).length > 0 && html`<${Pairs} of=${rest}/>`}</section>`;
}

function Artifacts({of, id}) {
  const files = Object.entries(object_of(of)).map(([file, each]) => [file, object_of(each)]);
  if (files.length === 0) return null;
  return html`<${Card} title="Artifacts"><table><thead><tr><th>name</th><th class="num">size</th><th>sha256</th></tr></thead><tbody>${files.map(([file, each]) => html`<tr><td><${Their} text=${file}/></td><td class="num">${bytes(each.bytes)}</td><td><code>${line(each.sha256, 64)}</code></td></tr>`)}</tbody></table><p class="quiet"><${Command} text=${`mycojobs job artifacts ${shell_word(id)}`}/> fetches them</p><//>`;
}
function Dropped({of}) {
  const files = list_of(of).map(object_of);
  if (files.length === 0) return null;
  return html`<${Card} title="Files not kept"><table><thead><tr><th>name</th><th>reason</th><th class="num">limit</th><th>setting</th></tr></thead><tbody>${files.map((each) => html`<tr><td><${Their} text=${each.name || 'the artifacts folder'}/></td><td>${line(each.reason, 40)}</td><td class="num">${line(each.limit, 40)}</td><td><code>${line(each.setting, 80)}</code></td></tr>`)}</tbody></table><//>`;
}

function approvals_of(job) {
  return list_of(job.prerequisites).map((each) => text_of(each)).filter((each) => each.startsWith('approval:')).map((each) => each.slice(9));
}

export function JobView({name, context, rights}) {
  const key = `job:${name}`;
  const stream = useJobStream(key, context);
  const stamp = stream.state ? `${stream.state.status} ${stream.state.detail} ${stream.state.attempt} ${stream.state.ended_ms}` : '';
  const {value: job, error, load} = useCall('job.get', {id: name, context_id: context}, [stamp]);
  const why = useCall('job.explain', {id: name, context_id: context}, [stamp]);
  const history = useCall('job.history', {id: name, context_id: context}, [stamp]);
  const now = useNow();
  const shown = job && {...job, ...(stream.state && (stream.state.ended_ms || !job.ended_ms) ? {status: stream.state.status, detail: stream.state.detail, error: stream.state.error || job.error} : {})};
  useTitle(job ? job.name || name : name);
  if (!job) return html`<main><p><a href=${href(['jobs'], {context})}>Jobs</a> / <bdi>${line(name)}</bdi></p>${error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const ended = ['finished', 'error'].includes(shown.status);
  const [shape] = job_state(shown);
  const layers = text_of(job.layers).split(' ').filter(Boolean);
  const waits = shown.status === 'waiting_for_prerequisites' && !job.flow_id && may_steer(job, rights) ? approvals_of(job) : [];
  const again = async () => { await load(); why.load(); };
  const wrong = has_failed(shown);
  const timed = {waited: job.started_ms && job.queued_ms ? span(elapsed(Math.max(number_of(job.queued_ms), number_of(job.run_at_ms)), job.started_ms)) : job.queued_ms && !ended ? span(elapsed(job.queued_ms, now)) : '',
    took: job.started_ms && shown.status !== 'dispatched' ? span(elapsed(job.started_ms, ended ? job.ended_ms : now)) : ''};
  return html`<main class="job-view">
    <p class="crumbs"><a href=${href(['jobs'], {context})}>Jobs</a> / ${job.flow_id ? html`<a href=${flow_href(job.flow_id, context)}>flow ${job.flow_id}</a> / ` : ''}<bdi>${line(name)}</bdi></p>
    <div class="title"><h1><${Their} text=${job.name || name} most=${160}/></h1><${State} of=${job_state(shown)}/><${Actions} job=${shown} key_=${name} context=${context} rights=${rights} load=${again}/></div>
    <p class="facts quiet"><span><${Their} text=${job.script_type}/></span><span>caller ${job.caller_id}</span>${job.attempt ? html`<span>attempt ${job.attempt}</span>` : ''}${job.runner_id ? html`<span>agent ${job.runner_id}</span>` : ''}
      ${timed.waited && html`<span>waited ${timed.waited}</span>`}${timed.took && html`<span>${ended ? 'took' : 'runs for'} ${timed.took}</span>`}<span>${ended ? html`ended <${Ago} at=${job.ended_ms} now=${now}/>` : html`created <${Ago} at=${number_of(job.created_at) * 1000} now=${now}/>`}</span></p>
    ${stream.gone && html`<${Problem} error=${{message: stream.gone}}/>`}
    ${job.problems && html`<${Problem} error=${{message: `its record does not fit: ${list_of(job.problems).map((each) => text_of(each)).join('; ')}`}}/>`}
    <${Guard}>${shape !== 'done' && !wrong && (why.value ? html`<section class=${`card explain ${shape}`} aria-label="why"><${Explained} why=${why.value}/>
      ${waits.map((each) => html`<p>Approve <bdi>${line(each, 80)}</bdi>:</p><${Answer} key=${each} approve=${async (comment) => { await rpc('job.approve', {id: name, context_id: context, name: each, comment}); await again(); }} reject=${async (comment) => { await rpc('job.reject', {id: name, context_id: context, name: each, comment}); await again(); }}/>`)}</section>` : html`<${Problem} error=${why.error}/>`)}<//>
    <${Guard}>${wrong && html`<${Wrong} job=${job} why=${why.value}/>`}<//>
    ${Object.keys(object_of(job.result)).length > 0 && html`<${Card} title="Result"><${Pairs} of=${job.result}/><//>`}
    <${Card} title="Log"><${LogView} log=${stream.log} ended=${ended}/><//>
    <${Artifacts} of=${job.artifacts} id=${text_of(job.key).replace('job:', '')}/>
    <${Dropped} of=${job.artifacts_dropped}/>
    <div class="columns wide"><div>
      ${history.value?.length > 0 && html`<${Section} title="Attempts" note=${counted(Math.max(number_of(job.attempt), 1), 'attempt')}><${History} moments=${history.value}/><//>`}
      ${job.script && html`<${Section} title="Script" note=${bytes(new Blob([text_of(job.script)]).size)} open=${shown.status !== 'error'}><${Script} script=${job.script} open=${true}/><${Copy} text=${text_of(job.script)}/><//>`}
    </div><div>
      ${job.usage && html`<${Section} title="Usage"><${Usage} of=${job.usage}/><//>`}
      <${Section} title="Sandbox" note=${layers.length ? counted(layers.length, 'layer') : 'not yet'}>${layers.length > 0 ? html`<p class="layers" aria-label="layers in force">${layers.map((each) => html`<span class="tag">${line(each, 40)}</span> `)}</p>` : html`<p class="empty">No run yet.</p>`}
        <${Policy} asked=${job.policy} granted=${job.receipt?.granted} lowered=${job.receipt?.lowered}/><//>
      ${job.receipt && html`<${Section} title="Receipt" open=${false} note=${job.receipt.signature ? 'signed' : 'not signed'}><${Value} of=${job.receipt}/><//>`}
      <${Section} title="Record" open=${false}><${Pairs} of=${Object.fromEntries(['key', 'timeout', 'retries', 'env_vars', 'prerequisites', 'dependends', 'inputs', 'priority', 'concurrency_key', 'concurrency_limit', 'idempotency_key', 'queue_timeout_ms', 'notify', 'deliveries', 'epoch'].map((each) => [each, job[each]]))}/>
        <${Pairs} of=${{made: moment(number_of(job.created_at) * 1000), queued: moment(job.queued_ms), started: moment(job.started_ms), ended: moment(job.ended_ms)}}/><//>
    </div></div>
  </main>`;
}

const SIZES = ['memory', 'disk', 'file', 'output.keep'], TIMES = ['cpu', 'wall', 'warm.idle'];
function policy_text(name, value) {
  if (value === undefined || value === null || value === '') return '\u2013';
  if (Array.isArray(value)) return value.length ? value.map((each) => line(each, 120)).join(', ') : 'none';
  if (typeof value === 'number' && SIZES.includes(name)) return bytes(value);
  if (typeof value === 'number' && TIMES.includes(name)) return span(value);
  return line(value, 200);
}
// Returns the fields of a policy with flat names: "fs": {"read": [..]} becomes fs.read.
export function policy_fields(policy, prefix = '') {
  return Object.entries(policy).flatMap(([name, value]) => (value && typeof value === 'object' && !Array.isArray(value) ? policy_fields(value, `${prefix}${name}.`) : [[prefix + name, value]]));
}
// Shows the requested and the granted policy, and marks fields that a ceiling has reduced.
function Policy({asked, granted, lowered}) {
  const requested = new Map(policy_fields(object_of(asked))), given = new Map(Object.entries(object_of(granted)));
  const less = new Set(list_of(lowered).map((each) => text_of(each)));
  const names = [...new Set([...requested.keys(), ...given.keys(), ...less])].sort();
  if (!granted && requested.size === 0) return html`<p class="quiet">It requested no more than its profile grants.</p>`;
  return html`<h3>Policy</h3><table class="policy"><thead><tr><th>field</th><th>requested</th><th>granted</th></tr></thead><tbody>${names.map((name) => html`<tr key=${name}><td><${Their} text=${name} most=${60}/></td><td><bdi>${policy_text(name, requested.get(name))}</bdi></td>
    <td>${!granted ? html`<span class="quiet">not yet</span>` : html`<bdi>${given.has(name) ? policy_text(name, given.get(name)) : less.has(name) ? 'none' : '\u2013'}</bdi>`}${less.has(name) ? html` <span class="tag">reduced by the ceiling</span>` : ''}</td></tr>`)}</tbody></table>
    <p class="quiet">${requested.size === 0 ? 'It requested no more than its profile grants. ' : ''}Unlisted permissions are not granted; unlisted time is limited only by its timeout.</p>`;
}

function Usage({of}) {
  of = object_of(of);
  const ms = (us) => span(number_of(us) / 1000);
  const shown = {wall: ms(of.wall_us), 'cpu user': ms(of.user_us), 'cpu system': ms(of.system_us), 'memory peak': of.memory_peak_bytes ? bytes(of.memory_peak_bytes) : 'not measured',
    'processes peak': of.pids_peak, stdout: bytes(of.stdout_bytes), stderr: bytes(of.stderr_bytes)};
  return html`<${Pairs} of=${shown}/>`;
}
