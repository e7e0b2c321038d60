// The view of all approvals and pauses that wait for an answer.
import {html, useState, Glyph, Problem, UntrustedText, flow_href, job_href, get_node_state, useCall, useNow, useTitle, WaitingTime} from './ui.js';
import {rpc} from './api.js';
import {Answer, Value} from './job.js';
import {instance_href} from './workflows.js';
import {format_counted, to_line, format_time, to_object, escape_hidden, to_text} from './text.js';

// Shows states and results of the preceding nodes, as a basis for the decision.
function Evidence({question, context}) {
  const {value} = useCall('flow.result', {id: question.flow, context_id: context});
  const dag = useCall('flow.dag', {id: question.flow, context_id: context});
  const node = dag.value?.nodes.find((entry) => entry.name === question.node);
  const predecessors = (dag.value?.nodes ?? []).filter((entry) => node?.depends.includes(entry.id));
  return html`<details><summary class="quiet">previous nodes</summary>${predecessors.map((entry) => html`<p><${Glyph} shape=${get_node_state(entry)[0]}/> <a href=${job_href(entry.job, context)}><${UntrustedText} text=${entry.name}/></a> ${get_node_state(entry)[1]} ${entry.error && html`<bdi>${to_line(entry.error)}</bdi>`}</p>`)}
    ${value && Object.keys(to_object(value.result)).length > 0 && html`<${Value} value=${value.result}/>`}</details>`;
}

export function Approvals({questions, context, load}) {
  useTitle('Approvals');
  const now_ms = useNow();
  const [message, set_message] = useState('');
  const {value, error} = questions;
  const open_questions = value?.questions ?? [];
  const own_questions = open_questions.filter((entry) => entry.answers), other_questions = open_questions.filter((entry) => !entry.answers);
  const make_answer = (question, verb) => async (comment) => {
    const is_in_flow = Boolean(question.flow);
    if (question.workflow) {
      await rpc(`workflow.${verb}`, {context_id: context, workflow: question.workflow, ...(question.key === null ? {} : {key: question.key}), intent: question.name, ...(comment ? {comment} : {})});
      set_message(`${to_line(question.asks, 60)}: ${verb === 'approve' ? 'approved' : 'rejected'}`);
      return load();
    }
    const params = {context_id: context, id: is_in_flow ? question.flow : question.job.replace('job:', ''), ...(comment ? {comment} : {})};
    if (question.pause) await rpc('flow.resume', {...params, node: question.name});
    else await rpc(`${is_in_flow ? 'flow' : 'job'}.${verb}`, {...params, name: question.name});
    set_message(`${to_line(question.name, 60)}: ${question.pause ? 'resumed' : verb === 'approve' ? 'approved' : 'rejected'}`);
    return load();
  };
  const render_question = (entry) => html`<section class="card question" key=${`${entry.job ?? entry.workflow} ${entry.name}`} aria-label=${to_line(entry.name, 60)}><div class="title"><h2><${Glyph} shape="asks"/> <${UntrustedText} text=${entry.asks || entry.name} max_chars=${300}/></h2></div>
    <p class="facts quiet"><span>${entry.workflow ? html`<a href=${instance_href(entry.workflow, entry.key, context)}><${UntrustedText} text=${entry.workflow} max_chars=${80}/> <${UntrustedText} text=${to_text(entry.key)} max_chars=${60}/></a>` : entry.flow ? html`<a href=${flow_href(entry.flow, context, {node: entry.node})}><${UntrustedText} text=${entry.flow_name || 'flow'}/> ${entry.flow}</a>` : html`<a href=${job_href(entry.job, context)}><${UntrustedText} text=${entry.node || entry.job}/></a>`}</span><span>${entry.pause ? 'pause' : 'approval'} <bdi>${to_line(entry.workflow ? entry.name.slice(0, 12) : entry.name, 60)}</bdi></span><span><${WaitingTime} since_ms=${entry.since_ms} now_ms=${now_ms}/></span>
      ${entry.until_ms > 0 && html`<span>fails at ${format_time(entry.until_ms)}</span>`}<span>${entry.approvers.length ? `approvers: ${entry.approvers.join(', ')}` : ''}</span></p>
    ${entry.flow > 0 && html`<${Evidence} question=${entry} context=${context}/>`}
    ${entry.answers && html`<${Answer} is_pause=${entry.pause} approve=${make_answer(entry, 'approve')} reject=${entry.pause ? null : make_answer(entry, 'reject')}/>`}</section>`;
  return html`<main class="approvals"><h1>Approvals</h1><p role="status">${escape_hidden(message)}</p><${Problem} error=${error}/>
    ${value && open_questions.length === 0 && html`<p class="empty">Nothing waits for approval.</p>`}
    ${own_questions.map(render_question)}
    ${other_questions.length > 0 && html`<h2>${format_counted(other_questions.length, 'other question')}</h2>${other_questions.map(render_question)}`}</main>`;
}
