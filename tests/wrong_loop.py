"""Wrong answers to the exercises of the loop, each with words of the message that it gets."""

import json
import math
import statistics

import numpy as np

from qrlib.teach.exercises import loop as chapter


def eight(**change):
    """The right answer with some words changed: w0="passed" changes the first."""
    answer = chapter.fates()
    for name, word in change.items():
        answer[int(name[1:])] = word
    return answer


def reader(*, catch=(ValueError,), objects=True, blanks=True, stop=False, whole=False, count=True):
    """read with one thing changed."""

    def read(content):
        if whole:
            content = content.decode().encode()
        entries, torn = [], 0
        for line in content.split(b"\n"):
            if blanks and not line.strip():
                continue
            try:
                entry = json.loads(line)
            except catch:
                torn += count
                if stop:
                    break
                continue
            if isinstance(entry, dict) or not objects:
                entries.append(entry)
            else:
                torn += count
        return entries, torn

    return read


def recorder(*, passed=True, strict=True, last=False, first=True):
    """records with one thing changed."""

    def records(tries):
        best, found = math.inf, []
        for k, each in enumerate(tries):
            us = each["us"] if each["us"] is not None or passed else math.inf
            if passed and each["verdict"] != "passed":
                continue
            if us < best or (not strict and us == best):
                found += [k] if first or found or k else []
                best = us
            if last:
                best = us
        return found

    return records


def gained(share=0.9, *, best=min, how=lambda record, best: record / best, tries=None):
    """luck with one thing changed."""

    def luck(stopwatch, tries_):
        many = tries or tries_
        gains = [how(stopwatch(), best(stopwatch() for _ in range(many))) for _ in range(1000)]
        return float(np.quantile(gains, share))

    return lambda stopwatch, tries: luck(stopwatch, tries)


def text(body, before=""):
    return f"import torch\n{before}\n\ndef custom_kernel(data):\n    {body}\n"


WRONG = {
    "loop.1": {
        "slow is failed": (eight(w3="failed"), "What is slow has passed"),
        "a time-out is evidence": (eight(w1="failed"), "It did not come to an end"),
        "hung is failed": (eight(w5="failed"), "It did not come to an end"),
        "one buffer passes": (eight(w2="passed"), "Can anybody rest on such a result"),
        "nearly as it was": (eight(w4="failed"), "Can anybody rest on such a result"),
        "NaN is rejected": (eight(w0="rejected"), "evidence against the idea as it is"),
        "seven": (chapter.fates()[:-1], "It must give 8 things"),
        "another word": (eight(w6="crashed"), "must be one of passed, failed"),
    },
    "loop.2": {
        "nothing is caught": (reader(catch=()), "JSONDecodeError"),
        "only half lines": (reader(catch=(json.JSONDecodeError,)), "UnicodeDecodeError"),
        "all at once": (reader(whole=True), "UnicodeDecodeError"),
        "the end at the first": (reader(stop=True), "What comes after a torn line is whole"),
        "any JSON": (reader(objects=False), "isinstance(entry, dict) tells"),
        "blank lines are torn": (reader(blanks=False), "torn lines; there are 0"),
        "not counted": (reader(count=False), "count it, and go on"),
        "a word": (lambda content: "fine", "It must give 2 things"),
    },
    "loop.3": {
        "wrong ones too": (recorder(passed=False), "A wrong result has no time that counts"),
        "as fast": (recorder(strict=False), "As fast is not faster"),
        "than the last one": (recorder(last=True), "not only than the last one"),
        "not the first": (recorder(first=False), "It says [1, 4]"),
        "the best alone": (
            lambda tries: [min(range(len(tries)), key=lambda k: tries[k]["us"])],
            "Faster than all before it",
        ),
        "a number": (lambda tries: len(tries), "must return a list"),
    },
    "loop.4": {
        "no start": ((8, 8, 0.625), "the first try is the start"),
        "log2": ((2, 8, 0.625), "five tries make one"),
        "the floor again": ((9, 9, 0.625), "it is still above it"),
        "of both": ((9, 16, 0.625), "both together have made twice"),
        "the other way round": ((9, 8, 1.6), "the new floor over the old one"),
        "what is gone": ((9, 8, 0.375), "not what is gone"),
        "two": ((9, 8), "It must give 3 things"),
    },
    "loop.5": {
        "one try": (gained(tries=1), "Of many the luckiest is taken"),
        "half of them": (gained(0.5), "nine in ten are asked for"),
        "one in ten": (gained(0.1), "nine in ten do not exceed"),
        "the mean of the tries": (gained(best=statistics.mean), "a record is the shortest"),
        "the longest": (gained(best=max), "is expected, or nearly"),
        "upside down": (
            gained(0.1, how=lambda record, best: best / record),
            "A gain is the record over the try",
        ),
        "a difference": (
            gained(how=lambda record, best: record - best),
            "must be finite and above",
        ),
        "in percent": (gained(how=lambda record, best: 100 * record / best), "r is 1; got 100"),
        "nothing": (lambda stopwatch, tries: 1.0, "is expected, or nearly"),
        "infinity": (lambda stopwatch, tries: math.inf, "It is a ratio of two times"),
    },
    "loop.6": {
        "honest": (text("return torch.geqrf(data)"), "It passes"),
        "wrong": (text("return data * 0, data[:, 0] * 0"), "'wrong', which is failed"),
        "no kernel": ("x = 1", "'does not import', which is failed"),
        "raises": (text("raise ValueError('no')"), "'raised', which is failed"),
        "bytes": (b"import torch", "It must be the text of a file"),
    },
}
