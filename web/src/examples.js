// The five jobs of examples/hello, which are part of the page. They are offered in a context without jobs.
import {html, useEffect, useState, Action, navigate, href, job_href} from './ui.js';
import {load_asset, rpc} from './api.js';
import {format_counted} from './text.js';

const parse_description = (job) => /^"""([^"]*)"""/.exec(job.script)?.[1] ?? '';

// Returns the parameters of job.start for each example. The list is empty until the examples are loaded.
export function useExamples() {
  const [jobs, set_jobs] = useState([]);
  useEffect(() => {
    load_asset('examples').then(set_jobs, () => {});  // After an error, no examples are offered.
  }, []);
  return jobs;
}

export function Examples({context}) {
  const jobs = useExamples();
  if (jobs.length === 0) return null;
  const start_example = (job) => rpc('job.start', {...job, context_id: context});
  const start_all = async () => {
    for (const job of jobs) await start_example(job);
    navigate(href(['jobs'], {context}));
  };
  return html`<section class="card examples"><h2>No job has run in this context yet</h2>
    <div class="actions"><${Action} kind="first" run=${start_all}>Run the ${format_counted(jobs.length, 'example')}<//><span class="quiet">or <a href=${href(['try'], {context})}>write a script or a flow</a></span></div>
    <table><tbody>${jobs.map((job) => html`<tr key=${job.name}><td class="name">${job.name}</td><td>${parse_description(job)}</td><td class="num"><${Action} kind="small" run=${async () => navigate(job_href((await start_example(job)).key, context))}>Run<//></td></tr>`)}</tbody></table></section>`;
}
