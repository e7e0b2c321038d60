// The five jobs of examples/hello, which are part of the page. They are offered in a context without jobs.
import {html, useEffect, useState, Action, go, href, job_href} from './ui.js';
import {asset, rpc} from './api.js';
import {counted} from './text.js';

const what = (job) => /^"""([^"]*)"""/.exec(job.script)?.[1] ?? '';

// Returns the parameters of job.start for each example; empty until they are loaded.
export function useExamples() {
  const [jobs, set] = useState([]);
  useEffect(() => {
    asset('examples').then(set, () => {});  // after an error no examples are offered
  }, []);
  return jobs;
}

export function Examples({context}) {
  const jobs = useExamples();
  if (jobs.length === 0) return null;
  const start = (job) => rpc('job.start', {...job, context_id: context});
  const all = async () => {
    for (const job of jobs) await start(job);
    go(href(['jobs'], {context}));
  };
  return html`<section class="card examples"><h2>No job has run in this context yet</h2>
    <div class="actions"><${Action} kind="first" run=${all}>Run the ${counted(jobs.length, 'example')}<//><span class="quiet">or <a href=${href(['try'], {context})}>write a script or a flow</a></span></div>
    <table><tbody>${jobs.map((job) => html`<tr key=${job.name}><td class="name">${job.name}</td><td>${what(job)}</td><td class="num"><${Action} kind="small" run=${async () => go(job_href((await start(job)).key, context))}>Run<//></td></tr>`)}</tbody></table></section>`;
}
