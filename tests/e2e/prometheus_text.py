#!/usr/bin/env python3
"""Parses /metrics from standard input (text format, version 0.0.4), and prints JSON:
{"types": {family: type}, "helps": {family: help}, "samples": [[name, {label: value}, number]]}. Prints a line for each error and exits
with 1. The parser is stricter than a scraper."""
import json
import re
import sys

NAME = r'[a-zA-Z_:][a-zA-Z0-9_:]*'
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf'({NAME})(?:\{{(.*)\}})? (\S+)$')


def read_labels(text):
    labels, at = {}, 0
    while at < len(text):
        found = LABEL.match(text, at)
        if not found:
            raise ValueError(f'no label at: {text[at:]}')
        if found[1] in labels:
            raise ValueError(f'the label {found[1]} stands twice')
        labels[found[1]] = re.sub(r'\\(.)', lambda m: '\n' if m[1] == 'n' else m[1], found[2])
        at = found.end()
        if at < len(text):
            if text[at] != ',':
                raise ValueError(f'no comma at: {text[at:]}')
            at += 1
    return labels


def family_of(name, types):
    for suffix in ('_bucket', '_sum', '_count'):
        if name.endswith(suffix) and types.get(name[:-len(suffix)]) in ('histogram', 'summary'):
            return name[:-len(suffix)]
    return name


class Reader:
    def __init__(self):
        self.types, self.helps, self.samples, self.wrong = {}, {}, [], []
        self.open, self.closed = None, set()

    def enter(self, family, where):
        if family == self.open:
            return
        if family in self.closed:
            self.wrong.append(f'{where}: lines of {family} do not stand together')
        if self.open:
            self.closed.add(self.open)
        self.open = family

    def comment(self, line, where):
        found = re.match(rf'# (HELP|TYPE) ({NAME}) (.*)$', line)
        if not found:
            self.wrong.append(f'{where}: {line}')
            return
        kind, family, text = found.groups()
        into = self.helps if kind == 'HELP' else self.types
        if family in into:
            self.wrong.append(f'{where}: {kind} of {family} stands twice')
        if kind == 'TYPE' and text not in ('counter', 'gauge', 'histogram', 'summary', 'untyped'):
            self.wrong.append(f'{where}: no type: {text}')
        into[family] = text
        self.enter(family, where)

    def sample(self, line, where):
        found = SAMPLE.match(line)
        if not found:
            self.wrong.append(f'{where}: {line}')
            return
        family = family_of(found[1], self.types)
        if family not in self.types or family not in self.helps:
            self.wrong.append(f'{where}: {family} has no TYPE, or no HELP, before it')
        self.enter(family, where)
        try:
            self.samples.append([found[1], read_labels(found[2] or ''), float(found[3])])
        except ValueError as error:
            self.wrong.append(f'{where}: {error}')

    def check(self):
        seen = set()
        histograms = {}
        for name, labels, value in self.samples:
            series = (name, tuple(sorted(labels.items())))
            if series in seen:
                self.wrong.append(f'{name} {labels}: stands twice')
            seen.add(series)
            family = family_of(name, self.types)
            kind = self.types.get(family)
            if kind in ('counter', 'histogram') and not value >= 0:
                self.wrong.append(f'{name} {labels}: {value}')
            if kind == 'histogram':
                rest = tuple(sorted((k, v) for k, v in labels.items() if k != 'le'))
                histograms.setdefault((family, rest), []).append((name[len(family):], labels.get('le'), value))
        for (family, labels), parts in histograms.items():
            buckets = sorted((float(le), value) for suffix, le, value in parts if suffix == '_bucket')
            counts = [value for suffix, _, value in parts if suffix == '_count']
            sums = [value for suffix, _, value in parts if suffix == '_sum']
            values = [value for _, value in buckets]
            if len(counts) != 1 or len(sums) != 1 or not buckets or buckets[-1][0] != float('inf'):
                self.wrong.append(f'{family} {labels}: no whole histogram')
            elif values != sorted(values) or values[-1] != counts[0]:
                self.wrong.append(f'{family} {labels}: its buckets do not rise to its count')


def main():
    reader = Reader()
    text = sys.stdin.buffer.read().decode('utf-8')
    if not text.endswith('\n'):
        reader.wrong.append('the last line has no end')
    for number, line in enumerate(text.split('\n')[:-1], 1):
        if line.startswith('#'):
            reader.comment(line, f'line {number}')
        elif line:
            reader.sample(line, f'line {number}')
    reader.check()
    for wrong in reader.wrong:
        print(wrong, file=sys.stderr)
    print(json.dumps({'types': reader.types, 'helps': reader.helps, 'samples': reader.samples}))
    return 1 if reader.wrong else 0


if __name__ == '__main__':
    sys.exit(main())
