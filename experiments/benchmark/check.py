#!/usr/bin/env python3
"""Checks solutions of rematerialization problems: python check.py INSTANCE SOLUTION

INSTANCE is a file in the format "remat.problem", SOLUTION one in the format "remat.solution"; both are JSON, gzipped
or not. docs/benchmark.md of the repository of remat says what each field means, and has the rules by the numbers that
are printed here. This file needs Python 3.8 or later and nothing else.

For each answer of the solution it prints whether it is feasible, or which rules it breaks, with what it costs, the
bytes it saves, and its peak, where the instance says what the peak takes. All numbers are exact.

Exit status: 0 if every answer is feasible and claims nothing that is wrong, 1 if some answer is not, 2 if a file cannot
be read or the solution is for another instance.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import re
import sys
import zlib

SHOWN, LONGEST = 5, 60
LARGEST = 2**62 - 1
BUDGET, DATE = re.compile("[a-z0-9.-]+"), re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Unreadable(Exception):
    """A file is not what it should be."""


# ---- reading ----


def read(path, kind):
    """The document of a file in the format `kind`, and the SHA-256 of its JSON, whether it is gzipped or not."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        document = json.loads(
            data.decode(), parse_float=refuse_number, parse_constant=refuse_number, object_pairs_hook=once
        )
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: {error}") from None
    head = [document.get(key) for key in ("format", "version")] if isinstance(document, dict) else []
    if head != [kind, 1] or head[1] is True:
        raise Unreadable(f'{path}: needs "format": "{kind}" and "version": 1')
    return document, hashlib.sha256(data).hexdigest()


def refuse_number(text):
    """What `json` calls for a number that is not whole."""
    raise ValueError("all numbers are whole, got " + text)


def once(pairs):
    """What `json` calls for an object: the last of two fields of one name would count, and people see the first."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the field {name!r} twice")
        found[name] = value
    return found


def check_fields(found, what, required, optional=()):
    """Refuses an object with unknown fields, or without one that is required."""
    for key in required:
        if key not in found:
            raise Unreadable(f'{what} needs "{key}"')
    for key in found:
        if key not in required and key not in optional:
            raise Unreadable("{} has no {!r}; it has {}".format(what, key, ", ".join((*required, *optional))))


def table(document, key, fields):
    """An object within an object, with these fields."""
    found = document.get(key)
    if not isinstance(found, dict):
        raise Unreadable(f'"{key}" must be an object')
    check_fields(found, f'"{key}"', fields)
    return found


def texts(found, label):
    """A list of texts."""
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise Unreadable(f'"{label}" must be a list of texts')
    return found


def column(document, key, length=None, least=0, most=LARGEST):
    """A list of whole numbers from `least` to `most`."""
    found = document.get(key)
    if not isinstance(found, list) or (length is not None and len(found) != length):
        raise Unreadable(f'"{key}" must be a list' + ("" if length is None else f" of {length}"))
    for number in found:
        if type(number) is not int or not least <= number <= most:
            got = repr(number)
            got = got if len(got) <= LONGEST else got[:LONGEST] + "..."
            raise Unreadable(f'"{key}" must hold whole numbers from {least} to {most}, got {got}')
    return found


def amounts(document, key, length=None):
    """A list of costs, or of bytes, whose sum is as limited as each of them."""
    found = column(document, key, length)
    if sum(found) > LARGEST:
        raise Unreadable(f'"{key}" must add up to {LARGEST} at most, got {sum(found)}')
    return found


def uses(found, n):
    """Pairs (producer, consumer): what is read, and who reads it, which comes later."""
    producers = column(found, "producer", None, 0, n - 1)
    consumers = column(found, "consumer", len(producers), 0, n - 1)
    for u, v in zip(producers, consumers):
        if u >= v:
            raise Unreadable(f'"uses" must go from earlier to later values, got {u} -> {v}')
    return list(zip(producers, consumers))


class Instance:
    """An instance, with its columns checked."""

    def __init__(self, document, digest):
        required = ("format", "version", "name", "about", "unit", "reasons", "values", "uses", "budgets")
        check_fields(document, "an instance", required, ("memory",))
        self.digest, self.name, self.unit = digest, document["name"], document["unit"]
        if not isinstance(self.name, str) or not isinstance(self.unit, str):
            raise Unreadable('"name" and "unit" must be texts')
        about = document["about"]
        if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
            raise Unreadable('"about" must be an object of texts')
        costs, bans = ("save_cost", "recompute_cost", "save_bytes"), ("cannot_save", "cannot_recompute")
        values = table(document, "values", ("name", *costs, "needed", *bans))
        self.reasons, self.names = texts(document["reasons"], "reasons"), texts(values["name"], "values.name")
        n = self.n = len(self.names)
        if len(set(self.names)) < n:
            raise Unreadable('"values.name" names a value twice')
        self.save_cost, self.recompute_cost, self.save_bytes = (amounts(values, key, n) for key in costs)
        self.needed = column(values, "needed", n, 0, 1)
        self.cannot_save, self.cannot_recompute = (column(values, key, n, 0, len(self.reasons)) for key in bans)
        self.uses = uses(table(document, "uses", ("producer", "consumer")), n)
        self.arguments = [[] for _ in range(n)]
        for u, v in self.uses:
            self.arguments[v].append(u)
        self.memory = None
        if "memory" in document:
            self.memory = Memory(table(document, "memory", ("node", "turn", "nodes", "uses")), n)
        self.budgets = budgets_of(document["budgets"], self.memory)


def budgets_of(budgets, memory):
    """By name, what each budget is of, and how many bytes it is."""
    if not isinstance(budgets, list) or not all(isinstance(budget, dict) for budget in budgets):
        raise Unreadable('"budgets" must be a list of objects')
    found = {}
    for budget in budgets:
        check_fields(budget, "a budget", ("name", "of", "bytes"))
        name, of, size = (budget[key] for key in ("name", "of", "bytes"))
        if not isinstance(name, str) or not BUDGET.fullmatch(name) or name == "none" or of not in ("saved", "peak"):
            raise Unreadable(f"not a budget: {budget!r}")
        if name in found:
            raise Unreadable(f'two budgets have the name "{name}"')
        column({name: [size]}, name)
        if of == "peak" and memory is None:
            raise Unreadable('a budget of the peak needs "memory"')
        found[name] = of, size
    return found


class Memory:
    """What the peak of a plan follows from."""

    def __init__(self, document, n):
        flags = ("computed", "register", "call", "forward", "backward", "output", "gradient")
        nodes = table(document, "nodes", ("bytes", "owner", "maker", "parent", *flags))
        self.bytes = amounts(nodes, "bytes")
        size = self.size = len(self.bytes)
        self.node = column(document, "node", n, 0, size - 1)
        if any(u >= v for u, v in zip(self.node, self.node[1:])):
            raise Unreadable('"node" must rise')
        self.turn = column({"turn": [document.get("turn")]}, "turn", 1, 0, size)[0]
        self.owner, self.maker = (column(nodes, key, size, 0, size - 1) for key in ("owner", "maker"))
        self.parent = column(nodes, "parent", size, -1, size - 1)
        for x, (owner, maker, parent) in enumerate(zip(self.owner, self.maker, self.parent)):
            if owner > x or self.owner[owner] != owner or maker > x or parent >= x:
                raise Unreadable(
                    f"node {x} has owner {owner}, maker {maker} and parent {parent}: an owner owns itself, and is no "
                    "later than what it owns; a maker is no later than what it makes; a parent is earlier than its view"
                )
        for key in flags:
            setattr(self, key, column(nodes, key, size, 0, 1))
        ends = table(document, "uses", ("producer", "consumer", "fused"))
        self.uses = uses(ends, size)
        fused = column(ends, "fused", len(self.uses), 0, 1)
        self.arguments, self.fused = [[] for _ in range(size)], [[] for _ in range(size)]
        self.barred = []
        for (u, v), joined in zip(self.uses, fused):
            self.arguments[v].append(u)
            if joined:
                self.fused[u].append(v)
            else:
                self.barred.append((u, v))
        self.decidable = [False] * size
        for x in self.node:
            self.decidable[x] = True


# ---- the plan ----


def followed(instance, saved):
    """What is recomputed if nothing else is said: all that the backward pass needs and that is not saved."""
    wanted, stored = list(instance.needed), set(saved)
    for v in range(instance.n - 1, -1, -1):
        if wanted[v] and v not in stored:
            for u in instance.arguments[v]:
                wanted[u] = 1
    return [v for v in range(instance.n) if wanted[v] and v not in stored]


def broken_rules(instance, saved, recomputed):
    """The rules 1 to 6 that a plan breaks, each as a line."""
    is_saved, is_recomputed = [0] * instance.n, [0] * instance.n
    twice = []
    for marks, listed in ((is_saved, saved), (is_recomputed, recomputed)):
        for v in listed:
            if marks[v]:
                twice.append(v)
            marks[v] = 1
    available = [s or r for s, r in zip(is_saved, is_recomputed)]
    every = range(instance.n)
    found = [
        ("rule 1: listed twice", twice),
        ("rule 2: both saved and recomputed", [v for v in every if is_saved[v] and is_recomputed[v]]),
        ("rule 3: needed, but neither saved nor recomputed", [v for v in every if instance.needed[v] > available[v]]),
        (
            "rule 4: recomputed from a value that is neither saved nor recomputed",
            [v for v in every if is_recomputed[v] and not all(available[u] for u in instance.arguments[v])],
        ),
    ]
    bans = ((5, "saved", is_saved, instance.cannot_save), (6, "recomputed", is_recomputed, instance.cannot_recompute))
    for rule, done, marks, codes in bans:
        for code, reason in enumerate(instance.reasons, 1):
            who = [v for v in every if marks[v] and codes[v] == code]
            found.append((f"rule {rule}: cannot be {done} ({reason}), but is", who))
    return [f"{what}: {named(instance, who)}" for what, who in found if who]


def named(instance, who):
    """The first names, and how many more there are."""
    shown = ", ".join(f"{v} {instance.names[v]}" for v in who[:SHOWN])
    return shown if len(who) <= SHOWN else f"{shown} and {len(who) - SHOWN} more"


# ---- the peak ----


def peak_of(memory, saved):
    """The most bytes that are alive at once, if `saved`, a flag for each node, is what the forward pass hands over."""
    kept, again, forward, backward = steps_of(memory, saved)
    at_forward, at_backward = [-1] * memory.size, [-1] * memory.size
    for at, order, first in ((at_forward, forward, 0), (at_backward, backward, len(forward))):
        for step, x in enumerate(order, first):
            at[x] = step
    place = places_of(memory, kept, again)
    passes = ((forward, at_forward, memory.owner), (backward, at_backward, place))
    written = written_storages(memory, kept, passes)
    start, end = lifetimes_of(memory, passes, written)

    steps = len(forward) + len(backward)
    change = [0] * (steps + 2)
    for storage in range(2 * memory.size):
        x = storage % memory.size
        if written[storage] and start[storage] < steps and memory.computed[x]:
            change[start[storage]] += memory.bytes[x]
            change[end[storage] + 1] -= memory.bytes[x]
    peak = alive = 0
    for step in range(steps):
        alive += change[step]
        peak = max(peak, alive)
    return peak


def steps_of(memory, saved):
    """What is kept, what is computed again, and the nodes that each pass runs, in order."""
    size, never = memory.size, memory.size + 1
    wanted = [memory.size if gradient else never for gradient in memory.gradient]
    for u, v in memory.uses:
        if memory.backward[v]:
            wanted[u] = min(wanted[u], v)
    for x in range(size - 1, -1, -1):
        if memory.decidable[x] and memory.computed[x] and not saved[x] and wanted[x] != never:
            when = x if x >= memory.turn else wanted[x]
            for u in memory.arguments[x]:
                wanted[u] = min(wanted[u], when)
    read = [memory.decidable[x] and wanted[x] != never for x in range(size)]
    kept = [read[x] and saved[x] for x in range(size)]
    again = [read[x] and not saved[x] and bool(memory.computed[x]) for x in range(size)]
    runs = [bool(memory.forward[x]) or kept[x] for x in range(size)]
    for x in range(size - 1, -1, -1):
        if runs[x] and memory.decidable[x]:
            for u in memory.arguments[x]:
                runs[u] = True
    forward = [x for x in range(size) if runs[x] and memory.computed[x]]
    keys = [
        (x if memory.backward[x] or x >= memory.turn else wanted[x], x)
        for x in range(size)
        if again[x] or memory.backward[x]
    ]
    return kept, again, forward, [x for _, x in sorted(keys)]


def places_of(memory, kept, again):
    """Where each node lives in the backward pass: storage x is what node x owns there in the forward pass, x + size in
    the backward pass. In the forward pass, a node lives where its owner says.
    """
    place = [x if keeps else x + memory.size for x, keeps in zip(memory.owner, kept)]
    for x, parent in enumerate(memory.parent):
        follows = again[x] or (memory.backward[x] and memory.decidable[memory.owner[x]])
        if follows and parent >= 0:
            place[x] = place[parent]
    return place


def written_storages(memory, kept, passes):
    """Which storages are in memory: the others live in registers."""
    size = memory.size
    (_, _, in_forward), (_, _, in_backward) = passes
    written = [False] * (2 * size)
    for x in range(size):
        if memory.output[x] or kept[x]:
            written[in_forward[x]] = True
        if memory.gradient[x]:
            written[in_backward[x]] = True
        if memory.owner[x] == x and not (memory.register[x] and memory.computed[x]):
            written[x] = written[x + size] = True
    for _, at, place in passes:
        for u, v in memory.barred:
            if at[v] >= 0:
                written[place[u]] = True
    return written


def lifetimes_of(memory, passes, written):
    """The first and the last step of each storage; a first step behind the last of all means that there is none."""
    size, steps = memory.size, sum(len(order) for order, _, _ in passes)
    start, end = [steps] * (2 * size), [-1] * (2 * size)
    for order, at, place in passes:
        for x in order:
            made = at[memory.maker[x]]
            start[place[x]] = min(start[place[x]], made if made >= 0 else at[x])
            end[place[x]] = max(end[place[x]], at[x])
        until = kernel_ends(memory, order, at, place, written)
        for u, v in memory.uses:
            if at[v] >= 0:
                end[place[u]] = max(end[place[u]], until[v])
    (_, _, in_forward), (_, _, in_backward) = passes
    for x in range(size):
        if memory.output[x]:
            end[in_forward[x]] = steps
        if memory.gradient[x]:
            end[in_backward[x]] = steps
    return start, end


def kernel_ends(memory, order, at, place, written):
    """Of each node of a pass, the step up to which what it reads is alive: the last one of its kernel."""
    segment, calls = [-1] * memory.size, 0
    for x in order:
        calls += memory.call[x]
        segment[x] = calls
    near = [at[x] if written[place[x]] else -1 for x in range(memory.size)]
    until = list(at)
    for x in reversed(order):
        if not memory.register[x]:
            continue
        far = until[x]
        for w in memory.fused[x]:
            if segment[w] == segment[x]:
                near[x] = max(near[x], near[w])
            far = max(far, until[w])
        until[x] = near[x] if written[place[x]] else far
    return until


# ---- an answer ----


CLAIMED = ("recomputed", "objective", "bound", "status", "proof", "solver", "version", "date", "seconds")


class Verdict:
    """What is found out about an answer: `complaints` is empty if it is feasible and its claims are right."""

    def __init__(self, budget, complaints, objective, saved_bytes, peak):
        self.budget, self.complaints = budget, complaints
        self.objective, self.saved_bytes, self.peak = objective, saved_bytes, peak


def check_answer(answer):
    """Refuses what is no answer: unknown fields, and fields that hold something else than they should."""
    if not isinstance(answer, dict) or not isinstance(answer.get("budget"), str):
        raise Unreadable('an answer needs a "budget" by name')
    check_fields(answer, "an answer", ("budget", "saved"), CLAIMED)
    for key in ("proof", "solver", "version", "date"):
        if not isinstance(answer.get(key, ""), str) or not answer.get(key, "").isprintable():
            raise Unreadable(f'in an answer, "{key}" must be a line of text, got {answer[key]!r}')
    if "date" in answer and not is_date(answer["date"]):
        raise Unreadable('"date" must be such as "2026-01-31", got {!r}'.format(answer["date"]))
    if answer.get("status", "feasible") not in ("optimal", "feasible"):
        raise Unreadable('"status" must be "optimal" or "feasible", got {!r}'.format(answer["status"]))
    for key in ("objective", "bound", "seconds"):
        column({key: [answer.get(key, 0)]}, key)


def is_date(text):
    """Whether a text is a day."""
    try:
        return bool(DATE.fullmatch(text) and datetime.date.fromisoformat(text))
    except ValueError:
        return False


def check(instance, answer):
    """The verdict on one answer of a solution."""
    check_answer(answer)
    budget = answer["budget"]
    if budget != "none" and budget not in instance.budgets:
        raise Unreadable(
            "{} has no budget {!r}; it has {}".format(instance.name, budget, ", ".join(instance.budgets) or "none")
        )
    saved = column(answer, "saved", None, 0, instance.n - 1)
    if "recomputed" in answer:
        recomputed = column(answer, "recomputed", None, 0, instance.n - 1)
    else:
        recomputed = followed(instance, saved)
    complaints = broken_rules(instance, saved, recomputed)
    objective = sum(instance.save_cost[v] for v in set(saved))
    objective += sum(instance.recompute_cost[v] for v in set(recomputed))
    saved_bytes = sum(instance.save_bytes[v] for v in set(saved))
    peak = None
    if instance.memory is not None:
        marks = [False] * instance.memory.size
        for v in saved:
            marks[instance.memory.node[v]] = True
        peak = peak_of(instance.memory, marks)
    of, most = instance.budgets.get(budget, ("", 0))
    if of == "saved" and saved_bytes > most:
        complaints.append(f"rule 7: saves {saved_bytes} bytes, but the budget is {most}")
    if of == "peak" and peak > most:
        complaints.append(f"rule 8: the peak is {peak} bytes, but the budget is {most}")
    complaints += wrong_claims(answer, objective)
    return Verdict(budget, complaints, objective, saved_bytes, peak)


def wrong_claims(answer, objective):
    """What an answer says about itself and is not so. A bound is a claim: nothing here can prove it."""
    claimed, bound, status = (answer.get(key) for key in ("objective", "bound", "status"))
    wrong = []
    if claimed is not None and claimed != objective:
        wrong.append(f"claim 1: costs {objective}, but claims {claimed}")
    if bound is not None and bound > objective:
        wrong.append(f"claim 2: costs {objective}, less than the bound {bound} that it claims")
    if status == "optimal" and bound != objective:
        wrong.append(f'claim 3: "optimal", but the bound that it claims is {bound}, and it costs {objective}')
    return wrong


def check_solution(instance, solution):
    """The verdicts on all answers of a solution."""
    check_fields(solution, "a solution", ("format", "version", "instance", "sha256", "answers"))
    if solution["sha256"] != instance.digest or solution["instance"] != instance.name:
        raise Unreadable(
            "the solution is for {!r} with SHA-256 {}, but this is {!r} with {}".format(
                solution["instance"], solution["sha256"], instance.name, instance.digest
            )
        )
    if not isinstance(solution["answers"], list) or not solution["answers"]:
        raise Unreadable('a solution needs a list of "answers", of one at least')
    verdicts = {}
    for number, answer in enumerate(solution["answers"], 1):
        try:
            found = check(instance, answer)
        except Unreadable as error:
            raise Unreadable(f"answer {number} of {len(solution['answers'])}: {error}") from None
        if found.budget in verdicts:
            raise Unreadable(f'a solution has one answer to a budget, but two to "{found.budget}"')
        verdicts[found.budget] = found
    return list(verdicts.values())


def say(line, file=None):
    """Prints a line; what would be more than one, or is no character, is printed as its code."""
    print(line if line.isprintable() else ascii(line)[1:-1], file=file)


def main(arguments):
    """Checks the files that are named on the command line, and returns the exit status."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        instance = Instance(*read(arguments[0], "remat.problem"))
        verdicts = check_solution(instance, read(arguments[1], "remat.solution")[0])
    except Unreadable as error:
        say(f"error: {error}", sys.stderr)
        return 2
    for found in verdicts:
        peak = "" if found.peak is None else f", peak {found.peak} bytes"
        word = "NOT FEASIBLE" if any(line.startswith("rule") for line in found.complaints) else "feasible"
        say(
            f"{instance.name} {found.budget}: {word}, objective {found.objective} {instance.unit}, "
            f"saves {found.saved_bytes} bytes{peak}"
        )
        for line in found.complaints:
            say("  " + line)
    return int(any(found.complaints for found in verdicts))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
