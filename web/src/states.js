// States of jobs, flows and nodes as [shape, word]: `shape` is a class of style.css and a drawing of ui.js.
import {get_entry, to_line} from './text.js';

// Details of jobs with status `error` that have not failed: the job was cancelled, or its flow has skipped it.
const NON_FAILURE_DETAILS = {cancelled: 'cancelled', skipped: 'skipped', not_needed: 'not needed'};
export const has_failed = (job) => job.status === 'error' && get_entry(NON_FAILURE_DETAILS, job.detail) === undefined;
// Returns whether the flow of a job has decided not to run it.
export const was_skipped = (job) => Boolean(job.flow_id) && job.status === 'error' && ['skipped', 'not_needed'].includes(job.detail);
export function get_job_state(job) {
  const detail = job.detail || '';
  if (job.status === 'finished') return ['done', 'finished'];
  if (job.status === 'error') return !has_failed(job) ? ['cancelled', NON_FAILURE_DETAILS[detail]] : ['failed', detail ? `failed: ${to_line(detail, 24)}` : 'failed'];
  if (job.status === 'started') return ['running', detail === 'unkillable' ? 'unkillable' : 'running'];
  if (job.status === 'waiting_for_prerequisites') return ['waiting', detail === 'dependencies' ? 'waits for jobs' : 'waits'];
  const words = {created: ['planned', 'created'], planned: ['planned', 'planned'], delayed: ['waiting', 'delayed'],
    retry_wait: ['waiting', 'retries soon'], held: ['waiting', 'held']};
  return get_entry(words, detail) ?? ['queued', 'queued'];
}
export function get_flow_state(flow) {
  const detail = typeof flow.detail === 'string' ? flow.detail : '';
  if (flow.retired) return ['planned', 'retired'];
  if (flow.status === 'finished') return ['done', detail && detail !== 'ok' ? `finished ${to_line(detail, 20)}` : 'finished'];
  if (flow.status === 'error') return detail.startsWith('cancel') ? ['cancelled', 'cancelled'] : ['failed', `failed${detail && detail !== 'failed' ? `: ${to_line(detail, 20)}` : ''}`];
  if (detail === 'paused') return ['waiting', 'paused'];
  // The states of nodes are known only in the view of one flow, so one word is used there and in lists.
  if (flow.status === 'started') return ['running', ['', 'running', 'waiting', 'started', 'idle'].includes(detail) ? 'under way' : to_line(detail, 20)];
  return ['planned', to_line(detail, 20) || 'new'];
}
// Details of a node that failed although its status is `completed`: its error node took over, or `on_error: continue`.
const FAILED_BUT_COMPLETED = ['handled', 'continued'];
export function get_node_state(node) {
  const words = {pending: ['planned', 'pending'], ready: ['queued', 'ready'], dispatched: ['queued', 'queued'], running: ['running', 'running'],
    completed: ['done', 'completed'], failed: ['failed', 'failed'], cancelled: ['cancelled', 'cancelled']};
  const [shape, word] = get_entry(words, node.node_status) ?? ['planned', to_line(node.node_status, 16)];
  if (node.node_status === 'completed' && FAILED_BUT_COMPLETED.includes(node.detail)) return ['handled', node.detail];
  if (node.node_status === 'cancelled' && node.detail && node.detail !== 'cancelled') return ['cancelled', get_entry(NON_FAILURE_DETAILS, node.detail) ?? to_line(node.detail, 16)];
  if (['approval', 'pause', 'gate'].includes(node.detail)) return ['asks', node.detail === 'pause' ? 'paused' : node.detail === 'gate' ? 'waits at gate' : 'needs approval'];
  if (['wait', 'delayed', 'retry_wait', 'flow'].includes(node.detail)) return ['waiting', {wait: 'waits', delayed: 'delayed', retry_wait: 'retries soon', flow: 'in a flow'}[node.detail]];
  return [shape, word];
}
