// The view of one job: its state and the reason, log, error with the line of the script, result, and actions.
import {html, useCall, useEffect, useMemo, useState, RelativeTime, CopyButton, Action, Glyph, Problem, Section, TextWithCommands, State, UntrustedText, flow_href, navigate, has_failed, href, job_href, get_job_state, useNow, useTitle, Card, ErrorBoundary} from './ui.js';
import {open_event_stream, rpc} from './api.js';
import {Artifacts} from './artifacts.js';
import {LogLines} from './lines.js';
import {LogView} from './log.js';
import {format_bytes, format_count, format_counted, get_elapsed_ms, get_entry, to_line, to_list, format_time, to_number, to_object, escape_hidden, format_duration, to_text} from './text.js';

const REDRAW_INTERVAL_MS = 200;
// Subscribes to the log and the state of a job. Returns {log, state, end_reason}. end_reason is the message of the server
// if it has ended the stream.
function useJobStream(key, context) {
  const log = useMemo(() => new LogLines(), [key, context]);
  const [stream_state, set_stream_state] = useState({state: null, end_reason: ''});
  useEffect(() => {
    set_stream_state({state: null, end_reason: ''});
    let timer = 0, state = null;
    // The log is drawn at most once per REDRAW_INTERVAL_MS. The other parts of the view are drawn when the state changes.
    const schedule_redraw = () => { timer ||= setTimeout(() => { timer = 0; log.notify(); set_stream_state((previous) => (previous.state === state ? previous : {...previous, state})); }, REDRAW_INTERVAL_MS); };
    const close_stream = open_event_stream(new URLSearchParams({context, job: key.replace('job:', '')}).toString(), (event, data) => {
      if (event === 'log') log.add_piece(data);
      if (event === 'job') state = data;
      schedule_redraw();
    }, (reason) => set_stream_state((previous) => ({...previous, end_reason: reason})));
    return () => { close_stream(); clearTimeout(timer); };
  }, [log]);
  return {log, ...stream_state};
}

const MAX_LINES = 2000, MAX_LINE_CHARS = 2000;  // Limits of the shown script. The copy button copies the whole script.
// Shows the lines of a script around the failed line.
function Script({script, marked_line, is_open}) {
  const lines = useMemo(() => escape_hidden(script).replace(/\n$/, '').split('\n'), [script]);
  const [is_expanded, expand] = useState(lines.length <= (is_open ? 400 : 14));
  const start = is_expanded || !marked_line ? 0 : Math.max(0, marked_line - 5), end = Math.min(lines.length, is_expanded ? MAX_LINES : marked_line ? marked_line + 4 : 40);
  return html`<div class="code" tabindex="0" role="region" aria-label="script"><table><tbody>${lines.slice(start, end).map((text, i) => {
    const number = start + i + 1;
    return html`<tr class=${number === marked_line ? 'marked' : ''}><td class="number">${number}</td><td class="sign">${number === marked_line ? '\u25b6' : ''}</td><td><bdi dir="ltr">${(text.length > MAX_LINE_CHARS ? `${text.slice(0, MAX_LINE_CHARS)}\u2026` : text) || ' '}</bdi></td></tr>`;
  })}</tbody></table></div>${is_expanded && end < lines.length ? html`<p class="quiet">The first ${format_count(end)} of ${format_counted(lines.length, 'line')}.</p>` : end - start < lines.length && html`<button type="button" class="small" onClick=${() => expand(true)}>all ${format_counted(lines.length, 'line')}</button>`}`;
}

const MAX_INITIAL_CHARS = 4000;  // Number of characters of a value that are shown before the user expands it.
export function Value({value}) {
  const text = to_text(value, 1);
  const [is_expanded, expand] = useState(false);
  const is_truncated = text.length > MAX_INITIAL_CHARS && !is_expanded;
  const is_scrollable = text.length > 1500 || text.split('\n').length > 18;  // A scrollable text can have the focus, so that keys can scroll it.
  return html`<pre class="value" tabindex=${is_scrollable ? 0 : null}><bdi dir="ltr">${escape_hidden(is_truncated ? text.slice(0, MAX_INITIAL_CHARS) : text)}</bdi></pre>${is_truncated && html`<button type="button" class="small" onClick=${() => expand(true)}>all ${format_bytes(text.length)}</button>`}`;
}
const render_value = (value) => {
  if (value !== null && typeof value === 'object') return html`<${Value} value=${value}/>`;
  const text = to_text(value);
  return text.length > MAX_INITIAL_CHARS ? html`<${Value} value=${text}/>` : html`<bdi>${escape_hidden(text)}</bdi>`;
};
// Shows names and values of untrusted data as text.
export const Pairs = ({fields}) => html`<dl class="pairs">${Object.entries(to_object(fields)).filter(([, value]) => value !== '' && value != null).map(([name, value]) => html`<dt><${UntrustedText} text=${name}/></dt><dd>${render_value(value)}</dd>`)}</dl>`;

const KIND_LABELS = {scheduled: 'submitted', claimed: 'taken', parked: 'parked', queued: 'queued', released: 'given back', expired: 'lost: its lease ran out', retry: 'failed',
  completed: 'finished', failed: 'failed', cancelled: 'cancelled', dead_lettered: 'dead letter', requeued: 'retry requested', planned: 'planned by its flow', replanned: 'planned again', restored: 'restored'};
function History({entries}) {
  const start_ms = entries[0]?.at_ms;
  return html`<table><thead><tr><th>when</th><th class="num">after</th><th>what</th><th class="num">attempt</th><th class="num">agent</th></tr></thead><tbody>${entries.map((entry) => html`<tr><td><time>${format_time(entry.at_ms)}</time></td><td class="num">${format_duration(get_elapsed_ms(start_ms, entry.at_ms))}</td>
    <td>${get_entry(KIND_LABELS, entry.kind) ?? to_line(entry.kind, 40)}${entry.detail && entry.kind !== 'completed' ? html`: <${UntrustedText} text=${entry.detail}/>` : ''}${entry.due_ms ? `, again ${format_time(entry.due_ms)}` : ''}</td><td class="num">${entry.attempt ?? ''}</td><td class="num">${entry.runner_id ?? ''}</td></tr>`)}</tbody></table>`;
}

// Fields of a job that the button "Change and run" copies into the new job.
export const COPIED_FIELDS = ['script', 'script_type', 'name', 'timeout', 'retries', 'env_vars', 'args', 'priority', 'queue_timeout_ms', 'concurrency_key', 'concurrency_limit', 'policy', 'notify'];
// Returns what the button cannot copy, because a job's record has only the sizes of these contents.
export const list_uncopied = (job) => [job.stdin ? 'its standard input' : '', ...Object.keys(to_object(job.files)).map((name) => `the file ${to_line(name, 60)}`)].filter(Boolean);

function can_steer(job, rights) {
  return rights && (rights.steer_all || (rights.steer_own && job.caller_id === rights.actor));
}

function Actions({job, job_id, context, rights, load}) {
  const is_active = !['finished', 'error'].includes(job.status);
  const can_retry = job.status === 'error' && job.detail !== 'cancelled' && !job.flow_id;
  const make_call = (method) => async () => { await rpc(method, {id: job_id, context_id: context}); await load(); };
  const may_control = can_steer(job, rights);
  const can_restart = may_control && !job.flow_id && !job.effect_of && !job.supervisor_url;
  // The server restarts the stored record as its original caller, not as the user of the page.
  const restart = async () => navigate(job_href((await rpc('job.restart', {id: job_id, context_id: context})).key, context));
  return html`<div class="actions">
    ${may_control && can_retry && html`<${Action} kind="first" shortcut_key="r" title="as its next attempt (r)" run=${make_call('job.retry')}>Run again<//>`}
    ${can_restart && !is_active && !can_retry && html`<${Action} kind="first" shortcut_key="r" title=${`unchanged, as a new job of actor ${job.caller_id} (r)`} run=${restart}>Run again<//>`}
    ${can_restart && can_retry && html`<${Action} run=${restart} title=${`unchanged, as a new job of actor ${job.caller_id}`}>Run a copy<//>`}
    ${may_control && is_active && job.detail === 'created' && html`<${Action} kind="first" run=${make_call('job.start')}>Start<//>`}
    ${may_control && is_active && html`<${Action} shortcut_key="x" title="cancels it permanently (x)" run=${make_call('job.cancel')}>Cancel<//>`}
    ${rights?.create && job.script && html`<a class="button" href=${href(['try'], {context, of: job_id})}>Change and run</a>`}
  </div>`;
}

// Shows the controls that answer an approval or a pause.
export function Answer({approve, reject, is_pause = false}) {
  const [comment, set_comment] = useState('');
  return html`<div class="answer"><label><span class="hidden">why</span><input value=${comment} placeholder="reason (stored with actor and time)" maxlength="4096" onInput=${(e) => set_comment(e.target.value)}/></label>
    <${Action} kind="first" run=${() => approve(comment)}>${is_pause ? 'Resume' : 'Approve'}<//>${reject && html`<${Action} run=${() => reject(comment)}>Reject<//>`}</div>`;
}

// Shows the reason of a state. If the reason contains shown_text, which the view already shows, only the rest is shown.
export function Explanation({explanation, shown_text = ''}) {
  return html`<div class="why">${shown_text && to_text(explanation.reason).includes(shown_text) ? '' : html`<p><bdi>${escape_hidden(explanation.reason)}</bdi></p>`}${explanation.next && html`<p class="quiet"><b>Next:</b> <${TextWithCommands} text=${explanation.next}/></p>`}
    ${explanation.evidence?.length > 0 && html`<details><summary class="quiet">evidence</summary><ul>${[explanation.evidence].flat().map((entry) => html`<li><bdi>${escape_hidden(entry)}</bdi></li>`)}</ul></details>`}</div>`;
}

function JobError({job, explanation}) {
  const {traceback, line: line_number, ...details} = to_object(job.error_info);
  const marked_line = Number.isSafeInteger(line_number) && line_number > 0 ? line_number : 0;
  const other_details = Object.fromEntries(Object.entries(details).filter(([, value]) => !to_text(job.error).includes(to_text(value))));
  const error = to_text(job.error || job.detail), is_long = error.length > MAX_INITIAL_CHARS / 4;
  return html`<section class="card wrong" aria-label="error"><h2><${Glyph} shape="failed"/> <bdi>${is_long ? to_line(error, MAX_INITIAL_CHARS / 4) : escape_hidden(error)}</bdi></h2>
    ${is_long && html`<${Section} title="All of it" open=${false} note=${format_bytes(error.length)}><${Value} value=${error}/><//>`}
    ${explanation && html`<${Explanation} explanation=${explanation} shown_text=${job.error}/>`}
    ${marked_line && job.script ? html`<${Script} script=${job.script} marked_line=${marked_line} is_open=${false}/>` : ''}
    ${traceback && html`<${Section} title="Traceback" open=${!marked_line}><${Value} value=${traceback}/><//>`}
    ${Object.keys(other_details).length > 0 && html`<${Pairs} fields=${other_details}/>`}</section>`;
}

function DroppedArtifacts({artifacts}) {
  const files = to_list(artifacts).map(to_object);
  if (files.length === 0) return null;
  return html`<${Card} title="Files not kept"><table><thead><tr><th>name</th><th>reason</th><th class="num">limit</th><th>setting</th></tr></thead><tbody>${files.map((artifact) => html`<tr><td><${UntrustedText} text=${artifact.name || 'the artifacts folder'}/></td><td>${to_line(artifact.reason, 40)}</td><td class="num">${to_line(artifact.limit, 40)}</td><td><code>${to_line(artifact.setting, 80)}</code></td></tr>`)}</tbody></table><//>`;
}

function list_approvals(job) {
  return to_list(job.prerequisites).map((entry) => to_text(entry)).filter((entry) => entry.startsWith('approval:')).map((entry) => entry.slice(9));
}

export function JobView({name, context, rights}) {
  const key = `job:${name}`;
  const stream = useJobStream(key, context);
  const version = stream.state ? `${stream.state.status} ${stream.state.detail} ${stream.state.attempt} ${stream.state.ended_ms}` : '';
  const {value: job, error, load} = useCall('job.get', {id: name, context_id: context}, [version]);
  const explanation = useCall('job.explain', {id: name, context_id: context}, [version]);
  const history = useCall('job.history', {id: name, context_id: context}, [version]);
  const now_ms = useNow();
  const current_job = job && {...job, ...(stream.state && (stream.state.ended_ms || !job.ended_ms) ? {status: stream.state.status, detail: stream.state.detail, error: stream.state.error || job.error} : {})};
  useTitle(job ? job.name || name : name);
  if (!job) return html`<main><p><a href=${href(['jobs'], {context})}>Jobs</a> / <bdi>${to_line(name)}</bdi></p>${error ? html`<${Problem} error=${error}/>` : html`<p class="empty">Loading \u2026</p>`}</main>`;
  const has_ended = ['finished', 'error'].includes(current_job.status);
  const [shape] = get_job_state(current_job);
  const layers = to_text(job.layers).split(' ').filter(Boolean);
  const approvals = current_job.status === 'waiting_for_prerequisites' && !job.flow_id && can_steer(job, rights) ? list_approvals(job) : [];
  const reload = async () => { await load(); explanation.load(); };
  const is_failed = has_failed(current_job);
  const durations = {waited: job.started_ms && job.queued_ms ? format_duration(get_elapsed_ms(Math.max(to_number(job.queued_ms), to_number(job.run_at_ms)), job.started_ms)) : job.queued_ms && !has_ended ? format_duration(get_elapsed_ms(job.queued_ms, now_ms)) : '',
    took: job.started_ms && current_job.status !== 'dispatched' ? format_duration(get_elapsed_ms(job.started_ms, has_ended ? job.ended_ms : now_ms)) : ''};
  return html`<main class="job-view">
    <p class="crumbs"><a href=${href(['jobs'], {context})}>Jobs</a> / ${job.flow_id ? html`<a href=${flow_href(job.flow_id, context)}>flow ${job.flow_id}</a> / ` : ''}<bdi>${to_line(name)}</bdi></p>
    <div class="title"><h1><${UntrustedText} text=${job.name || name} max_chars=${160}/></h1><${State} state=${get_job_state(current_job)}/><${Actions} job=${current_job} job_id=${name} context=${context} rights=${rights} load=${reload}/></div>
    <p class="facts quiet"><span><${UntrustedText} text=${job.script_type}/></span><span>caller ${job.caller_id}</span>${job.attempt ? html`<span>attempt ${job.attempt}</span>` : ''}${job.runner_id ? html`<span>agent ${job.runner_id}</span>` : ''}
      ${durations.waited && html`<span>waited ${durations.waited}</span>`}${durations.took && html`<span>${has_ended ? 'took' : 'runs for'} ${durations.took}</span>`}<span>${has_ended ? html`ended <${RelativeTime} at_ms=${job.ended_ms} now_ms=${now_ms}/>` : html`created <${RelativeTime} at_ms=${to_number(job.created_at) * 1000} now_ms=${now_ms}/>`}</span></p>
    ${stream.end_reason && html`<${Problem} error=${{message: stream.end_reason}}/>`}
    ${job.problems && html`<${Problem} error=${{message: `its record does not fit: ${to_list(job.problems).map((entry) => to_text(entry)).join('; ')}`}}/>`}
    <${ErrorBoundary}>${shape !== 'done' && !is_failed && (explanation.value ? html`<section class=${`card explain ${shape}`} aria-label="why"><${Explanation} explanation=${explanation.value}/>
      ${approvals.map((entry) => html`<p>Approve <bdi>${to_line(entry, 80)}</bdi>:</p><${Answer} key=${entry} approve=${async (comment) => { await rpc('job.approve', {id: name, context_id: context, name: entry, comment}); await reload(); }} reject=${async (comment) => { await rpc('job.reject', {id: name, context_id: context, name: entry, comment}); await reload(); }}/>`)}</section>` : html`<${Problem} error=${explanation.error}/>`)}<//>
    <${ErrorBoundary}>${is_failed && html`<${JobError} job=${job} explanation=${explanation.value}/>`}<//>
    ${Object.keys(to_object(job.result)).length > 0 && html`<${Card} title="Result"><${Pairs} fields=${job.result}/><//>`}
    <${Card} title="Log"><${LogView} log=${stream.log} has_ended=${has_ended}/><//>
    <${Artifacts} artifacts=${job.artifacts} id=${to_text(job.key).replace('job:', '')} context=${context} version=${version}/>
    <${DroppedArtifacts} artifacts=${job.artifacts_dropped}/>
    <div class="columns wide"><div>
      ${history.value?.length > 0 && html`<${Section} title="Attempts" note=${format_counted(Math.max(to_number(job.attempt), 1), 'attempt')}><${History} entries=${history.value}/><//>`}
      ${job.script && html`<${Section} title="Script" note=${format_bytes(new Blob([to_text(job.script)]).size)} open=${current_job.status !== 'error'}><${Script} script=${job.script} is_open=${true}/><${CopyButton} text=${to_text(job.script)}/><//>`}
    </div><div>
      ${job.usage && html`<${Section} title="Usage"><${Usage} usage=${job.usage}/><//>`}
      <${Section} title="Sandbox" note=${layers.length ? format_counted(layers.length, 'layer') : 'not yet'}>${layers.length > 0 ? html`<p class="layers" aria-label="layers in force">${layers.map((entry) => html`<span class="tag">${to_line(entry, 40)}</span> `)}</p>` : html`<p class="empty">No run yet.</p>`}
        <${Policy} requested=${job.policy} granted=${job.receipt?.granted} lowered=${job.receipt?.lowered}/><//>
      ${job.receipt && html`<${Section} title="Receipt" open=${false} note=${job.receipt.signature ? 'signed' : 'not signed'}><${Value} value=${job.receipt}/><//>`}
      <${Section} title="Record" open=${false}><${Pairs} fields=${Object.fromEntries(['key', 'timeout', 'retries', 'env_vars', 'args', 'stdin', 'files', 'prerequisites', 'dependends', 'inputs', 'priority', 'concurrency_key', 'concurrency_limit', 'idempotency_key', 'queue_timeout_ms', 'notify', 'deliveries', 'epoch'].map((entry) => [entry, job[entry]]))}/>
        <${Pairs} fields=${{made: format_time(to_number(job.created_at) * 1000), queued: format_time(job.queued_ms), started: format_time(job.started_ms), ended: format_time(job.ended_ms)}}/><//>
    </div></div>
  </main>`;
}

const BYTE_FIELDS = ['memory', 'disk', 'file', 'output.keep'], DURATION_FIELDS = ['cpu', 'wall', 'warm.idle'];
function format_policy_value(name, value) {
  if (value === undefined || value === null || value === '') return '\u2013';
  if (Array.isArray(value)) return value.length ? value.map((entry) => to_line(entry, 120)).join(', ') : 'none';
  if (typeof value === 'number' && BYTE_FIELDS.includes(name)) return format_bytes(value);
  if (typeof value === 'number' && DURATION_FIELDS.includes(name)) return format_duration(value);
  return to_line(value, 200);
}
// Returns the fields of a policy with flat names: "fs": {"read": [..]} becomes fs.read.
export function flatten_policy(policy, prefix = '') {
  return Object.entries(policy).flatMap(([name, value]) => (value && typeof value === 'object' && !Array.isArray(value) ? flatten_policy(value, `${prefix}${name}.`) : [[prefix + name, value]]));
}
// Shows the requested and the granted policy, and marks fields that a ceiling has reduced.
function Policy({requested, granted, lowered}) {
  const requested_fields = new Map(flatten_policy(to_object(requested))), granted_fields = new Map(Object.entries(to_object(granted)));
  const lowered_names = new Set(to_list(lowered).map((entry) => to_text(entry)));
  const names = [...new Set([...requested_fields.keys(), ...granted_fields.keys(), ...lowered_names])].sort();
  if (!granted && requested_fields.size === 0) return html`<p class="quiet">It requested no more than its profile grants.</p>`;
  return html`<h3>Policy</h3><table class="policy"><thead><tr><th>field</th><th>requested</th><th>granted</th></tr></thead><tbody>${names.map((name) => html`<tr key=${name}><td><${UntrustedText} text=${name} max_chars=${60}/></td><td><bdi>${format_policy_value(name, requested_fields.get(name))}</bdi></td>
    <td>${!granted ? html`<span class="quiet">not yet</span>` : html`<bdi>${granted_fields.has(name) ? format_policy_value(name, granted_fields.get(name)) : lowered_names.has(name) ? 'none' : '\u2013'}</bdi>`}${lowered_names.has(name) ? html` <span class="tag">reduced by the ceiling</span>` : ''}</td></tr>`)}</tbody></table>
    <p class="quiet">${requested_fields.size === 0 ? 'It requested no more than its profile grants. ' : ''}Unlisted permissions are not granted; unlisted time is limited only by its timeout.</p>`;
}

function Usage({usage}) {
  usage = to_object(usage);
  const format_us = (us) => format_duration(to_number(us) / 1000);
  const fields = {wall: format_us(usage.wall_us), 'cpu user': format_us(usage.user_us), 'cpu system': format_us(usage.system_us), 'memory peak': usage.memory_peak_bytes ? format_bytes(usage.memory_peak_bytes) : 'not measured',
    'processes peak': usage.pids_peak, stdout: format_bytes(usage.stdout_bytes), stderr: format_bytes(usage.stderr_bytes)};
  return html`<${Pairs} fields=${fields}/>`;
}
