// Joins pieces of the output of jobs and splits them into lines.
const MAX_LINES = 200_000, MAX_CHARS = 64 << 20;  // Limits of one log. The oldest lines are dropped.

// Appends text to an open line. A carriage return discards the previous text of the line. A carriage return at the end of
// the text takes effect when more text follows. Returns the change of the line's length.
function append_part(line, part) {
  let end = part.length;
  while (end > 0 && part[end - 1] === '\r') end--;
  const old_length = line.text.length;
  if (end > 0) {
    const return_index = part.lastIndexOf('\r', end - 1);
    line.text = (line.has_pending_return || return_index >= 0 ? '' : line.text) + part.slice(return_index + 1, end);
    line.has_pending_return = false;
  }
  line.has_pending_return ||= end < part.length;
  return line.text.length - old_length;
}

// The lines of one log. Each stream of each writer has an open line, which the next piece of the stream continues. A piece
// has the field `writer` only if several writers share the log.
export class LogLines {
  lines = [];
  dropped_count = 0;  // Number of dropped lines.
  char_count = 0;  // Total length of the texts in `lines`.
  open_lines = new Map();  // The last, incomplete line of each stream, by writer and stream.
  notify = () => {};  // Users of the log call this function after they have added pieces.
  // Sets the function that notify() calls, and calls it once. Returns a function that removes it.
  watch(listener) {
    this.notify = listener;
    listener();
    return () => { this.notify = () => {}; };
  }
  add_piece(piece) {
    const parts = piece.text.split('\n');
    parts.forEach((part, i) => {
      const is_last = i === parts.length - 1;
      const stream_key = piece.writer ? `${piece.writer} ${piece.stream}` : piece.stream;
      let line = this.open_lines.get(stream_key);
      if (is_last && part === '') return;
      if (!line) {
        line = {seq: piece.seq, at_ms: piece.ts_ms, stream: piece.stream, writer: piece.writer, text: '', number: this.dropped_count + this.lines.length + 1};
        this.lines.push(line);
        this.open_lines.set(stream_key, line);
      }
      this.char_count += append_part(line, part);
      if (!is_last) this.open_lines.delete(stream_key);
    });
    if (this.lines.length > MAX_LINES * 1.1 || this.char_count > MAX_CHARS * 1.1) this.drop_oldest_lines();
  }
  drop_oldest_lines() {
    let drop_count = 0;
    while (this.lines.length - drop_count > MAX_LINES || (this.char_count > MAX_CHARS && drop_count < this.lines.length - 1)) this.char_count -= this.lines[drop_count++].text.length;
    const dropped_lines = new Set(this.lines.splice(0, drop_count));
    for (const [stream_key, line] of this.open_lines) if (dropped_lines.has(line)) this.open_lines.delete(stream_key);
    this.dropped_count += drop_count;
  }
}
