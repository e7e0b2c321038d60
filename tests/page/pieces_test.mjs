// The pure functions of the page, without a browser: formatting of text, parsing of events, joining of lines.
import assert from 'node:assert/strict';
import {spawnSync} from 'node:child_process';
import {test} from 'node:test';

const source = (name) => import(`${process.env.MYCOJOBS_SOURCE}/web/src/${name}`);
const {format_age, format_bytes, format_clock, format_count, get_elapsed_ms, get_entry, find_hidden_characters, to_line, to_list, parse_log_line, strip_escapes, format_time, to_number, to_object, escape_hidden, quote_shell_word, format_elapsed, format_duration, to_text, remove_hidden_characters} = await source('text.js');
const {create_event_parser} = await source('api.js');
const {parseJson, stringifyJson} = await import(`${process.env.MYCOJOBS_SOURCE}/clients/node/exact_json.js`);
const {encode_login} = await source('key.js');
const {LogLines} = await source('lines.js');
const {Rows} = await source('rows.js');
const {get_flow_state, has_failed, get_job_state, get_node_state} = await source('states.js');

test('control and bidirectional characters are shown as signs', () => {
  assert.equal(escape_hidden('a\u202eb\u200bc\u0000d\u001be\u007f'), 'a\u2039U+202E\u203ab\u2039U+200B\u203ac\u2400d\u241be\u2421');
  assert.equal(escape_hidden('a\r\nb\tc'), 'a\nb\tc');
  assert.equal(escape_hidden(null), '');
  assert.equal(to_line('a\nb', 10), 'a b');
  assert.equal(to_line('x'.repeat(50), 5), 'xxxxx\u2026');
});

test('any value is rendered as text without errors', () => {
  const node = {type: 'pdf', __e: {}, props: {children: 'x'}};
  let deep = {};
  for (let i = 0; i < 200000; i++) deep = {deep};
  assert.equal(to_text(node), '{"type":"pdf","__e":{},"props":{"children":"x"}}');
  assert.equal(to_text({toString: 1, valueOf: 'x', toJSON: 'y'}), '{"toString":1,"valueOf":"x","toJSON":"y"}');
  assert.equal(to_text(parseJson('{"__proto__":{"a":18446744073709551615},"constructor":null}')), '{"__proto__":{"a":18446744073709551615},"constructor":null}');
  assert.equal(to_text(deep), '(a value that is nested too deeply to be shown)');
  assert.deepEqual([undefined, null, () => 1, Symbol('x'), 1n, true, 'x'].map((each) => to_text(each)), ['', '', '', '', '1', 'true', 'x']);
  for (const each of [node, deep, Object.create(null), {toString: null}, [[]], 1n, () => 1, Symbol('x'), NaN, undefined]) {
    for (const shows of [escape_hidden, to_line, format_time, format_clock, format_duration, format_bytes, format_count, (value) => format_age(value, value), (value) => format_elapsed(value, value), (value) => get_elapsed_ms(value, value)]) shows(each);
    assert.equal(typeof to_number(each), 'number');
    assert.ok(Array.isArray(to_list(each)) && to_object(each) !== null);
    for (const state of [get_job_state, get_flow_state, get_node_state]) for (const word of state({status: each, detail: each, node_status: each})) assert.equal(typeof word, 'string');
  }
});

test('hidden characters are found with their lines', () => {
  assert.deepEqual(find_hidden_characters('a\tb\r\nc\n'), []);
  assert.deepEqual(find_hidden_characters('a\n\u202eb\rc\n\n\u200b'), [{line: 2, sign: '\u2039U+202E\u203a'}, {line: 2, sign: '\u240d'}, {line: 4, sign: '\u2039U+200B\u203a'}]);
  assert.equal(find_hidden_characters('\u202e'.repeat(1000)).length, 100);
  assert.equal(remove_hidden_characters('a\r\n\u202eb\u0000\tc'), 'a\nb\tc');
});

test('times beyond the calendar and numbers beyond 2^53 are handled', () => {
  assert.deepEqual([format_time(9007199254740991), format_time(18446744073709551615n), format_time(8640000000000000), format_time(0)], ['after the year 275760', 'after the year 275760', '+275760-09-13 00:00:00 UTC', '']);
  assert.equal(get_elapsed_ms(1n, 18446744073709551615n), 18446744073709551614);
  assert.equal(format_bytes(1n << 40n), '1024.0 GiB');
});

test('data names do not reach Object.prototype', () => {
  for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty', {toString: 1}, null]) {
    assert.equal(get_entry({}, name), undefined);
    assert.equal(has_failed({status: 'error', detail: name}), true);
    assert.deepEqual(get_job_state({status: 'dispatched', detail: name}), ['queued', 'queued']);
    assert.equal(get_node_state({node_status: name, detail: name})[0], 'planned');
  }
  const log = new LogLines();
  for (const stream of ['__proto__', 'constructor']) log.add_piece({seq: 1, stream, text: 'a'});
  assert.deepEqual(log.lines.map((each) => each.text), ['a', 'a']);
  const rows = new Rows();
  rows.add([{key: 'job:1:1', status: 'started'}]);
  rows.update(JSON.parse('{"key": "job:1:1", "status": "finished", "__proto__": {"polluted": 1}}'));
  assert.deepEqual([rows.by_key.get('job:1:1').status, rows.by_key.get('job:1:1').polluted], ['finished', undefined]);
});

test('foreign names are quoted as one word of a command', () => {
  const {stdout} = spawnSync('sh', ['-c', `printf '%s|' ${["queue:python", "a b", "it's", '$(id)', '`id`', '', ';x&', '-n', 'a\nb'].map(quote_shell_word).join(' ')}`], {encoding: 'utf8'});
  assert.equal(stdout, "queue:python|a b|it's|$(id)|`id`||;x&|-n|a\nb|");
  assert.doesNotMatch(quote_shell_word('a`id`'), /`/);
});

test('terminal colours are kept and other escapes removed', () => {
  assert.deepEqual(parse_log_line('a\u001b[1;31mb\u001b[0mc'), [{text: 'a', style: ''}, {text: 'b', style: 'ansi-red ansi-bold'}, {text: 'c', style: ''}]);
  assert.deepEqual(parse_log_line('\u001b[38;5;200mx\u001b[38;2;1;2;3my'), [{text: 'x', style: ''}, {text: 'y', style: ''}]);
  for (const escape of ['\u001b]0;title\u0007', '\u001b]8;;http://x\u001b\\', '\u001b[2J', '\u001b[?25l', '\u001bP1;2q\u001b\\', '\u001b(B', '\u001b'])
    assert.equal(strip_escapes(`a${escape}b`.replace('\u001bb', '\u001b')), escape === '\u001b' ? 'a' : 'ab', JSON.stringify(escape));
  assert.equal(strip_escapes('\u001b[31m<b>\u001b[0m'), '<b>');
});

test('events are parsed in any pieces', () => {
  const stream = 'id: 5.0.0\n\n: heartbeat\n\nevent: log\nid: 7\ndata: {"a":1}\n\nretry: 1000\n\nevent: job\ndata: {"b":"x\\ny"}\n\n';
  for (let size = 1; size < stream.length; size++) {
    const heard = [], feed = create_event_parser((each) => heard.push(each));
    for (let at = 0; at < stream.length; at += size) feed(stream.slice(at, at + size));
    assert.deepEqual(heard, [{event: 'message', id: '5.0.0', data: ''}, {event: 'log', id: '7', data: '{"a":1}'}, {event: 'job', id: '', data: '{"b":"x\\ny"}'}], `in pieces of ${size}`);
  }
});

test('integers that a number cannot hold keep their digits', () => {
  const text = '{"a":9007199254740993,"list":[18446744073709551615,-9223372036854775808,9007199254740991,1.5e300,0.1234567890123456789],"text":"9007199254740993 \\" 1","9007199254740993":null}';
  const value = parseJson(text);
  assert.deepEqual(value.list, [18446744073709551615n, -9223372036854775808n, 9007199254740991, 1.5e300, 0.1234567890123456789]);
  assert.deepEqual([value.a, value.text, value['9007199254740993']], [9007199254740993n, '9007199254740993 " 1', null]);
  assert.equal(stringifyJson({a: value.a, list: value.list.slice(0, 3), '1': ['x', -1n]}), '{"1":["x",-1],"a":9007199254740993,"list":[18446744073709551615,-9223372036854775808,9007199254740991]}');
  for (const wrong of ['{"a":09007199254740993}', '{"a":9007199254740993', '9007199254740993x', '"9007199254740993']) assert.throws(() => parseJson(wrong), SyntaxError);
  assert.equal(parseJson('9007199254740993'), 9007199254740993n);
});

test('numbers and times are readable', () => {
  assert.deepEqual([format_duration(0), format_duration(999), format_duration(1500), format_duration(61000), format_duration(3700000), format_duration(90000000)], ['0 ms', '999 ms', '1.5 s', '1 min 1 s', '1 h 1 min', '1 d 1 h']);
  assert.deepEqual([format_age(0, 5), format_age(1000, 1500), format_age(1000, 62000)], ['', 'now', '1 min ago']);
  assert.deepEqual([format_elapsed(0, 5), format_elapsed(1000, 1500), format_elapsed(1000, 28000), format_elapsed(1000, 121000)], ['', '1 s', '27 s', '2 min']);
  assert.deepEqual([format_bytes(5), format_bytes(2048), format_bytes(3 << 20)], ['5 B', '2.0 KiB', '3.0 MiB']);
  assert.equal(format_count(1234567), '1\u202f234\u202f567');
});

test('a key signs the canonical encoding', () => {
  const bytes = encode_login({algorithm: 'ed25519', audience: 'h:1', challenge: 'c'.repeat(30), signer: 's'.repeat(300)});
  const text = (n) => (n < 24 ? [0x60 + n] : n < 256 ? [0x78, n] : [0x79, n >> 8, n & 255]);
  const row = (name, value) => [...text(name.length), ...Buffer.from(name), ...text(value.length), ...Buffer.from(value)];
  assert.deepEqual([...bytes], [...Buffer.from('mycojobs login 1\n'), 0xa4, ...row('signer', 's'.repeat(300)), ...row('audience', 'h:1'), ...row('algorithm', 'ed25519'), ...row('challenge', 'c'.repeat(30))]);
});

test('a continued failure is not shown as a success', () => {
  const state = (detail) => get_node_state({node_status: 'completed', detail});
  assert.deepEqual(state('ok'), ['done', 'completed']);
  assert.deepEqual(state('handled'), ['handled', 'handled']);
  assert.deepEqual(state('continued'), ['handled', 'continued']);
});

// Jobs as the server lists them: the newest first, one each millisecond.
const jobs = (from, to) => Array.from({length: from - to + 1}, (_, i) => ({key: `job:1:${from - i}`, status: 'finished', changed_ms: from - i}));
const shown = (rows) => rows.list.map((each) => (each.gap ? 'gap' : Number(each.key.slice(6))));
const range = (from, to) => Array.from({length: from - to + 1}, (_, i) => from - i);
function begun(from, to) {
  const rows = new Rows();
  rows.add(jobs(from, to));
  rows.is_loaded = true;
  return rows;
}

const lines_of = (pieces) => {
  const log = new LogLines();
  pieces.forEach((text, seq) => log.add_piece({seq, ts_ms: 0, stream: 'stdout', text}));
  return log;
};
test('an overwritten line shows its latest text', () => {
  const shown = (...pieces) => lines_of(pieces).lines.map((line) => line.text);
  assert.deepEqual(shown('10%\r20%', '\r30%'), ['30%'], 'before its end, too');
  assert.deepEqual(shown('10%\r', '20%\r', '30%'), ['30%']);
  assert.deepEqual(shown('10%\r'), ['10%'], 'nothing has come over it');
  assert.deepEqual(shown('a\r\nb\r', '\nc\r\r\n'), ['a', 'b', 'c']);
  assert.deepEqual(shown('one', ' line\ntwo'), ['one line', 'two']);
});
test('overwritten text is not counted', () => {
  const log = lines_of(['first\n']);
  for (let i = 0; i < 80; i++) log.add_piece({seq: 1 + i, ts_ms: 0, stream: 'stderr', text: `\r${'x'.repeat(1 << 20)}`});
  assert.deepEqual([log.lines.length, log.dropped_count, log.char_count], [2, 0, 5 + (1 << 20)]);
});
test('an evicted incomplete line is not counted', () => {
  const log = lines_of([]);
  log.add_piece({seq: 0, ts_ms: 0, stream: 'stderr', text: 'begun'});
  for (let i = 0; i < 80; i++) log.add_piece({seq: 1 + i, ts_ms: 0, stream: 'stdout', text: `${'x'.repeat(1 << 20)}\n`});
  assert.ok(log.dropped_count > 0);
  log.add_piece({seq: 90, ts_ms: 0, stream: 'stderr', text: ' and ended\n'});
  assert.equal(log.lines.at(-1).text, ' and ended');
  assert.equal(log.char_count, log.lines.reduce((sum, line) => sum + line.text.length, 0));
});

test('a larger log keeps the earlier lines behind a gap', () => {
  const rows = begun(300, 101);
  assert.equal(rows.front_ms, 300);
  rows.merge_with_gap(jobs(2000, 1001), '1001000 job:1:1001', {});
  rows.newest_ms = rows.front_ms = 2000;
  assert.deepEqual(shown(rows), [...range(2000, 1001), 'gap', ...range(300, 101)]);
  const gap = rows.list[1000];
  rows.fill_gap(gap, jobs(1000, 801), '801000 job:1:801');
  assert.deepEqual(shown(rows), [...range(2000, 801), 'gap', ...range(300, 101)]);
  rows.fill_gap(gap, jobs(800, 250), '250000 job:1:250');
  assert.deepEqual(shown(rows), range(2000, 101), 'its end is reached: each once, in order');
  assert.equal(rows.by_key.size, 1900);
});

test('a changed job is listed once at its new position', () => {
  const rows = begun(300, 101);
  rows.merge_with_gap([{key: 'job:1:150', status: 'error', changed_ms: 900}, ...jobs(800, 700)], '700000 x', {});
  assert.equal(shown(rows).filter((each) => each === 150).length, 1);
  assert.equal(shown(rows)[0], 150);
  assert.equal(rows.by_key.get('job:1:150').status, 'error');
  rows.fill_gap(rows.list.find((each) => each.gap), [{key: 'job:1:120', status: 'error', changed_ms: 600}], '');
  assert.equal(shown(rows).filter((each) => each === 120).length, 1);
  assert.ok(shown(rows).indexOf(120) < shown(rows).indexOf(300));
  rows.merge_with_gap([{key: 'job:1:300', status: 'started', changed_ms: 3000}], '2900000 x', {status: 'finished'});
  assert.ok(!shown(rows).includes(300), 'what the filter wants no more goes');
});

test('a filter for errors omits skipped nodes', () => {
  const rows = new Rows();
  const ended = (id, detail) => ({key: `job:1:${id}`, flow_id: 3, status: 'error', detail, changed_ms: id});
  const jobs_of_a_flow = [ended(1, 'skipped'), ended(2, 'exception'), ended(3, 'not_needed')];
  rows.merge(jobs_of_a_flow, true, {status: 'error'});
  assert.deepEqual(shown(rows), [2]);
  rows.merge_with_gap(jobs_of_a_flow, '', {status: 'error', state: 'skipped'});
  assert.ok(shown(rows).includes(1), 'unless they are asked for');
});

test('a list at its start keeps a page and continues', () => {
  const rows = begun(10, 1);
  for (let at = 2000; at <= 20000; at += 2000) {
    rows.merge_with_gap(jobs(at, at - 999), `${(at - 999) * 1000} x`, {});
    rows.front_ms = at;
  }
  assert.ok(rows.list.length <= 4000);
  assert.ok(!rows.list[rows.list.length - 1].gap);
  assert.equal(rows.by_key.size, rows.list.filter((each) => !each.gap).length);
  assert.equal(rows.next_cursor, `${rows.list[rows.list.length - 1].changed_ms * 1000 + 999} 0`);
});
