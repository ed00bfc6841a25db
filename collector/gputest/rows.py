"""The table of the matrix: what is planted into which worker, and what must be said of it.

It owns the numbers that make a fault visible within five minutes, that is five hours of event time, on one shared card. Bursts of 10 s with
drains of 12 s give a quiet point every 22 minutes of event time; a call wants three hours of them, and its confirmation bursts that differ.
Requests last about a second, so that the collector, which looks once a second, sees even the slackest burst.
"""

STATES = ("suspected", "confirmed")

MODEL = ("--layers 16 --hidden 1024 --heads 8 --kv-heads 2 --ffn 4096 --vocab 16000 --max-model-len 512 --kv-blocks 1024 "
         "--max-num-seqs 16 --max-num-batched-tokens 512 --prompt-mean 96 --prompt-max 256 --output-mean 64 --output-max 128 "
         "--cap-fraction 0.05").split()
TINY = ("--device cpu --dtype float32 --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 128 --vocab 500 --max-model-len 256 "
        "--kv-blocks 256 --max-num-seqs 8 --max-num-batched-tokens 256 --prompt-mean 40 --prompt-max 128 --output-mean 30 --output-max 64").split()
LOAD = "--rate 4 --swing 0.5 --burst-seconds 10 --drain-seconds 12 --abort-fraction 0.3 --drain-timeout 5".split()


class Row:
    """One worker of the matrix.

    name: of the row and its recording; planted: in words. verdict: the class that must be found, None for nothing at all. state: the least
    that it must reach. severity: what it must be at its worst; None takes a ticket or a page, since twenty workers share the card and wait for
    it: a latency symptom is as real as what is planted, and makes a page of what alone is a ticket. holder: module and function that the first holder must name, and the line within.
    snapshot: what the snapshot of the process must show (see verdict.SHOWS). program: worker.py or another. watch: "collector", "ear"
    (the probe talks to the matrix itself, which keeps its costs) or "off". declares: bytes of a cache's cap that is declared for it.
    cpu: whether it needs no GPU. more: its environment. ask: the second at which the matrix asks for a snapshot where it must ask itself; None is after the first OOM.
    """

    def __init__(self, name, planted, flags="", verdict=None, state="confirmed", severity=None, holder=None, snapshot=None, alloc_conf="",
                 program="worker.py", watch="collector", declares=0, cpu=False, after=0.0, ask=150.0, more=()):
        self.name, self.planted, self.flags = name, planted, flags.split()
        self.verdict, self.state, self.severity = verdict, state, severity
        self.holder, self.snapshot, self.alloc_conf = holder, snapshot, alloc_conf
        self.program, self.watch, self.declares, self.cpu = program, watch, declares, cpu
        self.ask, self.more = ask, dict(more)
        self.after = after  # seconds after all others are ready

    def command(self, device, port):
        """The program's flags on that device."""
        if self.program != "worker.py":
            return self.flags
        return ["--port", str(port), "--model", self.name] + (TINY if device == "cpu" else MODEL) + LOAD + self.flags

    def environment(self):
        """What the program's environment has beside the probe."""
        told = dict(self.more)
        if self.alloc_conf:
            told["PYTORCH_CUDA_ALLOC_CONF"] = self.alloc_conf
        if self.watch == "off":
            told["LOWTIDE_PROBE"] = "0"
        return told


def table():
    """All rows, in the order in which they are started."""
    keep = ("model.py", "keep")
    return [
        Row("metered", "nothing; its probe's reads are timed", watch="ear", cpu=True),
        Row("unwatched", "nothing, and no probe", watch="off", cpu=True),
        Row("healthy", "nothing", cpu=True),
        Row("healthy-expandable", "nothing, under expandable segments", alloc_conf="expandable_segments:True"),
        Row("cache-level", "a cache that is full after an hour", "--cache-mib 8 --cache-entries 48"),
        Row("cache-declared", "a cache that fills for hours, to a declared cap", "--cache-mib 8 --cache-entries 640", declares=640 * 8 << 20),
        Row("retention", "a tensor of 16 MiB stays of every aborted request", "--retain-aborted --retain-mib 16", "retention",
            holder=keep, snapshot="stacks"),
        Row("retention-expandable", "the same under expandable segments", "--retain-aborted --retain-mib 16", "retention",
            holder=keep, snapshot="stacks", alloc_conf="expandable_segments:True", ask=158.0),
        Row("retention-async", "the same under cudaMallocAsync, of which there are no snapshots", "--retain-aborted --retain-mib 16", "retention",
            alloc_conf="backend:cudaMallocAsync"),
        Row("fragmentation", "all that is allowed lies in holes of 62 MiB, then an eighth of it is asked for at once",
            "--fragment-at-seconds 120 --fragment-at-seconds 150", "fragmentation", severity="page", snapshot="pieces", ask=None),
        Row("stream-backlog", "16 MiB of every aborted request wait for a stream that stands still", "--backlog-mib 16", "stream_backlog",
            snapshot="pending", ask=15.0, more={"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),  # queues, so that what stands holds no other stream
        # torch 2.11 counts no private pools: cached memory grows at quiet points for three hours, and a snapshot says that it is theirs.
        Row("graph-pools", "a CUDA graph with its own pool at every third abort", "--graph-mib 32", "graph_pools", state="suspected",
            snapshot="private", ask=166.0),
        Row("native-growth", "16 MiB outside torch of every aborted request", "--leak native --leak-mib 16", "native_growth"),
        Row("kv-block-leak", "every fourth aborted request keeps its KV blocks", "--hold-kv 0.25", "kv_block_leak", cpu=True),
        Row("oversize-request", "twice a prompt whose activations do not fit", "--oversize-at-seconds 120 --oversize-at-seconds 150",
            "oversize_request", severity="page"),
        # Within five hours it need not be confirmed: the caching host allocator rounds, and keeps what the loads themselves pinned.
        Row("pinned-memory", "16 MiB of page-locked memory of every aborted request", "--pin-mib 16", "pinned_memory", state="suspected"),
        Row("host-memory", "8 MiB of host memory of every aborted request", "--host-mib 8", "host_memory", cpu=True),
        Row("fd-leak", "four open files of every aborted request", "--leak-files 4", "fd_leak", cpu=True),
        Row("thread-leak", "three threads of every aborted request", "--leak-threads 3", "thread_leak", cpu=True),
        # On a card that others use, too, the device cannot confirm it: it is busy whatever this worker does.
        Row("stall", "from its 70th second on no step returns, while requests are still taken in", "--hang-at-seconds 70", "stall",
            state="suspected", cpu=True),
        Row("illegal-access", "a write to an address that nobody mapped", "--wait-seconds 15", "software_fault", program="fault.py", after=30),
    ]


def chosen(rows, only, device):
    """The rows of these names, all without names. Raises ValueError for a name that is none, and for one that needs a GPU where there is none."""
    names = [row.name for row in rows]
    wrong = [name for name in only if name not in names]
    if wrong:
        raise ValueError("--only %s: no such row; the rows are %s" % (",".join(wrong), ", ".join(names)))
    picked = [row for row in rows if not only or row.name in only]
    if device == "cpu":
        needs = [row.name for row in picked if not row.cpu]
        if only and needs:
            raise ValueError("--only %s: these rows need a GPU; leave them out with --device cpu" % ",".join(needs))
        picked = [row for row in picked if row.cpu]
    return picked
