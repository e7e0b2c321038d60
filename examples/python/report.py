"""Counts the words of a text, stores a table as an artifact, and reports progress."""

import collections
import csv
import re

import mycojobs

TEXT = """It is a truth universally acknowledged, that a single man in possession of a good fortune,
must be in want of a wife. However little known the feelings or views of such a man may be."""

words = re.findall(r"[a-z]+", TEXT.lower())
counts = collections.Counter()
for number, word in enumerate(words, 1):
    counts[word] += 1
    if number % 20 == 0:
        mycojobs.progress(number / len(words), f"{number} words")

with open(mycojobs.artifacts / "words.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["word", "count"])
    writer.writerows(counts.most_common())

result["words"] = len(words)
result["most"] = counts.most_common(3)
print(f"{len(words)} words, {len(counts)} of them different")
