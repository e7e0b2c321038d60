// The view in which a user writes, checks and runs a script or a flow.
import {html, useEffect, useMemo, useRef, useState, Action, Glyph, Problem, flow_href, navigate, href, job_href, replace_route, useTitle} from './ui.js';
import {rpc} from './api.js';
import {useExamples} from './examples.js';
import {COPIED_FIELDS, list_uncopied, Pairs} from './job.js';
import {find_hidden_characters, to_line, to_list, escape_hidden, to_text, remove_hidden_characters} from './text.js';

const SAMPLE_SCRIPT = `import time

for step in range(5):
    print("step", step)
    time.sleep(0.3)

result = {"steps": 5}
`;
const SAMPLE_FLOW = `name: first-flow
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

const has_value = (value) => value != null && value !== '' && value !== 0 && !(typeof value === 'object' && Object.keys(value).length === 0);

export function TryView({query, context, rights, overview}) {
  useTitle('Try it');
  const is_flow = query.kind === 'flow';
  const types = [...new Set(['python', ...(overview?.runners ?? []).filter((entry) => entry.state === 'live').flatMap((entry) => entry.executors)])];
  const [text, set_text] = useState(is_flow ? SAMPLE_FLOW : SAMPLE_SCRIPT);
  const [form, set_form] = useState({script_type: 'python', name: '', timeout: ''});
  const [owner_id, set_owner_id] = useState(0);  // Caller of the copied job or flow, or 0 if the text is not a copy.
  const [extra_fields, set_extra_fields] = useState({});  // Fields of the copied job that have no input field.
  const [uncopied, set_uncopied] = useState([]);
  const examples = useExamples();
  const [problems, set_problems] = useState(null);
  const editor = useRef(null);
  const hidden_characters = useMemo(() => find_hidden_characters(text), [text]);
  const [error, set_error] = useState(null);
  const load_job = (job) => {
    set_text(to_text(job.script));
    set_owner_id(job.caller_id ?? 0);
    set_uncopied(list_uncopied(job));
    set_form({script_type: job.script_type, name: job.name ?? '', timeout: String(job.timeout ?? '')});
    set_extra_fields(Object.fromEntries(COPIED_FIELDS.filter((name) => !['script', 'script_type', 'name', 'timeout'].includes(name) && has_value(job[name])).map((name) => [name, job[name]])));
  };
  useEffect(() => {
    set_problems(null);
    set_error(null);
    set_extra_fields({});
    set_uncopied([]);
    set_owner_id(0);
    if (!query.of) { set_text(is_flow ? SAMPLE_FLOW : SAMPLE_SCRIPT); return undefined; }
    let is_stale = false;  // True if the user has opened another job or flow while this one was being loaded.
    const skip_if_stale = (handler) => (result) => { if (!is_stale) handler(result); };
    (is_flow ? rpc('flow.get', {id: Number(query.of), context_id: context, definition: true}).then(skip_if_stale((result) => { set_text(to_text(result.definition, 2)); set_owner_id(result.caller_id); }))
      : rpc('job.get', {id: query.of, context_id: context}).then(skip_if_stale(load_job))).catch(skip_if_stale(set_error));
    return () => { is_stale = true; };
  }, [query.of, is_flow, context]);
  const check = async () => { const result = await rpc('flow.check', {definition: text}); set_problems(result.problems.concat(to_list(result.warnings).map((entry) => ({...entry, is_warning: true})))); return result.ok; };
  const run = async () => {
    if (is_flow) {
      if (!(await check())) return;
      const created = await rpc('flow.create', {definition: text, context_id: context});
      await rpc('flow.start', {id: created.id, context_id: context});
      return navigate(flow_href(created.id, context));
    }
    const params = {...extra_fields, script: text, script_type: form.script_type, context_id: context};
    if (form.name) params.name = form.name;
    if (form.timeout) params.timeout = Number(form.timeout);
    const created = await rpc('job.start', params);
    navigate(job_href(created.key, context));
  };
  const select_problem = (entry) => {
    const offset = text.split('\n').slice(0, entry.line - 1).join('\n').length + Math.max(entry.column, 1);
    editor.current.focus();
    editor.current.setSelectionRange(offset, offset);
  };
  if (rights && !rights.create) return html`<main><h1>Try it</h1><p class="empty">You can read this context but not create jobs: an admin can grant you the role submitter.</p></main>`;
  return html`<main class="try"><h1>Try it</h1><div class="choices" role="group" aria-label="what"><button type="button" aria-pressed=${!is_flow} onClick=${() => replace_route(href(['try'], {context}))}>a script</button><button type="button" aria-pressed=${is_flow} onClick=${() => replace_route(href(['try'], {context, kind: 'flow'}))}>a flow</button></div>
    ${!is_flow && examples.length > 0 && html`<p class="examples-of"><span class="quiet">examples:</span> ${examples.map((entry) => html`<button type="button" class="small" onClick=${() => { set_problems(null); load_job(entry); }}>${entry.name}</button> `)}</p>`}
    <${Problem} error=${error}/>
    ${owner_id > 0 && rights && owner_id !== rights.actor && html`<p class="problem" role="note"><${Glyph} shape="asks"/> This was created by actor ${owner_id}. A run here is yours, with your rights: read it first.</p>`}
    ${uncopied.length > 0 && html`<p class="problem" role="note"><${Glyph} shape="asks"/> Not copied from the job: ${uncopied.slice(0, 5).join(', ')}${uncopied.length > 5 ? ' \u2026' : ''}. A restart of the unchanged job keeps all.</p>`}
    ${hidden_characters.length > 0 && html`<p class="problem" role="note"><${Glyph} shape="asks"/> This text has characters that hide or reorder text: ${hidden_characters.slice(0, 5).map((entry) => `${entry.sign} in line ${entry.line}`).join(', ')}${hidden_characters.length > 5 ? ' \u2026' : ''}. It may do something else than it shows. <button type="button" class="small" onClick=${() => set_text(remove_hidden_characters(text))}>Remove them</button></p>`}
    <label class="editor"><span class="hidden">${is_flow ? 'definition, YAML or JSON' : 'script'}</span><textarea ref=${editor} id="find" spellcheck="false" autocomplete="off" rows="18" value=${text} onInput=${(e) => { set_text(e.target.value); set_problems(null); }}
      onKeyDown=${(e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) document.querySelector('main .first')?.click(); }}></textarea></label>
    ${!is_flow && html`<div class="fields"><label>type <select value=${form.script_type} onChange=${(e) => set_form({...form, script_type: e.target.value})}>${[...new Set([...types, form.script_type])].map((entry) => html`<option value=${entry}>${to_line(entry, 32)}</option>`)}</select></label>
      <label>name <input value=${form.name} onInput=${(e) => set_form({...form, name: e.target.value})} placeholder="for people"/></label><label>seconds at most <input inputmode="numeric" value=${form.timeout} onInput=${(e) => set_form({...form, timeout: e.target.value.replace(/\D/g, '')})} placeholder="the default"/></label></div>`}
    ${!is_flow && Object.keys(extra_fields).length > 0 && html`<section class="kept" aria-label="also"><p class="quiet">It also gets: <button type="button" class="small" onClick=${() => set_extra_fields({})}>remove that</button></p><${Pairs} fields=${extra_fields}/></section>`}
    <div class="actions"><${Action} kind="first" title="Ctrl+Enter" run=${run}>Run<//>${is_flow && html`<${Action} run=${check}>Check<//>`}<span class="quiet">Ctrl+Enter runs it</span></div>
    ${problems && !problems.some((entry) => !entry.is_warning) && html`<p role="status"><${Glyph} shape="done"/> No problem found.</p>`}
    ${problems?.length > 0 && html`<div role="alert"><ul class="findings">${problems.map((entry) => html`<li><${Glyph} shape=${entry.is_warning ? 'asks' : 'failed'}/><div>${entry.line ? html`<button type="button" class="small" onClick=${() => select_problem(entry)}>line ${entry.line}</button> ` : ''}<bdi>${escape_hidden(entry.path)}</bdi> ${escape_hidden(entry.message)}</div></li>`)}</ul></div>`}
  </main>`;
}
