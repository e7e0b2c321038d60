// JSON with exact integers. A JavaScript number holds integers exactly only up to 2^53 - 1, so larger integers are BigInt.

// Returns the position after the closing quote of the string that contains position `start`.
function endOfString(text, start) {
  for (;;) {
    const end = text.indexOf('"', start);
    if (end < 0) return text.length;
    let escapes = 0;
    while (text[end - 1 - escapes] === "\\") escapes++;
    if (escapes % 2 === 0) return end + 1;
    start = end + 1;
  }
}

// Replaces each integer that a number cannot hold by a string that starts with `mark`.
function markLargeIntegers(text, mark) {
  const token = /"|-?\d[\d.eE+-]*/g;
  let [result, copiedLength] = ["", 0];
  for (let match = token.exec(text); match; match = token.exec(text)) {
    if (match[0] === '"') {
      token.lastIndex = endOfString(text, match.index + 1);
    } else if (/^-?[1-9]\d*$/.test(match[0]) && !Number.isSafeInteger(Number(match[0]))) {
      result += `${text.slice(copiedLength, match.index)}"${mark}${match[0]}"`;
      copiedLength = token.lastIndex;
    }
  }
  return result + text.slice(copiedLength);
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
  const text = JSON.stringify(value, (_, member) => (typeof member === "bigint" ? ((large = true), mark + member) : member), indent);
  return large ? text.replaceAll(new RegExp(`"${mark.replaceAll(".", "\\.")}(-?\\d+)"`, "g"), "$1") : text;
}
