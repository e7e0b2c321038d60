// JSON with exact integers. A JavaScript number holds integers exactly only up to 2^53 - 1, so larger integers are BigInt.

// Returns the position after the closing quote of the string that contains position `from`.
function endOfString(text, from) {
  for (;;) {
    const end = text.indexOf('"', from);
    if (end < 0) return text.length;
    let escapes = 0;
    while (text[end - 1 - escapes] === "\\") escapes++;
    if (escapes % 2 === 0) return end + 1;
    from = end + 1;
  }
}

// Replaces each integer that a number cannot hold by a string that starts with `mark`.
function markLargeIntegers(text, mark) {
  const token = /"|-?\d[\d.eE+-]*/g;
  let [out, copied] = ["", 0];
  for (let found = token.exec(text); found; found = token.exec(text)) {
    if (found[0] === '"') {
      token.lastIndex = endOfString(text, found.index + 1);
    } else if (/^-?[1-9]\d*$/.test(found[0]) && !Number.isSafeInteger(Number(found[0]))) {
      out += `${text.slice(copied, found.index)}"${mark}${found[0]}"`;
      copied = token.lastIndex;
    }
  }
  return out + text.slice(copied);
}

// The author of a text cannot predict the mark, so no string of the text is taken for a marked integer.
const newMark = () => `${Math.random()}:${Math.random()}:`;

/** JSON.parse, but integers beyond 2^53 - 1 become BigInt. Throws SyntaxError. */
export function parseJson(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = newMark();
  const marked = markLargeIntegers(text, mark);
  const restore = (_, value) => (typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value);
  return marked === text ? JSON.parse(text) : JSON.parse(marked, restore);
}

/** JSON.stringify, but a BigInt is written as an integer. Throws TypeError for a circular value. */
export function stringifyJson(value, indent) {
  const mark = newMark();
  let large = false;
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? ((large = true), mark + each) : each), indent);
  return large ? text.replaceAll(new RegExp(`"${mark.replaceAll(".", "\\.")}(-?\\d+)"`, "g"), "$1") : text;
}
