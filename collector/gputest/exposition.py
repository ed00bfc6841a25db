"""Counters, gauges and histograms in the Prometheus text format, as Python engines expose them.

The text is that of the prometheus_client package in one process: HELP and TYPE lines, counters with
_total, label names sorted, floats in its spelling, and a _created gauge after every counter and histogram.

One thread writes. A scrape holds the registry's lock only while it copies numbers, never while it
makes text: the engine's step must not wait for a scraper.
"""

import bisect
import gc
import math
import os
import platform
import threading

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def number(value):
    """A float as prometheus_client spells it: 1.0, 0.25, 1.7881841e+09, +Inf."""
    value = float(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    text = repr(value)
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = (text[0] + "." + text[1:dot] + text[dot + 1:]).rstrip("0.")
        return "%se+%02d" % (mantissa, dot - 1)
    return text


def label_text(labels):
    """Labels in braces, sorted by name, values escaped; nothing for no labels."""
    if not labels:
        return ""
    escaped = ((name, str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"'))
               for name, value in sorted(labels.items()))
    return "{" + ",".join('%s="%s"' % pair for pair in escaped) + "}"


class Value:
    """One counter's or gauge's number."""

    __slots__ = ("value",)

    def __init__(self):
        self.value = 0.0

    def inc(self, amount=1):
        """Adds; a counter's amount is never negative."""
        self.value += amount

    def set(self, value):
        """Replaces a gauge's number."""
        self.value = value

    def copy(self):
        return self.value


class Buckets:
    """One histogram's counts. edges are upper bounds, inclusive, +Inf left out."""

    __slots__ = ("edges", "counts", "sum")

    def __init__(self, edges):
        self.edges = list(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0

    def observe(self, value):
        """Counts one value into the first bucket that holds it."""
        self.counts[bisect.bisect_left(self.edges, value)] += 1
        self.sum += value

    def copy(self):
        return list(self.counts), self.sum


class Family:
    """One metric family with all of its children, which exist from the start at 0, as an engine creates them."""

    def __init__(self, kind, name, text, label_sets, edges, created):
        self.kind = kind
        self.name = name
        self.text = text.replace("\\", "\\\\").replace("\n", "\\n")
        self.created = created
        self.edges = edges
        self.children = [(labels, Buckets(edges) if kind == "histogram" else Value()) for labels in label_sets]
        if kind == "histogram":
            self._prefixes = [[name + "_bucket" + label_text(dict(labels, le=number(edge))) + " "
                               for edge in list(edges) + [math.inf]] for labels, _ in self.children]

    def child(self, **labels):
        """The child whose labels include these. Raises KeyError where none does: children are not made up later."""
        for own, child in self.children:
            if all(own.get(name) == value for name, value in labels.items()):
                return child
        raise KeyError("%s%s" % (self.name, label_text(labels)))

    def lines(self, copied):
        """The family's text from numbers that copy() gave."""
        shown = self.name + "_total" if self.kind == "counter" else self.name
        out = ["# HELP %s %s" % (shown, self.text), "# TYPE %s %s" % (shown, self.kind)]
        for index, (labels, _) in enumerate(self.children):
            if self.kind != "histogram":
                out.append(shown + label_text(labels) + " " + number(copied[index]))
                continue
            counts, total = copied[index]
            running = 0
            for prefix, count in zip(self._prefixes[index], counts):
                running += count
                out.append(prefix + number(running))
            out.append(self.name + "_count" + label_text(labels) + " " + number(running))
            out.append(self.name + "_sum" + label_text(labels) + " " + number(total))
        if self.kind in ("counter", "histogram"):
            made = self.name + "_created"
            out += ["# HELP %s %s" % (made, self.text), "# TYPE %s gauge" % made]
            out += [made + label_text(labels) + " " + number(self.created) for labels, _ in self.children]
        return out


class Registry:
    """All families of one process. created is the epoch second that every _created gauge shows."""

    def __init__(self, created):
        self.lock = threading.Lock()
        self.created = created
        self.families = []

    def _add(self, kind, name, text, label_sets, edges=None):
        family = Family(kind, name, text, label_sets, edges, self.created)
        self.families.append(family)
        return family

    def gauge(self, name, text, *label_sets):
        """A gauge with one child for each set of labels."""
        return self._add("gauge", name, text, label_sets)

    def counter(self, name, text, *label_sets):
        """A counter; name comes without _total."""
        return self._add("counter", name, text, label_sets)

    def histogram(self, name, text, edges, *label_sets):
        """A histogram over those upper bounds."""
        return self._add("histogram", name, text, label_sets, edges)

    def text(self):
        """The families' exposition. Writers wait no longer than the copying takes."""
        with self.lock:
            copied = [[child.copy() for _, child in family.children] for family in self.families]
        out = []
        for family, numbers in zip(self.families, copied):
            out += family.lines(numbers)
        return "\n".join(out) + "\n"


def process_text(root="/proc"):
    """The python_* and process_* families of this very process, read now. What /proc does not tell is left out."""
    out = []

    def family(name, kind, text, rows):
        out.extend(["# HELP %s %s" % (name, text), "# TYPE %s %s" % (name, kind)])
        out.extend(name + label_text(labels) + " " + number(value) for labels, value in rows)

    stats = gc.get_stats()
    for name, key, text in (("python_gc_objects_collected_total", "collected", "Objects collected during gc"),
                            ("python_gc_objects_uncollectable_total", "uncollectable", "Uncollectable objects found during GC"),
                            ("python_gc_collections_total", "collections", "Number of times this generation was collected")):
        family(name, "counter", text, [({"generation": str(i)}, s.get(key, 0)) for i, s in enumerate(stats)])
    major, minor, patch = platform.python_version_tuple()
    family("python_info", "gauge", "Python platform information",
           [({"implementation": platform.python_implementation(), "major": major, "minor": minor,
              "patchlevel": patch, "version": platform.python_version()}, 1)])
    for name, kind, text, value in read_process(root):
        family(name, kind, text, [({}, value)])
    return "\n".join(out) + "\n"


def read_process(root="/proc"):
    """Rows (family, kind, help, value) for this process from /proc; what cannot be read is absent, never 0."""
    rows = []
    try:
        with open(os.path.join(root, "self/stat"), "rb") as handle:
            fields = handle.read().rpartition(b")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        rows.append(("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", int(fields[20])))
        rows.append(("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.",
                     int(fields[21]) * os.sysconf("SC_PAGE_SIZE")))
        with open(os.path.join(root, "stat"), "rb") as handle:
            boot = next(int(line.split()[1]) for line in handle if line.startswith(b"btime "))
        rows.append(("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.",
                     boot + int(fields[19]) / ticks))
        rows.append(("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.",
                     (int(fields[11]) + int(fields[12])) / ticks))
    except (OSError, StopIteration, ValueError, IndexError):
        pass  # no /proc, or another system's: the families stay absent
    try:
        with open(os.path.join(root, "self/limits"), "rb") as handle:
            limit = next(line.split()[3] for line in handle if line.startswith(b"Max open file"))
        if limit != b"unlimited":
            rows.append(("process_max_fds", "gauge", "Maximum number of open file descriptors.", int(limit)))
        rows.append(("process_open_fds", "gauge", "Number of open file descriptors.",
                     len(os.listdir(os.path.join(root, "self/fd")))))
    except (OSError, StopIteration, ValueError, IndexError):
        pass  # as above
    return rows
