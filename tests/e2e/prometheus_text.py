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
    labels, position = {}, 0
    while position < len(text):
        match = LABEL.match(text, position)
        if not match:
            raise ValueError(f'no label at: {text[position:]}')
        if match[1] in labels:
            raise ValueError(f'the label {match[1]} occurs twice')
        labels[match[1]] = re.sub(r'\\(.)', lambda m: '\n' if m[1] == 'n' else m[1], match[2])
        position = match.end()
        if position < len(text):
            if text[position] != ',':
                raise ValueError(f'no comma at: {text[position:]}')
            position += 1
    return labels


def find_family(name, types):
    for suffix in ('_bucket', '_sum', '_count'):
        if name.endswith(suffix) and types.get(name[:-len(suffix)]) in ('histogram', 'summary'):
            return name[:-len(suffix)]
    return name


class MetricsParser:
    def __init__(self):
        self.types, self.helps, self.samples, self.errors = {}, {}, [], []
        self.open_family, self.closed_families = None, set()

    def start_family(self, family, where):
        if family == self.open_family:
            return
        if family in self.closed_families:
            self.errors.append(f'{where}: lines of {family} are not consecutive')
        if self.open_family:
            self.closed_families.add(self.open_family)
        self.open_family = family

    def read_comment(self, line, where):
        match = re.match(rf'# (HELP|TYPE) ({NAME}) (.*)$', line)
        if not match:
            self.errors.append(f'{where}: {line}')
            return
        kind, family, text = match.groups()
        texts = self.helps if kind == 'HELP' else self.types
        if family in texts:
            self.errors.append(f'{where}: {kind} of {family} occurs twice')
        if kind == 'TYPE' and text not in ('counter', 'gauge', 'histogram', 'summary', 'untyped'):
            self.errors.append(f'{where}: no type: {text}')
        texts[family] = text
        self.start_family(family, where)

    def read_sample(self, line, where):
        match = SAMPLE.match(line)
        if not match:
            self.errors.append(f'{where}: {line}')
            return
        family = find_family(match[1], self.types)
        if family not in self.types or family not in self.helps:
            self.errors.append(f'{where}: {family} has no TYPE, or no HELP, before it')
        self.start_family(family, where)
        try:
            self.samples.append([match[1], read_labels(match[2] or ''), float(match[3])])
        except ValueError as error:
            self.errors.append(f'{where}: {error}')

    def check(self):
        series_seen = set()
        histograms = {}
        for name, labels, value in self.samples:
            series = (name, tuple(sorted(labels.items())))
            if series in series_seen:
                self.errors.append(f'{name} {labels}: occurs twice')
            series_seen.add(series)
            family = find_family(name, self.types)
            kind = self.types.get(family)
            if kind in ('counter', 'histogram') and not value >= 0:
                self.errors.append(f'{name} {labels}: {value}')
            if kind == 'histogram':
                other_labels = tuple(sorted((k, v) for k, v in labels.items() if k != 'le'))
                histograms.setdefault((family, other_labels), []).append((name[len(family):], labels.get('le'), value))
        for (family, labels), samples in histograms.items():
            buckets = sorted((float(le), value) for suffix, le, value in samples if suffix == '_bucket')
            counts = [value for suffix, _, value in samples if suffix == '_count']
            sums = [value for suffix, _, value in samples if suffix == '_sum']
            values = [value for _, value in buckets]
            if len(counts) != 1 or len(sums) != 1 or not buckets or buckets[-1][0] != float('inf'):
                self.errors.append(f'{family} {labels}: incomplete histogram')
            elif values != sorted(values) or values[-1] != counts[0]:
                self.errors.append(f'{family} {labels}: the buckets are not cumulative or do not end at the count')


def main():
    parser = MetricsParser()
    text = sys.stdin.buffer.read().decode('utf-8')
    if not text.endswith('\n'):
        parser.errors.append('the last line has no line break')
    for number, line in enumerate(text.split('\n')[:-1], 1):
        if line.startswith('#'):
            parser.read_comment(line, f'line {number}')
        elif line:
            parser.read_sample(line, f'line {number}')
    parser.check()
    for error in parser.errors:
        print(error, file=sys.stderr)
    print(json.dumps({'types': parser.types, 'helps': parser.helps, 'samples': parser.samples}))
    return 1 if parser.errors else 0


if __name__ == '__main__':
    sys.exit(main())
