// States of jobs, flows and nodes as [shape, word]: `shape` is a class of style.css and a drawing of ui.js.
import {entry_of, line} from './text.js';

// Ends with status `error` that are not failures: the job was cancelled, or its flow has skipped it.
const NO_FAILURES = {cancelled: 'cancelled', skipped: 'skipped', not_needed: 'not needed'};
export const has_failed = (job) => job.status === 'error' && entry_of(NO_FAILURES, job.detail) === undefined;
// Returns whether the flow of a job has decided not to run it.
export const left_out = (job) => Boolean(job.flow_id) && job.status === 'error' && ['skipped', 'not_needed'].includes(job.detail);
export function job_state(job) {
  const detail = job.detail || '';
  if (job.status === 'finished') return ['done', 'finished'];
  if (job.status === 'error') return !has_failed(job) ? ['cancelled', NO_FAILURES[detail]] : ['failed', detail ? `failed: ${line(detail, 24)}` : 'failed'];
  if (job.status === 'started') return ['running', detail === 'unkillable' ? 'unkillable' : 'running'];
  if (job.status === 'waiting_for_prerequisites') return ['waiting', detail === 'dependencies' ? 'waits for jobs' : 'waits'];
  const words = {created: ['planned', 'created'], planned: ['planned', 'planned'], delayed: ['waiting', 'delayed'],
    retry_wait: ['waiting', 'retries soon'], held: ['waiting', 'held']};
  return entry_of(words, detail) ?? ['queued', 'queued'];
}
export function flow_state(flow) {
  const detail = typeof flow.detail === 'string' ? flow.detail : '';
  if (flow.retired) return ['planned', 'retired'];
  if (flow.status === 'finished') return ['done', detail && detail !== 'ok' ? `finished ${line(detail, 20)}` : 'finished'];
  if (flow.status === 'error') return detail.startsWith('cancel') ? ['cancelled', 'cancelled'] : ['failed', `failed${detail && detail !== 'failed' ? `: ${line(detail, 20)}` : ''}`];
  if (detail === 'paused') return ['waiting', 'paused'];
  // The states of nodes are known only in the view of one flow, so one word is used there and in lists.
  if (flow.status === 'started') return ['running', ['', 'running', 'waiting', 'started', 'idle'].includes(detail) ? 'under way' : line(detail, 20)];
  return ['planned', line(detail, 20) || 'new'];
}
// Details of a node that failed although its status is `completed`: its error node took over, or `on_error: continue`.
const FAILED_BUT_COMPLETED = ['handled', 'continued'];
export function node_state(node) {
  const words = {pending: ['planned', 'pending'], ready: ['queued', 'ready'], dispatched: ['queued', 'queued'], running: ['running', 'running'],
    completed: ['done', 'completed'], failed: ['failed', 'failed'], cancelled: ['cancelled', 'cancelled']};
  const [shape, word] = entry_of(words, node.node_status) ?? ['planned', line(node.node_status, 16)];
  if (node.node_status === 'completed' && FAILED_BUT_COMPLETED.includes(node.detail)) return ['handled', node.detail];
  if (node.node_status === 'cancelled' && node.detail && node.detail !== 'cancelled') return ['cancelled', entry_of(NO_FAILURES, node.detail) ?? line(node.detail, 16)];
  if (['approval', 'pause', 'gate'].includes(node.detail)) return ['asks', node.detail === 'pause' ? 'paused' : node.detail === 'gate' ? 'waits at gate' : 'needs approval'];
  if (['wait', 'delayed', 'retry_wait', 'flow'].includes(node.detail)) return ['waiting', {wait: 'waits', delayed: 'delayed', retry_wait: 'retries soon', flow: 'in a flow'}[node.detail]];
  return [shape, word];
}
