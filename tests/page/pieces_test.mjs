// The page's pure parts, without a browser: how texts are shown, events are read, lines are put together.
import assert from 'node:assert/strict';
import {test} from 'node:test';

const source = (name) => import(`${process.env.MYCOJOBS_SOURCE}/web/src/${name}`);
const {ago, bytes, count, line, log_parts, log_text, plain, since, span} = await source('text.js');
const {event_reader} = await source('api.js');

test('what turns or hides text is shown as a sign', () => {
  assert.equal(plain('a\u202eb\u200bc\u0000d\u001be\u007f'), 'a\u2039U+202E\u203ab\u2039U+200B\u203ac\u2400d\u241be\u2421');
  assert.equal(plain('a\r\nb\tc'), 'a\nb\tc');
  assert.equal(plain(null), '');
  assert.equal(line('a\nb', 10), 'a b');
  assert.equal(line('x'.repeat(50), 5), 'xxxxx\u2026');
});

test('colours of terminals are kept, all other escapes go', () => {
  assert.deepEqual(log_parts('a\u001b[1;31mb\u001b[0mc'), [{text: 'a', style: ''}, {text: 'b', style: 'ansi-red ansi-bold'}, {text: 'c', style: ''}]);
  assert.deepEqual(log_parts('\u001b[38;5;200mx\u001b[38;2;1;2;3my'), [{text: 'x', style: ''}, {text: 'y', style: ''}]);
  for (const escape of ['\u001b]0;title\u0007', '\u001b]8;;http://x\u001b\\', '\u001b[2J', '\u001b[?25l', '\u001bP1;2q\u001b\\', '\u001b(B', '\u001b'])
    assert.equal(log_text(`a${escape}b`.replace('\u001bb', '\u001b')), escape === '\u001b' ? 'a' : 'ab', JSON.stringify(escape));
  assert.equal(log_text('\u001b[31m<b>\u001b[0m'), '<b>');
});

test('events come whole, however they are cut', () => {
  const stream = 'id: 5.0.0\n\n: heartbeat\n\nevent: log\nid: 7\ndata: {"a":1}\n\nretry: 1000\n\nevent: job\ndata: {"b":"x\\ny"}\n\n';
  for (let size = 1; size < stream.length; size++) {
    const told = [], feed = event_reader((each) => told.push(each));
    for (let at = 0; at < stream.length; at += size) feed(stream.slice(at, at + size));
    assert.deepEqual(told, [{event: 'message', id: '5.0.0', data: ''}, {event: 'log', id: '7', data: '{"a":1}'}, {event: 'job', id: '', data: '{"b":"x\\ny"}'}], `in pieces of ${size}`);
  }
});

test('numbers and times are for people', () => {
  assert.deepEqual([span(0), span(999), span(1500), span(61000), span(3700000), span(90000000)], ['0 ms', '999 ms', '1.5 s', '1 min 1 s', '1 h 1 min', '1 d 1 h']);
  assert.deepEqual([ago(0, 5), ago(1000, 1500), ago(1000, 62000)], ['', 'now', '1 min ago']);
  assert.deepEqual([since(0, 5), since(1000, 1500), since(1000, 28000), since(1000, 121000)], ['', '1 s', '27 s', '2 min']);
  assert.deepEqual([bytes(5), bytes(2048), bytes(3 << 20)], ['5 B', '2.0 KiB', '3.0 MiB']);
  assert.equal(count(1234567), '1\u202f234\u202f567');
});
