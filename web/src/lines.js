// Splits the output of jobs into lines. No side effects.
const MOST_LINES = 200_000, MOST_CHARS = 64 << 20;  // limits of the page; older lines are dropped

// Appends text to an open line. A carriage return discards the previous text of the line; one at the end takes effect when
// more text follows. Returns the change of the line's length.
function write(line, part) {
  let end = part.length;
  while (end > 0 && part[end - 1] === '\r') end--;
  const before = line.text.length;
  if (end > 0) {
    const at = part.lastIndexOf('\r', end - 1);
    line.text = (line.returned || at >= 0 ? '' : line.text) + part.slice(at + 1, end);
    line.returned = false;
  }
  line.returned ||= end < part.length;
  return line.text.length - before;
}

// Collects pieces of output from the server as lines. Each stream of each writer (`of`, if there are several) has its own
// open line, which the next piece of this stream continues.
export class LogLines {
  lines = [];
  dropped = 0;
  chars = 0;
  open = new Map();
  renewed = () => {};  // notifies the watcher of new lines
  watch(then) {
    this.renewed = then;
    then();
    return () => { this.renewed = () => {}; };
  }
  take(piece) {
    const parts = piece.text.split('\n');
    parts.forEach((part, i) => {
      const last = i === parts.length - 1;
      const place = piece.of ? `${piece.of} ${piece.stream}` : piece.stream;
      let line = this.open.get(place);
      if (last && part === '') return;
      if (!line) {
        line = {seq: piece.seq, at: piece.ts_ms, stream: piece.stream, of: piece.of, text: '', number: this.dropped + this.lines.length + 1};
        this.lines.push(line);
        this.open.set(place, line);
      }
      this.chars += write(line, part);
      if (!last) this.open.delete(place);
    });
    if (this.lines.length > MOST_LINES * 1.1 || this.chars > MOST_CHARS * 1.1) this.shorten();
  }
  shorten() {
    let from = 0;
    while (this.lines.length - from > MOST_LINES || (this.chars > MOST_CHARS && from < this.lines.length - 1)) this.chars -= this.lines[from++].text.length;
    const gone = new Set(this.lines.splice(0, from));
    for (const [place, line] of this.open) if (gone.has(line)) this.open.delete(place);
    this.dropped += from;
  }
}
