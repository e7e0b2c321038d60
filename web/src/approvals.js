// The view of all approvals and pauses that wait for an answer.
import {html, useEffect, useState, Glyph, Problem, Their, flow_href, job_href, node_state, useCall, useNow, useTitle, Waited} from './ui.js';
import {rpc} from './api.js';
import {Answer, Value} from './job.js';
import {instance_href} from './workflows.js';
import {counted, line, moment, object_of, plain, text_of} from './text.js';

// Shows states and results of the preceding nodes, as a basis for the decision.
function Evidence({question, context}) {
  const {value} = useCall('flow.result', {id: question.flow, context_id: context});
  const dag = useCall('flow.dag', {id: question.flow, context_id: context});
  const node = dag.value?.nodes.find((each) => each.name === question.node);
  const before = (dag.value?.nodes ?? []).filter((each) => node?.depends.includes(each.id));
  return html`<details><summary class="quiet">previous nodes</summary>${before.map((each) => html`<p><${Glyph} shape=${node_state(each)[0]}/> <a href=${job_href(each.job, context)}><${Their} text=${each.name}/></a> ${node_state(each)[1]} ${each.error && html`<bdi>${line(each.error)}</bdi>`}</p>`)}
    ${value && Object.keys(object_of(value.result)).length > 0 && html`<${Value} of=${value.result}/>`}</details>`;
}

export function Approvals({questions, context, load}) {
  useTitle('Approvals');
  const now = useNow();
  const [said, set_said] = useState('');
  const {value, error} = questions;
  const all = value?.questions ?? [];
  const mine = all.filter((each) => each.answers), others = all.filter((each) => !each.answers);
  const say = (question, verb) => async (comment) => {
    const of_flow = Boolean(question.flow);
    if (question.workflow) {
      await rpc(`workflow.${verb}`, {context_id: context, workflow: question.workflow, ...(question.key === null ? {} : {key: question.key}), intent: question.name, ...(comment ? {comment} : {})});
      set_said(`${line(question.asks, 60)}: ${verb === 'approve' ? 'approved' : 'rejected'}`);
      return load();
    }
    const params = {context_id: context, id: of_flow ? question.flow : question.job.replace('job:', ''), ...(comment ? {comment} : {})};
    if (question.pause) await rpc('flow.resume', {...params, node: question.name});
    else await rpc(`${of_flow ? 'flow' : 'job'}.${verb}`, {...params, name: question.name});
    set_said(`${line(question.name, 60)}: ${question.pause ? 'resumed' : verb === 'approve' ? 'approved' : 'rejected'}`);
    return load();
  };
  const row = (each) => html`<section class="card question" key=${`${each.job ?? each.workflow} ${each.name}`} aria-label=${line(each.name, 60)}><div class="title"><h2><${Glyph} shape="asks"/> <${Their} text=${each.asks || each.name} most=${300}/></h2></div>
    <p class="facts quiet"><span>${each.workflow ? html`<a href=${instance_href(each.workflow, each.key, context)}><${Their} text=${each.workflow} most=${80}/> <${Their} text=${text_of(each.key)} most=${60}/></a>` : each.flow ? html`<a href=${flow_href(each.flow, context, {node: each.node})}><${Their} text=${each.flow_name || 'flow'}/> ${each.flow}</a>` : html`<a href=${job_href(each.job, context)}><${Their} text=${each.node || each.job}/></a>`}</span><span>${each.pause ? 'pause' : 'approval'} <bdi>${line(each.workflow ? each.name.slice(0, 12) : each.name, 60)}</bdi></span><span><${Waited} at=${each.since_ms} now=${now}/></span>
      ${each.until_ms > 0 && html`<span>fails at ${moment(each.until_ms)}</span>`}<span>${each.approvers.length ? `approvers: ${each.approvers.join(', ')}` : ''}</span></p>
    ${each.flow > 0 && html`<${Evidence} question=${each} context=${context}/>`}
    ${each.answers && html`<${Answer} pause=${each.pause} approve=${say(each, 'approve')} reject=${each.pause ? null : say(each, 'reject')}/>`}</section>`;
  return html`<main class="approvals"><h1>Approvals</h1><p role="status">${plain(said)}</p><${Problem} error=${error}/>
    ${value && all.length === 0 && html`<p class="empty">Nothing waits for approval.</p>`}
    ${mine.map(row)}
    ${others.length > 0 && html`<h2>${counted(others.length, 'other question')}</h2>${others.map(row)}`}</main>`;
}
