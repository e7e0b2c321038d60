// The files that a job has stored: list, downloads, and previews of text and raster images. Contents of files are untrusted:
// text is shown as text, images by <img> only, and documents that can contain scripts (HTML, SVG, PDF) are never shown.
import {html, useCall, useState, Action, Card, Command, Problem, UntrustedText} from './ui.js';
import {read_file, rpc, RpcError} from './api.js';
import {escape_hidden, format_bytes, quote_shell_word, to_line, to_list, to_number, to_object, to_text} from './text.js';

const IMAGE_TYPES = ['image/avif', 'image/bmp', 'image/gif', 'image/jpeg', 'image/png', 'image/webp'];
const TEXT_TYPES = ['text/plain', 'text/csv', 'text/markdown', 'text/tab-separated-values', 'application/json', 'application/toml', 'application/yaml'];
const MAX_IMAGE_BYTES = 16 << 20, MAX_TEXT_BYTES = 64 << 10;

// Returns 'image', 'text', or '' if the page shows no preview of the file.
export function get_preview_kind(file) {
  const {media_type, bytes} = to_object(file);
  if (IMAGE_TYPES.includes(media_type)) return to_number(bytes) <= MAX_IMAGE_BYTES ? 'image' : '';
  return TEXT_TYPES.includes(media_type) ? 'text' : '';
}

// Requests a link that is valid for a minute and needs no token.
async function request_link(params) {
  const link = to_text((await rpc('artifact.get', params)).link);
  if (!/^\/artifacts\?[\w=&%.-]+$/.test(link)) throw new RpcError('the server has returned an invalid link', 'io', '');
  return link;
}

// The first byte is read before, so that an error is shown here and not as a failed download. Since this can wait for the whole
// file of another host, the download has a link of its own.
async function download(params, bytes) {
  if (to_number(bytes) > 0) await read_file(await request_link(params), 1);
  const anchor = document.createElement('a');
  anchor.href = await request_link(params);
  anchor.download = '';
  anchor.click();
}

async function load_preview(params, file) {
  const link = await request_link(params);
  if (get_preview_kind(file) === 'image') return {link};
  const bytes = to_number(file.bytes) > 0 ? await read_file(link, MAX_TEXT_BYTES) : new Uint8Array();
  return {text: new TextDecoder().decode(bytes)};
}

function Preview({name, file, preview}) {
  const [is_broken, set_broken] = useState(false);
  if (preview.link) {
    if (is_broken) return html`<p class="quiet">The browser cannot decode this image.</p>`;
    return html`<img class="preview" src=${preview.link} alt=${`artifact ${to_line(name, 80)}`} onError=${() => set_broken(true)}/>`;
  }
  const is_cut = to_number(file.bytes) > MAX_TEXT_BYTES;
  return html`<pre class="value" tabindex="0"><bdi dir="ltr">${escape_hidden(preview.text)}</bdi></pre>${is_cut && html`<p class="quiet">The first ${format_bytes(MAX_TEXT_BYTES)} of ${format_bytes(file.bytes)}.</p>`}`;
}

function ArtifactRow({name, artifact, file, params}) {
  const [preview, set_preview] = useState(null);
  const file_params = {...params, name};
  const toggle = async () => set_preview(preview ? null : await load_preview(file_params, file));
  return html`<tr><td class="first"><${UntrustedText} text=${name}/></td><td class="num">${format_bytes(artifact.bytes)}</td><td class="takes"><code title=${to_line(artifact.sha256, 64)}>${to_line(artifact.sha256, 12)}</code></td>
    <td>${file?.readable === true && html`<${Action} run=${() => download(file_params, file.bytes)} title="download this file">Download<//>`}${file?.readable === true && get_preview_kind(file) && html`<${Action} run=${toggle}>${preview ? 'Hide' : 'Show'}<//>`}
    ${file?.readable === false && html`<span class="quiet"><${UntrustedText} text=${file.problem}/></span>`}</td></tr>
    ${preview && html`<tr><td colspan="4" class="takes"><${Preview} name=${name} file=${file} preview=${preview}/></td></tr>`}`;
}

// `artifacts` is the field of the job's record. `version` changes when the job has changed.
export function Artifacts({artifacts, id, context, version}) {
  const entries = Object.entries(to_object(artifacts)).map(([name, artifact]) => [name, to_object(artifact)]);
  const params = {id, context_id: context};
  const {value, error} = useCall('artifact.list', params, [version], entries.length > 0);
  if (entries.length === 0) return null;
  const files = new Map(to_list(value).map((file) => [to_text(to_object(file).name), to_object(file)]));
  return html`<${Card} title="Artifacts"><${Problem} error=${error}/><table class="artifacts compact"><thead><tr><th>name</th><th class="num">size</th><th>sha256</th><th>file</th></tr></thead><tbody>${entries.map(([name, artifact]) => html`<${ArtifactRow} key=${name} name=${name} artifact=${artifact} file=${files.get(name)} params=${params}/>`)}</tbody></table><p class="quiet"><${Command} text=${`mycojobs job artifacts ${quote_shell_word(id)} --output FOLDER`}/> fetches all</p><//>`;
}
