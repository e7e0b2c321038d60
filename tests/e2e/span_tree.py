#!/usr/bin/env python3
"""Draws spans that span_receiver.py has written as a tree, ordered by their start: span_tree.py FILE [--names]

Shows the sender of each span, its start relative to the first, its duration, and both as a bar. --names: only the names."""
import json
import sys

WIDTH = 40


def at(span, which):
    return int(span[f'{which}TimeUnixNano'])


def ordered(spans):
    """Returns [(depth, span)]: each span is followed by its children."""
    ids = {span['spanId'] for span in spans}
    below = {}
    for span in spans:
        below.setdefault(span['parentSpanId'] if span['parentSpanId'] in ids else '', []).append(span)

    def visit(parent, depth):
        for span in sorted(below.get(parent, []), key=lambda each: (at(each, 'start'), -at(each, 'end'))):
            yield depth, span
            yield from visit(span['spanId'], depth + 1)

    return list(visit('', 0))


def main():
    with open(sys.argv[1], encoding='utf-8') as file:
        rows = ordered([json.loads(line) for line in file])
    if '--names' in sys.argv:
        print('\n'.join('  ' * depth + span['name'] for depth, span in rows))
        return
    begin, end = min(at(span, 'start') for _, span in rows), max(at(span, 'end') for _, span in rows)
    for depth, span in rows:
        from_, to = (round((at(span, which) - begin) / max(end - begin, 1) * WIDTH) for which in ('start', 'end'))
        bar = ' ' * min(from_, WIDTH - 1) + '█' * max(to - from_, 1)
        ms = [(at(span, 'start') - begin) / 1e6, (at(span, 'end') - at(span, 'start')) / 1e6]
        print(f"{'  ' * depth + span['name']:16} {span['service']:20} +{ms[0]:6.1f} {ms[1]:6.1f} ms  {bar}".rstrip())


main()
