#!/usr/bin/env python3
"""Draws spans that span_receiver.py has written as a tree, ordered by their start: span_tree.py FILE [--names]

Shows the sender of each span, its start relative to the first, its duration, and both as a bar. --names: only the names."""
import json
import sys

WIDTH = 40


def read_time_ns(span, edge):
    return int(span[f'{edge}TimeUnixNano'])


def order_spans(spans):
    """Returns [(depth, span)]: each span is followed by its children."""
    ids = {span['spanId'] for span in spans}
    children = {}
    for span in spans:
        children.setdefault(span['parentSpanId'] if span['parentSpanId'] in ids else '', []).append(span)

    def visit(parent, depth):
        for span in sorted(children.get(parent, []), key=lambda child: (read_time_ns(child, 'start'), -read_time_ns(child, 'end'))):
            yield depth, span
            yield from visit(span['spanId'], depth + 1)

    return list(visit('', 0))


def main():
    with open(sys.argv[1], encoding='utf-8') as file:
        rows = order_spans([json.loads(line) for line in file])
    if '--names' in sys.argv:
        print('\n'.join('  ' * depth + span['name'] for depth, span in rows))
        return
    first_ns, last_ns = min(read_time_ns(span, 'start') for _, span in rows), max(read_time_ns(span, 'end') for _, span in rows)
    for depth, span in rows:
        scale = WIDTH / max(last_ns - first_ns, 1)
        bar_begin, bar_end = (round((read_time_ns(span, edge) - first_ns) * scale) for edge in ('start', 'end'))
        bar = ' ' * min(bar_begin, WIDTH - 1) + '█' * max(bar_end - bar_begin, 1)
        ms = [(read_time_ns(span, 'start') - first_ns) / 1e6, (read_time_ns(span, 'end') - read_time_ns(span, 'start')) / 1e6]
        print(f"{'  ' * depth + span['name']:16} {span['service']:20} +{ms[0]:6.1f} {ms[1]:6.1f} ms  {bar}".rstrip())


main()
