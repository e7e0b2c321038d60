// The view in which a user writes, checks and runs a script or a flow.
import {html, useEffect, useMemo, useRef, useState, Action, Glyph, Problem, flow_href, go, href, job_href, replace, useTitle} from './ui.js';
import {rpc} from './api.js';
import {useExamples} from './examples.js';
import {COPIED, Pairs} from './job.js';
import {hidden_in, line, list_of, plain, text_of, without_hidden} from './text.js';

const SCRIPT = `import time

for step in range(5):
    print("step", step)
    time.sleep(0.3)

result = {"steps": 5}
`;
const FLOW = `name: first-flow
jobs:
  measure:
    type: python
    script: |
      result = {"size": 42}
  ask:
    needs: [measure]
    approval: {comment: "The size is known: continue?"}
  report:
    needs: [ask]
    type: python
    script: |
      print("approved")
`;

const is_something = (value) => value != null && value !== '' && value !== 0 && !(typeof value === 'object' && Object.keys(value).length === 0);

export function Try({query, context, rights, view}) {
  useTitle('Try it');
  const flow = query.kind === 'flow';
  const types = [...new Set(['python', ...(view?.runners ?? []).filter((each) => each.state === 'live').flatMap((each) => each.executors)])];
  const [text, set_text] = useState(flow ? FLOW : SCRIPT);
  const [form, set_form] = useState({script_type: 'python', name: '', timeout: ''});
  const [maker, set_maker] = useState(0);  // caller of the copied job or flow; 0: not a copy
  const [kept, keep] = useState({});  // fields of the copied job that have no input field
  const examples = useExamples();
  const [problems, set_problems] = useState(null);
  const area = useRef(null);
  const hidden = useMemo(() => hidden_in(text), [text]);
  const [error, set_error] = useState(null);
  const take = (job) => {
    set_text(text_of(job.script));
    set_maker(job.caller_id ?? 0);
    set_form({script_type: job.script_type, name: job.name ?? '', timeout: String(job.timeout ?? '')});
    keep(Object.fromEntries(COPIED.filter((name) => !['script', 'script_type', 'name', 'timeout'].includes(name) && is_something(job[name])).map((name) => [name, job[name]])));
  };
  useEffect(() => {
    set_problems(null);
    set_error(null);
    keep({});
    set_maker(0);
    if (!query.of) { set_text(flow ? FLOW : SCRIPT); return undefined; }
    let over = false;  // the user has opened another job or flow
    const shows = (then) => (found) => { if (!over) then(found); };
    (flow ? rpc('flow.get', {id: Number(query.of), context_id: context, definition: true}).then(shows((found) => { set_text(text_of(found.definition, 2)); set_maker(found.caller_id); }))
      : rpc('job.get', {id: query.of, context_id: context}).then(shows(take))).catch(shows(set_error));
    return () => { over = true; };
  }, [query.of, flow, context]);
  const check = async () => { const found = await rpc('flow.check', {definition: text}); set_problems(found.problems.concat(list_of(found.warnings).map((each) => ({...each, warns: true})))); return found.ok; };
  const run = async () => {
    if (flow) {
      if (!(await check())) return;
      const made = await rpc('flow.create', {definition: text, context_id: context});
      await rpc('flow.start', {id: made.id, context_id: context});
      return go(flow_href(made.id, context));
    }
    const params = {...kept, script: text, script_type: form.script_type, context_id: context};
    if (form.name) params.name = form.name;
    if (form.timeout) params.timeout = Number(form.timeout);
    const made = await rpc('job.start', params);
    go(job_href(made.key, context));
  };
  const jump = (each) => {
    const at = text.split('\n').slice(0, each.line - 1).join('\n').length + Math.max(each.column, 1);
    area.current.focus();
    area.current.setSelectionRange(at, at);
  };
  if (rights && !rights.create) return html`<main><h1>Try it</h1><p class="empty">You can read this context but not create jobs: an admin can grant you the role submitter.</p></main>`;
  return html`<main class="try"><h1>Try it</h1><div class="choices" role="group" aria-label="what"><button type="button" aria-pressed=${!flow} onClick=${() => replace(href(['try'], {context}))}>a script</button><button type="button" aria-pressed=${flow} onClick=${() => replace(href(['try'], {context, kind: 'flow'}))}>a flow</button></div>
    ${!flow && examples.length > 0 && html`<p class="examples-of"><span class="quiet">examples:</span> ${examples.map((each) => html`<button type="button" class="small" onClick=${() => { set_problems(null); take(each); }}>${each.name}</button> `)}</p>`}
    <${Problem} error=${error}/>
    ${maker > 0 && rights && maker !== rights.actor && html`<p class="problem" role="note"><${Glyph} shape="asks"/> This was created by actor ${maker}. A run here is yours, with your rights: read it first.</p>`}
    ${hidden.length > 0 && html`<p class="problem" role="note"><${Glyph} shape="asks"/> This text has characters that hide or reorder text: ${hidden.slice(0, 5).map((each) => `${each.sign} in line ${each.line}`).join(', ')}${hidden.length > 5 ? ' \u2026' : ''}. It may do something else than it shows. <button type="button" class="small" onClick=${() => set_text(without_hidden(text))}>Remove them</button></p>`}
    <label class="editor"><span class="hidden">${flow ? 'definition, YAML or JSON' : 'script'}</span><textarea ref=${area} id="find" spellcheck="false" autocomplete="off" rows="18" value=${text} onInput=${(e) => { set_text(e.target.value); set_problems(null); }}
      onKeyDown=${(e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) document.querySelector('main .first')?.click(); }}></textarea></label>
    ${!flow && html`<div class="fields"><label>type <select value=${form.script_type} onChange=${(e) => set_form({...form, script_type: e.target.value})}>${[...new Set([...types, form.script_type])].map((each) => html`<option value=${each}>${line(each, 32)}</option>`)}</select></label>
      <label>name <input value=${form.name} onInput=${(e) => set_form({...form, name: e.target.value})} placeholder="for people"/></label><label>seconds at most <input inputmode="numeric" value=${form.timeout} onInput=${(e) => set_form({...form, timeout: e.target.value.replace(/\D/g, '')})} placeholder="the default"/></label></div>`}
    ${!flow && Object.keys(kept).length > 0 && html`<section class="kept" aria-label="also"><p class="quiet">It also gets: <button type="button" class="small" onClick=${() => keep({})}>remove that</button></p><${Pairs} of=${kept}/></section>`}
    <div class="actions"><${Action} kind="first" title="Ctrl+Enter" run=${run}>Run<//>${flow && html`<${Action} run=${check}>Check<//>`}<span class="quiet">Ctrl+Enter runs it</span></div>
    ${problems && !problems.some((each) => !each.warns) && html`<p role="status"><${Glyph} shape="done"/> No problem found.</p>`}
    ${problems?.length > 0 && html`<div role="alert"><ul class="findings">${problems.map((each) => html`<li><${Glyph} shape=${each.warns ? 'asks' : 'failed'}/><div>${each.line ? html`<button type="button" class="small" onClick=${() => jump(each)}>line ${each.line}</button> ` : ''}<bdi>${plain(each.path)}</bdi> ${plain(each.message)}</div></li>`)}</ul></div>`}
  </main>`;
}
